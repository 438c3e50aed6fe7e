"""A time that no simulation of a kernel comes below: from what its servers must do and what its CTAs do in order.

Each part of the engine gives one bound; the largest holds. A server (tensor cores, shared memory, the port of the SM
with most items; HBM) is busy for at least its work, after the first load and before the last epilogue. A slot works
through at least items / slots items, each its iterations one after another, and a ring of `depth` stages asks for a
stage anew only when it is free: a load's least latency each `depth` iterations. Of stream-K, the slot with most
iterations counts, and the tile with most parts, which add their sums one after another. Left out: queues, what L2
serves, the dependence of one server on another.

The clock is at most that of an idle SM, and no MMA is free: the clock falls by `tensor_mhz` x the part b of the last
window in which tensor cores were busy. Over windows of like width, sum b_i (f - t b_(i-1)) is largest with every b = 1
(its derivative by b_i is at least f - 2 t > 0), so that M cycles of MMAs on every SM take M / (f - t), but for the
first window; and C cycles of anything take (C + t M / f) / f, but for the last.
Tested against the engine (tests/test_tiles.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hwmodels.spec import Gpu
from sim.call import Options, before_s, held_mhz, least_after_s
from sim.kernel import N_WINDOWS
from sim.machine import FS_PER_S, build_machine
from sim.records import Machine, Work
from sim.schedule import stream_k
from sim.schedule.config import KernelConfig
from sim.schedule.plan import Plan, build_plan
from workloads.gemm import Gemm

KIB = 1024


@dataclass(frozen=True)
class LowerBound:
    """`time_s`: seconds of all kernels of a call, at least; `by`: what says so."""

    time_s: float
    by: str


@dataclass(frozen=True)
class _Parts:
    """Cycles of one CTA: an iteration at each server, its least load, its end, and the kernel's before all that."""

    tensor: float
    smem: float
    port: float
    load: float
    end: float
    first: float


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
    return LowerBound(main_s + gpu.kernel.floor_us * 1e-6 + beside_s, by)


def _main_s(plan: Plan, machine: Machine, resident: tuple[float, float]) -> tuple[float, str]:
    """Seconds from the first CTA's launch to the last one's end, and what bounds them."""
    work, parts = plan.work, _parts(plan.work, machine)
    iterations = work.n_items // work.splits * work.n_k
    servers = len(np.unique(plan.placement.sm[: work.n_agents]))
    busiest = -(-work.n_items // servers) * work.n_k if work.splits == 1 else iterations / servers
    own = max(work.mma_x16, work.mma_smem_x16, work.floor_x16) / 16 + work.drain_cycles
    items = -(-work.n_items // work.n_agents)
    each = work.n_k if work.splits == 1 else work.n_k - (work.splits - 1) * work.k_per_split
    chain = each * (own + work.barrier_cycles) - work.barrier_cycles
    if work.persistent:  # its next loads come beside its last MMAs; of two consumers in turn, so do the epilogues
        in_order = items * chain + (items - 1) * parts.end * (not work.pingpong) + parts.load
        by_loads = 0.0
    else:
        again = parts.end + work.restart_cycles
        in_order = items * (parts.load + chain + max(0, each - work.depth) * work.issue_cycles + again) - again
        by_loads = items * (-(-each // work.depth) * (parts.load + own) + again) - again
    before, after = parts.first + parts.load, parts.end
    if work.stream_tiles:  # an agent may end with sums that it leaves
        busiest = stream_k.most_iterations(work)
        in_order, after = busiest * own + parts.load, 0.0
    cycles = {
        "tensor cores": before + busiest * parts.tensor + after,
        "shared memory": parts.first + busiest * parts.smem + after,
        "SM port": parts.first + busiest * parts.port + after,
        "iterations in order": parts.first + in_order + after,
        "load latency": parts.first + by_loads + after,
    }
    if work.stream_tiles:
        cycles["sums in order"] = before + _sums_cycles(work, machine, own) + parts.end
    by = max(cycles, key=cycles.__getitem__)
    mean = iterations * work.cluster_size * work.mma_x16 / 16 / machine.n_sm
    bounds = {by: _seconds(cycles[by], mean, machine, work), "HBM": _hbm_s(work, machine, resident)}
    by = max(bounds, key=bounds.__getitem__)
    return bounds[by], by


def _parts(work: Work, machine: Machine) -> _Parts:
    port = (work.a_sm_bytes + work.b_sm_bytes) * machine.port_x1k_per_kib / KIB**2
    load = machine.l2_cycles + port + work.latency_cycles - machine.l2_jitter_cycles
    return _Parts(
        tensor=work.mma_x16 / 16,
        smem=(work.mma_smem_x16 + work.fill_smem_x16) / 16,
        port=port,
        load=max(0.0, load),
        end=max(work.epilogue_cycles + work.fused_cycles, work.epi_smem_x16 / 16),
        first=work.start_cycles,
    )


def _sums_cycles(work: Work, machine: Machine, own: float) -> float:
    """Cycles of a tile that stream-K cuts into most parts, `own` of an iteration: the sums of its first part come after
    its iterations, each other but the last adds its own, and the last takes them all."""
    cut = stream_k.cut(work)
    leave = (work.part_bytes * machine.store_x1k_per_kib >> 10) / KIB
    take = (work.part_bytes * machine.port_x1k_per_kib >> 10) / KIB + machine.l2_cycles
    n_parts = int(np.bincount(cut.tile).max())
    return int(cut.nk.min()) * own + ((n_parts - 1) * leave + take if n_parts > 1 else 0.0)


def _seconds(cycles: float, mma_cycles: float, machine: Machine, work: Work) -> float:
    """Seconds that so many cycles take at least, with so many cycles of MMAs on the mean SM."""
    if machine.fixed_fs_per_cycle:
        return cycles * machine.fixed_fs_per_cycle / FS_PER_S
    top, fall = (machine.idle_mhz + work.spare_mhz) * 1e6, machine.tensor_mhz * 1e6
    at_once_s = work.mma_x16 / 16 * work.n_agents / machine.n_sm / top
    if at_once_s > machine.window_fs / FS_PER_S / 4:  # long MMAs are booked beyond their window, and not counted there
        return cycles / top
    busy_s = mma_cycles / top
    unseen_s = machine.window_fs / FS_PER_S + 4 * busy_s / N_WINDOWS  # in the last window, which sets no clock
    any_s = (cycles + fall * max(0.0, busy_s - unseen_s)) / top
    if fall > top / 3:
        return any_s
    return max(any_s, (mma_cycles - fall * unseen_s) / (top - fall))


def _hbm_s(work: Work, machine: Machine, resident: tuple[float, float]) -> float:
    """Seconds in which HBM reads each operand once, but for what lies in L2."""
    rows = (work.rows_a * work.a_dram_bytes, work.rows_b * work.b_dram_bytes)
    missing = sum(row * (1 - part) for row, part in zip(rows, resident, strict=True))
    n_bytes = work.batch * (work.n_k - 1 + work.last_k_x256 / 256) * missing / 256
    return n_bytes * machine.hbm_read_fs_per_kib / KIB * work.hbm_x256 / 256 / FS_PER_S
