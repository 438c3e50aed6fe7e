"""One library call: the kernels that a GEMM launches, each with its time (main, split-K reduction, memset)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.energy import energy_j
from sim.kernel import Check, run_kernel
from sim.machine import MECHANISMS, build_machine
from sim.power import settled
from sim.result import WINDOW_FIELDS, KernelResult, Windows, main_kernel
from sim.schedule.beside import adds_in_turn, partial_bytes, reduction
from sim.schedule.config import KernelConfig
from sim.schedule.dots import multiplies_dots
from sim.schedule.names import short_name
from sim.schedule.plan import Plan, build_plan
from workloads.gemm import DATA, Gemm

LEAST_MHZ, MOST_MHZ = 100, 10_000
FULL_CLOCK = ("fp64",)
"""Types that keep the boost clock in a burst: a sixteenth of the others' work a cycle (1,850 to 1,930 MHz in
counters_wide.csv, on a board at rest before; in power.csv 1,980 on half of the SMs and, at 692 W, 1,930 on all). So do
kernels of dot products (1,950 to 1,975 MHz in all 19 rows of counters_odd.csv)."""


@dataclass(frozen=True)
class Options:
    """How to simulate, whatever is simulated."""

    clock_mhz: float | None = None
    full: bool = False
    trace: bool = False
    without: frozenset[str] = frozenset()
    sustained: bool = False
    """The same kernel ran for longer than `activity.sustain_ms` before: the clock that the board's power leaves."""
    data: str = "random"
    """What A and B hold, one of `workloads.gemm.DATA`: energy depends on it."""
    quick: bool = False
    """Sample long kernels sooner, after some waves: for whole models."""

    def describe(self) -> dict[str, Any]:
        """As `Result.options` holds them."""
        return {**dataclasses.asdict(self), "without": sorted(self.without)}

    def untraced(self) -> Options:
        """The same without spans."""
        return dataclasses.replace(self, trace=False)


def check_options(options: Options) -> None:
    """Raise `ConfigError` for a clock, data or mechanism that there is none of."""
    mhz = options.clock_mhz
    if mhz is not None and (isinstance(mhz, bool) or not isinstance(mhz, int | float)):
        raise ConfigError(f"clock_mhz = {str(mhz)[:60]!r}: must be a number or None")
    if mhz is not None and not LEAST_MHZ <= mhz <= MOST_MHZ:
        raise ConfigError(f"clock = {mhz:g} MHz: must be from {LEAST_MHZ} to {MOST_MHZ}")
    if options.data not in DATA:
        raise ConfigError(f"data = {str(options.data)[:60]!r}: must be one of {', '.join(DATA)}")
    for name in options.without:
        if name not in MECHANISMS:
            raise ConfigError(f"without = {str(name)[:60]!r}: must be one of {', '.join(MECHANISMS)}")


@dataclass(frozen=True)
class Call:
    """A GEMM as launched: its plan, its kernels in launch order, their total time."""

    gemm: Gemm
    plan: Plan
    kernels: tuple[KernelResult, ...]
    burst: tuple[KernelResult, ...] = ()
    """The same before the board's power slowed them; none where it does not."""

    @property
    def time_s(self) -> float:
        """Seconds of all kernels, without gaps."""
        return sum(kernel.time_s for kernel in self.kernels)

    @property
    def main(self) -> KernelResult:
        """The kernel that multiplies."""
        return main_kernel(self.kernels)


def run_call(
    gemm: Gemm,
    config: KernelConfig,
    gpu: Gpu,
    options: Options,
    hbm_taken_gb_per_s: float = 0.0,
    resident: tuple[float, float] | None = None,
    check: Check | None = None,
) -> Call:
    """Simulate every kernel of one call. `hbm_taken_gb_per_s` is HBM bandwidth that copies in flight take away;
    `resident` the parts of A and B that L2 holds at the start, where it is not all or nothing as `gemm.l2` says;
    `check` may end the simulation of the kernel that multiplies, unless power sets its clock."""
    if resident is None:
        resident = (1.0, 1.0) if gemm.l2 == "warm" else (0.0, 0.0)
    if hbm_taken_gb_per_s:
        gpu = _slower_hbm(gpu, hbm_taken_gb_per_s)
    plan = build_plan(gemm, config, gpu, options.full, options.without, options.quick)

    def run(clock_mhz: float | None) -> KernelResult:
        main = _run_main(plan, gpu, options, clock_mhz, resident, None if _by_power(gpu, options) else check)
        return with_energy(gpu, main, gemm.dtype, options.data)

    def with_beside(main: KernelResult) -> tuple[KernelResult, ...]:
        beside = (_before(plan, gpu, main), _after(gemm, plan, gpu, main))
        before, after = ([with_energy(gpu, each, gemm.dtype, options.data) for each in kernels] for kernels in beside)
        return (*before, main, *after)

    burst = run(held_mhz(gemm, config, gpu, options))
    if not _by_power(gpu, options) or options.clock_mhz is not None or "clock" in options.without:
        return Call(gemm, plan, with_beside(burst))
    main = settled(gpu, burst, run)
    return Call(gemm, plan, with_beside(main), () if main is burst else with_beside(burst))


