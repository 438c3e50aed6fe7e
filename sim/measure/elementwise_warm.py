"""elementwise_warm.csv: kernels of elementwise.csv and others on inputs in L2 and not, bf16 and fp32, other shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sim.measure import elementwise
from sim.measure.table import Case, Outcome, Table

KEY = ("op", "rows", "width", "dtype", "out_dtype", "strided", "l2")
OPS = ("add", "mul", "gelu", "silu", "softmax", "log_softmax", "layer_norm", "rms_norm", "copy", "bias", "cast", "fill")
FP32_OPS = OPS[:9]
HALVES = ("silu", "mul")
"""Operations on the left and right half of [rows, 2 width] too."""
SHAPES = (
    *((1, 2048), (1, 8192), (16, 2048), (32, 3072), (128, 8192), (256, 2048), (1024, 6144), (2048, 2048)),
    *((2048, 8192), (16384, 3072), (16384, 8192)),
)
WARM_ELEMENTS = 4e6
"""Above this nothing of the inputs is left in L2."""


def cases(quick: bool) -> list[Case]:
    """Every operation in bf16, cold and, where it fits, warm; some in fp32, cold."""
    found = [
        _case(op, rows, width, "bf16", half, l2)
        for op, half in (*((op, False) for op in OPS), *((op, True) for op in HALVES))
        for rows, width in SHAPES
        for l2 in ("cold", "warm")
        if l2 == "cold" or rows * width <= WARM_ELEMENTS
    ]
    found += [_case(op, rows, width, "fp32", False, "cold") for op in FP32_OPS for rows, width in SHAPES]
    return found[::40] if quick else found


def _case(op: str, rows: int, width: int, dtype: str, half: bool, l2: str) -> Case:
    width = width // 2 if half else width
    values = (op, rows, width, dtype, "fp32" if op == "cast" else "", "yes" if half else "no", l2)
    return dict(zip(KEY, values, strict=True))


def measure(batch: Sequence[Case]) -> list[Outcome]:
    """Time each by its own burst of launches."""
    from sim.measure.timing import time_calls

    timed = time_calls([_call(**case) for case in batch], elementwise.N_CALLS)
    return [[vars(each)] for each in timed]


def _call(op: str, rows: int, width: int, dtype: str, out_dtype: str, strided: str, l2: str) -> Callable[[int], Any]:
    import torch
    from torch.nn import functional

    from sim.measure.timing import pool

    source, wide = pool(dtype), width * (2 if strided == "yes" else 1)
    n_sets = source.sets_of(2 * rows * wide, elementwise.N_CALLS)
    inputs = [(source.take(rows, wide), source.take(rows, wide)) for _ in range(n_sets)]
    if strided == "yes":
        inputs = [(x[:, width:], x[:, :width]) for x, _ in inputs]
    scale = torch.ones(width, device="cuda", dtype=inputs[0][0].dtype)
    apply = {
        "add": torch.add,
        "mul": torch.mul,
        "gelu": lambda x, y: functional.gelu(x),
        "silu": lambda x, y: functional.silu(x),
        "softmax": lambda x, y: functional.softmax(x, -1),
        "log_softmax": lambda x, y: functional.log_softmax(x, -1),
        "layer_norm": lambda x, y: functional.layer_norm(x, (width,), scale, scale),
        "rms_norm": lambda x, y: functional.rms_norm(x, (width,), scale),
        "copy": lambda x, y: x.clone(),
        "bias": lambda x, y: x + scale,
        "cast": lambda x, y: x.float(),
        "fill": lambda x, y: torch.zeros_like(x),
    }[op]
    return lambda i: apply(*inputs[i % (n_sets if l2 == "cold" else 1)])


TABLE = Table(
    "elementwise_warm",
    "eager PyTorch kernels on [rows, width], inputs in L2 (warm) or not; strided: halves of [rows, 2 width]",
    (*KEY, *("time_us", "time_us_min", "time_us_max", "n_kernels", "kernel", "grid", "block", "regs", "smem")),
    (),
    cases,
    measure,
    batch=24,
    case_s=0.2,
)
