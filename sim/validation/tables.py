"""Tables of measured kernels: which table a file is, and each row split into what a prediction may read and the rest.

Three tables are known by their columns: "gemm" (library kernels by name), "tile_sweep" (Triton kernels by tile) and
"counters" (either, with hardware counters). `Inputs` holds no measured value, so a replay that is given `Inputs`
alone cannot read one. A bad file is a `ConfigError`; a bad row is skipped with its line and the reason.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from hwmodels.errors import ConfigError

MAX_FILE_BYTES = 64 * 2**20
"""A table of kernels is a few hundred kB; anything beyond this is not one."""
MAX_ROWS = 100_000
MAX_INTEGER = 2**31 - 1
_SNIFF_BYTES = 2**16

OPS = ("mm", "addmm", "addmm_gelu")
LAYOUTS = ("tn", "nn", "nt", "tt")
L2_STATES = ("cold", "warm")
LIBRARIES = ("cublas", "triton")
DTYPES = {
    **{name: name for name in ("bf16", "fp16", "fp32", "tf32", "fp64", "int8", "fp8_e4m3", "fp8_e5m2")},
    "fp8": "fp8_e4m3",
}
"""Data types as tables spell them -> as a workload spells them."""

TILE_FIELDS = ("block_m", "block_n", "block_k", "stages", "warps", "group_m")


@dataclass(frozen=True)
class Inputs:
    """What a prediction may read of one row: shape, types, kernel name, launch, tile, compiler's facts. Never a result.

    Sizes in elements, `smem` in bytes, `regs` in registers a thread, `spills` in 4-byte registers a thread; grid and
    block as launched. `regs`, `smem` and `spills` are read from tile_sweep and counters only (None from gemm).
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


class _CellError(Exception):
    """A cell that cannot be used; the text names column, value and allowed range."""


