"""Llama-3-8B's prefill and decode on the roofline: what each does for a byte of HBM, and which roof it meets.

Fully fused, launched as a graph. Intensity is the model's FLOPs for each HBM byte that its kernels moved; the ridge is
where the roofs of tensor cores and HBM meet.
"""

from __future__ import annotations

from hwmodels.spec import Gpu
from sim.llm import LlmResult
from sim.step import peak_flops_per_s
from sim.studies import runs
from sim.studies.study import Cell, Chart, Finding, Study, first_where, ratio, table

MODEL, CONTEXT = "llama3-8b", 2048
PREFILLS = (128, 512, 2048, 8192)
BATCHES = (1, 8, 32, 128)


def study(gpu: Gpu) -> Study:
    """Raises `ConfigError` where the model does not fit."""
    prefills = {f"prefill of {n:,}": _phase(gpu, "prefill", 1, n) for n in PREFILLS}
    decodes = {f"decode, batch {n}": _phase(gpu, "decode", n, CONTEXT) for n in BATCHES}
    points = table(
        f"Phases, decode behind {CONTEXT:,} tokens",
        {
            "phase": "text",
            "time": "s",
            "time a token": "s",
            "model FLOPs": "FLOP",
            "HBM bytes": "B",
            "intensity": "FLOP/B",
            "model FLOPs utilisation": "share",
            "HBM bandwidth utilisation": "share",
            "limited by": "text",
        },
        [_row(name, result) for name, result in {**prefills, **decodes}.items()],
    )
    last = next(iter(prefills.values())).shown
    ridge = peak_flops_per_s(gpu, last.step) / (gpu.hbm.bandwidth_gb_per_s * 1e9)
    by_name = dict(zip(points.column("phase"), points.column("intensity"), strict=True))
    tokens = dict(zip(points.column("phase"), points.column("time a token"), strict=True))
    long, one = f"prefill of {PREFILLS[-2]:,}", f"decode, batch {BATCHES[0]}"
    return Study(
        "prefill-decode",
        "How far apart prefill and decode lie on the roofline (Llama-3-8B)",
        gpu.label,
        (points,),
        (
            Finding("Ridge of the roofline", ridge, "FLOP/B"),
            Finding(f"Intensity of the {long} over {one}", ratio(by_name[long], by_name[one]), "ratio"),
            Finding(f"Time a token of {one} over the {long}", ratio(tokens[one], tokens[long]), "ratio"),
            Finding("First phase beyond the ridge", first_where(points, lambda x: x >= ridge, "intensity"), "text"),
            Finding(
                "Largest batch that decodes below it",
                max((n for n in BATCHES if (by_name[f"decode, batch {n}"] or 0) < ridge), default=None),  # type: ignore[operator]
                "count",
            ),
        ),
        Chart(("model FLOPs utilisation", "HBM bandwidth utilisation")),
    )


def _phase(gpu: Gpu, phase: str, batch: int, tokens: int) -> LlmResult:
    return runs.llm(gpu, MODEL, phase, batch, tokens, fusion="full")


def _row(name: str, result: LlmResult) -> tuple[Cell, ...]:
    step, moved = result.shown, runs.step_hbm_bytes(result.shown)
    return (
        name,
        result.time_s,
        result.time_s / result.tokens,
        step.step.model_flops,
        moved,
        step.step.model_flops / moved,
        step.model_flops_utilisation,
        step.bandwidth_utilisation,
        result.by_limiter()[0].name,
    )
