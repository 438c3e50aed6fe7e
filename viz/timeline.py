"""The timeline: what chosen SMs did, and how busy L2, HBM and tensor cores were, over one kernel's time.

`timeline` draws three charts over one time axis: lanes of CTA slots, shares of peak, clock. `steps` draws the first
k-iterations of one CTA exactly. Both read the main kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sim.result import SPAN_KINDS, WINDOW_FIELDS, KernelResult, Result
from viz import levels, palette, words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FS_PER_US = 1e9
MAX_LANES = 8
CONSUMER = ("mma", "wait", "epilogue", "start")
"""Kinds stacked in a lane's lower part; loads in flight fill the upper part."""
KIND_WORDS = {
    "load": "loads in flight",
    "mma": "MMA",
    "wait": "waits for data",
    "epilogue": "epilogue",
    "start": "CTA start",
}
MAX_WAVES_SHOWN = 12
MAX_STEPS = 110
HEADROOM = 0.11
"""Height above the lanes, as a share of theirs, where waves are named."""

Spans = npt.NDArray[np.void]
Floats = npt.NDArray[np.float64]


def timeline(result: Result, axes: Sequence[Axes]) -> None:
    """Draw lanes, shares of peak and clock on three Axes, top to bottom (they should share x)."""
    lanes, shares, clock = axes
    kernel = result.main
    size = palette.points(lanes, 4.4, 1.6)
    for ax in axes:
        palette.tidy(ax, size)
        ax.set_xlim(0, end_us(kernel))
    if kernel.spans is not None and len(kernel.spans):
        _draw_lanes(kernel, kernel.spans, lanes, size)
        _mark_waves(kernel.spans, axes, size)
    else:
        _draw_active_ctas(kernel, lanes, size)
    _draw_shares(result, kernel, shares, size)
    _draw_clock(kernel, clock, size)
    for ax in (lanes, shares):
        ax.tick_params(labelbottom=False)
    clock.set_xlabel(_time_label(kernel), fontsize=size, labelpad=2)


def end_us(kernel: KernelResult) -> float:
    """Where the time axis ends, µs: with the kernel or, where repeated waves were skipped, with what was replayed."""
    end = kernel.time_s * 1e6
    replayed = len(kernel.windows.values) * kernel.windows.width_fs / FS_PER_US
    return min(end, replayed) if kernel.sampled and replayed else end


def _time_label(kernel: KernelResult) -> str:
    shown, whole = end_us(kernel), kernel.time_s * 1e6
    if shown > 0.995 * whole:
        return "time in the kernel (µs)"
    figures = f"{words.three_digits(shown)} of {words.three_digits(whole)} µs"
    return f"time in the kernel (µs): first {figures} replayed; the rest repeats it"


def steps(result: Result, ax: Axes, n_iterations: int = 6) -> None:
    """Draw the first k-iterations of the first traced CTA: each load, wait and MMA on its own line.

    Raises ValueError where the result holds no spans.
    """
    kernel = result.main
    if kernel.spans is None or not len(kernel.spans):
        raise ValueError("steps needs a traced result: simulate(..., trace=True)")
    size = palette.points(ax, 4.2, 1.6)
    palette.tidy(ax, size)
    spans = first_tile(kernel.spans)
    spans = spans[spans["k"] < n_iterations]
    spans = spans[spans["kind"] != SPAN_KINDS.index("epilogue")]
    begin = int(spans["start_fs"].min())
    for i_k in range(int(spans["k"].max()) + 1):
        _draw_step_row(ax, spans[spans["k"] == i_k], i_k, begin)
    rows = int(spans["k"].max()) + 1
    ax.set_yticks(range(rows), [f"k = {i_k}" for i_k in range(rows)])
    ax.set_ylim(rows - 0.4, -0.6)
    ax.set_xlim(0, float(spans["end_fs"].max() - begin) / 1e6)
    ax.set_xlabel("time since the CTA started (ns)", fontsize=size, labelpad=2)
    _legend(ax, [(KIND_WORDS[kind], palette.KINDS[kind]) for kind in ("load", "mma", "wait", "start")], size)


def first_tile(spans: Spans) -> Spans:
    """Spans of the tile that starts first, in order of start."""
    first = spans[np.lexsort((spans["slot"], spans["sm"], spans["start_fs"]))[0]]
    same = (spans["sm"] == first["sm"]) & (spans["slot"] == first["slot"]) & (spans["tile"] == first["tile"])
    return np.sort(spans[same], order=["start_fs", "end_fs"])


