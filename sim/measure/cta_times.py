"""cta_times.csv: when CTAs of the Triton GEMM begin and end, and on which SM: those that run first."""

from __future__ import annotations

from collections.abc import Sequence

from sim.measure import tiles
from sim.measure.table import Case, Outcome, Row, Table

KEY = ("m", "n", "k", *tiles.TILE)
SHAPES = ((2048, 4096, 4096), (512, 4096, 14336))
BLOCKS = (
    (128, 128, 64, 3, 8, 8), (64, 64, 64, 3, 4, 8), (128, 128, 32, 4, 4, 8), (64, 256, 32, 4, 4, 8),
    (128, 64, 64, 4, 4, 8), (128, 256, 64, 3, 8, 8), (64, 128, 128, 3, 8, 8), (64, 64, 128, 3, 4, 8),
    (64, 256, 64, 3, 4, 8), (128, 128, 128, 3, 8, 8),
)  # fmt: skip
"""One to four CTAs an SM."""
N_CALLS, FLUSH_BYTES = 4, 2**28
"""The last of so many calls counts, each after a write of so many bytes."""


def cases(quick: bool) -> list[Case]:
    """Every tile at every shape."""
    found = [dict(zip(KEY, (*shape, *blocks), strict=True)) for shape in SHAPES for blocks in BLOCKS]
    return found[::10] if quick else found


def measure(batch: Sequence[Case]) -> list[Outcome]:
    """One after another: nothing else may run."""
    reasons = tiles.compiled_all(batch)
    return [why or _first_ctas(case) for case, why in zip(batch, reasons, strict=True)]


def _first_ctas(case: Case) -> list[Row]:
    """The CTAs that began before any had ended."""
    import torch

    from sim.measure.timing import pool
    from sim.measure.triton_gemm import LOGGED, launch

    m, n, k = case["m"], case["n"], case["k"]
    a, b = pool("bf16").take(m, k), pool("bf16").take(n, k)
    c = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
    grid = -(-m // case["block_m"]) * -(-n // case["block_n"])
    log = torch.zeros(grid, len(LOGGED), dtype=torch.int64, device="cuda")
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    for i in range(N_CALLS):
        flush.fill_(i)
        kernel = launch(case, a, b, c, log)
    torch.cuda.synchronize()
    log[:, 1:] -= log[:, 1].min()
    rows = [dict(zip(LOGGED, row, strict=True)) | {"cta": i} for i, row in enumerate(log.tolist())]
    return [row | {"regs": kernel.n_regs} for row in before_the_first_end(rows)]


def before_the_first_end(rows: Sequence[Row]) -> list[Row]:
    """Those that began before any had ended."""
    first_end = min(row["end"] for row in rows)
    return [row for row in rows if row["start"] < first_end]


TABLE = Table(
    "cta_times",
    "when CTAs of the Triton GEMM begin and end (ns), and on which SM: those that run first",
    (*KEY, "regs", "cta", "sm", "start", "loop_end", "end"),
    ("triton",),
    cases,
    measure,
    batch=20,
    case_s=0.5,
)
