"""Pictures of hardware variants: a tornado of levers, a curve or heatmap of a scan, else the study's own chart."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.studies.study import Study, Table
from viz import palette, words
from viz.study import SIZE, WIDTH_IN, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BAR_IN, LEAST_IN = 0.3, 3.2
SMALLEST_SHOWN = 0.0005
"""Of a change of time; what is less is no bar."""
DPI = 150
LEGEND: dict[str, Any] = {"fontsize": SIZE, "frameon": False, "ncols": 3, "loc": "lower left", "borderaxespad": 0.2}
LEGEND["bbox_to_anchor"] = (0.0, 1.0)
"""Above the axes."""


def save_figure(study: Study, path: str | os.PathLike[str]) -> None:
    """Draw a study of `sim.studies.variants` into a .png, .svg or .pdf file, whole or not at all.

    Raises `ConfigError` for another suffix or a path that cannot be written."""
    from viz.sheet import write_figure

    write_figure(lambda: drawn(study), path)


def drawn(study: Study) -> Figure:
    """The picture on a new Figure."""
    table = study.tables[0]
    if study.name == "sensitivity":
        return _tornado(study, table)
    axes = [column.name for column in table.columns[: -len(SCANNED)]]
    if study.name == "scan":
        return _heatmap(study, table, axes) if len(axes) == 2 else _curve(study, table)
    return figure(study)


SCANNED = ("time", "over the base's", "energy", "limiter")
"""Columns of a scan behind its axes."""


def _sheet(study: Study, height_in: float, below: str) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    sheet = Figure(figsize=(WIDTH_IN, height_in), dpi=DPI, layout="constrained", facecolor=palette.PAPER)
    title = f"{study.question}\n{below} on {study.gpu}"
    sheet.suptitle(title, fontsize=SIZE + 1, color=palette.INK, weight="bold", x=0.01, ha="left")
    ax = sheet.add_subplot()
    palette.tidy(ax, SIZE)
    return sheet, ax


def _tornado(study: Study, table: Table) -> Figure:
    """Change of time by a step down and up of each lever, the longest bars above; a mark where it is doubled."""
    names = [column.name for column in table.columns]
    rows = [row for row in table.rows if any(isinstance(cell, float) and _tells(cell) for cell in row[1:4])]
    sheet, ax = _sheet(study, max(LEAST_IN, 1.5 + BAR_IN * len(rows)), "change of time")
    for at, row in enumerate(rows):
        for cell, colour, label in zip(row[1:3], (palette.ORANGE, palette.BLUE), names[1:3], strict=True):
            if isinstance(cell, float):
                ax.barh(at, 100 * (cell - 1), height=0.62, color=colour, label=None if at else label)
        if isinstance(row[3], float):
            look: dict[str, Any] = {"marker": "D", "markersize": 4.5, "color": palette.INK, "linestyle": "none"}
            ax.plot([100 * (row[3] - 1)], [at], label=None if at else names[3], **look)
    ax.axvline(0.0, color=palette.INK, linewidth=0.8)
    ax.set_yticks(range(len(rows)), [str(row[0]) for row in rows])
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_xlabel("change of time, %", fontsize=SIZE)
    ax.grid(axis="x", color=palette.RULE, linewidth=0.4)
    ax.set_axisbelow(True)
    ax.tick_params(axis="y", length=0)
    shown = dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    ordered = [name for name in names[1:4] if name in shown]
    ax.legend([shown[name] for name in ordered], ordered, **LEGEND)
    return sheet


def _tells(cell: float) -> bool:
    return abs(cell - 1) >= SMALLEST_SHOWN


def _curve(study: Study, table: Table) -> Figure:
    """Time over one axis, coloured by what limits it."""
    points = [(float(row[0] or 0.0), float(row[1]), str(row[4])) for row in table.rows if isinstance(row[1], float)]
    sheet, ax = _sheet(study, 4.4, "time")
    scale = _scale(max(y for _, y, _ in points))
    ax.plot(
        [x for x, _, _ in points], [y * scale[0] for _, y, _ in points], color=palette.RULE, linewidth=1.2, zorder=1
    )
    limiters = list(dict.fromkeys(limiter for _, _, limiter in points))
    for limiter, colour in zip(limiters, HUES * len(limiters), strict=False):
        own = [(x, y * scale[0]) for x, y, named in points if named == limiter]
        ax.plot(*zip(*own, strict=True), "o", color=colour, markersize=5, label=f"limited by {limiter}")
    ax.set_xlabel(table.columns[0].name, fontsize=SIZE)
    ax.set_ylabel(f"time, {scale[1]}", fontsize=SIZE)
    ax.set_ylim(0.0, 1.08 * scale[0] * max(y for _, y, _ in points))
    ax.grid(color=palette.RULE, linewidth=0.4)
    ax.legend(**LEGEND)
    return sheet


HUES = (palette.BLUE, palette.ORANGE, palette.GREEN, palette.PURPLE, palette.SKY, palette.GREY)


def _scale(largest_s: float) -> tuple[float, str]:
    """Factor and unit in which times up to this are easy to read."""
    known = ((1.0, "s"), (1e-3, "ms"))
    return next(((1 / size, unit) for size, unit in known if largest_s >= size), (1e6, "µs"))


def _heatmap(study: Study, table: Table, axes: list[str]) -> Figure:
    """Time over the base's at each combination of two axes, written into its cell."""
    xs, ys = (sorted({float(row[i] or 0.0) for row in table.rows}) for i in (0, 1))
    grid = np.full((len(ys), len(xs)), math.nan)
    for row in table.rows:
        if isinstance(row[3], float):
            grid[ys.index(float(row[1] or 0.0)), xs.index(float(row[0] or 0.0))] = row[3]
    sheet, ax = _sheet(study, max(LEAST_IN, 1.6 + 0.34 * len(ys)), "time over the base's")
    ax.imshow(grid, origin="lower", aspect="auto", cmap="cividis_r")
    middle = (np.nanmin(grid) + np.nanmax(grid)) / 2
    size = max(4.5, min(SIZE, 90 / len(xs)))
    for j, i in np.ndindex(grid.shape):
        value = float(grid[j, i])
        text = "–" if math.isnan(value) else words.three_digits(value)
        colour = palette.INK if math.isnan(value) or value < middle else palette.PAPER
        ax.text(i, j, text, ha="center", va="center", fontsize=size, color=colour)
    ax.set_xticks(range(len(xs)), [f"{x:g}" for x in xs])
    ax.set_yticks(range(len(ys)), [f"{y:g}" for y in ys])
    ax.set_xlabel(axes[0], fontsize=SIZE)
    ax.set_ylabel(axes[1], fontsize=SIZE)
    return sheet
