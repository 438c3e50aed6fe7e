"""A cache of keys and values against computing them again for every token (Llama-3-8B, batch 1).

With a cache a token takes one decode step behind those before it; without, a prefill of all of them. Fully fused,
launched as a graph. Steps between the contexts that are simulated are taken as straight lines.
"""

from __future__ import annotations

import numpy as np

from hwmodels.spec import Gpu
from sim.studies import runs
from sim.studies.study import Cell, Chart, Finding, Study, first_where, ratio, table
from workloads.models.counts import kv_cache_bytes

MODEL = "llama3-8b"
CONTEXTS = (64, 256, 512, 1024, 2048, 4096)
PROMPT, NEW = 64, 1024
"""A generation that is summed up: so many tokens behind so many."""


def study(gpu: Gpu) -> Study:
    """Raises `ConfigError` where the model does not fit."""
    tokens = table(
        "One more token",
        {
            "tokens before": "count",
            "cached": "s",
            "recomputed": "s",
            "times as long": "ratio",
            "FLOPs, cached": "FLOP",
            "FLOPs, recomputed": "FLOP",
            "cache": "B",
        },
        [_row(gpu, n) for n in CONTEXTS],
    )
    totals = {how: _total(tokens.column(how)) for how in ("cached", "recomputed")}
    slower = first_where(tokens, lambda times: times >= 2, "times as long")
    return Study(
        "kv-cache",
        "What a cache of keys and values saves (Llama-3-8B, batch 1)",
        gpu.label,
        (tokens,),
        (
            Finding(f"{NEW:,} tokens behind {PROMPT}, cached", totals["cached"], "s"),
            Finding(f"{NEW:,} tokens behind {PROMPT}, recomputed", totals["recomputed"], "s"),
            Finding("times as long", ratio(totals["recomputed"], totals["cached"]), "ratio"),
            Finding("Tokens before from which a token takes twice as long", slower, "count"),
            Finding("Cache of a token", kv_cache_bytes(runs.model(MODEL), 1, 1, runs.dtype_of(gpu)), "B"),
        ),
        Chart(("cached", "recomputed")),
    )


def _row(gpu: Gpu, n: int) -> tuple[Cell, ...]:
    cached = runs.llm(gpu, MODEL, "decode", 1, n, fusion="full")
    again = runs.llm(gpu, MODEL, "prefill", 1, n + 1, fusion="full")
    flops = [each.shown.step.model_flops for each in (cached, again)]
    return n, cached.time_s, again.time_s, again.time_s / cached.time_s, *flops, cached.memory.largest("kv_cache")


def _total(times: tuple[Cell, ...]) -> float:
    """Seconds of the generation's steps."""
    known = [float(time) for time in times if isinstance(time, float)]
    return float(np.interp(range(PROMPT, PROMPT + NEW), CONTEXTS, known).sum())
