"""How a board at rest slows down under long load: closed forms of the course, its bounds, and the fit of its times."""

from __future__ import annotations

from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from hwmodels import load_gpu
from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim import simulate
from sim.calibration.power import error_pct, fit, with_times
from sim.power import limit_w
from sim.power_over_time import STEP_S, Load, loads, over_time
from sim.result import Result
from sim.schedule.library import launched
from sim.validation.sustained import FIRST, STEADY, Case, Window
from viz.power_over_time import draw_over_time
from viz.terminal import print_result, to_json
from workloads import Gemm

GPU = load_gpu("h200_sxm")
HELD_W = limit_w(GPU)
BURST, SETTLED = Load(1.4e-3, 1560.0, 990.0), Load(1.6e-3, 1360.0, HELD_W)
REACT_S, MEAN_S = GPU.power.react_ms / 1e3, GPU.power.mean_ms / 1e3


def test_it_starts_as_the_burst_and_ends_settled() -> None:
    course = over_time(GPU, BURST, SETTLED, 60.0)
    first = course.between(0.0, REACT_S)
    assert (first.call_s, first.mhz) == pytest.approx((BURST.call_s, BURST.mhz))
    assert course.power_w[0] == pytest.approx(BURST.mean_w)
    assert course.between(50.0, 60.0) == pytest.approx(SETTLED, rel=1e-3)
    assert np.ptp(course.call_s[-1000:]) < 1e-3 * SETTLED.call_s


def test_after_the_burst_power_is_the_boards_until_the_mean_is_full() -> None:
    """Rest, burst and board_w fill the mean to the limit at a time that can be written down."""
    course = over_time(GPU, BURST, SETTLED, 2.0)
    rest_w, board_w = GPU.power.idle_w + GPU.power.clocks_w, GPU.power.board_w
    excess_w = board_w - HELD_W
    dip_at_mean_w = HELD_W - excess_w * REACT_S / MEAN_S
    full_s = (MEAN_S * (dip_at_mean_w - rest_w) - REACT_S * (BURST.mean_w - board_w)) / (board_w - rest_w)
    between = course.power_w[round(REACT_S / STEP_S) : int(full_s / STEP_S)]
    assert between == pytest.approx(board_w)
    assert course.power_w[int(full_s / STEP_S) + 3] < 0.99 * board_w
    ramp = rest_w + (REACT_S * (BURST.mean_w - rest_w) + (0.5 - REACT_S) * (board_w - rest_w)) / MEAN_S
    assert course.between(0.4, 0.5).mean_w == pytest.approx(ramp, rel=5e-3)


def test_the_board_never_takes_more_than_it_may_and_the_mean_hardly_does() -> None:
    course = over_time(GPU, BURST, SETTLED, 10.0)
    assert course.power_w[round(REACT_S / STEP_S) :].max() <= GPU.power.board_w * (1 + 1e-9)
    assert course.mean_w.max() < 1.05 * HELD_W
    later = course.power_w[round(1.5 / STEP_S) :]
    assert later.mean() == pytest.approx(HELD_W, rel=0.01)


@pytest.mark.parametrize("watts", [300.0, HELD_W])
def test_within_the_limit_nothing_changes(watts: float) -> None:
    load = Load(1e-3, 1600.0, watts)
    course = over_time(GPU, load, load, 3.0)
    assert set(course.call_s) == {1e-3}
    assert set(course.mhz) == {1600.0}
    assert np.all(np.diff(course.mean_w) >= -1e-9)


def test_a_hungrier_burst_is_never_later_at_its_dip() -> None:
    dips = [int(over_time(GPU, Load(1.4e-3, 1560.0, w), SETTLED, 2.0).power_w.argmin()) for w in (750, 900, 1200, 1600)]
    assert dips == sorted(dips, reverse=True)