# Cells: text -> value, or _CellError with the allowed range.
def _integer(low: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= MAX_INTEGER or value != int(value):
            raise _CellError(f"must be an integer from {low} to {MAX_INTEGER}")
        return int(value)

    return parse


_whole = _integer(0)
_count = _integer(1)


def _non_negative(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise _CellError("must be a number") from None
    if not math.isfinite(value) or value < 0:
        raise _CellError("must be a finite number of at least 0")
    return value


def _positive(text: str) -> float:
    value = _non_negative(text)
    if value == 0:
        raise _CellError("must be a finite number above 0")
    return value


def _triple(text: str) -> tuple[int, int, int]:
    """A launch dimension, "8x4x1" or "(8,4,1)"."""
    parts = text.strip("()").replace(",", "x").split("x")
    if len(parts) != 3:
        raise _CellError("must be three integers, as 8x4x1")
    x, y, z = (_count(part) for part in parts)
    return x, y, z


def _choice(choices: tuple[str, ...]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise _CellError(f"must be one of {', '.join(choices)}")
        return text

    return parse


def _dtype(text: str) -> str:
    return DTYPES[_choice(tuple(DTYPES))(text)]


_SHAPE: dict[str, Callable[[str], Any]] = {"m": _count, "n": _count, "k": _count}
_TILE: dict[str, Callable[[str], Any]] = dict.fromkeys(TILE_FIELDS, _count)
_LAUNCH: dict[str, Callable[[str], Any]] = {"grid": _triple, "block": _triple}
_COMPILED: dict[str, Callable[[str], Any]] = {"regs": _count, "smem": _whole, "spills": _whole}
_COUNTED: dict[str, Callable[[str], Any]] = {
    "sm_cycles": _positive,
    "sm_mhz": _positive,
    "dram_read_bytes": _non_negative,
    "dram_write_bytes": _non_negative,
    "l2_read_bytes_from_sm": _non_negative,
    "sm_received_bytes": _non_negative,
    "l2_hit_pct": _non_negative,
    "tensor_active_pct": _non_negative,
}
_MEASURED_FIELD = {"l2_read_bytes_from_sm": "l2_read_bytes"}


@dataclass(frozen=True)
class Schema:
    """The columns of one kind of table: column -> parser. Two columns of its `signature` mark the kind."""

    signature: tuple[str, ...]
    inputs: dict[str, Callable[[str], Any]]
    optional: dict[str, Callable[[str], Any]]
    """Inputs that may be absent or blank."""
    measured: dict[str, Callable[[str], Any]]

    @property
    def required(self) -> tuple[str, ...]:
        """Columns the file must have."""
        return (*self.inputs, *self.measured)


SCHEMAS = {
    "counters": Schema(
        signature=("library", "sm_cycles", "dram_read_bytes", "l2_hit_pct"),
        inputs={"library": _choice(LIBRARIES), **_SHAPE, "dtype": _dtype, "kernel": str, **_LAUNCH},
        optional={**_TILE, **_COMPILED},
        measured={"time_us": _positive, **_COUNTED},
    ),
    "gemm": Schema(
        signature=("op", "layout", "l2", "kernel"),
        inputs={
            "name": str,
            "op": _choice(OPS),
            "dtype": _dtype,
            **_SHAPE,
            "layout": _choice(LAYOUTS),
            "l2": _choice(L2_STATES),
            "kernel": str,
            **_LAUNCH,
        },
        optional={"other_kernels": str},
        measured={"time_us": _positive},
    ),
    "tile_sweep": Schema(
        signature=TILE_FIELDS,
        inputs={**_SHAPE, **_TILE},
        optional={"dtype": _dtype, **_COMPILED},
        measured={"time_us": _positive},
    ),
}


def read_table(path: Path) -> Table:
    """Read a table of measured kernels, whichever of `SCHEMAS` its columns say it is.

    Raises ConfigError where the file is missing, unreadable, empty, binary, larger than `MAX_FILE_BYTES`, longer
    than `MAX_ROWS`, of unknown columns, or lacks or repeats a column. Rows that cannot be used are in `skipped`.
    """
    path = Path(path)
    _check_file(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            return _read_rows(stream, path)
    except UnicodeDecodeError as error:
        raise ConfigError(f"measurements = {path}: not a text file in UTF-8 (byte {error.start})") from None
    except csv.Error as error:
        raise ConfigError(f"measurements = {path}: not a CSV file ({error})") from None
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"measurements = {path}: cannot be read ({error.strerror or error})")


def _check_file(path: Path) -> None:
    """Refuse by size and first bytes, before anything is parsed."""
    try:
        if not path.is_file():
            raise ConfigError(f"measurements = {path}: must be an existing CSV file")
        size_bytes = path.stat().st_size
        with path.open("rb") as stream:
            head = stream.read(_SNIFF_BYTES)
    except OSError as error:
        raise _unreadable(path, error) from None
    if size_bytes > MAX_FILE_BYTES:
        raise ConfigError(f"measurements = {path}: {size_bytes} bytes, must be at most {MAX_FILE_BYTES} bytes")
    if not head.strip():
        raise ConfigError(f"measurements = {path}: empty, must be a CSV file with a header and rows")
    if b"\0" in head:
        raise ConfigError(f"measurements = {path}: binary, must be a CSV file in UTF-8")


def _read_rows(stream: TextIO, path: Path) -> Table:
    reader = csv.reader(stream)
    header = [column.strip() for column in next(reader, [])]
    kind = recognise(header, path)
    rows: list[Row] = []
    skipped: list[dict[str, Any]] = []
    for line, cells in _lines(reader):
        if len(rows) + len(skipped) >= MAX_ROWS:
            raise ConfigError(f"measurements = {path}: more than {MAX_ROWS} rows, must be at most {MAX_ROWS}")
        try:
            _check_width(cells, len(header), reader.line_num - line)
            rows.append(_parse_row(kind, line, dict(zip(header, cells, strict=True))))
        except _CellError as error:
            skipped.append({"row": line, "reason": str(error)})
    if not rows and not skipped:
        raise ConfigError(f"measurements = {path}: has a header but no rows, must have at least one row")
    return Table(kind, tuple(rows), tuple(skipped))


def _lines(reader: Any) -> Iterator[tuple[int, list[str]]]:
    """Non-blank records with the line each starts on."""
    previous = reader.line_num
    for cells in reader:
        if cells:
            yield previous + 1, cells
        previous = reader.line_num


def _check_width(cells: list[str], expected: int, extra_lines: int) -> None:
    if extra_lines:
        raise _CellError(f"a quoted field runs over {extra_lines + 1} lines, must end on its own line")
    if len(cells) != expected:
        raise _CellError(f"{len(cells)} fields, must be {expected} as in the header")


def recognise(header: list[str], path: Path) -> str:
    """Kind of table by its columns; raises ConfigError naming missing, repeated or unknown columns."""
    repeated = ", ".join(sorted({_shortened(column) for column in header if header.count(column) > 1 and column}))
    if repeated:
        raise ConfigError(f"measurements = {path}: column {repeated} appears twice, must be unique")
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


def kinds_by_columns(header: list[str]) -> list[str]:
    """Kinds of table that the columns may be; none for a file of another sort."""
    return [kind for kind, schema in SCHEMAS.items() if len(set(schema.signature) & set(header)) >= 2]


def _missing(kind: str, header: list[str]) -> list[str]:
    return [column for column in SCHEMAS[kind].required if column not in header]


def _parse_row(kind: str, line: int, cells: dict[str, str]) -> Row:
    schema = SCHEMAS[kind]
    inputs = {column: _parse(column, cells[column], parser) for column, parser in schema.inputs.items()}
    for column, parser in schema.optional.items():
        if cells.get(column, "").strip():
            inputs[column] = _parse(column, cells[column], parser)
    if kind == "tile_sweep":
        inputs["library"] = "triton"
    if inputs.get("library") == "triton":
        _check_tile(inputs)
    measured = {
        _MEASURED_FIELD.get(column, column): _parse(column, cells[column], parser)
        for column, parser in schema.measured.items()
    }
    return Row(line, Inputs(kind=kind, **inputs), Measured(**measured))


def _check_tile(inputs: dict[str, Any]) -> None:
    missing = [name for name in TILE_FIELDS if name not in inputs]
    if missing:
        raise _CellError(f"a triton row must have {', '.join(missing)}")


def _parse(column: str, text: str, parser: Callable[[str], Any]) -> Any:
    text = text.strip()
    if not text and parser is not str:
        raise _CellError(f"{column} is blank")
    try:
        return parser(text)
    except _CellError as error:
        raise _CellError(f"{column} = {_shortened(text)}: {error}") from None


def _shortened(text: str, length: int = 40) -> str:
    return repr(text if len(text) <= length else text[:length] + "...")
