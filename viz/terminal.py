"""What the command line prints of a Result: one screen that tells the story, and the JSON object."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hwmodels.estimates import estimates_note
from sim.limiter import limiter_code
from sim.result import SCHEMA, HostSpan, Result
from viz import levels, words

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

GAP = 2
"""Columns between those of a table."""
NARROW = 96
"""Consoles below this many columns get fewer columns in tables."""
MAX_REASONS, MAX_EVIDENCE, MAX_ADVICE = 7, 3, 3
SMALLEST_REASON, SMALLEST_PART = 0.005, 0.02

REASONS = {
    "mma": "computing",
    "hbm": "data from HBM",
    "l2": "data from L2",
    "sm_port": "the SM's port",
    "barrier": "barriers",
    "issue": "issuing loads",
    "start": "CTA start",
    "epilogue": "epilogue",
    "idle": "no CTA to run",
}
"""`KernelResult.waits` in words."""

ENERGY = {
    "idle": "idle",
    "sm": "SMs",
    "tensor": "tensor cores",
    "cuda_cores": "CUDA cores",
    "smem": "shared memory",
    "l2": "L2",
    "hbm": "HBM",
}
"""`KernelResult.energy_j` in words."""

ASCII = str.maketrans(
    {"µ": "u", "×": "x", "█": "#", "·": "-", "→": ">", "–": "-", "…": ".", "▓": "=", "▒": "+", "░": ":"}
)
"""For consoles whose encoding lacks them."""


def show(console: Console, *parts: RenderableType) -> None:
    """Print; to a file or pipe without trailing blanks, and in ASCII where the encoding lacks what is used here."""
    if console.is_terminal and _is_unicode(console):
        for part in parts:
            console.print(part)
        return
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    write_lines(console, captured.get().splitlines())


def write_lines(console: Console, lines: Iterable[str]) -> None:
    """Write lines as long as they are, without trailing blanks, and in ASCII where the encoding lacks what is used."""
    text = "".join(line.rstrip() + "\n" for line in lines)
    if not _is_unicode(console):
        text = text.translate(ASCII).encode("ascii", "replace").decode("ascii")
    console.file.write(text)


def _is_unicode(console: Console) -> bool:
    return console.encoding.lower().startswith("utf")


def print_result(result: Result, console: Console) -> None:
    """One screen: at most 40 lines at 100 columns."""
    blank = ""
    show(console, *_headline(result), blank, _waits(result, console.width), blank, _traffic(result, console.width))
    show(console, blank, facts(_fact_rows(result)))


# Headline.
def _headline(result: Result) -> list[RenderableType]:
    from rich.text import Text

    setting = levels.setting_text(result.workload)
    first = Text.assemble((levels.title(result), "bold"), f" ({setting}) on {result.gpu['label']}")
    rate, peak = levels.achieved_flops_per_s(result), levels.peak_flops_per_s(result)
    second = Text.assemble((words.time_text(result.time_s), "bold"), " · ", (words.flops_text(rate), "bold"))
    if levels.streamed(result):
        second.append(" with all of B in HBM")
    if peak:
        share = words.percent_text(rate / peak)
        second.append(f" · {share} of the {words.flops_text(peak)} peak at {result.main.sm_mhz:,.0f} MHz")
    return [first, second, Text(_end_to_end(result), style="dim")]


def _end_to_end(result: Result) -> str:
    parts = {"copies to the GPU": "copy h2d", "kernels": "stream", "copies back": "copy d2h"}
    times = {text: _lane_s(result.host_spans, lane) for text, lane in parts.items()}
    known = ", ".join(f"{text} {words.time_text(time_s)}" for text, time_s in times.items() if time_s)
    end_to_end = f"End to end {words.time_text(result.end_to_end_s)}"
    if levels.streamed(result):
        bound = "PCIe" if sum(times.values()) >= 2 * times["kernels"] else "kernels"
        return f"{end_to_end}, B in pieces, bound by {bound}: {known}"
    return f"{end_to_end}: {known}; the rest is launching and waiting" if known else end_to_end


def _lane_s(spans: Iterable[HostSpan], lane: str) -> float:
    return sum(span.end_s - span.start_s for span in spans if span.lane == lane)


# What CTA slots waited for.
def _waits(result: Result, width: int) -> Table:
    table = grid(("CTA time spent on", "left"), ("", "right"), ("", "left"))
    room = max(min(width - 32, 56), 8)
    for name, share in _reasons(result.main.waits):
        text = REASONS.get(name, name)
        style = "green" if name == "mma" else "bright_black" if name == "idle" else "yellow"
        table.add_row(text, words.percent_text(share), bar(share, room, style))
    return table


def _reasons(waits: dict[str, float]) -> list[tuple[str, float]]:
    """Computing first, then the waits by size; what is too small to show, or too many, is summed up as "other"."""
    shown = sorted(waits.items(), key=lambda item: (item[0] != "mma", -item[1]))
    large = [item for item in shown if item[1] >= SMALLEST_REASON][:MAX_REASONS]
    other = sum(waits.values()) - sum(share for _, share in large)
    return [*large, ("other", other)] if other >= SMALLEST_REASON else large


def bar(share: float, width: int, style: str) -> RenderableType:
    """A bar of that share of `width` columns; of one at least, unless there is nothing."""
    from rich.text import Text

    return Text("█" * max(round(share * width), 1 if share > 0 else 0), style=style, no_wrap=True)


# Traffic.
def _traffic(result: Result, width: int) -> Table:
    narrow = width < NARROW
    heads = ["Level", "Read", "Written", "Rate", "Of peak"]
    heads += [] if narrow else ["Busy", "Time at peak", "× compulsory"]
    table = grid(*((head, "left" if head == "Level" else "right") for head in heads))
    for level in levels.levels(result):
        row = [levels.LABELS[level.key], words.bytes_text(level.read.n_bytes), words.bytes_text(level.write.n_bytes)]
        row += [words.rate_text(level.bytes_per_s), _share(level.share)]
        least = words.time_text(level.least_s) if level.least_s else "–"
        ratio = level.n_bytes / result.workload["compulsory_bytes"]
        row += [] if narrow else [_share(level.busy), least, f"{ratio:,.2f}"]
        table.add_row(*row, style="bold" if levels.limiter_place(result) == level.key else "")
    if not narrow:
        table.add_row(*_compute_row(result), style="bold" if levels.limiter_place(result) == "tensor" else "")
    return table


def _compute_row(result: Result) -> list[str]:
    rate, peak = levels.achieved_flops_per_s(result), levels.peak_flops_per_s(result)
    least = words.time_text(result.flops / peak) if peak else "–"
    share, busy = _share(rate / peak if peak else None), _share(result.main.utilisation.get("tensor"))
    return [levels.unit_title(result), "", "", words.flops_text(rate), share, busy, least, ""]


def _share(share: float | None) -> str:
    return "–" if share is None else words.percent_text(share)


# Facts.
def facts(entries: Iterable[tuple[str, Sequence[str]]]) -> Table:
    """Names, each with its lines beside it."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for name, lines in entries:
        table.add_row(name, Text("\n".join(lines)))
    return table


