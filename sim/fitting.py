"""Whether a phase's memory plan fits HBM, and what would make it fit: exact, from plans alone, nothing is simulated."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.schedule.attention import WIDEST
from workloads.llm import Llm
from workloads.memory import MemoryPlan, Point
from workloads.training import CHECKPOINTING
from workloads.weights import product_weight_bytes

if TYPE_CHECKING:
    from sim.llm import How

UNFUSED = ("math", "unfused")
"""Libraries whose attention keeps its scores."""
N_CURES = 6
"""Changes at most that a refusal names."""
MOST_TOGETHER = 3


class Change(NamedTuple):
    """A change of what is asked that needs less memory, in the words of the command line: fields of the request and of
    how it runs; without either, the name of a size, as much of which is asked for as fits."""

    text: str
    fields: dict[str, Any]
    how: dict[str, Any]


def attention_kind(how: How) -> str:
    """Whether attention keeps its matrices ("unfused") or not ("fused"), in the words of `Llm`."""
    return "unfused" if how.attention in UNFUSED else "fused"


def plan_of(request: Llm, how: How) -> MemoryPlan:
    """The plan, with attention as it is done."""
    return request.memory(attention_kind(how))


def points_in_hbm(request: Llm, memory: MemoryPlan, how: How) -> tuple[Point, ...]:
    """Points of a plan without the weights that lie in host memory, those of products; of these, two pieces at a time
    are in HBM, which are small beside the rest."""
    away = product_weight_bytes(request.model, request.weight_format) if how.stream_weights else 0
    if not away:
        return memory.points
    return tuple(
        Point(point.operation, {**point.parts, "weights": max(0, point.parts.get("weights", 0) - away)})
        for point in memory.points
    )


def peak_bytes(request: Llm, how: How) -> int:
    """Most bytes that are in HBM at a time."""
    return max(point.total for point in points_in_hbm(request, plan_of(request, how), how))


def check_memory(request: Llm, gpu: Gpu, memory: MemoryPlan, how: How, *, cures: bool = True) -> None:
    """Raise ConfigError where HBM does not hold the plan; with `cures`, it says with what it would."""
    capacity = round(gpu.hbm.capacity_gb * 1e9)
    peak = max(points_in_hbm(request, memory, how), key=lambda point: point.total)
    if peak.total <= capacity:
        return
    parts = ", ".join(f"{name} {n_bytes / 1e9:.4g} GB" for name, n_bytes in peak.parts.items() if n_bytes >= 5e6)
    cure = _cure(request, gpu, how, capacity) if cures else ""
    raise ConfigError(
        f"HBM of {gpu.name}: {peak.total / 1e9:.4g} GB needed by {request.model.name} ({parts}), "
        f"at most hbm.capacity_gb = {gpu.hbm.capacity_gb:g}{cure}"
    )


def _cure(request: Llm, gpu: Gpu, how: How, capacity: int) -> str:
    """The end of the refusal: changes with which the phase fits, one alone or, where none does, two or three together;
    where nothing is enough, how many GPUs' memory it takes."""
    changes = [*_smaller(request, gpu, how), *_sizes(request)]
    for n in range(1, MOST_TOGETHER + 1):
        found = [text for some in combinations(changes, n) if (text := _fitting(request, how, some, capacity))]
        if found:
            return f"; fits with {', or '.join(found[:N_CURES])}"
    return _several(request, gpu, how, changes)


def _fitting(request: Llm, how: How, changes: Sequence[Change], capacity: int) -> str:
    """These changes in words, sizes as large as they fit; empty where they do not fit, or cannot be built."""
    sizes = [change for change in changes if not change.fields and not change.how]
    if len(sizes) > 1:
        return ""
    fixed = [change for change in changes if change not in sizes]
    words = [change.text for change in fixed]
    try:
        request, how = _applied(request, how, fixed)
        for size in sizes:
            request = _largest(request, how, size.text, capacity)
            words.append(f"--{size.text} {getattr(request, size.text)}")
        if peak_bytes(request, how) > capacity:
            return ""
        request.step()
    except ConfigError:
        return ""
    return " ".join(words)


