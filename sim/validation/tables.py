"""Tables of measured kernels: which table a file is, and each row split into what a prediction may read and the rest.

Five tables are known by their columns: "gemm" (library kernels by name), "tile_sweep" (Triton kernels by tile),
"counters" (either, with hardware counters), and two of several GPUs: "graph_gemm" (library kernels, names unknown,
timed by replay of a graph) and "event_gemm" (kernels by name, timed by events around a call). `Inputs` holds no
measured value, so a replay that is given `Inputs` alone cannot read one. A bad file is a `ConfigError`; a bad row is
skipped with its line and the reason.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from hwmodels.errors import ConfigError
from sim.validation.columns import EVENT_OPS, FIELD_OF, SCHEMAS, TILE_FIELDS, CellError

if TYPE_CHECKING:
    from hwmodels.spec import Gpu

MAX_FILE_BYTES = 64 * 2**20
"""A table of kernels is a few hundred kB; anything beyond this is not one."""
MAX_ROWS = 100_000
MOST_NAMED = 8
"""GPUs that an error names."""
_SNIFF_BYTES = 2**16


@dataclass(frozen=True)
class Inputs:
    """What a prediction may read of one row: shape, types, kernel name, launch, tile, compiler's facts. Never a result.

    Sizes in elements, `smem` in bytes, `regs` in registers a thread, `spills` in 4-byte registers a thread; grid and
    block as launched; `rest_ms` between launches, 0 in a burst. `regs`, `smem` and `spills` are read from tile_sweep
    and counters only (None from gemm).
    """

    kind: str
    m: int
    n: int
    k: int
    dtype: str = "bf16"
    name: str = ""
    op: str = "mm"
    layout: str = "tn"
    l2: str = "cold"
    library: str = "cublas"
    kernel: str = ""
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    other_kernels: str = ""
    block_m: int | None = None
    block_n: int | None = None
    block_k: int | None = None
    stages: int | None = None
    warps: int | None = None
    group_m: int | None = None
    regs: int | None = None
    smem: int | None = None
    spills: int | None = None
    batch: int = 1
    rest_ms: float = 0.0


@dataclass(frozen=True)
class Measured:
    """What was measured of one row; only `scores` and `roofline` read it. Microseconds, MHz, cycles, bytes, percent."""

    time_us: float
    sm_cycles: float | None = None
    sm_mhz: float | None = None
    dram_read_bytes: float | None = None
    dram_write_bytes: float | None = None
    l2_read_bytes: float | None = None
    sm_received_bytes: float | None = None
    l2_hit_pct: float | None = None
    tensor_active_pct: float | None = None


@dataclass(frozen=True)
class Row:
    """One readable row and the line of the file (header = 1) on which it starts."""

    line: int
    inputs: Inputs
    measured: Measured


@dataclass(frozen=True)
class Table:
    """A file as read: its kind, its rows in file order, and the rows skipped as {"row": line, "reason": text}."""

    kind: str
    rows: tuple[Row, ...]
    skipped: tuple[dict[str, Any], ...]
    other_gpus: dict[str, int] = field(default_factory=dict)
    """{GPU as the table names it: its rows} of those left out, where the table has a column `gpu`."""


def read_table(path: Path, gpu: Gpu | None = None) -> Table:
    """Read a table of measured kernels, whichever of `SCHEMAS` its columns say it is.

    Of a table with a column `gpu`, the rows of `gpu` (None: all). Raises ConfigError where the file is missing,
    unreadable, empty, binary, larger than `MAX_FILE_BYTES`, longer than `MAX_ROWS`, of unknown columns, has no row of
    the GPU, or lacks or repeats a column. Rows that cannot be used are in `skipped`.
    """
    path = Path(path)
    check_file(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            return _read_rows(stream, path, gpu)
    except UnicodeDecodeError as error:
        raise ConfigError(f"measurements = {path}: not a text file in UTF-8 (byte {error.start})") from None
    except csv.Error as error:
        raise ConfigError(f"measurements = {path}: not a CSV file ({error})") from None
    except OSError as error:
        raise unreadable(path, error) from None


def unreadable(path: Path, error: OSError) -> ConfigError:
    """What to raise where the file cannot be opened or read."""
    return ConfigError(f"measurements = {path}: cannot be read ({error.strerror or error})")


def check_file(path: Path) -> None:
    """Refuse by size and first bytes, before anything is parsed."""
    try:
        if not path.is_file():
            raise ConfigError(f"measurements = {path}: must be an existing CSV file")
        size_bytes = path.stat().st_size
        with path.open("rb") as stream:
            head = stream.read(_SNIFF_BYTES)
    except OSError as error:
        raise unreadable(path, error) from None
    if size_bytes > MAX_FILE_BYTES:
        raise ConfigError(f"measurements = {path}: {size_bytes} bytes, must be at most {MAX_FILE_BYTES} bytes")
    if not head.strip():
        raise ConfigError(f"measurements = {path}: empty, must be a CSV file with a header and rows")
    if b"\0" in head:
        raise ConfigError(f"measurements = {path}: binary, must be a CSV file in UTF-8")


def _read_rows(stream: TextIO, path: Path, gpu: Gpu | None) -> Table:
    reader = csv.reader(stream)
    header = [column.strip() for column in next(reader, [])]
    kind = recognise(header, path)
    rows: list[Row] = []
    skipped: list[dict[str, Any]] = []
    others: Counter[str] = Counter()
    for line, fields in lines(reader):
        if len(rows) + len(skipped) + others.total() >= MAX_ROWS:
            raise ConfigError(f"measurements = {path}: more than {MAX_ROWS} rows, must be at most {MAX_ROWS}")
        try:
            check_width(fields, len(header), reader.line_num - line)
            cells = dict(zip(header, fields, strict=True))
            if gpu is not None and "gpu" in SCHEMAS[kind].inputs and not is_called(gpu, cells["gpu"]):
                others[cells["gpu"].strip()] += 1
            else:
                rows.append(_parse_row(kind, line, cells))
        except CellError as error:
            skipped.append({"row": line, "reason": str(error)})
    if not rows and gpu is not None and others:
        known = ", ".join(_shortened(name) for name, _ in others.most_common(MOST_NAMED))
        raise ConfigError(f"measurements = {path}: no row of gpu = {gpu.name} ({gpu.label}); its rows are of {known}")
    if not rows and not skipped:
        raise ConfigError(f"measurements = {path}: has a header but no rows, must have at least one row")
    return Table(kind, tuple(rows), tuple(skipped), dict(others))


def is_called(gpu: Gpu, text: str) -> bool:
    """Whether a table's `gpu` means this one: its name or label, with or without the vendor's and the memory's size,
    whatever stands between words ("A100-SXM4-80GB", "L40S")."""
    label = _plain(gpu.label)
    return _plain(text) in {_plain(gpu.name), label, re.sub(r"\d+gb$", "", label)}


def _plain(text: str) -> str:
    """Letters and digits, in small letters, without vendor and line."""
    return re.sub(r"[^a-z0-9]|nvidia|tesla", "", text.lower())


def lines(reader: Any) -> Iterator[tuple[int, list[str]]]:
    """Non-blank records with the line each starts on."""
    previous = reader.line_num
    for cells in reader:
        if cells:
            yield previous + 1, cells
        previous = reader.line_num


def check_width(cells: list[str], expected: int, extra_lines: int) -> None:
    """Refuse a record that has another number of fields than the header, or runs over several lines."""
    if extra_lines:
        raise CellError(f"a quoted field runs over {extra_lines + 1} lines, must end on its own line")
    if len(cells) != expected:
        raise CellError(f"{len(cells)} fields, must be {expected} as in the header")


def recognise(header: list[str], path: Path) -> str:
    """Kind of table by its columns; raises ConfigError naming missing, repeated or unknown columns."""
    repeated_columns(header, path)
    kinds = kinds_by_columns(header)
    if not kinds:
        known = "; ".join(f"{kind}: {', '.join(schema.required)}" for kind, schema in SCHEMAS.items())
        raise ConfigError(f"measurements = {path}: columns match no known table (needed by {known})")
    # Counters rows have tile columns too, so a counters table short of a column would pass for a sweep.
    kind = "counters" if "counters" in kinds else min(kinds, key=lambda kind: len(_missing(kind, header)))
    missing = _missing(kind, header)
    if missing:
        raise ConfigError(f"measurements = {path}: a {kind} table must have the column {', '.join(missing)}")
    return kind


def repeated_columns(header: list[str], path: Path) -> None:
    """Raise ConfigError where a column appears twice."""
    repeated = ", ".join(sorted({_shortened(column) for column in header if header.count(column) > 1 and column}))
    if repeated:
        raise ConfigError(f"measurements = {path}: column {repeated} appears twice, must be unique")


def kinds_by_columns(header: list[str]) -> list[str]:
    """Kinds of table that the columns may be; none for a file of another sort."""
    return [kind for kind, schema in SCHEMAS.items() if len(set(schema.signature) & set(header)) >= 2]


def _missing(kind: str, header: list[str]) -> list[str]:
    return [column for column in SCHEMAS[kind].required if column not in header]


def _parse_row(kind: str, line: int, cells: dict[str, str]) -> Row:
    schema = SCHEMAS[kind]
    inputs = _cells(schema.inputs, cells)
    inputs |= _cells({name: parse for name, parse in schema.optional.items() if cells.get(name, "").strip()}, cells)
    inputs.pop("gpu", None)
    if kind == "tile_sweep":
        inputs["library"] = "triton"
    if kind == "event_gemm":
        inputs = _of_events(**inputs)
    if inputs.get("library") == "triton":
        _check_tile(inputs)
    return Row(line, Inputs(kind=kind, **inputs), Measured(**_cells(schema.measured, cells)))


def _cells(parsers: dict[str, Callable[[str], Any]], cells: dict[str, str]) -> dict[str, Any]:
    """{field: value} of the columns that have a parser."""
    return {
        FIELD_OF.get(column, column): parse_cell(column, cells[column], parser) for column, parser in parsers.items()
    }


def _of_events(op: str, grid_x: int, grid_y: int, grid_z: int, block_x: int, **others: Any) -> dict[str, Any]:
    """The launch and operation of a row of event timings, as other tables state them."""
    name, operation, layout = EVENT_OPS[op]
    launch = {"grid": (grid_x, grid_y, grid_z), "block": (block_x, 1, 1)}
    return {**others, **launch, "name": name, "op": operation, "layout": layout}


def _check_tile(inputs: dict[str, Any]) -> None:
    missing = [name for name in TILE_FIELDS if name not in inputs]
    if missing:
        raise CellError(f"a triton row must have {', '.join(missing)}")


def parse_cell(column: str, text: str, parser: Callable[[str], Any]) -> Any:
    """The cell's value; raises CellError that names the column and the text."""
    text = text.strip()
    if not text and parser is not str:
        raise CellError(f"{column} is blank")
    try:
        return parser(text)
    except CellError as error:
        raise CellError(f"{column} = {_shortened(text)}: {error}") from None


def _shortened(text: str, length: int = 40) -> str:
    return repr(text if len(text) <= length else text[:length] + "...")
