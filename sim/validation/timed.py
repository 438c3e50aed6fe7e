"""Tables of timed operations other than single GEMMs: attention, elementwise, whole stacks, training steps.

Each kind is a `TimedTable`: how its cells become a question, and how the simulator answers it. Everything else, from
the file to the report, is shared here. A question holds what a prediction may read, never a measured value.
"""

from __future__ import annotations

import csv
import hashlib
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwmodels.errors import ConfigError
from hwmodels.measured import measured_path
from sim.validation.columns import CellError, parse_positive
from sim.validation.report import Point, Report
from sim.validation.roofline import MIN_ROWS, N_FOLDS, Roofline, fit
from sim.validation.scores import BASE_KEYS, N_WORST, time_scores
from sim.validation.tables import (
    MAX_ROWS,
    check_file,
    check_width,
    is_called,
    lines,
    parse_cell,
    repeated_columns,
    unreadable,
)

if TYPE_CHECKING:
    from hwmodels.spec import Gpu

Progress = Callable[[int, int], None]
MODULES: tuple[str, ...] = ("attention", "elementwise", "stacks", "training", "extra_ops")
"""Modules of this package with a `TABLE` or `TABLES`."""
OVERALL = "all rows"


@dataclass(frozen=True)
class TimedTable:
    """One kind of table. `predict` and `question` raise ConfigError for what cannot be modelled; the row is skipped."""

    kind: str
    signature: tuple[str, ...]
    """All of these columns in a header mark the kind."""
    inputs: dict[str, Callable[[str], Any]]
    """Column -> parser, which raises CellError. A column `gpu` says whose row it is."""
    optional: dict[str, Callable[[str], Any]]
    """Those that may be absent or blank."""
    measured: tuple[str, ...]
    """Columns in us, each predicted."""
    question: Callable[[dict[str, Any]], Any]
    """Parsed inputs -> what is asked, hashable."""
    predict: Callable[[Any, Gpu], dict[str, float]]
    """Question -> measured column -> us."""
    groups: Callable[[Any, str], tuple[str, ...]]
    """Question and measured column -> groups that it is scored in, the finest last."""
    work: Callable[[Any, str], tuple[float, float]]
    """Question and measured column -> (FLOPs, compulsory bytes)."""
    shape: Callable[[Any], str]
    """What folds and fits are split by."""
    together: Callable[[list[dict[str, Any]]], list[Any]] | None = None
    """In place of `question`, for rows that only make sense in their order: all rows' inputs -> a question each, or the
    ConfigError for which it is skipped."""


@dataclass(frozen=True)
class Asked:
    """One measured time: the line of the file (header = 1), what it asks, its column, and the microseconds."""

    line: int
    question: Any
    column: str
    measured_us: float


@dataclass(frozen=True)
class Answered:
    """A measured time beside the predicted one and the roofline's (None where none was fitted)."""

    asked: Asked
    predicted_us: float
    roofline_us: float | None

    @property
    def error_pct(self) -> float:
        """Signed error, percent of the measured."""
        return 100 * (self.predicted_us / self.asked.measured_us - 1)


@dataclass
class Rows:
    """A file as read."""

    asked: list[Asked] = field(default_factory=list)
    skipped: list[dict[str, Any]] = field(default_factory=list)
    n_rows: int = 0
    n_others: int = 0
    """Rows of other GPUs, left out."""


def held_out(shape: str) -> bool:
    """Whether no constant was fitted on the shape: fits use those whose hash is even."""
    return int(hashlib.md5(shape.encode(), usedforsecurity=False).hexdigest(), 16) % 2 == 1


@cache
def tables() -> dict[str, TimedTable]:
    """Every kind, by name."""
    found: dict[str, TimedTable] = {}
    for name in MODULES:
        module = import_module(f"sim.validation.{name}")
        for table in getattr(module, "TABLES", None) or (module.TABLE,):
            found[table.kind] = table
    return found


def recognised(path: Path) -> TimedTable | None:
    """The kind whose columns the file's first line has; None for another file, which others may know or refuse."""
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as stream:
            header = {name.strip() for name in next(csv.reader(stream), [])}
    except (OSError, UnicodeDecodeError, csv.Error):
        return None
    fitting = [table for table in tables().values() if set(table.signature) <= header]
    return max(fitting, key=lambda table: len(table.signature), default=None)


