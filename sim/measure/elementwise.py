"""elementwise.csv, elementwise_more.csv: eager PyTorch kernels that move data and compute little."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sim.measure.table import Case, Outcome, Table

KEY = ("op", "rows", "width")
OPS = ("add", "gelu", "silu", "softmax", "layer_norm", "rms_norm", "copy", "transpose")
OTHER_OPS = ("add", "mul", "gelu", "silu", "softmax", "layer_norm", "rms_norm", "copy", "transpose")
OTHER_ROWS = (1, 4, 32, 128, 1024, 8192)
OTHER_WIDTHS = (768, 2048, 5120, 8192, 11008, 16384)
THINNED = 3
HALVES = ("silu_strided", "mul_strided")
FFN_WIDTHS = (11008, 14336)
PACKED = {1024: 6144, 4096: 12288}
"""Width of keys: of the packed QKV they are a part of."""
HEAD_DIM = 128
STRIDED_ROWS = (1, 16, 128, 512, 2048, 8192)
MOST_ELEMENTS = 3e8
N_CALLS = 10


def cases(quick: bool) -> list[Case]:
    """bf16 [rows, width]; normalisations and softmax along the width."""
    found = [
        _case(op, rows, width)
        for op in OPS
        for width in (1024, 4096, 14336)
        for rows in (1, 8, 64, 512, 4096, 32768)
        if rows * width <= MOST_ELEMENTS
    ]
    return found if not quick else [case for case in found if case["rows"] == 512 and case["width"] == 4096]


def other_cases(quick: bool) -> list[Case]:
    """Other rows and widths, a third of all; and operands that lie apart, as in a decoder layer (`_operands`)."""
    found = [
        _case(op, rows, width)
        for i, op in enumerate(OTHER_OPS)
        for j, width in enumerate(OTHER_WIDTHS)
        for k, rows in enumerate(OTHER_ROWS)
        if (i + j + k) % THINNED == 0 and (op, rows) != ("transpose", 1)  # which launches nothing
    ]
    found += [_case(op, rows, width) for op in HALVES for width in FFN_WIDTHS for rows in STRIDED_ROWS]
    found += [_case("copy_strided", rows, width) for width in PACKED for rows in STRIDED_ROWS]
    return found[::12] if quick else found


def _case(*values: Any) -> Case:
    return dict(zip(KEY, values, strict=True))


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
    return (3 if op in ("add", "mul", "mul_strided") else 2) * rows * width * 2


def _call(op: str, rows: int, width: int) -> Callable[[int], Any]:
    import torch
    from torch.nn import functional

    scale = torch.ones(width, device="cuda", dtype=torch.bfloat16)
    apply = {
        "add": torch.add,
        "mul": torch.mul,
        "gelu": lambda x, y: functional.gelu(x),
        "silu": lambda x, y: functional.silu(x),
        "softmax": lambda x, y: functional.softmax(x, -1),
        "layer_norm": lambda x, y: functional.layer_norm(x, (width,), scale, scale),
        "rms_norm": lambda x, y: functional.rms_norm(x, (width,), scale),
        "copy": lambda x, y: x.clone(),
        "transpose": lambda x, y: x.t().contiguous(),
        "silu_strided": lambda x, y: functional.silu(x),
        "mul_strided": torch.mul,
        "copy_strided": lambda x, y: y.copy_(x),
    }[op]
    operands = _operands(op, rows, width)
    return lambda i: apply(*operands[i % len(operands)])


def _operands(op: str, rows: int, width: int) -> list[tuple[Any, Any]]:
    """x and y of every call. silu_strided: x is the left half of [rows, 2 width]; mul_strided: y the right half;
    copy_strided: x is K of one sequence in a packed QKV, y its cache [1, heads, rows, head_dim]."""
    from sim.measure.timing import pool

    source = pool("bf16")
    sets = range(source.sets_of(_set_elements(op, rows, width), N_CALLS))
    if op == "silu_strided":
        return [(source.take(rows, 2 * width)[:, :width], None) for _ in sets]
    if op == "mul_strided":
        return [(source.take(rows, width), source.take(rows, 2 * width)[:, width:]) for _ in sets]
    if op == "copy_strided":
        heads = width // HEAD_DIM
        packed = [source.take(1, rows, PACKED[width]).split(width, -1)[-2] for _ in sets]
        keys = [each.view(1, rows, heads, HEAD_DIM).transpose(1, 2) for each in packed]
        return [(each, source.take(1, heads, rows, HEAD_DIM)) for each in keys]
    return [(source.take(rows, width), source.take(rows, width)) for _ in sets]


def _set_elements(op: str, rows: int, width: int) -> int:
    """Elements of a call's operands, x and y and what they are parts of."""
    parts = {"silu_strided": 2 * width, "mul_strided": 3 * width, "copy_strided": width + PACKED.get(width, 0)}
    return rows * parts.get(op, 2 * width)


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
OTHER_TABLE = replace(
    TABLE,
    name="elementwise_more",
    about="as elementwise: other rows and widths; halves of [rows, 2 width], K of packed QKV into a cache",
    cases=other_cases,
)
