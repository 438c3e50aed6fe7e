"""handover.csv: kernels on what others wrote just before, or before so many bytes of weights were read."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from sim.measure.table import Case, Outcome, Row, Table

KEY = ("op", "rows", "width", "between_mib")
SHAPES = {
    "add": ((1, 4096), (8, 4096), (64, 4096)),
    "rms_norm": ((1, 4096), (8, 4096)),
    "silu": ((1, 14336), (8, 11008), (8, 14336), (64, 14336)),
    "mul": ((1, 14336), (8, 11008), (8, 14336), (64, 14336)),
}
LARGE = {"add": 4096, "silu": 11008, "mul": 11008, "rms_norm": 4096}
LARGE_MIB = (4, 8, 12, 16, 24, 32, 48)
"""Of what is read: of a width of `LARGE`."""
LARGE_BETWEEN_MIB = (0, 256)
BETWEEN_MIB = (0, 8, 16, 24, 32, 40, 48, 64, 96, 160, 256)
AGAIN = -1
"""In place of `between_mib`: nobody writes, the operation alone is launched again and again."""
K, ROWS = 4096, 16
"""Of the products that read weights in between."""
N_CALLS = 16


def cases(quick: bool) -> list[Case]:
    """silu and mul read one half of [rows, 2 width]; mul and add read a second tensor, always written just before."""
    found = [
        (op, *shape, between) for op, shapes in SHAPES.items() for shape in shapes for between in (AGAIN, *BETWEEN_MIB)
    ]
    found += [
        (op, mib * 2**20 // (2 * width), width, between)
        for op, width in LARGE.items()
        for mib in LARGE_MIB
        for between in (AGAIN, *LARGE_BETWEEN_MIB)
    ]
    cases = [dict(zip(KEY, values, strict=True)) for values in found]
    return cases[::12] if quick else cases


def measure(batch: Sequence[Case]) -> list[Outcome]:
    """Duration of the last kernel of each call: one writes the operand, products read weights, one writes the other."""
    return [[_measured(case)] for case in batch]


def _measured(case: Case) -> Row:
    import torch

    from sim.measure.timing import clean, launches, threes

    with torch.no_grad():
        ends = [events[-1] for events in launches(_call(**case), N_CALLS, drop=2)]
    last = ends[0]
    return {
        "time_us": round(statistics.median(event["dur"] for event in ends), 3),
        "time_us_min": round(min(event["dur"] for event in ends), 3),
        "time_us_max": round(max(event["dur"] for event in ends), 3),
        "kernel": clean(last["name"], 160),
        "grid": threes(last, "grid"),
        "block": threes(last, "block"),
    }


def _call(op: str, rows: int, width: int, between_mib: int) -> Callable[[int], Any]:
    import torch
    from torch.nn import functional

    from sim.measure.timing import pool

    source, halves = pool("bf16"), op in ("silu", "mul")
    n_columns = max(0, between_mib) * 2**20 // (2 * K)
    weights = [source.take(n_columns, K) for _ in range(8)] if n_columns else []
    tokens, scale = source.take(ROWS, K), source.take(width)
    old, seed = (source.take(rows, 2 * width if halves else width) for _ in range(2))
    new, new_seed = source.take(rows, width), source.take(rows, width)
    x = old[:, :width] if halves else old
    calls: dict[str, Callable[[], Any]] = {
        "add": lambda: x + new,
        "rms_norm": lambda: functional.rms_norm(x, (width,), scale),
        "silu": lambda: functional.silu(x),
        "mul": lambda: new * old[:, width:],
    }
    apply = calls[op]

    def call(i: int) -> Any:
        if between_mib != AGAIN:
            torch.neg(seed, out=old)
            if weights:
                functional.linear(tokens, weights[i % len(weights)])
            torch.neg(new_seed, out=new)
        return apply()

    return call


TABLE = Table(
    "handover",
    "kernels on what another wrote just before, or before products read so many MiB of weights; -1: launched alone",
    (*KEY, "time_us", "time_us_min", "time_us_max", "kernel", "grid", "block"),
    (),
    cases,
    measure,
    batch=24,
    case_s=0.3,
)
