"""A closed-form estimate of a kernel's time, quick enough to rank a whole menu: waves of CTAs, each as long as its
slowest resource needs.

Modelled: waves over real slots; one k-iteration of a full GPU at the rate of tensor cores, shared memory, SM ports, L2
and HBM, or at a CTA's own latency; requests merged inside a GPC; epilogue, start, split-K's reduction. The CTAs of the
first wave stand for all when bytes are counted. Not modelled: what L2 keeps from one wave to the next (operands that
fit half of it are read from HBM once), queues.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hwmodels.spec import Gpu
from sim.machine import place
from sim.schedule import plan
from sim.schedule.beside import adds_in_turn, counts_tiles, reduction
from sim.schedule.boxes import has_odd_rows
from sim.schedule.config import KernelConfig
from sim.schedule.formats import chunk_bytes, stored_bytes
from sim.schedule.raster import Ints, tiles
from sim.schedule.resources import occupancy
from sim.schedule.stream_k import n_runs, stream_tiles
from workloads.gemm import Gemm

TYPICAL_LINES_LOG2 = 6
"""log2 of the lines of a typical chunk: HBM's latency for a chunk grows with it."""


@dataclass(frozen=True)
class Cut:
    """How a configuration cuts the GEMM, and the bytes that all its agents together touch in one k-iteration."""

    items: int
    agents: int
    """Agents that run at once."""
    ctas_per_sm: int
    iterations: int
    """k-iterations of one item."""
    splits: int
    l2_bytes: float
    """Read from L2, copies between its partitions included."""
    hbm_bytes: float
    """Distinct ones."""


@dataclass(frozen=True)
class Iteration:
    """What one k-iteration takes: of one CTA in its SM (cycles), of all agents together elsewhere (seconds)."""

    tensor: float
    mma: float
    """Tensor cores, or the shared memory that feeds them."""
    sm: float
    """The SM's busiest part: tensor cores, shared memory with its fills, port."""
    wave_s: float
    """L2 or HBM."""
    latency: float
    latency_s: float
    """From a load's issue to its data: the part in cycles, and that of HBM."""


