"""Errors of a validation, drawn: against the measured time and against the size of the GEMM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from viz.palette import BLUE, GREEN, ORANGE, PURPLE, SKY

if TYPE_CHECKING:
    from sim.validation.report import Report

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY)
LIMIT_PCT = 40
"""Errors beyond are drawn at the edge."""


def draw_errors(reports: Sequence[Report]) -> Figure:
    """Signed error in percent of every row against its time (us) and its FLOPs, a colour a table."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    by_time, by_size = figure.subplots(1, 2, sharey=True)
    for report, colour in zip(reports, COLOURS, strict=False):
        errors = [min(max(100 * (p.predicted_us / p.measured_us - 1), -LIMIT_PCT), LIMIT_PCT) for p in report.points]
        for axes, values in (
            (by_time, [p.measured_us for p in report.points]),
            (by_size, [p.flop for p in report.points]),
        ):
            axes.scatter(values, errors, s=7, alpha=0.45, color=colour, linewidths=0, label=report.source)
    for axes, label in ((by_time, "measured time (µs)"), (by_size, "size of the GEMM (FLOP)")):
        axes.set_xscale("log")
        axes.set_xlabel(label)
        axes.axhline(0, color="0.3", linewidth=0.8)
        axes.grid(alpha=0.25)
    by_time.set_ylabel("error of the prediction (%)")
    by_time.set_ylim(-LIMIT_PCT * 1.05, LIMIT_PCT * 1.05)
    legend = by_size.legend(markerscale=2.5, frameon=False, loc="lower left")
    for handle in legend.legend_handles:
        handle.set_alpha(1)
    return figure
