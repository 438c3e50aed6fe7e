"""What would make a language model's step faster: changes of its program, each simulated as a whole step.

The best of each kind is told, so that two variants of one idea do not hide a third. Changes that leave every number as
it was stand apart from those that a model's answers feel. Not tried: attention that keeps its scores, which is slower
wherever a fused kernel takes the shape and takes long to simulate; low-rank factors and pruning, which need a model
made for them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from hwmodels.catalog import load_gpu
from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from workloads.execution import FUSIONS
from workloads.llm import Llm
from workloads.training import CHECKPOINTING

if TYPE_CHECKING:
    from sim.llm import How, LlmResult

N_ADVICE, N_LOSSY = 3, 2
"""Changes at most that are told: of those that leave the numbers alone, and of those that do not."""
HELPS_FROM = 1.01
SIMPLER_TO = 1.02
"""Of two changes of a kind, the one that stands first is told unless the other is so much faster than it."""
BACKENDS = {
    "flash": "attention from FlashAttention-2",
    "cudnn": "attention from cuDNN",
    "flash3": "attention from FlashAttention-3",
}
"""Libraries of fused attention; measured ones first."""
MEASURED, MEASURED_ON = ("flash", "cudnn"), "h200_sxm"
FUSED = {"epilogue": "fuse epilogues", "full": "fuse kernels fully"}
KEPT = {"none": "keep all activations", "selective": "compute attention's activations again"}
PRECISIONS = {
    "dense": ("leave weights uncompressed", {}),
    "int8": ("store weights in int8", {"weights": "int8"}),
    "int4": ("store weights in int4", {"weights": "int4"}),
    "fp8_e4m3": ("multiply in fp8_e4m3", {"matmul_dtype": "fp8_e4m3"}),
    "int8 products": ("multiply in int8", {"matmul_dtype": "int8"}),
    "2:4": ("multiply 2:4 sparse, by weights pruned for it", {"weights": "2:4"}),
}
"""Ways to store and multiply weights: what they are called, and what they change of dense ones."""
DENSE = {"weights": "dense", "weight_group": None, "matmul_dtype": None}
UNCOMPRESSED = {**DENSE, "compress_head": False}
HALVES = ("bf16", "fp16")

Simulate = Callable[[Llm, "How"], "LlmResult"]
"""Raises ConfigError for what cannot be."""
Told = dict[str, Any]
Progress = Callable[[str, int, int], None]


class Change(NamedTuple):
    """One change of kind `kind`: fields of the request and of how it runs. `lossless`: numbers stay as they are."""

    kind: str
    text: str
    fields: dict[str, Any]
    how: dict[str, Any]
    lossless: bool = True


def advice(result: LlmResult, gpu: Gpu, simulate: Simulate, tell: Progress) -> tuple[Told, ...]:
    """The changes that save most time a token: {"change": text, "time_s": s, "speedup": of time a token, "lossless":
    whether numbers stay as they are}; lossless ones first, of each the best first.

    A cache of one byte is also tried with the attention that helps most, and told where it adds to that.
    """
    changes = list(_changes(result, gpu))
    n_all = len(changes) + 1
    found: dict[str, Told] = {}
    best: dict[str, Change] = {}
    for i, change in enumerate(changes):
        tell("simulating what would help", i, n_all)
        _try(result, change, simulate, found, best)
    attention, cache = best.get("attention"), [change for change in changes if change.kind == "cache"]
    if attention and cache:
        tell("simulating what would help", n_all - 1, n_all)
        text = f"{BACKENDS[attention.how['attention']]}, and the cache in fp8 (not measured)"
        least = HELPS_FROM * float(found["attention"]["speedup"])
        _try(result, cache[0]._replace(text=text, how=attention.how), simulate, found, best, least)
    told = sorted(found.values(), key=lambda each: -float(each["speedup"]))
    apart = ([each for each in told if each["lossless"] is flag] for flag in (True, False))
    return tuple(each for some, n in zip(apart, (N_ADVICE, N_LOSSY), strict=True) for each in some[:n])


def _try(
    result: LlmResult,
    change: Change,
    simulate: Simulate,
    found: dict[str, Told],
    best: dict[str, Change],
    least: float = HELPS_FROM,
) -> None:
    """Simulate one change, and keep it if it helps, by `least` times, and is the best of its kind."""
    try:
        other = simulate(result.request.but(**change.fields), dataclasses.replace(result.how, **change.how))
    except ConfigError:
        return
    speedup = other.tokens_per_s / result.tokens_per_s
    least = max(least, SIMPLER_TO * float(found[change.kind]["speedup"]) if change.kind in found else 0.0)
    if speedup >= least:
        best[change.kind] = change
        found[change.kind] = {
            "change": change.text,
            "time_s": other.time_s,
            "speedup": speedup,
            "lossless": change.lossless,
        }


# What is tried. Of a kind, what is simpler to do comes first.
def _changes(result: LlmResult, gpu: Gpu) -> Iterator[Change]:
    request, how = result.request, result.how
    if how.launch != "graph":
        yield Change("launch", "launch as a graph", {}, {"launch": "graph"})
    levels = FUSIONS[FUSIONS.index(request.execution.fusion) + 1 :]
    yield from (Change("fusion", FUSED[each], {"program": "eager", "fusion": each}, {}) for each in levels)
    if how.stream_weights:
        yield Change("weights", "keep all weights in HBM", {}, {"stream_weights": False})
    yield from _attention(result, gpu)
    yield Change("batch", "twice the batch", {"batch": 2 * request.batch}, {})
    yield from _training(request) if request.phase == "training" else _inference(request, gpu)


def _attention(result: LlmResult, gpu: Gpu) -> Iterator[Change]:
    if result.request.phase == "training" and result.how.attention == "flash":
        return  # the only one with a backward of its own
    measured = MEASURED if _is_measured(result, gpu) else ()
    for backend, text in BACKENDS.items():
        if backend != result.how.attention:
            told = f"measured on {gpu.name}" if backend in measured else "not measured"
            yield Change("attention", f"{text} ({told})", {}, {"attention": backend})


def _is_measured(result: LlmResult, gpu: Gpu) -> bool:
    """Whether attention was measured on this GPU, as it is shipped, with a cache of the type of activations."""
    execution = result.request.execution
    if execution.cache_dtype != execution.dtype or gpu.name != MEASURED_ON:
        return False
    return gpu.model_dump() == load_gpu(MEASURED_ON).model_dump()


def _training(request: Llm) -> Iterator[Change]:
    training = request.training
    kept = CHECKPOINTING[: CHECKPOINTING.index(training.checkpointing)]
    yield from (Change("activations", KEPT[each], {"checkpointing": each}, {}) for each in kept)
    more = {"batch": 2 * request.batch}
    for each in CHECKPOINTING[CHECKPOINTING.index(training.checkpointing) + 1 :]:
        yield Change("batch", f"twice the batch, by checkpointing {each}", {**more, "checkpointing": each}, {})
    if training.optimizer != "adamw":
        yield Change("optimizer", "adamw without fp32 weights", {"optimizer": "adamw"}, {}, lossless=False)


def _inference(request: Llm, gpu: Gpu) -> Iterator[Change]:
    execution = request.execution
    if execution.kv_dtype is None and not request.model.encoder_only:
        yield Change("cache", "keep the cache in fp8", {"kv_dtype": "fp8_e4m3"}, {}, lossless=False)
    for text, fields in precisions(request, gpu):
        kind = "precision" if fields != UNCOMPRESSED else "uncompressed"
        yield Change(kind, text, fields, {}, lossless=kind == "uncompressed")


def precisions(request: Llm, gpu: Gpu) -> Iterable[tuple[str, dict[str, Any]]]:
    """Ways to store and multiply weights that a program can have on this GPU instead of its own: text, fields."""
    execution = request.execution
    if execution.measured or execution.dtype not in HALVES or execution.lora_rank or execution.low_rank:
        return
    lacks = {
        "fp8_e4m3": not gpu.tensor.fp8_flops_per_clk_per_sm,
        "int8 products": not gpu.tensor.int8_flops_per_clk_per_sm,
        "2:4": not gpu.tensor.sparse_24,
    }
    present = {name: getattr(execution, name) for name in ("weights", "matmul_dtype")}
    for name, (text, own) in PRECISIONS.items():
        fields = {**DENSE, **own, "compress_head": execution.compress_head and bool(own)}
        if not lacks.get(name) and {key: fields[key] for key in present} != present:
            yield text, fields
