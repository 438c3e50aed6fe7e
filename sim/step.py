"""A step of a model on one GPU: its operations' kernels in order, with what each leaves in L2 for the next, played by
the host, at the clock that the board's power leaves.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from hwmodels.spec import Gpu
from sim.call import Options, check_options
from sim.host import HostOutcome, play
from sim.operation import Kernels, kernels_on
from sim.power import limit_w
from sim.program import Launch, Part, Program
from sim.program import Tensor as HostTensor
from sim.residency import L2Contents
from sim.result import KernelResult
from sim.stream import Issued, play_kernels
from workloads.gemm import Gemm
from workloads.operations import Operation, Step

LOWER_SHARE = 0.75
"""Of the clock of a kernel without tensor work, at which kernels are simulated a second time: power between that and
the burst's is interpolated."""
SEARCH_STEPS = 40
CAP_STEP_MHZ = 15.0
"""Steps of the board's clock."""


@dataclass(frozen=True)
class Ran:
    """One operation with its kernels in launch order and the parts of its operands that were in L2 (by role)."""

    operation: Operation
    kernels: tuple[KernelResult, ...]
    resident: Mapping[str, float]

    @property
    def time_s(self) -> float:
        """Seconds of its kernels, without gaps."""
        return sum(kernel.time_s for kernel in self.kernels)

    @property
    def energy_j(self) -> float:
        """Joules of its kernels, the board's idle power over their time included."""
        return sum(sum(kernel.energy_j.values()) for kernel in self.kernels)


@dataclass(frozen=True)
class StepResult:
    """A step as it ran."""

    step: Step
    gpu: Gpu
    ran: tuple[Ran, ...]
    host: HostOutcome
    launch: str
    clock_cap_mhz: float | None
    """Clock that the board's power leaves to this load, where it is below what kernels would run at."""

    @property
    def kernels_s(self) -> float:
        """Seconds of all kernels, without gaps."""
        return sum(ran.time_s for ran in self.ran)

    @property
    def wall_s(self) -> float:
        """From the first kernel's start to the last one's end, gaps included."""
        spans = [span for span in self.host.spans if span.lane == "stream"]
        return spans[-1].end_s - spans[0].start_s

    @property
    def n_kernels(self) -> int:
        """Kernels launched."""
        return sum(len(ran.kernels) for ran in self.ran)

    @property
    def energy_j(self) -> float:
        """Joules of the board over the step, idle between kernels."""
        idle_w = self.gpu.power.idle_w + self.gpu.power.clocks_w
        return sum(ran.energy_j for ran in self.ran) + idle_w * max(0.0, self.wall_s - self.kernels_s)

    @property
    def model_flops_utilisation(self) -> float:
        """Model FLOPs a second over the tensor cores' dense peak for the step's data type, at the boost clock or a
        higher one that is held. Of products with 2:4 weights those that are executed count, half of them."""
        fastest = max(kernel.sm_mhz for ran in self.ran for kernel in ran.kernels)
        peak = peak_flops_per_s(self.gpu, self.step) * max(1.0, fastest / self.gpu.clock.boost_mhz)
        products = [operation.work for operation in self.step.operations if isinstance(operation.work, Gemm)]
        skipped = sum(work.flops - work.executed_flops for work in products)
        return (self.step.model_flops - skipped) / self.wall_s / peak

    @property
    def bandwidth_utilisation(self) -> float:
        """HBM bytes a second, both ways, over the peak of the pins."""
        moved = sum(sum(kernel.bytes["hbm"].values()) for ran in self.ran for kernel in ran.kernels)
        return moved / self.wall_s / (self.gpu.hbm.bandwidth_gb_per_s * 1e9)


def peak_flops_per_s(gpu: Gpu, step: Step) -> float:
    """Dense peak of the type of most of the step's products."""
    flops: dict[str, int] = {}
    for operation in step.operations:
        dtype = operation.work.dtype.split("_")[0]
        flops[dtype] = flops.get(dtype, 0) + operation.work.flops
    dtype = max(flops, key=flops.__getitem__)
    unit = gpu.cuda_core if dtype == "fp32" else gpu.tensor
    return float(getattr(unit, f"{dtype}_flops_per_clk_per_sm")) * gpu.sm.count * gpu.clock.boost_mhz * 1e6


