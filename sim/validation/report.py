"""What a validation found: the JSON others script against, rows for a terminal table, and a page of markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.validation.scores import Scored

MIN_SHOWN = 5
"""Rows a group needs to appear in the tables a person reads; the JSON has every group."""

COLUMNS = {
    "name": "group",
    "n": "n",
    "skipped": "skipped",
    "mape_pct": "MAPE %",
    "roofline_mape_pct": "roofline %",
    "median_ape_pct": "median %",
    "bias_pct": "bias %",
    "p95_ape_pct": "P95 %",
    "kendall_tau": "Kendall tau",
    "regret_pct": "regret %",
    "regret_worst_pct": "worst regret %",
    "regret_top3_pct": "top-3 regret %",
    "sm_cycles_mape_pct": "cycles %",
    "sm_mhz_mape_pct": "clock %",
    "watt_mape_pct": "power %",
    "dram_read_bytes_mape_pct": "DRAM read %",
    "dram_write_bytes_mape_pct": "DRAM write %",
    "l2_read_bytes_mape_pct": "L2 read %",
    "sm_received_bytes_mape_pct": "SM bytes %",
    "l2_hit_points": "L2 hit, points",
    "tensor_active_points": "tensor, points",
}
"""Score -> heading. Errors are of time unless the heading says otherwise."""

_WORST_COLUMNS = ("line", "m x n x k", "kernel or tile", "how", "measured us", "predicted us", "error %")
_WORST_TIMED = ("line", "column", "kernel or tile", "measured us", "predicted us", "error %")
"""Of tables of other operations, whose questions say in words what ran."""


@dataclass(frozen=True)
class Point:
    """One row compared: times in us, FLOPs of its GEMM; of a single GEMM the row and all that was predicted of it."""

    measured_us: float
    predicted_us: float
    flop: float
    scored: Scored | None = None


@dataclass(frozen=True)
class Report:
    """The scores of one table. `to_dict` is the JSON; the other fields say what was compared with what."""

    gpu: str
    kind: str
    source: str
    """The measurements' file name."""
    groups: tuple[dict[str, Any], ...]
    overall: dict[str, Any]
    skipped: tuple[dict[str, Any], ...]
    """{"row": line of the file, "reason"}, in row order."""
    n_rows: int
    """Rows the table has, unreadable ones included."""
    skipped_by_group: dict[str, int] = field(default_factory=dict)
    """Readable rows that could not be modelled, a group."""
    fitted: tuple[dict[str, Any], ...] = ()
    """Fitted constants of the GPU: {"name", "value", "unit", "source"}."""
    notes: tuple[str, ...] = ()
    points: tuple[Point, ...] = ()
    """The rows compared, in row order."""

    def to_dict(self) -> dict[str, Any]:
        """{"groups": [...], "overall": {...}, "skipped": [...]}, null where a score does not apply."""
        return {"groups": list(self.groups), "overall": self.overall, "skipped": list(self.skipped)}

    @property
    def shown(self) -> list[dict[str, Any]]:
        """Groups large enough for a table a person reads, then all rows."""
        return [*(group for group in self.groups if group["n"] >= MIN_SHOWN), self.overall]

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Headings and text rows, without the columns that this kind of table does not have."""
        scores = [{**group, "skipped": self._n_skipped(group)} for group in self.shown]
        keys = [key for key in COLUMNS if any(group.get(key) is not None for group in scores)]
        rows = [[_cell(key, group.get(key)) for key in keys] for group in scores]
        return [COLUMNS[key] for key in keys], rows

    def _n_skipped(self, group: dict[str, Any]) -> int:
        """Rows of a group that could not be modelled; of all rows, the unreadable ones too."""
        return len(self.skipped) if group is self.overall else self.skipped_by_group.get(group["name"], 0)

    def worst_table(self) -> tuple[list[str], list[list[str]]]:
        """Headings and text rows of the rows with the largest errors."""
        rows = self.overall["worst"]
        if rows and "what" in rows[0]:
            return list(_WORST_TIMED), [_worst_timed_row(row) for row in rows]
        return list(_WORST_COLUMNS), [_worst_row(row) for row in rows]

    def skipped_reasons(self) -> list[tuple[str, int]]:
        """Reasons for skipping with the number of rows each, commonest first."""
        return Counter(entry["reason"] for entry in self.skipped).most_common()


def _cell(key: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:+.1f}" if key == "bias_pct" else f"{value:.3f}" if key == "kendall_tau" else f"{value:.1f}"
    return str(value)


def _worst_timed_row(row: dict[str, Any]) -> list[str]:
    figures = f"{row['measured_us']:.4g}", f"{row['predicted_us']:.4g}", f"{row['error_pct']:+.1f}"
    return [str(row["row"]), row["column"], row["what"], *figures]


def _worst_row(row: dict[str, Any]) -> list[str]:
    how = [row["dtype"], row["layout"], row["l2"], row["op"]]
    return [
        str(row["row"]),
        f"{row['m']} x {row['n']} x {row['k']}",
        _tile_text(row) if "block_m" in row else row.get("kernel", "not known"),
        " ".join(how),
        f"{row['measured_us']:.4g}",
        f"{row['predicted_us']:.4g}",
        f"{row['error_pct']:+.1f}",
    ]


def _tile_text(row: dict[str, Any]) -> str:
    tile = f"{row['block_m']}x{row['block_n']}x{row['block_k']}"
    return f"{tile}, {row['stages']} stages, {row['warps']} warps, group {row['group_m']}"


def markdown(
    reports: Sequence[Report],
    title: str = "Validation",
    first: Sequence[str] = (),
    more: Sequence[str] = (),
    picture: str | None = None,
    origins: str | None = None,
    explained: Mapping[str, str] | None = None,
) -> str:
    """A page for the docs: `first` sections, `picture` (its place), by group with the roofline beside, worst rows with
    what is `explained` of them (by the report's source), rows skipped, `more` sections, and the `origins` of all
    values, or else what was fitted."""
    drawn = [f'<img src="{picture}" alt="Error of every row against its time and against its size">'] if picture else []
    shown = [*first, *drawn]
    sections = [*(_section(report, (explained or {}).get(report.source)) for report in reports), *more]
    fitted = {constant["name"]: constant for report in reports for constant in report.fitted}
    last = _fitted_section(list(fitted.values())) if origins is None else origins
    return "\n\n".join([f"# {title}", _INTRODUCTION, *shown, *sections, last]) + "\n"


_INTRODUCTION = f"""Errors are of time, in percent of the measured time, unless a heading says otherwise. MAPE is the
mean absolute error, median and P95 are of the absolute error, bias is the mean signed error (positive: predicted too
slow). "roofline" is the MAPE of t0 + max(FLOPs / P, bytes / B) on the same rows, its three constants fitted for least
MAPE on the shapes of the other folds. Kendall tau and regret are means over shapes: the regret is how much slower the
tile predicted fastest is than the fastest measured one. Groups overlap; those of fewer than {MIN_SHOWN} rows are in
the JSON alone.

Constants marked fitted saw only shapes whose hash is even; "shapes not fitted" are the others. Three measured values
are medians or lines through all rows of the H200's tables and marked microbenchmark: the memset before long persistent
kernels, the split-K reduction's line, and the 1.2 us that Nsight Compute adds to rows of counters.csv."""


def _section(report: Report, explained: str | None) -> str:
    share = 100 * len(report.skipped) / report.n_rows if report.n_rows else 0.0
    head = (
        f"## {Path(report.source).stem} on {report.gpu}\n\n{report.source}: {report.overall['n']} rows compared, "
        f"{len(report.skipped)} skipped ({share:.1f} %)."
    )
    parts = [head, *report.notes, table(*report.table())]
    if report.overall["worst"]:
        parts += ["### Worst rows", table(*report.worst_table()), *([explained] if explained else [])]
    if report.skipped:
        reasons = [[str(n), reason] for reason, n in report.skipped_reasons()]
        parts += ["### Rows skipped", table(["rows", "reason"], reasons)]
    return "\n\n".join(parts)


def _fitted_section(constants: Sequence[dict[str, Any]]) -> str:
    if not constants:
        return "## What is fitted\n\nNothing: every value comes from a datasheet, a microbenchmark or a derivation."
    rows = [[c["name"], f"{c['value']:g}", c["unit"], c["source"]] for c in constants]
    return "## What is fitted\n\n" + table(["constant", "value", "unit", "fitted on"], rows)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table of text cells."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(_escaped(cell) for cell in line) + " |" for line in lines)


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")
