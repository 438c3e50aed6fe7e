"""Chrome trace-event JSON of a step, for Perfetto: the host, every kernel by name, HBM bytes as counters, and from
inside one GEMM and one attention kernel, replayed with spans.

The kernels shown from inside are the longest of their kind in the middle layer. Their SMs lie on tracks of processes of
their own, at the time at which they ran. Format and units as in `viz.trace`.
"""

from __future__ import annotations

import heapq
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass

from sim.llm import LlmResult, limiter_of
from sim.operation import kernels_on
from sim.result import KernelResult
from sim.step import StepResult, burst_options
from viz import trace
from viz.llm import facts
from viz.llm.facts import Placed
from viz.llm.layer import middle_layer
from viz.trace import HEAD, LANES, PID_STREAM, TAIL, Entry
from workloads.attention import Attention
from workloads.gemm import Gemm

PID_INSIDE = 10
"""Process of the first kernel that is shown from inside; the next ones follow."""
NAMES = {1: "Host", 2: "PCIe", 3: "GPU stream", 5: "Counters"}
PS_PER_S = 1e12


@dataclass(frozen=True)
class Inside:
    """A kernel of the step, replayed with spans."""

    placed: Placed
    kernel: KernelResult

    @property
    def title(self) -> str:
        """Name of its process."""
        operation = self.placed.ran.operation
        return f"Inside {operation.name} of layer {operation.layer}: {self.kernel.name}"


def write_trace(result: LlmResult, path: str | os.PathLike[str], max_bytes: int = trace.DEFAULT_MAX_BYTES) -> int:
    """Write the trace of the shown step, whole or not at all; return how many spans did not fit `max_bytes`.

    Raises `ConfigError` where the path cannot be written.
    """
    step = result.shown
    insides = chosen(result)
    every = facts.placed(step)
    fixed = [*_names(insides), *_host(step), *_kernels(every), *_counters(step, every)]
    room = max_bytes - sum(map(trace.size_of, fixed)) - len(HEAD) - len(TAIL)
    kept: list[list[Entry]] = []
    dropped = 0
    for i, inside in enumerate(insides):
        tracks = trace.fitting(
            [(inside.kernel, _ps(inside.placed.start_s))], room // (len(insides) - i), PID_INSIDE + i
        )
        fixed += tracks.names
        room -= sum(map(trace.size_of, (*tracks.names, *tracks.kept)))
        n_spans = 0 if inside.kernel.spans is None else len(inside.kernel.spans)
        dropped += n_spans - len(tracks.kept)
        kept.append(tracks.kept)
    trace.write_entries(path, heapq.merge(sorted(fixed), *kept), _closing(result, insides, dropped))
    return dropped


def _closing(result: LlmResult, insides: tuple[Inside, ...], dropped: int) -> str:
    other = {
        "step": result.shown.step.label,
        "gpu": result.gpu["name"],
        "versions": result.versions,
        "inside": [inside.title for inside in insides],
        "spans_dropped_by_size_bound": dropped,
        "spans_dropped_by_engine": sum(inside.kernel.spans_dropped for inside in insides),
    }
    return f',\n"otherData": {json.dumps(other)}}}\n'


def _ps(time_s: float) -> int:
    return round(time_s * PS_PER_S)


def _names(insides: tuple[Inside, ...]) -> Iterator[Entry]:
    titles = NAMES | {PID_INSIDE + i: inside.title for i, inside in enumerate(insides)}
    for pid, name in titles.items():
        yield trace.label_entry("process_name", pid, 0, name)
        yield trace.label_entry("process_sort_index", pid, 0, pid)
    for pid, tid, name in LANES.values():
        yield trace.label_entry("thread_name", pid, tid, name)
    yield trace.label_entry("thread_name", PID_STREAM, 2, "operations")


# The step.
def _host(step: StepResult) -> Iterator[Entry]:
    for span in step.host.spans:
        if span.lane != "stream":
            pid, tid, _ = LANES[span.lane]
            edges = _ps(span.start_s), _ps(span.end_s)
            yield trace.slice_entry(span.name, (pid, tid), edges, {"bytes": span.bytes} if span.bytes else {})


def _kernels(every: tuple[Placed, ...]) -> Iterator[Entry]:
    """Each kernel, and below it the operation that it belongs to."""
    for each in every:
        operation, kernel = each.ran.operation, each.main
        edges = _ps(each.start_s), _ps(each.end_s)
        moved = {f"hbm {way} bytes": sum(k.bytes["hbm"][way] for k in each.kernels) for way in ("read", "write")}
        args = {
            "operation": operation.name,
            "layer": operation.layer,
            "shape": facts.shape_text(operation.work),
            "limiter": limiter_of(kernel),
            **moved,
        }
        yield trace.slice_entry(" + ".join(k.name for k in each.kernels), (PID_STREAM, 1), edges, args)
        layer = {"layer": operation.layer, "flops": operation.work.flops}
        yield trace.slice_entry(operation.name, (PID_STREAM, 2), edges, layer)


def _counters(step: StepResult, every: tuple[Placed, ...]) -> Iterator[Entry]:
    """HBM's mean rate in each kernel, 0 between them; bytes so far; the clock."""
    totals = {"read": 0, "write": 0}
    for each, after in zip(every, (*every[1:], None), strict=True):
        start, end, seconds = _ps(each.start_s), _ps(each.end_s), each.end_s - each.start_s
        for way, before in totals.items():
            moved = sum(kernel.bytes["hbm"][way] for kernel in each.kernels)
            totals[way] = before + moved
            yield trace.counter_entry(f"HBM {way} (GB/s)", start, round(moved / seconds / 1e9, 1))
            if after is None or _ps(after.start_s) > end:
                yield trace.counter_entry(f"HBM {way} (GB/s)", end, 0.0)
            yield trace.counter_entry(f"HBM {way} so far (MB)", end, round((before + moved) / 1e6, 3))
        yield trace.counter_entry("SM clock (MHz)", start, round(each.main.sm_mhz, 1))


# The inside of kernels.
def chosen(result: LlmResult) -> tuple[Inside, ...]:
    """The longest GEMM and the longest attention of the middle layer, replayed with spans."""
    step, found = result.shown, []
    layer = middle_layer(step)
    for kind in (Gemm, Attention):
        those = [
            each
            for each in facts.placed(step)
            if isinstance(each.ran.operation.work, kind)
            and each.ran.operation.layer == layer
            and getattr(each.ran.operation.work, "phase", "forward") == "forward"
        ]
        if those:
            longest = max(those, key=lambda each: each.main.time_s)
            found.append(Inside(longest, _replayed(result, longest)))
    return tuple(found)


def _replayed(result: LlmResult, each: Placed) -> KernelResult:
    """The same kernel with its spans; at the clock that it ran at where the board's power capped it."""
    step, how = result.shown, result.how
    known = kernels_on(step.gpu, burst_options(result.options), how.attention, how.tile)
    return known.traced(each.ran.operation.work, each.ran.resident, step.clock_cap_mhz)