def _fact_rows(result: Result) -> list[tuple[str, Sequence[str]]]:
    rows: list[tuple[str, Sequence[str]]] = [
        ("Limiter", [levels.limiter_text(result), *result.evidence[:MAX_EVIDENCE]]),
        ("Occupancy", [_occupancy(result)]),
        ("Clock", [_clock(result), *_settling(result)]),
        ("Energy", _energy(result)),
        ("Kernel", [_kernel(result), *_other_kernels(result)]),
        ("Would help", [_advice(item) for item in result.advice[:MAX_ADVICE]]),
        ("Note", _notes(result)),
    ]
    return [(name, lines) for name, lines in rows if lines]


def _occupancy(result: Result) -> str:
    occupancy, waves = result.main.occupancy, result.main.waves
    ctas, warps = words.plural(occupancy["ctas_per_sm"], "CTA"), words.plural(occupancy["warps_per_sm"], "warp")
    cut = f"{words.three_digits(waves)} waves of tiles, the last of them cut along k so that all slots get work"
    filled = cut if result.main.config.get("stream_k") and waves >= 1 else _waves(waves)
    return f"{ctas} ({warps}) an SM, limited by {occupancy['limit']}; {filled}"


def _waves(waves: float) -> str:
    """3.88 -> "3.88 waves: the last fills 88 % of the slots"; below one wave, how many slots have work."""
    if waves <= 1.0:
        return f"{words.three_digits(waves)} of a wave: {words.percent_text(waves)} of the slots get work"
    tail = waves - math.ceil(waves) + 1.0
    if tail > 0.995:
        return f"{words.three_digits(waves)} waves, the last one full"
    lost = 1.0 - waves / math.ceil(waves)
    return f"{words.three_digits(waves)} waves: the last fills {words.percent_text(tail)} of the slots" + (
        f", {words.percent_text(lost)} of slot time lost to the tail" if lost >= SMALLEST_REASON else ""
    )


