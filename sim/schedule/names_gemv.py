"""Names of cuBLAS kernels on CUDA cores for few rows, short rows or fp32, that carry no tile in the usual order.

Worked out on the H200's gemm_odd.csv (76 rows), gemm.csv (16) and counters_odd.csv (19, with their traffic: B is read
once, A once an SM). All but the last walk along k in trips that wait for their loads (`sim.schedule.dots`); the
columns of C a CTA has are those of its grid, the elements of k a trip has are told below. Separators are commas or
semicolons, truths are words or digits, as tools have them.
"""

from __future__ import annotations

import re
from typing import Any

from hwmodels.errors import ConfigError
from sim.schedule.config import KernelConfig
from sim.schedule.launches import PLAIN, Launch

_NEXT = r"[,;] *"
_TRUTH = "(?:true|false|0|1)"
_BATCHED = r"(?:.*?StridedBatched<\w+)?"
GEMM_SN = (
    rf"gemmSN_(?P<layout>TN)_kernel<float{_NEXT}128{_NEXT}16{_NEXT}2{_NEXT}4{_NEXT}\d{{1,2}}{_NEXT}"
    rf"(?P<rows>[1-9]\d?){_NEXT}(?P<exact>{_TRUTH})\b{_BATCHED}"
)
GEMV2T = (
    rf"gemv2T_kernel_val<(?:int{_NEXT}){{2}}\w+"
    rf"(?:{_NEXT}(?:\w+{_NEXT}){{3}}128{_NEXT}16{_NEXT}(?P<columns>[1-9]){_NEXT}(?P=columns)\b)?"
)
GEMVX = rf"internal::(?:gemvx::)?kernel<(?:int{_NEXT}){{2}}\w+"
GEMV_NSP = rf"gemvNSP_kernel<(?:\w+{_NEXT}){{4}}\d"
DOT = rf"dot_kernel<float{_NEXT}128\b{_BATCHED}"
LARGE_K = rf"sgemm_largek_lds64<{_TRUTH}{_NEXT}{_TRUTH}{_NEXT}(?P<n>\d){_NEXT}(?P<m>\d){_NEXT}(?P<k>\d){_NEXT}"

COLUMNS, THREADS = 8, 128
"""Columns of C and threads of a CTA of gemmSN and gemv2T kernels: grid = ceil(n / 8) in 74 of 74 rows."""
SMALL_N_TRIP, SMALL_N_REGISTERS, HALF_REGISTERS = 128, {(2, True): 75, (4, False): 64}, 31
"""Elements of k of a trip of gemmSN kernels; registers by most rows and whether they are exact (else 96), and in fp16
(83 to 96, 63 and 31 in the tables)."""
MOST_COLUMNS = 4
"""Columns of a thread of a gemv2T kernel where its name is cut short of them."""
VECTOR_TRIP, VECTOR_REGISTERS = 64, {2: 47, 4: 66}
"""Elements of k for each column that a thread of a gemv2T kernel has, in a trip (assumed), and its registers."""
LOADS = 16
"""Loads of B that a thread of a gemvx kernel has on their way (assumed: it has 158 registers; least error of 8, 12 and
16 in gemm_odd.csv and gemm.csv, 14 rows)."""
X_REGISTERS, X_WIDE_REGISTERS = 158, 128
"""Registers of gemvx kernels of up to 256 threads, and of more."""
LARGE_K_REGISTERS = 40


