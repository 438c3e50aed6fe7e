"""A plausible Result made by hand: 4096^3 bf16 on an H200 with a Triton-like kernel, for the tests of `viz`.

Times and bytes resemble a measured kernel (218 µs, 188 MB read from HBM); spans come from a ring of three stages
played out for a few SMs, so loads, waits and MMAs fit together as they would in a run. Nothing here is a prediction.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.result import SPAN_DTYPE, SPAN_KINDS, WINDOW_FIELDS, HostSpan, KernelResult, Result, Windows
from workloads import Gemm

N_SMS, SLOTS_PER_SM, N_TILES, N_K, STAGES = 132, 2, 1024, 64, 3
TIME_S, SM_MHZ = 217.7e-6, 1612.0
WINDOW_FS = 2_000_000_000
START, LOAD, WAIT, MMA, EPILOGUE = range(len(SPAN_KINDS))

_VALUES: dict[str, tuple[Any, str, str]] = {
    "sm.count": (132, "SMs", "datasheet"),
    "registers.per_sm": (65536, "registers", "datasheet"),
    "smem.kib_per_sm": (228, "KiB", "datasheet"),
    "smem.max_kib_per_cta": (227, "KiB", "datasheet"),
    "smem.bytes_per_clk": (128, "B/clk", "microbenchmark"),
    "smem.latency_cycles": (29, "cycles", "microbenchmark"),
    "tensor.bf16_flops_per_clk_per_sm": (4096, "FLOP/clk/SM", "derived"),
    "tensor.mma_sync_fraction": (0.65, "1", "microbenchmark"),
    "tensor.wgmma": (True, "bool", "datasheet"),
    "cuda_core.fp32_flops_per_clk_per_sm": (256, "FLOP/clk/SM", "datasheet"),
    "l2.capacity_mib": (60, "MiB", "datasheet"),
    "l2.partitions": (2, "partitions", "microbenchmark"),
    "l2.bytes_per_clk": (5375, "B/clk", "microbenchmark"),
    "l2.latency_cycles": (287, "cycles", "microbenchmark"),
    "l2.sm_port_bytes_per_clk": (64, "B/clk", "derived"),
    "hbm.capacity_gb": (141, "GB", "datasheet"),
    "hbm.bandwidth_gb_per_s": (4800, "GB/s", "datasheet"),
    "hbm.latency_ns": (230, "ns", "microbenchmark"),
    "clock.base_mhz": (1590, "MHz", "assumed"),
    "clock.boost_mhz": (1980, "MHz", "datasheet"),
    "power.board_w": (700, "W", "datasheet"),
    "pcie.generation": (5, "1", "datasheet"),
    "pcie.lanes": (16, "lanes", "datasheet"),
    "pcie.pinned_h2d_gb_per_s": (55, "GB/s", "microbenchmark"),
    "pcie.pinned_d2h_gb_per_s": (54, "GB/s", "microbenchmark"),
    "launch.stream_us": (3.8, "us", "microbenchmark"),
}


def sample_gpu() -> dict[str, Any]:
    """The GPU as `Result.gpu` holds it."""
    values = {
        key: {"value": value, "unit": unit, "kind": kind, "source": f"sample of {key}"}
        for key, (value, unit, kind) in _VALUES.items()
    }
    return {"name": "h200_sxm", "label": "NVIDIA H200 SXM", "values": values}


def sample_config() -> dict[str, Any]:
    """A resolved configuration, by the names of `KernelConfig`."""
    return {
        "family": "multistage",
        "block_m": 128,
        "block_n": 128,
        "block_k": 64,
        "stages": STAGES,
        "warps": 4,
        "cluster_m": 1,
        "cluster_n": 1,
        "raster": "m",
        "group": 8,
        "split_k": 1,
        "pingpong": False,
        "loads": "cp_async",
        "mma": "wgmma",
        "mma_m_along": "m",
        "n_ctas": N_TILES,
        "registers_per_thread": 188,
        "spill_bytes_per_thread": 0,
        "smem_bytes": 98304,
        "name": "",
    }


def _tiles_of(slot_index: int) -> range:
    return range(slot_index, N_TILES, N_SMS * SLOTS_PER_SM)


def _load_fs(rng: np.random.Generator, first_wave: bool, k: int) -> int:
    mean_ns = 1150 if first_wave and k < STAGES else 780
    return int((mean_ns + 90 * rng.random()) * 1e6)


def _tile_spans(sm: int, slot: int, tile: int, begin: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
    """One tile on one slot: start, ring of loads, waits, MMAs (slowed by the other slot's), epilogue."""
    done = begin + 390_000_000
    rows, mma_end = [(START, sm, slot, tile, 0, begin, done)], [done] * (N_K + STAGES)
    for k in range(N_K):
        issued = done if k < STAGES - 1 else mma_end[k - STAGES + 1]
        ready = issued + _load_fs(rng, tile < N_SMS * SLOTS_PER_SM, k)
        previous = mma_end[k - 1] if k else done
        started = max(ready, previous + 40_000_000)
        mma_end[k] = started + 560_000_000 + int(40e6 * rng.random())
        rows += [(LOAD, sm, slot, tile, k, issued, ready), (WAIT, sm, slot, tile, k, previous + 40_000_000, started)]
        rows.append((MMA, sm, slot, tile, k, started, mma_end[k]))
    end = mma_end[N_K - 1] + 1_600_000_000
    return [*rows, (EPILOGUE, sm, slot, tile, N_K - 1, mma_end[N_K - 1], end)]


def _sm_spans(sm: int) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(sm)
    rows: list[tuple[int, ...]] = []
    for slot in range(SLOTS_PER_SM):
        end = slot * 200_000_000
        for tile in _tiles_of(slot * N_SMS + sm):
            rows += _tile_spans(sm, slot, tile, end, rng)
            end = rows[-1][-1]
    return rows


@lru_cache
def sample_spans(n_sms: int = 8) -> npt.NDArray[np.void]:
    """Spans of `n_sms` SMs spread over the GPU, stretched so that the last ends with the kernel."""
    rows = [row for sm in np.linspace(0, N_SMS - 1, n_sms).astype(int) for row in _sm_spans(int(sm))]
    spans = np.array(rows, dtype=SPAN_DTYPE)
    scale = TIME_S * 1e15 / spans["end_fs"].max()
    for edge in ("start_fs", "end_fs"):
        spans[edge] = (spans[edge] * scale).astype(np.int64)
    return spans


def sample_windows() -> Windows:
    """Activity in windows of 2 µs: HBM busy at the start of each wave, tensor cores idle between waves."""
    n = int(np.ceil(TIME_S * 1e15 / WINDOW_FS))
    phase = np.modf(np.arange(n) / n * 3.88)[0]
    tensor = np.where(phase < 0.06, 0.25, 0.74) * np.where(np.arange(n) / n > 0.97, 0.5, 1.0)
    shape = {
        "hbm_read_bytes": np.exp(-2.0 * phase) + 0.2,
        "hbm_write_bytes": 0.05 + (phase > 0.9),
        "l2_read_bytes": tensor + 0.05,
        "l2_write_bytes": 0.02 + (phase < 0.08),
    }
    totals = {"hbm_read_bytes": 188e6, "hbm_write_bytes": 28e6, "l2_read_bytes": 1.86e9, "l2_write_bytes": 33.6e6}
    columns = {name: values * totals[name] / values.sum() for name, values in shape.items()}
    columns["tensor_busy_fs"] = tensor * WINDOW_FS * N_SMS
    columns["active_ctas"] = np.where(np.arange(n) / n > 0.97, 232.0, 264.0)
    columns["clock_mhz"] = 1860.0 - 282.0 * tensor - 51.0 * 0.75
    return Windows(WINDOW_FS, np.stack([columns[name] for name in WINDOW_FIELDS], axis=1))


def sample_kernel(traced: bool = True, sampled: bool = False) -> KernelResult:
    """The one kernel of the sample."""
    return KernelResult(
        name="gemm_multistage_128x128x64_3",
        time_s=TIME_S,
        sm_cycles=TIME_S * SM_MHZ * 1e6,
        sm_mhz=SM_MHZ,
        config=sample_config(),
        flops_executed=2 * 4096**3,
        bytes={
            "hbm": {"read": 188_000_000, "write": 28_200_000},
            "l2": {"read": 1_861_864_576, "write": 33_554_432},
            "sm": {"read": 2_147_483_648, "write": 33_554_432},
            "smem": {"read": 3_221_225_472, "write": 33_554_432},
            "registers": {"read": 4_294_967_296, "write": 33_554_432},
        },
        requests={
            "hbm": {"read": 11_400, "write": 1_700},
            "l2": {"read": 131_072, "write": 1_024},
            "sm": {"read": 131_072, "write": 1_024},
        },
        lookups={
            "accesses": 113_600,
            "hits": 98_800,
            "merged": 3_400,
            "misses": 11_400,
            "coalesced": 17_472,
            "filled": 11_400,
            "written": 1_024,
            "clean_evicted": 8_000,
            "written_back": 860,
            "overwritten": 0,
            "resident": 3_564,
        },
        utilisation={"tensor": 0.681, "smem": 0.554, "sm_port": 0.747, "l2": 0.813, "hbm": 0.224},
        waits={
            "mma": 0.552,
            "l2": 0.181,
            "hbm": 0.068,
            "sm_port": 0.021,
            "barrier": 0.083,
            "issue": 0.034,
            "start": 0.007,
            "epilogue": 0.026,
            "idle": 0.028,
        },
        occupancy={
            "ctas_per_sm": 2,
            "warps_per_sm": 8,
            "limit": "shared memory",
            "registers_per_thread": 188,
            "smem_bytes_per_cta": 98304,
        },
        waves=N_TILES / (N_SMS * SLOTS_PER_SM),
        sampled=sampled,
        n_events=132_096,
        windows=sample_windows(),
        spans=sample_spans() if traced else None,
        energy_j={"idle": 0.023, "sm": 0.002, "tensor": 0.084, "smem": 0.014, "l2": 0.042, "hbm": 0.016},
    )


def reduction_kernel() -> KernelResult:
    """A short second kernel, as a split-K GEMM launches to add its partial sums."""
    main = sample_kernel(traced=False)
    traffic = {"read": 134_217_728, "write": 33_554_432}
    return replace(
        main,
        name="split_k_reduce",
        time_s=24.6e-6,
        sm_cycles=24.6e-6 * 1.9e9,
        sm_mhz=1900.0,
        flops_executed=0,
        bytes={"hbm": {"read": 40_000_000, "write": 20_000_000}, "l2": traffic, "sm": traffic},
        requests={},
        lookups={},
        windows=Windows(WINDOW_FS, np.zeros((13, len(WINDOW_FIELDS)))),
    )


def sample_host_spans(copied: bool) -> tuple[HostSpan, ...]:
    """Launch and kernel; with `copied`, the weights come from pinned memory and C goes back."""
    before, after = (33_554_432 / 55e9, 33_554_432 / 54e9) if copied else (0.0, 0.0)
    launch = HostSpan("host", "launch gemm_multistage_128x128x64_3", before, before + 3.8e-6)
    begin = launch.end_s
    kernel = HostSpan("stream", "gemm_multistage_128x128x64_3", begin, begin + TIME_S)
    if not copied:
        return (launch, kernel)
    h2d = HostSpan("copy h2d", "B", 0.0, before, 33_554_432)
    d2h = HostSpan("copy d2h", "C", kernel.end_s, kernel.end_s + after, 33_554_432)
    return (h2d, launch, kernel, d2h)


def sample_result(traced: bool = True, copied: bool = False, sampled: bool = False, **changes: Any) -> Result:
    """The sample; `changes` replace fields of Result."""
    work = Gemm(4096, 4096, 4096, weights="pinned" if copied else "hbm", result="host" if copied else "hbm")
    spans = sample_host_spans(copied)
    result = Result(
        gpu=sample_gpu(),
        workload=work.describe(),
        versions={"tilewalk": "0.1.0", "numpy": np.__version__},
        kernels=(sample_kernel(traced, sampled),),
        time_s=TIME_S,
        end_to_end_s=max(span.end_s for span in spans),
        flops=work.flops,
        limiter="l2",
        evidence=(
            "L2 is busy 81 % of the time, more than any other resource (tensor cores 68 %).",
            "18 % of CTA time waits for data from L2, 7 % for HBM.",
        ),
        advice=(
            {"change": "tile 128x256x64, 8 warps", "time_s": 198.4e-6, "speedup": 1.097},
            {"change": "4 stages", "time_s": 212.0e-6, "speedup": 1.027},
        ),
        host_spans=spans,
        options={"clock_mhz": None, "full": False, "family": None, "tile": "bound"},
    )
    return replace(result, **changes)
