"""The roofline at every level: slanted roofs for HBM, L2 and shared memory, the compute roof at the run's clock.

The operation is one mark a level, at FLOPs over the bytes that level moved (x) and FLOP/s reached (y); the gap
between a mark and its own roof is what that level still had to give.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sim.result import Result
from viz import levels, palette, words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROOFS = (("hbm", "o", 1.0, "-"), ("l2", "s", 0.72, (0, (5, 1.5))), ("smem", "D", 0.44, (0, (1.5, 1))))
"""Level, mark, its size (marks that coincide stay visible inside each other), line style."""
MARK_FLOOR = 0.52
"""Height of the marks in the chart, at least: the key lies below them."""


def roofline(result: Result, ax: Axes) -> None:
    """Draw roofs and marks of one Result on `ax` (log-log)."""
    size = palette.points(ax, 4.0, 1.9)
    palette.tidy(ax, size)
    chosen: list[tuple[Any, ...]] = [(levels.kernel_level(result, key), *look) for key, *look in ROOFS]
    chosen = [entry for entry in chosen if entry[0].n_bytes and entry[0].read.peak_bytes_per_s]
    peak, reached = levels.peak_flops_per_s(result), levels.achieved_flops_per_s(result)
    x_range = _x_range(result, [level for level, *_ in chosen], peak)
    ax.set(xscale="log", yscale="log", xlim=x_range, ylim=_y_range(reached, max(peak, reached)))
    handles = [_draw_level(result, ax, entry, size) for entry in chosen]
    handles.append(_draw_compute_roof(result, ax, size))
    _key(ax, handles, size)
    plain_ticks(ax)
    ax.set_xlabel("arithmetic intensity at the level (FLOP/B)", fontsize=size, labelpad=2)
    ax.set_ylabel("TFLOP/s", fontsize=size, labelpad=2)
    ax.grid(which="major", color=palette.RULE, linewidth=0.35)
    ax.set_axisbelow(True)


def intensity(result: Result, level: levels.Level) -> float:
    """FLOPs of the operation for each byte the level moved, both directions."""
    return result.flops / level.n_bytes


def _x_range(result: Result, chosen: list[levels.Level], peak: float) -> tuple[float, float]:
    ridges = [peak / level.read.peak_bytes_per_s for level in chosen if level.read.peak_bytes_per_s]
    points = [intensity(result, level) for level in chosen]
    low, high = min((*ridges, *points), default=1.0), max((*ridges, *points), default=1000.0)
    return low / 6.0, high * 6.0


def _y_range(reached: float, top: float) -> tuple[float, float]:
    """TFLOP/s from well below the marks, so that the key fits under them, to just above the roof."""
    high, mark = 1.7 * top / 1e12, reached / 1e12
    return mark / max(8.0, (high / mark) ** (MARK_FLOOR / (1.0 - MARK_FLOOR))), high


def _draw_level(result: Result, ax: Axes, entry: tuple[Any, ...], size: float) -> Any:
    from matplotlib.lines import Line2D

    level, mark, mark_size, style = entry
    rate, peak, start = level.read.peak_bytes_per_s or 0.0, levels.peak_flops_per_s(result), ax.get_xlim()[0]
    ridge = peak / rate if peak else ax.get_xlim()[1]
    line: dict[str, Any] = {"color": palette.LEVELS[level.key], "linestyle": style, "linewidth": 0.16 * size}
    ax.plot([start, ridge], [start * rate / 1e12, ridge * rate / 1e12], **line)
    x, y = intensity(result, level), levels.achieved_flops_per_s(result) / 1e12
    roof = min(x * rate, peak or x * rate) / 1e12
    ax.plot([x, x], [y, roof], color=line["color"], linewidth=0.1 * size)
    limited = levels.limiter_place(result) == level.key
    edge = {"markeredgecolor": palette.LIMITER if limited else palette.INK}
    look = {
        **edge,
        "markeredgewidth": (0.16 if limited else 0.07) * size,
        "markersize": mark_size * size,
        "marker": mark,
    }
    ax.plot([x], [y], **{**line, **look, "linestyle": "none"}, zorder=5)
    text = f"{levels.LABELS[level.key]} {words.rate_text(rate)}: {words.three_digits(x)} FLOP/B"
    text += f", {words.percent_text(y / roof)} of its roof" + (" (limiter)" if limited else "")
    return Line2D([], [], label=text, **{**line, **look})


def _draw_compute_roof(result: Result, ax: Axes, size: float) -> Any:
    from matplotlib.lines import Line2D

    peak, reached = levels.peak_flops_per_s(result), levels.achieved_flops_per_s(result)
    unit = levels.unit_title(result)
    limited = levels.limiter_place(result) == "tensor"
    look: dict[str, Any] = {"color": palette.LIMITER if limited else palette.LEVELS["tensor"], "linewidth": 0.2 * size}
    if not peak:
        return Line2D([], [], label=f"{unit}: peak not known", **look)
    ax.axhline(peak / 1e12, **look)
    reach = levels.instruction_fraction(result)
    if reach < 1.0:
        ax.axhline(reach * peak / 1e12, **{**look, "linewidth": 0.1 * size}, linestyle=(0, (4, 2)))
        unit = f"{unit} (mma.sync, dashed: at most {words.percent_text(reach)})"
    share = words.percent_text(reached / peak)
    text = f"{unit} at {result.main.sm_mhz:,.0f} MHz: {words.flops_text(peak)}, {share} reached"
    return Line2D([], [], label=text + (" (limiter)" if limited else ""), **look)


def _key(ax: Axes, handles: list[Any], size: float) -> None:
    width = palette.size_inches(ax)[0] * 72.0
    longest = max(palette.text_width_points(handle.get_label(), 0.85 * size) for handle in handles)
    font = 0.85 * size * min(1.0, 0.96 * width / (longest + 4.0 * size))
    key = ax.legend(handles=handles, loc="lower right", fontsize=font, frameon=True, framealpha=1.0, borderaxespad=0.3)
    key.get_frame().set(linewidth=0.5, edgecolor=palette.RULE)
    for text in key.get_texts():
        text.set_color(palette.INK)


def plain_ticks(ax: Axes) -> None:
    """Powers of ten written out, on both axes."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(base=10.0, numticks=9))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axis.set_minor_formatter(NullFormatter())
