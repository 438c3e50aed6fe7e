"""Kernels that a library launches beside the main one: when, and how long they take."""

from __future__ import annotations

from hwmodels.spec import Gpu
from workloads.gemm import Gemm

TILES_BEFORE_MEMSET = 2
"""cuBLAS clears a counter before a persistent kernel of more tiles a slot (201 of 201 rows of the H200's gemm.csv)."""


def memset_s(gpu: Gpu, items: int, agents: int) -> float:
    """Seconds of the memset before a persistent kernel whose `agents` walk through `items`; 0 where there is none."""
    return gpu.persistent.memset_us * 1e-6 if items > TILES_BEFORE_MEMSET * agents else 0.0


def partial_bytes(gemm: Gemm, splits: int) -> int:
    """Bytes of the partial sums that the slices of split-K leave; 0 without."""
    return splits * gemm.batch * gemm.m * gemm.n * gemm.accumulator_bytes if splits > 1 else 0


def reduction_s(gpu: Gpu, gemm: Gemm, splits: int) -> float:
    """Seconds of the kernel that adds split-K's partial sums, which lie in L2 where they fit."""
    moved_bytes = partial_bytes(gemm, splits) + gemm.c_bytes
    return gpu.split_k.reduce_floor_us * 1e-6 + moved_bytes / (gpu.split_k.reduce_gb_per_s * 1e9)
