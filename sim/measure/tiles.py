"""tile_sweep.csv: one Triton GEMM over tiles, stages and warps."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from sim.measure.table import Case, Outcome, Table

SHAPES = (
    (4096, 4096, 4096), (8192, 8192, 8192), (2048, 4096, 4096), (512, 4096, 14336), (64, 14336, 4096), (16, 4096, 4096),
    (1024, 1024, 1024), (4096, 4096, 512), (256, 28672, 4096), (3000, 5000, 2000),
)  # fmt: skip
TILE = ("block_m", "block_n", "block_k", "stages", "warps", "group_m")
COLUMNS = (
    "m", "n", "k", *TILE, "spills", "time_us", "time_us_min", "time_us_max", "grid", "regs", "smem", "sm_mhz_after",
)  # fmt: skip
N_TILES = 190
MOST_SMEM_BYTES = 220_000
N_SETS, N_CALLS = 12, 12
LONG_FLOP, PAUSE_S = 5e11, 0.04
"""Longer calls wait this long before each, or the board's power limit would be what is measured."""


def tiles() -> list[dict[str, int]]:
    """A fixed sample of the tiles whose operands and accumulators fit an SM."""
    grid = itertools.product((16, 32, 64, 128, 256), (32, 64, 128, 256), (32, 64, 128), (2, 3, 4, 5), (4, 8), (1, 8))
    found = [dict(zip(TILE, values, strict=True)) for values in grid if _sensible(*values)]
    return random.Random(3).sample(found, min(N_TILES, len(found)))


def cases(quick: bool) -> list[Case]:
    """Shape by shape; large problems without the smallest tiles, few rows without the largest."""
    found = [
        dict(zip("mnk", shape, strict=True)) | tile for shape in SHAPES for tile in tiles() if worthwhile(shape, tile)
    ]
    return found if not quick else [case for case in found if case["m"] in (16, 1024)][::12]


def measure(batch: Sequence[Case]) -> list[Outcome]:
    """Compile in parallel, then time the launches; a tile that does not compile says why."""
    from sim.measure.timing import time_calls

    compiled = compiled_all(batch)
    outcomes: dict[int, Outcome] = {i: reason for i, reason in enumerate(compiled) if reason}
    calls, facts = {}, {}
    for i, case in enumerate(batch):
        if i not in outcomes:
            calls[i], kernel = _call(case)
            facts[i] = {"spills": kernel.n_spills, "smem": kernel.metadata.shared}
    for i, timed in zip(calls, time_calls(list(calls.values()), N_CALLS), strict=True):
        outcomes[i] = [vars(timed) | facts[i]]
    return [outcomes[i] for i in range(len(batch))]


def _sensible(block_m: int, block_n: int, block_k: int, stages: int, warps: int, group_m: int) -> bool:
    accumulators = block_m * block_n / (warps * 32)
    if (block_m + block_n) * block_k * 2 * stages > MOST_SMEM_BYTES or not 8 <= accumulators <= 140:
        return False
    if warps == 8 and block_m * block_n < 128 * 64:
        return False
    return group_m != 1 or (stages == 3 and block_k == 64)


def worthwhile(shape: tuple[int, int, int], tile: dict[str, int]) -> bool:
    """Whether `tile` is not far too small, or far too large, for `shape` (m, n, k)."""
    m, n, k = shape
    if 2 * m * n * k > LONG_FLOP and tile["block_m"] * tile["block_n"] < 64 * 128:
        return False
    many_rows = tile["block_m"] < 64 and m >= 2048 and tile["stages"] != 3
    return tile["block_m"] <= max(16, 2 * m) and tile["block_n"] <= 2 * n and not many_rows


def compiled_all(batch: Sequence[Case]) -> list[str]:
    """Processes for the while: ones that were kept would outlive an interrupt."""
    ignore = (signal.SIGINT, signal.SIG_IGN)
    n_workers = min(16, os.cpu_count() or 1, len(batch))
    with ProcessPoolExecutor(n_workers, get_context("spawn"), signal.signal, ignore) as workers:
        return list(workers.map(_compiled, map(dict, batch)))


def _compiled(case: Case) -> str:
    """Fill Triton's cache (in a process of its own); the reason where it cannot be compiled."""
    from sim.measure.triton_gemm import compile_only

    try:
        compile_only(case, (case["m"], case["n"], case["k"]))
    except Exception as error:  # Triton's own, and ptxas's
        return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200].replace(",", ";")
    return ""


def _call(case: Case) -> tuple[Callable[[int], Any], Any]:
    """The call with the i-th operands, and the compiled kernel."""
    import torch

    from sim.measure.timing import pool
    from sim.measure.triton_gemm import launch

    m, n, k = case["m"], case["n"], case["k"]
    inputs = [(pool("bf16").take(m, k), pool("bf16").take(n, k)) for _ in range(N_SETS)]
    outputs = [torch.empty(m, n, dtype=torch.bfloat16, device="cuda") for _ in range(3)]

    def call(i: int) -> Any:
        if 2 * m * n * k > LONG_FLOP:
            torch.cuda.synchronize()
            time.sleep(PAUSE_S)
        return launch(case, *inputs[i % N_SETS], outputs[i % 3])

    return call, launch(case, *inputs[0], outputs[0])


TABLE = Table(
    "tile_sweep",
    "one Triton GEMM (pointer loads, one CTA per output tile; bf16; A [m, k], B stored [n, k]); regs, smem (bytes) and "
    "spills as compiled",
    COLUMNS,
    ("triton",),
    cases,
    measure,
    batch=40,
    case_s=0.4,
)
