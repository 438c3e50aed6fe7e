"""The rows a calibration uses: read from tables, sorted into what is fitted and what is judged, drawn by strata.

Fitted are plain kernels (rows aligned, no epilogue, nothing spilled, L2 cold, A and B row by row along k; of each
family the data type with most rows) of shapes whose hash is even; the same of odd hash are judged. All three kinds of
table of `sim.validation.tables` are read, and those of microbenchmarks (columns bench, param1, param2, value, unit).
"""

from __future__ import annotations

import csv
import hashlib
import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hwmodels.errors import ConfigError
from sim.schedule.config import KernelConfig
from sim.validation.expected import kernel_class
from sim.validation.groups import is_held_out, is_misaligned, shape_name
from sim.validation.replay import Case, case_or_reason
from sim.validation.tables import MAX_FILE_BYTES, Row, Table, kinds_by_columns, read_table
from sim.validation.timed import recognised

if TYPE_CHECKING:
    from hwmodels.spec import Gpu

BENCH_COLUMNS = ("bench", "param1", "param2", "value", "unit")
DRAWN_ROWS = 400
"""Rows of even, and as many of odd hash, that are drawn unless all are asked for."""
MOST_ITERATIONS = 400_000
"""k-iterations of all CTAs (0.1 s to simulate) beyond which a kernel is not drawn."""
LEAST_DRAWN = 4
"""Rows of a stratum that are always drawn, if it has them."""
SEED = 1
_PEEK_BYTES = 2**16


@dataclass(frozen=True)
class Bench:
    """One line of a table of microbenchmarks. `params` are the parts of both parameter columns, name=value or not."""

    name: str
    params: tuple[str, ...]
    value: str
    unit: str
    file: str

    def param(self, name: str) -> float:
        """The number behind `name=`, NaN where there is none."""
        text = next((part[len(name) + 1 :] for part in self.params if part.startswith(f"{name}=")), "nan")
        return number(text)

    @property
    def number(self) -> float:
        """The value, NaN where it is no number."""
        return number(self.value)


def number(text: str) -> float:
    """The number a cell holds, NaN where it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


@dataclass(frozen=True)
class Item:
    """One measured kernel to fit or to judge by."""

    row: Row
    case: Case
    config: KernelConfig
    table: str
    """Kind of table."""
    fitted: bool
    """Whether its shape's hash is even."""

    @property
    def shape(self) -> str:
        """m x n x k."""
        return shape_name(self.row.inputs)

    @property
    def iterations(self) -> float:
        """k-iterations of all CTAs, about: what simulating it costs."""
        inputs, config = self.row.inputs, self.config
        return inputs.m * inputs.n * inputs.k / (config.block_m * config.block_n * config.block_k)

    @property
    def family(self) -> str:
        """Kernel family, with what it loads and multiplies by where that is not the family's own."""
        own = ("cp_async" if self.config.family == "multistage" else "tma", "wgmma")
        others = [part for part in (self.config.loads, self.config.mma) if part not in own]
        return " ".join([self.config.family, *others]).replace("_", ".").replace("split.k", "split_k")

    @property
    def stratum(self) -> tuple[str, ...]:
        """What rows are drawn by: table, kernel family, data type, class of shape."""
        inputs = self.row.inputs
        return self.table, self.family, *_class(inputs.dtype, inputs.m, inputs.n, inputs.k)


def _class(dtype: str, m: int, n: int, k: int) -> tuple[str, str]:
    found = kernel_class("", dtype, m, n, k)
    return found.dtype, found.shape


@dataclass(frozen=True)
class Data:
    """Everything read: usable rows, microbenchmarks, why other rows are not used, and a digest of the files."""

    items: tuple[Item, ...]
    benches: tuple[Bench, ...]
    unused: dict[str, int]
    """Reason -> rows."""
    files: tuple[str, ...]
    digest: str

    @property
    def counted_gb_per_s(self) -> float:
        """The most that L2 sent to a counted kernel over its whole time; 0 where nothing was counted."""
        rows = (item.row.measured for item in self.items)
        return max((row.l2_read_bytes / row.time_us / 1e3 for row in rows if row.l2_read_bytes), default=0.0)


def read(paths: Sequence[Path], gpu: Gpu) -> Data:
    """Read tables and folders of tables. Raises ConfigError for a missing or broken one, and where no row is usable."""
    files = [file for path in paths for file in _files(path)]
    items: list[Item] = []
    benches: list[Bench] = []
    unused: dict[str, int] = {}
    digest = hashlib.sha256()
    for file in files:
        if _header(file) == BENCH_COLUMNS:
            benches += _read_benches(file)
        else:
            _sort_rows(read_table(file), gpu, items, unused)
        digest.update(file.read_bytes())
    items = _commonest_types(items, unused)
    if not items:
        more = f" ({'; '.join(f'{n} rows: {reason}' for reason, n in unused.items())})" if unused else ""
        raise ConfigError(f"tables = {_names(paths)}: must hold measured kernels that can be simulated{more}"[:600])
    return Data(tuple(items), tuple(benches), unused, tuple(file.name for file in files), digest.hexdigest())


def _names(paths: Iterable[Path]) -> str:
    return ", ".join(str(path) for path in paths)


