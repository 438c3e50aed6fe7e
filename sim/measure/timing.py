"""Kernel time on a GPU: durations from CUPTI through torch.profiler, over inputs that are not in L2."""

import json
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

POOL_BYTES = 6 << 30
MARKER = "FillFunctor<double>"  # part of the name of the kernel that separates one group of launches from the next


class Pool:
    """One large buffer of normal random bf16; `take` deals out views one after another, so that none is in L2."""

    def __init__(self, n_bytes: int = POOL_BYTES):
        self.buffer = torch.empty(n_bytes // 2, dtype=torch.bfloat16, device="cuda").normal_()
        self.at = 0

    def take(self, *shape: int) -> Any:
        """A bf16 tensor of `shape`, from the start again when the buffer is used up."""
        n = torch.Size(shape).numel()
        if n > self.buffer.numel():
            raise MemoryError(f"operands of {shape} do not fit the pool of {self.buffer.numel()} elements")
        if self.at + n > self.buffer.numel():
            self.at = 0
        view = self.buffer[self.at : self.at + n].view(shape)
        self.at += -(-n // 256) * 256
        return view


@dataclass(frozen=True)
class Timed:
    """One launch group, per call: times in us (`kernel_us` the longest kernel alone) and that kernel's facts."""

    time_us: float
    time_us_min: float
    time_us_max: float
    kernel: str
    kernel_us: float
    n_kernels: int
    other_kernels: str
    grid: str
    block: str
    regs: int
    smem: int


def time_calls(calls: Sequence[Callable[[int], Any]], n_calls: int = 14, drop: int = 2) -> list[Timed]:
    """Time each of `calls`, called with 0 .. n_calls - 1; the first `drop` of each do not count.

    Raises RuntimeError where a call launches a varying number of kernels.
    """
    marker = torch.zeros(7, device="cuda", dtype=torch.float64)
    marker.fill_(1.0)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as prof:
        for call in calls:
            marker.fill_(1.0)
            for i in range(n_calls):
                call(i)
            torch.cuda.synchronize()
    groups = _split(_kernels(prof))
    if len(groups) != len(calls):
        raise RuntimeError(f"the profiler saw {len(groups)} groups of launches, not {len(calls)}")
    return [_summary(group, n_calls, drop) for group in groups]


def _kernels(prof: Any) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        prof.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return sorted((e for e in events if e.get("cat") in ("kernel", "gpu_memset", "gpu_memcpy")), key=lambda e: e["ts"])


def _split(events: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    groups: list[list[dict[str, Any]]] = []
    for event in events:
        if MARKER in event["name"]:
            groups.append([])
        elif groups:
            groups[-1].append(event)
    return groups


def _summary(events: list[dict[str, Any]], n_calls: int, drop: int) -> Timed:
    per_call, rest = divmod(len(events), n_calls)
    if not events or rest:
        raise RuntimeError(f"{len(events)} launches in {n_calls} calls")
    calls = [events[i * per_call : (i + 1) * per_call] for i in range(drop, n_calls)]
    totals = [sum(e["dur"] for e in call) for call in calls]
    longest = [max(call, key=lambda e: e["dur"]) for call in calls]
    main = longest[0]
    facts = main["args"]
    return Timed(
        round(statistics.median(totals), 3),
        round(min(totals), 3),
        round(max(totals), 3),
        _clean(main["name"], 160),
        round(statistics.median(e["dur"] for e in longest), 3),
        per_call,
        "|".join(_clean(e["name"], 60) for e in calls[0] if e is not main),
        "x".join(map(str, facts.get("grid", []))),
        "x".join(map(str, facts.get("block", []))),
        facts.get("registers per thread", 0),
        facts.get("shared memory", 0),
    )


def _clean(name: str, most: int) -> str:
    return name[:most].replace(",", ";")
