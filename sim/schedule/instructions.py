"""What the MMAs of one k-iteration take of an SM: tensor cores, shared memory, instructions that convert weights."""

from __future__ import annotations

from hwmodels.spec import Gpu
from sim.schedule import direct, dots, formats
from sim.schedule.config import KernelConfig
from sim.schedule.resources import WARPGROUP_WARPS, consumer_warps, flops_per_clk_per_sm, multiplied_dtype, wgmma_tile
from sim.schedule.tensor_memory import mma_sides
from workloads.gemm import Gemm

WGMMA_M, TCGEN05_M = 64, 128
WGMMA_MAX_N = 256
WGMMA_K_BYTES = 32
"""Shape of one wgmma: M is 64, N at most 256, K fills 32 bytes (CUDA PTX ISA, wgmma.mma_async). tcgen05.mma: M of a CTA
is 128; with 64 a lone CTA reaches half the rate (measured on a B200; taken for pairs too); N and K as wgmma's."""
WARP_THREADS = 32
STORED_BYTES, KNOWN_DIVISOR = 16, 16
"""Bytes that a thread stores at once, where Triton knows that rows of C start at multiples of so many elements."""
MMA_K_BYTES = 32
"""Bytes along k of an mma.sync instruction of full rate: m16n8k16 of 2-byte types, m16n8k8 of tf32, m16n8k32 of 1."""


def tensor_rate(gemm: Gemm, config: KernelConfig, gpu: Gpu) -> float:
    """FLOPs a cycle of one SM that the instruction reaches at best: mma.sync a part of what wgmma does, where there is
    a wgmma for the type."""
    rate = flops_per_clk_per_sm(config.mma, multiplied_dtype(config, gemm), gpu)
    if config.mma != "mma_sync" or gemm.dtype == "fp64":
        return rate
    short = gpu.tensor.short_mma_fraction if config.mma_k_bytes < MMA_K_BYTES else 1.0
    return rate * gpu.tensor.mma_sync_fraction * short


