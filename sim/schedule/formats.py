"""What weights that are not dense ask of a kernel: bytes at every level, instructions that convert them, sparse MMAs.

Integers ("int8", "int4") travel packed down to the registers, where CUDA cores make numbers of the activations' type of
them before tensor cores multiply: weights are the operand that instructions take from registers, wgmma's along its M.
Of 2:4 sparse ones (also along M) instructions take the kept values and their positions, and step twice as far along k
in the same time, which only the other operand's reads from shared memory notice. Not modelled: registers of positions,
layouts in memory that kernels reorder weights to.
"""

from __future__ import annotations

import math

from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.schedule.config import KernelConfig
from sim.schedule.fields import refused
from workloads.gemm import Gemm
from workloads.packing import WEIGHT_BITS

MMA_STEP_BYTES = 32
"""Bytes of dense operands along k of one instruction; twice as many of the dense one beside 2:4 sparse weights."""
FRAGMENT_STEPS = 2
"""Steps along k of converted weights that a thread holds: one in use, one in the making."""


def is_converted(gemm: Gemm) -> bool:
    """Whether weights are converted in registers."""
    return gemm.weights_format in WEIGHT_BITS


def is_sparse(gemm: Gemm) -> bool:
    """Whether instructions skip the zeros of 2:4 sparse weights."""
    return gemm.weights_format == "2:4"


def stored_bytes(gemm: Gemm, operand: str) -> float:
    """Bytes of one element of operand "a" or "b", with its share of scales, zero points or positions."""
    return gemm.b_element_bytes + gemm.b_side_bytes if operand == "b" else gemm.a_element_bytes


def chunk_bytes(gemm: Gemm, config: KernelConfig) -> float:
    """Bytes of A and B that a CTA loads for one iteration."""
    rows_a, rows_b = held_rows(config)
    return config.block_k * (rows_a * stored_bytes(gemm, "a") + rows_b * stored_bytes(gemm, "b"))


def held_rows(config: KernelConfig) -> tuple[int, int]:
    """Rows of A and of B that a CTA keeps in its shared memory: of what a pair's instructions share, half the tile."""
    shared_a, shared_b = config.pair and config.mma_m_along == "n", config.pair and config.mma_m_along == "m"
    return config.block_m // (1 + shared_a), config.block_n // (1 + shared_b)


def step_bytes(gemm: Gemm) -> int:
    """Bytes along k of the dense operand that one instruction steps over."""
    return MMA_STEP_BYTES * (2 if is_sparse(gemm) else 1)


def convert_cycles(gemm: Gemm, config: KernelConfig, gpu: Gpu, copies: int) -> float:
    """Cycles of an SM's schedulers to convert the weights of one iteration, `copies` times: once for each of the warps
    that hold the same ones."""
    each = convert_instructions(gemm, gpu)
    return copies * config.block_n * config.block_k * each / (gpu.sm.schedulers * gpu.sm.warp_size)


def convert_instructions(gemm: Gemm, gpu: Gpu) -> float:
    """Instructions of a thread to convert one weight."""
    return getattr(gpu.cuda_core, f"convert_{gemm.weights_format}_instructions") if is_converted(gemm) else 0.0


def row_cost(gemm: Gemm, config: KernelConfig, gpu: Gpu) -> float:
    """As `plan.row_cost` for weights to convert: values lie packed tile by tile; scales and zero points of a group in
    rows along n, of which a tile opens one for its columns alone."""
    values, beside = gemm.b_element_bytes, gemm.b_side_bytes
    runs = config.block_n * config.block_k * values, config.block_n * beside * (gemm.weight_group or gemm.k)
    opened = values / runs[0] + beside / runs[1]
    return 1 + gpu.hbm.row_open_bytes * opened / (values + beside)


def fragment_registers(gemm: Gemm, rows: int) -> int:
    """Registers a thread of a warpgroup needs for converted weights of `rows` along wgmma's M."""
    per_step = rows * MMA_STEP_BYTES // (4 * 128)
    return FRAGMENT_STEPS * per_step if is_converted(gemm) else 0


def clamped_cycles(gemm: Gemm, config: KernelConfig, gpu: Gpu) -> float:
    """Least cycles of an iteration where CTAs load rows outside the matrix from one row inside it: all want the same
    line of L2 at once. Requests of a GPC that come while one is under way merge with it, the more of them the longer it
    takes: its time goes as the root of the rows asked for."""
    if not config.clamped:
        return 0.0
    tiles_m = -(-gemm.m // config.block_m)
    tiles = tiles_m * -(-gemm.n // config.block_n) * gemm.batch * config.split_k
    outside = config.block_m - gemm.m / tiles_m
    return gpu.l2.hot_line_cycles * math.sqrt(min(tiles, gpu.sm.count) * outside)


def check_format(config: KernelConfig, gemm: Gemm, gpu: Gpu) -> None:
    """Raise `ConfigError` where a kernel or GPU cannot multiply weights of this format."""
    form = gemm.weights_format
    if form == "dense":
        return
    if is_sparse(gemm) and not gpu.tensor.sparse_24:
        raise ConfigError(f"weights_format = '2:4': {gpu.name} has no sparse tensor cores (workload gemm)")
    if config.mma in ("fma", "tcgen05"):
        raise refused(f"mma = {config.mma!r}", f"wgmma or mma_sync with {form} weights")
    if config.mma == "wgmma" and config.mma_m_along != "n":
        raise refused(f"mma_m_along = {config.mma_m_along!r}", f"n for wgmma with {form} weights")
    if config.block_k * gemm.a_element_bytes % step_bytes(gemm):
        raise refused(
            f"block_k = {config.block_k}",
            f"a multiple of {step_bytes(gemm) // gemm.a_element_bytes} with {form} weights",
        )
