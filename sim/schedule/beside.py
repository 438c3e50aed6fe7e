"""Kernels that a library launches beside the main one: when, and how long they take."""

from __future__ import annotations

from dataclasses import dataclass

from hwmodels.spec import Gpu
from sim.schedule.config import KernelConfig
from workloads.gemm import Gemm

TILES_BEFORE_MEMSET = 2
"""cuBLAS clears a counter before a persistent kernel of more tiles a slot (201 of 201 rows of the H200's gemm.csv)."""

SLICES_IN_FLOOR, SLICES_AT_ONCE = 16, 4
"""A thread of the reduction adds the slices of its elements in order, four loads under way at a time; the measured
floor covers the first 16 (the H200's gemm.csv: 6.4, 6.1, 3.2 and 1.6 us for 133, 120, 59 and 9 slices of few
elements)."""


def counts_tiles(items: int, agents: int, splits: int) -> bool:
    """Whether the `agents` of a persistent kernel take their tiles by a counter, first come, first served: what the
    memset before it clears. Those of fewer tiles, or of split-K, walk through a static schedule."""
    return splits == 1 and items > TILES_BEFORE_MEMSET * agents


def adds_in_turn(config: KernelConfig) -> bool:
    """Whether slices are added one after another by whole tiles: so in xmma's fp32 kernels (which walk along m), whose
    reduction has one CTA a tile, and which wait for one another where they add in place.

    gemm_odd.csv, fp32, less the floor: 0.6, 2.0, 3.8 and 8.1 us for 3, 8, 16 and 32 slices of tiles of 32x32 and 64x64,
    as attention's results are combined (`attention.combine_slice_us`); wider tiles take up to 4 us more.
    """
    return config.mma == "fma" and config.loads == "cp_async" and config.raster == "m" and config.loop == "cutlass"


def partial_bytes(gemm: Gemm, splits: int) -> int:
    """Bytes of the partial sums that the slices of split-K leave; 0 without."""
    return splits * gemm.batch * gemm.m * gemm.n * gemm.accumulator_bytes if splits > 1 else 0


@dataclass(frozen=True)
class Reduction:
    """The kernel that adds split-K's partial sums and what the epilogue reads: its time, and the bytes it moves."""

    time_s: float
    read_bytes: int
    """Partial sums, and the residual or bias."""
    write_bytes: int
    """C."""
    hbm_read_bytes: int
    """Of those read, what L2 does not hold: partial sums that it could not keep, and the epilogue's operand."""
    hbm_write_bytes: int
    """Partial sums that make room in L2 for C."""


def reduction(gpu: Gpu, gemm: Gemm, splits: int, spilled_bytes: int | None = None, in_turn: bool = False) -> Reduction:
    """The reduction over `splits` slices, of whose partial sums `spilled_bytes` have gone to HBM by then (None: what
    L2 cannot hold), added `in_turn` or several at a time. It runs at the rate measured on partial sums in L2, or at
    HBM's for what goes there if that takes longer."""
    partial, l2_bytes = partial_bytes(gemm, splits), int(gpu.l2.capacity_mib * 2**20)
    spilled = max(0, partial - l2_bytes) if spilled_bytes is None else min(spilled_bytes, partial)
    read, hbm_read = partial + gemm.epilogue_bytes, spilled + gemm.epilogue_bytes
    hbm_write = max(0, partial - spilled + gemm.c_bytes - l2_bytes)
    hbm_bytes = hbm_read / gpu.hbm.read_fraction + hbm_write / gpu.hbm.write_fraction
    l2_s = (read + gemm.c_bytes) / (gpu.split_k.reduce_gb_per_s * 1e9)
    chain_s = max(0, splits - SLICES_IN_FLOOR) * gpu.l2.latency_cycles / SLICES_AT_ONCE / (gpu.clock.boost_mhz * 1e6)
    if in_turn:
        chain_s = splits * gpu.attention.combine_slice_us * 1e-6
    hbm_s = hbm_bytes / (gpu.hbm.bandwidth_gb_per_s * 1e9)
    time_s = gpu.split_k.reduce_floor_us * 1e-6 + max(l2_s, hbm_s, chain_s)
    return Reduction(time_s, read, gemm.c_bytes, hbm_read, hbm_write)
