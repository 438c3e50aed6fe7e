"""What every view reads out of an LlmResult: the phase in words, kernels with their places in time, parts of a step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sim.fitting import points_in_hbm
from sim.llm import LlmResult, limiter_of, operation_name
from sim.result import HostSpan, KernelResult
from sim.step import Ran, StepResult
from viz import levels, palette
from workloads.attention import Attention
from workloads.gemm import Gemm
from workloads.memory import Point
from workloads.operations import Work

NUMBERED = re.compile(r"^(?P<part>expert|shared) ?(?P<number>\d+)[.:]\s*")
"""How names of operations of one expert begin."""
IDLE = "idle between kernels"

GROUPS = {
    "tensor": "tensor cores",
    "cuda_cores": "CUDA cores",
    "softmax": "CUDA cores",
    "conversion": "CUDA cores",
    "hbm": "HBM bandwidth",
    "hbm latency": "HBM latency",
    "l2": "L2",
    "l2 latency": "L2",
    "smem": "shared memory",
    "sm_port": "the SM itself",
    "synchronisation": "the SM itself",
    "issuing loads": "the SM itself",
    "epilogue": "the SM itself",
    "too few CTAs": "too few CTAs, start",
    "launch and start": "too few CTAs, start",
}
"""Limiter of a kernel -> what pictures show it as."""

COLOURS = {
    "tensor cores": palette.LEVELS["tensor"],
    "CUDA cores": palette.YELLOW,
    "HBM bandwidth": palette.LEVELS["hbm"],
    "HBM latency": "#9CC3DE",
    "L2": palette.LEVELS["l2"],
    "shared memory": palette.LEVELS["smem"],
    "the SM itself": palette.LEVELS["sm"],
    "too few CTAs, start": palette.GREY,
    IDLE: palette.IDLE,
}
"""Colour of each of `GROUPS`, and of the time between kernels."""


@dataclass(frozen=True)
class Placed:
    """Kernels of one operation that run as one (a single one, unless weights are streamed), in seconds of the step."""

    ran: Ran
    kernels: tuple[KernelResult, ...]
    start_s: float
    end_s: float

    @property
    def main(self) -> KernelResult:
        """The longest of the kernels."""
        return max(self.kernels, key=lambda kernel: kernel.time_s)


def placed(step: StepResult) -> tuple[Placed, ...]:
    """Every kernel of a step with its place in time, in launch order."""
    spans = iter([span for span in step.host.spans if span.lane == "stream"])
    found = []
    for ran in step.ran:
        left = ran.kernels
        while left:
            span = next(spans)
            whole = span.name != ran.operation.name  # a piece of streamed weights: "down 1/1"
            n = len(left) if whole else 1
            found.append(Placed(ran, left[:n], span.start_s, span.end_s))
            left = left[n:]
    return tuple(found)


def group_of(kernel: KernelResult) -> str:
    """What pictures show as the kernel's limiter."""
    return GROUPS.get(limiter_of(kernel), "the SM itself")


def time_by_group(rans: Sequence[Ran]) -> dict[str, float]:
    """Seconds of kernels by what limits them, in the order of `COLOURS`."""
    sums = dict.fromkeys(COLOURS, 0.0)
    for ran in rans:
        for kernel in ran.kernels:
            sums[group_of(kernel)] += kernel.time_s
    return {name: time_s for name, time_s in sums.items() if time_s}


def last_layer(step: StepResult) -> int:
    """The highest number of a layer; what follows the last layer of several has the number after it. Goes through the
    whole step: ask once, not for every operation."""
    return max((ran.operation.layer for ran in step.ran), default=-1)


def by_name(step: StepResult) -> dict[str, list[Ran]]:
    """Operations of a step by name, longest together first."""
    found: dict[str, list[Ran]] = {}
    for ran in step.ran:
        found.setdefault(operation_name(ran), []).append(ran)
    return dict(sorted(found.items(), key=lambda item: -sum(ran.time_s for ran in item[1])))


def hbm_bytes(kernels: Sequence[KernelResult]) -> int:
    """Bytes to and from HBM."""
    return sum(sum(kernel.bytes["hbm"].values()) for kernel in kernels)


def idle_s(step: StepResult) -> float:
    """Seconds between the first kernel's start and the last one's end in which none ran."""
    return max(0.0, step.wall_s - step.kernels_s)


def idle_cause(step: StepResult) -> str:
    """What most of the time between kernels goes to: "pcie", weights on their way from host memory; "launches", the
    host's; "gaps", what lies between any two kernels, in a graph too."""
    stream = [span for span in step.host.spans if span.lane == "stream"]
    copies = [span for span in step.host.spans if span.lane == "copy h2d"]
    copied_s = sum(
        max(0.0, min(after.start_s, copy.end_s) - max(before.end_s, copy.start_s))
        for before, after, copy in _overlapping(stream, copies)
    )
    if copied_s > idle_s(step) / 2:
        return "pcie"
    gaps_s = (len(stream) - 1) * step.gpu.launch.graph_us * 1e-6
    return "gaps" if step.launch == "graph" or gaps_s > (idle_s(step) - copied_s) / 2 else "launches"


