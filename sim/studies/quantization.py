"""Llama-3-8B decode from bf16 down to int4: time a token, memory, at several batch sizes.

Fully fused, as a graph, the head left as it is. "fp8", "int8": weights and activations; "weights of int8", "of int4":
weights alone, converted in registers by kernels of the menu, which are not measured (PyTorch's int4 kernel is far
slower from a batch of 8: study lm-head).
"""

from __future__ import annotations

from typing import Any

from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.llm import LlmResult
from sim.studies import runs
from sim.studies.study import Cell, Chart, Finding, Study, Table, largest, ratio, row_of, table

MODEL, CONTEXT = "llama3-8b", 2048
BATCHES = (1, 16, 128)
LADDER: dict[str, dict[str, Any]] = {
    "as it is": {},
    "fp8": {"matmul_dtype": "fp8_e4m3"},
    "fp8, cache too": {"matmul_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3"},
    "int8": {"matmul_dtype": "int8"},
    "weights of int8": {"weights": "int8"},
    "weights of int4": {"weights": "int4"},
    "weights of int4, head too": {"weights": "int4", "compress_head": True},
}
"""Rung -> what changes in the program."""


def study(gpu: Gpu) -> Study:
    """Raises `ConfigError` where the model does not fit as it is."""
    results = {name: [_run(gpu, batch, how, name) for batch in BATCHES] for name, how in LADDER.items()}
    times, memory = _times(results), _memory(results)
    gains = {batch: times.column(f"speed-up, batch {batch}") for batch in BATCHES}
    return Study(
        "quantization",
        f"What fewer bits save at decode (Llama-3-8B behind {CONTEXT:,} tokens)",
        gpu.label,
        (times, memory),
        (
            *(Finding(f"Fastest at batch {batch}", _fastest(times, batch), "text") for batch in BATCHES),
            *(Finding(f"Largest speed-up at batch {batch}", largest(gains[batch]), "ratio") for batch in BATCHES),
            Finding("Bytes of weights, int4 over as it is", _bytes_ratio(memory), "share"),
        ),
        Chart(tuple(f"batch {batch}" for batch in BATCHES)),
    )


def _run(gpu: Gpu, batch: int, how: dict[str, Any], name: str) -> LlmResult | None:
    try:
        return runs.llm(gpu, MODEL, "decode", batch, CONTEXT, fusion="full", **how)
    except ConfigError:
        if not how and batch == BATCHES[0]:
            raise
        return None


def _times(results: dict[str, list[LlmResult | None]]) -> Table:
    first = next(iter(results.values()))
    rows: list[tuple[Cell, ...]] = []
    for name, each in results.items():
        times = [result.time_s if result else None for result in each]
        gains = [ratio(base.time_s if base else None, time) for base, time in zip(first, times, strict=True)]
        rows.append((name, *times, *gains))
    heads = {f"batch {batch}": "s" for batch in BATCHES} | {f"speed-up, batch {batch}": "ratio" for batch in BATCHES}
    return table("Time of a step, and so of a token", {"precision": "text", **heads}, rows)


def _memory(results: dict[str, list[LlmResult | None]]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name, each in results.items():
        one, peaks = each[0], [result.memory.peak_bytes if result else None for result in each]
        rows.append((name, one.memory.largest("weights") if one else None, *peaks))
    heads = {f"peak, batch {batch}": "B" for batch in BATCHES}
    return table("Memory", {"precision": "text", "weights": "B", **heads}, rows)


def _fastest(times: Table, batch: int) -> Cell:
    gains = f"speed-up, batch {batch}"
    return row_of(times, gains, largest(times.column(gains)))


def _bytes_ratio(memory: Table) -> float | None:
    by_name = dict(zip(memory.column("precision"), memory.column("weights"), strict=True))
    return ratio(by_name["weights of int4"], by_name["as it is"])
