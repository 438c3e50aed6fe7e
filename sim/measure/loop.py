"""loop.csv: the Triton GEMM of tile_sweep.csv on operands in L2, for two k: what an iteration of its loop takes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from sim.measure import tiles
from sim.measure.table import Case, Outcome, Table

KEY = ("grid_m", "grid_n", "k", *tiles.TILE)
GRIDS = ((1, 1), (12, 11))
"""One CTA; one for each SM of an H200."""
KS = (1024, 2048)
N_CALLS = 14
BLOCKS = tuple(itertools.product((64, 128, 256), (64, 128, 256), (32, 64, 128), (3, 4), (4, 8), (8,)))


def cases(quick: bool) -> list[Case]:
    """Tiles that fit an SM and fill their registers at most by half again."""
    found = [
        dict(zip(KEY, (*grid, k, *blocks), strict=True))
        for blocks in BLOCKS
        if _sensible(*blocks)
        for grid in GRIDS
        for k in KS
    ]
    return found[::40] if quick else found


def _sensible(block_m: int, block_n: int, block_k: int, stages: int, warps: int, group_m: int) -> bool:
    fits = (block_m + block_n) * block_k * 2 * stages <= tiles.MOST_SMEM_BYTES
    return fits and 16 <= block_m * block_n / (warps * 32) <= 256


def measure(batch: Sequence[Case]) -> list[Outcome]:
    """Compile in parallel, then launch each again and again on the same operands."""
    from sim.measure.timing import time_calls

    sized = [case | _extents(case) for case in batch]
    reasons = tiles.compiled_all(sized)
    timed = iter(time_calls([_call(case) for case, why in zip(sized, reasons, strict=True) if not why], N_CALLS))
    return [why or [vars(next(timed))] for why in reasons]


def _extents(case: Case) -> dict[str, int]:
    return {"m": case["grid_m"] * case["block_m"], "n": case["grid_n"] * case["block_n"]}


def _call(case: Case) -> Callable[[int], Any]:
    import torch

    from sim.measure.timing import pool
    from sim.measure.triton_gemm import launch

    m, n, k = case["m"], case["n"], case["k"]
    a, b = pool("bf16").take(m, k), pool("bf16").take(n, k)
    c = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
    return lambda i: launch(case, a, b, c)


TABLE = Table(
    "loop",
    "the Triton GEMM of tile_sweep on operands in L2, one CTA and one for each SM, for two k",
    (*KEY, "time_us", "time_us_min", "time_us_max", "grid", "regs", "smem", "sm_mhz_after"),
    ("triton",),
    cases,
    measure,
    batch=40,
    case_s=0.4,
)
