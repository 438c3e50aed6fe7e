"""What a burst of launches costs beside launches that lie apart, and how far two measurements of a kernel differ."""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import mean, median
from typing import Any

from hwmodels.errors import ConfigError
from sim.validation.timed import read, recognised

FAR_PCT = 10
SHORT_US = 10
SAME = ("m", "n", "k", "dtype", "layout", "op", "l2", "kernel", "grid")


def burst_section(bursts: Path, spaced: Path) -> str:
    """A section for the docs: the kernels of `spaced` that `bursts` (both as gemm.csv) has too, with both times.

    Raises OSError where a table cannot be read.
    """
    in_bursts = {tuple(row[name] for name in SAME): row for row in _rows(bursts)}
    lines = []
    for row in _rows(spaced):
        other = in_bursts.get(tuple(row[name] for name in SAME))
        if other is not None:
            apart, burst = float(row["time_us"]), float(other["time_us"])
            shape = " x ".join(row[name] for name in "mnk")
            lines.append(f"| {shape} | {apart:,.0f} | {burst:,.0f} | {burst / apart:.2f} | {other['sm_mhz_after']} |")
    return "\n".join(
        [
            f"## {spaced.name} against {bursts.name}",
            "",
            "Rows of gemm.csv were measured one after another. A board over its power lowers the clock for all that",
            "follows, for a while: so the same kernel took up to a fifth longer in a row that came",
            "after long ones. A prediction knows the row, not what came before it; it takes a kernel to slow down by",
            "its own burst alone (`activity.sustain_ms`). The clock after the burst tells which rows were held back.",
            "",
            "| m x n x k | launches apart, us | in a burst, us | ratio | MHz after the burst |",
            "| --- | --- | --- | --- | --- |",
            *lines,
        ]
    )


def repeat_section(first: Path, again: Path) -> str:
    """A section for the docs: how far the times of the kernels that both tables (as gemm.csv) have lie apart, by type.

    Raises OSError where a table cannot be read.
    """
    before = {tuple(row[name] for name in SAME): float(row["time_us"]) for row in _rows(first)}
    apart: dict[str, list[float]] = {}
    for row in _rows(again):
        time_us = before.get(tuple(row[name] for name in SAME))
        if time_us is not None:
            for group in ("all", row["dtype"], *(["under 10 us"] if time_us < SHORT_US else [])):
                apart.setdefault(group, []).append(100 * (time_us / float(row["time_us"]) - 1))
    return _repeats(first, again, "another run with launches apart", apart)


def _repeats(first: Path, again: Path, how: str, apart: dict[str, list[float]]) -> str:
    """The section: by group, how far the first time is from the second, percent of the second."""
    lines = [
        f"| {group} | {len(off)} | {mean(map(abs, off)):.1f} | {median(map(abs, off)):.1f} | {mean(off):+.1f} | "
        f"{100 * sum(abs(x) > FAR_PCT for x in off) / len(off):.0f} |"
        for group, off in sorted(apart.items())
    ]
    return "\n".join(
        [
            f"## How well {first.name} repeats",
            "",
            f"The same kernels in {again.parent.name}/{again.name}, measured in {how}. What {first.name} took",
            "more or less, in percent; no prediction can be nearer to both.",
            "",
            f"| kernels | n | mean | median | bias | over {FAR_PCT} %, in % of rows |",
            "| --- | --- | --- | --- | --- | --- |",
            *lines,
        ]
    )


def timed_repeat_section(first: Path, again: Path) -> str:
    """As `repeat_section`, for the questions that two tables of one kind of `sim.validation.timed` both ask, by group.

    Raises OSError and ConfigError where one cannot be read.
    """
    table = recognised(first)
    if table is None:
        raise ConfigError(f"table = {str(first)!r}: must be one of timed operations")
    before: dict[tuple[Any, str], list[float]] = {}  # a step launches the same kernel more than once
    for one in read(table, first).asked:
        before.setdefault((one.question, one.column), []).append(one.measured_us)
    apart: dict[str, list[float]] = {}
    for other in read(table, again).asked:
        times = before.get((other.question, other.column))
        if times:
            group = table.groups(other.question, other.column)[0]
            apart.setdefault(group, []).append(100 * (times.pop(0) / other.measured_us - 1))
    return _repeats(first, again, "another run", apart)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
