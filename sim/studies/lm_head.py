"""The head of Llama-3-8B at decode: from bf16 logits to fused statistics, int4 weights and batches.

Compared is all from the last hidden state to the picked token. PyTorch's own int4 kernel (`tinygemm`) is simulated with
the grid that extra_ops.csv shows, and the log-softmax behind it; beside it stands what was measured of the product
alone. An int4 kernel of the menu converts weights in registers and was not measured. An article reports 70 % less time
for int4 weights, fused log-softmax and batching together.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import hwmodels
from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.operation import Kernels
from sim.schedule.names import parse_kernel_name
from sim.step import StepResult
from sim.studies import runs
from sim.studies.study import Cell, Chart, Finding, Study, Table, first_where, saved, table
from workloads.gemm import STATISTIC_BYTES, Gemm
from workloads.operations import Step
from workloads.stream import INDEX_BYTES, Stream

VOCABULARY, WIDTH, GROUP = 128256, 4096, 128
BATCHES = (1, 2, 4, 8, 16, 32, 64)
TINYGEMM = "tinygemm_m16n8k16_chunk_kernel<>"
CLAIM = "about 70 % less, an article"
PLAIN, FUSED, INT4, PYTORCH = "plain", "fused", "int4, fused", "int4 of PyTorch"


# What is run.
def product(batch: int, variant: str, dtype: str) -> Gemm:
    """The head's product."""
    gemm = Gemm(batch, VOCABULARY, WIDTH, dtype=dtype)
    if variant in (INT4, PYTORCH):
        gemm = replace(gemm, weights_format="int4", weight_group=GROUP)
    return replace(gemm, epilogue="row_stats") if variant in (FUSED, INT4) else gemm


def head_step(batch: int, variant: str, dtype: str) -> Step:
    """From hidden states to picked tokens."""
    gemm, picked = product(batch, variant, dtype), ("picked", batch * INDEX_BYTES)
    reads = (("a", "hidden", gemm.a_bytes), ("b", "head", gemm.b_bytes))
    if gemm.epilogue == "row_stats":
        pick = Stream("argmax", batch, gemm.c_bytes // batch // STATISTIC_BYTES, "fp32")
        return runs.program(
            ("head", gemm, reads, ("statistics", gemm.c_bytes)),
            ("pick", pick, (("x", "statistics", gemm.c_bytes),), picked),
        )
    soft = Stream("log_softmax", batch, VOCABULARY, dtype, "fp32")
    pick = Stream("argmax", batch, VOCABULARY, "fp32")
    return runs.program(
        ("head", gemm, reads, ("logits", gemm.c_bytes)),
        ("log_softmax", soft, (("x", "logits", gemm.c_bytes),), ("probabilities", soft.write_bytes)),
        ("pick", pick, (("x", "probabilities", soft.write_bytes),), picked),
    )


def ran(gpu: Gpu, batch: int, variant: str) -> StepResult:
    """The head as it runs, in a graph. Raises `ConfigError` where the GPU has no such kernel."""
    dtype = runs.dtype_of(gpu)
    if variant != PYTORCH:
        return runs.run(gpu, head_step(batch, variant, dtype))
    known, gemm = Kernels(gpu, runs.QUICK), product(batch, variant, dtype)
    grid = f"1x{VOCABULARY // 8}x{-(-batch // 16)}"
    known.choose(gemm, parse_kernel_name(TINYGEMM, gemm, grid, "32x8x1"))
    return runs.run(gpu, head_step(batch, variant, dtype), known=known)


def measured_s(gpu: Gpu, batch: int) -> float | None:
    """What the H200's table says of PyTorch's int4 product; None for other GPUs."""
    path = Path(hwmodels.__file__).parent / "measured" / gpu.name / "extra_ops.csv"
    if not path.is_file():
        return None
    wanted = {"op": "int4_weight_only", "m": batch, "n": VOCABULARY, "k": WIDTH, "arg": GROUP}
    with path.open(encoding="utf-8") as rows:
        for row in csv.DictReader(rows):
            if all(row[name] == str(value) for name, value in wanted.items()):
                return float(row["time_us"]) * 1e-6
    return None


# Tables.
def study(gpu: Gpu) -> Study:
    """Raises `ConfigError` where not even the plain head runs."""
    batches, stages = _batches(gpu), _stages(gpu)
    slower = first_where(batches, lambda plain, packed: packed > plain, PLAIN, PYTORCH)
    together = stages.column("time a token")
    return Study(
        "lm-head",
        f"Where the time of Llama-3-8B's head ({VOCABULARY:,} tokens) goes at decode",
        gpu.label,
        (stages, batches),
        (
            Finding("Time a token saved by the fused log-softmax, batch 1", saved(together[0], together[1]), "share"),
            Finding("by int4 weights, too", saved(together[0], together[2]), "share", CLAIM),
            Finding(f"by batch {BATCHES[-1]}, too", saved(together[0], together[-1]), "share", CLAIM),
            Finding("Smallest batch at which PyTorch's int4 kernel makes the head slower", slower, "count"),
        ),
        Chart((PLAIN, FUSED, INT4, PYTORCH), table=1),
    )


def _stages(gpu: Gpu) -> Table:
    """One change after another."""
    rows: list[tuple[Cell, ...]] = []
    for name, batch, variant in (
        ("logits, log-softmax and pick apart", 1, PLAIN),
        ("+ fused log-softmax", 1, FUSED),
        ("+ int4 weights", 1, INT4),
        *((f"+ batch {batch}", batch, INT4) for batch in (8, BATCHES[-1])),
    ):
        step = _attempted(gpu, batch, variant)
        if step is None:
            rows.append((name, None, None, None, None))
        else:
            rows.append((name, step.n_kernels, step.kernels_s, step.kernels_s / batch, runs.step_hbm_bytes(step)))
    columns = {"stage": "text", "kernels": "count", "time": "s", "time a token": "s", "HBM bytes": "B"}
    return table("Stage by stage", columns, rows)


def _batches(gpu: Gpu) -> Table:
    """Every variant over the batch."""
    names = (PLAIN, FUSED, INT4, PYTORCH, "its product", "measured")
    rows = [_batch(gpu, batch) for batch in BATCHES]
    return table("Over the batch", {"batch": "count", **dict.fromkeys(names, "s")}, rows)


def _batch(gpu: Gpu, batch: int) -> tuple[Cell, ...]:
    found = [_attempted(gpu, batch, variant) for variant in (PLAIN, FUSED, INT4, PYTORCH)]
    own = found[-1].ran[0].time_s if found[-1] else None
    return batch, *(step.kernels_s if step else None for step in found), own, measured_s(gpu, batch)


def _attempted(gpu: Gpu, batch: int, variant: str) -> StepResult | None:
    try:
        return ran(gpu, batch, variant)
    except ConfigError:
        return None
