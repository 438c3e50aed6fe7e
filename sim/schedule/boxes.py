"""What TMA's boxes take from L2 where rows start at odd places: bytes of a row beyond the sectors it touches, rows that
lie in two lines, and sectors that a store fills in part.

A box is `BOX_BYTES` wide (the widest that its swizzle allows) and moves row by row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hwmodels.spec import Gpu
from sim.schedule.config import KernelConfig
from workloads.gemm import Gemm

BOX_BYTES = 128
WGMMA_M = 64
PAIR = 2
"""Sectors that rows should start at a multiple of."""


@dataclass(frozen=True)
class Stored:
    """Means over the rows of a C tile: bytes in whole sectors, and the same with sectors filled in part counted twice,
    since L2 reads what it does not get."""

    sector_bytes: float
    cost_bytes: float


def _offsets(pitch: int, modulus: int) -> range:
    """Where rows of a pitch start within a modulus, all equally often."""
    return range(0, modulus, math.gcd(pitch, modulus) or modulus)


def loaded_row_bytes(piece_bytes: float, pitch: int, gpu: Gpu) -> float:
    """Mean bytes that L2 gives for a piece of a row of this pitch: whole sectors, and more for one that does not start
    at a pair of sectors."""
    sector = gpu.l2.sector_bytes
    offsets = _offsets(pitch, PAIR * sector)
    touched = [-(-(offset % sector + piece_bytes) // sector) * sector for offset in offsets]
    extra = sum(offset > 0 for offset in offsets) * gpu.persistent.off_pair_bytes
    return (sum(touched) + extra) / len(touched)


def split_rows(piece_bytes: float, pitch: int, gpu: Gpu) -> float:
    """Fraction of the pieces of rows that lie in more lines than they fill, and are asked for line by line."""
    line = gpu.l2.line_bytes
    offsets = _offsets(pitch, line)
    return sum(-(-(offset + piece_bytes) // line) > -(-piece_bytes // line) for offset in offsets) / len(offsets)


def stored_row(gemm: Gemm, config: KernelConfig, gpu: Gpu, out_bytes: int) -> Stored:
    """One row of a C tile, box by box. Consumers that share a tile and halve it along n start new boxes there."""
    sector, tile = gpu.l2.sector_bytes, config.block_n * out_bytes
    m_side = config.block_n if config.mma_m_along == "n" else config.block_m
    halved = not config.pingpong and m_side % (2 * WGMMA_M) and config.mma_m_along == "m"
    part = tile // 2 if halved else tile
    boxes = [
        (at, min(at + BOX_BYTES, start + part))
        for start in range(0, tile, part)
        for at in range(start, start + part, BOX_BYTES)
    ]
    offsets = _offsets(math.gcd(gemm.leading("c") * out_bytes, tile), sector)
    touched = partial = 0
    for offset in offsets:
        for begin, end in boxes:
            first, last = (offset + begin) // sector, -(-(offset + end) // sector)
            odd = {(offset + edge) // sector for edge in (begin, end) if (offset + edge) % sector}
            touched += last - first
            partial += len(odd)
    scale = sector / len(offsets)
    return Stored(touched * scale, (touched + partial) * scale)
