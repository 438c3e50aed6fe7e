"""One sheet of a tile search: best time of each tile, slices through the best with their cliffs, the Pareto front."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sim.tile_front import AGAINST
from sim.tile_rows import TileRow
from sim.tile_slices import Cliff, Slice
from viz import levels, palette, words
from viz.sheet import write_figure
from viz.tiles.terminal import AGAINST_WORDS, Ranking, amount_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_IN, HEIGHT_IN, FRONT_IN, DPI, SIZE = 13.0, 7.2, 3.4, 150, 9.0
CHART_IN, SLICES_APART_IN = 5.45, 0.5
PALEST = "#EAF2F8"
SLOWEST = 3.0
"""Times the best from which a cell is of the palest colour."""
INK_ON_DARK = 0.55
LEAST_SPAN = 0.02
"""Of the longest time of a slice: flatter ones are drawn as flat as they are."""
NEAR_POINTS = 12.0
"""Ranks that would stand closer than this to the one before are not written."""
PARAMETERS = {
    "stages": "stages",
    "block_k": "block_k, elements",
    "warps": "warps of a CTA",
    "cluster_m": "CTAs of a cluster along m",
    "group": "group: tiles walked together",
}


@dataclass(frozen=True)
class Pictured:
    """What is drawn beside the ranking."""

    ranking: Ranking
    cells: Mapping[tuple[int, int], TileRow]
    """(block_m, block_n) -> the best configuration of that tile."""
    slices: Sequence[Slice]


def figure(pictured: Pictured) -> Figure:
    """The sheet on a new Figure (no global state: safe in threads and servers)."""
    from matplotlib.figure import Figure

    front = pictured.ranking.front
    height_in = HEIGHT_IN + (FRONT_IN if front else 0.0)
    sheet = Figure(figsize=(WIDTH_IN, height_in), dpi=DPI, facecolor=palette.PAPER)
    _title(sheet, pictured.ranking, height_in)
    unit, low = 1.0 / height_in, (0.62 + (FRONT_IN if front else 0.0)) / height_in
    _draw_cells(sheet.add_axes((0.06, low, 0.44, CHART_IN * unit)), pictured)
    scale, time_unit = _time_unit(pictured.ranking.rows[0].time_s)
    height = (CHART_IN - SLICES_APART_IN) / 2 * unit
    for i, each in enumerate(pictured.slices):
        left, bottom = 0.55 + 0.235 * (i % 2), low + (1 - i // 2) * (height + SLICES_APART_IN * unit)
        ax = sheet.add_axes((left, bottom, 0.205, height))
        _draw_slice(ax, each, scale)
        if i == 0:
            _heading(
                ax,
                f"Through the best: time over one parameter, {time_unit}",
                "all else as it is; its own value is filled",
            )
    if front:
        _draw_front(sheet.add_axes((0.06, 0.55 * unit, 0.92, (FRONT_IN - 1.05) * unit)), pictured.ranking)
    return sheet


def save_figure(pictured: Pictured, path: str | os.PathLike[str]) -> None:
    """Draw `figure` into a .png, .svg or .pdf file, whole or not at all.

    Raises `ConfigError` for another suffix or a path that cannot be written.
    """
    write_figure(lambda: figure(pictured), path)


def _title(sheet: Figure, ranking: Ranking, height_in: float) -> None:
    work, best = ranking.found.gemm.describe(), ranking.rows[0]
    look: dict[str, Any] = {"ha": "left", "va": "top", "color": palette.INK}
    name = f"Tiles of {levels.work_title(work)} ({levels.setting_text(work)}) on {ranking.gpu.label}"
    sheet.text(0.012, 1.0 - 0.12 / height_in, name, fontsize=12.5, weight="bold", **look)
    text = f"Best: {best.name}, {words.time_text(best.time_s)}, {words.flops_text(best.flops_per_s)}"
    sheet.text(0.012, 1.0 - 0.42 / height_in, text, fontsize=SIZE, **look)


def _heading(ax: Axes, text: str, below: str = "") -> None:
    ax.set_title(text, fontsize=SIZE, weight="bold", color=palette.INK, loc="left", pad=16 if below else 5)
    if below:
        offset: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points"}
        ax.annotate(below, (0.0, 1.0), (0, 5), fontsize=0.88 * SIZE, color=palette.MUTED, va="bottom", **offset)


# The heatmap.
def _draw_cells(ax: Axes, pictured: Pictured) -> None:
    """Tiles by their sides, the best time of each inside, darker where it is less; the best of all has a frame."""
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.patches import Rectangle

    sides_m, sides_n = (sorted({cell[i] for cell in pictured.cells}) for i in (0, 1))
    best_s = min(each.time_s for each in pictured.cells.values())
    colours = LinearSegmentedColormap.from_list("tiles", [PALEST, palette.SKY, palette.BLUE])
    scale, unit = _time_unit(best_s)
    text_size = _cell_text_size(ax, len(sides_m), len(sides_n))
    for (block_m, block_n), each in pictured.cells.items():
        x, y = sides_n.index(block_n), sides_m.index(block_m)
        shade = max(0.0, (SLOWEST - each.time_s / best_s) / (SLOWEST - 1))
        edge = {"edgecolor": palette.INK, "linewidth": 1.6, "zorder": 3} if each.time_s == best_s else {}
        ax.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colours(shade), **edge))  # type: ignore[arg-type]
        ink = palette.PAPER if shade > INK_ON_DARK else palette.INK
        weight = "bold" if edge else "normal"
        text = words.three_digits(each.time_s * scale)
        ax.text(x, y, text, fontsize=text_size, color=ink, weight=weight, ha="center", va="center", zorder=4)
    palette.tidy(ax, SIZE)
    for axis, sides, name in ((ax.xaxis, sides_n, "block_n"), (ax.yaxis, sides_m, "block_m")):
        axis.set_ticks(range(len(sides)), [str(side) for side in sides])
        axis.label.set(text=name, fontsize=SIZE, color=palette.INK)
    ax.tick_params(length=0, labelsize=min(0.88 * SIZE, 1.15 * text_size))
    ax.set_xlim(-0.55, len(sides_n) - 0.45)
    ax.set_ylim(-0.55, len(sides_m) - 0.45)
    said = f"over all other parameters; palest: {SLOWEST:g} × the best or more; gaps: not on the menu"
    _heading(ax, f"Best time of each tile, {unit}", said)


def _cell_text_size(ax: Axes, n_rows: int, n_columns: int) -> float:
    """Points at which "1,234" fits a cell."""
    width, height = palette.size_inches(ax)
    wide = 72 * width / (n_columns + 0.1) / palette.text_width_points("1,234", 1.0)
    return min(0.88 * SIZE, wide, 0.7 * 72 * height / (n_rows + 0.1))


def _time_unit(time_s: float) -> tuple[float, str]:
    """Units a second, and the unit, that suit times from `time_s` on."""
    return next((scale, unit) for least, scale, unit in _UNITS if time_s >= least)


_UNITS = ((1.0, 1.0, "s"), (1e-3, 1e3, "ms"), (0.0, 1e6, "µs"))


# Slices.
def _draw_slice(ax: Axes, found: Slice, scale: float) -> None:
    """Time, in units of which a second has `scale`, over the values of one parameter, evenly spaced; the tile's own is
    filled, cliffs are dashed and named."""
    rows = [(i, point.row) for i, point in enumerate(found.points) if point.row]
    xs, ys = [i for i, _ in rows], [each.time_s * scale for _, each in rows]
    palette.tidy(ax, SIZE)
    ax.plot(xs, ys, color=palette.BLUE, linewidth=1.3, marker="o", markersize=4.5, markerfacecolor=palette.PAPER)
    own = next(i for i, point in enumerate(found.points) if point.value == found.value)
    ax.plot([own], [ys[xs.index(own)]], "o", color=palette.BLUE, markersize=7)
    span = max(max(ys) - min(ys), LEAST_SPAN * max(ys))
    ax.set_ylim(min(ys) - 0.15 * span, max(ys) + 0.2 * span)
    ax.set_xlim(-0.5, len(found.points) - 0.5)
    ax.set_xticks(range(len(found.points)), [f"{point.value:,}" for point in found.points])
    ax.set_xlabel(PARAMETERS[found.parameter], fontsize=SIZE, color=palette.INK, labelpad=2)
    for cliff in found.cliffs:
        _mark_cliff(ax, cliff, found)


def _mark_cliff(ax: Axes, cliff: Cliff, found: Slice) -> None:
    """A dashed line before the value with its name along it, on the side where the curve is lower; where nothing fits
    any more, the ground is grey."""
    x, before, after = cliff.i_point - 0.5, found.points[cliff.i_point - 1].row, found.points[cliff.i_point].row
    ax.axvline(x, color=palette.MUTED, linewidth=0.8, linestyle=(0, (4, 2)), zorder=0)
    if after is None:
        ax.axvspan(x, len(found.points) - 0.5, color=palette.IDLE, zorder=-1, linewidth=0)
    left = before is not None and after is not None and after.time_s > before.time_s
    room = 0.97 * palette.size_inches(ax)[1] * 72
    size = min(0.75 * SIZE, room / palette.text_width_points(cliff.name, 1.0))
    style: dict[str, Any] = {"fontsize": size, "color": palette.INK, "rotation": 90, "va": "top", "zorder": 1}
    at: dict[str, Any] = {"xycoords": ax.get_xaxis_transform(), "textcoords": "offset points"}
    ax.annotate(cliff.name, (x, 0.99), (-2 if left else 2, 0), ha="right" if left else "left", **at, **style)


# The Pareto front.
def _draw_front(ax: Axes, ranking: Ranking) -> None:
    """All that were simulated as dots, those that none beats in both joined and named by rank."""
    against = ranking.against or ""
    name, (scale, unit) = AGAINST[against], _time_unit(ranking.rows[0].time_s)
    palette.tidy(ax, SIZE)
    for rows, style in (
        (ranking.rows, {"color": palette.RULE, "markersize": 3.0, "linestyle": "none"}),
        (ranking.front, {"color": palette.BLUE, "markersize": 5.5, "drawstyle": "steps-post", "linewidth": 1.2}),
    ):
        ax.plot([each.time_s * scale for each in rows], [getattr(each, name) for each in rows], marker="o", **style)  # type: ignore[arg-type]
    ax.set_xscale("log")
    ax.set_yscale("log" if against in ("l2", "energy") else "linear")
    ax.set_xlim(0.96 * ranking.front[0].time_s * scale, FRONT_ROOM * ranking.front[-1].time_s * scale)
    _front_ticks(ax, against)
    _write_ranks(ax, ranking, name, scale)
    ax.set_xlabel(f"time, {unit}", fontsize=SIZE, color=palette.INK)
    said = f"{len(ranking.front)} of {len(ranking.rows):,} configurations; numbers are ranks by time"
    _heading(ax, f"Time against {AGAINST_WORDS[against]}", said)


FRONT_ROOM = 1.5
"""Times beyond that of the slowest of the front, as a factor, are not drawn."""


def _front_ticks(ax: Axes, against: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MultipleLocator, NullFormatter

    for axis, text in ((ax.xaxis, lambda value: f"{value:,g}"), (ax.yaxis, lambda value: amount_text(against, value))):
        if axis.get_scale() == "log":
            axis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _, text=text: text(value)))
        axis.set_minor_formatter(NullFormatter())
    if against == "smem":
        ax.yaxis.set_major_locator(MultipleLocator(32 * 1024))


def _write_ranks(ax: Axes, ranking: Ranking, name: str, scale: float) -> None:
    """The rank of each of the front, but where it would be written over the one before."""
    ranks, last = {each: i for i, each in enumerate(ranking.rows, 1)}, None
    look: dict[str, Any] = {"textcoords": "offset points", "fontsize": 0.8 * SIZE, "color": palette.INK}
    for each in ranking.front:
        at = (each.time_s * scale, getattr(each, name))
        place = ax.transData.transform(at) * 72 / DPI
        if last is None or max(abs(place - last)) >= NEAR_POINTS:
            ax.annotate(f"{ranks[each]:,}", at, (4, 4), **look)
            last = place
