"""Tensor memory (Blackwell): where tcgen05 instructions keep accumulators, and what bounds a tile by it.

One thread issues tcgen05.mma for operands that TMA brought to shared memory, its own or a pair of CTAs' together; warps
of the epilogue take accumulators out. Not modelled: columns allotted in powers of two, scale factors kept there.
"""

from __future__ import annotations

from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.schedule.config import KernelConfig
from sim.schedule.fields import refused
from workloads.gemm import Gemm

LANES, COLUMN_BYTES = 128, 4
"""Rows of tensor memory, and bytes of a row's column (PTX ISA, tensor memory)."""
LOAD_COLUMNS = 32
"""Columns that a thread of the epilogue takes into registers at once (assumed: tcgen05.ld takes a power of two,
CUTLASS's epilogues 32)."""
LEAST_WARPS = 8
"""Of a CTA: four of the epilogue, and those that load and issue (nvjet_sm100 kernels have 256 threads)."""


def mma_sides(config: KernelConfig) -> tuple[int, int]:
    """Extents of the CTA tile along the instruction's M and N."""
    along_m = config.mma_m_along == "m"
    return (config.block_m, config.block_n) if along_m else (config.block_n, config.block_m)


def tmem_bytes(config: KernelConfig) -> int:
    """Tensor memory that a CTA's accumulators take, those of the next tile included where they have room of their own
    (`pingpong`): fp32, rows in whole lanes. 64 rows a CTA lie in half of them, unless a pair of CTAs packs them."""
    side_m, side_n = mma_sides(config)
    rows = LANES // 2 if config.pair else LANES
    lanes = -(-side_m // rows) * rows
    return lanes * side_n * COLUMN_BYTES * (2 if config.pingpong else 1)


def check(config: KernelConfig, gemm: Gemm, gpu: Gpu) -> None:
    """One thread issues tcgen05.mma for operands that TMA brought; accumulators fit tensor memory."""
    if config.loads != "tma":
        raise refused(f"loads = {config.loads!r}", "tma with tcgen05")
    if config.warps < LEAST_WARPS:
        raise refused(f"warps = {config.warps}", f"{LEAST_WARPS} or more with tcgen05, 4 of them the epilogue's")
    side_m, side_n = mma_sides(config)
    k_bytes = config.block_k * gemm.a_element_bytes
    for what, value, unit in (("M side", side_m, 64), ("N side", side_n, 8), ("k bytes", k_bytes, 32)):
        if value % unit or not value:
            raise refused(f"{what} of a tcgen05 tile = {value}", f"a multiple of {unit} above 0")
    if config.pair and side_n % 16:
        raise refused(f"N side of a pair's tcgen05 tile = {side_n}", "a multiple of 16")
    taken, have = tmem_bytes(config), int(gpu.tensor.tmem_kib_per_sm * 1024)
    if taken > have:
        tile = f"{config.block_m}x{config.block_n}"
        what = f"tensor memory of {'two tiles' if config.pingpong else 'tile'} {tile} = {taken} B"
        raise ConfigError(
            f"{what}: at most {have} B an SM of {gpu.name}, {taken - have} B too many (kernel configuration)"
        )
