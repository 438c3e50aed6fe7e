"""Decode steps of small kernels: launched one by one by PyTorch, by a lean host, and as one graph; fused or not."""

from __future__ import annotations

from hwmodels.spec import Gpu
from sim.llm import How
from sim.studies import runs
from sim.studies.study import Cell, Chart, Finding, Study, Table, ratio, table

MODELS = {"gpt2": 512, "llama3-8b": 2048}
"""Model -> tokens in its cache."""
LAUNCHES = ("eager", "stream", "graph")


def study(gpu: Gpu) -> Study:
    """Raises `ConfigError` where a model does not fit."""
    tables = tuple(_steps(gpu, name, context) for name, context in MODELS.items())
    return Study(
        "launch-bound",
        "What launching a decode step's kernels costs (batch 1)",
        gpu.label,
        tables,
        tuple(
            Finding(text, ratio(found.column("time")[i], found.column("time")[j]), "ratio")
            for name, found in zip(MODELS, tables, strict=True)
            for text, i, j in (
                (f"{name}: a graph is faster than eager launches, not fused", 0, 2),
                (f"{name}: the same, fully fused", 3, 5),
                (f"{name}: fused in a graph against eager and not fused", 0, 5),
            )
        ),
        Chart(("time", "in kernels")),
    )


def _steps(gpu: Gpu, name: str, context: int) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for fusion in ("none", "full"):
        for launch in LAUNCHES:
            result = runs.llm(gpu, name, "decode", 1, context, How(launch=launch), fusion=fusion)
            step = result.shown
            idle = 1.0 - step.kernels_s / result.time_s
            rows.append((f"{fusion} fused, {launch}", step.n_kernels, result.time_s, step.kernels_s, idle))
    columns = {"program": "text", "kernels": "count", "time": "s", "in kernels": "s", "GPU idle": "share"}
    return table(f"{name} behind {context:,} tokens", columns, rows)
