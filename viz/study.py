"""What `tilewalk study` shows: tables and findings on a console, as an object for JSON, and one chart."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sim.studies.study import Cell, Finding, Study
from sim.studies.study import Table as Rows
from viz import palette, words
from viz.terminal import grid, grids, show

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Console, RenderableType
    from rich.table import Table

NONE = "–"
WIDTH_IN, DPI, SIZE = 8.6, 150, 9.0
LEAST_HEIGHT_IN, BAR_IN = 4.4, 0.17
COLOURS = (
    palette.BLUE,
    palette.ORANGE,
    palette.GREEN,
    palette.PURPLE,
    palette.SKY,
    palette.VERMILLION,
    palette.GREY,
    palette.YELLOW,
)

_TEXTS: dict[str, Callable[[Any], str]] = {
    "text": str,
    "count": lambda value: f"{value:,}",
    "s": words.time_text,
    "B": words.bytes_text,
    "FLOP": words.work_text,
    "FLOP/s": words.flops_text,
    "B/s": words.rate_text,
    "FLOP/B": lambda value: f"{words.three_digits(value)} FLOP/B",
    "J": words.energy_text,
    "W": words.power_text,
    "ratio": lambda value: f"{words.three_digits(value)}{words.MULTIPLY}",
    "share": words.percent_text,
    "slope": lambda value: f"{round(value, 2) + 0.0:+.2f}" if abs(value) >= 0.005 else "0.00",
}


def cell_text(value: Cell, unit: str) -> str:
    """A value as people read it."""
    if value is None:
        return NONE
    return value if isinstance(value, str) else _TEXTS[unit](value)


# Console.
def print_study(study: Study, console: Console) -> None:
    """Question, tables, findings."""
    from rich.text import Text

    show(console, Text(f"{study.question}, on {study.gpu}", style="bold"))
    for found in study.tables:
        show(console, "", Text(found.title, style="bold"), *_tables(found, console.width))
    show(console, "", Text("Found", style="bold"), _findings(study.findings))


def print_studies(studies: Mapping[str, str], console: Console) -> None:
    """One line a study."""
    table = grid(("study", "left"))
    table.add_column("what it compares")
    for name, text in studies.items():
        table.add_row(name, text)
    show(console, table)


def _tables(found: Rows, width: int) -> Iterator[RenderableType]:
    """The rows in one table, or in as many as a console of this width needs."""
    rows = [[cell_text(cell, c.unit) for cell, c in zip(row, found.columns, strict=True)] for row in found.rows]
    left = [i == 0 or column.unit == "text" for i, column in enumerate(found.columns)]
    heads = [(c.name, "left" if is_left else "right") for c, is_left in zip(found.columns, left, strict=True)]
    return grids(heads, rows, width, folded=True)


def _findings(findings: Sequence[Finding]) -> Table:
    """Values first; what they are may take several lines."""
    table = grid(("", "right"))
    table.show_header = False
    table.add_column("")
    for each in findings:
        claim = f" (claimed: {each.claimed})" if each.claimed else ""
        table.add_row(cell_text(each.value, each.unit), f"{each.text}{claim}")
    return table


# JSON.
def to_json(study: Study) -> dict[str, Any]:
    """The object that `--json` prints."""
    return dataclasses.asdict(study)


# CSV.
def one_table(tables: Sequence[Rows]) -> Iterator[Sequence[Cell]]:
    """Heading and rows; of several tables in one, with each one's title and the unit of its second column."""
    if len(tables) == 1:
        yield [column.name for column in tables[0].columns]
        yield from tables[0].rows
        return
    heads = dict.fromkeys(column.name for table in tables for column in table.columns[1:])
    yield ["table", "name", "unit", *heads]
    for table in tables:
        names = [column.name for column in table.columns]
        for row in table.rows:
            cells = dict(zip(names, row, strict=True))
            yield [table.title, row[0], table.columns[1].unit, *(cells.get(head) for head in heads)]


