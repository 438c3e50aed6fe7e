"""A time that no simulation of a kernel comes below: from what its servers must do and what its CTAs do in order.

Each part of the engine gives one bound; the largest holds. A server (tensor cores, shared memory, the port of the SM
with most items; HBM) is busy for at least its work, after the first load and before the last epilogue. A slot works
through at least items / slots items, each its iterations one after another, and a ring of `depth` stages asks for a
stage anew only when it is free: a load's least latency each `depth` iterations. Of stream-K, the slot with most
iterations counts, and the tile with most parts, which add their sums one after another. Left out: queues, what L2
serves, the dependence of one server on another.

The clock falls as tensor cores work, by `sim.clock_bound`. Tested against the engine (tests/test_tiles.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hwmodels.spec import Gpu
from sim.call import Options, before_s, held_mhz, least_after_s
from sim.clock_bound import Windows, clock, iteration_cycles
from sim.machine import FS_PER_S, build_machine
from sim.records import Machine, Work
from sim.schedule import stream_k
from sim.schedule.config import KernelConfig
from sim.schedule.plan import Plan, build_plan
from workloads.gemm import Gemm

KIB = 1024
ROUNDING = 6e-6
"""What the engine cuts from a cycle and from what is reserved, to whole femtoseconds, relative."""
SAMPLED_MARGIN = 0.995
"""Of a bound: as far as a kernel of which some waves are taken as repeated may come below its full simulation."""


@dataclass(frozen=True)
class LowerBound:
    """`time_s`: seconds of all kernels of a call, at least; `by`: what says so."""

    time_s: float
    by: str
    sampled: bool = False
    """Some waves of its simulation may be taken as repeated."""

    @property
    def simulated_s(self) -> float:
        """What simulation says at least."""
        return self.time_s * (SAMPLED_MARGIN if self.sampled else 1)


@dataclass(frozen=True)
class Parts:
    """Cycles of one CTA: an iteration at each server and by itself, its least load, its end, the kernel's before all
    that, and by how much an MMA may be done before those ahead of it, of other CTAs of its SM."""

    tensor: float
    smem: float
    port: float
    own: float
    load: float
    end: float
    first: float
    early: float


def lower_bound(
    gemm: Gemm, config: KernelConfig, gpu: Gpu, options: Options, resident: tuple[float, float] = (0.0, 0.0)
) -> LowerBound:
    """The bound of one call, as `sim.call.run_call` would simulate it (in full; a sampled one may come a little below).
    `resident`: parts of A and B in L2 at the start. Raises ConfigError where the kernel does not fit."""
    plan = build_plan(gemm, config, gpu, options.full, options.without, options.quick)
    clock_mhz = held_mhz(gemm, config, gpu, options)
    machine = build_machine(gpu, clock_mhz, options.without, options.sustained)
    main_s, by = _main_s(plan, machine, resident)
    beside_s = before_s(plan, gpu) + least_after_s(gemm, plan, gpu)
    return LowerBound(main_s + gpu.kernel.floor_us * 1e-6 + beside_s, by, plan.work.sample_items > 0)


def _main_s(plan: Plan, machine: Machine, resident: tuple[float, float]) -> tuple[float, str]:
    """Seconds from the first CTA's launch to the last one's end, and what bounds them."""
    work, parts = plan.work, parts_of(plan.work, machine)
    iterations = work.n_items // work.splits * work.n_k
    servers = servers_of(plan)
    busiest = -(-work.n_items // servers) * work.n_k if work.splits == 1 else iterations / servers
    items = -(-work.n_items // work.n_agents)
    each = work.n_k if work.splits == 1 else work.n_k - (work.splits - 1) * work.k_per_split
    chain = each * (parts.own + work.barrier_cycles) - work.barrier_cycles
    if work.persistent:  # its next loads come beside its last MMAs; of two consumers in turn, so do the epilogues
        in_order = items * chain + (items - 1) * parts.end * (not work.pingpong) + parts.load
        by_loads = 0.0
    else:
        again = parts.end + work.restart_cycles
        in_order = items * (parts.load + chain + max(0, each - work.depth) * work.issue_cycles + again) - again
        by_loads = items * (-(-each // work.depth) * (parts.load + parts.own) + again) - again
    before, after = parts.first + parts.load, parts.end
    if work.stream_tiles:  # an agent may end with sums that it leaves
        busiest = stream_k.most_iterations(work)
        in_order, after = busiest * parts.own + parts.load, 0.0
    speed = clock(machine, work)
    cold = speed.slowest * _cold_fs(work, resident) / FS_PER_S
    cycles = {
        "tensor cores": before + cold + busiest * parts.tensor - parts.early + after,
        "shared memory": parts.first + busiest * parts.smem - parts.early + after,
        "SM port": parts.first + busiest * parts.port + after,
        "iterations in order": parts.first + cold + in_order + after,
        "load latency": parts.first + cold + by_loads + after,
    }
    if work.stream_tiles:
        cycles["sums in order"] = before + _sums_cycles(work, machine, parts.own) + parts.end
    by = max(cycles, key=cycles.__getitem__)
    mean = iterations * work.cluster_size * work.mma_x16 / 16 / machine.n_sm
    bounds = {
        by: speed.least_s(cycles[by], mean, Windows(machine.window_fs / FS_PER_S)),
        "HBM": _hbm_s(work, machine, resident, (before + parts.own + after) / speed.top),
    }
    by = max(bounds, key=bounds.__getitem__)
    return bounds[by] * (1 - ROUNDING), by


def servers_of(plan: Plan) -> int:
    """SMs (of clusters, their first) that have agents."""
    return len(np.unique(plan.placement.sm[: plan.work.n_agents]))


def parts_of(work: Work, machine: Machine) -> Parts:
    """Those of a kernel."""
    tensor, smem = work.mma_x16 / 16, (work.mma_smem_x16 + work.fill_smem_x16) / 16
    turn, most_ctas = work.turn_x256 / 256, -(-work.n_agents * work.cluster_size // machine.n_sm)
    port = ((work.a_sm_bytes + work.b_sm_bytes) * machine.port_x1k_per_kib >> 10) / 1024
    load = machine.l2_cycles + port + work.latency_cycles - machine.l2_jitter_cycles
    return Parts(
        tensor=tensor,
        smem=smem,
        port=port,
        own=iteration_cycles(work),
        load=max(0.0, load),
        end=max(work.epilogue_cycles + work.fused_cycles, work.epi_smem_x16 / 16),
        first=work.start_cycles,
        early=turn / (1 - turn) * most_ctas * max(tensor, smem),  # all of them queue, and so do those that came early
    )


def _sums_cycles(work: Work, machine: Machine, own: float) -> float:
    """Cycles of a tile that stream-K cuts into most parts, `own` of an iteration: the sums of its first part come after
    its iterations, each other but the last adds its own, and the last takes them all."""
    cut = stream_k.cut(work)
    leave = (work.part_bytes * machine.store_x1k_per_kib >> 10) / KIB
    take = (work.part_bytes * machine.port_x1k_per_kib >> 10) / KIB + machine.l2_cycles
    n_parts = int(np.bincount(cut.tile).max())
    return int(cut.nk.min()) * own + ((n_parts - 1) * leave + take if n_parts > 1 else 0.0)


def _cold_fs(work: Work, resident: tuple[float, float]) -> int:
    """HBM's latency, which the first load of all cannot be without: its bytes of A and of B, where L2 holds none."""
    latencies = zip((work.a_hbm_fs, work.b_hbm_fs), resident, strict=True)
    return max(0 if part else latency_fs for latency_fs, part in latencies)


