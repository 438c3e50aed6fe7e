"""CUDA graphs of PyTorch calls, and the wall time of their replays."""

from collections.abc import Callable
from typing import Any

import torch


def captured(call: Callable[[], Any]) -> Any:
    """A graph of what `call` launches, after two calls of it outside."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def replays_us(graph: Any, count: int) -> list[float]:
    """Wall time of each of `count` replays, by events around it; a first one does not count."""
    return [event_us(graph.replay) for _ in range(count + 1)][1:]


def event_us(call: Callable[[], Any], before: Callable[[], Any] = lambda: None) -> float:
    """Time between events around what `call` launches; `before` is launched ahead of them."""
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    before()
    first.record()
    call()
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last)) * 1e3