def _applied(request: Llm, how: How, changes: Sequence[Change]) -> tuple[Llm, How]:
    """What is asked with all changes. Raises ConfigError where it cannot be built, or two change the same."""
    fields = {name: value for change in changes for name, value in change.fields.items()}
    if len(fields) < sum(len(change.fields) for change in changes):
        raise ConfigError("two changes of the same")
    hows = {name: value for change in changes for name, value in change.how.items()}
    return request.but(**fields), dataclasses.replace(how, **hows)


def _largest(request: Llm, how: How, size: str, capacity: int) -> Llm:
    """The request with the most of `size` ("batch", "context", "tokens") that fits, at least 1; less than it has."""
    least, most = 1, getattr(request, size)
    while most - least > 1:
        middle = (least + most) // 2
        if peak_bytes(request.but(**{size: middle}), how) <= capacity:
            least = middle
        else:
            most = middle
    return request.but(**{size: least})


def _sizes(request: Llm) -> list[Change]:
    """What may be asked for less of, beside the changes of `_smaller`: named, without a value yet."""
    names = ("batch", "context" if request.phase == "decode" else "tokens")
    return [Change(name, {}, {}) for name in names if getattr(request, name) > 1]


def _smaller(request: Llm, gpu: Gpu, how: How) -> list[Change]:
    """Changes that need less memory."""
    execution, found = request.execution, []
    if how.attention in UNFUSED and gpu.tensor.cp_async and request.model.head_dim <= WIDEST:
        found.append(Change("--attention flash", {}, {"attention": "flash"}))
    if execution.dtype == "fp32" and gpu.tensor.bf16_flops_per_clk_per_sm:
        found.append(Change("--dtype bf16", {"dtype": "bf16"}, {}))
    if request.phase == "training":
        training = request.training
        more = CHECKPOINTING[CHECKPOINTING.index(training.checkpointing) + 1 :]
        found += [Change(f"--checkpointing {each}", {"checkpointing": each}, {}) for each in more]
        if training.optimizer != "adamw":
            found.append(Change("--optimizer adamw", {"optimizer": "adamw"}, {}))
        return found
    if execution.kv_dtype is None and not request.model.encoder_only and how.attention not in UNFUSED:
        found.append(Change("--kv-dtype fp8_e4m3", {"kv_dtype": "fp8_e4m3"}, {}))
    found += [
        Change(f"--{name.replace('_', '-')} {value}", {name: value}, {}) for name, value in _precisions(request, gpu)
    ]
    if not how.stream_weights:
        found.append(Change("--stream-weights", {}, {"stream_weights": True}))
    return found


def _precisions(request: Llm, gpu: Gpu) -> list[tuple[str, str]]:
    """Compression that a program can have on this GPU instead of none: (field of its execution, value)."""
    execution = request.execution
    if execution.measured or execution.compressed or execution.dtype == "fp32":
        return []
    fp8 = [("matmul_dtype", "fp8_e4m3")] if gpu.tensor.fp8_flops_per_clk_per_sm else []
    return [("weights", "int8"), ("weights", "int4"), *fp8]


def _several(request: Llm, gpu: Gpu, how: How, changes: Sequence[Change]) -> str:
    """How many GPUs' memory the phase takes as asked, and with the changes that save most."""
    capacity = gpu.hbm.capacity_gb * 1e9
    asked = math.ceil(peak_bytes(request, how) / capacity)
    least, text = asked, ""
    for some in (each for n in (1, 2) for each in combinations([c for c in changes if c.fields or c.how], n)):
        try:
            n_gpus = math.ceil(peak_bytes(*_applied(request, how, some)) / capacity)
        except ConfigError:
            continue
        if n_gpus < least:
            least, text = n_gpus, f", {n_gpus} with {' '.join(change.text for change in some)}"
    return f"; no option makes it fit one GPU: it takes the memory of {asked} of them{text}"
