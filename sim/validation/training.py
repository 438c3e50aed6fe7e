"""training_steps.csv: forward, forward and backward, and optimizer of a few layers, eager PyTorch in a stream."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sim.validation.columns import parse_choice, parse_count
from sim.validation.stacks import CHOICE
from sim.validation.timed import TimedTable
from workloads.execution import Execution
from workloads.models.catalog import load_model
from workloads.operations import Step
from workloads.training import Training, backward_step, forward_step, optimizer_step

if TYPE_CHECKING:
    from hwmodels.spec import Gpu

MEASURED = Execution("measured")
PARTS = ("fwd_us", "fwd_bwd_us", "optimizer_us")
CALLS_BEFORE = 5
"""Of each part before the median one of six timed: two to warm up, and three."""


@dataclass(frozen=True)
class TrainingCase:
    """Layers of a model, and a batch for them."""

    model: str
    layers: int
    batch: int
    seq: int
    checkpointing: bool

    def __str__(self) -> str:
        how = "full checkpointing" if self.checkpointing else "all kept"
        return f"{self.model}, {self.layers} layers, {self.batch} x {self.seq}, {how}"


@lru_cache(maxsize=64)
def steps_of(case: TrainingCase) -> dict[str, Step]:
    """The three parts that were timed. Checkpointed layers run forward as others do."""
    model = dataclasses.replace(load_model(case.model).with_layers(case.layers), max_context=2**24)
    how = Training("full" if case.checkpointing else "none", optimizer="adamw", layers_only=True)
    sizes = case.batch, case.seq
    return {
        "fwd_us": forward_step(model, MEASURED, how, *sizes),
        "fwd_bwd_us": backward_step(model, MEASURED, how, *sizes),
        "optimizer_us": optimizer_step(model, MEASURED, how),
    }


def _case(cells: dict[str, Any]) -> TrainingCase:
    case = TrainingCase(cells["model"], cells["layers"], cells["batch"], cells["seq"], cells["checkpointing"] == "True")
    steps_of(case)
    return case


def _predict(case: TrainingCase, gpu: Gpu) -> dict[str, float]:
    return {part: _time_us(step, gpu) for part, step in steps_of(case).items()}


def _time_us(step: Step, gpu: Gpu) -> float:
    """From an event before the first launch to one behind the last, at the clock that the load leaves."""
    from sim.call import Options
    from sim.step import run_step

    result = run_step(step, gpu, launch="eager", tile=CHOICE)
    if CALLS_BEFORE * result.wall_s * 1e3 > gpu.activity.sustain_ms:
        result = run_step(step, gpu, Options(sustained=True), launch="eager", tile=CHOICE)
    spans = [span for span in result.host.spans if span.lane == "stream"]
    return spans[-1].end_s * 1e6


def _groups(case: TrainingCase, column: str) -> tuple[str, ...]:
    part = column.removesuffix("_us")
    bound = "launch-bound (512 tokens)" if case.batch * case.seq <= 512 else "not launch-bound"
    kept = "full checkpointing" if case.checkpointing else "all kept"
    return bound, f"{part}, {bound}", f"{part}, {kept}", f"{part} {case.model}"


def _work(case: TrainingCase, column: str) -> tuple[float, float]:
    step = steps_of(case)[column]
    return float(step.flops), float(sum(operation.work.compulsory_bytes for operation in step.operations))


TABLE = TimedTable(
    kind="training_steps",
    signature=("model", "layers", "batch", "seq", "checkpointing"),
    inputs={
        "model": str,
        "layers": parse_count,
        "batch": parse_count,
        "seq": parse_count,
        "checkpointing": parse_choice(("True", "False")),
    },
    optional={},
    measured=PARTS,
    question=_case,
    predict=_predict,
    groups=_groups,
    work=_work,
    shape=lambda case: f"{case.model} {case.batch} {case.seq}",
)
