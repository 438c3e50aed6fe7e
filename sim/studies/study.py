"""What a case study gives: tables of labelled rows, findings computed from them, and what to draw.

Nothing here is worded by hand that a number could contradict: a finding is a label with a value, and where somebody
claims one, the claim stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hwmodels.errors import ConfigError

UNITS = ("text", "count", "s", "B", "FLOP", "FLOP/s", "B/s", "FLOP/B", "J", "W", "ratio", "share", "slope")
"""What a value is in; "ratio": how many times, "share": a part of 1, "slope": one change over
another, both relative."""

Cell = str | float | int | None
"""None: not to be had on this GPU, or there is none."""


@dataclass(frozen=True)
class Column:
    """One column: its heading, and what its values are in, one of `UNITS`."""

    name: str
    unit: str = "text"


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns, the first of which names the row."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def column(self, name: str) -> tuple[Cell, ...]:
        """The cells of a column. Raises `ConfigError` for a name that is none."""
        names = [column.name for column in self.columns]
        if name not in names:
            raise ConfigError(f"column = {name!r}: must be one of {', '.join(names)} (table {self.title})")
        return tuple(row[names.index(name)] for row in self.rows)


@dataclass(frozen=True)
class Finding:
    """One conclusion: what was found, as a value. `claimed`: what others say it is, in words."""

    text: str
    value: Cell
    unit: str
    claimed: str = ""


@dataclass(frozen=True)
class Chart:
    """What to draw of a table: columns `ys`, all in one unit, over the first column (numbers: lines on logarithmic
    axes; names: bars). With `roofs` (bytes a second, FLOP/s), a roofline: the one of `ys` over "intensity".
    """

    ys: tuple[str, ...]
    table: int = 0
    roofs: tuple[float, float] | None = None


@dataclass(frozen=True)
class Study:
    """A study as it came out on one GPU."""

    name: str
    question: str
    gpu: str
    tables: tuple[Table, ...]
    findings: tuple[Finding, ...]
    chart: Chart


def table(title: str, columns: dict[str, str], rows: Sequence[tuple[Cell, ...]]) -> Table:
    """A table of columns {heading: unit}."""
    return Table(title, tuple(Column(name, unit) for name, unit in columns.items()), tuple(rows))


def attempt(run: Callable[[], float]) -> float | None:
    """A number, or None where the GPU has no such kernel or not the memory."""
    try:
        return run()
    except ConfigError:
        return None


def ratio(one: Cell, other: Cell) -> float | None:
    """How many times `other` goes into `one`; None where either is missing."""
    if isinstance(one, int | float) and isinstance(other, int | float) and other:
        return one / other
    return None


def saved(before: Cell, after: Cell) -> float | None:
    """Part of `before` that is saved; negative where more is needed."""
    left = ratio(after, before)
    return None if left is None else 1.0 - left


def largest(cells: Iterable[Cell]) -> float | None:
    """The largest number among them, if there is one."""
    return max((cell for cell in cells if isinstance(cell, int | float)), default=None)


def last(cells: Iterable[Cell]) -> float | None:
    """The last number among them, if there is one."""
    return next((cell for cell in reversed(tuple(cells)) if isinstance(cell, int | float)), None)


def row_of(table: Table, column: str, value: Cell) -> Cell:
    """First cell of the row with this value in a column; None for None."""
    return None if value is None else table.rows[table.column(column).index(value)][0]


def counted(n: int, noun: str) -> str:
    """1, "row" -> "1 row"."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def first_where(table: Table, wanted: Callable[..., bool], *columns: str, from_last: bool = False) -> Cell:
    """First cell of the first row (or the last) for which `wanted` holds of some columns' cells, all there; None
    if there is no such row."""
    found = [
        row[0]
        for row, cells in zip(table.rows, zip(*(table.column(name) for name in columns), strict=True), strict=True)
        if None not in cells and wanted(*cells)
    ]
    return found[-1 if from_last else 0] if found else None
