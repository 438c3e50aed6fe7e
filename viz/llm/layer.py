"""The timeline of one layer: its kernels as bars with the gaps between them, and the host that launches them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from sim.result import HostSpan
from sim.step import StepResult
from viz import palette, words
from viz.llm import facts
from viz.llm.facts import Placed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

US = 1e6
SHORT = 0.02
"""Share of the shown time below which kernels of one operation share a name."""
MAX_ROWS = 11
"""Lines of names above the bars."""
ROW = 1.25
"""Distance of lines in type sizes."""
KERNELS, HOST = (0.0, 1.0), (-1.0, -0.35)
"""Bottom and top of the two lanes."""


@dataclass(frozen=True)
class Passage:
    """A layer's kernels that follow each other: its forward pass, or its backward one."""

    title: str
    kernels: tuple[Placed, ...]

    @property
    def start_s(self) -> float:
        """Seconds of the step when its first kernel starts."""
        return self.kernels[0].start_s

    @property
    def end_s(self) -> float:
        """When its last kernel ends."""
        return self.kernels[-1].end_s


def passages(step: StepResult) -> tuple[Passage, ...]:
    """What runs of the middle layer: once, or forward and backward in training (of the first pass)."""
    every = facts.placed(step)
    layer = middle_layer(step)
    runs = [tuple(run) for key, run in groupby(every, key=lambda each: each.ran.operation.layer) if key == layer]
    titles = ("forward", "backward")
    if len(runs) == 1:
        return (Passage(f"Layer {layer}", runs[0]),)
    return tuple(Passage(f"Layer {layer}, {title}", run) for title, run in zip(titles, runs, strict=False))


