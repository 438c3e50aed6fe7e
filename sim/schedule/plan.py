"""From a GEMM and a kernel configuration to the integers the engine replays: the same set for every family."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.machine import Placement, place
from sim.records import Work
from sim.schedule import boxes, direct, dots, formats, narrow
from sim.schedule.beside import adds_in_turn, counts_tiles
from sim.schedule.config import KernelConfig
from sim.schedule.instructions import barrier_cycles, convert_cycles, front_cycles, instructions, serial_cycles
from sim.schedule.periods import sample_items
from sim.schedule.resources import Occupancy, consumer_threads, loop_spill_bytes, occupancy
from sim.schedule.stream_k import stream_tiles
from workloads.gemm import EPILOGUES, ROW_STATISTICS_BYTES, Gemm

NEVER_MERGE = -(2**31)
"""Cycles by which no request is early enough for another."""
SWITCHES: dict[str, dict[str, int]] = {
    "barriers": {"barrier_cycles": 0, "drain_cycles": 0, "floor_x16": 0},
    "coalescing": {"merge_cycles": NEVER_MERGE},
    "cta_start": {"start_cycles": 0, "restart_cycles": 0},
    "epilogue": {"epilogue_cycles": 0, "fused_cycles": 0, "end_cycles": 0, "epi_smem_x16": 0},
    "issue": {"issue_cycles": 0},
    "jitter": {"scatter_cycles": 0, "turn_x256": 0},
    "memory_order": {"reorder_x256": 0},
    "ring_fill": {"fill_cycles": 0},
    "row_opening": {"hbm_x256": 256},
    "spills": {"spill_bytes": 0, "spill_read_bytes": 0},
    "smem_bandwidth": {"mma_smem_x16": 0, "fill_smem_x16": 0, "epi_smem_x16": 0},
}
"""Mechanism -> what stands in a kernel's integers without it."""


@dataclass(frozen=True)
class Plan:
    """One kernel ready to run: integers for the engine, where its agents sit, and what people want to know of it."""

    config: KernelConfig
    work: Work
    placement: Placement
    occupancy: Occupancy
    n_slots: int
    flops_executed: int
    quick: bool = False
    """Sampled as soon as a few waves agree in time."""

    @property
    def reduced_splits(self) -> int:
        """Slices of k whose partial sums a kernel of its own adds; 1 where there is none."""
        return 1 if self.config.split_in_place else self.work.splits


