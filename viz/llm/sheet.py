"""One sheet of a phase: a layer's timeline, time by operation, roofline and memory; and its way into a file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from sim.llm import LlmResult
from viz import palette, words
from viz.llm import facts
from viz.llm.charts import draw_breakdown, draw_memory
from viz.llm.layer import draw_layer, passages
from viz.llm.roofline import draw_roofline
from viz.sheet import write_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH_IN, HEIGHT_IN, PASSAGE_IN, DPI = 13.0, 8.5, 2.8, 150


def figure(result: LlmResult) -> Figure:
    """The pictures on a new Figure (no global state: safe in threads and servers). Names are placed by pixels, so it is
    laid out before it is drawn."""
    from matplotlib.figure import Figure

    step = result.shown
    found = passages(step)
    height_in = HEIGHT_IN + PASSAGE_IN * len(found)
    sheet = Figure(figsize=(WIDTH_IN, height_in), dpi=DPI, facecolor=palette.PAPER)
    _title(sheet, result, height_in)
    top, gap, left = 1.0 - 1.15 / height_in, 0.62 / height_in, 0.07
    unit = 1.0 / height_in
    for passage in found:
        height = (PASSAGE_IN - 0.62) * unit
        draw_layer(sheet.add_axes((left, top - height, 0.905, height)), passage, step)
        top -= height + gap
    height = 4.25 * unit
    draw_breakdown(sheet.add_axes((0.155, top - height, 0.335, height)), step)
    draw_roofline(sheet.add_axes((0.56, top - height, 0.415, height)), step)
    top -= height + gap
    draw_memory(sheet.add_axes((left, 0.4 * unit, 0.74, top - 0.4 * unit)), result)
    return sheet


def _title(sheet: Figure, result: LlmResult, height_in: float) -> None:
    from matplotlib.patches import Patch

    name = f"{result.request.model.name}, {facts.phase_text(result)}, on {result.gpu['label']}"
    step = result.shown
    times = f"{words.time_text(step.host.end_to_end_s)} for {facts.shown_text(result)}; {facts.program_text(result)}"
    look: dict[str, Any] = {"ha": "left", "va": "top", "color": palette.INK}
    sheet.text(0.012, 1.0 - 0.12 / height_in, name, fontsize=12.5, weight="bold", **look)
    sheet.text(0.012, 1.0 - 0.40 / height_in, times, fontsize=9, **look)
    sheet.text(0.012, 1.0 - 0.645 / height_in, "Kernels limited by", fontsize=8.5, **look)
    groups = [*facts.time_by_group(step.ran), facts.IDLE]
    edge = {facts.IDLE: palette.RULE}
    handles = [
        Patch(facecolor=facts.COLOURS[group], edgecolor=edge.get(group, "none"), linewidth=0.4, label=group)
        for group in groups
    ]
    sheet.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0.118, 1.0 - 0.60 / height_in),
        ncols=len(handles),
        fontsize=8.5,
        frameon=False,
        labelcolor=palette.INK,
        handlelength=1.2,
        handleheight=0.8,
        columnspacing=1.0,
        borderaxespad=0.1,
    )


def save_figure(result: LlmResult, path: str | os.PathLike[str]) -> None:
    """Draw `figure` into a .png, .svg or .pdf file, whole or not at all.

    Raises `ConfigError` for another suffix or a path that cannot be written.
    """
    write_figure(lambda: figure(result), path)
