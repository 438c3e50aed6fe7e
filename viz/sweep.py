"""Line charts of a sweep's table: a column over another, one line for each value of a third."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

from hwmodels.errors import ConfigError
from viz import palette
from viz.sheet import write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from sim.sweep.study_file import Picture
    from sim.sweep.table import Table

SIZE, SIZE_IN, DPI = 9.0, (7.5, 4.4), 150
HUES = (palette.BLUE, palette.ORANGE, palette.GREEN, palette.PURPLE, palette.SKY, palette.GREY)
STYLES = ("-", "--", ":", "-.")
MOST_TICKS = 12
MOST_LINES = len(HUES) * len(STYLES)
SCALES = {"time_s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")), "energy_j": ((1.0, "J"), (1e-3, "mJ"))}
BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
Lines = dict[Any, dict[Any, float]]
"""{series: {x: y}}."""


def save_picture(table: Table, picture: Picture) -> None:
    """Draw a picture of a study into its .png, .svg or .pdf file, whole or not at all.

    Raises `ConfigError` for another suffix, a file that cannot be written, and where there is nothing to draw."""
    write_figure(lambda: drawn(table, picture), picture.path)


def drawn(table: Table, picture: Picture) -> Figure:
    """The picture on a new Figure. Of several points with the same x in a line, the least is drawn."""
    from matplotlib.figure import Figure

    found = lines(table, picture)
    if not found:
        raise ConfigError(f"picture {os.path.basename(picture.path)}: no point has both {picture.x} and {picture.y}")
    sheet = Figure(figsize=SIZE_IN, dpi=DPI, layout="constrained", facecolor=palette.PAPER)
    ax = sheet.add_subplot()
    palette.tidy(ax, SIZE)
    _draw(ax, picture, found)
    title = picture.title or f"{picture.y} over {picture.x}"
    sheet.suptitle(title, fontsize=SIZE + 1, color=palette.INK, weight="bold", x=0.01, ha="left")
    return sheet


def lines(table: Table, picture: Picture) -> Lines:
    """What is drawn, in the order of the points: the least y of each x of each series; points without are left out."""
    places = [table.columns.index(name) for name in (picture.x, picture.y)]
    series = None if picture.series is None else table.columns.index(picture.series)
    found: Lines = {}
    for row in table:
        x, y = (row[place] for place in places)
        if x is not None and y is not None:
            line = found.setdefault(None if series is None else row[series], {})
            line[x] = min(y, line.get(x, math.inf))
    return found


def _draw(ax: Axes, picture: Picture, found: Lines) -> None:
    largest = max(max(line.values()) for line in found.values())
    factor, unit = _scale(picture.y, largest)
    words = any(isinstance(x, str) for line in found.values() for x in line)
    order = {x: i for i, x in enumerate(dict.fromkeys(x for line in found.values() for x in line))}
    for i, (name, line) in enumerate(list(found.items())[:MOST_LINES]):
        xs = sorted(line, key=order.__getitem__) if words else sorted(line)
        look: dict[str, Any] = {"color": HUES[i % len(HUES)], "linestyle": STYLES[i // len(HUES)]}
        label = f"{picture.series} = {_told(name)}"
        at = [order[x] for x in xs] if words else xs
        ax.plot(at, [line[x] / factor for x in xs], marker="o", markersize=4, linewidth=1.3, label=label, **look)
    if words:
        ax.set_xticks(list(order.values()), [str(x) for x in order])
    elif "x" in picture.log and min(min(line) for line in found.values()) > 0:
        ax.set_xscale("log", base=2)
        if len(order) <= MOST_TICKS:
            ax.set_xticks(sorted(order), [_told(x) for x in sorted(order)])
    if "y" in picture.log and min(min(line.values()) for line in found.values()) > 0:
        ax.set_yscale("log")
    else:
        ax.set_ylim(bottom=0.0)
    ax.set_xlabel(picture.x, fontsize=SIZE)
    ax.set_ylabel(f"{picture.y.rpartition('_')[0]}, {unit}" if unit else picture.y, fontsize=SIZE)
    ax.grid(color=palette.RULE, linewidth=0.4)
    ax.set_axisbelow(True)
    if picture.series is not None:
        left_out = len(found) - MOST_LINES
        title = f"the first {MOST_LINES} of {len(found)}" if left_out > 0 else None
        columns = 1 + (min(len(found), MOST_LINES) - 1) // 12
        ax.legend(fontsize=SIZE - 1, frameon=False, title=title, title_fontsize=SIZE - 1, ncols=columns)


def _told(value: Any) -> str:
    """A value of a column, short."""
    return "–" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _scale(column: str, largest: float) -> tuple[float, str]:
    """Size and name of the unit in which the largest value is easy to read; of a count, none."""
    known = BYTES if column.endswith("_bytes") else SCALES.get(column, ())
    return next(((size, unit) for size, unit in known if largest >= size), known[-1] if known else (1.0, ""))
