"""32 projections of one row each, one by one, against one product of all.

"one weight": 32 rows (tokens of 32 sequences) through the same weight; "32 weights": each row through its own, as
experts or heads have them, against one batched product. Launched as PyTorch does ("eager") and as a graph; times are
the host's, from the first launch until it has seen the end.
"""

from __future__ import annotations

from hwmodels.spec import Gpu
from sim.studies import runs
from sim.studies.study import Cell, Chart, Finding, Study, ratio, table
from workloads.gemm import Gemm
from workloads.operations import Step

ROWS = 32
SHAPES = {"one weight": (4096, 4096), "32 weights": (1024, 1024)}
"""Case -> (n, k) of each projection."""


def apart(case: str, dtype: str) -> Step:
    """One product after another."""
    n, k = SHAPES[case]
    one = Gemm(1, n, k, dtype=dtype)
    shared = case == "one weight"
    return runs.program(
        *(
            (
                f"projection {i}",
                one,
                (("a", f"row {i}", one.a_bytes), ("b", "weight" if shared else f"weight {i}", one.b_bytes)),
                (f"result {i}", one.c_bytes),
            )
            for i in range(ROWS)
        )
    )


def together(case: str, dtype: str) -> Step:
    """All in one."""
    n, k = SHAPES[case]
    shared = case == "one weight"
    all_rows = Gemm(ROWS, n, k, dtype=dtype) if shared else Gemm(1, n, k, batch=ROWS, dtype=dtype)
    reads = (("a", "rows", all_rows.a_bytes), ("b", "weight", all_rows.b_bytes))
    return runs.program(("projections", all_rows, reads, ("results", all_rows.c_bytes)))


def study(gpu: Gpu) -> Study:
    """Raises `ConfigError` where the GPU has no such products."""
    dtype, rows = runs.dtype_of(gpu), list[tuple[Cell, ...]]()
    for case in SHAPES:
        for name, step, launch in (
            ("one by one, eager", apart(case, dtype), "eager"),
            ("one by one, graph", apart(case, dtype), "graph"),
            ("one product, eager", together(case, dtype), "eager"),
            ("one product, graph", together(case, dtype), "graph"),
        ):
            ran = runs.run(gpu, step, launch)
            rows.append(
                (f"{case}: {name}", ran.n_kernels, ran.host.end_to_end_s, ran.kernels_s, runs.step_hbm_bytes(ran))
            )
    columns = {"how": "text", "kernels": "count", "time": "s", "in kernels": "s", "HBM bytes": "B"}
    found = table(f"{ROWS} projections", columns, rows)
    times = dict(zip(found.column("how"), found.column("time"), strict=True))
    return Study(
        "batched-projections",
        f"What {ROWS} small products cost that could be one",
        gpu.label,
        (found,),
        tuple(
            Finding(
                f"{case}: one product is faster, {launch}",
                ratio(times[f"{case}: one by one, {launch}"], times[f"{case}: one product, {launch}"]),
                "ratio",
            )
            for case in SHAPES
            for launch in ("eager", "graph")
        ),
        Chart(("time", "in kernels")),
    )