def _clock(result: Result) -> str:
    boost, cap = levels.gpu_value(result, "clock.boost_mhz"), result.options.get("clock_mhz")
    held = f"held at {cap:,.0f} MHz" if cap else f"{result.main.sm_mhz:,.0f} MHz on average"
    return f"{held}{f' (boost {boost:,.0f})' if boost else ''}; {result.main.sm_cycles:,.0f} SM cycles"


def _settling(result: Result) -> list[str]:
    """What a long load was before the board slowed it, and what it is held by; nothing where it is not slowed."""
    before = result.options.get("before_settling")
    if not before:
        return []
    react_ms, mean_ms = (levels.gpu_value(result, f"power.{name}") for name in ("react_ms", "mean_ms"))
    burst = f"{words.time_text(before['time_s'])} at {before['sm_mhz']:,.0f} MHz and {before['power_w']:,.0f} W"
    return [f"From rest a burst, {burst}, for {react_ms:g} ms; then the board holds its mean over {mean_ms / 1e3:g} s"]


def _energy(result: Result) -> list[str]:
    """Joules, watts, and the larger parts of the main kernel by size; nothing where no energy was worked out."""
    parts = sorted(result.main.energy_j.items(), key=lambda part: -part[1])
    total_j = sum(result.main.energy_j.values())
    if not total_j:
        return []
    shares = [
        f"{ENERGY[name]} {words.percent_text(joules / total_j)}"
        for name, joules in parts
        if joules >= SMALLEST_PART * total_j
    ]
    power = words.power_text(result.power_w, levels.burst_beyond_w(result))
    return [f"{words.energy_text(result.energy_j)}, {power}: {', '.join(shares)}"]


def _kernel(result: Result) -> str:
    config, occupancy = result.main.config, result.main.occupancy
    stages, warps = words.plural(config["stages"], "stage"), words.plural(config["warps"], "warp")
    parts = [f"{config['family']} {levels.tile_text(config)}", stages, warps]
    if config.get("cluster_m", 1) * config.get("cluster_n", 1) > 1:
        parts.append(f"cluster {config['cluster_m']}x{config['cluster_n']}")
    for key, text in (("group", "group"), ("split_k", "split")):
        parts += [f"{text} {config[key]}"] if config.get(key, 1) > 1 else []
    parts += [text for key, text in (("stream_k", "stream-K"), ("pingpong", "ping-pong")) if config.get(key)]
    parts.append(f"{occupancy['registers_per_thread']} registers a thread")
    parts.append(f"{occupancy['smem_bytes_per_cta'] / 1024:.0f} KiB of shared memory a CTA")
    return ", ".join(parts)


def _other_kernels(result: Result) -> list[str]:
    others = [kernel for kernel in result.kernels if kernel is not result.main]
    return [f"with {kernel.name}: {words.time_text(kernel.time_s)}" for kernel in others]


def _advice(item: dict[str, Any]) -> str:
    return f"{item['speedup']:.2f} × by {item['change']} → {words.time_text(item['time_s'])}"


def _notes(result: Result) -> list[str]:
    notes = [expected_error_text(result.options.get("expected_error")), *gpu_notes(result.gpu)]
    if any(kernel.sampled for kernel in result.kernels):
        notes.append("Sampled: repeated waves were skipped; --full replays all of them.")
    return notes


def gpu_notes(described: Mapping[str, Any]) -> list[str]:
    """What is to be said of the GPU itself, as a result documents it."""
    note = estimates_note(described)
    return [note] if note else []