def run_step(
    step: Step,
    gpu: Gpu,
    options: Options | None = None,
    *,
    launch: str = "graph",
    attention: str = "flash",
    tile: str = "library",
    cold: bool = False,
    stream_weights: bool = False,
    held_bytes: int | None = None,
    kernels: Kernels | None = None,
) -> StepResult:
    """Simulate `step` on `gpu`.

    `launch`: "graph", "stream" or "eager"; `attention` and `tile` as `sim.operation.Kernels`; `cold`: every kernel
    finds L2 without its operands; `stream_weights`: weights of products lie in pinned host memory and are brought in
    one by one, the next while this one is used; `options.sustained`: the step repeats for long, so that the board's
    power limits the clock.
    `held_bytes`: the most that is in HBM at a time, where a plan says so (else all tensors of the step together).
    `kernels` replaces the choice of kernels (those of a measured step). Raises ConfigError for what does not fit
    and for options that there are none of.
    """
    options = options or Options()
    check_options(options)
    known = kernels or kernels_on(gpu, burst_options(options), attention, tile)
    asked = followed(step, known, cold)
    ran = _run(known, asked)
    cap = None
    by_power = options.sustained and options.clock_mhz is None and "clock" not in options.without
    played = partial(_played, step, gpu=gpu, launch=launch, stream_weights=stream_weights, held_bytes=held_bytes)
    host = played(ran)
    gap = _gap(host, ran, gpu)
    if by_power and _load_w([gap, *_parts(ran)]) > limit_w(gpu):
        cap, ran = _capped(known, gpu, asked, ran, gap)
        host = played(ran)
    return StepResult(step, gpu, ran, host, launch, cap)


def burst_options(options: Options) -> Options:
    """Those that a step's kernels are simulated with, before power has its say: long ones sampled soon."""
    return dataclasses.replace(options, sustained=False, trace=False, quick=not options.full)


def followed(step: Step, kernels: Kernels, cold: bool = False) -> list[tuple[Operation, dict[str, float]]]:
    """Operations with what L2 holds of their operands, by role; nothing where each starts `cold`."""
    contents = L2Contents(kernels.gpu)
    asked = []
    for operation in step.operations:
        asked.append((operation, {} if cold else contents.before(operation, step.tensors)))
        contents.after(operation, step.tensors, 1.0 if cold else kernels.waves(operation.work))
    return asked


def _run(
    kernels: Kernels, asked: Sequence[tuple[Operation, dict[str, float]]], cap_mhz: float | None = None
) -> tuple[Ran, ...]:
    return tuple(Ran(operation, kernels.of(operation.work, parts, cap_mhz), parts) for operation, parts in asked)


# The board's power.
def _parts(ran: Sequence[Ran]) -> list[tuple[float, float]]:
    return [(each.time_s, each.energy_j) for each in ran]


def _gap(host: HostOutcome, ran: Sequence[Ran], gpu: Gpu) -> tuple[float, float]:
    """Seconds in which no kernel runs, and joules of the idle board."""
    spans = [span for span in host.spans if span.lane == "stream"]
    idle_s = spans[-1].end_s - spans[0].start_s - sum(each.time_s for each in ran)
    return max(1e-9, idle_s), max(1e-9, idle_s) * (gpu.power.idle_w + gpu.power.clocks_w)


def _load_w(parts: Sequence[tuple[float, float]]) -> float:
    """Power that sets the clock, of (seconds, joules) of each operation and of what is idle: the root of the mean
    square over time.

    The clock follows power within milliseconds down and slowly up, so that hungry operations count for more. That it
    is the square is chosen: with the plain mean, products of whole stacks come out 6 % fast, by energy spent (of higher
    power still) 3 % fast, but whole prefills 3 % slow (llama2-7b and llama3-8b of decoder_stack.csv).
    """
    total_s = sum(time_s for time_s, _ in parts)
    return math.sqrt(sum(energy_j**2 / time_s for time_s, energy_j in parts) / total_s)