def _hbm_s(work: Work, machine: Machine, resident: tuple[float, float], beside_s: float) -> float:
    """Seconds in which HBM reads what L2 does not hold, the last of it gets there, and what is before the first and
    behind the last goes by."""
    missing = missing_bytes(work, resident)
    if not missing:
        return 0.0
    return (reads_fs(work, machine, missing) + min(work.a_hbm_fs, work.b_hbm_fs)) / FS_PER_S + beside_s


def missing_bytes(work: Work, resident: tuple[float, float]) -> float:
    """Bytes of A and B that HBM has to read, each once, but for the parts that lie in L2."""
    rows = (work.rows_a * work.a_dram_bytes, work.rows_b * work.b_dram_bytes)
    missing = sum(row * (1 - part) for row, part in zip(rows, resident, strict=True))
    return work.batch * (work.n_k - 1 + work.last_k_x256 / 256) * missing / 256


def reads_fs(work: Work, machine: Machine, n_bytes: float) -> float:
    """Femtoseconds in which HBM reads so many bytes, at least: each request is cut by some."""
    cut_fs = work.first_c * machine.n_sides * (work.hbm_x256 / 256 + 1)
    return max(0.0, n_bytes * machine.hbm_read_fs_per_kib / KIB * work.hbm_x256 / 256 - cut_fs)
