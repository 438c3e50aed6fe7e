"""What every picture reads out of a Result: bytes, rates and peaks of each level, and the compute roof.

Bytes are those of all kernels of the call, over the time of all of them; peaks are the resolved GPU's at the clock
of the main kernel. "of peak" is bytes over time over the wire's rate, "busy" (`utilisation`) the engine's own figure,
which also counts what a request costs beyond its bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from sim.limiter import limiter_words
from sim.result import WINDOW_FIELDS, HostSpan, Result
from workloads.dtypes import BYTES

KERNEL_LEVELS = ("hbm", "l2", "sm", "smem")
LABELS = {
    "host": "Host RAM",
    "pcie": "PCIe",
    "hbm": "HBM",
    "l2": "L2 cache",
    "sm": "SM ports",
    "smem": "Shared memory",
    "registers": "Registers",
    "tensor": "Tensor cores",
}
SEPARATE = ("pcie", "sm")
"""Levels whose two directions are wires of their own."""
BUSY_KEYS = {"hbm": "hbm", "l2": "l2", "sm": "sm_port", "smem": "smem"}
"""Level -> the resource of `KernelResult.utilisation` that serves it."""

LIMITER_PLACES = {
    "tensor": "tensor",
    "mma": "tensor",
    "cuda_cores": "tensor",
    "smem": "smem",
    "sm_port": "sm",
    "sm": "sm",
    "l2": "l2",
    "hbm": "hbm",
    "hbm latency": "hbm",
    "l2 latency": "l2",
    "pcie": "pcie",
    "host": "pcie",
}
"""Limiter -> the part of the hierarchy that pictures highlight; anything else is a matter of the SMs."""


@dataclass(frozen=True)
class Flow:
    """Bytes one way through a level in `time_s`, against the peak of that level (None where it is not known)."""

    n_bytes: int
    time_s: float
    peak_bytes_per_s: float | None

    @property
    def bytes_per_s(self) -> float:
        """Mean rate over the time."""
        return self.n_bytes / self.time_s if self.time_s > 0 else 0.0

    @property
    def share(self) -> float | None:
        """Rate over peak; None where the peak is not known."""
        return self.bytes_per_s / self.peak_bytes_per_s if self.peak_bytes_per_s else None


@dataclass(frozen=True)
class Level:
    """One level: what flowed towards the tensor cores (`read`) and back (`write`)."""

    key: str
    read: Flow
    write: Flow
    busy: float | None

    @property
    def n_bytes(self) -> int:
        """Bytes in both directions."""
        return self.read.n_bytes + self.write.n_bytes

    @property
    def bytes_per_s(self) -> float:
        """Rate in both directions together (PCIe: bytes over the time a copy ran)."""
        time_s = self.read.time_s + self.write.time_s if self.key == "pcie" else self.read.time_s
        return self.n_bytes / time_s if time_s > 0 else 0.0

    @property
    def share(self) -> float | None:
        """Rate over peak; that of the busier direction where directions are separate wires."""
        if self.key in SEPARATE:
            shares = [flow.share for flow in (self.read, self.write) if flow.share is not None and flow.n_bytes]
            return max(shares, default=None)
        peak = self.read.peak_bytes_per_s
        return self.bytes_per_s / peak if peak else None

    @property
    def least_s(self) -> float | None:
        """Time the bytes alone would take at peak."""
        flows = [flow for flow in (self.read, self.write) if flow.n_bytes]
        if not flows or any(not flow.peak_bytes_per_s for flow in flows):
            return None
        times = [flow.n_bytes / flow.peak_bytes_per_s for flow in flows if flow.peak_bytes_per_s]
        return max(times) if self.key == "sm" else sum(times)


def burst_beyond_w(result: Result) -> float | None:
    """Watts that the board holds for long, where the kernels took more in a burst; None where they did not."""
    if result.options.get("sustained"):
        return None
    board, fraction = (gpu_value(result, f"power.{name}") for name in ("board_w", "sustained_fraction"))
    held_w = board * fraction if board and fraction else math.inf
    return held_w if result.power_w > held_w else None


def gpu_value(result: Result, key: str, default: Any = None) -> Any:
    """A resolved hardware value, or `default` where the GPU has none."""
    entry = result.gpu["values"].get(key)
    return default if entry is None else entry["value"]


def clock_hz(result: Result) -> float:
    """Mean SM clock of the main kernel."""
    return result.main.sm_mhz * 1e6


def clock_hz_at(result: Result, time_fs: int) -> float:
    """SM clock of the main kernel at a moment, from its windows; the mean where they do not reach."""
    windows = result.main.windows
    i = time_fs // windows.width_fs if windows.width_fs else 0
    if i >= len(windows.values):
        return clock_hz(result)
    return float(windows.values[i, WINDOW_FIELDS.index("clock_mhz")]) * 1e6


def peak_bytes_per_s(result: Result, key: str, way: str = "read") -> float | None:
    """Peak of "hbm", "l2", "sm" or "smem"; None where the GPU does not give it. An SM writes at a rate of its own.

    HBM: the pins'. L2: its rate at the boost clock, as L2 keeps its clock when that of the SMs falls. SMs: bytes per
    clock times the run's clock.
    """
    if key == "hbm":
        return float(gpu_value(result, "hbm.bandwidth_gb_per_s", 0.0)) * 1e9 or None
    if key == "l2":
        return (
            float(gpu_value(result, "l2.bytes_per_clk", 0.0)) * gpu_value(result, "clock.boost_mhz", 0.0) * 1e6 or None
        )
    port = "l2.sm_store_bytes_per_clk" if way == "write" else "l2.sm_port_bytes_per_clk"
    name = {"sm": port, "smem": "smem.bytes_per_clk"}[key]
    return float(gpu_value(result, name, 0.0)) * n_sms(result) * clock_hz(result) or None


def unit(result: Result) -> str:
    """What multiplies: "tensor cores" or "CUDA cores"."""
    return "CUDA cores" if result.main.config.get("mma") == "fma" else "tensor cores"


def unit_title(result: Result) -> str:
    """`unit` where a sentence or a row begins."""
    name = unit(result)
    return name[0].upper() + name[1:]


def streamed(result: Result) -> bool:
    """Whether B came in pieces: `time_s` is then that of one kernel on all of it, which did not run."""
    return bool(result.options.get("stream_weights"))


def n_sms(result: Result) -> int:
    """SMs of the GPU."""
    return int(gpu_value(result, "sm.count", 1))


def flops_per_clk(result: Result) -> float:
    """FLOPs one SM can do in a clock for this data type, on the units the kernel uses; those that 2:4 sparsity leaves
    out count as done."""
    dtype = str(result.workload["dtype"])
    short = "fp8" if dtype.startswith("fp8") else dtype
    if result.main.config.get("mma") == "fma":
        return float(gpu_value(result, f"cuda_core.{short}_flops_per_clk_per_sm", 0.0))
    key = f"tensor.{short}_flops_per_clk_per_sm"
    sparse = 2.0 if weights_format(result) == "2:4" else 1.0
    return sparse * float(gpu_value(result, key, 0.0)) or float(gpu_value(result, f"cuda_core.{key[7:]}", 0.0))


def instruction_fraction(result: Result) -> float:
    """Share of the tensor cores' rate that the kernel's instruction reaches at best: mma.sync on Hopper stays below."""
    return (
        float(gpu_value(result, "tensor.mma_sync_fraction", 1.0))
        if result.main.config.get("mma") == "mma_sync"
        else 1.0
    )


def peak_flops_per_s(result: Result) -> float:
    """The compute roof at the run's clock: dense, all SMs."""
    return flops_per_clk(result) * n_sms(result) * clock_hz(result)


