"""What a burst of launches costs beside launches that lie apart, and how far two measurements of a kernel differ."""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import mean, median

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
    lines = [
        f"| {group} | {len(off)} | {mean(map(abs, off)):.1f} | {median(map(abs, off)):.1f} | {mean(off):+.1f} | "
        f"{100 * sum(abs(x) > FAR_PCT for x in off) / len(off):.0f} |"
        for group, off in sorted(apart.items())
    ]
    return "\n".join(
        [
            f"## How well {first.name} repeats",
            "",
            f"The same kernels in {again.name}, measured in another run with launches apart. What {first.name} took",
            "more or less, in percent; no prediction can be nearer to both.",
            "",
            f"| kernels | n | mean | median | bias | over {FAR_PCT} %, in % of rows |",
            "| --- | --- | --- | --- | --- | --- |",
            *lines,
        ]
    )


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
