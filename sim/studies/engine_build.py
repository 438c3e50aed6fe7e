"""Llama-3-8B from eager PyTorch to a tuned inference engine, one change after another, at decode and at prefill.

Each step keeps those before it. "tuned tiles": of every product, the fastest of a menu of kernels instead of what a
library is likely to launch. int4 weights are last, instead of fp8, and at decode alone (at prefill they save nothing);
their kernel is the menu's and not measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.llm import How, LlmResult
from sim.studies import runs
from sim.studies.study import Cell, Chart, Finding, Study, Table, largest, last, ratio, row_of, table

MODEL, TOKENS = "llama3-8b", 2048
CLAIM = "several times, makers of engines"


@dataclass(frozen=True)
class Build:
    """A program and how it runs."""

    name: str
    how: How = field(default_factory=lambda: How(launch="eager"))
    execution: dict[str, Any] = field(default_factory=dict)


def builds(phase: str) -> tuple[Build, ...]:
    """From eager PyTorch on, each with all before it."""
    eager, graph = How(launch="eager"), How(launch="graph")
    fp8, int4 = {"matmul_dtype": "fp8_e4m3"}, {"weights": "int4", "compress_head": True}
    rungs = [
        Build("eager PyTorch", eager, {}),
        Build("+ fused epilogues", eager, {"fusion": "epilogue"}),
        Build("+ everything fused", eager, {"fusion": "full"}),
        Build("+ graph", graph, {"fusion": "full"}),
        Build("+ fp8", graph, {"fusion": "full", **fp8}),
        Build("+ tuned tiles", replace(graph, tile="bound"), {"fusion": "full", **fp8}),
    ]
    if phase == "decode":
        rungs.append(Build("int4 weights instead", replace(graph, tile="bound"), {"fusion": "full", **int4}))
    return tuple(rungs)


def study(gpu: Gpu) -> Study:
    """Raises `ConfigError` where the model does not fit."""
    tables = {phase: _table(gpu, phase) for phase in ("decode", "prefill")}
    totals = {phase: found.column("speed-up so far") for phase, found in tables.items()}
    return Study(
        "engine-build",
        f"What makes an engine fast (Llama-3-8B, batch 1, {TOKENS:,} tokens)",
        gpu.label,
        tuple(tables.values()),
        (
            *(Finding(f"All together at {phase}", last(totals[phase]), "ratio", CLAIM) for phase in tables),
            *(
                Finding(
                    f"Step that gains most at {phase}",
                    row_of(found, "speed-up", largest(found.column("speed-up"))),
                    "text",
                )
                for phase, found in tables.items()
            ),
        ),
        Chart(("time", "in kernels")),
    )


def _run(gpu: Gpu, phase: str, build: Build) -> LlmResult | None:
    try:
        return runs.llm(gpu, MODEL, phase, 1, TOKENS, build.how, **build.execution)
    except ConfigError:
        if not build.execution:
            raise
        return None


def _table(gpu: Gpu, phase: str) -> Table:
    rows: list[tuple[Cell, ...]] = []
    before: float | None = None
    for build in builds(phase):
        result = _run(gpu, phase, build)
        if result is None:
            rows.append((build.name, None, None, None, None, None))
            continue
        first = rows[0][1] if rows else result.time_s
        step = result.shown
        gains = ratio(before or result.time_s, result.time_s), ratio(first, result.time_s)
        rows.append((build.name, result.time_s, step.kernels_s, step.n_kernels, *gains))
        before = result.time_s
    columns = {"build": "text", "time": "s", "in kernels": "s", "kernels": "count"}
    return table(phase.capitalize(), {**columns, "speed-up": "ratio", "speed-up so far": "ratio"}, rows)
