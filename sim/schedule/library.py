"""The kernel that a library would launch: the fastest of those it was seen to launch for the most similar shapes.

A library's own heuristics are not known, so they are taken as seen: `hwmodels/menus/ARCHITECTURE_seen.csv` lists
shapes of gemm.csv and gemm_odd.csv with the kernel that cuBLAS launched. Shapes are similar as the logarithms of their
sizes are. `tilewalk validate --tile auto`, each row's own shape left out: bf16 LLM shapes of gemm_again.csv 5.0 %
(of its nvjet kernels 4.2), of other models (gemm_more.csv) 4.8 %; with six whatever the shape 4.9 and 5.5 %;
weights matter less. The fastest of the best eight of the menu by a bound: 7.3 %, 5.2 % too fast, as a library does not
choose the best.
"""

from __future__ import annotations

import csv
import dataclasses
from functools import cache, lru_cache
from math import log2
from pathlib import Path
from typing import NamedTuple

import hwmodels
from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.schedule.config import KernelConfig
from sim.schedule.dots import multiplies_dots
from sim.schedule.names import parse_kernel_name
from workloads.gemm import Gemm

N_SIMILAR = {0.0: 8, 5e11: 3, 2e12: 2}
"""FLOPs from which so many kernels of similar shapes are simulated: the larger a product, the less they differ, and the
more the fastest of many is one that the library did not choose (from 2e12 FLOPs on, two: 1.4 %, six: 2.0 %)."""
FEW_ROWS, N_FOR_FEW = 128, 4
"""Rows of A up to which four are (gemm_more.csv, m <= 16: four 3.4 %, six 4.0 %)."""
MOST = 12
"""Kernels that are offered, should some be refused."""
FEW_PLAIN_ROWS, N_FOR_PLAIN = 16, (1, 2)
"""Kernels of similar shapes where TMA loads none: one up to so many rows of A, where the library's own choice is far
from the fastest, and two beyond (even-hash shapes of gemm_odd.csv: 12.4 and 9.4 %; two and one 12.9 and 11.6)."""
PLAIN_M_WEIGHT = 2.0
"""Of a doubling of m up to so many rows, else 1: each number of rows has kernels of its own (1.5: 14.2 % for 12.8)."""
K_WEIGHT = 0.3
"""Of a doubling of k in the distance between shapes, one of m or n being 1: k changes tiles least."""
LAYOUT_WEIGHT = 2.0
"""Distance of another layout."""
TMA_WEIGHT, ALIGNMENT_WEIGHT = 8.0, 1.0
"""Distance of a shape that TMA takes from one that it does not, as kernels are of another kind; and of half the
alignment of rows, up to what TMA needs."""
TMA_BYTES = 16
DTYPES = {"fp8": "fp8_e4m3"}
PLAIN_DTYPES = ("fp32",)
"""Types whose kernels do not load by TMA, however well rows are aligned."""
LEAST_SLICE = 64
"""Elements of k of a slice, at least: the fewest of gemm_odd.csv, but for two rows of 57."""
LIKE = {"fp8_e5m2": "fp8_e4m3", "fp16": "bf16"}
"""Types whose kernels are named as another's, where they were not seen themselves."""


class Seen(NamedTuple):
    """A shape and the kernel that was launched for it."""

    gemm: Gemm
    config: KernelConfig
    alignment_bytes: int
    """Of the rows of its matrices, up to what TMA needs."""


@cache
def seen(architecture: str) -> tuple[Seen, ...]:
    """All shapes with a kernel that is modelled; none for an architecture without a list."""
    path = Path(hwmodels.__file__).parent / "menus" / f"{architecture}_seen.csv"
    if not path.is_file():
        return ()
    with path.open(encoding="utf-8", newline="") as stream:
        found = [_seen(row) for row in csv.DictReader(stream)]
    return tuple(each for each in found if each is not None)


def _seen(row: dict[str, str]) -> Seen | None:
    m, n, k = (int(row[name]) for name in "mnk")
    gemm = Gemm(m, n, k, dtype=DTYPES.get(row["dtype"], row["dtype"]), layout=row["layout"])
    try:
        config = parse_kernel_name(row["kernel"], gemm, grid=row["grid"], block=row["block"])
    except ConfigError:
        return None
    config = dataclasses.replace(config, n_ctas=None, name="", split_in_place=row["in_place"] == "1")
    return Seen(gemm, config, _alignment_bytes(gemm))


