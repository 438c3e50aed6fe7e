"""When a simulation under way need not go on: by the time it is at and the least that what is left to do takes.

At time t of the engine, MMAs not started yet start at t or later. The agent that does most of them does their mean at
least, one after another, each `own` cycles; so does the server that most of them pass. What HBM has not read yet of
A and B, it reads when it is done with what it was asked for. The clock is bounded as in `sim.clock_bound`, of a window
begun not being known what was booked in it. Tested against the engine (tests/test_tiles.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hwmodels.spec import Gpu
from sim.call import Options, before_s, held_mhz, least_after_s
from sim.clock_bound import Clock, Windows, clock
from sim.kernel import N_WINDOWS, Records
from sim.lower_bound import (
    ROUNDING,
    SAMPLED_MARGIN,
    LowerBound,
    Parts,
    missing_bytes,
    parts_of,
    reads_fs,
    servers_of,
)
from sim.machine import FS_PER_S, build_machine
from sim.records import Machine, Work
from sim.schedule.config import KernelConfig
from sim.schedule.plan import Plan, build_plan
from workloads.gemm import Gemm

BY = "simulated in part"


class TooSlowError(Exception):
    """A call takes longer than it was given: `bound.time_s` at least."""

    def __init__(self, bound: LowerBound) -> None:
        super().__init__(f"{bound.time_s:.3g} s at least")
        self.bound = bound


def deadline(
    gemm: Gemm, config: KernelConfig, gpu: Gpu, options: Options, resident: tuple[float, float], limit_s: float
) -> Callable[[Records], None]:
    """A `check` for `sim.call.run_call` that raises TooSlowError once the call cannot end within `limit_s`."""
    plan = build_plan(gemm, config, gpu, options.full, options.without, options.quick)
    machine = build_machine(gpu, held_mhz(gemm, config, gpu, options), options.without, options.sustained)
    rest = _rest(plan, machine, resident)
    beside_s = before_s(plan, gpu) + least_after_s(gemm, plan, gpu) + gpu.kernel.floor_us * 1e-6
    sampled = plan.work.sample_items > 0
    most_s = limit_s / (SAMPLED_MARGIN if sampled else 1)

    def check(scalars: Records) -> None:
        least_s = rest.end_s(scalars) + beside_s
        if least_s > most_s:
            raise TooSlowError(LowerBound(least_s, BY, sampled))

    return check


@dataclass(frozen=True)
class _Rest:
    """What bounds the rest of a kernel."""

    work: Work
    machine: Machine
    parts: Parts
    speed: Clock
    servers: int
    hbm_bytes: float

    def end_s(self, scalars: Records) -> float:
        """Seconds of the kernel at its end, at least, as the engine's scalars are (an array of one)."""
        work, parts, s = self.work, self.parts, scalars[0]
        now_s, width_s = int(s["paused_fs"]) / FS_PER_S, int(s["win_width"]) / FS_PER_S
        left = n_mma(work) - int(s["n_mma"])
        if left <= 0:
            return now_s
        most = -(-left // (work.cluster_size * work.n_agents))
        between = 0.0 if work.pingpong or work.stream_tiles else parts.end + work.restart_cycles
        in_order = most * parts.own + (most - 1) * work.barrier_cycles + (-(-most // work.k_per_split) - 1) * between
        served = left / work.cluster_size / self.servers * max(work.mma_x16, work.mma_smem_x16) / 16 - parts.early
        windows = Windows(width_s, N_WINDOWS - int(s["n_win"]), width_s)
        mean = left * work.mma_x16 / 16 / self.machine.n_sm
        main_s = self.speed.least_s(max(in_order, served) + parts.end, mean, windows)
        return max(now_s + main_s * (1 - ROUNDING), self._hbm_end_s(s, now_s))

    def _hbm_end_s(self, s: Records, now_s: float) -> float:
        """Seconds at which HBM has read all and the last of it was worked on."""
        missing = self.hbm_bytes - int(s["hbm_read"])
        if missing <= 0:
            return now_s
        reads_s = (reads_fs(self.work, self.machine, missing) + int(s["hbm_free"])) / FS_PER_S
        behind = (self.parts.load + self.parts.own + self.parts.end) / self.speed.top
        last_s = min(self.work.a_hbm_fs, self.work.b_hbm_fs) / FS_PER_S
        return reads_s + (behind + last_s) * (1 - ROUNDING)


def _rest(plan: Plan, machine: Machine, resident: tuple[float, float]) -> _Rest:
    work = plan.work
    return _Rest(
        work, machine, parts_of(work, machine), clock(machine, work), servers_of(plan), missing_bytes(work, resident)
    )


def n_mma(work: Work) -> int:
    """MMAs of all CTAs: the engine's `n_mma` at the end."""
    return work.n_items // work.splits * work.n_k * work.cluster_size