def _capped(
    known: Kernels,
    gpu: Gpu,
    asked: Sequence[tuple[Operation, dict[str, float]]],
    burst: tuple[Ran, ...],
    gap: tuple[float, float],
) -> tuple[float, tuple[Ran, ...]]:
    """The highest cap of the clock at which the step's power is within the board's limit, and the step at it.

    Kernels that run below the cap are not touched (hot.csv: under load, kernels of every kind get one clock). Time and
    energy of a kernel between its burst's clock and `LOWER_SHARE` are taken as straight lines over the cycle's length;
    then all are simulated at the cap found.
    """
    low_mhz = LOWER_SHARE * gpu.activity.active_mhz
    low = _run(known, asked, low_mhz)
    least, most = low_mhz / 4, max(_mhz(each) for each in burst)
    for _ in range(SEARCH_STEPS):
        middle = (least + most) / 2
        if _load_w([gap, *_interpolated(burst, low, low_mhz, middle)]) > limit_w(gpu):
            most = middle
        else:
            least = middle
    cap = max(CAP_STEP_MHZ, least // CAP_STEP_MHZ * CAP_STEP_MHZ)
    return cap, _run(known, asked, cap)


def _mhz(ran: Ran) -> float:
    """Clock of the longest kernel."""
    return max(ran.kernels, key=lambda kernel: kernel.time_s).sm_mhz


def _interpolated(
    burst: Sequence[Ran], low: Sequence[Ran], low_mhz: float, cap_mhz: float
) -> list[tuple[float, float]]:
    """Seconds and joules of each operation where kernels run at `cap_mhz` at most."""
    parts = []
    for fast, slow in zip(burst, low, strict=True):
        own = _mhz(fast)
        share = 0.0 if own <= cap_mhz or own <= low_mhz else (1 / cap_mhz - 1 / own) / (1 / low_mhz - 1 / own)
        time_s = fast.time_s + share * (slow.time_s - fast.time_s)
        parts.append((time_s, fast.energy_j + share * (slow.energy_j - fast.energy_j)))
    return parts


# The host.
def _played(
    step: Step, ran: Sequence[Ran], *, gpu: Gpu, launch: str, stream_weights: bool, held_bytes: int | None
) -> HostOutcome:
    """Everything lies in HBM, but weights that are streamed."""
    if not stream_weights:
        pauses_us = {"checkpoint": gpu.launch.checkpoint_us, "recompute": gpu.launch.recompute_us}
        issued = [
            Issued(one.operation.name, kernel.time_s, i == 0, pauses_us.get(one.operation.host, 0.0) * 1e-6)
            for one in ran
            for i, kernel in enumerate(one.kernels)
        ]
        held = sum(tensor.n_bytes for tensor in step.tensors.values() if tensor.kind != "view")
        return play_kernels(issued, held if held_bytes is None else held_bytes, gpu, launch)
    launches = tuple(each for one in ran for each in _launches(one, step))
    streamed = {each.weights for each in launches}
    used = {name for each in launches for name in (*each.reads, *each.writes, each.weights)}
    tensors = tuple(
        HostTensor(name, max(1, tensor.n_bytes), "pinned" if name in streamed else "hbm")
        for name, tensor in step.tensors.items()
        if name in used
    )
    return play(Program(tensors, launches, launch_mode=launch), gpu)


def _launches(ran: Ran, step: Step) -> Iterator[Launch]:
    """One for each kernel; an operation whose weight is streamed is one with it."""
    operation = ran.operation
    reads = tuple(dict.fromkeys(name for _, name in operation.reads))
    weight = dict(operation.reads).get("b", "")
    if weight and step.tensors[weight].kind == "weight":
        part = Part(_constant(ran.time_s), max(1, step.tensors[weight].n_bytes))
        others = tuple(name for name in reads if name != weight)
        yield Launch(operation.name, others, operation.writes, (part,), weight)
        return
    for i, kernel in enumerate(ran.kernels):
        part = Part(_constant(kernel.time_s))
        yield Launch(operation.name, reads, operation.writes, (part,), first=i == 0)


def _constant(time_s: float) -> Callable[[float], float]:
    return lambda rate: time_s