def _overlapping(
    stream: Sequence[HostSpan], copies: Sequence[HostSpan]
) -> Iterator[tuple[HostSpan, HostSpan, HostSpan]]:
    """(kernel, next kernel, copy) of copies that may lie between the two; each lane in order of time."""
    first = 0
    for before, after in pairwise(stream):
        while first < len(copies) and copies[first].end_s <= before.end_s:
            first += 1
        for copy in copies[first:]:
            if copy.start_s >= after.start_s:
                break
            yield before, after, copy


IDLE_CAUSES = {"pcie": "weights over PCIe", "launches": "the host's launches", "gaps": "gap before each kernel"}
"""Causes of idle time in words."""


# Words.
def phase_text(result: LlmResult) -> str:
    """What was asked, as a phrase."""
    request = result.request
    sequences = f"{request.batch:,} sequence{'s' if request.batch > 1 else ''}"
    if request.phase == "decode":
        return f"one decode step of {sequences} behind {request.context:,} tokens"
    if request.phase == "generate":
        return f"{request.new_tokens:,} tokens generated behind {request.tokens:,}, {sequences}"
    if request.phase == "training":
        passes = f"{request.passes:,} passes of " if request.passes > 1 else ""
        return f"training step of {passes}{request.batch:,} × {request.tokens:,} tokens"
    return f"prefill of {request.batch:,} × {request.tokens:,} tokens"


def shown_text(result: LlmResult) -> str:
    """Which step a breakdown is of."""
    if result.request.phase != "generate":
        return {"training": "the step", "decode": "the step"}.get(result.request.phase, "the prefill")
    if len(result.steps) == 1:
        return "the prefill"
    return f"a decode step behind {result.contexts[result.steps.index(result.shown) - 1]:,} tokens"


def program_text(result: LlmResult) -> str:
    """How the program runs, as a phrase."""
    execution, how = result.request.execution, result.how
    fused = {"none": "nothing fused", "epilogue": "epilogues fused", "full": "fully fused"}[execution.fusion]
    parts = [f"{execution.program} program", *([] if execution.measured else [fused])]
    parts.append(LAUNCHED[how.launch])
    if execution.kv_dtype:
        parts.append(f"cache in {execution.kv_dtype}")
    if execution.page:
        parts.append(f"pages of {execution.page:,} tokens")
    parts += ["weights streamed from host memory"] if how.stream_weights else []
    parts += ["every kernel cold"] if how.cold else []
    if result.request.phase == "training":
        training = result.request.training
        parts += [training.optimizer, f"checkpointing {training.checkpointing}"]
    return ", ".join(parts)


LAUNCHED = {"graph": "launched as a graph", "stream": "launched one by one", "eager": "launched at PyTorch's own pace"}
"""How kernels are launched, in words."""


def shape_text(work: Work) -> str:
    """Sizes of an operation: m x n x k; of attention batch, heads and tokens; rows x width."""
    if isinstance(work, Gemm):
        batch = f"{work.batch:,} × " if work.batch > 1 else ""
        return f"{batch}{work.m:,} × {work.n:,} × {work.k:,}"
    if isinstance(work, Attention):
        heads = f"{work.heads}" if work.heads == work.kv_heads else f"{work.heads}/{work.kv_heads}"
        return f"{work.batch} × {heads} heads of {work.head_dim}, {work.q_len:,} → {work.kv_len:,}"
    return f"{work.rows:,} × {work.width:,}"


def kind_of(work: Work) -> str:
    """ "gemm", "attention" or "stream"."""
    return type(work).__name__.lower()


def tile_text(kernel: KernelResult) -> str:
    """Tile of a CTA, where the kernel has one."""
    return levels.tile_text(kernel.config) if kernel.config.get("block_m") else ""


def n_ctas(kernel: KernelResult, n_sms: int) -> int | None:
    """CTAs launched; None where a kernel was taken as whole."""
    known = kernel.config.get("n_ctas")
    if known is not None:
        return int(known)
    per_sm = kernel.occupancy.get("ctas_per_sm")
    return round(kernel.waves * per_sm * n_sms) if per_sm else None


def capacity_bytes(step: StepResult) -> float:
    """Of HBM."""
    return step.gpu.hbm.capacity_gb * 1e9


def memory(result: LlmResult) -> tuple[Point, ...]:
    """What HBM holds at every point of the plan."""
    return points_in_hbm(result.request, result.memory, result.how)


def memory_peak(result: LlmResult) -> Point:
    """The first point at which HBM holds most."""
    return max(memory(result), key=lambda point: point.total)


PARTS = {
    "weights": "weights",
    "kv_cache": "KV cache",
    "activations": "activations",
    "logits": "logits",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "recomputed": "recomputed",
    "transient": "transient",
    "workspace": "workspace",
}
"""Parts of a memory plan in words."""
