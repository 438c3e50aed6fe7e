"""Long load on a board at rest before, drawn: time of a call, clock and power over seconds, measured and predicted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sim.power import limit_w, reported_mhz
from sim.power_over_time import STEP_S
from viz.palette import BLUE, INK, MUTED, ORANGE, RULE, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

    from hwmodels.spec import Gpu
    from sim.validation.sustained import Case

N_ACROSS = 4
POINTS = 8.5
TIME_RANGE = (0.84, 1.32)
"""Of the settled time of a call: all cases on one scale, so that what stays flat looks flat."""
Style = dict[str, Any]
MEASURED: Style = {"color": ORANGE, "linewidth": 1.5}
PREDICTED: Style = {"color": BLUE, "linewidth": 1.3}
HELD: Style = {"color": MUTED, "linewidth": 0.8, "linestyle": (0, (4, 3))}


def draw_over_time(gpu: Gpu, cases: Sequence[Case]) -> Figure:
    """A block a case: time of a call, clock and power as the board reports them, over the seconds of the load."""
    n_rows = -(-(len(cases) + 1) // N_ACROSS)
    figure = Figure(figsize=(11, 4.1 * n_rows), layout="constrained")
    blocks = figure.subfigures(n_rows, N_ACROSS, squeeze=False)
    for i, (block, case) in enumerate(zip(blocks.flat, cases, strict=False)):
        _draw_case(block, gpu, case, named=i % N_ACROSS == 0)
    _draw_key(blocks.flat[len(cases)])
    return figure


def _draw_case(block: SubFigure, gpu: Gpu, case: Case, named: bool) -> None:
    course = case.predicted(gpu)
    unit_s, unit = (1e-3, "ms") if case.settled.call_s >= 1e-3 else (1e-6, "µs")
    edges = [*(window.start_s for window in case.windows), case.windows[-1].end_s]
    seconds = STEP_S * np.arange(len(course.call_s))
    calls, clocks, watts = block.subplots(3, 1, sharex=True, height_ratios=(1.5, 1, 1))
    for axes, measured, predicted in (
        (calls, [window.call_s / unit_s for window in case.windows], course.call_s / unit_s),
        (clocks, [window.mhz for window in case.windows], reported_mhz(gpu, 1.0) * course.mhz),
        (watts, [window.watt for window in case.windows], course.mean_w),
    ):
        axes.stairs(measured, edges, baseline=None, **MEASURED)
        axes.plot(seconds, predicted, **PREDICTED)
        tidy(axes, POINTS)
        axes.grid(axis="y", color=RULE, linewidth=0.5, alpha=0.6)
    watts.axhline(limit_w(gpu), **HELD)
    _scales(gpu, calls, clocks, watts, case.settled.call_s / unit_s)
    calls.set_title(case.name.replace("x", " × "), fontsize=POINTS, color=INK, loc="left")
    calls.set_ylabel(f"call ({unit})", fontsize=POINTS)
    if named:
        clocks.set_ylabel("clock (MHz)", fontsize=POINTS)
        watts.set_ylabel("power (W)", fontsize=POINTS)
    watts.set_xlabel("seconds", fontsize=POINTS)


def _scales(gpu: Gpu, calls: Axes, clocks: Axes, watts: Axes, settled: float) -> None:
    """The same for all cases, of times relative to the settled one."""
    calls.set_ylim(*(share * settled for share in TIME_RANGE))
    clocks.set_ylim(0.5 * gpu.clock.boost_mhz, 1.05 * gpu.clock.boost_mhz)
    watts.set_ylim(0, 1.12 * gpu.power.board_w)
    watts.set_xlim(left=0)


def _draw_key(block: SubFigure) -> None:
    lines = [Line2D([], [], **style) for style in (MEASURED, PREDICTED, HELD)]
    names = [
        "measured, mean of a window;\nclock and power as the board\nreports them, up to 0.1 s late",
        "predicted",
        "what the board holds for long",
    ]
    block.legend(lines, names, loc="center left", frameon=False, fontsize=POINTS, labelspacing=1.2)