def held_mhz(gemm: Gemm, config: KernelConfig, gpu: Gpu, options: Options) -> float | None:
    """The clock at which the main kernel is simulated first, where it is held: as asked for, or for light work."""
    light = multiplies_dots(config) or (gemm.dtype in FULL_CLOCK and config.mma == "mma_sync")
    if options.clock_mhz is None and light and (_by_power(gpu, options) or not options.sustained):
        return gpu.clock.boost_mhz
    return options.clock_mhz


def _by_power(gpu: Gpu, options: Options) -> bool:
    """Whether the board's power sets the clock, as no clock under long load is known."""
    return options.sustained and not gpu.activity.sustained_tensor_mhz


def _run_main(
    plan: Plan, gpu: Gpu, options: Options, clock_mhz: float | None, resident: tuple[float, float], check: Check | None
) -> KernelResult:
    """The kernel that multiplies, at a held clock or at a burst's."""
    main = run_kernel(
        build_machine(gpu, clock_mhz, options.without, options.sustained),
        plan,
        resident=resident,
        floor_s=gpu.kernel.floor_us * 1e-6,
        trace=options.trace,
        name=plan.config.name or short_name(plan.config),
        check=check,
    )
    return dataclasses.replace(main, config=_describe(plan))


def with_energy(gpu: Gpu, kernel: KernelResult, dtype: str, data: str = "random") -> KernelResult:
    """`kernel` with its joules (`sim.energy`)."""
    return dataclasses.replace(kernel, energy_j=energy_j(gpu, kernel, dtype, data))


def _slower_hbm(gpu: Gpu, taken_gb_per_s: float) -> Gpu:
    left = max(0.05 * gpu.hbm.bandwidth_gb_per_s, gpu.hbm.bandwidth_gb_per_s - taken_gb_per_s)
    return gpu.model_copy(update={"hbm": gpu.hbm.model_copy(update={"bandwidth_gb_per_s": left})})


def _describe(plan: Plan) -> dict[str, object]:
    """The configuration as resolved, registers and shared memory included."""
    resolved = dataclasses.asdict(plan.config)
    resolved["registers_per_thread"] = plan.occupancy.registers_per_thread
    resolved["smem_bytes"] = plan.occupancy.smem_bytes_per_cta
    resolved["n_ctas"] = (
        plan.work.n_agents * plan.work.cluster_size
        if plan.work.persistent
        else plan.work.n_items * plan.work.cluster_size
    )
    return resolved


def _before(plan: Plan, gpu: Gpu, main: KernelResult) -> tuple[KernelResult, ...]:
    """The memset of a counter of tiles, or of the semaphores of parts that are added up, where there is one."""
    time_s = before_s(plan, gpu)
    return (small_kernel("memset", time_s, main.sm_mhz, (0, 0), (0, 0)),) if time_s else ()


def before_s(plan: Plan, gpu: Gpu) -> float:
    """Seconds of the memset before the main kernel; 0 without."""
    counts = plan.work.persistent and not plan.work.static
    return gpu.persistent.memset_us * 1e-6 if counts or plan.config.split_in_place or plan.work.part_bytes else 0.0


def _after(gemm: Gemm, plan: Plan, gpu: Gpu, main: KernelResult) -> tuple[KernelResult, ...]:
    """The kernel that adds split-K's partial sums, of which the main one wrote to HBM what L2 could not keep."""
    if plan.reduced_splits == 1:
        return ()
    found = reduction(gpu, gemm, plan.reduced_splits, main.bytes["hbm"]["write"], adds_in_turn(plan.config))
    l2, hbm = (found.read_bytes, found.write_bytes), (found.hbm_read_bytes, found.hbm_write_bytes)
    return (small_kernel("split-K reduction", found.time_s, main.sm_mhz, l2, hbm),)


def least_after_s(gemm: Gemm, plan: Plan, gpu: Gpu) -> float:
    """Seconds of the kernel after the main one, at least: with all or none of the partial sums in L2, or as many as
    leave room for C."""
    if plan.reduced_splits == 1:
        return 0.0
    most, in_turn = partial_bytes(gemm, plan.reduced_splits), adds_in_turn(plan.config)
    beyond = min(most, max(0, most + gemm.c_bytes - int(gpu.l2.capacity_mib * 2**20)))
    return min(reduction(gpu, gemm, plan.reduced_splits, spilled, in_turn).time_s for spilled in (0, beyond, most))


def small_kernel(name: str, time_s: float, mhz: float, l2: tuple[int, int], hbm: tuple[int, int]) -> KernelResult:
    """A kernel taken as whole: a measured fixed time and a rate, no replay. Bytes of L2 and HBM: (read, written)."""
    traffic, beyond = ({"read": read, "write": write} for read, write in (l2, hbm))
    return KernelResult(
        name=name,
        time_s=time_s,
        sm_cycles=time_s * mhz * 1e6,
        sm_mhz=mhz,
        config={"family": name},
        flops_executed=0,
        bytes={"hbm": beyond, "l2": traffic, "sm": traffic},
        requests={},
        lookups={},
        utilisation={},
        waits={},
        occupancy={},
        waves=1.0,
        sampled=False,
        n_events=0,
        windows=Windows(1, np.zeros((0, len(WINDOW_FIELDS)))),
    )
