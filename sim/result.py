"""What one simulation found: frozen, saved as npz + json, the only thing `viz` needs.

Times are seconds unless the name says otherwise, sizes are bytes, counts are plain numbers. Levels of a kernel's
memory, from far to near: "hbm", "l2" (between L2 and the SMs' side), "l2_fabric" (copies from one L2 partition to the
other), "sm" (what arrives at or leaves the SMs, multicast counted at every receiver; what arrives fills shared memory),
"smem" (read: operands by the tensor cores; write: C staged on its way out).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

SCHEMA = 2
"""Version of the saved form and of `--json`."""

SPAN_KINDS = ("start", "load", "wait", "mma", "epilogue")
"""`Spans.kind` indexes this: CTA start-up, one k-iteration's loads in flight, consumer waiting for data,
tensor-core work of one k-iteration, epilogue with its stores."""

SPAN_DTYPE = np.dtype(
    [("kind", "u1"), ("sm", "i4"), ("slot", "i4"), ("tile", "i4"), ("k", "i4"), ("start_fs", "i8"), ("end_fs", "i8")]
)
"""One row a span: SM, CTA slot on that SM, output tile, k-iteration, start and end in femtoseconds of kernel time."""

WINDOW_FIELDS = (
    "hbm_read_bytes",
    "hbm_write_bytes",
    "l2_read_bytes",
    "l2_write_bytes",
    "tensor_busy_fs",
    "active_ctas",
    "clock_mhz",
)
"""Columns of `Windows.values`: sums over the window, except active_ctas and clock_mhz (means)."""


class _Alike:
    """Equality of dataclasses that hold arrays."""

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(_alike(getattr(self, name), getattr(other, name)) for name in self.__dict__)

    __hash__ = None  # type: ignore[assignment]


def _alike(mine: Any, other: Any) -> bool:
    if isinstance(mine, np.ndarray) and isinstance(other, np.ndarray):
        return mine.dtype == other.dtype and np.array_equal(mine, other)
    return bool(type(mine) is type(other) and mine == other)


@dataclass(frozen=True, eq=False)
class Windows(_Alike):
    """Activity over kernel time: `values[n_windows, len(WINDOW_FIELDS)]`, float64, each window `width_fs` long.

    They run from the first CTA's launch to the last one's end (of the part that was replayed, where the kernel was
    sampled). Bytes and tensor-core time count where they were served, in order: what was asked for beyond a resource's
    rate moves on to the next windows, so that none is over 100 % busy.
    """

    width_fs: int
    values: npt.NDArray[np.float64]


@dataclass(frozen=True)
class HostSpan:
    """One thing the host side did, in seconds from the program's start. `lane`: "host", "copy h2d", "copy d2h" or
    "stream"."""

    lane: str
    name: str
    start_s: float
    end_s: float
    bytes: int = 0


@dataclass(frozen=True, eq=False)
class KernelResult(_Alike):
    """One launched kernel: the main GEMM, or the reduction that follows a split-K GEMM."""

    name: str
    time_s: float
    sm_cycles: float
    sm_mhz: float
    config: dict[str, Any]
    """The kernel configuration as resolved: family, tile, stages, warps, cluster, group, split, registers, smem."""
    flops_executed: int
    """FLOPs the tensor cores ran, padding of tiles to instruction and tile shape included (2 per multiply-add)."""
    bytes: dict[str, dict[str, int]]
    """{level: {"read": bytes, "write": bytes}}: read flows towards the tensor cores, write away from them."""
    requests: dict[str, dict[str, int]]
    """{level: {"read": n, "write": n}}. "sm": reads are the loads of one k-iteration by one CTA, or by a whole cluster
    where CTAs form one, A and B counted together as one; "smem": reads are k-iterations of the tensor cores; "l2":
    lookups of single chunks, without those served by a neighbour SM's read; "hbm" and "l2_fabric": parts of chunks, a
    chunk lying in as many as L2 has partitions. Writes: stores of one CTA's output tile, of "hbm" write-backs."""
    lookups: dict[str, int]
    """L2 lookups of tile chunks: accesses = hits + merged + misses; "coalesced": served with a neighbour SM's read;
    and bytes of C chunks: filled, written, clean_evicted, written_back, overwritten, resident."""
    utilisation: dict[str, float]
    """{resource: busy fraction of the time from the first CTA's launch to the last one's end}: tensor, smem, sm_port,
    l2, hbm."""
    waits: dict[str, float]
    """{reason: fraction of CTA-slot time over the kernel}, sums to 1: mma, hbm, l2, sm_port, barrier (stream-K:
    for sums of others, too), issue, epilogue, start (launch of the kernel, start of CTAs), idle (no CTA left for the
    slot)."""
    occupancy: dict[str, Any]
    """ctas_per_sm, warps_per_sm, limit ("registers" | "shared memory" | "threads" | "ctas"), registers_per_thread,
    smem_bytes_per_cta."""
    waves: float
    """Work items / CTA (or cluster) slots."""
    sampled: bool
    """True where the engine fast-forwarded repeated waves."""
    n_events: int
    windows: Windows
    spans: npt.NDArray[np.void] | None = None
    """SPAN_DTYPE rows, only when traced (`spans_dropped` says how many did not fit)."""
    spans_dropped: int = 0
    energy_j: dict[str, float] = field(default_factory=dict)
    """{part: joules}, which add up to the kernel's: "idle" (the board over the kernel's time), "sm", "tensor" or
    "cuda_cores", "smem", "l2" and "hbm", as `sim.energy` says."""


