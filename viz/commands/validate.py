"""`tilewalk validate`: a table of measured kernels against the simulator."""

from __future__ import annotations

import json as json_format
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hwmodels.catalog import load_gpu
from hwmodels.errors import ConfigError
from hwmodels.measured import measured_path
from sim import validation
from viz.commands import outputs
from viz.commands.progress import COMPILING, Status, engine_needs_compiling, in_background, telling
from viz.commands.values import optional_integer

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from hwmodels.spec import Gpu
    from sim.validation import Report

SHIPPED = (
    "gemm", "tile_sweep", "counters", "graph_gemm", "event_gemm",
    "attention", "elementwise", "extra_ops", "decoder_stack", "decoder_stack_kernels", "training_steps",
)  # fmt: skip
Heads = Sequence[str]
Rows = Sequence[Sequence[str]]

MAX_LIMIT = 10**6
MAX_REASONS = 8
MOST_NAME, GAP = 24, 2
"""Columns of the terminal that a group's name takes before it is folded, and between columns."""
NAME_HEAD = "kernel or tile"
"""Heading in `Report.worst_table`."""


def validate(
    measurements: str | None,
    gpu: str,
    sets: list[str],
    *,
    tile: str | None,
    limit: str | None,
    markdown: str | None,
    json: bool,
) -> None:
    """Print the errors of each group, or write them. Raises `ConfigError`."""
    n_rows = optional_integer("--limit", limit, MAX_LIMIT)
    files = outputs.checked({"markdown": markdown})
    machine = load_gpu(gpu, sets)
    tables = [Path(measurements)] if measurements is not None else shipped_tables(machine)
    if json and len(tables) > 1:
        raise ConfigError("--json: prints one table's report; name it with --measurements")
    reports = []
    for table in tables:
        with telling() as status:
            reports.append(in_background(partial(replayed, machine, table, tile, n_rows, status)))
    for path in files.values():
        _write_page(reports, path)
    if json:
        typer.echo(json_format.dumps(reports[0].to_dict()))
        return
    from viz.commands.console import console

    for report in reports:
        print_report(report, console())


def shipped_tables(gpu: Gpu) -> list[Path]:
    """The measured tables that come with the package for this GPU. Raises `ConfigError` where there are none."""
    found = []
    for table in SHIPPED:
        with suppress(ConfigError):
            found.append(measured_path(gpu.name, table))
    return found or [measured_path(gpu.name, SHIPPED[0])]


def replayed(gpu: Gpu, measurements: Path, tile: str | None, limit: int | None, status: Status) -> Report:
    """The report; says how far it is."""
    status.text = COMPILING if engine_needs_compiling() else "replaying"

    def progress(done: int, total: int) -> None:
        status.text, status.done, status.total = "replaying rows", done, total

    return validation.validate(gpu, measurements, tile=tile, limit=limit, progress=progress)


def _write_page(reports: Sequence[Report], path: Path) -> None:
    from viz.files import replacing

    with replacing(path) as temporary:
        temporary.write_text(validation.markdown(reports), encoding="utf-8")


def print_report(report: Report, console: Console) -> None:
    """Errors by group, worst rows, and what was skipped."""
    from rich.text import Text

    from viz.terminal import show

    show(console, Text(f"{report.kind} table {report.source} on {report.gpu}", style="bold"))
    n_compared = report.overall["n"]
    said = (
        f"{n_compared:,} rows compared, {len(report.skipped):,} skipped. Errors are of time unless they say otherwise."
    )
    show(console, *map(Text, (said, *report.notes)))
    if n_compared:
        heads, rows = report.table()
        for columns in _fitting(heads, rows, console.width):
            part = [heads[i] for i in columns], [[row[i] for i in columns] for row in rows]
            show(console, "", _table(*part, console.width))
        if report.overall["worst"]:
            show(console, "", Text("Worst rows", style="bold"), *_worst(*report.worst_table()))
    if report.skipped:
        show(console, "", Text("Rows skipped", style="bold"), *map(Text, _reasons(report)))


def _fitting(heads: Heads, rows: Rows, width: int) -> list[list[int]]:
    """Indices of the columns of each table that fits the console; all begin with the group's name."""
    from viz.terminal import columns_that_fit

    return columns_that_fit(_least_widths(heads, rows), width)


def _least_widths(heads: Heads, rows: Rows) -> list[int]:
    """Characters each column needs: headings and the names of groups may be folded between words, figures not."""
    widest = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = [min(widest[0], MOST_NAME), *widest[1:]]
    return [max(*map(len, head.split()), cell) for head, cell in zip(heads, cells, strict=True)]


def _table(heads: Heads, rows: Rows, width: int) -> Table:
    """Headings on one line if they fit `width`, else folded."""
    from rich.table import Table
    from rich.text import Text

    widths = _least_widths(heads, rows)
    full = [max(len(head), least) for head, least in zip(heads, widths, strict=True)]
    if sum(full) + GAP * (len(heads) - 1) <= width:
        widths = full
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    for i, head in enumerate(heads):
        table.add_column(head, justify="right" if i else "left", vertical="bottom", width=widths[i], overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _worst(heads: Heads, rows: Rows) -> Iterator[RenderableType]:
    """The figures of a row on one line, its kernel's name, which may be long, below."""
    from rich.padding import Padding
    from rich.text import Text

    at = heads.index(NAME_HEAD)
    figures = [[cell for i, cell in enumerate(row) if i != at] for row in (heads, *rows)]
    widths = [max(map(len, column)) for column in zip(*figures, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in figures]
    yield Text(lines[0], style="bold")
    for line, row in zip(lines[1:], rows, strict=True):
        yield Text(line)
        yield Padding(Text(row[at], style="dim", overflow="fold"), (0, 0, 0, widths[0] + GAP))


def _reasons(report: Report) -> Iterator[str]:
    reasons = report.skipped_reasons()
    yield from (f"{n:>6,}  {reason}" for reason, n in reasons[:MAX_REASONS])
    others = [n for _, n in reasons[MAX_REASONS:]]
    if others:
        yield f"{sum(others):>6,}  for {len(others)} other reasons; --json has them all"
