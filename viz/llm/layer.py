"""The timeline of one layer: its kernels as bars with the gaps between them, and the host that launches them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from sim.result import HostSpan
from sim.step import StepResult
from viz import palette, words
from viz.llm import facts
from viz.llm.facts import Placed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

US = 1e6
SHORT, SHORTEST = 0.02, 0.0025
"""Shares of the shown time below which kernels of one operation share a name, and have none."""
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
    names = _chosen(ax, passage, 0.95 * size)
    ax.set_xlim(0, max([end_us, *(name.end_us for name in names)]))
    ax.broken_barh([(0.0, end_us)], (KERNELS[0], KERNELS[1] - KERNELS[0]), facecolor=palette.IDLE, linewidth=0)
    for each in passage.kernels:
        _bar(ax, each, passage.start_s)
    _lanes(ax, passage, step, size)
    _write_names(ax, names, size)
    ax.set_xlabel("time since the layer's first kernel started (µs)", fontsize=size, labelpad=2)
    gaps = (passage.end_s - passage.start_s) - sum(kernel.time_s for p in passage.kernels for kernel in p.kernels)
    n = sum(len(each.kernels) for each in passage.kernels)
    idle = f"of which {words.time_text(max(0.0, gaps))} idle"
    text = f"{passage.title}: {n} kernels in {words.time_text(end_us / US)}, {idle}"
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
    look: dict[str, Any] = {"facecolor": palette.RULE, "edgecolor": palette.PAPER, "linewidth": 0.4}
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
    """What is written above a kernel: from `at_us`, its middle, to `end_us`; `row`: line, counted from below."""

    text: str
    at_us: float
    time_s: float
    end_us: float = 0.0
    row: int = 0


def _named(passage: Passage) -> list[_Name]:
    """A name for each kernel; short ones of one operation share theirs."""
    whole = passage.end_s - passage.start_s
    found = []

    def key(each: Placed) -> object:
        name, short = each.ran.operation.name, each.end_s - each.start_s < SHORT * whole
        expert = facts.NUMBERED.match(name)
        return (expert["part"], expert["number"]) if expert else name.partition(":")[0] if short else id(each)

    for _, run in groupby(passage.kernels, key=key):
        group = list(run)
        middle = (group[0].start_s + group[0].end_s) / 2 - passage.start_s
        time_s = sum(kernel.time_s for each in group for kernel in each.kernels)
        text = _text(group[0]) if len(group) == 1 else f"{_common(group[0].ran.operation.name)} × {len(group)},"
        found.append(_Name(f"{text} {words.time_text(time_s)}", middle * US, time_s))
    return [name for name in found if name.time_s >= SHORTEST * whole]


def _common(name: str) -> str:
    """What the names of operations that share one begin with."""
    expert = facts.NUMBERED.match(name)
    return f"{expert['part']} {expert['number']}" if expert else name.partition(":")[0]


def _text(each: Placed) -> str:
    """The operation; of what runs beside its main kernel, the kernel too."""
    longest = max(each.ran.kernels, key=lambda kernel: kernel.time_s)
    return each.ran.operation.name if each.main is longest else f"{each.ran.operation.name}: {each.main.name}"


def _chosen(ax: Axes, passage: Passage, font: float) -> list[_Name]:
    """Names with their places, without the shortest kernels' where lines run out."""
    names = _named(passage)
    placed = _on_rows(ax, passage, names, font)
    while max(name.row for name in placed) >= MAX_ROWS:
        names.remove(_least_of_highest(placed, names))
        placed = _on_rows(ax, passage, names, font)
    return placed


def _least_of_highest(placed: Sequence[_Name], names: Sequence[_Name]) -> _Name:
    """The shortest kernel's name of those that pile up below the highest one."""
    first = max(range(len(placed)), key=lambda i: placed[i].row)
    last = next((i for i in range(first, len(placed)) if placed[i].row == 0), len(placed) - 1)
    return min(names[first : last + 1], key=lambda name: name.time_s)


def _on_rows(ax: Axes, passage: Passage, names: Sequence[_Name], font: float) -> list[_Name]:
    """Names on lines such that no leader crosses a name: each lies above those of the kernels to its right that it
    would cover."""
    room = palette.size_inches(ax)[0] * 72.0
    widths = [palette.text_width_points(name.text, font) + 6.0 for name in names]
    ends = [name.at_us / (1.0 - min(width / room, 0.9)) for name, width in zip(names, widths, strict=True)]
    us_per_point = max([(passage.end_s - passage.start_s) * US, *ends]) / room
    found: list[_Name] = []
    for name, width in zip(reversed(names), reversed(widths), strict=True):
        end_us = name.at_us + width * us_per_point
        covered = [other.row for other in found if other.at_us < end_us]
        found.append(replace(name, end_us=end_us, row=1 + max(covered) if covered else 0))
    return found[::-1]


def _write_names(ax: Axes, names: Sequence[_Name], size: float) -> None:
    """Names above the bars, each with its leader, and the axis high enough for them."""
    n_rows = 1 + max(name.row for name in names)
    lanes = KERNELS[1] - HOST[0] + 0.1
    share = min(0.78, ROW * size * (n_rows + 0.6) / 72.0 / palette.size_inches(ax)[1])  # of the height
    height = lanes * share / (1.0 - share)
    ax.set_ylim(HOST[0] - 0.1, KERNELS[1] + height)
    for name in names:
        y = KERNELS[1] + height * (name.row + 0.8) / (n_rows + 0.6)
        ax.plot([name.at_us, name.at_us], [KERNELS[1], y], color=palette.MUTED, linewidth=0.5, solid_capstyle="butt")
        ax.annotate(name.text, (name.at_us, y), (2, 0), textcoords="offset points", fontsize=0.95 * size,
                    color=palette.INK, va="center")  # fmt: skip
