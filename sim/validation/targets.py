"""What the project aims at, beside what it reached: `targets.toml` read against reports of the same tables.

A target is judged on shapes that no constant was fitted to; where all rows of a group had a part in a fit, on all.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwmodels import rows
from hwmodels.errors import ConfigError
from sim.validation.groups import UNFITTED, unfitted
from sim.validation.report import COLUMNS, Report, table

if TYPE_CHECKING:
    from hwmodels.spec import Gpu

PATH = Path(__file__).with_name("targets.toml")
FITTED = {"half": "half of the shapes", "none": "no row", "all": "all rows"}
"""What constants were fitted to -> in words."""
YES, NO = "yes", "**no**"
HEADINGS = ("aim", "table: group", "score", "limit", "not fitted", "rows", "all rows", "rows", "fitted to", "met")


@dataclass(frozen=True)
class Target:
    """One figure aimed at: a score of one group of one table, in the score's unit."""

    what: str
    table: str
    """The report's source without its ending."""
    group: str
    score: str
    limit: float | None
    """None: reported only."""
    at_least: bool
    """Whether the limit is a lower one."""
    fitted: str
    """A key of `FITTED`."""
    further: bool
    """Whether its table was measured later."""

    def met(self, figure: float) -> bool | None:
        """Whether the figure keeps the limit, unrounded; None without one."""
        if self.limit is None:
            return None
        return figure >= self.limit if self.at_least else figure <= self.limit


@dataclass(frozen=True)
class Reached:
    """A target beside its figures and the rows they are of: on shapes not fitted (None where all were), on all rows."""

    target: Target
    not_fitted: tuple[float, int] | None
    overall: tuple[float, int]

    @property
    def met(self) -> bool | None:
        """Whether the figure that counts keeps the limit; None without one."""
        return self.target.met((self.not_fitted or self.overall)[0])


def read_targets(path: Path = PATH) -> tuple[Target, ...]:
    """Every target of a file, in its order. Raises ConfigError where it is broken or names an unknown score."""
    try:
        read = tomllib.loads(path.read_text(encoding="utf-8"))
        return tuple(target for entry in read["targets"] for target in _targets(entry, read["tables"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path.name}: {type(error).__name__}: {error} (targets)") from None


def _targets(entry: Mapping[str, Any], tables: Mapping[str, str]) -> Iterable[Target]:
    """One for each of an entry's tables, groups and scores."""
    limits: list[tuple[str, float | None, bool]]
    limits = [(score, float(limit), False) for score, limit in entry.get("at_most", {}).items()]
    limits += [(score, float(limit), True) for score, limit in entry.get("at_least", {}).items()]
    limits += [(score, None, False) for score in entry.get("reported", [])]
    for name, further in [(t, False) for t in entry["tables"]] + [(t, True) for t in entry.get("further", [])]:
        fitted = entry.get("fitted", tables[name])
        if fitted not in FITTED:
            raise ConfigError(f"fitted = {fitted!r}: must be one of {', '.join(FITTED)} (target {entry['what']})")
        for group in entry["groups"]:
            for score, limit, at_least in limits:
                if score not in COLUMNS:
                    raise ConfigError(f"score = {score!r}: must be one of {', '.join(COLUMNS)} ({entry['what']})")
                yield Target(entry["what"], name, group, score, limit, at_least, fitted, further)


def reached(target: Target, reports: Sequence[Report]) -> Reached:
    """The target's figures. Raises ConfigError where no report has its table, group or score."""
    found = next((report for report in reports if Path(report.source).stem == target.table), None)
    if found is None:
        raise ConfigError(f"table = {target.table!r}: no such report (target {target.what})")
    overall = _figure(target, found, target.group)
    if target.fitted == "half":
        whole = target.group == found.overall["name"]
        return Reached(target, _figure(target, found, UNFITTED if whole else unfitted(target.group)), overall)
    return Reached(target, overall if target.fitted == "none" else None, overall)


def _figure(target: Target, report: Report, name: str) -> tuple[float, int]:
    group = next((group for group in (*report.groups, report.overall) if group["name"] == name), None)
    if group is None:
        raise ConfigError(f"group = {name!r}: not in {report.source} (target {target.what})")
    if group.get(target.score) is None:
        raise ConfigError(f"score = {target.score!r}: group {name!r} of {report.source} has none ({target.what})")
    return float(group[target.score]), int(group["n"])


def targets_section(gpu: Gpu, reports: Sequence[Report], path: Path = PATH) -> str:
    """A section for the docs: each target of the file with its figures, those of tables measured later by themselves.

    Raises ConfigError as `read_targets` and `reached` do.
    """
    found = [reached(target, reports) for target in read_targets(path)]
    first, later = ([_row(each) for each in found if each.target.further is further] for further in (False, True))
    first += _constants(gpu, path)
    return "\n\n".join(
        [
            "## Targets",
            _TEXT.format(met=_count(first)),
            table(HEADINGS, first),
            "### The same on tables measured later",
            _LATER.format(met=_count(later)),
            table(HEADINGS, later),
        ]
    )


_TEXT = """{met} are met. "not fitted" is the figure on shapes that no constant was fitted to, and decides; where no
row was fitted to, it is that of all rows. Where all rows were, all rows decide. Worst rows are explained below each
table."""
_LATER = """{met} are met. Nothing was fitted to these tables, but for three values read off rows of counters_more.csv
named pitch and those of tf32. tile_choice.csv was looked at, beside even-hash shapes, when L2's rate and the opening
of DRAM rows were corrected. gemm_again.csv has the kernels of gemm.csv with launches apart, so half of its shapes were
fitted."""


def _count(lines: Sequence[Sequence[str]]) -> str:
    met = [line[-1] for line in lines]
    return f"{met.count(YES)} of {met.count(YES) + met.count(NO)}"


def _row(each: Reached) -> list[str]:
    target = each.target
    sign = "" if target.limit is None else f"{'>=' if target.at_least else '<='} {target.limit:g}"
    figures = [
        ("-", "-") if pair is None else (_text(pair[0]), str(pair[1])) for pair in (each.not_fitted, each.overall)
    ]
    met = "reported" if each.met is None else _yes(each.met)
    where = f"{target.table}: {target.group}"
    return [
        target.what,
        where,
        COLUMNS[target.score],
        sign or "-",
        *figures[0],
        *figures[1],
        FITTED[target.fitted],
        met,
    ]


def _yes(met: bool) -> str:
    return YES if met else NO


def _text(figure: float) -> str:
    return f"{figure:.3f}" if abs(figure) < 1 else f"{figure:.2f}"


def _constants(gpu: Gpu, path: Path) -> list[list[str]]:
    """A row for each limit on how many constants are fitted in some sections of the GPU's file, or in the others."""
    fitted = [row.key.partition(".")[0] for row in rows(gpu) if row.kind == "fitted"]
    lines = []
    for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("constants", []):
        listed, most = entry.get("of", entry.get("without")), entry["at_most"]
        n = sum((section in listed) is ("of" in entry) for section in fitted)
        where = f"{gpu.name}: {'all but ' if 'without' in entry else ''}{', '.join(listed)}"
        lines.append([entry["what"], where, "number", f"<= {most}", "-", "-", str(n), "-", "-", _yes(n <= most)])
    return lines