def n_similar(gemm: Gemm) -> int:
    """Kernels of similar shapes to simulate for a GEMM, at most."""
    if _is_plain(gemm):
        return N_FOR_PLAIN[gemm.m > FEW_PLAIN_ROWS]
    if gemm.m <= FEW_ROWS and _alignment_bytes(gemm) == TMA_BYTES:
        return N_FOR_FEW
    return next(n for flops, n in reversed(N_SIMILAR.items()) if gemm.flops >= flops)


def launched(gemm: Gemm, gpu: Gpu) -> KernelConfig | None:
    """The kernel that a library was seen to launch for this very product, by sizes, type and layout; None if none."""
    alike = (DTYPES.get(gemm.dtype, gemm.dtype), gemm.layout)
    same = (
        each.config
        for each in seen(gpu.architecture)
        if (each.gemm.dtype, each.gemm.layout) == alike and _same(each.gemm, gemm)
    )
    return next(same, None)


@lru_cache(maxsize=4096)
def library_candidates(gemm: Gemm, gpu: Gpu, but_itself: bool = False) -> tuple[KernelConfig, ...]:
    """Kernels of the most similar shapes, nearest first, each once; none where no kernel of the type was seen.

    `but_itself` leaves out what was seen of the very same m, n and k, to judge how well others stand for it.
    """
    listed = seen(gpu.architecture)
    dtypes = {each.gemm.dtype for each in listed}
    dtype = gemm.dtype if gemm.dtype in dtypes else LIKE.get(gemm.dtype, gemm.dtype)
    alike = [each for each in listed if each.gemm.dtype == dtype and not (but_itself and _same(each.gemm, gemm))]
    alike = [each for each in alike if not multiplies_dots(each.config) or _takes(each, gemm)]
    aligned = _alignment_bytes(gemm)
    order = sorted(alike, key=lambda each: _distance(each, gemm, aligned))
    return tuple(dict.fromkeys(_resplit(each, gemm) for each in order))[:MOST]


def _same(one: Gemm, other: Gemm) -> bool:
    return (one.m, one.n, one.k) == (other.m, other.n, other.k)


def _is_plain(gemm: Gemm) -> bool:
    """Whether no kernel loads its operands by TMA."""
    return gemm.dtype in PLAIN_DTYPES or _alignment_bytes(gemm) < TMA_BYTES


def _takes(known: Seen, gemm: Gemm) -> bool:
    """Whether a kernel of dot products is launched for the shape: each is for so many rows of one layout."""
    return gemm.m == known.gemm.m and gemm.layout == known.gemm.layout


def _resplit(known: Seen, gemm: Gemm) -> KernelConfig:
    """The kernel, with k in as many slices as make about the CTAs it was launched with: a library fills the GPU. As it
    is where it loads by TMA, or is one of dot products."""
    config = known.config
    if config.loads == "tma" or multiplies_dots(config):
        return config
    was, now = (-(-each.m // config.block_m) * -(-each.n // config.block_n) for each in (known.gemm, gemm))
    split = max(1, min(round(was * config.split_k / now), gemm.k // max(LEAST_SLICE, config.block_k)))
    family = "split_k" if split > 1 else "multistage"
    in_place = config.split_in_place and split > 1
    return dataclasses.replace(config, family=family, split_k=split, split_in_place=in_place)


def _distance(known: Seen, other: Gemm, alignment_bytes: int) -> float:
    one = known.gemm
    few = other.m <= FEW_PLAIN_ROWS and _is_plain(other)
    apart = (
        (PLAIN_M_WEIGHT if few else 1.0) * abs(log2(one.m / other.m))
        + abs(log2(one.n / other.n))
        + K_WEIGHT * abs(log2(one.k / other.k))
    )
    unaligned = abs(log2(known.alignment_bytes / alignment_bytes))
    unlike = TMA_WEIGHT * (_is_plain(one) != _is_plain(other)) + ALIGNMENT_WEIGHT * unaligned
    return apart + LAYOUT_WEIGHT * (one.layout != other.layout) + unlike


def _alignment_bytes(gemm: Gemm) -> int:
    return min(TMA_BYTES, *(gemm.alignment_bytes(operand) for operand in "abc"))
