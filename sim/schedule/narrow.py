"""What kernels for operands not aligned to 16 B cost an SM: loads through L1 in small pieces, stores one by one.

Such kernels keep the thread layout of their aligned siblings (CUTLASS's PitchLinearWarpRakedThreadMap): a thread owns
16 B of a row and fetches them in 16 / width instructions, so that the lanes of one instruction lie 16 B apart, along
the row up to 128 B and then over the next rows. L1 and shared memory are one array with one data path: loads, stores to
shared memory and reads of fragments take turns there. Not modelled: rows that k does not fill, L1 misses.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import lru_cache

from hwmodels.spec import Gpu
from sim.schedule.config import KernelConfig
from workloads.gemm import Gemm

VECTOR_BYTES = 16
"""Bytes of a row that a thread owns, and loads at once where it can."""
ROW_LANES = 8
"""Threads of a warp that lie along one row at most."""
BANK_BYTES = 4

START_INSTRUCTIONS, STORE_INSTRUCTIONS = 434, 12.6
"""Instructions of a warp of a narrow CUTLASS kernel outside its main loop: fixed (offsets, a predicate for every piece)
and for each store of an element of C a thread. From the `instructions` of counters.csv on an H200: 836 a warp for 32
elements a thread (64x64 tiles), 2,041 for 128 (128x128), after 231 and 383 an iteration."""
START_SHARE = 0.5
"""Of the fixed ones, what stands in the way of the first load (assumed)."""
DEPENDENT_CYCLES = 4
"""Cycles from an instruction to the next that needs its result, Volta and later (Jia et al. 2018, arXiv 1804.06826)."""


def load_width(gemm: Gemm, config: KernelConfig, operand: str) -> int:
    """Bytes that a thread loads at once of operand "a" or "b"."""
    return min(VECTOR_BYTES, config.load_bytes, gemm.alignment_bytes(operand))


def is_narrow(gemm: Gemm, config: KernelConfig) -> bool:
    """Whether some loads are narrower than 16 B."""
    return min(load_width(gemm, config, operand) for operand in "ab") < VECTOR_BYTES


def _is_cutlass(gemm: Gemm, config: KernelConfig) -> bool:
    """Whether it is a kernel of tiles with such loads, whose instructions are counted below."""
    return is_narrow(gemm, config) and config.loads != "direct"


@lru_cache(maxsize=1024)
def load_pattern(pitch: int, width: int, row_lanes: int, banks: int, warp: int = 32) -> tuple[float, float]:
    """(words in the fullest bank, lines touched) of one warp's load: means over where its rows start.

    Rows lie `pitch` B apart; `row_lanes` lanes 16 B apart lie along each; every lane loads `width` B.
    """
    rows, line = warp // row_lanes, banks * BANK_BYTES
    starts = range(line // math.gcd(rows * pitch, line))
    fullest, lines = 0, 0
    for start in starts:
        for offset in range(0, VECTOR_BYTES, width):
            lanes = [
                (start * rows + row) * pitch + lane * VECTOR_BYTES + offset
                for row in range(rows)
                for lane in range(row_lanes)
            ]
            words = {(address + byte) // BANK_BYTES for address in lanes for byte in range(width)}
            fullest += max(Counter(word % banks for word in words).values())
            lines += len({word // banks for word in words})
    n = len(starts) * (VECTOR_BYTES // width)
    return fullest / n, lines / n


def _load_cycles(gemm: Gemm, config: KernelConfig, gpu: Gpu, operand: str) -> float:
    """Cycles of L1 and shared memory for one iteration's loads of one operand.

    L1 finds line by line and reads bank by bank; a copy (cp.async) then writes shared memory, whose banks the pieces of
    a warp, 16 B apart, meet as whole 16 B would (gemm_again.csv: a line at a time, 13 kernels of 4-byte copies come out
    20 % too slow). Loads of rows outside the matrix do not run, but their zeros are stored where that goes through
    registers.
    """
    block, extent = (config.block_m, gemm.m) if operand == "a" else (config.block_n, gemm.n)
    size, width = gemm.element_bytes(operand), load_width(gemm, config, operand)
    tile_bytes = block * config.block_k * size
    whole = tile_bytes / gpu.smem.bytes_per_clk
    valid = extent / (-(-extent // block) * block)
    if width == VECTOR_BYTES:
        return whole if config.loads == "cp_async" else whole * (1 + valid)
    row_bytes = (config.block_k if gemm.k_is_contiguous(operand) else block) * size
    row_lanes = max(1, min(int(row_bytes) // VECTOR_BYTES, ROW_LANES))
    fullest, lines = load_pattern(gemm.pitch_bytes(operand), width, row_lanes, gpu.smem.banks, gpu.sm.warp_size)
    loads = valid * tile_bytes / (gpu.sm.warp_size * width)
    reads = loads * max(fullest, lines * gpu.multistage.l1_line_cycles)
    if config.loads == "cp_async":
        return reads + loads * gpu.sm.warp_size * VECTOR_BYTES / gpu.smem.bytes_per_clk
    return reads + whole


def l1_cycles(gemm: Gemm, config: KernelConfig, gpu: Gpu) -> float:
    """Cycles of the L1 and shared memory of an SM for one iteration's loads of one CTA."""
    return _load_cycles(gemm, config, gpu, "a") + _load_cycles(gemm, config, gpu, "b")


def store_instructions(gemm: Gemm, config: KernelConfig, gpu: Gpu) -> float:
    """Instructions of a warp's epilogue: a narrow kernel stores as many elements at once as it loads."""
    elements = min(load_width(gemm, config, operand) for operand in "ab") / gemm.a_element_bytes
    return STORE_INSTRUCTIONS * config.block_m * config.block_n / (gpu.sm.warp_size * config.warps) / elements


def start_cycles(gemm: Gemm, config: KernelConfig) -> float:
    """Cycles a narrow kernel takes longer from its start to its first load: one instruction after another."""
    return DEPENDENT_CYCLES * START_SHARE * START_INSTRUCTIONS if _is_cutlass(gemm, config) else 0.0


def epilogue_cycles(gemm: Gemm, config: KernelConfig, gpu: Gpu) -> float:
    """Cycles of a narrow kernel's epilogue, one instruction after another; 0 for other kernels."""
    return DEPENDENT_CYCLES * store_instructions(gemm, config, gpu) if _is_cutlass(gemm, config) else 0.0


def issue_cycles(gemm: Gemm, config: KernelConfig, gpu: Gpu) -> float:
    """Cycles of an SM to issue a narrow kernel's instructions outside the main loop; 0 for other kernels."""
    if not _is_cutlass(gemm, config):
        return 0.0
    return (START_INSTRUCTIONS + store_instructions(gemm, config, gpu)) * config.warps / gpu.sm.schedulers
