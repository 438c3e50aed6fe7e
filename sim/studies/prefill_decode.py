"""Llama-3-8B's prefill and decode on the roofline: what each does for a byte of HBM, and which roof it meets.

Fully fused, launched as a graph. Intensity is the model's FLOPs for each HBM byte that its kernels moved; the ridge is
where the roofs of tensor cores and HBM meet. "of peak": model FLOPs utilisation, "of HBM": of the pins' bandwidth.
"""

from __future__ import annotations

from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.limiter import limiter_words
from sim.llm import LlmResult
from sim.step import peak_flops_per_s
from sim.studies import runs
from sim.studies.study import Cell, Chart, Finding, Study, Table, first_where, ratio, table

MODEL, CONTEXT = "llama3-8b", 2048
PREFILLS = (128, 512, 2048, 8192)
BATCHES = (1, 8, 32, 128)


def study(gpu: Gpu) -> Study:
    """Raises `ConfigError` where the model does not fit."""
    prefills = {f"prefill of {n:,}": _phase(gpu, "prefill", 1, n) for n in PREFILLS}
    decodes = {f"decode, batch {n}": _phase(gpu, "decode", n, CONTEXT) for n in BATCHES}
    results = {name: result for name, result in {**prefills, **decodes}.items() if result}
    work, points = _tables(results)
    roofs = gpu.hbm.bandwidth_gb_per_s * 1e9, peak_flops_per_s(gpu, next(iter(results.values())).shown.step)
    ridge = roofs[1] / roofs[0]
    intensity = dict(zip(points.column("phase"), points.column("intensity"), strict=True))
    token_s = dict(zip(work.column("phase"), work.column("time a token"), strict=True))
    long, one = f"prefill of {PREFILLS[-2]:,}", f"decode, batch {BATCHES[0]}"
    below = first_where(points, lambda name, x: x < ridge and name in decodes, "phase", "intensity", from_last=True)
    return Study(
        "prefill-decode",
        "How far apart prefill and decode lie on the roofline (Llama-3-8B)",
        gpu.label,
        (work, points),
        (
            Finding("Ridge of the roofline", ridge, "FLOP/B"),
            Finding(f"Intensity of the {long} over {one}", ratio(intensity.get(long), intensity.get(one)), "ratio"),
            Finding(f"Time a token of {one} over the {long}", ratio(token_s.get(one), token_s.get(long)), "ratio"),
            Finding("First phase beyond the ridge", first_where(points, lambda x: x >= ridge, "intensity"), "text"),
            Finding("Last decode below it", below, "text"),
        ),
        Chart(("reached",), 1, roofs),
    )


def _tables(results: dict[str, LlmResult]) -> tuple[Table, Table]:
    work = table(
        f"What there is to do, decode behind {CONTEXT:,} tokens",
        {"phase": "text", "time": "s", "time a token": "s", "model FLOPs": "FLOP", "HBM bytes": "B"},
        [_work(name, result) for name, result in results.items()],
    )
    heads = {"phase": "text", "intensity": "FLOP/B", "reached": "FLOP/s", "of peak": "share", "of HBM": "share"}
    rows = [_point(name, result) for name, result in results.items()]
    return work, table("On the roofline", {**heads, "limited by": "text"}, rows)


def _phase(gpu: Gpu, phase: str, batch: int, tokens: int) -> LlmResult | None:
    """None where it does not fit into memory."""
    try:
        return runs.llm(gpu, MODEL, phase, batch, tokens, fusion="full")
    except ConfigError:
        if (phase, tokens) == ("prefill", PREFILLS[0]):
            raise
        return None


def _work(name: str, result: LlmResult) -> tuple[Cell, ...]:
    flops = result.shown.step.model_flops
    return name, result.time_s, result.time_s / result.tokens, flops, runs.step_hbm_bytes(result.shown)


def _point(name: str, result: LlmResult) -> tuple[Cell, ...]:
    step = result.shown
    flops, limiter = step.step.model_flops, limiter_words(result.by_limiter()[0].name)
    shares = step.model_flops_utilisation, step.bandwidth_utilisation
    return name, flops / runs.step_hbm_bytes(step), flops / step.wall_s, *shares, limiter
