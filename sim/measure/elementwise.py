"""elementwise.csv: eager PyTorch kernels that move data and compute little."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sim.measure.table import Case, Outcome, Table

KEY = ("op", "rows", "width")
OPS = ("add", "gelu", "silu", "softmax", "layer_norm", "rms_norm", "copy", "transpose")
MOST_ELEMENTS = 3e8
N_CALLS = 10


def cases(quick: bool) -> list[Case]:
    """bf16 [rows, width]; normalisations and softmax along the width."""
    found = [
        dict(zip(KEY, (op, rows, width), strict=True))
        for op in OPS
        for width in (1024, 4096, 14336)
        for rows in (1, 8, 64, 512, 4096, 32768)
        if rows * width <= MOST_ELEMENTS
    ]
    return found if not quick else [case for case in found if case["rows"] == 512 and case["width"] == 4096]


def measure(batch: Sequence[Case]) -> list[Outcome]:
    """Time each by its own burst of launches."""
    from sim.measure.timing import time_calls

    timed = time_calls([_call(**case) for case in batch], N_CALLS)
    return [
        [vars(each) | {"sm_mhz": each.sm_mhz_after, "bytes_moved": _bytes(**case)}]
        for case, each in zip(batch, timed, strict=True)
    ]


def _bytes(op: str, rows: int, width: int) -> int:
    """The fewest that must move: each input read once, the output written once."""
    return (3 if op == "add" else 2) * rows * width * 2


def _call(op: str, rows: int, width: int) -> Callable[[int], Any]:
    import torch
    from torch.nn import functional

    from sim.measure.timing import pool

    source = pool("bf16")
    n_sets = source.sets_of(2 * rows * width, N_CALLS)
    inputs = [(source.take(rows, width), source.take(rows, width)) for _ in range(n_sets)]
    scale = torch.ones(width, device="cuda", dtype=torch.bfloat16)
    apply = {
        "add": torch.add,
        "gelu": lambda x, y: functional.gelu(x),
        "silu": lambda x, y: functional.silu(x),
        "softmax": lambda x, y: functional.softmax(x, -1),
        "layer_norm": lambda x, y: functional.layer_norm(x, (width,), scale, scale),
        "rms_norm": lambda x, y: functional.rms_norm(x, (width,), scale),
        "copy": lambda x, y: x.clone(),
        "transpose": lambda x, y: x.t().contiguous(),
    }[op]
    return lambda i: apply(*inputs[i % n_sets])


TABLE = Table(
    "elementwise",
    "eager PyTorch kernels, bf16 [rows, width]; bytes_moved: the fewest that must move",
    (
        *KEY,
        *("bytes_moved", "time_us", "time_us_min", "time_us_max", "n_kernels", "kernel", "kernel_us", "other_kernels"),
        *("grid", "block", "regs", "smem", "sm_mhz"),
    ),
    (),
    cases,
    measure,
    batch=24,
    case_s=0.2,
)