# From the file to questions.
def read(table: TimedTable, path: Path, gpu: Gpu | None = None) -> Rows:
    """The table's rows. Raises ConfigError as `tables.read_table` does; what one row lacks is in `skipped`."""
    check_file(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            return _read(table, csv.reader(stream), path, gpu)
    except UnicodeDecodeError as error:
        raise ConfigError(f"measurements = {path}: not a text file in UTF-8 (byte {error.start})") from None
    except csv.Error as error:
        raise ConfigError(f"measurements = {path}: not a CSV file ({error})") from None
    except OSError as error:
        raise unreadable(path, error) from None


def _read(table: TimedTable, reader: Any, path: Path, gpu: Gpu | None) -> Rows:
    header = [column.strip() for column in next(reader, [])]
    repeated_columns(header, path)
    missing = [name for name in (*table.inputs, *table.measured) if name not in header]
    if missing:
        raise ConfigError(f"measurements = {path}: a {table.kind} table must have the column {', '.join(missing)}")
    rows, parsed = Rows(), list[Parsed]()
    for line, cells in lines(reader):
        if rows.n_rows + rows.n_others >= MAX_ROWS:
            raise ConfigError(f"measurements = {path}: more than {MAX_ROWS} rows, must be at most {MAX_ROWS}")
        try:
            check_width(cells, len(header), reader.line_num - line)
            named = dict(zip(header, cells, strict=True))
            if gpu is not None and "gpu" in table.inputs and not is_called(gpu, named["gpu"]):
                rows.n_others += 1
                continue
            parsed.append(_parsed(table, line, named))
        except CellError as error:
            rows.skipped.append({"row": line, "reason": str(error)})
        rows.n_rows += 1
    if not rows.n_rows:
        whose = f" of gpu = {gpu.name}" if rows.n_others and gpu else ""
        raise ConfigError(f"measurements = {path}: has no rows{whose}, must have at least one")
    for (line, _, times), question in zip(parsed, _questions(table, parsed), strict=True):
        if isinstance(question, ConfigError):
            rows.skipped.append({"row": line, "reason": str(question)})
        else:
            rows.asked += [Asked(line, question, name, us) for name, us in times.items()]
    return rows


Parsed = tuple[int, dict[str, Any], dict[str, float]]
"""Line, inputs, and measured times of one row."""


def _parsed(table: TimedTable, line: int, named: dict[str, str]) -> Parsed:
    wanted = table.inputs | {name: p for name, p in table.optional.items() if named.get(name, "").strip()}
    inputs = {name: parse_cell(name, named[name], parser) for name, parser in wanted.items()}
    return line, inputs, {name: parse_cell(name, named[name], parse_positive) for name in table.measured}


def _questions(table: TimedTable, parsed: Sequence[Parsed]) -> list[Any]:
    """Of every row: what it asks, or why it asks nothing."""
    inputs = [inputs for _, inputs, _ in parsed]
    if table.together is not None:
        return table.together(inputs)
    return [_question(table, each) for each in inputs]


def _question(table: TimedTable, inputs: dict[str, Any]) -> Any:
    try:
        return table.question(inputs)
    except ConfigError as error:
        return error


# From questions to the report.
def validate_timed(
    gpu: Gpu, path: Path, table: TimedTable, *, limit: int | None, threads: int, progress: Progress | None
) -> Report:
    """Errors of each group of the table's rows, beside the roofline's."""
    rows = read(table, path, gpu)
    taken = rows.asked if limit is None else _subset(table, rows.asked, limit)
    told = _predictions(table, gpu, taken, threads, progress)
    control = _shipped_control(table, gpu)
    answered: list[Answered] = []
    skipped = list(rows.skipped)
    for asked in taken:
        outcome = told[asked.question]
        if isinstance(outcome, str):
            skipped.append({"row": asked.line, "reason": outcome})
        else:
            answered.append(Answered(asked, outcome[asked.column], control.time_us(asked) if control else None))
    notes = [f"{rows.n_others} rows of other GPUs left out."] if rows.n_others else []
    if len(taken) < len(rows.asked):
        notes.append(f"{len(taken)} of {len(rows.asked)} times taken, in proportion to their groups.")
    return Report(
        gpu=gpu.name,
        kind=table.kind,
        source=Path(path).name,
        groups=tuple(_grouped(table, answered)),
        overall=_summary(table.kind, OVERALL, answered),
        skipped=tuple(sorted(skipped, key=lambda entry: int(entry["row"]))),
        n_rows=len(taken) + len(rows.skipped),
        notes=tuple(notes if control else [*notes, "No table of this kind is shipped for this GPU: no roofline."]),
        points=tuple(
            Point(each.asked.measured_us, each.predicted_us, table.work(each.asked.question, each.asked.column)[0])
            for each in answered
        ),
    )


def _predictions(
    table: TimedTable, gpu: Gpu, taken: Sequence[Asked], threads: int, progress: Progress | None
) -> dict[Any, dict[str, float] | str]:
    """The answer to each question, or why there is none; `threads` at once, as the engine releases the lock."""
    questions = list(dict.fromkeys(asked.question for asked in taken))
    pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="validate")
    try:
        futures = [pool.submit(_ask, table, question, gpu) for question in questions]
        told = {}
        for i, (question, future) in enumerate(zip(questions, futures, strict=True)):
            told[question] = future.result()
            if progress is not None:
                progress(i + 1, len(questions))
        return told
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _ask(table: TimedTable, question: Any, gpu: Gpu) -> dict[str, float] | str:
    try:
        return table.predict(question, gpu)
    except ConfigError as error:
        return str(error)


