"""The journey: host RAM -> PCIe -> HBM -> L2 -> SMs -> tensor cores and back, as one chart read from top to bottom.

Boxes are places, the rows between them links. An arrow's width is the square root of its bytes (scaled to the widest
of the chart), a gauge shows bandwidth used against peak, and vermillion marks the limiter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sim.result import Result
from viz import levels, palette, words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BOX_HEIGHT, LINK_HEIGHT, TOP = 0.094, 0.098, 0.925
LINK_NAME_X, READ_X, WRITE_X, WRITE_END = 0.03, 0.18, 0.585, 0.97
"""Columns of a link row: its name, the way towards the tensor cores, the way back."""
WIDEST_ARROW = 0.10


@dataclass(frozen=True)
class Box:
    """One place: name and figure on the first line, detail on the second."""

    key: str
    name: str
    figure: str
    detail: str
    colour: str
    used: bool = True


def journey(result: Result, ax: Axes) -> None:
    """Draw the journey of one Result over the whole of `ax` (its limits and frame are replaced)."""
    ax.set(xlim=(0, 1), ylim=(0, 1))
    ax.axis("off")
    size = palette.points(ax, 4.6, 4.9, largest=11.0)
    _heading(result, ax, size)
    boxes, y = _boxes(result), TOP
    widest = max(flow.n_bytes for level in _link_levels(result) for flow in (level.read, level.write)) or 1
    for box, level in zip(boxes, (*_link_levels(result), None), strict=True):
        _draw_box(ax, result, box, y, size)
        y -= BOX_HEIGHT
        if level is not None:
            _draw_link(ax, result, level, y, size, widest)
            y -= LINK_HEIGHT
    _caption(result, ax, size)


def _heading(result: Result, ax: Axes, size: float) -> None:
    palette.fitted(
        ax, 0.004, 0.982, f"{levels.title(result)} on {result.gpu['label']}", 0.99, 1.2 * size, weight="bold"
    )
    rate = words.flops_text(levels.achieved_flops_per_s(result))
    text = f"{words.time_text(result.time_s)}, {rate}; limited by {levels.limiter_text(result)}"
    if levels.streamed(result):
        text += f"; with B in pieces {words.time_text(result.end_to_end_s)} from end to end"
    palette.fitted(ax, 0.004, 0.947, text, 0.99, size, color=palette.MUTED)


def _caption(result: Result, ax: Axes, size: float) -> None:
    launches = f", {len(result.kernels)} kernels" if len(result.kernels) > 1 else ""
    whole = ", B whole," if levels.streamed(result) else ""
    copied = " (PCIe: while copying)" if levels.pcie_level(result).n_bytes else ""
    text = (
        "Down: A and B. Up: C. Arrow width: square root of bytes. Bars and %: mean rate against peak,\n"
        f"over {words.time_text(result.time_s)} of kernel time{launches}{whole} at "
        f"{result.main.sm_mhz:,.0f} MHz{copied}."
    )
    palette.fitted(ax, 0.004, 0.026, text, 0.99, 0.82 * size, color=palette.MUTED, linespacing=1.35)


def _link_levels(result: Result) -> tuple[levels.Level, ...]:
    """PCIe, HBM bus, SM ports, and between shared memory and registers: operands in, and C out again (no peak known,
    as it leaves for L2 by way of the SM port)."""
    hbm, sm, smem = (levels.kernel_level(result, key) for key in ("hbm", "sm", "smem"))
    results_out = levels.Flow(sm.write.n_bytes, result.time_s, None)
    return levels.pcie_level(result), hbm, sm, replace(smem, write=results_out)


def _boxes(result: Result) -> tuple[Box, ...]:
    return (_host_box(result), _hbm_box(result), _l2_box(result), _sm_box(result), _tensor_box(result))


def _host_box(result: Result) -> Box:
    work = result.workload
    held = [
        f"{name} ({work[field]})"
        for name, field in (("A", "inputs"), ("B", "weights"))
        if work.get(field, "hbm") != "hbm"
    ]
    held += ["C comes back here"] if work.get("result") == "host" else []
    used = bool(held)
    detail = "holds " + ", ".join(held) if used else "not on this journey: A, B and C stay in HBM"
    return Box("host", "Host RAM", "", detail, palette.LEVELS["host"], used)


def _busy(level: levels.Level) -> str:
    return f"; busy {words.percent_text(level.busy)} of the time" if level.busy is not None else ""


def _hbm_box(result: Result) -> Box:
    level = levels.kernel_level(result, "hbm")
    compulsory = result.workload["compulsory_bytes"]
    figure = f"{level.n_bytes / compulsory:.2f} {words.MULTIPLY} compulsory"
    capacity = levels.gpu_value(result, "hbm.capacity_gb")
    holds = f"{capacity:g} GB; " if capacity else ""
    detail = f"{holds}A, B and C: {words.bytes_text(compulsory)}{_busy(level)}"
    return Box("memory", "HBM", figure, detail, palette.LEVELS["hbm"])


def _l2_box(result: Result) -> Box:
    level, hits = levels.kernel_level(result, "l2"), levels.hit_rate(result)
    capacity = levels.gpu_value(result, "l2.capacity_mib", 0)
    figure = f"{words.percent_text(hits)} hits" if hits is not None else ""
    peak = level.read.peak_bytes_per_s
    rate = words.pair_text(level.bytes_per_s, peak) if peak else words.rate_text(level.bytes_per_s)
    detail = f"serves {words.bytes_text(level.read.n_bytes)}, {rate}{_busy(level)}"
    return Box("l2", f"L2 cache, {capacity:g} MiB", figure, detail, palette.LEVELS["l2"])


def _sm_box(result: Result) -> Box:
    n_stages, n_kept, occupancy = result.main.config["stages"], levels.stages_kept(result), result.main.occupancy
    ring = f"{n_kept} of {n_stages} stages kept" if n_kept < n_stages else f"ring of {words.plural(n_kept, 'stage')}"
    ring += f", {occupancy['smem_bytes_per_cta'] / 1024:.0f} KiB a CTA"
    kib = levels.gpu_value(result, "smem.kib_per_sm", 0)
    detail = f"{kib:g} KiB each; {ring}{_busy(levels.kernel_level(result, 'smem'))}"
    name = f"Shared memory of {levels.n_sms(result)} SMs"
    figure = f"{words.plural(occupancy['ctas_per_sm'], 'CTA')} an SM"
    return Box("sms", name, figure, detail, palette.LEVELS["smem"])


def _tensor_box(result: Result) -> Box:
    achieved, peak = levels.achieved_flops_per_s(result), levels.peak_flops_per_s(result)
    busy = result.main.utilisation.get("tensor")
    share = f"{words.percent_text(achieved / peak)} of peak" if peak else ""
    roof = f" of {words.flops_text(peak)}" if peak else ""
    detail = f"{words.flops_text(achieved).removesuffix(' TFLOP/s' if 'TFLOP' in roof else '')}{roof}"
    detail += f"; busy {words.percent_text(busy)} of the time" if busy is not None else ""
    return Box("tensor", f"Registers and {levels.unit(result)}", share, detail, palette.LEVELS["tensor"])


def _draw_box(ax: Axes, result: Result, box: Box, y: float, size: float) -> None:
    from matplotlib.patches import FancyBboxPatch

    limited = levels.limiter_place(result) == box.key
    edge = palette.LIMITER if limited else (box.colour if box.used else palette.RULE)
    style = "round,pad=0,rounding_size=0.012"
    frame = FancyBboxPatch((0.004, y - BOX_HEIGHT), 0.99, BOX_HEIGHT, boxstyle=style, mutation_aspect=0.8)
    frame.set(facecolor=_tint(box.colour) if box.used else palette.PAPER, edgecolor=edge)
    frame.set(linewidth=(0.30 if limited else 0.14) * size, linestyle="-" if box.used else (0, (3, 2)))
    ax.add_patch(frame)
    ink = palette.INK if box.used else palette.MUTED
    high, low = y - 0.33 * BOX_HEIGHT, y - 0.73 * BOX_HEIGHT
    palette.fitted(ax, 0.03, high, box.name, 0.50, 1.05 * size, weight="bold", color=ink)
    figure = f"limiter · {box.figure}" if limited and box.figure else "limiter" if limited else box.figure
    colour = palette.LIMITER if limited else ink
    palette.fitted(ax, 0.97, high, figure, 0.41, size, weight="bold", color=colour, ha="right")
    palette.fitted(ax, 0.03, low, box.detail, 0.94, 0.9 * size, color=palette.INK if box.used else palette.MUTED)


def _tint(colour: str, strength: float = 0.16) -> tuple[float, float, float]:
    from matplotlib.colors import to_rgb

    red, green, blue = (1.0 - strength * (1.0 - part) for part in to_rgb(colour))
    return red, green, blue


LINK_NAMES = {"pcie": "PCIe", "hbm": "HBM bus", "sm": "SM ports", "smem": "operand\nreads"}


def _draw_link(ax: Axes, result: Result, level: levels.Level, y: float, size: float, widest: int) -> None:
    limited = levels.limiter_place(result) == level.key
    middle = y - LINK_HEIGHT / 2
    name = LINK_NAMES[level.key] + ("\nlimiter" if limited else "")
    colour = palette.LIMITER if limited else palette.MUTED
    ax.text(LINK_NAME_X, middle, name, fontsize=0.88 * size, color=colour, va="center", linespacing=1.1)
    used = level.n_bytes > 0
    for x, end, flow, down in (
        (READ_X, WRITE_X - 0.03, level.read, True),
        (WRITE_X, WRITE_END, level.write, False),
    ):
        arrow = palette.LIMITER if limited else palette.LEVELS[level.key]
        _draw_arrow(ax, x + WIDEST_ARROW / 2, y, flow.n_bytes, widest, down, arrow)
        if used:
            _draw_flow(ax, (x + WIDEST_ARROW + 0.02, end), middle, flow, arrow, size)
    if not used:
        x = READ_X + WIDEST_ARROW + 0.02
        palette.fitted(ax, x, middle, "no copies", 0.25, 0.9 * size, color=palette.MUTED)


def _draw_arrow(ax: Axes, x: float, y: float, n_bytes: int, widest: int, down: bool, colour: str) -> None:
    from matplotlib.patches import Polygon

    half = 0.5 * max(WIDEST_ARROW * 0.62 * math.sqrt(n_bytes / widest), 0.003)
    head, wing = 0.034, half + 0.016
    start, end = (y - 0.006, y - LINK_HEIGHT + 0.004) if down else (y - LINK_HEIGHT + 0.006, y - 0.004)
    neck = end + head if down else end - head
    shape = [(x - half, start), (x + half, start), (x + half, neck), (x + wing, neck), (x, end)]
    shape += [(x - wing, neck), (x - half, neck)]
    ax.add_patch(Polygon(shape, closed=True, linewidth=0, facecolor=colour if n_bytes else palette.RULE))


def _draw_flow(ax: Axes, span: tuple[float, float], middle: float, flow: levels.Flow, colour: str, size: float) -> None:
    from matplotlib.patches import Rectangle

    left, right = span
    high, gauge, low = middle + 0.028, middle - 0.0035, middle - 0.028
    if not flow.n_bytes:
        palette.fitted(ax, left, middle, "nothing", right - left, 0.9 * size, color=palette.MUTED)
        return
    share = flow.share
    palette.fitted(ax, left, high, words.bytes_text(flow.n_bytes), 0.6 * (right - left), size, weight="bold")
    if share is None or flow.peak_bytes_per_s is None:
        rate = words.rate_text(flow.bytes_per_s)
        palette.fitted(ax, left, low, rate, right - left, 0.85 * size, color=palette.MUTED)
        return
    percent = words.percent_text(share)
    palette.fitted(ax, right, high, percent, 0.38 * (right - left), size, weight="bold", ha="right")
    width = right - left
    ax.add_patch(Rectangle((left, gauge - 0.004), width, 0.010, facecolor=palette.IDLE, linewidth=0))
    ax.add_patch(Rectangle((left, gauge - 0.004), width * min(share, 1.0), 0.010, facecolor=colour, linewidth=0))
    text = words.pair_text(flow.bytes_per_s, flow.peak_bytes_per_s)
    palette.fitted(ax, left, low, text, width, 0.85 * size, color=palette.MUTED)
