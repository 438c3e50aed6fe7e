"""2:4 sparse weights against dense ones over the rows of a product, and where unstructured sparsity breaks even.

The product is Llama-3-8B's gate. 2:4 halves the values and adds two bits for each that is kept; tensor cores take the
same time for twice as much along k. Unstructured weights (CSR) are multiplied on CUDA cores: a closed form, a lower
bound of its time (`sim.sparse`), so that the true break-even lies at or below the density here.
"""

from __future__ import annotations

from hwmodels.spec import Gpu
from sim.sparse import break_even, sparse_time_s
from sim.studies import runs
from sim.studies.study import Cell, Chart, Finding, Study, Table, attempt, counted, ratio, table
from workloads.compress import unstructured
from workloads.gemm import Gemm

N, K = 14336, 4096
ROWS = (1, 16, 64, 256, 1024, 4096, 8192)
FEW_ROWS = (1, 4, 16, 64)
DENSITIES = (0.5, 0.25, 0.1, 0.05, 0.01)


def product(rows: int, dtype: str, form: str = "dense") -> Gemm:
    """The gate's."""
    return Gemm(rows, N, K, dtype=dtype, weights_format=form)


def study(gpu: Gpu) -> Study:
    """Raises `ConfigError` where the GPU has not even the dense product."""
    two_of_four, unordered = _two_of_four(gpu), _unstructured(gpu)
    gains = [gain for gain in two_of_four.column("speed-up") if isinstance(gain, float)]
    dense, sparse = (product(1, runs.dtype_of(gpu), form) for form in ("dense", "2:4"))
    breaks = unordered.column("break-even density")
    return Study(
        "sparsity",
        f"What zeros among weights save ({N:,} outputs of {K:,} inputs)",
        gpu.label,
        (two_of_four, unordered),
        (
            Finding("Bytes of weights, dense over 2:4", dense.b_bytes / sparse.b_bytes, "ratio"),
            Finding("Largest speed-up of 2:4", max(gains, default=None), "ratio", "up to 2, the GPU's maker"),
            Finding("Least speed-up of 2:4", min(gains, default=None), "ratio"),
            *(
                Finding(f"Density at which unstructured weights break even, {counted(rows, 'row')}", density, "share")
                for rows, density in zip(FEW_ROWS, breaks, strict=True)
            ),
        ),
        Chart(("dense", "2:4")),
    )


def _two_of_four(gpu: Gpu) -> Table:
    dtype, rows = runs.dtype_of(gpu), list[tuple[Cell, ...]]()
    for m in ROWS:
        dense = runs.time_s(gpu, product(m, dtype))
        sparse = attempt(lambda m=m: runs.time_s(gpu, product(m, dtype, "2:4")))  # type: ignore[misc]
        rows.append((m, dense, sparse, ratio(dense, sparse)))
    return table("2:4 against dense", {"rows": "count", "dense": "s", "2:4": "s", "speed-up": "ratio"}, rows)


def _unstructured(gpu: Gpu) -> Table:
    dtype, rows = runs.dtype_of(gpu), list[tuple[Cell, ...]]()
    for m in FEW_ROWS:
        gemm = product(m, dtype)
        dense = runs.time_s(gpu, gemm)
        times = [sparse_time_s(unstructured(gemm, density), gpu) for density in DENSITIES]
        rows.append((m, dense, *times, break_even(gemm, gpu, dense)))
    heads = {"rows": "count", "dense": "s", **{f"density {density:g}": "s" for density in DENSITIES}}
    return table("Unstructured", {**heads, "break-even density": "share"}, rows)
