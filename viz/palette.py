"""Colours and type sizes of every picture: Okabe and Ito's eight colour-blind-safe hues, one meaning each.

A level or a span kind has the same colour in all pictures; vermillion marks the limiter and nothing else.
Source of the hues: Okabe and Ito, "Color Universal Design", 2008.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILLION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#999999"

INK, MUTED, RULE, PAPER, IDLE = "#1A1A1A", "#555555", "#C8C8C8", "#FFFFFF", "#EFEFEF"
"""Text, secondary text, thin lines, background, empty gauges."""

LIMITER = VERMILLION
LEVELS = {"host": GREY, "pcie": GREY, "hbm": BLUE, "l2": SKY, "sm": PURPLE, "smem": ORANGE, "tensor": GREEN}
KINDS = {"start": GREY, "load": SKY, "wait": YELLOW, "mma": GREEN, "epilogue": PURPLE}
"""Colours by `sim.result.SPAN_KINDS`."""

SMALLEST_POINTS, LARGEST_POINTS = 4.4, 9.5


def size_inches(ax: Axes) -> tuple[float, float]:
    """Width and height of an Axes as laid out now, inches."""
    box = ax.get_window_extent()
    dpi = ax.get_figure(root=True).dpi  # type: ignore[union-attr]
    return box.width / dpi, box.height / dpi


def points(ax: Axes, width_in: float, height_in: float, largest: float = LARGEST_POINTS) -> float:
    """Base type size for an Axes: 9 points at the design size given, in proportion below, within fixed bounds."""
    width, height = size_inches(ax)
    return min(max(9.0 * min(width / width_in, height / height_in), SMALLEST_POINTS), largest)


def text_width_points(text: str, size: float, weight: str = "normal") -> float:
    """Width of one line of text in points, without a renderer; 6 % more than its outline, as hinting widens glyphs."""
    return 1.06 * size * _width_in_sizes(text, weight)


@lru_cache(maxsize=1024)
def _width_in_sizes(text: str, weight: str) -> float:
    """Width over type size. Bounds of the control points, a little wide of the curves, are quick to take."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    if not text.strip():
        return 0.0
    return float(np.ptp(TextPath((0, 0), text, size=100, prop=FontProperties(weight=weight)).vertices[:, 0])) / 100.0


def fitted(ax: Axes, x: float, y: float, text: str, width: float, size: float, **style: Any) -> None:
    """Write `text` at (x, y) of an Axes that spans 0 to 1, shrinking it until its lines are at most `width` wide."""
    room = width * size_inches(ax)[0] * 72.0
    needed = max(text_width_points(line, size, style.get("weight", "normal")) for line in text.splitlines() or [""])
    if needed > room:
        size *= room / needed
    ax.text(x, y, text, fontsize=size, **{"color": INK, "va": "center", **style})


def tidy(ax: Axes, size: float) -> None:
    """Light frame, small ticks, text in ink: the look that all charts share."""
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set(color=MUTED, linewidth=0.6)
    ax.tick_params(labelsize=0.88 * size, colors=INK, width=0.6, length=2.5, pad=2)
    ax.tick_params(which="minor", width=0.4, length=1.5)
