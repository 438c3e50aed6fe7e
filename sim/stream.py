"""Kernels alone in one stream, everything in HBM: what `host.play` does then, in closed form.

The host issues launches one after another; a kernel starts when it was issued and the one before has ended,
`launch.graph_us` ago. A step of a model has hundreds of kernels, and this takes a tenth of the events' time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from sim.host import Hbm, HostOutcome
from sim.result import HostSpan

if TYPE_CHECKING:
    from hwmodels.spec import Gpu


class Issued(NamedTuple):
    """One kernel: its operation's name, its seconds, whether it is its operation's first, and seconds that an eager
    program spends before it beyond asking for it."""

    name: str
    time_s: float
    first: bool
    host_s: float = 0.0


def play_kernels(kernels: Sequence[Issued], resident_bytes: int, gpu: Gpu, launch: str) -> HostOutcome:
    """Launch `kernels` in order on an idle GPU and wait for their end; as `host.play`, with `resident_bytes` all the
    time. Raises ConfigError where these do not fit HBM."""
    costs = gpu.launch
    hbm = Hbm(gpu.name, round(gpu.hbm.capacity_gb * 1e9))
    hbm.alloc("tensors", resident_bytes)
    host_s = ended_s = ready_s = idle_s = 0.0
    spans: list[HostSpan] = []
    for i, kernel in enumerate(kernels):
        if launch != "graph" or i == 0:
            began_s = host_s
            eager = launch == "eager" and kernel.first
            host_s += (costs.eager_us if eager else costs.stream_us) * 1e-6 + (kernel.host_s if eager else 0.0)
            spans.append(HostSpan("host", f"launch {kernel.name}", began_s, host_s))
        start_s = max(host_s, ready_s)
        idle_s += start_s - ended_s
        ended_s = start_s + kernel.time_s
        ready_s = ended_s + costs.graph_us * 1e-6
        spans.append(HostSpan("stream", kernel.name, start_s, ended_s))
    end_s = max(host_s, ended_s) + (costs.sync_us - costs.stream_us) * 1e-6
    spans.append(HostSpan("host", "synchronise", host_s, end_s))
    spans.sort(key=lambda span: (span.start_s, span.end_s, span.lane, span.name))
    return HostOutcome(end_s, tuple(spans), hbm.peak_bytes, 0, 0, idle_s + end_s - ended_s, 0.0)
