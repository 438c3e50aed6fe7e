"""What adapters cost Llama-3-8B that are not merged into its weights: two thin products and a sum beside every layer.

Every linear layer of attention and feed-forward has one; a merged adapter costs nothing. Fully fused, as a graph:
adapters are kernels of their own all the same. "of 8": each row of the batch has one of eight adapters.
"""

from __future__ import annotations

from typing import Any

from hwmodels.spec import Gpu
from sim.studies import runs
from sim.studies.study import Cell, Chart, Finding, Study, Table, ratio, table

MODEL, CONTEXT = "llama3-8b", 2048
ADAPTERS: dict[str, dict[str, Any]] = {
    "none or merged": {},
    "rank 8": {"lora_rank": 8},
    "rank 16": {"lora_rank": 16},
    "rank 64": {"lora_rank": 64},
    "rank 16, of 8": {"lora_rank": 16, "lora_adapters": 8},
    "rank 16 beside int4 weights": {"lora_rank": 16, "weights": "int4"},
    "int4 weights alone": {"weights": "int4"},
}
PHASES = {"decode, batch 1": ("decode", 1), "decode, batch 32": ("decode", 32), "prefill": ("prefill", 1)}


def study(gpu: Gpu) -> Study:
    """Raises `ConfigError` where the model does not fit."""
    found = _table(gpu)
    names = found.column("adapters")

    def over(phase: str, one: str, other: str) -> float | None:
        times = found.column(phase)
        return ratio(times[names.index(one)], times[names.index(other)])

    return Study(
        "lora",
        f"What unmerged adapters cost (Llama-3-8B, {CONTEXT:,} tokens)",
        gpu.label,
        (found,),
        (
            *(
                Finding(f"Rank 16 over none, {phase}", over(phase, "rank 16", "none or merged"), "ratio")
                for phase in PHASES
            ),
            Finding("More FLOPs with rank 16, prefill", _more(found, "FLOPs"), "share"),
            Finding("More weights with rank 16", _more(found, "weights"), "share"),
            Finding(
                "Eight adapters over one, decode, batch 32",
                over("decode, batch 32", "rank 16, of 8", "rank 16"),
                "ratio",
            ),
        ),
        Chart(tuple(PHASES)),
    )


def _more(found: Table, column: str) -> float:
    base, sixteen = (found.column(column)[i] for i in (0, 2))
    assert isinstance(base, int)
    assert isinstance(sixteen, int)
    return sixteen / base - 1


def _table(gpu: Gpu) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name, how in ADAPTERS.items():
        results = [
            None if batch == 1 and phase == "decode" and "lora_adapters" in how
            else runs.llm(gpu, MODEL, phase, batch, CONTEXT, fusion="full", **how)
            for phase, batch in PHASES.values()
        ]  # fmt: skip
        last = results[-1]
        assert last is not None
        times = [None if each is None else each.time_s for each in results]
        rows.append((name, *times, last.shown.n_kernels, last.shown.step.model_flops, last.memory.largest("weights")))
    heads = {"adapters": "text", **dict.fromkeys(PHASES, "s")}
    rest = {"kernels": "count", "FLOPs": "FLOP", "weights": "B"}
    return table("Time of a step; kernels and FLOPs of the prefill", heads | rest, rows)
