"""Kernels that take products of few rows as dot products on CUDA cores: cuBLAS's gemmSN, gemv2T, gemvx and the like.

A CTA has some columns of C and walks along k in trips (`block_k`): its threads ask for their part of B, which goes from
global memory into registers and no further, and for A, which goes through shared memory, where every column reads it.
They wait, multiply in fp32, and only then ask for the next part (gemmSN and gemv2T on an H200: a lone CTA's trip takes
as long as HBM and L2 do). CTAs of an SM share A in L1. Beside these waits, L1 bounds such kernels. Not modelled:
instructions, code that is fetched on the way, atomics.
"""

from __future__ import annotations

from hwmodels.spec import Gpu
from sim.schedule.config import KernelConfig
from sim.schedule.resources import occupancy
from workloads.gemm import Gemm

WORD_BYTES = 4
"""A value takes so many in a register or in shared memory, of whatever type it is: elements become fp32."""
B_PASSES, A_PASSES = 2, 2
"""Times that L1 and shared memory handle each of B's values (on their way in and out), and A's of a row for every
column (stored and read). Nsight Compute sees 234 to 258 cycles of L1 busy for each 8 columns of 256 elements at one row
(gemv2T) and 300 to 325 for 128 at four rows (gemmSN), whatever the type and alignment (h200_sxm_further,
counters_odd.csv); 256 and 320 come out here."""


def multiplies_dots(config: KernelConfig) -> bool:
    """Whether a configuration is of this kind."""
    return config.loads == "direct" and config.mma == "fma"


def fill_cycles(gemm: Gemm, config: KernelConfig, gpu: Gpu) -> float:
    """Cycles of L1 and shared memory for what a CTA's trip takes in: B twice, A once for every column."""
    values = config.block_n * config.block_k * (B_PASSES + (A_PASSES - 1) * tile_rows(gemm, config))
    return values * WORD_BYTES / gpu.smem.bytes_per_clk


def read_bytes(gemm: Gemm, config: KernelConfig) -> float:
    """Bytes of A that a CTA's columns read from shared memory in a trip; rows outside the matrix are read too."""
    return tile_rows(gemm, config) * config.block_n * config.block_k * WORD_BYTES


def wait_cycles(gemm: Gemm, config: KernelConfig, gpu: Gpu) -> float:
    """Cycles by which a trip takes longer than its loads: half of what L1 takes in for the SM's other CTAs stands
    before them, and kernels of one row have that in shared memory before they ask for their columns."""
    others = (ctas_at_once(gemm, config, gpu) - 1) / 2 * fill_cycles(gemm, config, gpu)
    if config.block_m > 1:
        return others
    return others + gpu.l2.latency_cycles + gpu.l2.far_latency_cycles / 2 + gpu.multistage.barrier_cycles


def tile_rows(gemm: Gemm, config: KernelConfig) -> float:
    """Rows of A in a CTA's tile, in the mean."""
    return gemm.m / -(-gemm.m // config.block_m)


def ctas_at_once(gemm: Gemm, config: KernelConfig, gpu: Gpu) -> int:
    """CTAs that an SM runs at the same time."""
    n_ctas = gemm.batch * -(-gemm.m // config.block_m) * -(-gemm.n // config.block_n) * config.split_k
    return min(occupancy(config, gemm, gpu).ctas_per_sm, -(-n_ctas // gpu.sm.count))
