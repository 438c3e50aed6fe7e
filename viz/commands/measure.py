"""`tilewalk measure`: tables of kernels measured on this machine's GPU."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from hwmodels.errors import ConfigError
from sim.measure.catalog import TABLES
from sim.measure.driver import Summary, run
from sim.measure.machine import facts, lacking, require_gpu
from sim.measure.table import Table
from viz.commands.console import console
from viz.commands.progress import telling
from viz.commands.values import refused

S_PER_MIN = 60


def list_tables(only: str | None) -> None:
    """Print what can be measured, how many cases, and about how long it takes. Raises `ConfigError`."""
    rows = [("table", "cases", "minutes", "quick", "what")]
    for table in chosen(only):
        n_all, n_quick = len(table.cases(False)), len(table.cases(True))
        rows.append(
            (table.name, f"{n_all:,}", f"{n_all * table.case_s / S_PER_MIN:.1f}", f"{n_quick:,}", _about(table))
        )
    _print(rows)


def measure(folder: str, only: str | None, quick: bool) -> None:
    """Measure into `folder` and print what was done. Raises `ConfigError`."""
    tables = chosen(only)
    require_gpu()
    target = _created(folder)
    with telling() as status:

        def tell(table: str, done: int, total: int, left_s: float | None) -> None:
            status.text, status.done, status.total, status.left_s = f"measuring {table}", done, total, left_s

        command = shlex.join(["tilewalk", *sys.argv[1:]])
        summaries = run(target, tables, quick, facts(command), tell, lacking)
    _print([("table", "rows", "measured now", "skipped", ""), *map(_summary, summaries)])
    console().print(f"Tables and PROTOCOL.md in {target}", markup=False)


def chosen(only: str | None) -> list[Table]:
    """The tables named, in the order of the catalog. Raises `ConfigError` for a name that is none."""
    if only is None:
        return list(TABLES.values())
    names = [name.strip() for name in only.split(",")]
    unknown = next((name for name in names if name not in TABLES), None)
    if unknown is not None:
        raise refused("--only", only, f"names of tables ({', '.join(TABLES)}) with commas between; {unknown!r} is none")
    return [table for name, table in TABLES.items() if name in names]


def _created(folder: str) -> Path:
    """The folder, made if need be. Raises `ConfigError` where it cannot be."""
    try:
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise ConfigError(f"--output = {folder!r}: must be a folder that can be written ({said})") from None
    return target


def _about(table: Table) -> str:
    needs = f"; needs {', '.join(table.needs)}" if table.needs else ""
    return table.about + needs


def _summary(summary: Summary) -> tuple[str, ...]:
    counts = (f"{summary.n_rows:,}", f"{summary.n_measured:,}", f"{summary.n_skipped:,}")
    return (summary.table, *counts, summary.given_up)


def _print(rows: Sequence[tuple[str, ...]]) -> None:
    from rich.table import Table as Printed
    from rich.text import Text

    printed = Printed(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    last = len(rows[0]) - 1
    for i, head in enumerate(rows[0]):
        printed.add_column(head, justify="right" if 0 < i < last else "left", no_wrap=i < last, vertical="top")
    for row in rows[1:]:
        printed.add_row(*map(Text, row))
    console().print(printed)
