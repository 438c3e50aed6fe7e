"""Chrome trace-event JSON of a step, for Perfetto: the host, layers, operations and kernels, HBM bytes as counters, and
from inside one GEMM and one attention kernel, replayed with spans.

The kernels shown from inside are the longest of their kind in the middle layer, or those of a named operation. Their
SMs are threads of the stream's process, below its kernels, at the time at which they ran. Kernels that stream through
memory have no inside: they are modelled in closed form. Format and units as in `viz.trace`.
"""

from __future__ import annotations

import heapq
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from hwmodels.errors import ConfigError
from sim.limiter import limiter_words
from sim.llm import LlmResult, limiter_of, operation_name
from sim.operation import kernels_on
from sim.result import KernelResult
from sim.step import StepResult, burst_options
from viz import trace
from viz.llm import facts
from viz.llm.facts import Placed
from viz.llm.layer import middle_layer
from viz.trace import HEAD, LANES, PID_COPIES, PID_COUNTERS, PID_HOST, PID_STREAM, TAIL, Entry, Tracks
from workloads.attention import Attention
from workloads.gemm import Gemm
from workloads.operations import Work

KERNELS, OPERATIONS, LAYERS = 1, 2, 3
THREADS = {LAYERS: "layers", OPERATIONS: "operations", KERNELS: "kernels"}
"""Threads of the stream's process in the order in which they are listed; those of SMs follow."""
FIRST_SM, APART = 10, 10**9
"""Number of the first of these, and how far apart kernels' lie in order."""
NAMES = {PID_HOST: "Host", PID_COPIES: "PCIe", PID_STREAM: "GPU stream", PID_COUNTERS: "Counters"}
NO_INSIDE = "Kernels that stream through memory (norms, elementwise) have no inside: they are modelled in closed form."
PS_PER_S = 1e12


@dataclass(frozen=True)
class Inside:
    """A kernel of the step, replayed with spans."""

    placed: Placed
    kernel: KernelResult
    title: str
    """What it is of, such as "down of layer 15"."""


