"""Why one tile beats another, in words: the parts of the difference by size, and the figures behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from sim.call import Call
from sim.limiter import limiter_code, limiter_words
from sim.schedule.names import short_name
from sim.tile_difference import CLOCK, Part, TileDifference, useful_share
from sim.tile_rows import TileRow, row
from viz import levels, words
from viz.terminal import REASONS, facts, grid, show
from viz.tiles.terminal import row_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

SMALLEST_PART = 0.05
"""Of the largest part: smaller ones get no sentence, and no row below a hundredth of it."""
MOST_SENTENCES = 6
SAME = 0.005
"""Figures closer than this are given as equal."""
LEVELS = ("hbm", "l2", "sm", "smem")

DOES = {
    "mma": "computes",
    "hbm": "waits for HBM",
    "l2": "waits for L2",
    "sm_port": "waits for the SM ports",
    "barrier": "waits at barriers",
    "issue": "issues loads",
    "start": "waits for launch and start",
    "epilogue": "runs epilogues",
    "idle": "leaves slots empty",
}
"""Wait -> what B does for longer or shorter."""


def print_difference(found: TileDifference, console: Console) -> None:
    """Both configurations, sentences, and two small tables: seconds by part, and figures."""
    from rich.text import Text

    rows = [(side, short_name(call.plan.config), words.time_text(call.time_s)) for side, call in _sides(found)]
    text = [f"{name}, {time}" for _, name, time in rows]
    head = Text.assemble(("A beats B by ", "bold"), (headline(found), "bold"))
    show(console, head, facts([("A", text[:1]), ("B", text[1:])]), "")
    show(console, *map(Text, sentences(found)), "", _parts_table(found), "", _figures_table(found))


def headline(found: TileDifference) -> str:
    """ "6.20 µs (3.5 %)"."""
    return f"{words.time_text(found.time_s)} ({100 * found.time_s / found.first.time_s:.1f} %)"


def sentences(found: TileDifference) -> list[str]:
    """The largest parts, each with the figures that go with it; the largest first."""
    least = SMALLEST_PART * abs(found.parts[0].time_s)
    told = [part for part in found.parts if abs(part.time_s) >= least and part.time_s][:MOST_SENTENCES]
    return [_sentence(part, found) for part in told] or ["Both take the same time for everything."]


def _sentence(part: Part, found: TileDifference) -> str:
    far = words.time_text(abs(part.time_s))
    more = "longer" if part.time_s > 0 else "shorter"
    if part.name == CLOCK:
        higher = "lower" if part.time_s > 0 else "higher"
        return f"B's clock is {higher}, which makes it {far} {more}: {_clock(found)}."
    if part.name not in DOES:
        return f"B's {part.name} takes {far} {more}."
    why = _WHY[part.name](found)
    return f"B {DOES[part.name]} {far} {more}{': ' + why if why else ''}."


def _sides(found: TileDifference) -> tuple[tuple[str, Call], tuple[str, Call]]:
    return ("A", found.first), ("B", found.second)


def _compared(found: TileDifference, figure: Callable[[Call], float], text: Callable[[float], str], of: str) -> str:
    """ "185 MB of HBM traffic, A 213 MB"; of equal ones "185 MB of HBM traffic, as A"."""
    first, second = figure(found.first), figure(found.second)
    same = abs(second - first) <= SAME * max(abs(first), abs(second))
    return f"{text(second)} {of}, {'as A' if same else f'A {text(first)}'}"


def _traffic(level: str) -> Callable[[TileDifference], str]:
    name = {"hbm": "through HBM", "l2": "through L2", "sm": "through the SM ports"}[level]
    return lambda found: _compared(found, lambda call: sum(call.main.bytes[level].values()), words.bytes_text, name)


def _computing(found: TileDifference) -> str:
    """What tells the MMAs of both apart, of all that may."""
    units = [call.plan.config.mma for _, call in _sides(found)]
    texts = [f"{_unit(units[1])} where A has {_unit(units[0])}"] if units[0] != units[1] else []
    padding = [1 / useful_share(call) for _, call in _sides(found)]
    if abs(padding[1] - padding[0]) > SAME:
        texts.append(f"padding makes {padding[1]:.2f} of the product's FLOPs of it, of A {padding[0]:.2f}")
    held = [call.plan.occupancy.ctas_per_sm for _, call in _sides(found)]
    if held[0] != held[1]:
        texts.append(f"{words.plural(held[1], 'CTA')} an SM where A has {held[0]}")
    busy = _compared(found, lambda call: call.main.utilisation["tensor"], words.percent_text, "of the time")
    texts.append(f"{_busy_unit(found.second)} busy {busy}")
    return "; ".join(texts)


def _unit(mma: str) -> str:
    return {"mma_sync": "mma.sync", "fma": "CUDA cores"}.get(mma, mma)


def _count(level: str, way: str, of: str) -> Callable[[TileDifference], str]:
    return lambda found: _compared(found, lambda call: call.main.requests[level][way], lambda n: f"{n:,.0f}", of)


def _clock(found: TileDifference) -> str:
    return _compared(found, lambda call: call.main.sm_mhz, lambda mhz: f"{mhz:,.0f} MHz", "on average")


def _starts(found: TileDifference) -> str:
    return _compared(found, lambda call: float(call.main.config["n_ctas"]), lambda n: f"{n:,.0f}", "CTAs")


def _filling(found: TileDifference) -> str:
    each = {side: row(call, found.first.time_s) for side, call in _sides(found)}
    texts = [
        f"{words.three_digits(found_row.waves)} waves of {_per_sm(found_row)} leave {side} "
        f"{words.percent_text(found_row.tail_loss)} of its slots empty"
        for side, found_row in reversed(each.items())
    ]
    return "; ".join(texts)


def _per_sm(found: TileRow) -> str:
    return f"{words.plural(found.ctas_per_sm, 'CTA')} an SM"


_WHY: dict[str, Callable[[TileDifference], str]] = {
    "mma": _computing,
    "hbm": _traffic("hbm"),
    "l2": _traffic("l2"),
    "sm_port": _traffic("sm"),
    "barrier": _count("smem", "read", "k-iterations"),
    "issue": _count("sm", "read", "loads"),
    "start": _starts,
    "epilogue": _count("sm", "write", "tiles stored"),
    "idle": _filling,
}


# Tables.
def _parts_table(found: TileDifference) -> Table:
    """Microseconds of CTA-slot time by part; they add up to both times and to the difference."""
    table = grid(("µs of CTA-slot time", "left"), ("A", "right"), ("B", "right"), ("B - A", "right"))
    least = SMALLEST_PART / 5 * abs(found.parts[0].time_s)
    shown = [part for part in found.parts if abs(part.time_s) >= least and part.time_s]
    rest = [part for part in found.parts if part not in shown]
    for part in shown:
        table.add_row(_part_text(part.name), *_microseconds(part.first_s, part.second_s))
    if any(part.first_s or part.second_s for part in rest):
        table.add_row("everything else", *_microseconds(*(sum(getattr(p, s) for p in rest) for s in _SECONDS)))
    table.add_row("together", *_microseconds(found.first.time_s, found.second.time_s), style="bold")
    return table


_SECONDS = ("first_s", "second_s")


def _part_text(name: str) -> str:
    return "clock beside the mean of both" if name == CLOCK else REASONS.get(name, name)


def _microseconds(first_s: float, second_s: float) -> tuple[str, str, str]:
    return f"{first_s * 1e6:,.2f}", f"{second_s * 1e6:,.2f}", f"{(second_s - first_s) * 1e6:+,.2f}"


def _figures_table(found: TileDifference) -> Table:
    table = grid(("", "left"), ("A", "right"), ("B", "right"))
    for name, *cells in zip(*(_figures(call, found.first.time_s) for _, call in _sides(found)), strict=True):
        table.add_row(name[0], name[1], cells[0][1])
    return table


def _figures(call: Call, best_s: float) -> Iterator[tuple[str, str]]:
    """(name, figure) of one side."""
    each, main = row(call, best_s), call.main
    yield "limited by", limiter_words(each.limiter).removeprefix("the ")
    for level in LEVELS:
        yield levels.LABELS[level], words.bytes_text(sum(main.bytes[level].values()))
    yield f"{_busy_unit(call)} busy", words.percent_text(main.utilisation["tensor"])
    yield "FLOPs that are the product's", words.percent_text(useful_share(call))
    yield "CTAs (warps) an SM", f"{each.ctas_per_sm} ({call.plan.occupancy.warps_per_sm})"
    yield "which limits them", each.occupancy_limit
    yield "waves", words.three_digits(each.waves)
    yield "tail", words.percent_text(each.tail_loss)
    yield "spilled bytes a thread", f"{each.spill_bytes:,}"
    yield "SM clock", f"{each.sm_mhz:,.0f} MHz"
    yield "energy", words.energy_text(each.energy_j)


def _busy_unit(call: Call) -> str:
    return "CUDA cores" if call.plan.config.mma == "fma" else "tensor cores"


# JSON.
def difference_json(found: TileDifference) -> dict[str, Any]:
    """The object under "explanation": both sides, the parts in microseconds, the sentences."""
    sides = {
        name.lower(): {
            **row_json(row(call, found.first.time_s)),
            "bytes": {level: dict(call.main.bytes[level]) for level in call.main.bytes},
            "tensor_busy": call.main.utilisation["tensor"],
            "useful_share": useful_share(call),
        }
        for name, call in _sides(found)
    }
    parts = [
        {"part": limiter_code(p.name), "a_us": p.first_s * 1e6, "b_us": p.second_s * 1e6, "b_less_a_us": p.time_s * 1e6}
        for p in found.parts
    ]
    return {**sides, "difference_us": found.time_s * 1e6, "parts": parts, "sentences": sentences(found)}
