"""Tables on disk while they grow: read, added to, and written whole or not at all."""

from __future__ import annotations

import csv
import io
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from hwmodels.errors import ConfigError
from sim.measure.table import Case, Row


class Store:
    """The rows of one CSV file. Every `add` replaces the file by a complete one.

    Raises ConfigError where a file is there already and is no such table.
    """

    def __init__(self, path: Path, columns: Sequence[str]):
        self.path, self.columns = path, tuple(columns)
        self.rows = self._read() if path.exists() else []
        self._known: dict[tuple[str, ...], set[tuple[str, ...]]] = {}

    def add(self, rows: Iterable[Row]) -> None:
        """Append rows; columns that a row lacks stay empty."""
        new = [{column: _cell(row.get(column, "")) for column in self.columns} for row in rows]
        self.rows += new
        self._known.clear()
        text = io.StringIO()
        table = csv.DictWriter(text, self.columns, lineterminator="\n")
        table.writeheader()
        table.writerows(self.rows)
        replace(self.path, text.getvalue())

    def has(self, case: Case) -> bool:
        """Whether a row agrees with the case in all of its columns."""
        columns = tuple(case)
        if columns not in self._known:
            self._known[columns] = {tuple(row[column] for column in columns) for row in self.rows}
        return tuple(map(_cell, case.values())) in self._known[columns]

    def _read(self) -> list[dict[str, str]]:
        try:
            with self.path.open(encoding="utf-8", newline="") as file:
                table = csv.DictReader(file)
                columns, rows = tuple(table.fieldnames or ()), list(table)
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise ConfigError(f"{self.path}: cannot be continued ({error})") from None
        if columns != self.columns or any(None in row.values() or None in row for row in rows):
            raise ConfigError(f"{self.path}: is no table of this version's measurements; move it away to measure anew")
        return rows


def replace(path: Path, text: str) -> None:
    """Write `text` to `path` by way of a temporary file beside it."""
    number, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(number, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        Path(temporary).chmod(0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _cell(value: object) -> str:
    return "" if value is None else str(value)
