"""The least time that work in cycles takes under a clock that falls as tensor cores work.

In window i, of d_i seconds, the clock is f_i = f - t b_(i-1): f that of an idle SM, t `tensor_mhz`, b_i the part of
window i for which MMAs were booked (mean over SMs), cut at 1. At first, for `late` seconds and the widest window, it
falls by half of that at least: it keeps t e seconds' cycles at most, e being half of that time. C cycles that follow
one another take T seconds at least, M cycles of MMAs on the mean SM being booked meanwhile. With A the sum of
b_(i-1) d_i over all windows but the first, less e:

(1) C <= sum f_i d_i <= f T - t A.
(2) An MMA is booked whole as it starts. On an SM, what is booked in a window and done after it is at most one MMA of
    each of its agents, a *flight* F together (more where they take turns, as one that is done early books its next
    behind the others); it is the growth of what is in flight that can be booked beyond a window and cut. As an agent
    starts no two MMAs within a *period* P of cycles, while it grows over d seconds no more than F (d f_i / P + 1)
    cycles are booked, of which at most F - (1 - F / P) d (f - t) go beyond, if F < P. As it grows in every other
    window at most, half of these for each window and one flight are cut in all:
    M' = M - F - sum max(0, F - max(0, 1 - F / P) d_i (f - t)) / 2 <= sum b_i f_i d_i.
(3) Windows never get narrower, but for the last: sum b_i d_i <= A + U, with U the width of the last and e.
(4) As f_i <= f, (2) and (3) give M' / f <= A + U. As (1 - b_i) (1 - b_(i-1)) >= 0, sum b_i b_(i-1) d_i is at least
    sum b_i d_i + A + e - T, so that, of these t e being kept, M' <= (f - t) (A + U) - t (A - T) = (f - 2 t) A +
    (f - t) U + t T.

(1) with the first of (4) says T >= (C + t (M' / f - U)) / f; with the second, where f > 2 t,
T >= (C (f - 2 t) + t (M' - (f - t) U)) / (f - t)^2, which is C / (f - t) where MMAs are all there is.

Windows double in width when `N_WINDOWS` are full. Where T is more than the bound without (2) and U, that holds; else
there are no more and no wider windows than in that time.

Left out: a window ends with the first event after its end, and what is reserved keeps its clock beyond it. Both shift
windows by part of a reservation, one way or the other. That this is less than what (2) takes off, which supposes the
worst of all windows, is not proved, but tested against the engine (tests/test_tiles.py).
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

    def within(self, time_s: float) -> list[tuple[float, float]]:
        """(Number of windows, seconds of the width of each) in `time_s`, at most, the narrowest first."""
        found, room, width_s = [], self.room, self.width_s
        while time_s > room * width_s:
            found.append((float(room), width_s))
            time_s -= room * width_s
            room, width_s = N_WINDOWS // 2, 2 * width_s
        return [*found, (time_s / width_s + 1, width_s)]


@dataclass(frozen=True)
class Clock:
    """SM clock of a kernel: `top` of idle SMs, `fall` with busy tensor cores (both in Hz; `fall` is 0 where the clock
    is held), cycles of one `flight` of MMAs, the `period` of cycles in which an agent starts one at most, and seconds
    until the second half of the fall."""

    top: float
    fall: float
    flight: float
    period: float
    late: float = 0.0

    def least_s(self, cycles: float, mma_cycles: float, windows: Windows) -> float:
        """Seconds that `cycles` take at least, while `mma_cycles` of MMAs are booked on the mean SM."""
        if not self.fall:
            return cycles / self.top
        within = windows.within(self._seconds(cycles, mma_cycles, 0.0))
        late_s = (self.late + within[-1][1]) / 2 if self.late else 0.0  # a window keeps its clock
        unseen_s = within[-1][1] + late_s + windows.begun_s * self.top / self.slowest
        return self._seconds(cycles, mma_cycles - self._cut(within), unseen_s)

    def _cut(self, windows: list[tuple[float, float]]) -> float:
        """Cycles of MMAs that are booked beyond their windows, at most."""
        spare = self.slowest * max(0.0, 1 - self.flight / self.period)
        return self.flight + sum(n / 2 * max(0.0, self.flight - spare * width_s) for n, width_s in windows)

    def _seconds(self, cycles: float, mma_cycles: float, unseen_s: float) -> float:
        top, fall = self.top, self.fall
        first = (cycles + fall * max(0.0, mma_cycles / top - unseen_s)) / top
        if 2 * fall >= top:
            return first
        slow = top - fall
        return max(first, (cycles * (slow - fall) + fall * (mma_cycles - slow * unseen_s)) / slow**2)

    @property
    def slowest(self) -> float:
        """Hz that it never falls below."""
        return self.top - self.fall


def iteration_cycles(work: Work) -> float:
    """Cycles of a k-iteration of an agent by itself, from the start of its MMA until that is done."""
    return max(work.mma_x16, work.mma_smem_x16, work.floor_x16) / 16 + work.drain_cycles


def clock(machine: Machine, work: Work) -> Clock:
    """That of a kernel."""
    flight = work.mma_x16 / 16 * work.n_agents * work.cluster_size / machine.n_sm / (1 - work.turn_x256 / 256)
    period = iteration_cycles(work) + work.barrier_cycles
    if machine.fixed_fs_per_cycle:
        return Clock(FS_PER_S / machine.fixed_fs_per_cycle, 0.0, flight, period)
    late_s = machine.late_fs / FS_PER_S
    return Clock((machine.idle_mhz + work.spare_mhz) * 1e6, machine.tensor_mhz * 1e6, flight, period, late_s)
