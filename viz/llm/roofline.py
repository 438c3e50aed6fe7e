"""Every operation of a step on one roofline: FLOPs over HBM bytes against FLOPs a second, as large as its time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sim.step import StepResult, peak_flops_per_s
from viz import palette, words
from viz.llm import facts
from viz.roofline import plain_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LARGEST_MARK, SMALLEST_MARK = 20.0, 3.5
"""Diameters in points; area goes with time."""
NAMED = 0.008
"""Share of the step from which an operation is named."""
BEYOND = 4.0
"""Marks stand at this many times the ridge's intensity, or that of products, if next to nothing came from HBM."""


@dataclass(frozen=True)
class Mark:
    """One operation, all its kernels together."""

    name: str
    intensity: float
    tflops: float
    share: float
    group: str

    @property
    def points(self) -> float:
        """Diameter."""
        return max(LARGEST_MARK * math.sqrt(self.share), SMALLEST_MARK)


def marks(step: StepResult) -> tuple[Mark, ...]:
    """Operations that have FLOPs, the longest first."""
    found = []
    for name, rans in facts.by_name(step).items():
        kernels = [kernel for ran in rans for kernel in ran.kernels]
        flops = sum(ran.operation.work.flops for ran in rans)
        time_s, moved = sum(kernel.time_s for kernel in kernels), facts.hbm_bytes(kernels)
        groups = facts.time_by_group(rans)
        if flops:
            group = max(groups, key=groups.__getitem__)
            intensity = flops / moved if moved else float("inf")
            found.append(Mark(name, intensity, flops / time_s / 1e12, time_s / step.wall_s, group))
    return tuple(found)


def edge(step: StepResult, found: Sequence[Mark]) -> float:
    """Where marks stand whose data came from L2."""
    ridge = peak_flops_per_s(step.gpu, step.step) / (step.gpu.hbm.bandwidth_gb_per_s * 1e9)
    products = [mark.intensity for mark in found if mark.intensity < ridge * 100 and mark.share >= NAMED]
    return BEYOND * max([ridge, *products])


def draw_roofline(ax: Axes, step: StepResult) -> None:
    """Roofs of HBM, tensor cores and CUDA cores, and a mark for every operation with FLOPs."""
    size = palette.points(ax, 5.2, 3.6, 8.0)
    palette.tidy(ax, size)
    every, peak = marks(step), peak_flops_per_s(step.gpu, step.step) / 1e12
    hbm = step.gpu.hbm.bandwidth_gb_per_s / 1e3  # TB/s
    widest = edge(step, every)
    found = [replace(mark, intensity=min(mark.intensity, widest)) for mark in every]
    _ranges(ax, found, peak, hbm)
    _roofs(ax, step, peak, hbm, size)
    for mark in found:  # small ones on top
        look: dict[str, Any] = {"markeredgecolor": palette.INK, "markeredgewidth": 0.5, "markersize": mark.points}
        look |= {"color": facts.COLOURS[mark.group], "marker": ">" if mark.intensity == widest else "o"}
        ax.plot([mark.intensity], [mark.tflops], **look, linestyle="none")
    _name_hbm_roof(ax, found, peak / hbm, hbm, size)
    _name(ax, found, size)
    plain_ticks(ax)
    ax.set_xlabel("FLOPs for each byte of HBM traffic", fontsize=size, labelpad=2)
    ax.set_ylabel("TFLOP/s", fontsize=size, labelpad=2)
    ax.grid(which="major", color=palette.RULE, linewidth=0.35)
    ax.set_axisbelow(True)
    beyond = "; ▶ data from L2" if any(mark.intensity == widest for mark in found) else ""
    title = f"Every operation on the roofline; area is time{beyond}"
    ax.set_title(title, fontsize=1.1 * size, color=palette.INK, loc="left", weight="bold", pad=3)


def _ranges(ax: Axes, found: Sequence[Mark], peak: float, hbm: float) -> None:
    x = [mark.intensity for mark in found] + [peak / hbm]
    y = [mark.tflops for mark in found] + [peak]
    ax.set(xscale="log", yscale="log", xlim=(min(x) / 3, max(x) * 5), ylim=(min(y) / 4, max(y) * 2.5))


def _roofs(ax: Axes, step: StepResult, peak: float, hbm: float, size: float) -> None:
    low, high = ax.get_xlim()
    ridge = peak / hbm
    look: dict[str, Any] = {"linewidth": 1.2, "zorder": 1.5}
    ax.plot([low, ridge], [low * hbm, peak], color=palette.LEVELS["hbm"], **look)
    ax.plot([ridge, high], [peak, peak], color=palette.LEVELS["tensor"], **look)
    text: dict[str, Any] = {"fontsize": 0.9 * size, "color": palette.INK}
    ax.annotate(f"{words.flops_text(peak * 1e12)} at boost", (high, peak), (-3, 3), textcoords="offset points",
                ha="right", va="bottom", **text)  # fmt: skip
    cuda = step.gpu.cuda_core.fp32_flops_per_clk_per_sm * step.gpu.sm.count * step.gpu.clock.boost_mhz / 1e6
    if cuda < peak:
        ax.plot([cuda / hbm, high], [cuda, cuda], color=palette.MUTED, linewidth=0.8, linestyle=(0, (4, 2)), zorder=1.5)
        ax.annotate(f"CUDA cores {words.flops_text(cuda * 1e12)}", (high, cuda), (-3, 2), textcoords="offset points",
                    ha="right", va="bottom", **text)  # fmt: skip