def expected_error_text(expected: Any) -> str:
    """`Result.options["expected_error"]` in words: {"mape_pct", "group", "n"}, or None where nothing was measured."""
    if not expected:
        return "Simulated; no kernel like this was measured here, so its error is not known."
    return (
        f"Simulated; expect it to be off by {words.three_digits(expected['mape_pct'])} % "
        f"(mean over {expected['n']:,} measured kernels, {expected['group']})."
    )


def grid(*columns: tuple[str, Any]) -> Table:
    """An empty table without lines: (heading, "left" or "right") of each column."""
    from rich.table import Table

    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    for name, justify in columns:
        table.add_column(name, justify=justify, no_wrap=True)
    return table


def columns_that_fit(widths: Sequence[int], width: int) -> list[list[int]]:
    """Indices of the columns of each table that fits `width`; all begin with the first column, and have another."""
    tables: list[list[int]] = []
    room = 0
    for i in range(1, len(widths)):
        if not tables or GAP + widths[i] > room:
            tables.append([0])
            room = width - widths[0]
        tables[-1].append(i)
        room -= GAP + widths[i]
    return tables


def grids(
    heads: Sequence[tuple[str, Any]], rows: Sequence[Sequence[str]], width: int, *, folded: bool = False
) -> Iterator[RenderableType]:
    """Rows of text under headings ("left" or "right" as for `grid`), which take several lines if `folded` and cells are
    narrower. What does not fit `width` goes into a further table that begins with the first column: nothing is cut."""
    apart = [head.split() if folded else [head] for head, _ in heads]
    widths = [max(map(len, [row[i] for row in rows] + apart[i])) for i in range(len(heads))]
    for n, columns in enumerate(columns_that_fit(widths, width)):
        table = grid()
        for i in columns:
            head = "\n".join(textwrap.wrap(heads[i][0], widths[i]))
            table.add_column(head, justify=heads[i][1], overflow="fold")
        for row in rows:
            table.add_row(*(row[i] for i in columns))
        yield from ([""] if n else [])
        yield table


# JSON.
def _energy_by_part(result: Result) -> dict[str, float]:
    """Joules of all kernels by part, and in all."""
    parts = dict.fromkeys(part for kernel in result.kernels for part in kernel.energy_j)
    found = {part: sum(kernel.energy_j.get(part, 0.0) for kernel in result.kernels) for part in parts}
    return {**found, "total": result.energy_j}


def _before_settling(result: Result) -> dict[str, float] | None:
    """The burst that a long load begins with, and the times of the board's control; None where it is not slowed."""
    before = result.options.get("before_settling")
    if not before:
        return None
    times = {name: levels.gpu_value(result, f"power.{name}") for name in ("react_ms", "mean_ms")}
    return {"time_us": before["time_s"] * 1e6, "sm_mhz": before["sm_mhz"], "power_w": before["power_w"], **times}


def to_json(result: Result) -> dict[str, Any]:
    """The object that `--json` prints.

    Times, FLOPs, energy and bytes are the whole call's; cycles, clock, utilisation, waits, occupancy and waves the main
    kernel's. `bytes` holds PCIe (copies) beside the levels of the kernels.
    """
    main = result.main
    keys = dict.fromkeys(["pcie", *(level for kernel in result.kernels for level in kernel.bytes)])
    return {
        "time_us": result.time_s * 1e6,
        "end_to_end_us": result.end_to_end_s * 1e6,
        "energy_j": _energy_by_part(result),
        "power_w": result.power_w,
        "burst": levels.burst_beyond_w(result) is not None,
        "before_settling": _before_settling(result),
        "limiter": limiter_code(result.limiter),
        "sm_cycles": main.sm_cycles,
        "sm_mhz": main.sm_mhz,
        "flops": result.flops,
        "bytes": {key: levels.level_bytes(result, key) for key in keys},
        "utilisation": dict(main.utilisation),
        "waits": dict(main.waits),
        "occupancy": dict(main.occupancy),
        "waves": main.waves,
        "kernel": dict(main.config),
        "gpu": result.gpu["name"],
        "notes": gpu_notes(result.gpu),
        "weights_format": levels.weights_format(result),
        "weight_group": result.workload.get("weight_group"),
        "sampled": any(kernel.sampled for kernel in result.kernels),
        "schema": SCHEMA,
    }
