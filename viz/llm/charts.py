"""Two charts of a step: time by operation in the colours of what limits it, and memory against capacity."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.llm import LlmResult
from sim.step import StepResult
from viz import palette, words
from viz.llm import facts
from workloads.memory import Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_BARS = 14
SMALLEST_BAR = 0.003
"""Of the step: what is shorter is summed up."""
PART_COLOURS = {
    "weights": "#0072B2",
    "kv_cache": "#E69F00",
    "optimizer": "#56B4E9",
    "gradients": "#A6D3EE",
    "activations": "#009E73",
    "recomputed": "#8FD0BC",
    "transient": "#F0E442",
    "logits": "#CC79A7",
    "workspace": "#999999",
}
"""Parts of a memory plan, from below: what stays, then what comes and goes."""


# Time by operation.
def draw_breakdown(ax: Axes, step: StepResult) -> None:
    """One bar an operation, longest first, stacked by limiter; then what lies between kernels."""
    rows = _bars(step)
    size = palette.points(ax, 4.6, 3.6, 8.0)
    palette.tidy(ax, size)
    longest = max(sum(parts.values()) for _, parts in rows)
    for i, (_, parts) in enumerate(rows):
        left = 0.0
        for group, time_s in parts.items():
            edge = palette.RULE if group == facts.IDLE else palette.PAPER
            look: dict[str, Any] = {"facecolor": facts.COLOURS[group], "edgecolor": edge, "linewidth": 0.4}
            ax.barh(i, 1e3 * time_s, left=left, height=0.74, **look)
            left += 1e3 * time_s
        text = f"{words.time_text(left / 1e3)}, {words.percent_text(left / 1e3 / step.wall_s)}"
        ax.annotate(text, (left, i), (4, 0), textcoords="offset points", fontsize=0.9 * size, color=palette.INK,
                    va="center")  # fmt: skip
    ax.set_xlim(0, 1.32e3 * longest)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_yticks(range(len(rows)), [name for name, _ in rows])
    ax.tick_params(axis="y", length=0, labelsize=0.95 * size)
    ax.set_xlabel("time in the step (ms)", fontsize=size, labelpad=2)
    ax.set_title("Time by operation", fontsize=1.1 * size, color=palette.INK, loc="left", weight="bold", pad=3)


def _bars(step: StepResult) -> list[tuple[str, dict[str, float]]]:
    """(name, seconds by limiter): the longest operations, the others as one, and idle time."""
    named = list(facts.by_name(step).items())
    n = sum(sum(ran.time_s for ran in rans) >= SMALLEST_BAR * step.wall_s for _, rans in named[:MAX_BARS])
    rows = [(_short(name), facts.time_by_group(rans)) for name, rans in named[:n]]
    rest = [ran for _, rans in named[n:] for ran in rans]
    if rest:
        rows.append((f"{len(named) - n} more", facts.time_by_group(rest)))
    return [*rows, (facts.IDLE, {facts.IDLE: facts.idle_s(step)})]


LONGEST_NAME = 26


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


# Memory.
def draw_memory(ax: Axes, result: LlmResult) -> None:
    """Bytes alive by part at every point of the plan, against what HBM holds."""
    size = palette.points(ax, 10.0, 1.5, 8.0)
    palette.tidy(ax, size)
    points, peak = facts.memory(result), facts.memory_peak(result)
    x = np.arange(len(points) + 1)
    below = np.zeros(len(points))
    for part in [part for part in PART_COLOURS if any(point.parts.get(part) for point in points)]:
        n_bytes = np.array([point.parts.get(part, 0) for point in points])
        above = below + n_bytes / 1e9
        low, high = (np.append(y, y[-1]) for y in (below, above))
        label = f"{facts.PARTS[part]} {words.bytes_text(int(n_bytes.max()))}"
        ax.fill_between(x, low, high, step="post", facecolor=PART_COLOURS[part], linewidth=0, label=label)
        below = above
    ax.set_xlim(0, len(points))
    _capacity(ax, facts.capacity_bytes(result.shown), peak.total, size)
    _mark_layers(ax, points, size)
    ax.set_ylabel("GB", fontsize=size, labelpad=2)
    most = f"{words.bytes_text(peak.total)} at the peak ({peak.operation})"
    ax.set_title(f"Memory over {_when(result)}: {most}", fontsize=1.1 * size, color=palette.INK, loc="left",
                 weight="bold", pad=3)  # fmt: skip
    key = ax.legend(loc="center left", bbox_to_anchor=(1.005, 0.5), fontsize=0.95 * size, frameon=False, reverse=True,
                    handlelength=1.2, handleheight=0.9, labelcolor=palette.INK)  # fmt: skip
    key.set_in_layout(True)


def _when(result: LlmResult) -> str:
    return {"generate": "the prefill and the last decode step", "prefill": "the prefill"}.get(
        result.request.phase, "the step"
    )


FAR = 10.0
"""Times the peak from which capacity lies above the chart."""


def _capacity(ax: Axes, capacity: float, peak: int, size: float) -> None:
    """The line of what HBM holds, and the range of the axis."""
    held = f"HBM holds {words.bytes_text(capacity)}"
    ratio = capacity / peak if peak else FAR
    text = held if ratio < FAR else f"{held}: {words.three_digits(ratio)} times the peak, above this chart"
    line = max(capacity, peak) / 1e9 if ratio < FAR else 1.25 * peak / 1e9
    ax.set_ylim(0, 1.16 * line)
    if ratio < FAR:
        ax.axhline(capacity / 1e9, color=palette.INK, linewidth=0.9, linestyle=(0, (5, 2)))
    at = capacity / 1e9 if ratio < FAR else line
    ax.annotate(text, (0.004, at), (0, 2), xycoords=ax.get_yaxis_transform(), textcoords="offset points",
                fontsize=0.9 * size, color=palette.INK, va="bottom")  # fmt: skip


_LAYER = re.compile(r"(?P<pass>forward |backward |prefill |last step )?layer (?P<number>\d+)")


def _mark_layers(ax: Axes, points: Sequence[Point], size: float) -> None:
    """Some layers' names where they begin, evenly chosen, and the ends."""
    starts: dict[str, int] = {}
    for i, point in enumerate(points):
        found = _LAYER.match(point.operation)
        starts.setdefault(found[0] if found else point.operation, i)
    names = list(starts)
    room = palette.size_inches(ax)[0] * 72.0 / len(points)
    chosen: list[str] = []
    free_from = -1.0
    for name in names:
        half = 0.55 * palette.text_width_points(name, 0.88 * size) / room
        at = starts[name] + 0.5
        if at - half > free_from and at + half < len(points) + 1:
            chosen.append(name)
            free_from = at + half + 0.35 * size / room
    ax.set_xticks([starts[name] + 0.5 for name in chosen], chosen)
