"""What register spills cost: time, local-memory instructions and traffic of Triton GEMMs with and without them.

Usage: python3 -m sim.measure.spills OUT.csv
"""

import csv
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

from sim.measure import nsight

TILE = ("block_m", "block_n", "block_k", "stages", "warps", "group_m")
CONFIGS = [  # accumulators of 256 registers a thread; mma.sync tiles with wide operands; and tiles that fit
    (256, 256, 64, 3, 8), (256, 256, 64, 2, 8), (256, 256, 32, 3, 8), (256, 256, 32, 5, 8), (128, 256, 64, 3, 4),
    (128, 256, 32, 4, 4), (256, 128, 64, 3, 4), (256, 128, 64, 4, 4), (128, 256, 128, 2, 4), (128, 128, 64, 3, 2),
    (64, 256, 64, 3, 2), (64, 128, 64, 3, 2), (32, 256, 64, 3, 2), (32, 256, 128, 2, 2), (32, 256, 128, 2, 4),
    (16, 256, 128, 2, 2), (16, 256, 128, 2, 4), (16, 256, 64, 3, 4), (32, 128, 128, 3, 4), (32, 128, 128, 2, 2),
    (16, 128, 64, 3, 4), (32, 64, 128, 3, 4), (32, 64, 128, 2, 4), (16, 128, 128, 3, 4), (256, 64, 128, 2, 4),
    (128, 128, 64, 3, 8), (128, 256, 64, 3, 8), (128, 128, 64, 3, 4), (64, 128, 64, 4, 4), (64, 256, 64, 3, 4),
    (64, 64, 64, 3, 4), (32, 64, 64, 3, 4), (16, 128, 32, 3, 4), (32, 128, 64, 3, 4),
]  # fmt: skip
SHAPES = [(4096, 4096, 4096), (4096, 4096, 1024), (2048, 4096, 4096), (512, 4096, 4096)]
COUNTED = SHAPES[:2]
N_SETS, N_CALLS = 6, 10
PATTERN = (
    r"^(smsp__inst_executed_op_local.*|l1tex__t_(sectors|requests)_pipe_lsu_mem_local_op_(ld|st)(_lookup_(hit|miss))?)$"
)
ALWAYS = [
    "gpu__time_duration.sum", "sm__cycles_elapsed.max", "smsp__inst_executed.sum", "dram__bytes_read.sum",
    "dram__bytes_write.sum", "lts__t_sectors_srcunit_tex_op_read.sum", "lts__t_sectors_srcunit_tex_op_write.sum",
    "l1tex__m_xbar2l1tex_read_bytes.sum", "launch__registers_per_thread",
]  # fmt: skip


def compiled(tile: dict[str, int]) -> dict[str, int] | None:
    """The tile, if Triton can compile it (in a process of its own)."""
    from sim.measure.triton_gemm import compile_only

    try:
        compile_only(tile, SHAPES[0])
    except Exception as error:
        print("skip", tile, repr(error)[:100])
        return None
    return tile


def timed(tiles: list[dict[str, int]]) -> list[dict[str, Any]]:
    """One row per shape and tile: time, registers, spills, error against fp32."""
    return [row for shape in SHAPES for row in _timed(shape, tiles)]


def _timed(shape: tuple[int, int, int], tiles: list[dict[str, int]]) -> list[dict[str, Any]]:
    import torch

    from sim.measure.timing import pool, time_calls
    from sim.measure.triton_gemm import launch

    m, n, k = shape
    inputs = [(pool("bf16").take(m, k), pool("bf16").take(n, k)) for _ in range(N_SETS)]
    c = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
    exact = inputs[0][0].float() @ inputs[0][1].float().t()

    def call(tile: dict[str, int], i: int) -> Any:
        return launch(tile, *inputs[i % N_SETS], c)

    rows = []
    for tile in tiles:
        kernel = call(tile, 0)
        row = {"m": m, "n": n, "k": k, **tile, "spills": kernel.n_spills, "smem": kernel.metadata.shared}
        rows.append(row | {"rel_err": round(((c.float() - exact).norm() / exact.norm()).item(), 5)})
    for row, t in zip(rows, time_calls([partial(call, tile) for tile in tiles], N_CALLS), strict=True):
        row.update({"time_us": t.time_us, "time_us_min": t.time_us_min, "grid": t.grid, "regs": t.regs})
    return rows


def main() -> None:
    """Compile, time, count; write one row per shape and tile."""
    start = time.time()
    tiles = [dict(zip(TILE, (*config, 8), strict=True)) for config in CONFIGS]
    with ProcessPoolExecutor(min(16, os.cpu_count() or 1), get_context("spawn")) as workers:
        tiles = [tile for tile in workers.map(compiled, tiles) if tile]
    print(f"compiled {len(tiles)} in {time.time() - start:.0f} s", flush=True)
    rows = timed(tiles)
    print(f"timed {len(rows)} rows at {time.time() - start:.0f} s", flush=True)
    write(sys.argv[1], rows)
    metrics = ALWAYS + [f"{name}.sum" for name in nsight.available(PATTERN)]
    counted = [row for row in rows if (row["m"], row["n"], row["k"]) in COUNTED]
    jobs = [{"library": "triton", "dtype": "bf16", **{c: row[c] for c in ("m", "n", "k", *TILE)}} for row in counted]
    for row, kernels in zip(counted, nsight.counters(jobs, metrics), strict=True):
        row.update({metric: kernels[0][metric].replace(",", "") for metric in metrics})
    write(sys.argv[1], rows)
    print(f"counted {len(counted)} at {time.time() - start:.0f} s")


def write(path: str, rows: list[dict[str, Any]]) -> None:
    """All rows; columns in order of appearance."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with open(path, "w", newline="") as file:
        table = csv.DictWriter(file, columns, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


if __name__ == "__main__":
    main()
