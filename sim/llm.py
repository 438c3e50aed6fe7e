"""A language model on one GPU: time a step and a token, where it goes, what it needs of memory, what would help."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from hwmodels.catalog import resolved
from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.advice import advice
from sim.call import Options
from sim.fitting import attention_kind, check_memory, plan_of, points_in_hbm
from sim.limiter import find_limiter
from sim.operation import Kernels
from sim.power import limit_w
from sim.program import LAUNCH_MODES
from sim.report import versions
from sim.result import KernelResult
from sim.schedule.attention import BACKENDS
from sim.schedule.choose import TILES
from sim.step import Ran, StepResult, run_step
from workloads.checks import check_choice, check_flag
from workloads.llm import Llm
from workloads.memory import MemoryPlan
from workloads.operations import Step

SCHEMA = 1
DECODE_POINTS = 5
"""Steps of a generation that are simulated, from the shortest context to the longest; between them lines are drawn."""
STEPS_KEPT = 4
SECONDS_PER_HOUR = 3600.0
MILLION = 1e6
_NUMBERED = re.compile(r"^(expert|shared)\d+[.:]\s*")
Progress = Callable[[str, int, int], None]
"""(what is being done, how much of it is done, of how much)."""


@dataclass(frozen=True)
class How:
    """How a step is launched: `launch` "graph", "stream" or "eager" (PyTorch's own pace); `attention`, the library it
    comes from; `tile`, how GEMM kernels are chosen; `cold`, without what kernels leave each other in L2;
    `stream_weights`, from host memory."""

    launch: str = "stream"
    attention: str = "flash"
    tile: str = "library"
    cold: bool = False
    stream_weights: bool = False

    def __post_init__(self) -> None:
        check_choice("launch", self.launch, LAUNCH_MODES, "how a step runs")
        check_choice("attention", self.attention, BACKENDS, "how a step runs")
        check_choice("tile", self.tile, TILES, "how a step runs")
        for name in ("cold", "stream_weights"):
            check_flag(name, getattr(self, name), "how a step runs")


@dataclass(frozen=True)
class Share:
    """Part of a step: seconds of its kernels, how many, FLOPs, and HBM bytes both ways."""

    name: str
    time_s: float
    n_kernels: int
    flops: int
    hbm_bytes: int


@dataclass(frozen=True)
class LlmResult:
    """A phase as it ran. `steps`: the one step; of a generation, its prefill and then decode steps at `contexts`."""

    request: Llm
    gpu: dict[str, Any]
    steps: tuple[StepResult, ...] = field(repr=False)
    contexts: tuple[int, ...]
    memory: MemoryPlan = field(repr=False)
    how: How
    options: Options
    versions: dict[str, str]
    advice: tuple[dict[str, Any], ...] = ()
    """What would help most, each simulated (`sim.advice.advice`)."""
    prefill: LlmResult | None = field(default=None, repr=False)
    """Of a decode step that was asked for its first token: the prefill of what lies in its cache."""

    steady: LlmResult | None = field(default=None, repr=False)
    """Of a burst that takes more power than the board holds: the same for long."""

    @property
    def power_w(self) -> float:
        """Mean watts of the board over the phase."""
        return self.energy_j / self.time_s

    @property
    def held_w(self) -> float:
        """Watts that the board's control allows for long."""
        return limit_w(self.first.gpu)

    @property
    def is_burst(self) -> bool:
        """Whether it takes more power than the board holds for long, where steps settle at a lower clock."""
        return not self.options.sustained and self.power_w > self.held_w

    @property
    def first(self) -> StepResult:
        """The step; of a generation, its prefill."""
        return self.steps[0]

    @property
    def shown(self) -> StepResult:
        """The step that a breakdown is of: of a generation, a decode step in the middle."""
        return self.steps[len(self.steps) // 2 + len(self.steps) % 2 if len(self.steps) > 1 else 0]

    @property
    def step_times_s(self) -> tuple[float, ...]:
        """Seconds of each decode step of a generation."""
        import numpy as np

        walls = [step.host.end_to_end_s for step in self.steps[1:]]
        first = self.request.tokens
        wanted = range(first, first + self.request.new_tokens - 1)
        return tuple(float(t) for t in np.interp(wanted, self.contexts, walls)) if walls else ()

    @property
    def time_s(self) -> float:
        """Seconds of the phase, from the host's first launch until it has seen the end."""
        return self.first.host.end_to_end_s + sum(self.step_times_s)

    @property
    def time_to_first_token_s(self) -> float | None:
        """Of a prefill, a generation, or a decode step whose prefill was simulated; None for others."""
        if self.prefill is not None:
            return self.prefill.time_s
        return self.first.host.end_to_end_s if self.request.phase in ("prefill", "generate") else None

    @property
    def time_per_token_s(self) -> float:
        """Seconds from one token of a sequence to its next while it decodes; a step's time for others."""
        times = self.step_times_s
        return sum(times) / len(times) if times else self.first.host.end_to_end_s

    @property
    def tokens(self) -> int:
        """Tokens that the phase deals with: read in a prefill or in training, made in decoding."""
        request = self.request
        each = {"decode": 1, "generate": request.new_tokens}.get(request.phase, request.tokens * request.passes)
        return request.batch * each

    @property
    def tokens_per_s(self) -> float:
        """`tokens` a second, of all sequences together."""
        return self.tokens / self.time_s

    @property
    def model_flops_utilisation(self) -> float:
        """Of the shown step."""
        return self.shown.model_flops_utilisation

    @property
    def bandwidth_utilisation(self) -> float:
        """Of the shown step."""
        return self.shown.bandwidth_utilisation

    @property
    def energy_j(self) -> float:
        """Joules of the phase; decode steps between those simulated as the mean of these."""
        decoded = [step.energy_j for step in self.steps[1:]]
        return self.first.energy_j + (sum(decoded) / len(decoded) * len(self.step_times_s) if decoded else 0.0)

    def cost_per_million_tokens(self, price_per_hour: float) -> float:
        """In the currency of the price of one GPU hour."""
        return price_per_hour / SECONDS_PER_HOUR / self.tokens_per_s * MILLION

    def by_operation(self) -> tuple[Share, ...]:
        """The shown step by name of operation, longest first."""
        return _shares((operation_name(ran), ran.kernels, ran.operation.work.flops) for ran in self.shown.ran)

    def by_limiter(self) -> tuple[Share, ...]:
        """The shown step by what limits each kernel, longest first."""
        kernels = [kernel for ran in self.shown.ran for kernel in ran.kernels]
        different = {id(kernel): kernel for kernel in kernels}  # layers share theirs
        limiters = {key: limiter_of(kernel) for key, kernel in different.items()}
        return _shares((limiters[id(kernel)], (kernel,), 0) for kernel in kernels)


def operation_name(ran: Ran) -> str:
    """An operation's name without the number of its expert, or the parameter whose gradients it adds up."""
    name = ran.operation.name
    return "accumulate gradients" if name.startswith("accumulate ") else _NUMBERED.sub("experts: ", name)


def limiter_of(kernel: KernelResult) -> str:
    """What bounds a kernel; "launch and start" for those too short to say."""
    return find_limiter(kernel)[0] if kernel.waits else "launch and start"


def _shares(parts: Any) -> tuple[Share, ...]:
    sums: dict[str, list[float]] = {}
    for name, kernels, flops in parts:
        total = sums.setdefault(name, [0.0, 0, 0, 0])
        total[0] += sum(kernel.time_s for kernel in kernels)
        total[1] += len(kernels)
        total[2] += flops
        total[3] += sum(sum(kernel.bytes["hbm"].values()) for kernel in kernels)
    shares = (Share(name, t, int(n), int(flops), int(moved)) for name, (t, n, flops, moved) in sums.items())
    return tuple(sorted(shares, key=lambda share: -share.time_s))


def simulate_llm(
    request: Llm,
    gpu: Gpu,
    options: Options | None = None,
    how: How | None = None,
    *,
    advise: bool = False,
    first_token: bool = False,
    steady: bool = False,
    progress: Progress | None = None,
    kernels: Kernels | None = None,
) -> LlmResult:
    """Simulate a phase of a model on `gpu`. `advise`: also what would help; `first_token`: of a decode step also the
    prefill of its context, of all sequences at once or, where that does not fit, of one; `steady`: of a burst that the
    board's power does not hold also the same for long; `kernels` replaces the choice of kernels for the phase itself.

    Raises ConfigError for what cannot be simulated, and where memory does not suffice, with what would fit.
    """
    options, how, tell = options or Options(), how or How(), progress or _untold
    result = _simulated(request, gpu, options, how, tell, kernels=kernels)
    if first_token and request.phase == "decode":
        tell("simulating the prefill", 0, 1)
        result = dataclasses.replace(result, prefill=_prefill(request, gpu, options, how))
    if steady and result.is_burst and options.clock_mhz is None:
        tell("simulating long load", 0, 1)
        long = _simulated(request, gpu, dataclasses.replace(options, sustained=True), how, _untold)
        result = dataclasses.replace(result, steady=long)
    if not advise:
        return result

    def other(request: Llm, how: How) -> LlmResult:
        return _simulated(request, gpu, options, how, _untold, cures=False)

    return dataclasses.replace(result, advice=advice(result, gpu, other, tell))


def _prefill(request: Llm, gpu: Gpu, options: Options, how: How) -> LlmResult | None:
    """The prefill that fills the cache of a decode step; None where not even one sequence can be run."""
    for batch in dict.fromkeys((request.batch, 1)):
        try:
            asked = request.but(phase="prefill", batch=batch, tokens=request.context)
            return _simulated(asked, gpu, options, how, _untold, cures=False)
        except ConfigError:
            continue
    return None


def _untold(what: str, done: int, total: int) -> None:
    """Tell nobody how far it is."""


@lru_cache(maxsize=STEPS_KEPT)
def _built(request: Llm, attention: str) -> Step:
    """The first step of a phase; a study simulates the same one on many GPUs."""
    return request.step(attention)


def _simulated(
    request: Llm,
    gpu: Gpu,
    options: Options,
    how: How,
    tell: Progress,
    *,
    cures: bool = True,
    kernels: Kernels | None = None,
) -> LlmResult:
    memory = plan_of(request, how)
    held_bytes = max(point.total for point in points_in_hbm(request, memory, how))
    first = _built(request, attention_kind(how))  # refuses what no memory makes possible
    check_memory(request, gpu, memory, how, cures=cures)
    contexts = _contexts(request)
    steps = []
    for i, step in enumerate((first, *map(request.decode_step, contexts))):
        tell("simulating steps", i, 1 + len(contexts))
        steps.append(_step(step, gpu, options, how, held_bytes, kernels))
    return LlmResult(request, resolved(gpu), tuple(steps), contexts, memory, how, options, versions())


def _step(step: Step, gpu: Gpu, options: Options, how: How, held_bytes: int, kernels: Kernels | None) -> StepResult:
    return run_step(
        step,
        gpu,
        options,
        launch=how.launch,
        attention=how.attention,
        tile=how.tile,
        cold=how.cold,
        stream_weights=how.stream_weights,
        held_bytes=held_bytes,
        kernels=kernels,
    )


def _contexts(request: Llm) -> tuple[int, ...]:
    """Tokens in the cache before those decode steps of a generation that are simulated."""
    n_steps = request.new_tokens - 1 if request.phase == "generate" else 0
    if not n_steps:
        return ()
    points = min(DECODE_POINTS, n_steps)
    spread = (n_steps - 1) / max(1, points - 1)
    return tuple(dict.fromkeys(request.tokens + round(i * spread) for i in range(points)))