def _files(path: Path) -> list[Path]:
    """A file itself; of a folder the tables in it, other CSV files being none of ours."""
    if not path.is_dir():
        return [path]
    found = [file for file in sorted(path.glob("*.csv")) if _header(file) == BENCH_COLUMNS or _is_kernels(file)]
    if not found:
        raise ConfigError(f"tables = {path}: a folder must hold at least one CSV table of kernels or microbenchmarks")
    return found


def _header(file: Path) -> tuple[str, ...]:
    """The columns of a file, none where it cannot be read (`read_table` then says why)."""
    try:
        with file.open("rb") as stream:
            line = stream.read(_PEEK_BYTES).decode("utf-8-sig", "replace").partition("\n")[0]
        return tuple(column.strip() for column in next(csv.reader([line]), []))
    except (OSError, ValueError, csv.Error):
        return ()


def _is_kernels(file: Path) -> bool:
    header = list(_header(file))
    return "time_us" in header and bool(kinds_by_columns(header)) and recognised(file) is None


def _read_benches(file: Path) -> list[Bench]:
    """Lines of a table of microbenchmarks; raises ConfigError for one that is no text or far too long."""
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"tables = {file}: must be at most {MAX_FILE_BYTES} bytes")
        with file.open(encoding="utf-8-sig", newline="") as stream:
            lines = [cells for cells in csv.reader(stream) if cells][1:]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"tables = {file}: cannot be read as a CSV file in UTF-8 ({error})") from None
    whole = [cells for cells in lines if len(cells) == len(BENCH_COLUMNS)]
    return [Bench(c[0], (*c[1].split(";"), *c[2].split(";")), c[3], c[4], file.name) for c in whole]


def _sort_rows(table: Table, gpu: Gpu, items: list[Item], unused: dict[str, int]) -> None:
    """Add a table's usable rows to `items`, and count the others by reason."""
    for skipped in table.skipped:
        _count(unused, str(skipped["reason"]))
    for row in table.rows:
        found = _item(row, table.kind, gpu)
        if isinstance(found, str):
            _count(unused, found)
        else:
            items.append(found)


def _count(unused: dict[str, int], reason: str) -> None:
    unused[reason] = unused.get(reason, 0) + 1


def _item(row: Row, kind: str, gpu: Gpu) -> Item | str:
    """The row as it is used, or why it is not."""
    case = case_or_reason(row.inputs, gpu, None)
    if isinstance(case, str) or case.config is None:
        return str(case)
    other = _not_plain(row)
    return other or Item(row, case, case.config, kind, not is_held_out(row.inputs))


def _not_plain(row: Row) -> str:
    inputs = row.inputs
    reasons = {
        "has a fused epilogue": inputs.op != "mm",
        "layout is not tn": inputs.layout != "tn",
        "L2 is warm": inputs.l2 == "warm",
        "spills registers": bool(inputs.spills),
        "rows are not aligned to 16 bytes": is_misaligned(inputs),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _commonest_types(items: list[Item], unused: dict[str, int]) -> list[Item]:
    """The items of each kernel family's commonest data type; others have costs of their own, and judge nothing here."""
    counts: dict[tuple[str, str], int] = {}
    for item in items:
        key = item.config.family, item.row.inputs.dtype
        counts[key] = counts.get(key, 0) + 1
    commonest: dict[str, str] = {}
    for family, dtype in sorted(counts, key=lambda key: -counts[key]):
        commonest.setdefault(family, dtype)
    kept = [item for item in items if item.row.inputs.dtype == commonest[item.config.family]]
    if len(kept) < len(items):
        unused["data type is not the commonest of its kernel family"] = len(items) - len(kept)
    return kept


def draw(items: Sequence[Item], n_rows: int = DRAWN_ROWS) -> list[Item]:
    """About `n_rows` of the items: of each stratum in proportion to the square root of its size, by a seeded hash.

    Small strata are so not drowned by large ones (a sweep has hundreds of tiles of one shape), and count by no more
    than they tell. Kernels that take long to simulate are left to those who ask for every row. Reads inputs only. In
    the order given.
    """
    strata: dict[tuple[str, ...], list[Item]] = {}
    for item in items:
        if item.iterations <= MOST_ITERATIONS:
            strata.setdefault(item.stratum, []).append(item)
    share = n_rows / sum(math.sqrt(len(members)) for members in strata.values()) if strata else 0.0
    taken: set[int] = set()
    for members in strata.values():
        n = max(LEAST_DRAWN, round(share * math.sqrt(len(members))))
        taken.update(id(item) for item in sorted(members, key=_lot)[:n])
    return [item for item in items if id(item) in taken]


def _lot(item: Item) -> tuple[int, int]:
    text = f"{SEED} {item.table} {item.row.inputs!r}"
    return zlib.crc32(text.encode()), item.row.line


def deal_folds(items: Sequence[Item], n_folds: int) -> dict[str, int]:
    """{shape: fold, 0 to `n_folds` - 1}: shapes are dealt out, those with most rows first, then by hash, each into the
    fold with fewest rows so far.

    No shape is in two folds, and the few shapes with many tiles are in different ones.
    """
    rows: dict[str, int] = {}
    for item in items:
        rows[item.shape] = rows.get(item.shape, 0) + 1
    order = sorted(rows, key=lambda shape: (-rows[shape], zlib.crc32(f"{SEED} {shape}".encode()), shape))
    size = dict.fromkeys(range(n_folds), 0)
    fold_of = {}
    for shape in order:
        fold_of[shape] = min(size, key=lambda i: size[i])
        size[fold_of[shape]] += rows[shape]
    return fold_of
