"""The bound of a falling clock against windows in which MMAs are booked in every way."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from sim.clock_bound import Clock, Windows
from sim.kernel import N_WINDOWS

TOP, FALL, WIDTH_S = 1.8e9, 0.27e9, 1e-6
Busy = Callable[[int], float]


def run(n: int, busy: Busy, flight: float = 0.0, late_s: float = 0.0) -> tuple[float, float, float]:
    """(Seconds, cycles, cycles of MMAs) of `n` windows that close on time, of which `busy` parts are busy, as the
    engine sets its clock, by half of the fall before `late_s`. A flight is booked at the end of every other window and
    not in the next."""
    time_s = cycles = mma_cycles = 0.0
    rate, width_s, n_kept = TOP, WIDTH_S, 0
    for i in range(n):
        booked = max(0.0, busy(i) * width_s * rate + (-flight if i % 2 else flight))
        time_s, cycles, mma_cycles = time_s + width_s, cycles + width_s * rate, mma_cycles + booked
        rate = TOP - (FALL if time_s >= late_s else FALL / 2) * min(1.0, booked / (width_s * rate))
        n_kept += 1
        if n_kept == N_WINDOWS:
            n_kept, width_s = N_WINDOWS // 2, 2 * width_s
    return time_s, cycles, mma_cycles


def clock(flight: float, part: float = 1.0, late_s: float = 0.0) -> Clock:
    """That of agents which start MMAs for `part` of their time at most."""
    return Clock(TOP, FALL, flight, max(flight, 1.0) / part, late_s)


def patterns() -> dict[str, Busy]:
    draw = random.Random(3)
    noise = [draw.random() for _ in range(5000)]
    return {
        "always": lambda i: 1.0,
        "nearly": lambda i: 0.95,
        "half": lambda i: 0.5,
        "hardly": lambda i: 0.02,
        "in turn": lambda i: i % 2,
        "noise": lambda i: noise[i],
        "noise at the top": lambda i: 1 - 0.2 * noise[i],
        "at first": lambda i: float(i < 300),
        "at last": lambda i: float(i > 300),
        "by halves": lambda i: float(i % 100 < 50),
    }


@pytest.mark.parametrize("busy", patterns().values(), ids=patterns().keys())
@pytest.mark.parametrize("flight", [0.0, 400.0, 1500.0])
def test_no_pattern_is_below_the_bound(busy: Busy, flight: float) -> None:
    for n in (1, 2, 3, 10, 100, 511, 512, 513, 700, 1500, 3000):
        time_s, cycles, mma_cycles = run(n, busy, flight)
        assert clock(flight).least_s(cycles, mma_cycles, Windows(WIDTH_S)) <= time_s * (1 + 1e-12), n


@pytest.mark.parametrize("late_us", [3, 31, 300, 1500.5])
@pytest.mark.parametrize("busy", patterns().values(), ids=patterns().keys())
def test_nor_is_one_whose_clock_falls_late(busy: Busy, late_us: float) -> None:
    late_s = late_us * 1e-6
    for n in (1, 2, 31, 32, 100, 511, 513, 700, 1500, 3000):
        time_s, cycles, mma_cycles = run(n, busy, 400.0, late_s)
        late = clock(400.0, late_s=late_s).least_s(cycles, mma_cycles, Windows(WIDTH_S))
        assert late <= time_s * (1 + 1e-12), n
        assert late <= clock(400.0).least_s(cycles, mma_cycles, Windows(WIDTH_S))


@pytest.mark.parametrize("part", [0.8, 0.95, 0.99])
@pytest.mark.parametrize("flight", [100.0, 500.0, 1500.0])
def test_what_is_cut_is_less_where_agents_pause(part: float, flight: float) -> None:
    for n in (1, 2, 10, 511, 700, 3000):
        time_s, cycles, mma_cycles = run(n, lambda i: part, flight)
        less, most = (clock(flight, p).least_s(cycles, mma_cycles, Windows(WIDTH_S)) for p in (part, 1.0))
        assert most <= less <= time_s * (1 + 1e-12)
    assert most < less


@pytest.mark.parametrize(("busy", "least"), [("always", 0.999), ("nearly", 0.999), ("half", 0.99), ("in turn", 0.99)])
def test_the_bound_is_near_where_windows_are_alike(busy: str, least: float) -> None:
    time_s, cycles, mma_cycles = run(3000, patterns()[busy])
    assert clock(0.0).least_s(cycles, mma_cycles, Windows(WIDTH_S)) > least * time_s


def test_a_clock_that_is_held_does_not_fall() -> None:
    assert Clock(TOP, 0.0, 100.0, 100.0).least_s(TOP, TOP, Windows(WIDTH_S)) == 1.0


def test_windows_double_when_they_are_full() -> None:
    def at(n_widths: float, room: int = N_WINDOWS) -> list[float]:
        """Numbers and widths, in turn, of the windows in so many widths of the first."""
        return [value for each in Windows(WIDTH_S, room).within(n_widths * WIDTH_S) for value in each]

    assert at(10) == pytest.approx([11, WIDTH_S])
    assert at(514) == pytest.approx([512, WIDTH_S, 2, 2 * WIDTH_S])
    assert at(512 + 512 + 4) == pytest.approx([512, WIDTH_S, 256, 2 * WIDTH_S, 2, 4 * WIDTH_S])
    assert at(7, 5) == pytest.approx([5, WIDTH_S, 2, 2 * WIDTH_S])
