"""The least time that work in cycles takes under a clock that falls as tensor cores work.

In window i, of d_i seconds, the clock is f_i = f - t b_(i-1): f that of an idle SM, t `tensor_mhz`, b_i the part of
window i for which MMAs were booked (mean over SMs), cut at 1. C cycles that follow one another take T seconds at least,
M cycles of MMAs on the mean SM being booked meanwhile. With A the sum of b_(i-1) d_i over all windows but the first:

(1) C <= sum f_i d_i = f T - t A.
(2) An MMA is booked whole as it starts. On an SM, what is booked in a window and done after it is at most one MMA of
    each of its agents, a *flight* together; it is the growth of what is in flight that can be booked beyond the window
    and cut. As this grows in every other window at most, the n windows cut (n / 2 + 1) flights:
    M' = M - (n / 2 + 1) flights <= sum b_i f_i d_i.
(3) Windows never get narrower, but for the last: sum b_i d_i <= A + U, with U the width of the last.
(4) As f_i <= f, (2) and (3) give M' / f <= A + U. As (1 - b_i) (1 - b_(i-1)) >= 0, sum b_i b_(i-1) d_i is at least
    sum b_i d_i + A - T, so that M' <= (f - t) (A + U) - t (A - T) = (f - 2 t) A + (f - t) U + t T.

(1) with the first of (4) says T >= (C + t (M' / f - U)) / f; with the second, where f > 2 t,
T >= (C (f - 2 t) + t (M' - (f - t) U)) / (f - t)^2, which is C / (f - t) where MMAs are all there is.

Windows double in width when `N_WINDOWS` are full. Where T is more than the bound without (2) and U, that holds; else
there are no more and no wider windows than in that time.

Left out: a window ends with the first event after its end, and what is reserved keeps its clock beyond it. Both shift
windows by some of a reservation, of which (2) allows for the worst case (tests/test_tiles.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from sim.kernel import N_WINDOWS
from sim.machine import FS_PER_S
from sim.records import Machine, Work


@dataclass(frozen=True)
class Windows:
    """Those to come: seconds of the next one's width, how many of these there are before it doubles, and seconds of a
    window begun, of which nothing is known."""

    width_s: float
    room: int = N_WINDOWS
    begun_s: float = 0.0

    def within(self, time_s: float) -> tuple[float, float]:
        """(Number of windows, seconds of the last's width) in `time_s`, at most."""
        n, room, width_s = 1.0, self.room, self.width_s
        while time_s > room * width_s:
            n += room
            time_s -= room * width_s
            room, width_s = N_WINDOWS // 2, 2 * width_s
        return n + time_s / width_s, width_s


@dataclass(frozen=True)
class Clock:
    """SM clock of a kernel: `top` of idle SMs, `fall` with busy tensor cores (both in Hz; `fall` is 0 where the clock
    is held), and cycles of one `flight` of MMAs."""

    top: float
    fall: float
    flight: float

    def least_s(self, cycles: float, mma_cycles: float, windows: Windows) -> float:
        """Seconds that `cycles` take at least, while `mma_cycles` of MMAs are booked on the mean SM."""
        if not self.fall:
            return cycles / self.top
        n, width_s = windows.within(self._seconds(cycles, mma_cycles, 0.0))
        cut = mma_cycles - (n / 2 + 1) * self.flight
        return self._seconds(cycles, cut, width_s + windows.begun_s * self.top / self.slowest)

    def _seconds(self, cycles: float, mma_cycles: float, unseen_s: float) -> float:
        top, fall = self.top, self.fall
        first = (cycles + fall * max(0.0, mma_cycles / top - unseen_s)) / top
        if fall > top / 3:
            return first
        slow = top - fall
        return max(first, (cycles * (slow - fall) + fall * (mma_cycles - slow * unseen_s)) / slow**2)

    @property
    def slowest(self) -> float:
        """Hz that it never falls below."""
        return self.top - self.fall


def clock(machine: Machine, work: Work) -> Clock:
    """That of a kernel."""
    flight = work.mma_x16 / 16 * work.n_agents * work.cluster_size / machine.n_sm
    if machine.fixed_fs_per_cycle:
        return Clock(FS_PER_S / machine.fixed_fs_per_cycle, 0.0, flight)
    return Clock((machine.idle_mhz + work.spare_mhz) * 1e6, machine.tensor_mhz * 1e6, flight)
