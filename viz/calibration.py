"""Figures of a calibration: predicted against measured, errors by shape and configuration, how sure each constant is.

Each function takes an `Outcome` and gives a new Figure (no global state). Blue is what was fitted on, orange what was
not, grey the constants before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.calibration.outcome import Fitted, Outcome, Point
from viz import palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 130
SIZE = 9.0
"""Type size, points."""
FITTED, JUDGED, BEFORE = palette.BLUE, palette.ORANGE, palette.GREY
CUT_PCT = 40.0
"""Errors beyond are drawn at the edge."""
MOST_CONFIGURATIONS = 24
LEAST_OF_ONE = 3
"""Kernels of a configuration that make a bar of its own."""
NAMES = {
    "gemm": "library kernels (gemm)",
    "tile_sweep": "Triton kernels (tile_sweep)",
    "counters": "kernels with counters (counters)",
}


def _figure(width_in: float, height_in: float, title: str) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.06)
    sheet = Figure(figsize=(width_in, height_in), dpi=DPI, layout=layout, facecolor=palette.PAPER)
    sheet.suptitle(title, fontsize=SIZE + 1, color=palette.INK, weight="bold", x=0.01, ha="left")
    return sheet


def _empty(ax: Axes, text: str) -> None:
    ax.set_axis_off()
    ax.text(0.5, 0.5, text, ha="center", va="center", fontsize=SIZE, color=palette.MUTED)


def _tables(outcome: Outcome) -> list[str]:
    return [table for table in NAMES if any(point.table == table for point in outcome.points)]


def _half(points: Sequence[Point], table: str, fitted: bool) -> list[Point]:
    return [point for point in points if point.table == table and point.fitted == fitted]


def _mape(points: Sequence[Point], which: str) -> str:
    return f"{np.mean([abs(point.error_pct('time_us', which)) for point in points]):.1f}"


# Errors.
def predicted(outcome: Outcome) -> Figure:
    """Predicted over measured time, a panel a table."""
    tables = _tables(outcome)
    sheet = _figure(max(5.0, 3.7 * len(tables)), 4.1, "Predicted against measured time")
    axes = sheet.subplots(1, max(1, len(tables)), squeeze=False)[0]
    for ax, table in zip(axes, tables, strict=False):
        _predicted(ax, outcome.points, table)
    if not tables:
        _empty(axes[0], "no kernel was predicted")
    return sheet


def _predicted(ax: Axes, points: Sequence[Point], table: str) -> None:
    palette.tidy(ax, SIZE)
    times = [value for p in points if p.table == table for value in (p.measured["time_us"], p.after["time_us"])]
    ends = np.array([min(times) / 1.4, max(times) * 1.4])
    ax.fill_between(ends, ends / 1.1, ends * 1.1, color=palette.IDLE, linewidth=0, label="within 10 %")
    ax.plot(ends, ends, color=palette.RULE, linewidth=0.8)
    for fitted, color, mark, name in ((True, FITTED, "o", "fitted"), (False, JUDGED, "^", "not fitted")):
        half = _half(points, table, fitted)
        if half:
            label = f"shapes {name}: {_mape(half, 'before')} % → {_mape(half, 'after')} %"
            look: dict[str, Any] = {"color": color, "marker": mark, "s": 9, "linewidths": 0, "alpha": 0.65}
            ax.scatter([p.measured["time_us"] for p in half], [p.after["time_us"] for p in half], **look, label=label)
    ax.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    _plain_log(ax.xaxis, ax.yaxis)
    ax.set_title(NAMES[table], fontsize=SIZE, color=palette.INK, loc="left")
    ax.set_xlabel("measured (µs)", fontsize=SIZE)
    ax.set_ylabel("predicted (µs)", fontsize=SIZE)
    _legend(ax, "upper left")


def _plain_log(*axes: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for axis in axes:
        axis.set_major_locator(LogLocator(base=10.0, numticks=9))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axis.set_minor_formatter(NullFormatter())


def _legend(ax: Axes, place: Any) -> None:
    key = ax.legend(loc=place, fontsize=0.82 * SIZE, frameon=True, framealpha=0.9, borderaxespad=0.3)
    key.get_frame().set(linewidth=0.4, edgecolor=palette.RULE)


def shapes(outcome: Outcome) -> Figure:
    """Signed error of every kernel over the FLOPs of its shape, a panel a table, with the median of each decade."""
    tables = _tables(outcome)
    sheet = _figure(8.6, 0.7 + 2.3 * max(1, len(tables)), "Error of time by shape")
    axes = sheet.subplots(max(1, len(tables)), 1, squeeze=False, sharex=True)[:, 0]
    for ax, table in zip(axes, tables, strict=False):
        _by_size(ax, outcome.points, table)
    if not tables:
        _empty(axes[0], "no kernel was predicted")
        return sheet
    _si_log(axes[-1].xaxis)
    axes[-1].set_xlabel("work of the shape, 2 m n k (FLOP)", fontsize=SIZE)
    entries = {text: mark for ax in axes for mark, text in zip(*ax.get_legend_handles_labels(), strict=True)}
    sheet.legend(entries.values(), entries.keys(), loc="upper right", fontsize=0.82 * SIZE, frameon=False, ncols=4)
    return sheet


def _si_log(axis: Any) -> None:
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(base=10.0, numticks=12))
    axis.set_major_formatter(EngFormatter(places=0))
    axis.set_minor_formatter(NullFormatter())


def _by_size(ax: Axes, points: Sequence[Point], table: str) -> None:
    palette.tidy(ax, SIZE)
    ax.axhspan(-5, 5, color=palette.IDLE, linewidth=0)
    ax.axhline(0, color=palette.MUTED, linewidth=0.6)
    for fitted, color, mark, name in ((True, FITTED, "o", "fitted"), (False, JUDGED, "^", "not fitted")):
        half = _half(points, table, fitted)
        if half:
            _errors_over(ax, half, [p.flops for p in half], color, mark, f"shapes {name}")
    mine = [p for p in points if p.table == table]
    ax.set(xscale="log", ylim=(-CUT_PCT * 1.05, CUT_PCT * 1.05))
    _medians(ax, mine)
    ax.set_title(NAMES[table], fontsize=SIZE, color=palette.INK, loc="left")
    ax.set_ylabel("error (%)", fontsize=SIZE)


def _errors_over(ax: Axes, half: Sequence[Point], x: Sequence[float], color: str, mark: str, name: str) -> None:
    errors = np.clip([p.error_pct("time_us", "after") for p in half], -CUT_PCT, CUT_PCT)
    ax.scatter(x, errors, color=color, marker=mark, s=9, linewidths=0, alpha=0.65, label=name)


def _medians(ax: Axes, points: Sequence[Point]) -> None:
    """Medians over half decades of work, before and after."""
    bins = np.round(2 * np.log10([p.flops for p in points])) / 2
    for which, color, style, name in (
        ("before", BEFORE, (0, (3, 2)), "median before"),
        ("after", palette.INK, "-", "median after"),
    ):
        errors = np.array([p.error_pct("time_us", which) for p in points])
        kept = [b for b in np.unique(bins) if (bins == b).sum() >= LEAST_OF_ONE]
        medians = [float(np.median(errors[bins == b])) for b in kept]
        ax.plot([10**b for b in kept], np.clip(medians, -CUT_PCT, CUT_PCT), color=color, linestyle=style, label=name)


def configurations(outcome: Outcome) -> Figure:
    """Error of time a kernel configuration: middle half and median of its kernels, before and after."""
    groups: dict[str, list[Point]] = {}
    for point in outcome.points:
        groups.setdefault(f"{point.family} {point.configuration}", []).append(point)
    most = sorted((g for g in groups if len(groups[g]) >= LEAST_OF_ONE), key=lambda g: (-len(groups[g]), g))
    shown = sorted(most[:MOST_CONFIGURATIONS])
    sheet = _figure(
        8.6, 1.3 + 0.24 * max(4, len(shown)), "Error of time by kernel configuration (family, tile m × n × k)"
    )
    ax = sheet.subplots()
    if not shown:
        _empty(ax, f"no configuration has {LEAST_OF_ONE} kernels")
        return sheet
    _quartiles(ax, [groups[name] for name in shown])
    ax.set_yticks(range(len(shown)), [f"{name}  ({len(groups[name])})" for name in shown])
    ax.set_ylim(len(shown) - 0.4, -0.6)
    ax.set_xlabel("error (%): middle half of the kernels, and their median", fontsize=SIZE)
    _legend(ax, "lower right")
    return sheet


def _quartiles(ax: Axes, groups: Sequence[Sequence[Point]]) -> None:
    palette.tidy(ax, SIZE)
    ax.axvspan(-5, 5, color=palette.IDLE, linewidth=0)
    ax.axvline(0, color=palette.MUTED, linewidth=0.6)
    for which, color, shift in (("before", BEFORE, -0.17), ("after", FITTED, 0.17)):
        for i, group in enumerate(groups):
            low, middle, high = np.percentile([p.error_pct("time_us", which) for p in group], [25, 50, 75])
            ax.plot([low, high], [i + shift] * 2, color=color, linewidth=2.4, solid_capstyle="butt")
            ax.plot([middle], [i + shift], color=palette.INK, marker="|", markersize=6, linestyle="none")
        ax.plot([], [], color=color, linewidth=2.4, label=which)


# Constants.
def sensitivity(outcome: Outcome) -> Figure:
    """Bars: what the loss of its stage gains where a constant is 10 % larger or smaller."""
    shown = outcome.constants
    sheet = _figure(7.6, 1.4 + 0.34 * max(3, len(shown)), "What 10 % of each constant does to the loss of its stage")
    ax = sheet.subplots()
    if not shown:
        _empty(ax, "nothing was fitted")
        return sheet
    palette.tidy(ax, SIZE)
    rows = np.arange(len(shown))
    for shift, color, values, name in (
        (-0.18, palette.SKY, [one.loss_up_pct for one in shown], "10 % larger"),
        (0.18, palette.PURPLE, [one.loss_down_pct for one in shown], "10 % smaller"),
    ):
        ax.barh(rows + shift, values, height=0.34, color=color, label=name)
    ax.axvline(0, color=palette.MUTED, linewidth=0.6)
    ax.set_yticks(rows, [_label(one) for one in shown])
    ax.set_ylim(len(shown) - 0.4, -0.6)
    ax.set_xscale("symlog", linthresh=1.0)
    _plain_symlog(ax)
    ax.set_xlabel("change of the loss (%), logarithmic beyond 1 %", fontsize=SIZE)
    _legend(ax, "lower right")
    return sheet


def _plain_symlog(ax: Axes) -> None:
    from matplotlib.ticker import FuncFormatter

    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+,g}" if value else "0"))


def _label(one: Fitted) -> str:
    return f"{one.key}  ({one.stage})"


def identifiability(outcome: Outcome) -> Figure:
    """Matrix: correlations of the estimates; pairs that the data cannot tell apart are framed."""
    keys, correlation = outcome.identified.keys, outcome.identified.correlation
    n = len(keys)
    sheet = _figure(3.4 + 0.5 * max(4, n), 2.4 + 0.42 * max(4, n), "Correlation of the constants' estimates")
    ax = sheet.subplots()
    if n < 2:
        _empty(ax, "fewer than two constants were fitted")
        return sheet
    image = ax.imshow(correlation, cmap=_signed(), vmin=-1, vmax=1)
    ax.set_xticks(range(n), keys, rotation=40, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(n), keys)
    ax.tick_params(labelsize=0.82 * SIZE, length=0, colors=palette.INK)
    for side in ax.spines.values():
        side.set_visible(False)
    alike = {frozenset(pair[:2]) for pair in outcome.identified.alike}
    for i in range(n):
        for j in range(n):
            if i != j:
                _cell(ax, j, i, float(correlation[i, j]), frozenset((keys[i], keys[j])) in alike)
    bar = sheet.colorbar(image, ax=ax, shrink=0.8, aspect=30)
    bar.ax.tick_params(labelsize=0.82 * SIZE)
    bar.outline.set_visible(False)
    ax.set_xlabel(_alike_text(outcome), fontsize=0.9 * SIZE, color=palette.MUTED, labelpad=8)
    return sheet


def _cell(ax: Axes, x: int, y: int, value: float, framed: bool) -> None:
    from matplotlib.patches import Rectangle

    color = palette.PAPER if abs(value) > 0.6 else palette.INK
    ax.text(x, y, f"{value:+.2f}", ha="center", va="center", fontsize=0.68 * SIZE, color=color)
    if framed:
        ax.add_patch(Rectangle((x - 0.47, y - 0.47), 0.94, 0.94, fill=False, color=palette.LIMITER, linewidth=1.6))


def _signed() -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("signed", [palette.ORANGE, palette.PAPER, palette.BLUE])


def _alike_text(outcome: Outcome) -> str:
    pairs = len(outcome.identified.alike)
    said = "framed: pairs that the data cannot tell apart" if pairs else "no pair is alike to the data (all under 0.9)"
    return f"{said}; condition number {outcome.identified.condition:.1f}"


def folds(outcome: Outcome) -> Figure:
    """Dots: each constant with a fold of shapes left out, relative to its fitted value; a tick for the value before."""
    shown = outcome.constants
    sheet = _figure(7.6, 1.5 + 0.34 * max(3, len(shown)), "Each constant with one fold of shapes left out")
    ax = sheet.subplots()
    if not any(one.folds for one in shown):
        _empty(ax, "no folds were left out")
        return sheet
    palette.tidy(ax, SIZE)
    ax.axvline(0, color=palette.MUTED, linewidth=0.6)
    for i, one in enumerate(shown):
        moved = [100 * (value / one.after - 1) for value in one.folds]
        ax.plot([min(moved), max(moved)], [i, i], color=palette.RULE, linewidth=2.2, solid_capstyle="round", zorder=1)
        ax.scatter(moved, [i] * len(moved), color=FITTED, s=20, linewidths=0, alpha=0.8, zorder=3)
        ax.scatter([100 * (one.before / one.after - 1)], [i], color=BEFORE, marker="D", s=22, linewidths=0, zorder=2)
    ax.scatter([], [], color=FITTED, s=20, linewidths=0, label="a fold left out")
    ax.scatter([], [], color=BEFORE, marker="D", s=22, linewidths=0, label="before the fit")
    ax.set_yticks(range(len(shown)), [f"{one.key}  = {one.after:.4g} {one.unit}" for one in shown])
    ax.set_ylim(len(shown) - 0.4, -0.6)
    ax.set_xlabel("difference from the value fitted to all shapes (%)", fontsize=SIZE)
    _legend(ax, "lower right")
    return sheet


FIGURES: dict[str, Callable[[Outcome], Figure]] = {
    "predicted": predicted,
    "shapes": shapes,
    "configurations": configurations,
    "sensitivity": sensitivity,
    "identifiability": identifiability,
    "folds": folds,
}
"""Figures by the stem of their file, as `sim.calibration.files.FIGURES` names them."""