def _draw_step_row(ax: Axes, spans: Spans, i_k: int, begin: int) -> None:
    for kind, bottom, height in (
        ("load", -0.38, 0.34),
        ("start", 0.0, 0.34),
        ("wait", 0.0, 0.34),
        ("mma", 0.0, 0.34),
    ):
        chosen = spans[spans["kind"] == SPAN_KINDS.index(kind)]
        bars = [((s["start_fs"] - begin) / 1e6, (s["end_fs"] - s["start_fs"]) / 1e6) for s in chosen]
        ax.broken_barh(bars, (i_k + bottom, height), facecolor=palette.KINDS[kind], linewidth=0)


def coverage(start: Floats, end: Floats, edges: Floats) -> Floats:
    """Mean number of intervals [start, end) alive in each bin of `edges`, exact; all in the same unit."""

    def area(at: npt.NDArray[Any]) -> Floats:
        ordered = np.sort(at)
        sums = np.concatenate(([0.0], np.cumsum(ordered)))
        before = np.searchsorted(ordered, edges, side="right")
        return edges * before - sums[before]

    return np.diff(area(start) - area(end)) / np.diff(edges)


def _edges(kernel: KernelResult, spans: Spans) -> Floats:
    """Bin edges, µs: fine where single iterations can be seen, else wide enough to hold two."""
    end = end_us(kernel)
    mma = spans[spans["kind"] == SPAN_KINDS.index("mma")]
    lane = mma[(mma["sm"] == mma["sm"][0]) & (mma["slot"] == mma["slot"][0])] if len(mma) else mma
    period = float(np.median(np.diff(np.sort(lane["start_fs"])))) / FS_PER_US if len(lane) > 1 else end
    n_bins = 1000 if period >= end / 160 else max(min(240, round(end / (2.0 * period))), 1)
    return np.linspace(0.0, end, n_bins + 1)


def cta_slots(spans: Spans) -> list[tuple[int, int]]:
    """(SM, slot) of every CTA slot that has spans, in order."""
    return [(int(sm), int(slot)) for sm, slot in np.unique(spans[["sm", "slot"]])]


