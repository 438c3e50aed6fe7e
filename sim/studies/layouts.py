"""Operands stored along rows or columns, and what copies into another layout or type cost beside the product.

Layouts are named as BLAS names them ("tn": A [m, k] and B [n, k] along k, a linear layer's); "odd rows" is "tn" with
rows of A one element apart from where they are aligned, as a slice may have them. A copy is what `.contiguous()` does
to a transposed operand, element by element; a conversion reads fp32.
"""

from __future__ import annotations

from hwmodels.spec import Gpu
from sim.studies import runs
from sim.studies.study import Cell, Chart, Finding, Study, counted, ratio, table
from workloads.gemm import LAYOUTS, Gemm
from workloads.stream import Stream

WIDTH = 4096
ROWS = (1, 64, 512, 4096)


def study(gpu: Gpu) -> Study:
    """Raises `ConfigError` where the GPU has no such products."""
    dtype = runs.dtype_of(gpu)
    names = (*LAYOUTS, "slowest layout", "odd rows", "copy of A", "copy of B", "conversion of A")
    title = f"A product of [rows, {WIDTH:,}] and [{WIDTH:,}, {WIDTH:,}]"
    found = table(title, {"rows": "count", **dict.fromkeys(names, "s")}, [_row(gpu, rows, dtype) for rows in ROWS])

    def over_tn(name: str, i_row: int) -> float | None:
        return ratio(found.column(name)[i_row], found.column("tn")[i_row])

    return Study(
        "layouts",
        "What layouts, copies and conversions cost beside a product",
        gpu.label,
        (found,),
        tuple(
            Finding(f"{name[0].upper()}{name[1:]} over tn, {counted(ROWS[i], 'row')}", over_tn(name, i), "ratio")
            for name, i in (
                ("slowest layout", 0),
                ("slowest layout", -1),
                ("odd rows", 0),
                ("odd rows", -1),
                ("copy of B", 0),
                ("copy of A", -1),
                ("conversion of A", -1),
            )
        ),
        Chart(("tn", "odd rows", "copy of A", "copy of B", "conversion of A")),
    )


def _row(gpu: Gpu, rows: int, dtype: str) -> tuple[Cell, ...]:
    times = [runs.time_s(gpu, Gemm(rows, WIDTH, WIDTH, dtype=dtype, layout=layout)) for layout in LAYOUTS]
    streams = (
        Stream("transpose", rows, WIDTH, dtype),
        Stream("transpose", WIDTH, WIDTH, dtype),
        Stream("cast", rows, WIDTH, "fp32", out_dtype=dtype),
    )
    odd = runs.time_s(gpu, Gemm(rows, WIDTH, WIDTH, dtype=dtype, lda=WIDTH + 1))
    return rows, *times, max(times), odd, *(runs.time_s(gpu, stream) for stream in streams)
