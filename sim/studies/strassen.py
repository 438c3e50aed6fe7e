"""One level of Strassen's algorithm against the classical product: seven products of half the size and 18 additions.

All additions are kernels over [n/2, n/2] elements; the blocks of operands and result are slices of rows, which kernels
that take whole rows do not mind. Seven products may run one after another or as one batch. What it does to rounding
errors is not looked at.
"""

from __future__ import annotations

from dataclasses import replace

from hwmodels.spec import Gpu
from sim.studies import runs
from sim.studies.study import Cell, Chart, Finding, Study, first_where, ratio, table
from workloads.gemm import Gemm
from workloads.stream import Stream

SIDES = (1024, 2048, 4096, 8192, 16384, 32768)
PRODUCTS, ADDITIONS = 7, 18


def study(gpu: Gpu) -> Study:
    """Raises `ConfigError` where the GPU has no such products."""
    found = table(
        "Classical and Strassen",
        {
            "side": "count",
            "classical": "s",
            "products": "s",
            "additions": "s",
            "Strassen": "s",
            "Strassen, one batch": "s",
            "speed-up": "ratio",
            "FLOPs saved": "share",
        },
        [_row(gpu, side) for side in SIDES],
    )
    gains = [gain for gain in found.column("speed-up") if isinstance(gain, float)]
    return Study(
        "strassen",
        "What one level of Strassen's algorithm saves",
        gpu.label,
        (found,),
        (
            Finding("Most that seven products for eight can save", 1 - PRODUCTS / 8, "share"),
            Finding("Largest speed-up", max(gains), "ratio"),
            Finding("Side from which it is faster", first_where(found, lambda gain: gain > 1, "speed-up"), "count"),
            Finding("Additions over products, largest side",
                    ratio(found.column("additions")[-1], found.column("products")[-1]), "ratio"),
        ),
        Chart(("classical", "Strassen", "products", "additions")),
    )  # fmt: skip


def _row(gpu: Gpu, side: int) -> tuple[Cell, ...]:
    dtype, half = runs.dtype_of(gpu), side // 2
    whole, part, add = (
        Gemm(side, side, side, dtype=dtype),
        Gemm(half, half, half, dtype=dtype),
        Stream("add", half, half, dtype),
    )
    classical = runs.time_s(gpu, whole)
    products, additions = PRODUCTS * runs.time_s(gpu, part), ADDITIONS * runs.time_s(gpu, add)
    batched = runs.time_s(gpu, replace(part, batch=PRODUCTS))
    best = min(products, batched) + additions
    flops = PRODUCTS * part.flops + ADDITIONS * add.flops
    return (
        side,
        classical,
        products,
        additions,
        products + additions,
        batched + additions,
        classical / best,
        1 - flops / whole.flops,
    )
