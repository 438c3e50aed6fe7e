"""Kernel configurations out of the names that profilers show, and a short name back.

What the names mean was worked out on the H200's gemm.csv (961 rows, 771 of them nvjet) and on 1,364 fp32 rows of
V100, T4, A100, P100 and P4; the tests repeat the counts given below. n and m are those of C[m, n] = A B with a
row-major C, as PyTorch has it; a library that computes the transpose names its first tile side along n.

nvjet_sm90_{types}_{t0}x{t1}_{BK}x{stages}_{c0}x{c1}_{h|v}_bz[_coopA|_coopB][_splitK][_bias|_gelubias]_{ABC}
- t0, c0 run along n; t1, c1 along m. Grid = (c0 c1, clusters, 1) in 771 of 771 rows: clusters = min(tiles in whole
  clusters, slots) in all 628 rows without split, slots being 132, 66, 30 and at least 15 for 1, 2, 4 and 8 CTAs: the
  kernel is persistent. A memset of the tile counter precedes it exactly where there are more than 2 tiles a slot.
- splitK: clusters = tiles x split in 134 of 143 rows; in the other 9 all 66 slots share the k-iterations of 28 or 56
  tiles evenly (stream-K), rounded up to whole splits here.
- BK is elements, 128 B in every row. 384 threads: one producer and two consumer warpgroups.
- ABC: A says whether the weight, B whether the activation is k-contiguous (T, N); C = T puts wgmma's M along n, N
  along m: that side is a multiple of 64 in 771 of 771 rows.
- coopA: both consumers halve that side (128 or 256 in all 124 rows); coopB: they halve the other (the first is an odd
  multiple of 64 in all 102); neither: they alternate tiles (ping-pong).
- h: consecutive clusters walk along n in bands of round(sqrt(slots t0 / t1)) clusters, then along m. Waves replayed
  against an LRU of 40 MB give the DRAM reads of 68 profiled kernels of several waves to 1 % (median; 4.5 % mean);
  plain orders miss by 18 to 60 %. v: the same with m and n exchanged (by symmetry: few rows tell).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from hwmodels.errors import ConfigError
from sim.records import MAX_STAGES
from sim.schedule.config import KernelConfig
from sim.schedule.launches import CLUSTER_SLOTS, PLAIN, SM90_EPILOGUE_BYTES, SM90_SMEM_BYTES, Launch, band
from sim.schedule.names_gemv import PARSERS as GEMV_PARSERS
from sim.schedule.names_packed import tinygemm, xmma_sparse
from sim.schedule.operands import layout_agrees, operand_types, weights_format
from workloads.gemm import Gemm

NVJET_MIN_SPLIT_BYTES = 2600
"""Bytes along k that every slice of a split-K nvjet kernel has at least (heuristic, where no grid is known)."""

SGEMM_THREADS = {
    (128, 128): 256,
    (128, 64): 128,
    (128, 32): 256,
    (32, 128): 256,
    (64, 64): 64,
    (64, 32): 256,
    (32, 32): 128,
}
"""Threads of cuBLAS sgemm kernels by tile, from the `block_x` column of the public fp32 table."""

XMMA_SLICES = 32
"""Slices of k of an xmma kernel of which only the reduction is named, being the longer (assumed: as many as another of
the same n and k has, whose reduction would take as long; 2 rows of gemm_odd.csv)."""

NOT_MODELLED = {
    "gemv": "gemv",
    "gemmSN": "gemmSN (small n)",
    "dot_kernel": "dot product",
    "magma": "magma",
    "splitKreduce": "split-K reduction (it follows a GEMM)",
    "Memset": "memset",
}


def parse_kernel_name(
    name: str, gemm: Gemm | None = None, grid: str | None = None, block: str | None = None
) -> KernelConfig:
    """The configuration that a kernel name encodes, completed by its launch (`grid`, `block` as "2x66x1").

    Raises `ConfigError` for a name that is not known, a family that is not modelled, types or a layout that are not the
    workload's, a grid that does not fit, and a split-K name whose split neither grid nor workload tells.
    """
    launch = Launch(
        name, gemm, _dimensions("grid", grid), math.prod(_dimensions("block", block) or ()) if block else None
    )
    for pattern, build in PARSERS:
        match = pattern.search(name)
        if match:
            _check_type(match[0], launch)
            _check_layout(match.groupdict().get("layout"), launch)
            return build(match.groupdict(), launch)
    for word, family in NOT_MODELLED.items():
        if word in name:
            raise ConfigError(f"kernel name {name[:60]!r}: the {family} family is not modelled")
    raise ConfigError(
        f"kernel name {name[:60]!r}: not known; known are nvjet, cutlass, sgemm, xmma, s/h/i...gemm and gemv names of"
        " cuBLAS"
    )


def short_name(config: KernelConfig) -> str:
    """A canonical readable name, such as persistent_128x256x64_s4_w12_c2x1_n11_coop."""
    parts = [
        config.family,
        f"{config.block_m}x{config.block_n}x{config.block_k}",
        f"s{config.stages}",
        f"w{config.warps}",
    ]
    if config.cluster_m * config.cluster_n > 1:
        parts.append(f"c{config.cluster_m}x{config.cluster_n}")
    parts.append(f"{config.raster}{'' if config.group >= PLAIN else config.group}")
    if config.split_k > 1:
        parts.append(f"split{config.split_k}")
    if config.stream_k:
        parts.append("stream")
    if config.loads == "tma":
        parts.append("pingpong" if config.pingpong else "coop")
    return "_".join(parts)


def _check_type(name: str, launch: Launch) -> None:
    known = operand_types(name)
    if known and launch.gemm and not launch.gemm.dtype.startswith(known):
        raise ConfigError(
            f"kernel name {launch.name[:60]!r}: for {' or '.join(known)}, but dtype = {launch.gemm.dtype!r}"
            " (workload gemm)"
        )
    form = weights_format(name)
    if launch.gemm and launch.gemm.weights_format != form:
        raise ConfigError(
            f"kernel name {launch.name[:60]!r}: for {form} weights, but weights_format = "
            f"{launch.gemm.weights_format!r} (workload gemm)"
        )


def _check_layout(stated: str | None, launch: Launch) -> None:
    """CUTLASS 3 names are not judged: no measured row has one."""
    if stated and launch.gemm and not layout_agrees(stated, launch.gemm):
        raise ConfigError(
            f"kernel name {launch.name[:60]!r}: for layout {stated.lower()}, but layout = {launch.gemm.layout!r}"
            " (workload gemm)"
        )


# nvjet: cuBLAS on Hopper.
def _nvjet(found: dict[str, str], launch: Launch) -> KernelConfig:
    t0, t1, c0, c1 = (int(found[key]) for key in ("t0", "t1", "c0", "c1"))
    size = c0 * c1
    ctas = math.prod(launch.grid) if launch.grid else None
    if ctas is not None and ctas % size:
        raise ConfigError(
            f"grid = {ctas} CTAs: must be a multiple of the cluster {c0}x{c1} (kernel name {launch.name[:60]!r})"
        )
    split = _nvjet_split(launch, (t1 * c1, t0 * c0), size, int(found["bk"])) if "_splitK" in found["flags"] else 1
    slots = CLUSTER_SLOTS.get(size, CLUSTER_SLOTS[1] // size)
    along_n = found["raster"] == "h"
    return KernelConfig(
        family="split_k" if split > 1 else "persistent",
        block_m=t1,
        block_n=t0,
        block_k=int(found["bk"]),
        stages=int(found["stages"]),
        warps=12,
        cluster_m=c1,
        cluster_n=c0,
        raster="n" if along_n else "m",
        group=band(slots, t0, t1) if along_n else band(slots, t1, t0),
        split_k=split,
        pingpong="_coop" not in found["flags"],
        loads="tma",
        mma="wgmma",
        mma_m_along="n" if found["c"] == "T" else "m",
        n_ctas=ctas,
        name=launch.name,
    )


def _nvjet_split(launch: Launch, cluster_tile: tuple[int, int], size: int, block_k: int) -> int:
    tiles = launch.tiles(*cluster_tile)
    if tiles is None or launch.gemm is None:
        raise ConfigError(f"kernel name {launch.name[:60]!r}: the split is not in the name; give grid and workload")
    units, iterations = math.prod(tiles) * launch.gemm.batch, -(-launch.gemm.k // block_k)
    if launch.grid:
        return min(
            iterations, -(-math.prod(launch.grid) // size // units) if math.prod(launch.grid) // size >= units else 1
        )
    slots = CLUSTER_SLOTS.get(size, CLUSTER_SLOTS[1] // size)
    by_bytes = launch.gemm.k * launch.gemm.a_element_bytes // NVJET_MIN_SPLIT_BYTES
    return max(2, min(slots // units, by_bytes, iterations))


# CUTLASS 2, as cuBLAS and PyTorch ship it.
def _cutlass2(found: dict[str, str], launch: Launch) -> KernelConfig:
    """First tile side along n. Grid = (tiles along m x w, tiles along n / w, splits) with w = 1, 2, 4 or 8: consecutive
    CTAs walk along n in bands of w (CUTLASS's identity swizzle). Without BK and stages (before Ampere): 32 and 2."""
    t0, t1 = int(found["t0"]), int(found["t1"])
    block_k, stages = int(found["bk"] or 32), int(found["stages"] or 2)
    element = launch.gemm.a_element_bytes if launch.gemm else 0
    ampere = int(found["sm"]) >= 80 and int(found["align"]) * (element or 4) >= 4
    return KernelConfig(
        family="split_k" if launch.splits() > 1 else "multistage",
        block_m=t1,
        block_n=t0,
        block_k=block_k,
        stages=stages,
        warps=(launch.threads or _cutlass2_threads(t0, t1)) // 32,
        raster="n",
        group=_swizzle(launch, t0, t1),
        split_k=launch.splits(),
        loads="cp_async" if ampere else "ldg",
        loop="cutlass",
        mma="fma" if found["unit"] == "simt" else "mma_sync",
        mma_k_bytes=16 if int(found["sm"]) < 80 else 32,
        mma_m_along="n",
        smem_bytes=stages * (t0 + t1) * block_k * element or None,
        load_bytes=min(16, int(found["align"]) * (element or 4)),
        name=launch.name,
    )


def _cutlass2_threads(t0: int, t1: int) -> int:
    return 32 if t0 * t1 < 1024 else 256 if t0 * t1 >= 32768 else 128


def _swizzle(launch: Launch, t0: int, t1: int) -> int:
    tiles = launch.tiles(t1, t0)
    if tiles is None:
        return 8
    if launch.grid and launch.grid[0] % tiles[0] == 0:
        return launch.grid[0] // tiles[0]
    return next(width for width, least in ((8, 6), (4, 3), (2, 2), (1, 0)) if tiles[1] >= least)


# Older cuBLAS: sgemm, and tensor-core kernels of Volta to Ampere.
def _cublas(found: dict[str, str], launch: Launch) -> KernelConfig:
    """First tile side along n. Grid = (tiles along n, tiles along m, splits x batch) in all 1,364 public fp32 rows.
    `sliced1x4`: four groups of warps share each BK. BK of sgemm is 8 and of tensor-core kernels 32 with two stages,
    unless `stages_` says (assumed: neither is in the name)."""
    t0, t1 = int(found["t0"]), int(found["t1"])
    simt = found["shape"] == ""
    slices = int(found["slices"] or 1)
    threads = launch.threads or (SGEMM_THREADS.get((t0, t1), 256) if simt else _cutlass2_threads(t0, t1))
    return KernelConfig(
        family="split_k" if launch.splits() > 1 else "multistage",
        block_m=t1,
        block_n=t0,
        block_k=int(found["bk"] or (8 * slices if simt else 32)),
        stages=int(found["stages"] or 2),
        warps=threads // 32,
        raster="n",
        group=PLAIN,
        split_k=launch.splits(),
        loads="cp_async" if found["stages"] and found["arch"] == "ampere" else "ldg",
        loop="cutlass",
        mma="fma" if simt else "mma_sync",
        mma_k_bytes=16 if found["shape"] == "1688" and found["arch"] != "ampere" else 32,
        mma_m_along="n",
        name=launch.name,
    )


# xmma: cuBLAS kernels built by another generator; the first tile side runs along m.
def _xmma(found: dict[str, str], launch: Launch) -> KernelConfig:
    """Grid = (tiles along m, tiles along n, splits) in 72 of 74 rows of sm80; the two others name the reduction. Names
    of sm90 that state an alignment (one row) load without TMA and are taken as multistage; the others go to `_xmma90`.
    """
    t0, t1, block_k = (int(found[key]) for key in ("t0", "t1", "bk"))
    split = XMMA_SLICES if "execute_split_k_kernel" in found["rest"] else launch.splits()
    if found["groups"] and "_aligna" not in found["rest"]:
        return xmma_sparse(found, launch) if found["sparse"] else _xmma90(found, launch)
    warps = math.prod(int(part) for part in found["warps"].split("x")) if found["warps"] else 4
    return KernelConfig(
        family="split_k" if split > 1 else "multistage",
        block_m=t0,
        block_n=t1,
        block_k=block_k,
        stages=int(found["stages"] or 2),
        warps=launch.threads // 32 if launch.threads else warps,
        raster="m",
        group=PLAIN,
        split_k=split,
        loads="cp_async" if int(found["sm"]) >= 80 else "ldg",
        loop="cutlass",
        mma="wgmma" if found["groups"] else "fma" if "ffma" in found["rest"] else "mma_sync",
        name=launch.name,
    )


def _xmma90(found: dict[str, str], launch: Launch) -> KernelConfig:
    """Persistent, stages filling shared memory (40 of 40 rows ask for 231424 B). `segment_k_on`: CTAs beyond the tiles
    take slices of k. Where the name is silent about the cluster, the grid is asked (`_xmma90_cluster`); a grid of
    several rows is taken to walk along n, row of clusters by row (DRAM reads of 6 of 8 such kernels), one of a single
    row in bands as nvjet's."""
    t0, t1, block_k = (int(found[key]) for key in ("t0", "t1", "bk"))
    named, tiles = found["cluster"], launch.tiles(t0, t1)
    cluster = [int(part) for part in named.split("x")] if named else _xmma90_cluster(launch.grid, tiles)
    ctas = math.prod(launch.grid) if launch.grid else None
    split = -(-ctas // math.prod(tiles)) if ctas and tiles and "segment_k_on" in launch.name else 1
    element = launch.gemm.a_element_bytes if launch.gemm else 4
    return KernelConfig(
        family="split_k" if split > 1 else "persistent",
        block_m=t0,
        block_n=t1,
        block_k=block_k,
        stages=_filling_stages(t0, t1, block_k * element),
        warps=(launch.threads or 384) // 32,
        cluster_m=cluster[0],
        cluster_n=cluster[1],
        raster="n",
        group=PLAIN if launch.grid and launch.grid[1] > 1 else band(CLUSTER_SLOTS[1] // math.prod(cluster), t1, t0),
        split_k=split,
        pingpong=found["groups"] == "1x1x1" and (launch.threads or 384) == 384,
        loads="tma",
        mma="wgmma",
        n_ctas=ctas,
        smem_bytes=SM90_SMEM_BYTES,
        name=launch.name,
    )


def _xmma90_cluster(grid: tuple[int, ...] | None, tiles: tuple[int, int] | None) -> list[int]:
    """(along m, along n): the largest cluster of which all run at once (`CLUSTER_SLOTS`), rows of the grid first, that
    adds no wave. Grids count CTAs along n, then m.

    Of 16 tf32 kernels counted on the H200 (counters_more.csv), L2 reads of grids 132x1, 60x2 and 112x1 are exactly what
    clusters of 2, 8 and 8 read; of 8 others less, since requests merge. Not explained: 14x8 reads what clusters of 16
    would, four others (28x4 twice, 56x2, 120x1) 7 to 20 % more than those taken here. Launch attributes of the 40 such
    kernels of gemm.csv (Nsight Compute, launch__cluster_dim_x) agree in 31; the others run 1, 4, 6, 7 or 12 CTAs where
    2 to 8 are taken. With the true ones, where they divide the tile, the mean error of all stays at 11.8 %."""
    if grid is None:
        return [1, 1]
    total = grid[0] * grid[1]
    for size in (8, 4, 2):
        rows = math.gcd(grid[1], size)
        cluster = [rows, size // rows]
        fits = total % size == 0 and total // size <= CLUSTER_SLOTS[size] and grid[0] % cluster[1] == 0
        if fits and (tiles is None or _waves(tiles, cluster, total) == _waves(tiles, [1, 1], total)):
            return cluster
    return [1, 1]


def _waves(tiles: tuple[int, int], cluster: list[int], n_ctas: int) -> int:
    """Tiles that the busiest CTA gets, filled up to whole clusters."""
    whole = math.prod(-(-n // c) * c for n, c in zip(tiles, cluster, strict=True))
    return -(-whole // n_ctas)


def _filling_stages(t0: int, t1: int, k_bytes: int) -> int:
    return min(MAX_STAGES, max(1, (SM90_SMEM_BYTES - SM90_EPILOGUE_BYTES) // ((t0 + t1) * k_bytes)))


# CUTLASS 3.
def _cutlass3(found: dict[str, str], launch: Launch) -> KernelConfig:
    """Tile, cluster, stages (0: as many as fit), three layout letters: a column-major C (n) puts the first side along
    n. Raster: along the side with fewer tiles, plain, as CUTLASS's default."""
    t0, t1, bk, c0, c1 = (int(found[key]) for key in ("t0", "t1", "bk", "c0", "c1"))
    swapped = found["letters"][2] == "n"
    block_m, block_n, cluster_m, cluster_n = (t1, t0, c1, c0) if swapped else (t0, t1, c0, c1)
    tiles = launch.tiles(block_m, block_n)
    element = launch.gemm.a_element_bytes if launch.gemm else 2
    return KernelConfig(
        family="persistent",
        block_m=block_m,
        block_n=block_n,
        block_k=bk,
        cluster_m=cluster_m,
        cluster_n=cluster_n,
        stages=int(found["stages"]) or _filling_stages(t0, t1, bk * element),
        warps=(launch.threads or (384 if found["kind"] else 256)) // 32,
        raster="m" if tiles is None or tiles[1] > tiles[0] else "n",
        group=PLAIN,
        pingpong=found["kind"] == "_pingpong",
        loads="tma",
        mma="wgmma",
        mma_m_along="n" if swapped else "m",
        n_ctas=math.prod(launch.grid) if launch.grid else None,
        name=launch.name,
    )


_COUNT = "[1-9][0-9]{0,4}"
"""A side of a tile or cluster, or a number of stages: never 0, and short."""
_SIZE = rf"(?P<t0>{_COUNT})x(?P<t1>{_COUNT})"
_CLUSTER = rf"(?P<c0>{_COUNT})x(?P<c1>{_COUNT})"
_RING = rf"(?P<bk>{_COUNT})x(?P<stages>{_COUNT})"
_TYPES = "(?:_[a-z][a-z0-9]*)*"
_NVJET = (
    rf"nvjet_sm90_(?P<types>[a-z]+)_{_SIZE}_{_RING}_{_CLUSTER}_(?P<raster>[hv])_bz"
    r"(?P<flags>(?:_[A-Za-z]+)*)_(?P<layout>[NT]{2})(?P<c>[NT])\b"
)
_CUTLASS2 = (
    rf"cutlass_(?P<sm>\d\d)_(?:wmma_)?(?P<unit>tensorop|simt)_\w*?gemm{_TYPES}_{_SIZE}"
    rf"(?:_{_RING})?_(?P<layout>[nt]{{2}})_align(?P<align>[1-9]\d{{0,2}})(?!\d)"
)
_CUTLASS3 = (
    rf"cutlass3x_sm90_tensorop_\w*?gemm{_TYPES}_{_SIZE}x(?P<bk>{_COUNT})_{_CLUSTER}x{_COUNT}"
    r"_(?P<stages>\d{1,3})_(?P<letters>[nt]{3})_align\d+_warpspecialized(?P<kind>_pingpong|_cooperative)?"
)
_XMMA = (
    rf"sm(?P<sm>\d\d)_xmma_(?P<sparse>sparse_)?gemm_\w+?_(?P<layout>[nt]{{2}})_[nt]_tilesize{_SIZE}x(?P<bk>{_COUNT})(?!\d)"
    rf"(?:_stage(?P<stages>{_COUNT}))?(?:_cgasize(?P<cluster>{_COUNT}x{_COUNT})x{_COUNT})?"
    rf"(?:_warpsize(?P<warps>{_COUNT}x{_COUNT}x{_COUNT}))?(?:_warpgroupsize(?P<groups>{_COUNT}x{_COUNT}x{_COUNT}))?"
    r"(?P<rest>(?!\d|\w*_(?:stage|cgasize|warpsize|warpgroupsize))\w*)"
)
_CUBLAS = (
    rf"(?P<arch>maxwell|volta|turing|ampere)_(?:\w+?_)?[a-z](?P<shape>\d*)gemm{_TYPES}_{_SIZE}"
    rf"(?:_sliced\d+x(?P<slices>{_COUNT}))?(?:_ldg\d+)?(?:_[a-z]2[a-z])?(?:_stages_{_RING})?_(?P<layout>[nt]{{2}})\b"
)
PARSERS: tuple[tuple[re.Pattern[str], Callable[[dict[str, str], Launch], KernelConfig]], ...] = (
    (re.compile(_NVJET, re.ASCII), _nvjet),
    (re.compile(_CUTLASS2, re.ASCII), _cutlass2),
    (re.compile(_CUTLASS3, re.ASCII), _cutlass3),
    (re.compile(_XMMA, re.ASCII), _xmma),
    (re.compile(_CUBLAS, re.ASCII), _cublas),
    (re.compile("tinygemm_m16n8k16_chunk_kernel<", re.ASCII), tinygemm),
    *GEMV_PARSERS,
)
"""Tried in turn; `search`, since a name may stand inside a template (void cutlass::Kernel2<...>)."""


def _dimensions(what: str, text: str | None) -> tuple[int, ...] | None:
    """Three positive integers of "2x66x1" or "(2,66,1)"."""
    if not text:
        return None
    parts = re.findall(r"\d+", text)
    if len(parts) != 3 or not all(len(part) < 11 and 0 < int(part) < 2**31 for part in parts):
        raise ConfigError(f"{what} = {text[:60]!r}: must be three integers from 1, such as 2x66x1")
    return tuple(int(part) for part in parts)
