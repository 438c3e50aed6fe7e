"""Why the worst rows are off: what limits them in the model, what else was measured of them, and causes that are known.

Known causes are data (`causes.toml`); a row that none fits is said to have none.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hwmodels.errors import ConfigError
from sim.limiter import limiter_words
from sim.validation.columns import TILE_FIELDS
from sim.validation.replay import gemm_of
from sim.validation.report import COLUMNS, Report, table
from sim.validation.scores import COUNTER_KEYS, Scored, error_pct
from sim.validation.tables import Inputs, read_table

PATH = Path(__file__).with_name("causes.toml")
UNKNOWN = "not known"
KERNEL_FIELDS = ("kernel", *(name for name in TILE_FIELDS if name != "group_m"))
"""What tells compiled kernels apart: a name, or a tile."""
SAME_FIELDS = ("m", "n", "k", "dtype", "layout", "op", "l2", *KERNEL_FIELDS, "group_m")
"""What two measurements of one kernel agree in."""

Beside = Callable[[Scored], str | None]
"""A scored row -> what else is known of it, in words; None where nothing is."""


@dataclass(frozen=True)
class Cause:
    """A sentence or two, and the rows that they hold for; fields as in `causes.toml`."""

    why: str
    match: tuple[tuple[str, str | int], ...]
    tables: tuple[str, ...] = ()
    operand_mib: tuple[float, float] | None = None

    def fits(self, source: str, inputs: Inputs) -> bool:
        """Whether it is the cause for a row of the report of this source (without its ending)."""
        if self.tables and source not in self.tables:
            return False
        if self.operand_mib is not None:
            gemm = gemm_of(inputs)
            if not self.operand_mib[0] <= (gemm.a_bytes + gemm.b_bytes) / 2**20 <= self.operand_mib[1]:
                return False
        return all(_matches(getattr(inputs, field), wanted) for field, wanted in self.match)


def _matches(value: Any, wanted: str | int) -> bool:
    return re.search(wanted, value) is not None if isinstance(wanted, str) else value == wanted


def read_causes(path: Path = PATH) -> tuple[Cause, ...]:
    """Every cause of a file. Raises ConfigError where it is broken or a row has no such field."""
    try:
        found = tuple(
            Cause(
                entry["why"],
                tuple(entry["match"].items()),
                tuple(entry.get("tables", ())),
                (entry["operand_mib"][0], entry["operand_mib"][1]) if "operand_mib" in entry else None,
            )
            for entry in tomllib.loads(path.read_text(encoding="utf-8"))["causes"]
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ConfigError(f"{path.name}: {type(error).__name__}: {error} (causes)") from None
    for cause in found:
        unknown = sorted({field for field, _ in cause.match} - set(Inputs.__dataclass_fields__))
        if unknown:
            raise ConfigError(f"match = {', '.join(unknown)}: no field of a row (causes, {cause.why[:40]!r})")
    return found


# What else was measured.
def again(measurements: Path) -> Beside:
    """The time of the same kernel in another table, and the prediction's error to that."""
    times = {_same(row.inputs): row.measured.time_us for row in read_table(measurements).rows}

    def beside(scored: Scored) -> str | None:
        time_us = times.get(_same(scored.row.inputs))
        return None if time_us is None else f"{time_us:.4g} us: {error_pct(scored.predicted.time_us, time_us):+.1f} %"

    return beside


def _same(inputs: Inputs) -> tuple[Any, ...]:
    return tuple(getattr(inputs, name) for name in SAME_FIELDS)


def own_kernel(known: Report) -> Beside:
    """The error of the same row where its own kernel is given."""
    errors = {point.scored.row.line: point.scored.error_pct for point in known.points if point.scored}
    return lambda scored: f"{errors[scored.row.line]:+.1f} %" if scored.row.line in errors else None


def counted(scored: Scored) -> str:
    """The signed errors of what was counted."""
    found = []
    for key, field in COUNTER_KEYS.items():
        measured = getattr(scored.row.measured, field)
        if measured and field != "dram_write_bytes":
            off_pct = round(error_pct(getattr(scored.predicted, field), measured))
            found.append(f"{COLUMNS[key].removesuffix(' %')} {off_pct:+d}")
    return f"{', '.join(found)} %"


# The table.
def explained(
    report: Report, heading: str = "", beside: Beside | None = None, causes: Sequence[Cause] | None = None
) -> str:
    """A table of the report's worst rows: the predicted limiter, what else was measured of the row (`beside`, under
    `heading`), the errors of the same kernel's other rows, and the number of the cause; then the causes, with all rows
    they fit."""
    scored = [point.scored for point in report.points if point.scored]
    by_line = {item.row.line: item for item in scored}
    worst = [by_line[row["row"]] for row in report.overall["worst"]]
    known, source = read_causes() if causes is None else causes, Path(report.source).stem
    found = [next((cause for cause in known if cause.fits(source, item.row.inputs)), None) for item in worst]
    listed = list(dict.fromkeys(cause for cause in found if cause))
    columns = {
        "line": [str(item.row.line) for item in worst],
        "limited by, predicted": [limiter_words(item.predicted.limiter) for item in worst],
        heading: [beside(item) or "-" for item in worst] if beside else [],
        "other rows of this kernel": [_others(item, scored) for item in worst],
        "known cause": [f"({listed.index(cause) + 1})" if cause else UNKNOWN for cause in found],
    }
    filled = {head: cells for head, cells in columns.items() if cells}
    rows = list(zip(*filled.values(), strict=True))
    told = [f"{i}. {_told(cause, source, scored)}" for i, cause in enumerate(listed, 1)]
    return "\n\n".join([table(list(filled), rows), *(["\n".join(told)] if told else [])])


def _others(item: Scored, scored: Sequence[Scored]) -> str:
    """Errors of the rows of the same kernel or tile."""
    kernel = _kernel(item.row.inputs)
    errors = [other.error_pct for other in scored if other is not item and _kernel(other.row.inputs) == kernel]
    if len(errors) < 2:
        return f"1: {errors[0]:+.1f} %" if errors else "none"
    return f"{len(errors)}: {min(errors):+.1f} to {max(errors):+.1f} %"


def _kernel(inputs: Inputs) -> tuple[Any, ...]:
    return tuple(getattr(inputs, name) for name in KERNEL_FIELDS)


def _told(cause: Cause, source: str, scored: Sequence[Scored]) -> str:
    """The cause, and the errors of all rows that it fits."""
    errors = [item.error_pct for item in scored if cause.fits(source, item.row.inputs)]
    if len(errors) == 1:
        return cause.why
    mape, bias = (sum(values) / len(errors) for values in (map(abs, errors), errors))
    return f"{cause.why} The {len(errors)} rows of this kind: MAPE {mape:.1f} %, bias {bias:+.1f} %."
