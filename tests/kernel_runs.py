"""One kernel through the seam, for the engine's tests: a GPU of whole numbers, kernel configurations, exact times."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from hwmodels import load_gpu
from hwmodels.spec import Gpu
from sim.kernel import run_kernel
from sim.machine import build_machine
from sim.records import Work
from sim.result import KernelResult
from sim.schedule.config import KernelConfig
from sim.schedule.plan import build_plan
from sim.schedule.raster import items
from workloads import Gemm

MHZ = 1000.0
CYCLE_FS = 10**6
"""At 1000 MHz a cycle is a nanosecond: closed forms come out in whole femtoseconds."""

WHOLE = (
    "clock.base_mhz=1000", "clock.boost_mhz=1000",
    "hbm.bandwidth_gb_per_s=1024", "hbm.read_fraction=1", "hbm.write_fraction=1",  # 1 KiB a cycle
    "hbm.copy_fraction=1", "hbm.latency_ns=200", "hbm.spread_ns=16", "hbm.row_open_bytes=0",
    "l2.bytes_per_clk=4096", "l2.latency_cycles=300", "l2.far_latency_cycles=200", "l2.write_weight=1",
    "l2.sm_port_bytes_per_clk=128", "l2.sm_store_bytes_per_clk=32", "l2.gpc_port_bytes_per_clk=2048",
    "l2.jitter_cycles=0", "persistent.store_weight=1",
    "kernel.turnround_cycles=350", "kernel.launch_ns=0",
    "multistage.barrier_cycles=60", "multistage.drain_cycles=70", "multistage.load_cycles=120",
    "multistage.barrier_warp_cycles=2", "multistage.serial_cycles=200",
    "multistage.turn_fraction=0",
    "multistage.cta_start_cycles=600", "multistage.epilogue_cycles=400", "multistage.issue_bytes_per_clk=256",
    "persistent.start_cycles=700", "persistent.load_cycles=110", "persistent.epilogue_cycles=1000",
    "persistent.iteration_cycles=160", "persistent.drain_cycles=0", "persistent.reorder_fraction=0",
    "coalescing.window_cycles=20", "activity.active_mhz=1000", "activity.tensor_mhz=200", "activity.late_us=0",
    "activity.few_sms_mhz=0",
)  # fmt: skip
"""Overrides of an H200 that make every rate whole at 1000 MHz. Refits of the shipped file do not move these tests."""


def whole_gpu(*more: str) -> Gpu:
    """The GPU of whole numbers, with further overrides."""
    return load_gpu("h200_sxm", (*WHOLE, *more))


def multistage(block_m: int = 128, block_n: int = 128, block_k: int = 64, stages: int = 4, **more: Any) -> KernelConfig:
    """A Triton-like kernel; tiles of fewer than 64 rows use mma.sync."""
    mma = "wgmma" if block_m >= 64 else "mma_sync"
    family = "split_k" if more.get("split_k", 1) > 1 else "multistage"
    return KernelConfig(family, block_m, block_n, block_k, stages, **{"warps": 4, "mma": mma, **more})


def persistent(block_m: int = 128, block_n: int = 128, block_k: int = 64, stages: int = 4, **more: Any) -> KernelConfig:
    """A warp-specialised kernel: cooperative, no cluster, unless said otherwise."""
    family = "split_k" if more.get("split_k", 1) > 1 else "persistent"
    return KernelConfig(family, block_m, block_n, block_k, stages, **{"warps": 12, "loads": "tma", **more})


def run(
    gemm: Gemm,
    config: KernelConfig,
    gpu: Gpu,
    *,
    clock_mhz: float | None = MHZ,
    full: bool = True,
    trace: bool = False,
    without: Collection[str] = (),
) -> KernelResult:
    """The main kernel alone, without its launch: time is that of its CTAs."""
    machine = build_machine(gpu, clock_mhz, without)
    plan = build_plan(gemm, config, gpu, full, without)
    return run_kernel(machine, plan, resident=resident(gemm), trace=trace)


def resident(gemm: Gemm) -> tuple[float, float]:
    """Parts of A and B in L2 when the kernel starts."""
    return (1.0, 1.0) if gemm.l2 == "warm" else (0.0, 0.0)


def time_fs(kernel: KernelResult) -> int:
    """Femtoseconds of a kernel below 9 s, exactly as the engine counted them."""
    return round(kernel.time_s * 1e15)


def cycles(kernel: KernelResult) -> float:
    """Time in cycles of `MHZ`."""
    return time_fs(kernel) / CYCLE_FS


def warm(gemm: Gemm) -> Gemm:
    """The same with A and B in L2."""
    return replace(gemm, l2="warm")


def places(work: Work) -> list[tuple[int, int, int, int]]:
    """(batch, split, row, column), in cluster tiles, of every item in order, from where C's chunks and its tile lie."""
    n_chunks = work.grid_m * work.grid_n * work.cluster_size
    found = []
    for item in items(work):
        split, batch = divmod((int(item["c"]) - work.first_c) // n_chunks, work.batch)
        found.append((batch, split, int(item["row"]) // work.cluster_m, int(item["col"]) // work.cluster_n))
    return found