def _chosen_lanes(spans: Spans) -> list[tuple[int, int]]:
    """(SM, slot) pairs: SMs spread over those traced, all slots of each, at most `MAX_LANES` lanes."""
    pairs = cta_slots(spans)
    sms = sorted({sm for sm, _ in pairs})
    slots_per_sm = max(Counter(sm for sm, _ in pairs).values())
    count = min(len(sms), max(MAX_LANES // slots_per_sm, 1))
    chosen = {sms[round(i * (len(sms) - 1) / max(count - 1, 1))] for i in range(count)}
    return [pair for pair in pairs if pair[0] in chosen][:MAX_LANES]


def _draw_lanes(kernel: KernelResult, spans: Spans, ax: Axes, size: float) -> None:
    edges, lanes = _edges(kernel, spans), _chosen_lanes(spans)
    for row, (sm, slot) in enumerate(lanes):
        _draw_lane(ax, row, spans[(spans["sm"] == sm) & (spans["slot"] == slot)], edges)
    ax.set_ylim(len(lanes) - 0.05, -0.05 - HEADROOM * len(lanes))
    ticks: dict[int, list[int]] = {}
    for row, (sm, _) in enumerate(lanes):
        ticks.setdefault(sm, []).append(row)
    ax.set_yticks([float(np.mean(rows)) + 0.5 for rows in ticks.values()], [f"SM {sm}" for sm in ticks])
    ax.tick_params(axis="y", length=0)
    for rows in list(ticks.values())[1:]:
        ax.axhline(rows[0], color=palette.RULE, linewidth=0.6)
    _legend(ax, [(KIND_WORDS[kind], palette.KINDS[kind]) for kind in ("load", *CONSUMER)], size)


def _draw_lane(ax: Axes, row: int, spans: Spans, edges: Floats) -> None:
    in_flight = _kind_coverage(spans, "load", edges)
    top = in_flight.max(initial=0.0) or 1.0
    middle = row + 0.36
    _fill(ax, edges, np.full_like(in_flight, middle), middle - 0.30 * in_flight / top, palette.KINDS["load"])
    base = np.full_like(in_flight, row + 0.94)
    shares = {kind: _kind_coverage(spans, kind, edges) for kind in CONSUMER}
    crowd = np.maximum(np.sum(list(shares.values()), axis=0), 1.0)  # an epilogue may run beside the next tile's MMAs
    for kind, share in shares.items():
        upper = base - 0.54 * share / crowd
        _fill(ax, edges, base, upper, palette.KINDS[kind])
        base = upper


def _kind_coverage(spans: Spans, kind: str, edges: Floats) -> Floats:
    chosen = spans[spans["kind"] == SPAN_KINDS.index(kind)]
    return coverage(chosen["start_fs"] / FS_PER_US, chosen["end_fs"] / FS_PER_US, edges)


def _fill(ax: Axes, edges: Floats, low: Floats, high: Floats, colour: str) -> None:
    x = np.repeat(edges, 2)[1:-1]
    ax.fill_between(x, np.repeat(low, 2), np.repeat(high, 2), facecolor=colour, linewidth=0)


def wave_starts_us(spans: Spans) -> Floats:
    """When the n-th tile of a slot first starts anywhere, µs: where waves begin."""
    ordered = spans[np.lexsort((spans["start_fs"], spans["tile"], spans["slot"], spans["sm"]))]
    owner = ordered[["sm", "slot", "tile"]]
    firsts = ordered[np.concatenate(([True], owner[1:] != owner[:-1]))]
    firsts = firsts[np.lexsort((firsts["start_fs"], firsts["slot"], firsts["sm"]))]
    slot = firsts[["sm", "slot"]]
    i, is_new = np.arange(len(firsts)), np.concatenate(([True], slot[1:] != slot[:-1]))
    wave = i - np.maximum.accumulate(np.where(is_new, i, 0))
    starts = np.full(int(wave.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(starts, wave, firsts["start_fs"])
    return np.asarray(starts / FS_PER_US, dtype=np.float64)


def _mark_waves(spans: Spans, axes: Sequence[Axes], size: float) -> None:
    starts = wave_starts_us(spans)
    if not 1 < len(starts) <= MAX_WAVES_SHOWN:
        return
    for ax in axes:
        for start in starts[1:]:
            ax.axvline(start, color=palette.INK, linewidth=0.6, linestyle=(0, (2, 2)))
    _name_waves(axes[0], starts, size)


def _name_waves(lanes: Axes, starts: Floats, size: float) -> None:
    end, names = lanes.get_xlim()[1], [f"wave {i + 1}" for i in range(len(starts))]
    edges, width_points = [*starts, end], palette.size_inches(lanes)[0] * 72.0
    room = min(np.diff(edges)) / end * width_points
    if room < max(palette.text_width_points(name, 0.85 * size) for name in names) * 1.15:
        return
    y = 1.0 - 0.5 * HEADROOM / (1.0 + HEADROOM)
    look: dict[str, Any] = {"fontsize": 0.85 * size, "color": palette.MUTED, "ha": "center", "va": "center"}
    for name, left, right in zip(names, edges[:-1], edges[1:], strict=True):
        lanes.text((left + right) / 2, y, name, transform=lanes.get_xaxis_transform(), **look)


def _draw_active_ctas(kernel: KernelResult, ax: Axes, size: float) -> None:
    edges = _window_edges_us(kernel)
    active = kernel.windows.values[:, WINDOW_FIELDS.index("active_ctas")]
    ax.stairs(active, edges, fill=True, color=palette.GREY, linewidth=0)
    ax.set_ylim(0, 1.1 * max(active.max(initial=0.0), 1.0))
    ax.set_ylabel("active CTAs", fontsize=size)


def _window_edges_us(kernel: KernelResult) -> Floats:
    """Edges of the windows, the last one cut at the kernel's end."""
    n = len(kernel.windows.values)
    edges = np.arange(n + 1) * (kernel.windows.width_fs / FS_PER_US)
    end = kernel.time_s * 1e6
    return np.asarray(np.minimum(edges, end) if n and end > edges[-2] else edges, dtype=np.float64)


def window_shares(result: Result, kernel: KernelResult) -> dict[str, Floats]:
    """Share of peak in each window of a kernel: "hbm", "l2" and "tensor", as fractions."""
    column = {name: kernel.windows.values[:, i] for i, name in enumerate(WINDOW_FIELDS)}
    width_s = np.diff(_window_edges_us(kernel)) * 1e-6
    hbm_peak = levels.peak_bytes_per_s(result, "hbm") or np.nan
    l2_peak = levels.peak_bytes_per_s(result, "l2") or np.nan
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            "hbm": (column["hbm_read_bytes"] + column["hbm_write_bytes"]) / (width_s * hbm_peak),
            "l2": (column["l2_read_bytes"] + column["l2_write_bytes"]) / (width_s * l2_peak),
            "tensor": column["tensor_busy_fs"] / (width_s * 1e15 * levels.n_sms(result)),
        }


def _coarser(edges: Floats, shares: dict[str, Floats]) -> tuple[Floats, dict[str, Floats]]:
    """At most `MAX_STEPS` steps: bytes count where they are reserved, so single short windows jump about."""
    merged = -(-(len(edges) - 1) // MAX_STEPS)
    if merged <= 1:
        return edges, shares
    starts, widths = np.arange(0, len(edges) - 1, merged), np.diff(edges)
    sums = {key: np.add.reduceat(share * widths, starts) for key, share in shares.items()}
    total = np.add.reduceat(widths, starts)
    return np.append(edges[starts], edges[-1]), {key: area / total for key, area in sums.items()}


SHARES = (("tensor", "tensor cores busy", "-"), ("l2", "L2", (0, (4, 1))), ("hbm", "HBM", (0, (1.2, 0.8))))


def _draw_shares(result: Result, kernel: KernelResult, ax: Axes, size: float) -> None:
    from matplotlib.lines import Line2D

    edges, shares = _coarser(_window_edges_us(kernel), window_shares(result, kernel))
    handles, highest = [], 100.0
    for key, usual, style in SHARES:
        label = usual.replace("tensor cores", levels.unit(result))
        highest = max(highest, 100.0 * float(shares[key].max(initial=0.0)))
        look: dict[str, Any] = {"color": palette.LEVELS[key], "linewidth": 0.14 * size, "linestyle": style}
        ax.stairs(100.0 * shares[key], edges, baseline=None, **look)
        handles.append(Line2D([], [], label=label, **look))
    ax.set_ylim(0, 1.06 * highest)
    ax.set_yticks([0, 50, 100])
    ax.grid(axis="y", color=palette.RULE, linewidth=0.4)
    ax.set_ylabel("share of\npeak (%)", fontsize=size, labelpad=2)
    _place_legend(ax, handles, size)


def _draw_clock(kernel: KernelResult, ax: Axes, size: float) -> None:
    mhz = kernel.windows.values[:, WINDOW_FIELDS.index("clock_mhz")]
    ax.stairs(mhz, _window_edges_us(kernel), baseline=None, color=palette.INK, linewidth=0.12 * size)
    low, high = mhz.min(initial=np.inf), mhz.max(initial=0.0)
    if np.isfinite(low):
        ax.set_ylim(100 * np.floor((low - 40) / 100), 100 * np.ceil((high + 40) / 100))
    ax.locator_params(axis="y", nbins=2)
    ax.set_ylabel("SM clock\n(MHz)", fontsize=size, labelpad=2)


def _legend(ax: Axes, entries: Sequence[tuple[str, str]], size: float) -> None:
    from matplotlib.patches import Patch

    _place_legend(ax, [Patch(facecolor=colour, label=label) for label, colour in entries], size)


def _place_legend(ax: Axes, handles: Sequence[Any], size: float) -> None:
    """One row above the chart, at its left edge, shrunk until it fits the chart's width."""
    width = palette.size_inches(ax)[0] * 72.0
    labels = sum(palette.text_width_points(handle.get_label(), 0.85 * size) for handle in handles)
    font = 0.85 * size * min(1.0, width / (labels + 2.6 * 0.85 * size * len(handles)))
    legend = ax.legend(
        handles=list(handles),
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncol=len(handles),
        fontsize=font,
        frameon=False,
        borderaxespad=0.15,
        borderpad=0.2,
        handlelength=1.3,
        handleheight=0.7,
        handletextpad=0.4,
        columnspacing=0.9,
    )
    for text in legend.get_texts():
        text.set_color(palette.INK)