# Chart.
def figure(study: Study) -> Figure:
    """The study's chart on a new Figure (no global state)."""
    from matplotlib.figure import Figure

    found = study.tables[study.chart.table]
    numeric = all(isinstance(row[0], int | float) for row in found.rows) or study.chart.roofs is not None
    bars = 0 if numeric else len(found.rows) * (len(study.chart.ys) + 1)
    height_in = max(LEAST_HEIGHT_IN, 1.5 + BAR_IN * bars)
    sheet = Figure(figsize=(WIDTH_IN, height_in), dpi=DPI, layout="constrained", facecolor=palette.PAPER)
    title = f"{study.question}\n{found.title}, {study.gpu}"
    sheet.suptitle(title, fontsize=SIZE + 1, color=palette.INK, weight="bold", x=0.01, ha="left")
    ax = sheet.add_subplot()
    palette.tidy(ax, SIZE)
    if study.chart.roofs:
        _draw_roofline(ax, found, study.chart.ys[0], *study.chart.roofs)
        return sheet
    (_draw_lines if numeric else _draw_bars)(ax, found, study.chart.ys)
    ax.legend(
        fontsize=SIZE,
        frameon=False,
        labelcolor=palette.INK,
        ncols=min(4, len(study.chart.ys)),
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        borderaxespad=0.2,
    )
    return sheet


def save_figure(study: Study, path: str | os.PathLike[str]) -> None:
    """Draw `figure` into a .png, .svg or .pdf file, whole or not at all.

    Raises `ConfigError` for another suffix or a path that cannot be written.
    """
    from viz.sheet import write_figure

    write_figure(lambda: figure(study), path)


def _unit(found: Rows, name: str) -> str:
    return next(column.unit for column in found.columns if column.name == name)


def _draw_lines(ax: Axes, found: Rows, ys: Sequence[str]) -> None:
    """Columns over the first, both axes logarithmic."""
    from matplotlib.ticker import LogLocator

    xs = found.column(found.columns[0].name)
    for name, colour in zip(ys, COLOURS, strict=False):
        points = [(x, y) for x, y in zip(xs, found.column(name), strict=True) if isinstance(y, int | float)]
        ax.plot(*zip(*points, strict=True), color=colour, marker="o", markersize=4, linewidth=1.4, label=name)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xticks([x for x in xs if isinstance(x, int | float)])
    _write_ticks(ax.xaxis, found.columns[0].unit)
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    _write_ticks(ax.yaxis, _unit(found, ys[0]))
    ax.set_xlabel(found.columns[0].name, fontsize=SIZE)
    ax.grid(which="major", color=palette.RULE, linewidth=0.4)


def _draw_bars(ax: Axes, found: Rows, ys: Sequence[str]) -> None:
    """A group of bars for each row, from above; beside each its value."""
    names, unit, height = found.column(found.columns[0].name), _unit(found, ys[0]), 0.8 / len(ys)
    look: dict[str, Any] = {"fontsize": 0.85 * SIZE, "color": palette.INK, "va": "center"}
    for i, (name, colour) in enumerate(zip(ys, COLOURS, strict=False)):
        for j, value in enumerate(found.column(name)):
            at, length = j + (i - (len(ys) - 1) / 2) * height, value if isinstance(value, int | float) else 0.0
            ax.barh(at, length, height=0.9 * height, color=colour, label=None if j else name)
            ax.annotate(cell_text(value, unit), (length, at), (3, 0), textcoords="offset points", **look)
    ax.margins(x=0.12)
    ax.set_xlim(left=0.0)
    ax.set_yticks(range(len(names)), [str(name) for name in names])
    ax.set_ylim(len(names) - 0.4, -0.6)
    _write_ticks(ax.xaxis, unit)
    ax.tick_params(axis="y", length=0)


def _draw_roofline(ax: Axes, found: Rows, reached: str, bandwidth: float, peak: float) -> None:
    """Points under the roofs of HBM and tensor cores."""
    xs, ys = ([float(x or 0.0) for x in found.column(name)] for name in ("intensity", reached))
    low, high = min(xs) / 2, 3 * max(*xs, peak / bandwidth)
    ax.plot([low, peak / bandwidth, high], [low * bandwidth, peak, peak], color=palette.LEVELS["hbm"], linewidth=1.2)
    for i, (name, x, y) in enumerate(zip(found.column(found.columns[0].name), xs, ys, strict=True)):
        ax.plot([x], [y], "o", color=COLOURS[i % len(COLOURS)], markersize=6, label=name)
    ax.legend(fontsize=SIZE, frameon=False, labelcolor=palette.INK, loc="lower right")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(low, high)
    _write_ticks(ax.xaxis, "FLOP/B")
    _write_ticks(ax.yaxis, _unit(found, reached))
    ax.grid(which="major", color=palette.RULE, linewidth=0.4)


def _write_ticks(axis: Any, unit: str) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: cell_text(int(value) if unit == "count" else value, unit)))
    axis.set_minor_formatter(NullFormatter())