class Estimator:
    """Kernel times of one GEMM on one GPU.

    `in_step`: CTAs ask for what they share at the same time, so that a GPC's requests merge and HBM gives it once;
    otherwise each cluster reads L2, and each GPC HBM, for itself. Those of stream-K never do: they differ in k.
    """

    def __init__(self, gemm: Gemm, gpu: Gpu, in_step: bool = True) -> None:
        self._gemm, self._gpu, self._in_step = gemm, gpu, in_step
        self._operand_bytes = gemm.a_bytes + gemm.b_bytes
        self.fits_l2 = self._operand_bytes <= gpu.l2.capacity_mib * 2**20 / 2

    def time_s(self, config: KernelConfig) -> float:
        """Estimated time of the call; infinite where no GPC has room for the cluster.

        The clock is that of the tensor activity which comes out without its effect. Raises `ConfigError` where the
        configuration does not fit.
        """
        gpu, cut = self._gpu, self._cut(config)
        if not cut.agents:
            return math.inf
        hbm_bytes_per_s = gpu.hbm.bandwidth_gb_per_s * 1e9 * gpu.hbm.read_fraction
        hbm_bytes_per_s /= plan.row_cost(self._gemm, config, gpu)
        iteration = self._iteration(config, cut, hbm_bytes_per_s)
        family = plan.family_cycles(config, gpu, self._gemm)
        stores = max(family["fused_cycles"], round(plan.store_cycles(self._gemm, config, gpu)))
        family["epilogue_cycles"] += stores
        if config.stream_k:
            family |= self._sums_cycles(config)
        kernel_s = _persistent_s if plan.is_persistent(config) else _multistage_s
        time_s, clock_hz = 0.0, gpu.activity.active_mhz * 1e6
        for _ in range(2):
            time_s = kernel_s(config, cut, iteration, family, gpu.sm.count, clock_hz)
            ctas = cut.items * config.cluster_m * config.cluster_n
            busy = min(1.0, ctas * cut.iterations * iteration.tensor / (gpu.sm.count * clock_hz * time_s))
            late = max(0.0, 1 - gpu.activity.late_us * 1e-6 / time_s)
            clock_hz = (gpu.activity.active_mhz - gpu.activity.tensor_mhz * busy * (1 + late) / 2) * 1e6
        return max(time_s, self._operand_bytes / hbm_bytes_per_s) + self._beside_s(config, cut)

    def _cut(self, config: KernelConfig) -> Cut:
        gemm, size = self._gemm, config.cluster_m * config.cluster_n
        per_sm = 1 if plan.is_persistent(config) else occupancy(config, gemm, self._gpu).ctas_per_sm
        grid_m, grid_n = plan.cluster_tiles(gemm, config)
        n_k = -(-gemm.k // config.block_k)
        iterations = -(-n_k // config.split_k)
        splits = -(-n_k // iterations)
        items = grid_m * grid_n * gemm.batch * splits
        most = per_sm * self._gpu.sm.count
        placement = place(self._gpu, per_sm, size, most if config.stream_k else min(items * size, most))
        agents = len(placement.sm) if config.stream_k else min(len(placement.sm), items)
        if not agents:
            return Cut(items, 0, per_sm, iterations, splits, 0.0, 0.0)
        a_bytes = min(config.block_m * config.cluster_m, gemm.m) * config.block_k * gemm.a_element_bytes
        b_bytes = min(config.block_n * config.cluster_n, gemm.n) * config.block_k * stored_bytes(gemm, "b")
        first = np.arange(min(agents, grid_m * grid_n))
        rows, columns = tiles(first, grid_m, grid_n, config.group, config.raster == "n")
        repeats = agents / len(rows)
        distinct = repeats * (_n_distinct(rows) * a_bytes + _n_distinct(columns) * b_bytes)
        gpc = placement.gpc[: len(rows)]
        near = repeats * (
            _n_distinct(gpc * (rows.max() + 1) + rows) * a_bytes
            + _n_distinct(gpc * (columns.max() + 1) + columns) * b_bytes
        )
        alone = agents * (a_bytes + b_bytes)
        if not self._in_step or config.stream_k:
            return Cut(items, agents, per_sm, iterations, splits, alone + near / 2, near)
        odd = plan.is_persistent(config) and has_odd_rows(gemm, self._gpu)
        return Cut(items, agents, per_sm, iterations, splits, (alone if odd else near) + distinct / 2, distinct)

    def _iteration(self, config: KernelConfig, cut: Cut, hbm_bytes_per_s: float) -> Iteration:
        gemm, gpu = self._gemm, self._gpu
        values, _ = plan.mma_work(gemm, config, gpu, ())
        tensor, smem, fill = (values[name] / 16 for name in ("mma_x16", "mma_smem_x16", "fill_smem_x16"))
        whole_bytes = cut.hbm_bytes * cut.iterations * cut.items / cut.agents
        share = min(1.0, self._operand_bytes / whole_bytes) if self.fits_l2 else 1.0
        l2_bytes_per_s = gpu.l2.bytes_per_clk * gpu.clock.boost_mhz * 1e6
        hbm_ns = gpu.hbm.latency_ns + gpu.hbm.spread_ns * TYPICAL_LINES_LOG2
        return Iteration(
            tensor=tensor,
            mma=max(tensor, smem),
            sm=max(tensor, smem + fill, chunk_bytes(gemm, config) / gpu.l2.sm_port_bytes_per_clk),
            wave_s=max(cut.l2_bytes / l2_bytes_per_s, share * cut.hbm_bytes / hbm_bytes_per_s),
            latency=gpu.l2.latency_cycles + gpu.l2.far_latency_cycles / 2,
            latency_s=share * hbm_ns * 1e-9,
        )

    def _sums_cycles(self, config: KernelConfig) -> dict[str, int]:
        """Cycles in which a CTA leaves the sums of a part of a tile in L2, until the next is told, and takes them."""
        n_bytes, l2 = config.block_m * config.block_n * self._gemm.accumulator_bytes, self._gpu.l2
        leave = n_bytes / l2.sm_store_bytes_per_clk + l2.latency_cycles / 2
        take = n_bytes / l2.sm_port_bytes_per_clk + l2.latency_cycles + l2.far_latency_cycles
        return {"leave_cycles": round(leave), "take_cycles": round(take)}

    def _beside_s(self, config: KernelConfig, cut: Cut) -> float:
        """Launch, and the kernels beside the main one."""
        gemm, gpu = self._gemm, self._gpu
        if cut.splits > 1:
            beside_s = reduction(gpu, gemm, cut.splits, in_turn=adds_in_turn(config)).time_s
        else:
            counts = plan.is_persistent(config) and counts_tiles(cut.items, cut.agents, cut.splits)
            beside_s = gpu.persistent.memset_us * 1e-6 if counts or config.stream_k else 0.0
        return gpu.kernel.floor_us * 1e-6 + beside_s


def _persistent_s(
    config: KernelConfig, cut: Cut, iteration: Iteration, family: dict[str, int], _n_sm: int, clock_hz: float
) -> float:
    """Time of a kernel whose CTAs walk through items: waves of loops, and epilogues where nothing hides them."""
    latency = iteration.latency + family["latency_cycles"] + iteration.latency_s * clock_hz
    busy = max(iteration.sm, family["floor_x16"] / 16) + family["drain_cycles"]
    own = max(busy, latency / config.stages)
    epilogue, wave = family["epilogue_cycles"], iteration.wave_s * clock_hz
    full, last = divmod(cut.items, cut.agents)
    loop = cut.iterations * max(own, wave)
    rest = cut.iterations * max(own, wave * last / cut.agents)
    streamed = stream_tiles(cut.items, cut.iterations, cut.agents) if config.stream_k else 0
    if streamed:
        runs = n_runs(streamed, cut.iterations, cut.agents)
        run = -(-streamed * cut.iterations // runs) * max(own, wave * runs / cut.agents)
        one_by_one = max(1, -(-runs // streamed) - 1) * family["leave_cycles"]
        ends = -(-streamed // runs) * epilogue + one_by_one + family["take_cycles"]
        waves = (cut.items - streamed) // cut.agents * (loop + epilogue) + run + ends
    elif config.pingpong:
        waves = full * max(loop, epilogue) + (max(rest, epilogue) if last else 0) + epilogue
    else:
        waves = full * (loop + epilogue) + (rest + epilogue if last else 0)
    return (family["start_cycles"] + latency + waves + family["end_cycles"]) / clock_hz


def _multistage_s(
    config: KernelConfig, cut: Cut, iteration: Iteration, family: dict[str, int], n_sm: int, clock_hz: float
) -> float:
    """Time of a kernel of one CTA an item: CTAs of an SM hide each other's latencies, as far as its rates allow."""
    serial = family["barrier_cycles"] + iteration.mma + family["drain_cycles"] + family["issue_cycles"]
    latency = iteration.latency + family["latency_cycles"] + iteration.latency_s * clock_hz
    alone = max(serial, (latency + serial) / max(1, config.stages - 1))
    ends = family["start_cycles"] + family["epilogue_cycles"] + latency

    def batch(ctas: int) -> float:
        """Cycles of `ctas` CTAs that run at once, spread over the SMs."""
        wave = iteration.wave_s * clock_hz * ctas / cut.agents
        return cut.iterations * max(alone, -(-ctas // n_sm) * iteration.sm, wave) + ends

    full, rest = divmod(cut.items, cut.ctas_per_sm * n_sm)
    return (full * batch(cut.ctas_per_sm * n_sm) + (batch(rest) if rest else 0.0)) / clock_hz


def _n_distinct(values: Ints) -> int:
    return int(np.count_nonzero(np.bincount(values)))