def write_trace(
    result: LlmResult,
    path: str | os.PathLike[str],
    max_bytes: int = trace.DEFAULT_MAX_BYTES,
    inside: str | None = None,
) -> int:
    """Write the trace of the shown step, whole or not at all; return how many spans did not fit `max_bytes`.

    `inside`: the operation whose kernel is shown from inside. Raises `ConfigError` where the path cannot be written,
    and for an operation that the step does not have or that has no inside.
    """
    step = result.shown
    insides = chosen(result, inside)
    every = facts.placed(step)
    fixed = [*_names(step), *_host(step), *_stream(step, every), *_counters(step, every)]
    room = max_bytes - sum(map(trace.size_of, fixed)) - len(HEAD) - len(TAIL)
    kept: list[list[Entry]] = []
    dropped, n_threads = 0, FIRST_SM
    for i, each in enumerate(insides):
        tracks = Tracks(pid=PID_STREAM, n_threads=n_threads, prefix=f"{each.title}, ", order=FIRST_SM + i * APART)
        trace.fitting([(each.kernel, _ps(each.placed.start_s))], room // (len(insides) - i), tracks)
        n_threads = tracks.n_threads
        fixed += tracks.names
        room -= sum(map(trace.size_of, (*tracks.names, *tracks.kept)))
        n_spans = 0 if each.kernel.spans is None else len(each.kernel.spans)
        dropped += n_spans - len(tracks.kept)
        kept.append(tracks.kept)
    trace.write_entries(path, heapq.merge(sorted(fixed), *kept), _closing(result, insides, dropped))
    return dropped


def _closing(result: LlmResult, insides: tuple[Inside, ...], dropped: int) -> str:
    other = {
        "step": result.shown.step.label,
        "shown": facts.shown_text(result),
        "gpu": result.gpu["name"],
        "versions": result.versions,
        "inside": [f"{inside.title}: {inside.kernel.name}" for inside in insides],
        "without_inside": NO_INSIDE,
        "spans_dropped_by_size_bound": dropped,
        "spans_dropped_by_engine": sum(inside.kernel.spans_dropped for inside in insides),
    }
    return f',\n"otherData": {json.dumps(other)}}}\n'


def _ps(time_s: float) -> int:
    return round(time_s * PS_PER_S)


def _names(step: StepResult) -> Iterator[Entry]:
    """Of processes and threads, without those that nothing happens in."""
    lanes = {span.lane for span in step.host.spans}
    threads = [(pid, tid, name) for lane, (pid, tid, name) in LANES.items() if lane in lanes and pid != PID_STREAM]
    for pid in sorted({PID_STREAM, PID_COUNTERS, *(pid for pid, _, _ in threads)}):
        yield trace.label_entry("process_name", pid, 0, NAMES[pid])
        yield trace.label_entry("process_sort_index", pid, 0, pid)
    for pid, tid, name in threads:
        yield trace.label_entry("thread_name", pid, tid, name)
    for i, (tid, name) in enumerate(THREADS.items()):
        yield trace.label_entry("thread_name", PID_STREAM, tid, name)
        yield trace.label_entry("thread_sort_index", PID_STREAM, tid, i)


# The step.
def _host(step: StepResult) -> Iterator[Entry]:
    for span in step.host.spans:
        if span.lane != "stream":
            pid, tid, _ = LANES[span.lane]
            edges = _ps(span.start_s), _ps(span.end_s)
            yield trace.slice_entry(span.name, (pid, tid), edges, {"bytes": span.bytes} if span.bytes else {})


def _stream(step: StepResult, every: tuple[Placed, ...]) -> Iterator[Entry]:
    """Each kernel, above it the operation that it belongs to, and above that the layer."""
    last = facts.last_layer(step)
    for each in every:
        operation, kernel = each.ran.operation, each.main
        edges = _ps(each.start_s), _ps(each.end_s)
        moved = {f"hbm {way} bytes": sum(k.bytes["hbm"][way] for k in each.kernels) for way in ("read", "write")}
        args = {
            "operation": operation.name,
            "layer": layer_text(operation.layer, last),
            "shape": facts.shape_text(operation.work),
            "limiter": limiter_words(limiter_of(kernel)),
            **moved,
        }
        yield trace.slice_entry(" + ".join(k.name for k in each.kernels), (PID_STREAM, KERNELS), edges, args)
    for _, group in groupby(every, key=lambda each: id(each.ran)):
        kernels = tuple(group)
        operation = kernels[0].ran.operation
        args = {"layer": layer_text(operation.layer, last), "flops": operation.work.flops, "kernels": len(kernels)}
        yield trace.slice_entry(operation.name, (PID_STREAM, OPERATIONS), _edges(kernels), args)
    for layer, group in groupby(every, key=lambda each: each.ran.operation.layer):
        kernels = tuple(group)
        yield trace.slice_entry(
            layer_text(layer, last), (PID_STREAM, LAYERS), _edges(kernels), {"kernels": len(kernels)}
        )


def _edges(kernels: Sequence[Placed]) -> tuple[int, int]:
    return _ps(kernels[0].start_s), _ps(kernels[-1].end_s)


def layer_text(layer: int, last: int) -> str:
    """A layer by its number, from 0; what comes before the first and after the last by what it is. `last`: the highest
    number of the step (`facts.last_layer`)."""
    return "embedding" if layer < 0 else "head" if layer == last > 0 else f"layer {layer}"


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
def chosen(result: LlmResult, name: str | None = None) -> tuple[Inside, ...]:
    """The longest GEMM and the longest attention of the middle layer, or the longest kernel of operation `name` there,
    replayed with spans. Raises `ConfigError` for a name of none."""
    step = result.shown
    layer = middle_layer(step)
    those = [each for each in facts.placed(step) if _has_inside(each.ran.operation.work)]
    if name is None:
        there = [each for each in those if each.ran.operation.layer == layer]
        groups = [[each for each in there if isinstance(each.ran.operation.work, kind)] for kind in (Gemm, Attention)]
    else:
        names = dict.fromkeys(operation_name(each.ran) for each in those)
        if name not in names:
            raise ConfigError(f"--inside {name[:40]!r}: must be one of {', '.join(names)} (command line)")
        named = [each for each in those if operation_name(each.ran) == name]
        groups = [[each for each in named if each.ran.operation.layer == layer] or named]
    longest = [max(group, key=lambda each: each.main.time_s) for group in groups if group]
    return tuple(Inside(each, _replayed(result, each), _title(step, each)) for each in longest)


def _has_inside(work: Work) -> bool:
    """GEMMs, and attention's forward pass; all else is modelled in closed form, or of several kernels."""
    return isinstance(work, Gemm) or (isinstance(work, Attention) and work.phase == "forward")


def _title(step: StepResult, each: Placed) -> str:
    operation = each.ran.operation
    layer = layer_text(operation.layer, facts.last_layer(step))
    return operation.name if layer in ("embedding", "head") else f"{operation.name} of {layer}"


def _replayed(result: LlmResult, each: Placed) -> KernelResult:
    """The same kernel with its spans; at the clock that it ran at where the board's power capped it."""
    step, how = result.shown, result.how
    known = kernels_on(step.gpu, burst_options(result.options), how.attention, how.tile)
    return known.traced(each.ran.operation.work, each.ran.resident, step.clock_cap_mhz)