def _wgmmas(gemm: Gemm, config: KernelConfig) -> tuple[int, int]:
    """N of the instructions of one iteration, and how many there are. Warpgroups that find no rows along M of their own
    share the columns (Triton)."""
    side_m, side_n = (config.block_m, config.block_n)[:: 1 if config.mma_m_along == "m" else -1]
    n_m = -(-side_m // WGMMA_M)
    pieces = max(-(-side_n // WGMMA_MAX_N), config.warps // WARPGROUP_WARPS // n_m if _is_triton(config) else 1)
    inst_n = max(8, -(-side_n // pieces // 8) * 8)
    return inst_n, n_m * -(-side_n // inst_n) * -(-config.block_k * gemm.a_element_bytes // formats.step_bytes(gemm))


def _is_triton(config: KernelConfig) -> bool:
    return config.loop == "triton" and config.loads == "cp_async" and config.mma == "wgmma"


def is_serial(gemm: Gemm, config: KernelConfig) -> bool:
    """Whether a Triton loop waits for each of its wgmmas, as ptxas finds accumulators set beside them (its C7515).

    So it does where one warp stores a whole row of the C tile at once and there is more than one warpgroup: in 21 of
    the 240 kernels of tile_sweep.csv and tile_more.csv that use wgmma (Triton 3.6), and in none of the others.
    """
    elements = STORED_BYTES // gemm.c_element_bytes if gemm.leading("c") % KNOWN_DIVISOR == 0 else 1
    return _is_triton(config) and config.warps > WARPGROUP_WARPS and config.block_n == WARP_THREADS * elements


def serial_cycles(gemm: Gemm, config: KernelConfig, gpu: Gpu) -> tuple[float, float]:
    """Of a loop that waits for each wgmma: cycles that one warpgroup's MMAs of an iteration take one after another, but
    for the last one's drain, and those of other instructions, which MMAs hide elsewhere. (0, 0) of other loops."""
    if not is_serial(gemm, config):
        return 0.0, 0.0
    inst_n, count = _wgmmas(gemm, config)
    drain = gpu.multistage.drain_cycles
    flops = 2 * WGMMA_M * inst_n * (WGMMA_K_BYTES // gemm.a_element_bytes)
    in_turn = -(-count * WARPGROUP_WARPS // config.warps)
    return in_turn * (flops / tensor_rate(gemm, config, gpu) + drain) - drain, gpu.multistage.serial_cycles


def barrier_cycles(warps: int, gpu: Gpu) -> float:
    """Cycles of one k-iteration's barrier, for as many warps."""
    beyond_four = gpu.multistage.barrier_warp_cycles * (warps - WARPGROUP_WARPS)
    return max(0.0, gpu.multistage.barrier_cycles + beyond_four)


def _wgmma(gemm: Gemm, config: KernelConfig, rate: float) -> tuple[float, float, int]:
    """(tensor cycles, shared-memory bytes, FLOPs) of one iteration: all operands are read from shared memory, converted
    weights once more than dense ones, into registers."""
    along_m = config.mma_m_along == "m"
    inst_n, count = _wgmmas(gemm, config)
    step = formats.step_bytes(gemm)
    flops = 2 * WGMMA_M * inst_n * (WGMMA_K_BYTES // gemm.a_element_bytes)
    sides = gemm.element_bytes("a" if along_m else "b"), gemm.element_bytes("b" if along_m else "a")
    row_bytes = WGMMA_M * sides[0] + inst_n * sides[1]
    return count * flops / rate, count * row_bytes * step / gemm.a_element_bytes, count * flops


def _tcgen05(gemm: Gemm, config: KernelConfig, rate: float) -> tuple[float, float, int]:
    """As `_wgmma`, for tcgen05: M is 128 of a CTA (64 take as long), N at most 256; operands come from shared memory,
    those of a pair along N from both CTAs' half by half; accumulators stay in tensor memory."""
    side_m, side_n = mma_sides(config)
    steps = config.block_k * gemm.a_element_bytes // WGMMA_K_BYTES
    n_m, n_n = -(-side_m // TCGEN05_M), -(-side_n // WGMMA_MAX_N)
    padded = 2 * n_m * TCGEN05_M * side_n * config.block_k
    row_bytes = n_n * side_m + n_m * side_n / (2 if config.pair else 1)
    return padded / rate, steps * row_bytes * WGMMA_K_BYTES, 2 * side_m * side_n * config.block_k


def _warp_grid(config: KernelConfig) -> tuple[int, int]:
    """Warps along m and n of a CTA: as square as the tile allows."""
    along_m, along_n = 1, 1
    while along_m * along_n < config.warps:
        if config.block_m / along_m >= config.block_n / along_n:
            along_m *= 2
        else:
            along_n *= 2
    return along_m, along_n


def _mma_sync(gemm: Gemm, config: KernelConfig, rate: float) -> tuple[float, float, int]:
    """As `_wgmma`, for mma.sync and CUDA cores: each warp reads its fragments once from shared memory."""
    along_m, along_n = _warp_grid(config)
    flops = 2 * config.block_m * config.block_n * config.block_k // (2 if formats.is_sparse(gemm) else 1)
    rows = config.block_m * along_n * gemm.a_element_bytes + config.block_n * along_m * gemm.b_element_bytes
    if direct.is_direct(config):
        return flops / rate, dots.read_bytes(gemm, config) if dots.multiplies_dots(config) else 0.0, flops
    return flops / rate, config.block_k * rows, flops


def instructions(gemm: Gemm, config: KernelConfig, gpu: Gpu) -> tuple[float, float, int]:
    """(tensor cycles, shared-memory bytes, FLOPs) of one iteration."""
    shape = {"wgmma": _wgmma, "tcgen05": _tcgen05}.get(config.mma, _mma_sync)
    return shape(gemm, config, tensor_rate(gemm, config, gpu))


def convert_cycles(gemm: Gemm, config: KernelConfig, gpu: Gpu) -> float:
    """Cycles of an SM to convert the weights of one iteration, in every warp or warpgroup that holds them."""
    if config.mma == "wgmma":
        both = not config.pingpong and wgmma_tile(config)[0] == config.block_n
        return formats.convert_cycles(gemm, config, gpu, consumer_warps(config) // WARPGROUP_WARPS if both else 1)
    if direct.is_direct(config):
        return 0.0  # beside the loads of other CTAs, which take longer
    return formats.convert_cycles(gemm, config, gpu, _warp_grid(config)[0])


def front_cycles(gemm: Gemm, config: KernelConfig, gpu: Gpu) -> float:
    """Cycles of an iteration before its first MMA, which nothing hides: the first step's weights are converted, or
    positions of sparse ones fetched."""
    if direct.is_direct(config):
        return 0.0
    if formats.is_sparse(gemm):
        return gpu.tensor.sparse_positions_cycles if config.mma == "wgmma" else 0.0
    return convert_cycles(gemm, config, gpu) * formats.MMA_STEP_BYTES / (config.block_k * gemm.a_element_bytes)
