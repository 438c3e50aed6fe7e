"""Chrome trace-event JSON of a Result, for Perfetto: host, copies, launches, SMs, and counters of L2, HBM and clock.

Every slice is a complete event ("X") on a track (thread) on which slices follow each other. What overlaps on one CTA
slot gets tracks of its own: as many for loads as are in flight at once, and a second consumer where one tile's
epilogue runs beside the next tile's MMAs. Times are microseconds from the program's start; a kernel's spans start
where the host side ran that kernel. Format: "Trace Event Format", Google, the JSON object form.
"""

from __future__ import annotations

import heapq
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hwmodels.errors import ConfigError
from sim.result import SPAN_DTYPE, SPAN_KINDS, WINDOW_FIELDS, KernelResult, Result
from viz import files, levels
from viz.timeline import cta_slots, window_shares

PID_HOST, PID_COPIES, PID_STREAM, PID_SMS, PID_COUNTERS = 1, 2, 3, 4, 5
PROCESSES = {PID_HOST: "Host", PID_COPIES: "PCIe", PID_STREAM: "Stream", PID_SMS: "SMs", PID_COUNTERS: "Counters"}
LANES = {
    "host": (PID_HOST, 1, "host thread"),
    "copy h2d": (PID_COPIES, 1, "host to GPU"),
    "copy d2h": (PID_COPIES, 2, "GPU to host"),
    "stream": (PID_STREAM, 1, "kernels"),
}
"""Lane of a host span -> process, thread, name of the thread."""
COUNTERS = ("HBM (% of peak)", "L2 (% of peak)", "tensor cores (% busy)", "active CTAs", "SM clock (MHz)")

DEFAULT_MAX_BYTES = 64_000_000
FS_PER_PS, PS_PER_US = 1000, 1_000_000
HEAD, TAIL = '{"displayTimeUnit": "ns", "traceEvents": [\n', "\n]"

Entry = tuple[int, int, str]
"""Start (ps), minus duration (ps), JSON: sorts as the file does, of two that start together the longer first."""
_encode = json.JSONEncoder(separators=(",", ":")).encode


def write_trace(result: Result, path: str | os.PathLike[str], max_bytes: int = DEFAULT_MAX_BYTES) -> int:
    """Write the trace, at most `max_bytes` long, whole or not at all; return how many spans did not fit.

    Spans are dropped from the latest; their number, and that of spans the engine itself dropped, stand in the file's
    "otherData". Raises `ConfigError` where the path cannot be written or `max_bytes` does not hold even the counters.
    """
    fixed = [*_process_names(), *sorted(_host_entries(result)), *sorted(_counter_entries(result))]
    frame = len(HEAD) + len(TAIL) + len(_closing(result, 10**12))
    room = max_bytes - frame - sum(size_of(entry) for entry in fixed)
    if room < 0:
        raise ConfigError(f"max_bytes = {max_bytes}: must be at least {max_bytes - room} for this run (trace)")
    spans = fitting(_kernel_starts(result), room)
    dropped = sum(len(kernel.spans) for kernel in result.kernels if kernel.spans is not None) - len(spans.kept)
    write_entries(path, heapq.merge(sorted(fixed + spans.names), spans.kept), _closing(result, dropped))
    return dropped


def write_entries(path: str | os.PathLike[str], entries: Iterable[Entry], closing: str) -> None:
    """Write a file of these entries, whole or not at all; `closing` ends it."""
    texts = (text for _, _, text in entries)
    with files.replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as out:
        out.write(HEAD)
        out.write(next(texts))
        out.writelines(",\n" + text for text in texts)
        out.write(TAIL + closing)


def size_of(entry: Entry) -> int:
    """Bytes that an entry takes in the file."""
    return len(entry[2]) + len(",\n")


