"""What is known of a kernel's launch beside its name, and how many clusters of a launch run at once."""

from __future__ import annotations

import math
from dataclasses import dataclass

from workloads.gemm import MAX_DIMENSION, Gemm

PLAIN = MAX_DIMENSION
"""A group that holds every tile: plain order along the raster direction."""

CLUSTER_SLOTS = {1: 132, 2: 66, 4: 30, 8: 15}
"""Clusters of so many CTAs that an H200 runs at once (GPCs of unequal size leave SMs over)."""

SM90_SMEM_BYTES = 231424
"""Shared memory that every sm90_xmma and CUTLASS 3 kernel asks for; stages fill it beside 16 KiB for the epilogue."""
SM90_EPILOGUE_BYTES = 16384


@dataclass(frozen=True)
class Launch:
    """What is known of a launch besides the name."""

    name: str
    gemm: Gemm | None
    grid: tuple[int, ...] | None
    threads: int | None

    def tiles(self, block_m: int, block_n: int) -> tuple[int, int] | None:
        """Output tiles along m and n, if the workload is known."""
        return (-(-self.gemm.m // block_m), -(-self.gemm.n // block_n)) if self.gemm else None

    def splits(self) -> int:
        """Slices of k of a plain grid: its third dimension, less the batch."""
        return max(1, self.grid[2] // (self.gemm.batch if self.gemm else 1)) if self.grid else 1


def band(slots: int, along: int, across: int) -> int:
    """Clusters side by side in one band of an nvjet raster: sqrt(slots along / across), the tile's sides being along
    and across the direction in which clusters walk."""
    return max(1, round(math.sqrt(slots * along / across)))
