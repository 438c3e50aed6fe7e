"""10,000 x 10,000 elements of 8 bytes in 100 x 100 blocks, against sensible tiles.

A million products of blocks may be launched one by one, as a loop in Python does (its time: launches one after
another, or kernels where these take longer), in a hundred rounds of 10,000 at once, or be tiles inside one kernel. What
blocks of a size must fetch follows from it alone: every block of C reads a row of blocks of A and a column of B. "from
L2" is that at L2's bandwidth, "from HBM" as if nothing were kept on the way. No kernel has tiles of 100 x 100, which is
no multiple of what instructions take; 112 x 104 is the next. Kernels for fp64 were not measured.
"""

from __future__ import annotations

from dataclasses import replace

from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.call import Call, run_call
from sim.schedule.choose import candidates, complete
from sim.studies import runs
from sim.studies.study import Cell, Chart, Finding, Study, Table, ratio, table
from workloads.gemm import Gemm

SIDE, BLOCK, ELEMENT = 10_000, 100, 8
BLOCKS = (25, 50, 100, 200, 500, 1000)
TILES = ((64, 64), (96, 96), (112, 104), (128, 128))
PER_SIDE = SIDE // BLOCK
WHOLE = Gemm(SIDE, SIDE, SIDE, dtype="fp64")
ONE = Gemm(BLOCK, BLOCK, BLOCK, dtype="fp64")
"""One block of A times one of B."""


def fetched_bytes(block: int) -> int:
    """Bytes of A and B that all blocks of C read: two for every block and step along k."""
    return 2 * (SIDE // block) ** 3 * block**2 * ELEMENT


def study(gpu: Gpu) -> Study:
    """Raises `ConfigError` where the GPU multiplies no fp64."""
    tiles, blocks = _tiles(gpu), _blocks(gpu)
    best = min(time for time in tiles.column("time") if isinstance(time, float))
    ways = _ways(gpu, best)
    times = dict(zip(ways.column("way"), ways.column("time"), strict=True))
    shares = dict(zip(blocks.column("block"), blocks.column("three blocks over shared memory"), strict=True))
    loop = next(iter(times.values()))
    return Study(
        "chunked-matmul",
        f"What {BLOCK} x {BLOCK} blocks cost a product of {SIDE:,} x {SIDE:,} elements of {ELEMENT} bytes",
        gpu.label,
        (ways, blocks, tiles),
        (
            Finding("Blocks one by one over the best kernel", ratio(loop, best), "ratio"),
            Finding(f"Bytes fetched for blocks of {BLOCK} over those of {BLOCKS[-1]:,}",
                    ratio(fetched_bytes(BLOCK), fetched_bytes(BLOCKS[-1])), "ratio"),
            Finding(f"Three blocks of {BLOCK} over an SM's shared memory", shares[BLOCK], "share"),
            Finding("Peak that the best kernel reaches", WHOLE.flops / best / _peak(gpu), "share"),
        ),
        Chart(("time",)),
    )  # fmt: skip


def _peak(gpu: Gpu) -> float:
    """FLOP/s of fp64 at the boost clock: tensor cores, or CUDA cores where those know no fp64."""
    each = gpu.tensor.fp64_flops_per_clk_per_sm or gpu.cuda_core.fp64_flops_per_clk_per_sm
    return each * gpu.sm.count * gpu.clock.boost_mhz * 1e6


def _ways(gpu: Gpu, best: float) -> Table:
    """From a loop over blocks to one kernel."""
    one, launch = runs.time_s(gpu, ONE), gpu.launch.stream_us * 1e-6
    round_s = runs.time_s(gpu, replace(ONE, batch=PER_SIDE**2))
    rows: list[tuple[Cell, ...]] = [
        ("a million products, one by one", PER_SIDE**3, PER_SIDE**3 * max(one, launch)),
        ("a hundred rounds of 10,000 products", PER_SIDE, PER_SIDE * round_s),
        ("one kernel, the best tile", 1, best),
    ]
    columns = {"way": "text", "launches": "count", "time": "s", "FLOP/s": "FLOP/s"}
    return table("Ways to launch it", columns, [(*row, ratio(WHOLE.flops, row[2])) for row in rows])


def _blocks(gpu: Gpu) -> Table:
    """Closed forms."""
    l2 = gpu.l2.bytes_per_clk * gpu.clock.boost_mhz * 1e6
    hbm = gpu.hbm.bandwidth_gb_per_s * 1e9 * gpu.hbm.read_fraction
    rows: list[tuple[Cell, ...]] = []
    for block in BLOCKS:
        moved, held = fetched_bytes(block), 3 * block**2 * ELEMENT
        share = held / (gpu.smem.max_kib_per_cta * 1024)
        rows.append((block, moved, WHOLE.flops / moved, moved / l2, moved / hbm, WHOLE.flops / _peak(gpu), share))
    columns = {
        "block": "count",
        "fetched": "B",
        "intensity": "FLOP/B",
        "from L2": "s",
        "from HBM": "s",
        "arithmetic": "s",
        "three blocks over shared memory": "share",
    }
    return table("What blocks of a side fetch, and the least times", columns, rows)


def _tiles(gpu: Gpu) -> Table:
    """One kernel, simulated with some tiles and with the best of the menu."""
    rows: list[tuple[Cell, ...]] = []
    for sides in TILES:
        call = _tiled(gpu, *sides)
        rows.append((f"{sides[0]}x{sides[1]}", *_described(gpu, call)))
    configs, _ = candidates(WHOLE, gpu, None, "bound")
    best = run_call(WHOLE, configs[0], gpu, runs.QUICK)
    name = f"{best.plan.config.block_m}x{best.plan.config.block_n}, best of the menu by its bound"
    rows.append((name, *_described(gpu, best)))
    columns = {
        "tile": "text",
        "time": "s",
        "padding": "share",
        "peak reached": "share",
        "L2 reads": "B",
        "HBM reads": "B",
    }
    return table("One kernel with tiles", columns, rows)


def _tiled(gpu: Gpu, block_m: int, block_n: int) -> Call | None:
    try:
        config = complete(WHOLE, gpu, family="multistage", block_m=block_m, block_n=block_n)
        return run_call(WHOLE, config, gpu, runs.QUICK)
    except ConfigError:
        return None


def _described(gpu: Gpu, call: Call | None) -> tuple[Cell, ...]:
    if call is None:
        return (None,) * 5
    padding = 1 - WHOLE.flops / call.main.flops_executed
    reached = WHOLE.flops / call.time_s / _peak(gpu)
    return call.time_s, padding, reached, call.main.bytes["l2"]["read"], call.main.bytes["hbm"]["read"]