def main_kernel(kernels: Sequence[KernelResult]) -> KernelResult:
    """The one that multiplies: with the most FLOPs, then the longest."""
    return max(kernels, key=lambda kernel: (kernel.flops_executed, kernel.time_s))


@dataclass(frozen=True)
class Result:
    """One simulated operation, host included, with everything needed to trace the prediction."""

    gpu: dict[str, Any]
    """The resolved GPU: {"name", "label", "values": {key: {"value", "unit", "kind", "source"}}}, keys as in its file
    ("hbm.bandwidth_gb_per_s")."""
    workload: dict[str, Any]
    """The workload as resolved (all fields of `Gemm`), with "flops", "compulsory_bytes", "arithmetic_intensity"."""
    versions: dict[str, str]
    kernels: tuple[KernelResult, ...]
    """In launch order; `main` is the one that multiplies."""
    time_s: float
    """Sum of all kernels of the call, without gaps, as measured tables define it."""
    end_to_end_s: float
    """Host, copies, launches and kernels, from the program's start to the last result byte in place."""
    flops: int
    limiter: str
    """The resource that bounds the main kernel."""
    evidence: tuple[str, ...]
    """Short sentences with figures that support the limiter."""
    advice: tuple[dict[str, Any], ...] = ()
    """What would help most, each simulated: {"change": text, "time_s": float, "speedup": float}."""
    host_spans: tuple[HostSpan, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    """How it was run: clock cap, full or sampled, family and tile as asked for. "expected_error", where kernels like
    this one were measured: {"mape_pct", "group", "n"}. "before_settling", where the board's power slows a long load
    down: {"time_s", "power_w", "sm_mhz"} of the burst it begins with."""

    @property
    def main(self) -> KernelResult:
        """The kernel that multiplies, whatever is launched beside it; the longest of them."""
        return main_kernel(self.kernels)

    @property
    def energy_j(self) -> float:
        """Joules of all kernels, the board's idle power over their time included."""
        return sum(sum(kernel.energy_j.values()) for kernel in self.kernels)

    @property
    def power_w(self) -> float:
        """Mean watts of the board while the kernels run."""
        return self.energy_j / self.time_s

    def __repr__(self) -> str:
        work = self.workload
        sizes = "x".join(str(work[side]) for side in ("batch", "m", "n", "k"))
        return (
            f"<Result {sizes} {work['dtype']} on {self.gpu['name']}: {self.time_s * 1e6:.4g} us, "
            f"limited by {self.limiter}, {len(self.kernels)} kernel(s)>"
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all of it to one file (npz with a JSON header), whole or not at all.

        Raises ConfigError where the file cannot be written.
        """
        from sim.saved import save

        save(self, path)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Result:
        """What `save` wrote to `path`. Raises ConfigError for any other file, a damaged one, or another schema."""
        from sim.saved import load

        return load(path)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from sim.notebook import to_html

        return to_html(self)
