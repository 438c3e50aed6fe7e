"""How a kernel that is launched again and again slows down: its time, clock and power from a board at rest on.

1. A burst: for `power.react_ms` nothing holds the board back but the activity inside each kernel.
2. Then power is at most `power.board_w`, as it is at any time from here on.
3. Once the mean of power over the last `power.mean_ms`, the rest before included, nears what the board holds for long
   (`sim.power.limit_w`), power is lowered by what the mean is too high, so that the mean would be back within
   `power.react_ms` were the power that leaves it the limit. The rest at the start leaves the mean at that very moment,
   so that it goes on rising: the clock falls below where it settles. `power.mean_ms` later that dip leaves the mean in
   turn, and a shallower one follows (sustained_load.csv: 0.83 to 1.0 s and 1.75 to 2.05 s, at all sizes).

Time and clock follow power along the line through the burst and the settled state in logarithms. Not modelled:
readings come up to 0.1 s late; zeros and {-1, 0, 1} run at `activity.active_mhz` for the first `power.react_ms` (11 to
13 % faster than a burst on random data, whose clock is taken); temperature.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.result import Result

STEP_S = 1e-3
LONGEST_S = 600.0


class Load(NamedTuple):
    """A call repeated without a pause: seconds of one, clock (MHz) inside it, mean watts of the board."""

    call_s: float
    mhz: float
    mean_w: float


@dataclass(frozen=True, eq=False)
class OverTime:
    """Calls repeated from a board at rest on; arrays float64[n], one value a step of `STEP_S` from time 0."""

    call_s: npt.NDArray[np.float64]
    """Seconds of a call."""
    mhz: npt.NDArray[np.float64]
    """Clock counted inside the kernel."""
    power_w: npt.NDArray[np.float64]
    mean_w: npt.NDArray[np.float64]
    """Mean of power over the last `power.mean_ms` at the end of the step, as the board's control and meter take it."""

    def between(self, start_s: float, end_s: float) -> Load:
        """Means over the calls from `start_s` to `end_s`; of power, the control's mean at the end.

        Raises `ConfigError` for times that are not in order or not of what was asked for.
        """
        if not 0.0 <= start_s < end_s <= len(self.call_s) * STEP_S + STEP_S / 2:
            raise ConfigError(
                f"time = {start_s:g} to {end_s:g} s: must be from 0 to {len(self.call_s) * STEP_S:g} s, in order"
            )
        span_s = end_s - start_s
        calls, clocks = (_integral(values, start_s, end_s) for values in (1.0 / self.call_s, self.mhz))
        last = min(len(self.mean_w) - 1, int(end_s / STEP_S))
        return Load(span_s / calls, clocks / span_s, float(self.mean_w[last]))


def _integral(values: npt.NDArray[np.float64], start_s: float, end_s: float) -> float:
    """Of steps of `STEP_S` between two times."""
    sums = np.concatenate(([0.0], np.cumsum(values) * STEP_S))
    first, last = np.interp((start_s, end_s), np.arange(len(sums)) * STEP_S, sums)
    return float(last - first)


def loads(result: Result) -> tuple[Load, Load]:
    """The burst and the settled state of what was simulated with `sustained=True`; twice the same where it keeps up."""
    settled = Load(result.time_s, result.main.sm_mhz, result.power_w)
    before = result.options.get("before_settling")
    return (Load(before["time_s"], before["sm_mhz"], before["power_w"]) if before else settled), settled


def over_time(gpu: Gpu, burst: Load, settled: Load, seconds: float) -> OverTime:
    """A call in a burst, and as it settles (`sim.power.settled`), at every moment of the first `seconds` s.

    Where the burst takes no more power than the settled state, the board holds nothing back and all stays as it is.
    Raises `ConfigError` for a time that is not from `STEP_S` to `LONGEST_S`, and for loads without time or power.
    """
    if not STEP_S <= seconds <= LONGEST_S:
        raise ConfigError(f"seconds = {seconds:g}: must be from {STEP_S:g} to {LONGEST_S:g}")
    for name, load in (("burst", burst), ("settled", settled)):
        if not all(math.isfinite(value) and value > 0.0 for value in load):
            raise ConfigError(f"{name} = {load}: time, power and clock must be above 0")
    power_w, mean_w = _power_w(gpu, burst.mean_w, settled.mean_w, math.ceil(seconds / STEP_S - 1e-9))
    relative = np.log(power_w / settled.mean_w)
    span = math.log(burst.mean_w / settled.mean_w)
    time_per_w, clock_per_w = (
        math.log(before / after) / span if span > 0.0 else 0.0
        for before, after in ((burst.call_s, settled.call_s), (burst.mhz, settled.mhz))
    )
    return OverTime(
        call_s=settled.call_s * np.exp(time_per_w * relative),
        mhz=settled.mhz * np.exp(clock_per_w * relative),
        power_w=power_w,
        mean_w=mean_w,
    )


def _power_w(
    gpu: Gpu, burst_w: float, held_w: float, n_steps: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Power of each step and its mean over `power.mean_ms`, float64[n_steps] both, in watts."""
    n_burst, n_mean = (max(1, round(ms * 1e-3 / STEP_S)) for ms in (gpu.power.react_ms, gpu.power.mean_ms))
    rest_w = gpu.power.idle_w + gpu.power.clocks_w
    most_w, gain = held_w / gpu.power.sustained_fraction, gpu.power.mean_ms / gpu.power.react_ms
    power, mean, mean_w = np.empty(n_steps), np.empty(n_steps), rest_w
    for i in range(n_steps):
        held_back = i >= n_burst and burst_w > held_w
        asked_w = min(burst_w, most_w, held_w + gain * (held_w - mean_w)) if held_back else burst_w
        power[i] = max(rest_w, asked_w)
        mean_w += (power[i] - (power[i - n_mean] if i >= n_mean else rest_w)) / n_mean
        mean[i] = mean_w
    return power, mean