def achieved_flops_per_s(result: Result) -> float:
    """FLOPs of the operation over the time of its kernels."""
    return result.flops / result.time_s


def level_bytes(result: Result, key: str) -> dict[str, int]:
    """{"read", "write"} of one level, summed over the kernels; PCIe from the copies of the host side."""
    if key in ("pcie", "host"):
        return {way: sum(span.bytes for span in copies(result, way)) for way in ("read", "write")}
    return {way: sum(kernel.bytes.get(key, {}).get(way, 0) for kernel in result.kernels) for way in ("read", "write")}


def copies(result: Result, way: str) -> list[HostSpan]:
    """Copies over PCIe: "read" towards the GPU, "write" back."""
    lane = {"read": "copy h2d", "write": "copy d2h"}[way]
    return [span for span in result.host_spans if span.lane == lane]


def kernel_level(result: Result, key: str) -> Level:
    """One of `KERNEL_LEVELS`."""
    n_bytes = level_bytes(result, key)
    read, write = (Flow(n_bytes[way], result.time_s, peak_bytes_per_s(result, key, way)) for way in ("read", "write"))
    return Level(key, read, write, result.main.utilisation.get(BUSY_KEYS[key]))


def pcie_level(result: Result) -> Level:
    """Copies between host memory and HBM, each direction over the time its copies ran."""
    return Level("pcie", _copy_flow(result, "read", "h2d"), _copy_flow(result, "write", "d2h"), None)


