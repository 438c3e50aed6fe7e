"""Why one kernel configuration beats another: the difference of their times, split over what CTA slots waited for.

A kernel's waits are shares of CTA-slot time that sum to 1, so that wait x time are seconds that sum to the time: those
of two kernels differ by parts that sum to the difference. What runs at the SM clock is split further: of c cycles at
clock f, c2 / f2 - c1 / f1 = (c2 - c1) (1/f1 + 1/f2) / 2 + (c1 + c2) / 2 (1/f2 - 1/f1), the cycles' part and the
clock's. Kernels beside the main one (memset, split-K's reduction) are parts of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from sim.call import Call
from sim.result import KernelResult

CLOCK = "clock"
CLOCKED = ("mma", "sm_port", "barrier", "issue", "epilogue")
"""Waits that pass in cycles of the SM clock. L2 and HBM keep clocks of their own; of starts, most is the launch."""


@dataclass(frozen=True)
class Part:
    """Why the second takes longer."""

    name: str
    """A wait (`KernelResult.waits`) with its clock taken as equal, "clock", or the name of a kernel beside the main."""
    first_s: float
    second_s: float
    """Seconds of each: of CTA-slot time for waits. Of "clock": beyond what the cycles would take at the mean period."""

    @property
    def time_s(self) -> float:
        """By how much the second takes longer for it; below 0 where it takes less."""
        return self.second_s - self.first_s


@dataclass(frozen=True)
class TileDifference:
    """Two calls of one product, the faster first, and the parts of the difference, largest first."""

    first: Call
    second: Call
    parts: tuple[Part, ...]

    @property
    def time_s(self) -> float:
        """By how much the second takes longer."""
        return self.second.time_s - self.first.time_s


def difference(one: Call, other: Call) -> TileDifference:
    """The difference of two calls of one product, whichever is faster."""
    first, second = sorted((one, other), key=lambda call: call.time_s)
    parts = [*_waits(first.main, second.main), *_beside(first, second)]
    return TileDifference(first, second, tuple(sorted(parts, key=lambda part: -abs(part.time_s))))


def waits_s(main: KernelResult) -> dict[str, float]:
    """{what slots waited for: seconds}, which sum to the kernel's time."""
    return {name: share * main.time_s for name, share in main.waits.items()}


def useful_share(call: Call) -> float:
    """Of the FLOPs that the kernel executes, those of the product: the rest pads tiles."""
    return call.gemm.executed_flops / call.main.flops_executed


def _waits(first: KernelResult, second: KernelResult) -> list[Part]:
    """The waits, those in cycles as at the mean period of both clocks, and what the clocks change."""
    mine, other = waits_s(first), waits_s(second)
    parts = [Part(name, mine[name], other[name]) for name in mine if name not in CLOCKED]
    periods = [1 / kernel.sm_mhz for kernel in (first, second)]
    mean = sum(periods) / 2
    for name in CLOCKED:
        parts.append(Part(name, mine[name] / periods[0] * mean, other[name] / periods[1] * mean))
    clocked = [sum(waits[name] for name in CLOCKED) for waits in (mine, other)]
    at_mean = [time_s * mean / period for time_s, period in zip(clocked, periods, strict=True)]
    return [*parts, Part(CLOCK, clocked[0] - at_mean[0], clocked[1] - at_mean[1])]


def _beside(first: Call, second: Call) -> list[Part]:
    """Kernels before and after the main one."""
    sides = [
        {kernel.name: kernel.time_s for kernel in call.kernels if kernel is not call.main} for call in (first, second)
    ]
    return [Part(name, *(side.get(name, 0.0) for side in sides)) for name in {**sides[0], **sides[1]}]
