"""`validate`: a table of measured kernels against the simulator, from the file to the report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwmodels.errors import ConfigError
from sim.validation.groups import names, shape_name, subset
from sim.validation.replay import UNNAMED, Predict, Predicted, Progress, replay, simulator
from sim.validation.report import Point, Report
from sim.validation.roofline import shipped_control
from sim.validation.scores import Scored, grouped, summary
from sim.validation.sustained import is_sustained_table, validate_sustained
from sim.validation.tables import Row, Table, read_table
from sim.validation.timed import recognised, validate_timed

if TYPE_CHECKING:
    from hwmodels.spec import Gpu

MAX_THREADS = 64
OVERALL_NAME = "all rows"


def validate(
    gpu: Gpu,
    measurements: Path,
    *,
    tile: str | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
    threads: int = 2,
    predict: Predict | None = None,
) -> Report:
    """Replay each row of a table with the row's own kernel and report the error a group, beside the roofline's.

    `tile` ignores kernel names and tiles and lets the simulator choose: "auto" from a Triton
    kernel's whole menu (seconds a row) or what a library launches for similar shapes, "bound" from the best eight by a
    closed form; rows that then ask the same question (one shape, many tiles) become
    one, compared with the fastest measured. `limit` takes that many rows, in proportion to their groups.
    `progress(done, total)` is called from the caller's thread. `predict` stands in for the simulator (tests do that).
    Raises ConfigError for a bad option or a file that is no such table.
    """
    _check_options(tile, limit, threads)
    if is_sustained_table(measurements):
        return validate_sustained(gpu, measurements)
    timed = recognised(measurements)
    if timed is not None:
        return validate_timed(gpu, Path(measurements), timed, limit=limit, threads=threads, progress=progress)
    table = read_table(measurements, gpu)
    questions, repeated = _one_a_shape(table.rows) if tile else (table.rows, ())
    rows = questions if limit is None else subset(questions, limit)
    outcome = replay(
        [row.inputs for row in rows],
        gpu,
        predict or simulator(gpu),
        tile=tile,
        threads=threads,
        progress=progress,
    )
    found = list(zip(rows, outcome, strict=True))
    skipped = [*table.skipped, *repeated, *({"row": row.line, "reason": r} for row, r in found if isinstance(r, str))]
    return Report(
        gpu=gpu.name,
        kind=table.kind,
        source=Path(measurements).name,
        skipped=tuple(sorted(skipped, key=lambda entry: int(entry["row"]))),
        n_rows=len(rows) + len(table.skipped) + len(repeated),
        skipped_by_group=_count_groups([row for row, reason in found if isinstance(reason, str)]),
        fitted=_fitted(gpu),
        **_scores(gpu, table.kind, found, _notes(table, len(rows), len(questions), tile)),
    )


def _check_options(tile: str | None, limit: int | None, threads: int) -> None:
    if tile not in (None, "auto", "bound"):
        raise ConfigError(f"tile = {tile!r}: must be auto, bound or not given (validate)")
    if limit is not None and limit < 1:
        raise ConfigError(f"limit = {limit}: must be at least 1 row (validate)")
    if not 1 <= threads <= MAX_THREADS:
        raise ConfigError(f"threads = {threads}: must be from 1 to {MAX_THREADS} (validate)")


def _scores(gpu: Gpu, kind: str, found: Sequence[tuple[Row, Predicted | str]], notes: Sequence[str]) -> dict[str, Any]:
    """The parts of a report that compare: groups, overall, rows, and a note where nothing is there to compare with."""
    control = shipped_control(gpu, kind)
    scored = [
        Scored(row, predicted, control.time_us(row.inputs) if control else None)
        for row, predicted in found
        if isinstance(predicted, Predicted)
    ]
    missing = "No measured table is shipped for this GPU, so there is no roofline to compare with."
    return {
        "groups": tuple(grouped(kind, scored)),
        "overall": summary(kind, OVERALL_NAME, scored),
        "notes": tuple(notes) if control else (*notes, missing),
        "points": tuple(map(_point, scored)),
    }


def _point(scored: Scored) -> Point:
    inputs = scored.row.inputs
    flop = 2.0 * inputs.m * inputs.n * inputs.k * inputs.batch
    return Point(scored.row.measured.time_us, scored.predicted.time_us, flop, scored)


def _one_a_shape(rows: Sequence[Row]) -> tuple[tuple[Row, ...], tuple[dict[str, Any], ...]]:
    """Where the tile is chosen, tiles of one shape are one question: keep the fastest measured, name the others."""
    fastest: dict[tuple[str, ...], Row] = {}
    for row in sorted(rows, key=lambda row: row.measured.time_us):
        fastest.setdefault(_question(row), row)
    kept, repeated = [], []
    for row in rows:
        best = fastest[_question(row)]
        if best is row:
            kept.append(row)
        else:
            reason = f"tile to be chosen: the same question as row {best.line}, the fastest tile of this shape"
            repeated.append({"row": row.line, "reason": reason})
    return tuple(kept), tuple(repeated)


def _question(row: Row) -> tuple[str, ...]:
    """The shape for a row that came from a sweep over tiles; any other row is a question of its own."""
    inputs = row.inputs
    return (inputs.dtype, shape_name(inputs)) if inputs.library == "triton" else (str(row.line),)


def _count_groups(rows: Sequence[Row]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in rows:
        for name in _group_names(row):
            counts[name] = counts.get(name, 0) + 1
    return counts


def _group_names(row: Row) -> tuple[str, ...]:
    """The groups of a row, none where its sizes are beyond what a workload may have."""
    try:
        return names(row)
    except ConfigError:
        return ()


def _fitted(gpu: Gpu) -> tuple[dict[str, Any], ...]:
    found = []
    for path, (unit, kind, source) in gpu.provenance.items():
        if kind == "fitted":
            value: Any = gpu
            for part in path.split("."):
                value = getattr(value, part)
            found.append({"name": path, "value": value, "unit": unit, "source": source})
    return tuple(found)


def _notes(table: Table, n_taken: int, n_rows: int, tile: str | None) -> list[str]:
    notes = []
    if tile is None and table.kind in UNNAMED:
        notes.append("The table does not say which kernels ran: the simulator chooses, as with --tile bound.")
    if table.other_gpus:
        others = ", ".join(sorted(table.other_gpus))
        notes.append(f"{sum(table.other_gpus.values())} rows of other GPUs left out ({others}).")
    if n_taken < n_rows:
        notes.append(f"{n_taken} of {n_rows} rows taken, in proportion to their groups, by a hash of inputs.")
    if tile:
        notes.append("The kernel is chosen by the simulator; names and tiles of the table are ignored.")
    return notes
