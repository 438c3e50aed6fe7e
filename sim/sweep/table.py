"""The table of a sweep: one row a point, in the order of the points; what says which point it is, then its outcome.

Rows are read off the file of finished points one by one, so that a table need not fit memory.
"""

from __future__ import annotations

import csv
import itertools
import weakref
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from hwmodels.errors import ConfigError
from sim.sweep.journal import Journal
from sim.sweep.outcome import Outcome
from sim.sweep.points import Labels, Point, Sweep, configured, described, telling

if TYPE_CHECKING:
    import pandas

    from sim.sweep.run import Counts

Row = tuple[Any, ...]
DIGEST_BYTES = 32
BATCH_ROWS = 8192
"""Of a Parquet file's row groups: always the same, so that the same table is the same file."""
FIGURES: dict[str, type[Any]] = {
    "time_s": float,
    "energy_j": float,
    "tokens_done": int,
    "limiter": str,
    "hbm_bytes": int,
    "l2_bytes": int,
    "sm_bytes": int,
    "smem_bytes": int,
    "tiles": str,
    "error": str,
}
"""{field of `Outcome`: type}."""


class Columns:
    """Names and types of what says which point a row is: workloads, hardware and configurations in the order in which
    their columns are first needed."""

    def __init__(self, shown: tuple[str, ...] = ()) -> None:
        self._shown = shown
        self._groups: tuple[dict[str, type[Any] | None], ...] = ({}, {}, {})

    def note(self, point: Point) -> None:
        """Have columns for what this point says of itself."""
        workload, config = described(point.workload), configured(point.config)
        hardware = point.hardware.labels()
        told = (
            (workload, telling(workload, self._shown)),
            (hardware, hardware),
            (config, telling(config, self._shown)),
        )
        for known, (values, names) in zip(self._groups, told, strict=True):
            for name in names:
                known[name] = _wider(known.get(name), values[name])

    @property
    def types(self) -> dict[str, type[Any]]:
        """{column: type}, in their order; text where there was no value."""
        merged: dict[str, type[Any]] = {}
        for group in self._groups:
            for name, kind in group.items():
                merged[name] = kind or str if name not in merged else _wider_type(merged[name], kind) or str
        return merged


def _wider(known: type[Any] | None, value: Any) -> type[Any] | None:
    return known if value is None else _wider_type(known, type(value))


def _wider_type(one: type[Any] | None, other: type[Any] | None) -> type[Any] | None:
    if one is None or other is None or one is other:
        return one or other
    return float if {one, other} == {int, float} else str


def labels(point: Point) -> Labels:
    """What a point says of itself, defaults included."""
    return described(point.workload) | point.hardware.labels() | configured(point.config)


class Table:
    """What came of a sweep. `counts`: points by where their outcomes are from."""

    def __init__(
        self,
        sweep: Sweep,
        columns: Columns,
        order: bytearray,
        journal: Journal,
        counts: Counts,
        folder: TemporaryDirectory[str] | None,
    ) -> None:
        self.types = columns.types | FIGURES
        """{column: type} in their order."""
        self.counts = counts
        self._sweep, self._order, self._journal = sweep, bytes(order), journal
        weakref.finalize(self, journal.close)
        self._folder = folder  # goes with the table, where its file of points is a temporary one

    def __len__(self) -> int:
        return len(self._order) // DIGEST_BYTES

    @property
    def columns(self) -> tuple[str, ...]:
        """Names, in their order."""
        return tuple(self.types)

    def __iter__(self) -> Iterator[Row]:
        own = list(self.types.items())[: -len(FIGURES)]
        for i, point in enumerate(self._sweep):
            said = labels(point)
            yield (*(_cell(said.get(name), kind) for name, kind in own), *self._outcome(i))

    @property
    def n_errors(self) -> int:
        """Points that could not be simulated."""
        return sum(self._outcome(i).error is not None for i in range(len(self)))

    def to_csv(self, path: Path) -> None:
        """Write it as CSV: numbers as short as they are exact, nothing where there is no value."""
        with path.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(self.columns)
            writer.writerows(self)

    def to_parquet(self, path: Path) -> None:
        """Write it as Parquet. Raises ConfigError where pyarrow is not installed."""
        check_parquet()
        import pyarrow
        from pyarrow import parquet

        kinds = {int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string(), bool: pyarrow.bool_()}
        schema = pyarrow.schema([(name, kinds[kind]) for name, kind in self.types.items()])
        rows = iter(self)
        with parquet.ParquetWriter(path, schema) as writer:
            while batch := list(itertools.islice(rows, BATCH_ROWS)):
                arrays = [
                    pyarrow.array(cells, field.type)
                    for cells, field in zip(zip(*batch, strict=True), schema, strict=True)
                ]
                writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))

    def to_pandas(self) -> pandas.DataFrame:
        """As a DataFrame; whole numbers stay whole where some are missing. Raises ConfigError where pandas is not
        installed."""
        try:
            import pandas
        except ImportError:
            raise ConfigError("table: pandas is not installed; pip install 'tilewalk[table]'") from None
        names = {int: "Int64", float: "float64", str: "object", bool: "boolean"}
        cells = list(zip(*self, strict=True)) or [()] * len(self.columns)
        series = {
            name: pandas.Series(values, dtype=names[self.types[name]])
            for name, values in zip(self.columns, cells, strict=True)
        }
        return pandas.DataFrame(series)

    def close(self) -> None:
        """End reading; the file of finished points stays, if it is not a temporary one."""
        self._journal.close()

    def discard(self) -> None:
        """Delete the file of finished points, when the table is where it should be."""
        self._journal.remove()

    def _outcome(self, i: int) -> Outcome:
        return self._journal[self._order[i * DIGEST_BYTES : (i + 1) * DIGEST_BYTES].hex()]


def check_parquet() -> None:
    """Raise ConfigError where Parquet cannot be written."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise ConfigError("table: pyarrow is not installed; pip install 'tilewalk[table]'") from None


def _cell(value: Any, kind: type[Any]) -> Any:
    return value if value is None or type(value) is kind else kind(value)
