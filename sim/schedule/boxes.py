"""What TMA's boxes take from L2 where rows start at odd places: bytes of a row beyond the sectors it touches, rows that
lie in two lines, and sectors that a store fills in part.

A box is `BOX_BYTES` wide (the widest that its swizzle allows) and moves row by row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hwmodels.spec import Gpu
from sim.schedule.config import KernelConfig
from sim.schedule.resources import wgmma_tile
from workloads.gemm import Gemm

BOX_BYTES = 128
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


def _boxes(n_bytes: float) -> list[tuple[float, float]]:
    """(begin, end) of the boxes of a run of bytes."""
    return [(at, min(at + BOX_BYTES, n_bytes)) for at in range(0, math.ceil(n_bytes), BOX_BYTES)]


def loaded_row_bytes(n_bytes: float, pitch: int, gpu: Gpu) -> float:
    """Mean bytes that L2 gives for so many of a row of this pitch: whole sectors, and more for each box that does not
    start at a pair of sectors."""
    sector, offsets = gpu.l2.sector_bytes, _offsets(pitch, PAIR * gpu.l2.sector_bytes)
    if odd_rows(pitch, gpu):
        n_bytes = math.ceil(n_bytes / BOX_BYTES) * BOX_BYTES
    total = 0.0
    for offset in offsets:
        for begin, end in _boxes(n_bytes):
            at = (offset + begin) % (PAIR * sector)
            total += -(-(at % sector + end - begin) // sector) * sector + gpu.persistent.off_pair_bytes * (at > 0)
    return total / len(offsets)


def odd_rows(pitch: int, gpu: Gpu) -> bool:
    """Whether rows of this pitch start at other places than pairs of sectors: the box at their end is then read whole,
    though it reaches beyond them."""
    return pitch % (PAIR * gpu.l2.sector_bytes) != 0


def has_odd_rows(gemm: Gemm, gpu: Gpu) -> bool:
    """Whether rows along k of A or B are odd."""
    pitches = (gemm.pitch_bytes(x) for x in "ab" if gemm.k_is_contiguous(x))
    return any(odd_rows(pitch, gpu) for pitch in pitches)


def split_rows(n_bytes: float, pitch: int, gpu: Gpu) -> float:
    """Fraction of the boxes' rows that lie in more lines than they fill, and are asked for line by line."""
    line, offsets, boxes = gpu.l2.line_bytes, _offsets(pitch, gpu.l2.line_bytes), _boxes(n_bytes)
    split = sum(
        -(-((offset + begin) % line + end - begin) // line) > -(-(end - begin) // line)
        for offset in offsets
        for begin, end in boxes
    )
    return split / (len(offsets) * len(boxes))


def stored_row(gemm: Gemm, config: KernelConfig, gpu: Gpu, out_bytes: int) -> Stored:
    """One row of a C tile, box by box. Consumers that share a tile and halve it along n start new boxes there."""
    sector, tile = gpu.l2.sector_bytes, config.block_n * out_bytes
    along_n = wgmma_tile(config)[1 if config.mma_m_along == "m" else 0]
    part = along_n * out_bytes if config.mma == "wgmma" else tile
    boxes = [(start + begin, start + end) for start in range(0, tile, part) for begin, end in _boxes(part)]
    offsets = _offsets(math.gcd(gemm.leading("c") * out_bytes, tile), sector)
    touched, partial = 0.0, 0
    for offset in offsets:
        for begin, end in boxes:
            first, last = (offset + begin) // sector, -(-(offset + end) // sector)
            odd = {(offset + edge) // sector for edge in (begin, end) if (offset + edge) % sector}
            touched += last - first
            partial += len(odd)
    scale = sector / len(offsets)
    return Stored(touched * scale, (touched + partial) * scale)