def _closing(result: Result, dropped: int) -> str:
    other = {
        "operation": levels.title(result),
        "gpu": result.gpu["name"],
        "versions": result.versions,
        "sampled": any(kernel.sampled for kernel in result.kernels),
        "spans_dropped_by_size_bound": dropped,
        "spans_dropped_by_engine": sum(kernel.spans_dropped for kernel in result.kernels),
    }
    return f',\n"otherData": {json.dumps(other)}}}\n'


def _us(time_ps: int) -> float:
    return time_ps / PS_PER_US


def slice_entry(name: str, place: tuple[int, int], edges_ps: tuple[int, int], args: dict[str, Any]) -> Entry:
    """A slice on the track `place`, (process, thread)."""
    start, end = edges_ps
    (pid, tid), duration = place, end - start
    event = {"name": name, "ph": "X", "ts": _us(start), "dur": _us(duration), "pid": pid, "tid": tid, "args": args}
    return start, -duration, _encode(event)


def counter_entry(name: str, time_ps: int, value: float) -> Entry:
    """The value of a counter from `time_ps` on."""
    event = {"name": name, "ph": "C", "ts": _us(time_ps), "pid": PID_COUNTERS, "tid": 0, "args": {"value": value}}
    return time_ps, 0, _encode(event)


def label_entry(kind: str, pid: int, tid: int, value: str | int) -> Entry:
    """The name, or the sort index, of a process or a thread."""
    args = {"sort_index" if kind.endswith("sort_index") else "name": value}
    return -1, 0, _encode({"name": kind, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": args})


def _process_names() -> Iterator[Entry]:
    for pid, name in PROCESSES.items():
        yield label_entry("process_name", pid, 0, name)
        yield label_entry("process_sort_index", pid, 0, pid)
    for pid, tid, name in LANES.values():
        yield label_entry("thread_name", pid, tid, name)


# The host side and the counters.
def _host_entries(result: Result) -> Iterator[Entry]:
    for span in result.host_spans:
        pid, tid, _ = LANES[span.lane]
        edges = round(span.start_s * 1e12), round(span.end_s * 1e12)
        yield slice_entry(span.name, (pid, tid), edges, {"bytes": span.bytes} if span.bytes else {})
    if not any(span.lane == "stream" for span in result.host_spans):
        for kernel, start_ps in _kernel_starts(result):
            yield slice_entry(kernel.name, (PID_STREAM, 1), (start_ps, start_ps + round(kernel.time_s * 1e12)), {})


def _kernel_starts(result: Result) -> list[tuple[KernelResult, int]]:
    """Each kernel with its start, ps: that of the stream span of its name, else of the next span of the stream, else
    right behind the kernel before it."""
    streamed = [span for span in result.host_spans if span.lane == "stream"]
    starts, clock_ps = [], 0
    for kernel in result.kernels:
        span = next((span for span in streamed if span.name == kernel.name), streamed[0] if streamed else None)
        if span is not None:
            streamed.remove(span)
            clock_ps = round(span.start_s * 1e12)
        starts.append((kernel, clock_ps))
        clock_ps += round(kernel.time_s * 1e12)
    return starts


def _counter_rows(result: Result, kernel: KernelResult) -> npt.NDArray[np.float64]:
    shares = window_shares(result, kernel)
    percents = [np.nan_to_num(100.0 * shares[key]) for key in ("hbm", "l2", "tensor")]
    plain = [kernel.windows.values[:, WINDOW_FIELDS.index(name)] for name in ("active_ctas", "clock_mhz")]
    return np.asarray(np.stack([*percents, *plain], axis=1).round(2), dtype=np.float64)


def _counter_entries(result: Result) -> Iterator[Entry]:
    names = [name.replace("tensor cores", levels.unit(result)) for name in COUNTERS]
    for kernel, start_ps in _kernel_starts(result):
        width_ps = kernel.windows.width_fs // FS_PER_PS
        for i, row in enumerate(_counter_rows(result, kernel)):
            for name, value in zip(names, row, strict=True):
                yield counter_entry(name, start_ps + i * width_ps, float(value))
        end_ps = min(round(kernel.time_s * 1e12), width_ps * len(kernel.windows.values))
        for name in names[:-1]:
            yield counter_entry(name, start_ps + end_ps, 0.0)


# Spans of the SMs.
@dataclass
class Tracks:
    """Threads of the SMs process, made as they are needed, and the spans kept so far."""

    kept: list[Entry] = field(default_factory=list)
    names: list[Entry] = field(default_factory=list)
    free_ps: dict[tuple[int, int, str], list[list[int]]] = field(default_factory=dict)
    """(SM, slot, group) -> [thread, when it is free again] of each of its tracks."""
    n_threads: int = 0
    pid: int = PID_SMS
    prefix: str = ""
    """Of the names of threads."""
    order: int = 0
    """Added to where a thread is listed."""

    def place(self, owner: tuple[int, int, str], start_ps: int, end_ps: int) -> int:
        """Thread of the owner's first track that is free at `start_ps`; it is taken until `end_ps`."""
        tracks = self.free_ps.setdefault(owner, [])
        track = next((track for track in tracks if track[1] <= start_ps), None)
        if track is None:
            self.n_threads += 1
            track = [self.n_threads, 0]
            tracks.append(track)
            self._name(owner, track[0], len(tracks))
        track[1] = end_ps
        return track[0]

    def _name(self, owner: tuple[int, int, str], tid: int, number: int) -> None:
        sm, slot, group = owner
        order = ((sm * 64 + slot) * 2 + (group == "load")) * 64 + number
        text = f"{self.prefix}SM {sm} slot {slot} {group}{f' {number}' if group == 'load' or number > 1 else ''}"
        self.names.append(label_entry("thread_name", self.pid, tid, text))
        self.names.append(label_entry("thread_sort_index", self.pid, tid, self.order + order))


def fitting(starts: Iterable[tuple[KernelResult, int]], room: int, tracks: Tracks | None = None) -> Tracks:
    """The earliest spans of kernels, each with its start (ps), that fit `room` bytes together with the names of their
    tracks; put into `tracks`."""
    tracks = tracks or Tracks()
    for start_ps, end_ps, kind, sm, slot, tile, k in _ordered_spans(starts):
        n_names = len(tracks.names)
        tid = tracks.place((sm, slot, "load" if kind == "load" else "consumer"), start_ps, end_ps)
        entry = slice_entry(kind, (tracks.pid, tid), (start_ps, end_ps), {"tile": tile, "k": k})
        room -= size_of(entry) + sum(map(size_of, tracks.names[n_names:]))
        if room < 0:
            del tracks.names[n_names:]
            break
        tracks.kept.append(entry)
    return tracks


def _ordered_spans(starts: Iterable[tuple[KernelResult, int]]) -> Iterator[tuple[int, int, str, int, int, int, int]]:
    for kernel, begin_ps in sorted(starts, key=lambda entry: entry[1]):
        if kernel.spans is None:
            continue
        place = _places(kernel.spans)
        spans = kernel.spans[np.lexsort((-kernel.spans["end_fs"], kernel.spans["start_fs"]))]
        columns: Iterable[tuple[int, ...]] = zip(
            *(spans[name].tolist() for name in SPAN_DTYPE.names or ()), strict=True
        )
        for kind, sm, slot, tile, k, start_fs, end_fs in columns:
            edges = begin_ps + start_fs // FS_PER_PS, begin_ps + end_fs // FS_PER_PS
            yield (*edges, SPAN_KINDS[kind], sm, place[sm, slot], tile, k)


def _places(spans: npt.NDArray[np.void]) -> dict[tuple[int, int], int]:
    """(SM, slot) -> number of that slot on its SM, as slots may be numbered over the whole GPU."""
    n_of_sm: Counter[int] = Counter()
    places = {}
    for sm, slot in cta_slots(spans):
        places[sm, slot] = n_of_sm[sm]
        n_of_sm[sm] += 1
    return places