def _dots(launch: Launch, **given: Any) -> KernelConfig:
    """A kernel of dot products: one CTA some columns of C, trips one after another."""
    threads = launch.threads or THREADS
    return KernelConfig(
        family=given.pop("family", "multistage"),
        stages=1,
        warps=-(-threads // 32),
        raster="n",
        group=PLAIN,
        loads="direct",
        loop="cutlass",
        mma="fma",
        name=launch.name,
        **given,
    )


def _check_rows(launch: Launch, most: int) -> None:
    if launch.gemm and launch.gemm.m > most:
        raise ConfigError(
            f"kernel name {launch.name[:60]!r}: for {most} rows at most, but m = {launch.gemm.m} (workload gemm)"
        )


def small_n(found: dict[str, str], launch: Launch) -> KernelConfig:
    """gemmSN_TN_kernel<float, 128, 16, 2, 4, rows, most rows, whether they are exact>.

    Exact or up to 7, all loads of a trip are on their way at once; else, and in fp16, those of half of it: a lone CTA's
    128 elements take 0.6 us, or 1.2 (768 and 1024 columns in gemm_odd.csv). Shared memory is 1,536 B a row.
    """
    rows, exact = int(found["rows"]), found["exact"] in ("true", "1")
    _check_rows(launch, rows)
    half = launch.gemm is not None and launch.gemm.dtype == "fp16"
    return _dots(
        launch,
        block_m=rows,
        block_n=COLUMNS,
        block_k=SMALL_N_TRIP if (exact or rows == 7) and not half else SMALL_N_TRIP // 2,
        registers_per_thread=HALF_REGISTERS if half else SMALL_N_REGISTERS.get((rows, exact), 96),
        smem_bytes=1536 * rows,
    )


def vector(found: dict[str, str], launch: Launch) -> KernelConfig:
    """gemv2T_kernel_val<..., 128, 16, columns, columns, ...>: a thread has 2 or 4 of the CTA's 8 columns."""
    _check_rows(launch, 1)
    columns = int(found["columns"] or MOST_COLUMNS)
    return _dots(
        launch,
        block_m=1,
        block_n=COLUMNS,
        block_k=VECTOR_TRIP * columns,
        registers_per_thread=VECTOR_REGISTERS.get(columns),
        smem_bytes=512 * (1 + columns),
    )


def vector_x(found: dict[str, str], launch: Launch) -> KernelConfig:
    """internal::gemvx::kernel and gemvNSP_kernel. A CTA has the power of two of columns that its grid asks for (a side
    of its block in 16 of 16 rows); its other threads lie along k."""
    _check_rows(launch, 1)
    gemm, threads = launch.gemm, launch.threads or THREADS
    columns = 1 << (-(-gemm.n // launch.grid[0]) - 1).bit_length() if gemm and launch.grid else 4
    elements = max(1, min(16, gemm.alignment_bytes("b")) // gemm.b_element_bytes) if gemm else 1
    return _dots(
        launch,
        block_m=1,
        block_n=columns,
        block_k=max(1, threads // columns) * LOADS * int(elements),
        registers_per_thread=X_REGISTERS if threads <= 256 else X_WIDE_REGISTERS,
        smem_bytes=4 * (threads + 4),
    )


def dot(found: dict[str, str], launch: Launch) -> KernelConfig:
    """dot_kernel: each of C's few elements by all CTAs of a row of the grid, whose sums a short kernel of one CTA adds:
    taken to be as short as a memset."""
    _check_rows(launch, 1)
    gemm, slices = launch.gemm, launch.grid[0] if launch.grid else 1
    return _dots(
        launch,
        family="split_k" if slices > 1 else "multistage",
        block_m=1,
        block_n=1,
        block_k=-(-gemm.k // slices) if gemm else THREADS,
        split_k=slices,
        split_in_place=slices > 1,
    )


def large_k(found: dict[str, str], launch: Launch) -> KernelConfig:
    """sgemm_largek_lds64<..., log2 of the tile's n, m and k, ...>, through shared memory. Grid = (tiles along n, tiles
    along m, slices) in 3 of 3 rows; slices add to C in place, behind a memset and a kernel that scales it."""
    m, n, k = (1 << int(found[side]) for side in "mnk")
    return KernelConfig(
        family="split_k" if launch.splits() > 1 else "multistage",
        block_m=m,
        block_n=n,
        block_k=k,
        stages=2,
        warps=(launch.threads or THREADS) // 32,
        raster="n",
        group=PLAIN,
        split_k=launch.splits(),
        split_in_place=launch.splits() > 1,
        loads="ldg",
        loop="cutlass",
        mma="fma",
        registers_per_thread=LARGE_K_REGISTERS,
        name=launch.name,
    )


PARSERS = tuple(
    (re.compile(pattern, re.ASCII), build)
    for pattern, build in (
        (GEMM_SN, small_n),
        (GEMV2T, vector),
        (GEMVX, vector_x),
        (GEMV_NSP, vector_x),
        (DOT, dot),
        (LARGE_K, large_k),
    )
)
