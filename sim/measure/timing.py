"""Kernel time on a GPU: durations from CUPTI through torch.profiler, over inputs that are not in L2."""

import json
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

POOL_BYTES = 6 << 30
OTHER_POOL_BYTES = 2 << 30
MARKER = "FillFunctor<double>"  # part of the name of the kernel that separates one group of launches from the next
PROBE = "clock_kernel"
DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp8": torch.float8_e4m3fn,
    "int8": torch.int8,
}


class Pool:
    """One large buffer of random numbers (normal; int8 uniform); `take` deals out views one after another, so that
    none is in L2."""

    def __init__(self, dtype: torch.dtype, n_bytes: int):
        self.buffer = torch.empty(n_bytes // dtype.itemsize, dtype=dtype, device="cuda")
        for part in self.buffer.split(1 << 28):
            if dtype == torch.int8:
                part.random_(-127, 127)
            elif dtype in (torch.float32, torch.float64):
                part.normal_()  # all bits of the mantissa: power depends on them
            else:
                part.copy_(torch.empty(part.shape, dtype=torch.bfloat16, device="cuda").normal_())
        self.at = 0

    def take(self, *shape: int) -> Any:
        """A tensor of `shape`, from the start again when the buffer is used up."""
        n = torch.Size(shape).numel()
        if n > self.buffer.numel():
            raise MemoryError(f"operands of {shape} do not fit the pool of {self.buffer.numel()} elements")
        if self.at + n > self.buffer.numel():
            self.at = 0
        view = self.buffer[self.at : self.at + n].view(shape)
        self.at += -(-n // 512) * 512
        return view

    def sets_of(self, n_elements: int, most: int) -> int:
        """So many operand sets of `n_elements` lie in the buffer side by side: 1 to `most`."""
        return max(1, min(most, int(self.buffer.numel()) * 9 // 10 // n_elements))


@cache
def pool(dtype: str) -> Pool:
    """The pool of a data type; a quarter of the free memory at most."""
    free, _ = torch.cuda.mem_get_info()
    return Pool(DTYPES[dtype], min(POOL_BYTES if dtype == "bf16" else OTHER_POOL_BYTES, free // 4))


@dataclass(frozen=True)
class Timed:
    """One burst of launches, per call: times in us (`kernel_us` the longest kernel alone), that kernel's facts, and the
    SM clock just after (None without Triton)."""

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
    sm_mhz_after: float | None


def time_calls(calls: Sequence[Callable[[int], Any]], counts: int | Sequence[int] = 14, drop: int = 2) -> list[Timed]:
    """Time each of `calls`, called with 0 .. count - 1; the first `drop` of each do not count.

    Raises RuntimeError where a call launches a varying number of kernels.
    """
    n_calls = [counts] * len(calls) if isinstance(counts, int) else list(counts)
    groups, clocks = _launched(calls, n_calls)
    return [_summary(_per_call(group, n)[drop:], mhz) for group, n, mhz in zip(groups, n_calls, clocks, strict=True)]


def launches(call: Callable[[int], Any], count: int, drop: int = 1) -> list[list[dict[str, Any]]]:
    """The launches of `call`, called with 0 .. count - 1, in order: per call, less the first `drop`, the profiler's
    events ("name", "dur" in us, "args" with "grid" and "block" where it is a kernel).

    Raises RuntimeError where a call launches a varying number of kernels.
    """
    groups, _ = _launched([call], [count])
    return _per_call(groups[0], count)[drop:]


def bursts(calls: Sequence[Callable[[int], Any]]) -> list[tuple[list[dict[str, Any]], float | None]]:
    """Of each of `calls`, called once: its launches in order (as `launches`), and the SM clock just after them."""
    return list(zip(*_launched(calls, [1] * len(calls)), strict=True))


def threes(event: dict[str, Any], name: str) -> str:
    """Extents of an event's "grid" or "block" as 132x1x1, "" for a memset."""
    return "x".join(map(str, event["args"].get(name, [])))


def _launched(
    calls: Sequence[Callable[[int], Any]], n_calls: Sequence[int]
) -> tuple[list[list[dict[str, Any]]], list[float | None]]:
    """Events of each call's burst, and the clock just after it."""
    for call in calls:  # compiles, chooses, allocates
        call(0)
    probes = [torch.zeros(2, dtype=torch.int64, device="cuda") for _ in calls]
    groups = _split(_kernels(_profiled(calls, n_calls, probes)))
    if len(groups) != len(calls):
        raise RuntimeError(f"the profiler saw {len(groups)} groups of launches and not {len(calls)}")
    return groups, [*map(_mhz, probes)]


def _profiled(calls: Sequence[Callable[[int], Any]], n_calls: Sequence[int], probes: Sequence[Any]) -> Any:
    probe = _probe()
    marker = torch.zeros(7, device="cuda", dtype=torch.float64)
    marker.fill_(1.0)
    probe(torch.zeros(2, dtype=torch.int64, device="cuda"))
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as prof:
        for call, n, out in zip(calls, n_calls, probes, strict=True):
            marker.fill_(1.0)
            for i in range(n):
                call(i)
            probe(out)
            torch.cuda.synchronize()
    return prof


def _probe() -> Callable[[Any], None]:
    if find_spec("triton") is None:
        return lambda out: None
    from sim.measure.triton_clock import queue_probe

    return queue_probe


def _mhz(probe: Any) -> float | None:
    cycles, nanoseconds = probe.tolist()
    return round(cycles / nanoseconds * 1e3, 1) if nanoseconds else None


def _kernels(prof: Any) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        prof.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    kinds = ("kernel", "gpu_memset", "gpu_memcpy")
    return sorted((e for e in events if e.get("cat") in kinds and PROBE not in e["name"]), key=lambda e: e["ts"])


def _split(events: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    groups: list[list[dict[str, Any]]] = []
    for event in events:
        if MARKER in event["name"]:
            groups.append([])
        elif groups:
            groups[-1].append(event)
    return groups


def _per_call(events: list[dict[str, Any]], n_calls: int) -> list[list[dict[str, Any]]]:
    per_call, rest = divmod(len(events), n_calls)
    if not events or rest:
        raise RuntimeError(f"{len(events)} launches in {n_calls} calls")
    return [events[i * per_call : (i + 1) * per_call] for i in range(n_calls)]


def _summary(calls: list[list[dict[str, Any]]], mhz: float | None) -> Timed:
    totals = [sum(e["dur"] for e in call) for call in calls]
    longest = [max(call, key=lambda e: e["dur"]) for call in calls]
    main = longest[0]
    facts = main["args"]
    return Timed(
        round(statistics.median(totals), 3),
        round(min(totals), 3),
        round(max(totals), 3),
        clean(main["name"], 160),
        round(statistics.median(e["dur"] for e in longest), 3),
        len(calls[0]),
        "|".join(clean(e["name"], 60) for e in calls[0] if e is not main),
        threes(main, "grid"),
        threes(main, "block"),
        facts.get("registers per thread", 0),
        facts.get("shared memory", 0),
        mhz,
    )


def clean(name: str, most: int) -> str:
    """A kernel's name as the tables have it: at most so many characters, no commas."""
    return name[:most].replace(",", ";")
