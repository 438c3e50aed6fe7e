"""What `tilewalk study` shows: tables and findings on a console, as an object for JSON, and one chart."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sim.studies.study import Cell, Finding, Study
from sim.studies.study import Table as Rows
from viz import palette, words
from viz.terminal import show

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Console
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
LOG_RANGE = 8.0
"""Bars whose longest is so many times the shortest are drawn on a logarithmic axis."""

_TEXTS: dict[str, Callable[[Any], str]] = {
    "text": str,
    "count": lambda value: f"{value:,}",
    "s": words.time_text,
    "B": words.bytes_text,
    "FLOP": words.work_text,
    "FLOP/s": words.flops_text,
    "B/s": words.rate_text,
    "FLOP/B": lambda value: f"{words.three_digits(value)} FLOP/B",
    "ratio": lambda value: f"{words.three_digits(value)}{words.MULTIPLY}",
    "share": words.percent_text,
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
        show(console, "", Text(found.title, style="bold"), _table(found))
    show(console, "", Text("Found", style="bold"), _findings(study.findings))


def print_studies(studies: Mapping[str, str], console: Console) -> None:
    """One line a study."""
    table = _folding(["left", "left"], [list(studies), []], ["study", "what it compares"])
    for name, text in studies.items():
        table.add_row(name, text)
    show(console, table)


def _table(found: Rows) -> Table:
    """Headings take several lines before cells do."""
    units, heads = ([getattr(column, what) for column in found.columns] for what in ("unit", "name"))
    rows = [[cell_text(cell, unit) for cell, unit in zip(row, units, strict=True)] for row in found.rows]
    widest = [[row[i] for row in rows] + head.split() for i, head in enumerate(heads)]
    sides = ["left" if i == 0 or unit == "text" else "right" for i, unit in enumerate(units)]
    table = _folding(sides, widest, heads)
    for row in rows:
        table.add_row(*row)
    return table


def _findings(findings: Sequence[Finding]) -> Table:
    """Values first, so that what they are may take several lines."""
    table = _folding(["right", "left"], [[cell_text(each.value, each.unit) for each in findings], []])
    for each in findings:
        claim = f" (claimed: {each.claimed})" if each.claimed else ""
        table.add_row(cell_text(each.value, each.unit), f"{each.text}{claim}")
    table.show_header = False
    return table


def _folding(sides: Sequence[str], widest: Sequence[Sequence[str]], heads: Sequence[str] = ()) -> Table:
    """A table without lines whose columns are as wide as the texts of `widest`, if need be at the cost of others."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for i, (side, texts) in enumerate(zip(sides, widest, strict=True)):
        head = heads[i] if heads else ""
        table.add_column(head, justify=side, min_width=max(map(len, texts), default=1))  # type: ignore[arg-type]
    return table


# JSON.
def to_json(study: Study) -> dict[str, Any]:
    """The object that `--json` prints."""
    return dataclasses.asdict(study)


# Chart.
def figure(study: Study) -> Figure:
    """The study's chart on a new Figure (no global state)."""
    from matplotlib.figure import Figure

    found = study.tables[study.chart.table]
    numeric = all(isinstance(row[0], int | float) for row in found.rows)
    bars = 0 if numeric else len(found.rows) * (len(study.chart.ys) + 1)
    height_in = max(LEAST_HEIGHT_IN, 1.5 + BAR_IN * bars)
    sheet = Figure(figsize=(WIDTH_IN, height_in), dpi=DPI, layout="constrained", facecolor=palette.PAPER)
    sheet.suptitle(
        f"{study.question}\n{study.gpu}", fontsize=SIZE + 1, color=palette.INK, weight="bold", x=0.01, ha="left"
    )
    ax = sheet.add_subplot()
    palette.tidy(ax, SIZE)
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
    xs = found.column(found.columns[0].name)
    for name, colour in zip(ys, COLOURS, strict=False):
        points = [(x, y) for x, y in zip(xs, found.column(name), strict=True) if isinstance(y, int | float)]
        ax.plot(*zip(*points, strict=True), color=colour, marker="o", markersize=4, linewidth=1.4, label=name)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xticks([x for x in xs if isinstance(x, int | float)])
    _write_ticks(ax.xaxis, found.columns[0].unit)
    _write_ticks(ax.yaxis, _unit(found, ys[0]))
    ax.set_xlabel(found.columns[0].name, fontsize=SIZE)
    ax.grid(which="major", color=palette.RULE, linewidth=0.4)


def _draw_bars(ax: Axes, found: Rows, ys: Sequence[str]) -> None:
    """A group of bars for each row, from above."""
    names, unit, height = found.column(found.columns[0].name), _unit(found, ys[0]), 0.8 / len(ys)
    values = [value for name in ys for value in found.column(name) if isinstance(value, int | float)]
    logarithmic = min(values) > 0 and max(values) > LOG_RANGE * min(values)
    for i, (name, colour) in enumerate(zip(ys, COLOURS, strict=False)):
        for j, value in enumerate(found.column(name)):
            at = j + (i - (len(ys) - 1) / 2) * height
            known = isinstance(value, int | float)
            label = name if j == 0 else None
            ax.barh(at, float(value) if known else 0.0, height=0.9 * height, color=colour, label=label)  # type: ignore[arg-type]
            where = (float(value) if known else (min(values) if logarithmic else 0.0), at)  # type: ignore[arg-type]
            look: dict[str, Any] = {"fontsize": 0.85 * SIZE, "color": palette.INK, "va": "center"}
            ax.annotate(cell_text(value, unit), where, (3, 0), textcoords="offset points", **look)
    if logarithmic:
        ax.set_xscale("log")
    ax.set_xlim(min(values) / 2 if logarithmic else 0.0, max(values) * (2.5 if logarithmic else 1.15))
    ax.set_yticks(range(len(names)), [str(name) for name in names])
    ax.set_ylim(len(names) - 0.4, -0.6)
    _write_ticks(ax.xaxis, unit)
    ax.tick_params(axis="y", length=0)


def _write_ticks(axis: Any, unit: str) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: cell_text(int(value) if unit == "count" else value, unit)))
    axis.set_minor_formatter(NullFormatter())
