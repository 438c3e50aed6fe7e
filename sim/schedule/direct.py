"""Kernels whose warps load fragments straight from global memory into registers: no shared memory, no pipeline.

Each warp of a CTA takes its own part of `block_k`; it loads A as m16n8k16 wants it, 4 B a lane, two lanes' worth of
which lie 16 B apart; its weights, packed in the order of fragments, 16 B a lane; a group's scales and zero points once
each. It waits for all of them, converts, multiplies, and goes on; at the end warps add up through shared memory
(PyTorch's tinygemm_m16n8k16_chunk_kernel, behind torch._weight_int4pack_mm). What bounds it is L1: rows of A start a
multiple of 128 B apart, all in the same banks, so that a load takes a cycle for each of its rows. CTAs of an SM keep in
step, and L1 gives A to all but the first. (Nsight Compute, 16 x 14336 x 4096 on an H200: L1 is busy 115,113 of 125,400
cycles; 113,385 come out here.) Not modelled: L1 misses within a CTA, issue slots.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

from hwmodels.spec import Gpu
from sim.schedule import dots, formats
from sim.schedule.config import KernelConfig
from sim.schedule.narrow import DEPENDENT_CYCLES
from workloads.gemm import Gemm

BANK_BYTES = 4
ROWS, LANES = 8, 4
"""Rows that one load of a fragment of A takes, and lanes along each (PTX ISA, m16n8k16)."""
STEP = 16
"""Elements along k of one instruction."""
LOADS_PER_HALF = 2
"""Loads of A for 8 rows of one step."""


def is_direct(config: KernelConfig) -> bool:
    """Whether operands never see shared memory."""
    return config.loads == "direct"


@lru_cache(maxsize=1024)
def load_cycles(pitch: int, rows: int, banks: int, line_cycles: float) -> float:
    """Cycles of L1 for one warp's load of a fragment with so many rows inside the matrix: words of its fullest bank,
    or lines to find."""
    words = {row * pitch // BANK_BYTES + lane for row in range(rows) for lane in range(LANES)}
    fullest = max(Counter(word % banks for word in words).values(), default=0)
    return max(fullest, line_cycles * len({word // banks for word in words}))


def _a_cycles(gemm: Gemm, config: KernelConfig, gpu: Gpu) -> float:
    """L1's cycles for A of one iteration."""
    tiles, total = -(-gemm.m // config.block_m), 0.0
    for first in range(0, gemm.m, ROWS):
        rows = min(ROWS, gemm.m - first)
        total += load_cycles(gemm.pitch_bytes("a"), rows, gpu.smem.banks, gpu.multistage.l1_line_cycles)
    return LOADS_PER_HALF * config.block_k / STEP * total / tiles


def _group_loads(gemm: Gemm, config: KernelConfig) -> float:
    """Loads of scales and zero points of one iteration: one a group and warp."""
    per_warp = config.block_k / config.warps
    return config.warps * max(1.0, per_warp / (gemm.weight_group or gemm.k)) if formats.is_converted(gemm) else 0.0


def l1_cycles(gemm: Gemm, config: KernelConfig, gpu: Gpu) -> float:
    """Cycles of the L1 of an SM for one iteration's loads of one CTA: what it reads, and what it takes in."""
    if dots.multiplies_dots(config):
        return dots.fill_cycles(gemm, config, gpu)
    b_bytes = config.block_n * config.block_k * gemm.b_element_bytes
    return _a_cycles(gemm, config, gpu) + b_bytes / gpu.smem.bytes_per_clk + _group_loads(gemm, config)


def warp_cycles(gemm: Gemm, config: KernelConfig, gpu: Gpu) -> float:
    """Cycles from a warp's data to its results: it converts its weights, one instruction after another."""
    elements = config.block_n * config.block_k / (config.warps * gpu.sm.warp_size)
    return DEPENDENT_CYCLES * elements * formats.convert_instructions(gemm, gpu)


def received_rows(gemm: Gemm, config: KernelConfig, gpu: Gpu) -> float:
    """Rows of A for which a CTA's chunk crosses its SM's port: L1 has them for all but one of the SM's CTAs."""
    return dots.tile_rows(gemm, config) / dots.ctas_at_once(gemm, config, gpu)


def wait_cycles(gemm: Gemm, config: KernelConfig, gpu: Gpu) -> float:
    """Cycles until L1 gets to a CTA's loads of weights: behind its own of A, and half of those of the SM's others."""
    if dots.multiplies_dots(config):
        return dots.wait_cycles(gemm, config, gpu)
    return l1_cycles(gemm, config, gpu) * (dots.ctas_at_once(gemm, config, gpu) + 1) / 2