def sectors_per_piece(piece_bytes: float, pitch_bytes: int, sector_bytes: int) -> float:
    """Mean bytes in whole sectors that a piece of a row touches, over the offsets that rows of this pitch start at."""
    offsets = range(0, sector_bytes, math.gcd(pitch_bytes, sector_bytes) or sector_bytes)
    touched = [-(-(offset + piece_bytes) // sector_bytes) for offset in offsets]
    return sum(touched) / len(touched) * sector_bytes


def _run(gemm: Gemm, config: KernelConfig, operand: str) -> tuple[float, float]:
    """Bytes of a chunk that lie together in memory, and how many such runs a row (along m or n) of the chunk has. TMA
    asks for whole boxes, across the edge of the matrix."""
    size, k = gemm.element_bytes(operand), min(config.block_k, gemm.k)
    if gemm.k_is_contiguous(operand):
        return k * size, 1.0
    block, extent = (config.block_m, gemm.m) if operand == "a" else (config.block_n, gemm.n)
    rows = block if is_persistent(config) else min(block, extent)
    return rows * size, k / rows


def _row_bytes(run: tuple[float, float], pitch: int, config: KernelConfig, gpu: Gpu) -> float:
    """Bytes in sectors that one row of a chunk takes from L2."""
    n_bytes, n_runs = run
    if is_persistent(config):
        return boxes.loaded_row_bytes(n_bytes, pitch, gpu) * n_runs
    return sectors_per_piece(n_bytes, pitch, gpu.l2.sector_bytes) * n_runs


def _out_bytes(gemm: Gemm, config: KernelConfig) -> int:
    """Bytes of an element that the kernel stores: of C, or of a partial sum."""
    return gemm.accumulator_bytes if config.split_k > 1 and not config.split_in_place else gemm.c_element_bytes


def _stored(gemm: Gemm, config: KernelConfig, gpu: Gpu) -> boxes.Stored:
    """One row of a C tile in L2: by boxes, or by threads, whose sectors are taken to be joined; or its statistics."""
    if gemm.epilogue == "row_stats":
        return boxes.Stored(ROW_STATISTICS_BYTES, ROW_STATISTICS_BYTES)
    out_bytes = _out_bytes(gemm, config)
    if is_persistent(config):
        return boxes.stored_row(gemm, config, gpu, out_bytes)
    whole = sectors_per_piece(config.block_n * out_bytes, gemm.leading("c") * out_bytes, gpu.l2.sector_bytes)
    return boxes.Stored(whole, whole)


def _results(gemm: Gemm, config: KernelConfig, gpu: Gpu, splits: int) -> dict[str, int]:
    """What a tile writes, and reads to work it out."""
    stored, reads = _stored(gemm, config, gpu), gemm.epilogue == "residual" and splits == 1
    return {
        "c_l2_bytes": round(256 * stored.sector_bytes),
        "c_cost_x256": round(256 * stored.cost_bytes / stored.sector_bytes),
        "c_weight_x256": round(
            256 * gpu.l2.write_weight * (gpu.persistent.store_weight if is_persistent(config) else 1)
        ),
        "c_read_bytes": 256 * config.block_n * gemm.c_element_bytes if reads else 0,
    }


def store_cycles(gemm: Gemm, config: KernelConfig, gpu: Gpu) -> float:
    """Mean cycles that an SM's port to L2 needs for what a tile holds of C."""
    tiles = -(-gemm.m // config.block_m) * -(-gemm.n // config.block_n)
    held = gemm.m * gemm.n / (tiles * config.block_m * config.block_n)
    return held * config.block_m * _stored(gemm, config, gpu).cost_bytes / gpu.l2.sm_store_bytes_per_clk


def _fused_cycles(gemm: Gemm, config: KernelConfig, gpu: Gpu) -> float:
    """Cycles in which threads work out what is fused, one operation after another, beside their stores; or a narrow
    kernel's instructions."""
    fused = 0 if config.split_k > 1 else EPILOGUES[gemm.epilogue]  # then the reduction applies it
    arithmetic = narrow.DEPENDENT_CYCLES * fused * config.block_m * config.block_n / consumer_threads(config, gpu)
    return max(arithmetic, narrow.epilogue_cycles(gemm, config, gpu) if not is_persistent(config) else 0.0)


def family_cycles(config: KernelConfig, gpu: Gpu, gemm: Gemm) -> dict[str, int]:
    """The constants of a family: start, barrier, drain, issue, load latency, epilogue without its stores, the end of a
    CTA, in cycles of the SM clock (`floor_x16` in sixteenths, `merge_cycles` and `scatter_cycles` as in `Work`)."""
    merge, fused = round(gpu.coalescing.window_cycles), round(_fused_cycles(gemm, config, gpu))
    if is_persistent(config):
        p, size = gpu.persistent, config.cluster_m * config.cluster_n
        floor, drain = max(p.iteration_cycles, formats.clamped_cycles(gemm, config, gpu)), round(p.drain_cycles)
        return {
            "start_cycles": round(p.start_cycles),
            "restart_cycles": 0,
            "barrier_cycles": 0,
            "drain_cycles": drain + round(front_cycles(gemm, config, gpu)),
            "turn_x256": 0,
            "issue_cycles": 0,
            "fill_cycles": round(p.iteration_cycles),
            "reorder_x256": round(256 * p.reorder_fraction * size / (size + 1)),  # the latest of a cluster's
            "latency_cycles": round(p.load_cycles),
            "epilogue_cycles": 0,
            "fused_cycles": fused,
            "end_cycles": round(p.epilogue_cycles),
            "floor_x16": round(16 * max(0.0, floor - drain)),
            "merge_cycles": merge,
            "scatter_cycles": round(gpu.l2.jitter_cycles),
        }
    f, l1 = gpu.multistage, narrow.l1_cycles(gemm, config, gpu)
    start = f.cta_start_cycles + narrow.start_cycles(gemm, config)
    by_registers, straight = config.loads == "ldg", direct.is_direct(config)
    in_turn, unhidden = serial_cycles(gemm, config, gpu)
    return {
        "start_cycles": round(start),
        "restart_cycles": round(gpu.kernel.turnround_cycles + start),
        "barrier_cycles": 0 if straight else round(barrier_cycles(config.warps, gpu)),
        "drain_cycles": round(
            (0 if dots.multiplies_dots(config) else f.drain_cycles) + unhidden + front_cycles(gemm, config, gpu)
        ),
        "turn_x256": round(256 * f.turn_fraction),
        "issue_cycles": 0 if by_registers or straight else round(_issue_cycles(gemm, config, gpu, l1)),
        "fill_cycles": 0,
        "reorder_x256": 0,
        "latency_cycles": round(
            direct.wait_cycles(gemm, config, gpu)
            if straight
            else f.load_cycles + (max(0.0, l1 - _loop_overlap(gemm, config, gpu)) if by_registers else 0)
        ),
        "epilogue_cycles": round(f.epilogue_cycles + _turn_cycles(gemm, config, gpu)),
        "fused_cycles": fused,
        "end_cycles": 0,
        "floor_x16": round(16 * (direct.warp_cycles(gemm, config, gpu) if straight else in_turn)),
        "merge_cycles": merge,
        "scatter_cycles": round(gpu.l2.jitter_cycles),
    }


def _turn_cycles(gemm: Gemm, config: KernelConfig, gpu: Gpu) -> float:
    """Cycles that a slice waits at most for the others of its tile, where they add to C one after another."""
    if not (config.split_in_place and adds_in_turn(config)):
        return 0.0
    return (slices(gemm, config)[2] - 1) * gpu.attention.combine_slice_us * gpu.activity.active_mhz


def _issue_cycles(gemm: Gemm, config: KernelConfig, gpu: Gpu, l1: float) -> float:
    """Time that issuing the copies of one iteration keeps a CTA from its MMAs: none where they are issued between
    those, unless they are narrow and wait for L1."""
    if narrow.is_narrow(gemm, config):
        return l1
    if config.loop == "cutlass":
        return 0.0
    return formats.chunk_bytes(gemm, config) / gpu.multistage.issue_bytes_per_clk


def _loop_overlap(gemm: Gemm, config: KernelConfig, gpu: Gpu) -> float:
    """Cycles of an iteration's MMAs during which the next tile is on its way through registers: all steps along k but
    the last, before which that tile is stored to shared memory (CUTLASS, MmaPipelined)."""
    step = gemm.a_element_bytes if config.mma == "fma" else config.mma_k_bytes
    steps = max(1, config.block_k * gemm.a_element_bytes // step)
    cycles, smem_bytes, _ = instructions(gemm, config, gpu)
    return (1 - 1 / steps) * max(cycles, smem_bytes / gpu.smem.bytes_per_clk)


def is_persistent(config: KernelConfig) -> bool:
    """Whether CTAs walk through tiles with a TMA producer of their own."""
    return config.loads == "tma"


def cluster_tiles(gemm: Gemm, config: KernelConfig) -> tuple[int, int]:
    """(along m, along n): clusters that cover C of one batch and one split, each of cluster_m x cluster_n tiles."""
    return -(-gemm.m // (config.block_m * config.cluster_m)), -(-gemm.n // (config.block_n * config.cluster_n))


def slices(gemm: Gemm, config: KernelConfig) -> tuple[int, int, int]:
    """k-iterations, those of a slice of split-K, and slices that get any."""
    n_k = -(-gemm.k // config.block_k)
    k_per_split = -(-n_k // config.split_k)
    return n_k, k_per_split, -(-n_k // k_per_split)


def reduced_splits(gemm: Gemm, config: KernelConfig) -> int:
    """Slices of k whose partial sums a kernel of its own adds; 1 where there is none."""
    return 1 if config.split_in_place else slices(gemm, config)[2]


def hbm_latency_fs(gpu: Gpu, chunk_bytes: float, without: Collection[str]) -> int:
    """Latency HBM adds to a chunk: the slowest of its lines, growing with their number."""
    lines = max(1.0, chunk_bytes / gpu.l2.line_bytes)
    spread = 0.0 if "tile_latency" in without else gpu.hbm.spread_ns * math.log2(lines)
    return round((gpu.hbm.latency_ns + spread) * 1e6)


def row_cost(gemm: Gemm, config: KernelConfig, gpu: Gpu) -> float:
    """Time of HBM reads over that of long rows, 1 or more: a DRAM row is opened once for what the ring asks for at a
    time and lies together, the larger operand deciding: a part of a row, or whole rows that follow one another.

    Triton asks for an iteration at a time. Taken for rings, its kernels that HBM bounds come out 1 % fast with one
    stage ahead, 7 with two, 12 with three, and 23 with rows of 64 bytes, 3 with 256 (tile_sweep.csv, 64x14336x4096;
    tile_choice.csv, 32x12288x4096). CUTLASS copies between its MMAs: int8 rows of gemm.csv are 0.8 points nearer as a
    ring."""
    operand = "a" if gemm.m >= gemm.n else "b"
    size = gemm.element_bytes(operand)
    if operand == "b" and formats.is_converted(gemm):
        return formats.row_cost(gemm, config, gpu)
    at_once = config.mma == "fma" or (config.loop == "triton" and not is_persistent(config))
    ring = 1 if at_once else config.stages - (not is_persistent(config))
    depth = min(config.block_k * max(1, ring), gemm.k)
    block, extent = (config.block_m, gemm.m) if operand == "a" else (config.block_n, gemm.n)
    if gemm.k_is_contiguous(operand):
        whole = depth == gemm.k == gemm.leading(operand)
        run = depth * size * (min(block, extent) if whole else 1)
    elif block >= extent == gemm.leading(operand):
        run = depth * extent * size
    else:
        run = extent * size  # neighbours read on along the same row
    return 1 + gpu.hbm.row_open_bytes / run


def _operands(gemm: Gemm, config: KernelConfig, gpu: Gpu, without: Collection[str]) -> dict[str, int]:
    """Bytes of rows and chunks of A and B at every level."""
    n_k = -(-gemm.k // config.block_k)
    values: dict[str, int] = {}
    held = dict(zip("ab", formats.held_rows(config), strict=True))
    for operand, block, extent, size in (
        ("a", config.block_m, gemm.m, formats.stored_bytes(gemm, "a")),
        ("b", config.block_n, gemm.n, formats.stored_bytes(gemm, "b")),
    ):
        masked = not is_persistent(config) and config.loop == "cutlass"
        rows = extent / -(-extent // block) if masked else block
        if direct.is_direct(config) and operand == "a":
            rows = direct.received_rows(gemm, config, gpu)
        run, pitch = _run(gemm, config, operand), gemm.pitch_bytes(operand)
        beside = min(config.block_k, gemm.k) * (size - gemm.element_bytes(operand))
        row, received, split = _row_bytes(run, pitch, config, gpu) + beside, float(config.block_k * size), 0.0
        if is_persistent(config):
            received = max(received, row)
        if is_persistent(config) or config.loads == "cp_async":
            split = boxes.split_rows(run[0], pitch, gpu)
        if narrow.is_narrow(gemm, config):  # L1 keeps the sector that two pieces share
            row = min(config.block_k, gemm.k) * size
        values[f"{operand}_l2_bytes"] = round(256 * row)
        values[f"{operand}_dram_bytes"] = max(1, round(256 * gemm.k * size / n_k))
        values[f"{operand}_split_x256"] = round(256 * split)
        values[f"{operand}_sm_bytes"] = round(rows * received * held[operand] / block)
        values[f"{operand}_hbm_fs"] = hbm_latency_fs(gpu, block * config.block_k * size, without)
    return values


def _chunks(gemm: Gemm, tiles_m: int, tiles_n: int, n_k: int, splits: int, shared: int) -> dict[str, int]:
    """How chunks of A, B and C (partial sums of every split) are numbered, and behind them those of `shared` tiles."""
    first_b = gemm.batch * tiles_m * n_k
    first_c = first_b + gemm.batch * tiles_n * n_k
    return {
        "first_b": first_b,
        "first_c": first_c,
        "n_chunks": first_c + gemm.batch * splits * tiles_m * tiles_n + shared,
    }


def _fill_cycles(gemm: Gemm, config: KernelConfig, gpu: Gpu, without: Collection[str]) -> float:
    """Cycles of L1 and shared memory in which the chunks of one iteration get there."""
    if direct.is_direct(config):
        return direct.l1_cycles(gemm, config, gpu)
    if config.loads == "ldg" or narrow.is_narrow(gemm, config):
        return narrow.l1_cycles(gemm, config, gpu)
    total = 0.0
    for operand, rows in (("a", config.block_m), ("b", config.block_n)):
        row_bytes = config.block_k * formats.stored_bytes(gemm, operand)
        conflicts = row_bytes < gpu.smem.banks * 4 and "bank_conflicts" not in without
        total += rows * row_bytes * (gpu.multistage.narrow_row_weight if conflicts else 1.0)
    return total / gpu.smem.bytes_per_clk


def mma_work(gemm: Gemm, config: KernelConfig, gpu: Gpu, without: Collection[str]) -> tuple[dict[str, int], int]:
    """What one k-iteration of a CTA takes at the tensor cores and in shared memory (`*_x16`: sixteenths of a cycle of
    the SM clock; `smem_bytes_per_mma`: bytes), and the FLOPs it executes; `without` as in `build_plan`."""
    cycles, smem_bytes, flops = instructions(gemm, config, gpu)
    epilogue = 2 * config.block_m * config.block_n * gemm.c_element_bytes * (gemm.epilogue != "row_stats")
    iterations = -(-gemm.k // config.block_k // config.split_k)
    beside = epilogue / iterations if config.pingpong else 0.0  # during the other warpgroup's main loop
    values = {
        "mma_x16": max(1, round(16 * cycles)),
        "mma_smem_x16": round(
            16 * max((smem_bytes + beside) / gpu.smem.bytes_per_clk, convert_cycles(gemm, config, gpu))
        ),
        "fill_smem_x16": 0 if is_persistent(config) else round(16 * _fill_cycles(gemm, config, gpu, without)),
        "epi_smem_x16": 0
        if config.pingpong
        else round(16 * max(epilogue / gpu.smem.bytes_per_clk, narrow.issue_cycles(gemm, config, gpu))),
        "smem_bytes_per_mma": round(smem_bytes),
    }
    return values, flops


def _costs(
    gemm: Gemm, config: KernelConfig, gpu: Gpu, fit: Occupancy, alone: bool, without: Collection[str]
) -> tuple[dict[str, int], int]:
    """What loads, MMAs, spills and the ends of a CTA take without mechanisms switched off; FLOPs of an iteration.
    Who is `alone` on an SM takes no turns."""
    mma, flops = mma_work(gemm, config, gpu, without)
    values = {**_operands(gemm, config, gpu, without), **mma, **family_cycles(config, gpu, gemm)}
    values["turn_x256"] *= not alone
    values["hbm_x256"] = round(256 * row_cost(gemm, config, gpu))
    values["spill_bytes"], values["spill_read_bytes"] = loop_spill_bytes(config, gemm, gpu, fit.ctas_per_sm)
    for mechanism in without:
        values |= SWITCHES.get(mechanism, {})
    return values, flops


def _last_k_x256(gemm: Gemm, config: KernelConfig, gpu: Gpu, n_k: int) -> int:
    """Part of a chunk that the last k-iteration reads, x256."""
    if is_persistent(config) and boxes.has_odd_rows(gemm, gpu):
        return 256
    return round(256 * (gemm.k - (n_k - 1) * config.block_k) / min(config.block_k, gemm.k))


def spare_mhz(gpu: Gpu, n_ctas: int) -> int:
    """What the clock gains where a grid leaves most SMs idle; the boost clock is the limit."""
    a = gpu.activity
    gain = a.few_sms_mhz * max(0.0, 1 - (n_ctas - 1) / a.few_sms)
    return round(min(gain, max(0.0, gpu.clock.boost_mhz - a.active_mhz)))


def _placed(config: KernelConfig, gpu: Gpu, fit: Occupancy, launched: int) -> Placement:
    """Where `launched` clusters run, or as many as are launched of a persistent kernel: with stream-K, all that can."""
    size = config.cluster_m * config.cluster_n
    if config.stream_k:
        launched = gpu.sm.count
    if config.n_ctas and is_persistent(config):
        launched = min(launched, max(1, config.n_ctas // size))
    placement = place(gpu, fit.ctas_per_sm, size, launched * size)
    if not len(placement.sm):
        raise ConfigError(
            f"cluster = {config.cluster_m}x{config.cluster_n}: no GPC of {gpu.name} has room for {size} CTAs at once"
        )
    return placement


def build_plan(
    gemm: Gemm,
    config: KernelConfig,
    gpu: Gpu,
    full: bool = False,
    without: Collection[str] = (),
    quick: bool = False,
) -> Plan:
    """Schedule `gemm`; `full` forbids sampling, `quick` samples sooner. Raises ConfigError where it does not fit."""
    fit = occupancy(config, gemm, gpu)
    grid_m, grid_n = cluster_tiles(gemm, config)
    size = config.cluster_m * config.cluster_n
    placement = _placed(config, gpu, fit, grid_m * grid_n * gemm.batch * config.split_k)
    n_k, k_per_split, splits = slices(gemm, config)
    n_items = grid_m * grid_n * gemm.batch * splits
    slots = len(placement.sm)
    agents = min(slots, max(1, config.n_ctas // size) if config.n_ctas and is_persistent(config) else slots)
    streamed = stream_tiles(n_items, n_k, agents) if config.stream_k else 0
    agents = agents if streamed else min(agents, n_items)
    alone = fit.ctas_per_sm == 1 or agents <= gpu.sm.count // size
    values, flops = _costs(gemm, config, gpu, fit, alone, without)
    rows, cols = (grid_n, grid_m) if config.raster == "n" else (grid_m, grid_n)
    group = min(config.group, rows)
    static = is_persistent(config) and (config.stream_k or not counts_tiles(n_items, agents, splits))
    full, steady = full or config.stream_k, not static and n_items == grid_m * grid_n
    work = Work(
        n_agents=agents,
        cluster_size=size,
        spare_mhz=spare_mhz(gpu, agents * size),
        exclusive=int(alone and not values["spill_bytes"]),
        persistent=int(is_persistent(config)),
        static=int(static),
        pingpong=int(config.pingpong),
        n_items=n_items,
        grid_m=grid_m,
        grid_n=grid_n,
        cluster_m=config.cluster_m,
        cluster_n=config.cluster_n,
        raster_n=int(config.raster == "n"),
        group=group,
        splits=splits,
        n_k=n_k,
        k_per_split=k_per_split,
        **_chunks(gemm, grid_m * config.cluster_m, grid_n * config.cluster_n, n_k, splits, streamed * size),
        rows_a=gemm.m,
        rows_b=gemm.n,
        batch=gemm.batch,
        block_m=config.block_m,
        block_n=config.block_n,
        stages=config.stages,
        depth=config.stages if is_persistent(config) else max(1, config.stages - 1),
        wrap=int(is_persistent(config) or config.loop != "cutlass"),
        last_k_x256=_last_k_x256(gemm, config, gpu, n_k),
        **_results(gemm, config, gpu, splits),
        sample_items=0 if full else sample_items(n_items, agents, group * cols, k_per_split, steady, quick),
        stream_tiles=streamed,
        part_bytes=config.block_m * config.block_n * gemm.accumulator_bytes if streamed else 0,
        **values,
    )
    return Plan(config, work, placement, fit, slots, flops * n_k * grid_m * grid_n * size * gemm.batch, quick)