def _subset(table: TimedTable, asked: list[Asked], limit: int) -> list[Asked]:
    """`limit` of them in proportion to their finest groups, by a hash of what they ask."""
    if limit >= len(asked):
        return asked

    def place(each: Asked) -> tuple[str, int, int]:
        return _names(table, each)[-1], zlib.crc32(repr(each.question).encode()), each.line

    order = sorted(asked, key=place)
    return sorted(
        (order[(2 * i + 1) * len(asked) // (2 * limit)] for i in range(limit)),
        key=lambda each: (each.line, each.column),
    )


def _names(table: TimedTable, asked: Asked) -> tuple[str, ...]:
    return table.groups(asked.question, asked.column)


def _grouped(table: TimedTable, answered: Sequence[Answered]) -> list[dict[str, Any]]:
    """One summary a group: gathering groups first, each in order of first appearance."""
    members: dict[str, list[Answered]] = {}
    finest: dict[str, None] = {}
    for each in answered:
        names = dict.fromkeys(_names(table, each.asked))
        finest[list(names)[-1]] = None
        for name in names:
            members.setdefault(name, []).append(each)
    order = sorted(members, key=lambda name: name in finest)
    return [_summary(table.kind, name, members[name]) for name in order]


def _summary(kind: str, name: str, answered: Sequence[Answered]) -> dict[str, Any]:
    """As `scores.summary`."""
    scores: dict[str, Any] = dict.fromkeys(BASE_KEYS) | {"kind": kind, "name": name, "n": len(answered)}
    worst = sorted(answered, key=lambda each: -abs(each.error_pct))[:N_WORST]
    scores["worst"] = [_described(each) for each in worst]
    if not answered:
        return scores
    known = [each.roofline_us for each in answered]
    if all(value is not None for value in known):
        errors = [100 * abs((each.roofline_us or 0.0) / each.asked.measured_us - 1) for each in answered]
        scores["roofline_mape_pct"] = sum(errors) / len(errors)
    return scores | time_scores([each.error_pct for each in answered])


def _described(each: Answered) -> dict[str, Any]:
    return {
        "row": each.asked.line,
        "what": str(each.asked.question),
        "column": each.asked.column,
        "measured_us": each.asked.measured_us,
        "predicted_us": each.predicted_us,
        "error_pct": each.error_pct,
    }


# The roofline beside it.
class Control:
    """Three constants for each group of enough rows of the shipped table, from the shapes of other folds."""

    def __init__(self, table: TimedTable, asked: Sequence[Asked]) -> None:
        self._table = table
        self._groups: dict[str, list[Asked]] = {}
        for each in asked:
            for name in dict.fromkeys(_names(table, each)):
                self._groups.setdefault(name, []).append(each)
        self._fits: dict[tuple[str, int], Roofline | None] = {}

    def time_us(self, asked: Asked) -> float | None:
        """The roofline's time, of the finest group with enough rows; None without one."""
        names = [n for n in reversed(_names(self._table, asked)) if len(self._groups.get(n, ())) >= MIN_ROWS]
        if not names:
            return None
        key = names[0], self._fold(asked)
        if key not in self._fits:
            self._fits[key] = self._fit(*key)
        roofline = self._fits[key]
        return None if roofline is None else roofline.time_us(*self._work(asked))

    def _work(self, asked: Asked) -> tuple[float, float]:
        """At least one of each, as copies have no FLOPs."""
        flops, n_bytes = self._table.work(asked.question, asked.column)
        return max(1.0, flops), max(1.0, n_bytes)

    def _fold(self, asked: Asked) -> int:
        return zlib.crc32(self._table.shape(asked.question).encode()) % N_FOLDS

    def _fit(self, name: str, fold: int) -> Roofline | None:
        import numpy as np

        others = [each for each in self._groups[name] if self._fold(each) != fold]
        if len(others) < 3:
            return None
        work = np.array([self._work(each) for each in others], dtype=np.float64)
        return fit(work[:, 0], work[:, 1], np.array([each.measured_us for each in others]))


def _shipped_control(table: TimedTable, gpu: Gpu) -> Control | None:
    try:
        path = measured_path(gpu.name, table.kind)
    except ConfigError:
        return None
    return Control(table, read(table, path, gpu).asked)
