"""Products with unstructured sparse weights (CSR): a closed form, and the density below which they beat the dense one.

Modelled: bytes from HBM, activations gathered from L2 for each weight kept, multiply-adds on CUDA cores in fp32; the
slowest decides. Not modelled: rows of unequal length, reuse of activations in L1, latency of dependent loads. No such
kernel was measured: the time is a lower bound.
"""

from __future__ import annotations

from hwmodels.spec import Gpu
from sim.call import Options
from sim.run import simulate
from workloads.compress import SparseProduct, unstructured
from workloads.gemm import Gemm

BISECTIONS = 40


def sparse_time_s(work: SparseProduct, gpu: Gpu, options: Options | None = None) -> float:
    """Least time of the kernel, its launch included."""
    clock_hz = 1e6 * ((options.clock_mhz if options else None) or gpu.activity.active_mhz)
    hbm = work.compulsory_bytes / (gpu.hbm.bandwidth_gb_per_s * 1e9 * gpu.hbm.read_fraction)
    l2 = work.gathered_bytes / (gpu.l2.bytes_per_clk * gpu.clock.boost_mhz * 1e6)
    cores = work.flops / (gpu.cuda_core.fp32_flops_per_clk_per_sm * gpu.sm.count * clock_hz)
    return gpu.kernel.floor_us * 1e-6 + max(hbm, l2, cores)


def break_even(gemm: Gemm, gpu: Gpu, dense_s: float | None = None) -> float:
    """Density below which the sparse kernel takes less time than the dense one, of `dense_s` or as simulated; 1 where
    it always does, 0 where it never does."""
    dense_s = simulate(gemm, gpu).time_s if dense_s is None else dense_s
    low, high = 0.0, 1.0
    if sparse_time_s(unstructured(gemm, high), gpu) <= dense_s:
        return high
    if sparse_time_s(unstructured(gemm, low), gpu) > dense_s:
        return low
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        faster = sparse_time_s(unstructured(gemm, middle), gpu) <= dense_s
        low, high = (middle, high) if faster else (low, middle)
    return low