def _copy_flow(result: Result, way: str, direction: str) -> Flow:
    spans = copies(result, way)
    busy_s = sum(span.end_s - span.start_s for span in spans)
    peak = float(gpu_value(result, f"pcie.pinned_{direction}_gb_per_s", 0.0)) * 1e9
    return Flow(sum(span.bytes for span in spans), busy_s, peak or None)


def levels(result: Result) -> tuple[Level, ...]:
    """All levels from far to near; PCIe only where something was copied."""
    pcie = pcie_level(result)
    near = tuple(kernel_level(result, key) for key in KERNEL_LEVELS)
    return (pcie, *near) if pcie.n_bytes else near


def limiter_place(result: Result) -> str:
    """The level, "tensor" or "sms" that the limiter belongs to."""
    return LIMITER_PLACES.get(result.limiter, "sms")


def limiter_text(result: Result) -> str:
    """The limiter in words; one that pictures do not know as it stands."""
    return limiter_words(result.limiter)


def hit_rate(result: Result) -> float | None:
    """L2 lookups of the main kernel that found their chunk there or on its way, over all lookups."""
    lookups = result.main.lookups
    if not lookups.get("accesses"):
        return None
    return (lookups.get("hits", 0) + lookups.get("merged", 0)) / lookups["accesses"]


def slice_bytes(result: Result) -> int:
    """Bytes of A and B that one CTA keeps for one k-iteration: one stage of its ring. Of what a pair's instructions
    share (the side that their M does not run along) each of its CTAs keeps half."""
    config = result.main.config
    work = result.workload
    b_element_bytes = work["b_bytes"] / (work["batch"] * work["n"] * work["k"])  # scales or positions included
    shared = {"m": "n", "n": "m"}[config["mma_m_along"]] if config.get("pair") else ""
    rows_m, rows_n = (config[f"block_{side}"] // (2 if side == shared else 1) for side in "mn")
    row_bytes = rows_m * BYTES[work["dtype"]] + rows_n * b_element_bytes
    return math.ceil(float(row_bytes * config["block_k"]))


def stages_kept(result: Result) -> int:
    """Stages of the ring that lie in shared memory: kernels that compute with mma.sync keep one less than they have."""
    held = result.main.occupancy["smem_bytes_per_cta"] // slice_bytes(result)
    return int(min(max(held, 1), result.main.config["stages"]))


def title(result: Result) -> str:
    """The operation, as `work_title` has it."""
    return work_title(result.workload)


def work_title(work: dict[str, Any]) -> str:
    """A workload: "4,096 × 4,096 × 4,096 bf16", and the weights' format if they are not dense."""
    batch = f"{work['batch']:,} × " if work.get("batch", 1) > 1 else ""
    return f"{batch}{work['m']:,} × {work['n']:,} × {work['k']:,} {work['dtype']}{_weights(work)}"


def setting_text(work: dict[str, Any]) -> str:
    """What else tells a workload from others of its sizes: "tn, L2 cold", and the epilogue if there is one."""
    epilogue = [work["epilogue"]] if work["epilogue"] != "none" else []
    return ", ".join([work["layout"], f"L2 {work['l2']}", *epilogue])


def weights_format(result: Result) -> str:
    """How B lies in memory; results of before there were formats have dense ones."""
    return _format(result.workload)


def _format(work: dict[str, Any]) -> str:
    return str(work.get("weights_format", "dense"))


def _weights(work: dict[str, Any]) -> str:
    form = _format(work)
    if form == "dense":
        return ""
    return f", weights {form}" + ("" if form == "2:4" else f" in groups of {work['weight_group']:,}")


def tile_text(config: dict[str, Any]) -> str:
    """Tile as the command line takes it: "128x128x64"."""
    return f"{config['block_m']}x{config['block_n']}x{config['block_k']}"
