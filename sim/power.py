"""The clock that long load leaves: the highest at which the board stays within its power, and no higher than a burst's.

A burst's clock (`activity`) does not depend on power. Once the board's control has settled (`activity.sustain_ms`),
the mean power of the kernel, repeated, is at most `power.sustained_fraction` of `power.board_w`. Power rises with the
clock: work per second with the clock, energy per work with the square of the voltage, which follows it.

The burst's line holds without a limit too: 8192^3 on zeros, at 420 of 700 W, takes as long as a burst on random data
(sustained_load.csv). A board reports (NVML) a higher clock than kernels count: 8192^3 takes 2.24 M cycles
(counters.csv), so 1,652 us are 1,357 MHz, where 1,470 are reported; zeros 1,600 and 1,755. Both are the ratio of the
top clock, 1,980, to `activity.active_mhz`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from hwmodels.spec import Gpu
from sim.result import KernelResult

MAX_RUNS = 5
TOLERANCE = 0.003
"""Of the clock, below which the search ends."""
LOWEST = 0.1
"""Of the burst's clock; what the search stops at where the board's idle power alone is beyond its limit."""


def limit_w(gpu: Gpu) -> float:
    """Mean power at which the board's control holds a long load."""
    return gpu.power.board_w * gpu.power.sustained_fraction


def reported_mhz(gpu: Gpu, mhz: float) -> float:
    """What the board would report of a clock of `mhz` counted inside a kernel."""
    return mhz * gpu.clock.boost_mhz / gpu.activity.active_mhz


def settled(gpu: Gpu, burst: KernelResult, run: Callable[[float], KernelResult]) -> KernelResult:
    """`burst` where its mean power is within the limit, else the kernel run again at the clock that keeps to it.

    `run(mhz)` gives the kernel with its energy at a held clock. Power over clock is taken as a parabola at first, then
    as the line through the last two runs.
    """
    runs = [burst]
    while _watts(runs[-1]) > limit_w(gpu) or len(runs) > 1:
        lower = min(burst.sm_mhz, max(LOWEST * burst.sm_mhz, _next_mhz(runs, limit_w(gpu))))
        if abs(lower / runs[-1].sm_mhz - 1.0) < TOLERANCE or len(runs) > MAX_RUNS:
            break
        runs.append(run(lower))
    return runs[-1]


def _watts(kernel: KernelResult) -> float:
    return sum(kernel.energy_j.values()) / kernel.time_s


def _next_mhz(runs: list[KernelResult], limit: float) -> float:
    """The clock at which power meets the limit, as far as the last runs tell."""
    last, before = runs[-1], runs[-2] if len(runs) > 1 else None
    if before is None or _watts(before) == _watts(last):
        return last.sm_mhz * math.sqrt(limit / _watts(last))
    slope = (before.sm_mhz - last.sm_mhz) / (_watts(before) - _watts(last))
    return last.sm_mhz + (limit - _watts(last)) * slope