def test_means_of_a_stretch_are_time_over_calls() -> None:
    course = over_time(GPU, BURST, SETTLED, 1.0)
    whole, parts = course.between(0.0, 1.0), [course.between(at, at + 0.25) for at in (0.0, 0.25, 0.5, 0.75)]
    assert 1.0 / whole.call_s == pytest.approx(sum(0.25 / part.call_s for part in parts))
    assert whole.mhz == pytest.approx(sum(part.mhz for part in parts) / 4)
    again = over_time(GPU, BURST, SETTLED, 1.0)
    assert np.array_equal(course.power_w, again.power_w)


@pytest.mark.parametrize("seconds", [0.0, -1.0, 601.0, float("nan")])
def test_times_that_make_no_sense_are_refused(seconds: float) -> None:
    with pytest.raises(ConfigError, match=r"seconds = .* from 0.001 to 600"):
        over_time(GPU, BURST, SETTLED, seconds)


def test_stretches_and_loads_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"time = 0.5 to 1.5 s: must be from 0 to 1 s"):
        over_time(GPU, BURST, SETTLED, 1.0).between(0.5, 1.5)
    with pytest.raises(ConfigError, match=r"burst = .* above 0"):
        over_time(GPU, BURST._replace(call_s=0.0), SETTLED, 1.0)


def printed(result: Result) -> str:
    """The screen of `tilewalk gemm`."""
    console = Console(file=StringIO(), width=160)
    print_result(result, console)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_the_states_come_from_a_sustained_result() -> None:
    gemm, fallen = Gemm(2048, 2048, 2048), load_gpu("h200_sxm", ["activity.late_us=0"])  # as in a long load
    burst, long, zeros = (
        simulate(gemm, fallen, config=launched(gemm, GPU), sustained=sustained, data=data)
        for sustained, data in ((False, "random"), (True, "random"), (True, "zeros"))
    )
    before, settled = loads(long)
    assert settled == (long.time_s, long.main.sm_mhz, long.power_w)
    assert before.mhz > settled.mhz
    assert before.mean_w > limit_w(GPU)
    assert before == pytest.approx((burst.time_s, burst.main.sm_mhz, burst.power_w))
    told = to_json(long)["before_settling"]
    assert (told["time_us"], told["react_ms"]) == (pytest.approx(before.call_s * 1e6), GPU.power.react_ms)
    assert "From rest a burst" in printed(long)
    assert to_json(zeros)["before_settling"] is None
    assert "From rest" not in printed(zeros)
    assert loads(zeros)[0] == loads(zeros)[1]
    assert "before_settling" not in zeros.options


def measured(gpu: Gpu, name: str) -> Case:
    """Windows of 40 ms that another board's control leaves, measured without error."""
    course = over_time(gpu, BURST, SETTLED, 2.5)
    edges = [0.04 * i for i in range(62)]
    windows = tuple(Window(at, at + 0.04, *course.between(at, at + 0.04)) for at in edges)
    return Case(name, Gemm(4096, 4096, 4096), windows, BURST, SETTLED)


def test_the_fit_finds_the_times_that_made_the_windows() -> None:
    case = measured(with_times(GPU, 60.0, 860.0), "other")
    found = fit(GPU, [case])
    assert (found.power.react_ms, found.power.mean_ms) == (60.0, 860.0)
    assert max(error_pct(found, case, stretch) for stretch in (FIRST, STEADY)) < 0.6
    assert error_pct(GPU, case, FIRST) > 1.0


def test_the_picture_has_a_block_a_case_and_a_key() -> None:
    figure = draw_over_time(GPU, [measured(GPU, "random, 4096x4096x4096"), measured(GPU, "zeros, 64x64x64")])
    titles = [axes.get_title(loc="left") for axes in figure.axes if axes.get_title(loc="left")]
    assert titles == ["random, 4096 × 4096 × 4096", "zeros, 64 × 64 × 64"]
    assert len(figure.axes) == 6
    figure.canvas.draw()
