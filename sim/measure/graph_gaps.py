"""graph_gaps.csv: what a kernel takes inside a captured graph and in a stream, against its duration alone."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from sim.measure.table import Case, Outcome, Row, Table

KEY = ("kind", "bytes")
ADDED_BYTES = (4 << 10, 1 << 20, 16 << 20)
WIDTH = 4096
"""Of the linear layers' square weights."""
N_LINKS = 100
"""Links of a chain; it is also timed twice as long, so that what a replay itself takes drops out."""
N_TIMES = 15
FLUSHED_BYTES = 256 << 20
"""Written ahead of each chain: L2 then holds nothing of it, and it is launched while this runs."""
CYCLES = 0

Links = Sequence[Callable[[], Any]]


def cases(quick: bool) -> list[Case]:
    """empty: nothing is done. add_chained: each reads what the one before wrote; add_rotating: no two share operands;
    `bytes` are of one operand. linear_add: linears of one token alternate with adds, each reads what the one before
    wrote; `bytes` are of a linear's weights."""
    found: list[tuple[str, int]] = [("empty", 0)]
    found += [(kind, n_bytes) for kind in ("add_chained", "add_rotating") for n_bytes in ADDED_BYTES]
    found += [("linear_add", 2 * WIDTH**2)]
    chosen = [dict(zip(KEY, values, strict=True)) for values in found]
    return chosen[::3] if quick else chosen


def measure(batch: Sequence[Case]) -> list[Outcome]:
    """Three rows of each: replays of a graph, launches into a stream, and the mean duration that CUPTI gives."""
    return [_measured(case) for case in batch]


def _measured(case: Case) -> list[Row]:
    import torch

    from sim.measure.graphs import captured
    from sim.measure.timing import launches

    flushed = torch.empty(FLUSHED_BYTES, device="cuda", dtype=torch.uint8)

    def flushed_first(i: int) -> None:
        flush()
        short()

    with torch.no_grad():
        links, flush = _links(case), partial(flushed.fill_, 1)
        short, long = partial(_run, links[:N_LINKS]), partial(_run, links)
        graphs = [captured(chain) for chain in (short, long)]
        replays_us = _longer_us(graphs[0].replay, graphs[1].replay, flush)
        stream_us = _longer_us(short, long, flush)
        profiled = launches(flushed_first, 4)
    torch.cuda.empty_cache()
    kernels = [[event["dur"] for event in events[1:]] for events in profiled]
    n_kernels = len(kernels[0])
    alone_us = statistics.median(map(sum, kernels))
    times = {"graph": replays_us, "stream": stream_us, "alone": alone_us}
    return [
        {"mode": mode, "n_kernels": n_kernels, "us_per_kernel": round(us / n_kernels, 4)} for mode, us in times.items()
    ]


def _longer_us(short: Callable[[], Any], long: Callable[[], Any], flush: Callable[[], Any]) -> float:
    """By how much the chain that is twice as long takes longer: the time of `N_LINKS` links."""
    from sim.measure.graphs import event_us

    times = [[event_us(chain, flush) for chain in (short, long)] for _ in range(N_TIMES + 1)][1:]
    shorter, longer = (statistics.median(each) for each in zip(*times, strict=True))
    return float(longer - shorter)


def _run(links: Links) -> None:
    for link in links:
        link()


def _links(case: Case) -> Links:
    """Twice `N_LINKS` links."""
    import torch

    n = 2 * N_LINKS
    if case["kind"] == "empty":
        return [partial(torch.cuda._sleep, CYCLES)] * n
    if case["kind"] == "add_chained":
        return _chained(case["bytes"] // 2, n)
    return _rotating(case["bytes"] // 2, n) if case["kind"] == "add_rotating" else _linear_add(n)


def _chained(n_elements: int, n: int) -> Links:
    """Two buffers in turn: one is read, with a third, and the other written."""
    import torch

    from sim.measure.timing import pool

    step = pool("bf16").take(n_elements)
    buffers = [torch.zeros_like(step) for _ in range(2)]
    return [partial(torch.add, buffers[i % 2], step, out=buffers[(i + 1) % 2]) for i in range(n)]


def _rotating(n_elements: int, n: int) -> Links:
    import torch

    from sim.measure.timing import pool

    source = pool("bf16")
    sets = [(source.take(n_elements), source.take(n_elements)) for _ in range(n)]
    return [partial(torch.add, x, y, out=torch.empty_like(x)) for x, y in sets]


def _linear_add(n: int) -> Links:
    """Each linear has its own weights. The adds scale what they add by 0, so that numbers stay small."""
    import torch
    from torch.nn import functional

    from sim.measure.timing import pool

    source = pool("bf16")
    token = source.take(1, WIDTH)
    weights = [source.take(WIDTH, WIDTH) for _ in range(n // 2)]
    state: dict[str, Any] = {}

    def first() -> None:
        # A chain begins with what outlives it: a graph may not read what an earlier run allocated and dropped.
        state["y"] = functional.linear(token, weights[0])

    def linear(weight: Any) -> None:
        state["y"] = functional.linear(state["x"], weight)

    def add() -> None:
        state["x"] = torch.add(token, state["y"], alpha=0.0)

    later = [link for weight in weights[1:] for link in (partial(linear, weight), add)]
    return [first, add, *later]


TABLE = Table(
    "graph_gaps",
    "chains of kernels: wall time per kernel in a replayed graph and in a stream, and its duration by CUPTI (alone)",
    (*KEY, "mode", "n_kernels", "us_per_kernel"),
    (),
    cases,
    measure,
    batch=1,
    case_s=1.5,
)
