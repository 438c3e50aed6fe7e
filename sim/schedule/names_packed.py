"""Names of kernels whose weights are packed: PyTorch's int4 kernel and cuSPARSELt's for 2:4 sparsity."""

from __future__ import annotations

import math

from sim.schedule.config import KernelConfig
from sim.schedule.launches import CLUSTER_SLOTS, PLAIN, SM90_EPILOGUE_BYTES, SM90_SMEM_BYTES, Launch, band

TINYGEMM_STEPS, TINYGEMM_REGISTERS = 8, 64
"""Steps of 16 along k that a warp loads at once (kKTilesPerWarp), and what the compiler gives a thread."""


def tinygemm(found: dict[str, str], launch: Launch) -> KernelConfig:
    """Tiles of 16 x 8, one of k16 after another for each warp, 8 at a time. Grid = (1, tiles along n, tiles along m) in
    48 of 48 rows of extra_ops.csv, with 256 threads, 64 registers and 4 KiB of shared memory, one partial tile a warp.
    """
    warps = (launch.threads or 256) // 32
    return KernelConfig(
        family="multistage",
        block_m=16,
        block_n=8,
        block_k=16 * TINYGEMM_STEPS * warps,
        stages=1,
        warps=warps,
        raster="n",
        group=PLAIN,
        loads="direct",
        loop="cutlass",
        mma="mma_sync",
        registers_per_thread=TINYGEMM_REGISTERS,
        smem_bytes=warps * 16 * 8 * 4,
        name=launch.name,
    )


def xmma_sparse(found: dict[str, str], launch: Launch) -> KernelConfig:
    """cuSPARSELt's kernels for 2:4 sparse weights. The first tile side runs along n, as wgmma's M; grid = (tiles, 1, 1)
    or 132 CTAs where there are more, in 15 of 15 rows of extra_ops.csv. `segment_k_on` (3 of 3 rows): two CTAs a tile,
    which add up in place, a memset before."""
    t0, t1, block_k = (int(found[key]) for key in ("t0", "t1", "bk"))
    element = launch.gemm.a_element_bytes if launch.gemm else 2
    stage_bytes = round(block_k * (t0 * (element / 2 + 1 / 8) + t1 * element))
    tiles, ctas = launch.tiles(t1, t0), math.prod(launch.grid) if launch.grid else None
    split = -(-ctas // math.prod(tiles)) if ctas and tiles and "segment_k_on" in launch.name else 1
    return KernelConfig(
        family="split_k" if split > 1 else "persistent",
        block_m=t1,
        block_n=t0,
        block_k=block_k,
        stages=max(1, (SM90_SMEM_BYTES - SM90_EPILOGUE_BYTES) // stage_bytes),
        warps=(launch.threads or 384) // 32,
        raster="n",
        group=band(CLUSTER_SLOTS[1], t1, t0),
        split_k=split,
        split_in_place=split > 1,
        loads="tma",
        mma="wgmma",
        mma_m_along="n",
        clamped=True,
        n_ctas=ctas,
        smem_bytes=SM90_SMEM_BYTES,
        name=launch.name,
    )