def middle_layer(step: StepResult) -> int:
    """The layer that stands for all: neither the first nor the last, where there are others."""
    last = max(ran.operation.layer for ran in step.ran)
    return max(0, (last - 1) // 2)


def draw_layer(ax: Axes, passage: Passage, step: StepResult) -> None:
    """Draw one passage: kernels in the colour of their limiter, named above; the host's launches below."""
    size = palette.points(ax, 11.0, 2.2, 8.0)
    palette.tidy(ax, size)
    end_us = (passage.end_s - passage.start_s) * US
    ax.set_xlim(0, end_us)
    ax.axhspan(*KERNELS, facecolor=palette.IDLE, linewidth=0)
    for each in passage.kernels:
        _bar(ax, each, passage.start_s)
    _lanes(ax, passage, step, size)
    n_rows = _names(ax, passage, size)
    row = ROW * size / 72.0 / max(palette.size_inches(ax)[1], 1e-9)
    share = min(0.75, row * (n_rows + 1.5))  # of the height, for the names
    ax.set_ylim(HOST[0] - 0.1, 1.0 + (1.1 + HOST[1] - HOST[0] + 0.45) * share / (1.0 - share))
    _place_names(ax, n_rows)
    ax.set_xlabel("time since the layer's first kernel started (µs)", fontsize=size, labelpad=2)
    gaps = (passage.end_s - passage.start_s) - sum(kernel.time_s for p in passage.kernels for kernel in p.kernels)
    n = sum(len(each.kernels) for each in passage.kernels)
    text = f"{passage.title}: {n} kernels in {words.time_text(end_us / US)}, of which {words.time_text(max(0.0, gaps))} idle"
    ax.set_title(text, fontsize=1.1 * size, color=palette.INK, loc="left", weight="bold", pad=3)


def _bar(ax: Axes, each: Placed, origin_s: float) -> None:
    start, width = (each.start_s - origin_s) * US, (each.end_s - each.start_s) * US
    colour = facts.COLOURS[facts.group_of(each.main)]
    box = (KERNELS[0], KERNELS[1] - KERNELS[0])
    ax.broken_barh([(start, width)], box, facecolor=colour, edgecolor=palette.PAPER, linewidth=0.4)


def _lanes(ax: Axes, passage: Passage, step: StepResult, size: float) -> None:
    """The host's launches and copies in this time; where there are none, why."""
    begin, end = passage.start_s, passage.end_s
    spans = [span for span in step.host.spans if span.lane != "stream" and span.end_s > begin and span.start_s < end]
    copies = [span for span in spans if span.lane.startswith("copy")]
    host = [span for span in spans if span.lane == "host" and span.name.startswith("launch")]
    shown: Sequence[HostSpan] = copies or host
    bars = [((span.start_s - begin) * US, (span.end_s - span.start_s) * US) for span in shown]
    look = {"facecolor": palette.RULE, "edgecolor": palette.PAPER, "linewidth": 0.4}
    ax.broken_barh(bars, (HOST[0], HOST[1] - HOST[0]), **look)
    ax.set_yticks([0.5, sum(HOST) / 2], ["GPU", "PCIe" if copies else "host"])
    ax.tick_params(axis="y", length=0)
    if not shown:
        why = "launched as a graph" if step.launch == "graph" else "launched all of this earlier"
        ax.text(0.005, sum(HOST) / 2, why, fontsize=0.9 * size, color=palette.MUTED, va="center",
                transform=ax.get_yaxis_transform())  # fmt: skip


# Names.
@dataclass(frozen=True)
class _Name:
    text: str
    at_us: float
    time_s: float


def _named(passage: Passage) -> list[_Name]:
    """A name for each kernel; short ones of one operation share theirs."""
    whole = passage.end_s - passage.start_s
    found = []

    def key(each: Placed) -> object:
        short = each.end_s - each.start_s < SHORT * whole
        return each.ran.operation.name.partition(":")[0] if short else id(each)

    for _, run in groupby(passage.kernels, key=key):
        group = list(run)
        start, end = group[0].start_s - passage.start_s, group[-1].end_s - passage.start_s
        time_s = sum(kernel.time_s for each in group for kernel in each.kernels)
        name = group[0].ran.operation.name
        text = name if len(group) == 1 else f"{name.partition(':')[0]} × {len(group)}"
        at = (start + min(end, group[0].end_s - passage.start_s)) / 2 * US
        found.append(_Name(f"{text} {words.time_text(time_s)}", at, time_s))
    return found


def _rows(names: Sequence[_Name], widths_us: dict[str, float]) -> list[int]:
    """Line of each name, from below: a name lies above those of the kernels that it would cover to its right, so that
    no leader crosses a name."""
    rows = [0] * len(names)
    for i in reversed(range(len(names))):
        end = names[i].at_us + widths_us[names[i].text]
        covered = [rows[j] for j in range(i + 1, len(names)) if names[j].at_us < end]
        rows[i] = 1 + max(covered) if covered else 0
    return rows


def _names(ax: Axes, passage: Passage, size: float) -> int:
    """Write names with leaders, leaving out the shortest kernels' where lines run out; returns how many lines."""
    names, font = _named(passage), 0.95 * size
    whole_us = (passage.end_s - passage.start_s) * US
    us_per_point = whole_us / (palette.size_inches(ax)[0] * 72.0)
    widths = {name.text: (palette.text_width_points(name.text, font) + 5.0) * us_per_point for name in names}
    rows = _rows(names, widths)
    while max(rows) >= MAX_ROWS:
        names.remove(min(names, key=lambda name: name.time_s))
        rows = _rows(names, widths)
    for name, row in zip(names, rows, strict=True):
        right = name.at_us + widths[name.text] > whole_us
        text = ax.text(name.at_us, row, name.text, fontsize=font, color=palette.INK, va="center",
                       ha="right" if right else "left")  # fmt: skip
        text.set_gid(f"name {row}")
    return max(rows) + 1


def _place_names(ax: Axes, n_rows: int) -> None:
    """Bring names to their heights, now that the axis has its range, and draw the leaders."""
    top = ax.get_ylim()[1]
    step = (top - KERNELS[1]) / (n_rows + 0.8)
    pad = ax.get_xlim()[1] * 0.002
    for text in ax.texts:
        if not str(text.get_gid()).startswith("name "):
            continue
        at, row = text.get_position()
        y = KERNELS[1] + step * (float(row) + 0.9)
        side = -pad if text.get_horizontalalignment() == "right" else pad
        text.set_position((float(at) + side, y))
        ax.plot([at, at], [KERNELS[1], y], color=palette.MUTED, linewidth=0.5, solid_capstyle="butt")