def _name_hbm_roof(ax: Axes, found: Sequence[Mark], ridge: float, hbm: float, size: float) -> None:
    """To the right of the slanted roof, where no mark lies."""
    text = f"HBM {words.rate_text(hbm * 1e12)}"
    scale = ax.get_figure(root=True).dpi / 72.0  # type: ignore[union-attr]
    width, height = palette.text_width_points(text, 0.9 * size) * scale, 1.15 * 0.9 * size * scale
    low = max(ax.get_xlim()[0], ax.get_ylim()[0] / hbm)
    centres = [ax.transData.transform((mark.intensity, mark.tflops)) for mark in found]
    for part in (0.12, 0.25, 0.4, 0.55, 0.7, 0.85):
        at = low * (ridge / low) ** part
        x, y = ax.transData.transform((at, at * hbm))
        box = x + 5 * scale, y - height - 2 * scale, x + 5 * scale + width, y - 2 * scale
        if not any(_meet(box, (cx - 14, cy - 14, cx + 14, cy + 14)) for cx, cy in centres):
            break
    ax.annotate(text, (at, at * hbm), (5, -2), textcoords="offset points", ha="left", va="top",
                fontsize=0.9 * size, color=palette.INK)  # fmt: skip


# Names: each beside its mark, at the first of some places that is free.
Box = tuple[float, float, float, float]
PLACES = [(dx, dy) for far in (1.0, 2.2, 3.6, 5.2) for dx, dy in
          ((far, 0), (-far, 0), (far, far), (-far, far), (far, -far), (-far, -far), (0, far), (0, -far))]  # fmt: skip
NEAR = 1.5


def _name(ax: Axes, found: Sequence[Mark], size: float) -> None:
    """Names of marks, the longest operations first; one for which there is no room is left out."""
    font = 0.9 * size
    scale = ax.get_figure(root=True).dpi / 72.0  # type: ignore[union-attr]
    centres = [ax.transData.transform((mark.intensity, mark.tflops)) for mark in found]
    radii = [mark.points / 2 * scale for mark in found]
    taken: list[Box] = [(x - r, y - r, x + r, y + r) for (x, y), r in zip(centres, radii, strict=True)]
    taken += [_box(text) for text in ax.texts] + [_box(line) for line in ax.lines if _is_level(line)]
    for mark, centre, radius in zip(found, centres, radii, strict=True):
        extent = palette.text_width_points(mark.name, font) * scale, 1.15 * font * scale
        places = ((near, _beside(centre, radius, at, extent)) for near, at in _places(0.8 * font * scale))
        free = next(((near, box) for near, box in places if _is_free(ax, box, taken)), None)
        if mark.share >= NAMED and free is not None:
            near, box = free
            taken.append(box)
            _write(ax, mark.name, centre, box, font, leader=not near)


def _places(unit: float) -> Iterator[tuple[bool, tuple[float, float]]]:
    """(whether a name there needs no leader, shift in pixels), nearest first."""
    for dx, dy in PLACES:
        yield abs(dx) + abs(dy) <= NEAR, (dx * unit, dy * unit)


def _is_free(ax: Axes, box: Box, taken: Sequence[Box]) -> bool:
    (left, bottom), (right, top) = ax.transAxes.transform([(0, 0), (1, 1)])
    inside = box[0] > left and box[1] > bottom and box[2] < right and box[3] < top
    return inside and not any(_meet(box, other) for other in taken)


def _beside(centre: Any, radius: float, shift: tuple[float, float], extent: tuple[float, float]) -> Box:
    """Box of a text shifted from a mark, in pixels."""
    (x, y), (dx, dy), (width, height) = centre, shift, extent
    reach = radius + 2.0
    left = x + dx + reach if dx > 0 else x + dx - reach - width if dx < 0 else x - width / 2
    middle = y + dy + (reach + height / 2) * ((dy > 0) - (dy < 0)) * (dx == 0)
    return left, middle - height / 2, left + width, middle + height / 2


def _meet(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _is_level(line: Any) -> bool:
    """Whether it is a flat roof."""
    heights = line.get_ydata()
    return len(heights) == 2 and heights[0] == heights[1]


def _box(artist: Any) -> Box:
    box = artist.get_window_extent()
    return box.x0, box.y0 - 1.0, box.x1, box.y1 + 1.0


def _write(ax: Axes, name: str, centre: Any, box: Box, font: float, leader: bool) -> None:
    inverse = ax.transAxes.inverted()
    x, y = inverse.transform(((box[0] + box[2]) / 2, (box[1] + box[3]) / 2))
    ax.text(x, y, name, transform=ax.transAxes, fontsize=font, color=palette.INK, ha="center", va="center", zorder=6)
    if leader:
        end = min(max(centre[0], box[0]), box[2]), min(max(centre[1], box[1]), box[3])
        (x0, y0), (x1, y1) = inverse.transform([tuple(centre), end])
        ax.plot([x0, x1], [y0, y1], transform=ax.transAxes, color=palette.MUTED, linewidth=0.4, zorder=1.8)
