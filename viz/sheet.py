"""One sheet with the journey, the timeline and the roofline of a Result, and its way into a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hwmodels.errors import ConfigError
from sim.result import Result
from viz import files, palette
from viz.journey import journey
from viz.roofline import roofline
from viz.timeline import timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
SIZE_IN, DPI = (13.0, 8.2), 150


def figure(result: Result, size_in: tuple[float, float] = SIZE_IN) -> Figure:
    """The three pictures side by side on a new Figure (no global state: safe in threads and servers)."""
    from matplotlib.figure import Figure

    sheet = Figure(figsize=size_in, dpi=DPI, layout="constrained", facecolor=palette.PAPER)
    left, right = sheet.subfigures(1, 2, squeeze=False, width_ratios=(0.42, 0.58), wspace=0.02)[0]
    journey(result, left.add_axes((0.02, 0.01, 0.96, 0.98)))
    heights = (2.4, 1.2, 0.7, 2.8)
    *axes, roof = (right.add_subplot(part) for part in right.add_gridspec(4, 1, height_ratios=heights))
    for ax in axes[:-1]:
        ax.sharex(axes[-1])
    timeline(result, axes)
    roofline(result, roof)
    return sheet


def save_figure(result: Result, path: str | os.PathLike[str], size_in: tuple[float, float] = SIZE_IN) -> None:
    """Draw `figure` into a .png, .svg or .pdf file, whole or not at all.

    Raises `ConfigError` for another suffix or a path that cannot be written.
    """
    write_figure(lambda: figure(result, size_in), path)


def write_figure(draw: Callable[[], Figure], path: str | os.PathLike[str]) -> None:
    """Save what `draw` gives, whole or not at all. Raises `ConfigError` as `save_figure`."""
    suffix = Path(path).suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        raise ConfigError(f"figure = {str(path)!r}: suffix must be one of .{', .'.join(FORMATS)}")
    with files.replacing(path) as temporary:
        draw().savefig(temporary, format=suffix, metadata=_NO_DATE[suffix])


_NO_DATE: dict[str, dict[str, None]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""No date in the file: the same result gives the same picture."""
