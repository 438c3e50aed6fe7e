"""What a study varies hardware under: one operation or one step of a model, and the figures of it on a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.call import Call, Options, check_options, run_call
from sim.launch import check_memory, check_partial_sums
from sim.llm import How, limiter_of, simulate_llm
from sim.operation import Kernels, kernels_on
from sim.result import KernelResult
from sim.schedule.choose import usual
from sim.schedule.config import KernelConfig
from sim.schedule.names import short_name
from sim.schedule.resources import occupancy
from sim.step import burst_options
from sim.tiles import search
from workloads.gemm import Gemm
from workloads.llm import Llm

DEFAULTS, AS_LAUNCHED = Options(), How()
LEVELS = ("hbm", "l2", "sm", "smem")
Tiles = dict[Gemm, KernelConfig]
"""The kernel of every product."""


@dataclass(frozen=True)
class Figures:
    """What one run gave. Seconds, joules and bytes are of the whole operation or phase; of a generation, `limited_s`,
    `bytes` and `tiles` of a decode step in its middle."""

    time_s: float
    energy_j: float
    tokens: int
    """0 for an operation."""
    limited_s: dict[str, float] = field(repr=False)
    """{limiter: seconds of the kernels that it limits}, longest first."""
    bytes: dict[str, int] = field(repr=False)
    """{level: bytes both ways}."""
    tiles: Tiles = field(repr=False)

    @property
    def limiter(self) -> str:
        """What limits most of the time."""
        return next(iter(self.limited_s))

    @property
    def power_w(self) -> float:
        """Mean watts."""
        return self.energy_j / self.time_s

    def tile_names(self) -> dict[str, str]:
        """{"m x n x k type": configuration}, of each product."""
        return {f"{g.m} x {g.n} x {g.k} {g.dtype}": short_name(config) for g, config in self.tiles.items()}


class Case(Protocol):
    """Something to simulate on one GPU after another. Can be pickled, for other processes."""

    def figures(self, gpu: Gpu, kept: Tiles | None = None) -> Figures:
        """Simulate it on `gpu`, with its kernels chosen for it, or as `kept` says where that fits.

        Raises ConfigError for what cannot be simulated."""


@dataclass(frozen=True)
class GemmCase:
    """One GEMM, its kernels alone: the fastest kernel of `family` (None: of those that a library would use), or the one
    `config`."""

    gemm: Gemm
    options: Options = DEFAULTS
    family: str | None = None
    config: KernelConfig | None = None

    def figures(self, gpu: Gpu, kept: Tiles | None = None) -> Figures:
        """As `Case.figures`."""
        check_options(self.options)
        check_memory(self.gemm, gpu, False)
        call = self._call(gpu, kept or {})
        tiles = {self.gemm: call.plan.config}
        return Figures(call.time_s, _joules(call.kernels), 0, _limited(call.kernels), _moved(call.kernels), tiles)

    def _call(self, gpu: Gpu, kept: Tiles) -> Call:
        if self.config is not None:
            check_partial_sums(self.gemm, self.config, gpu, False)
            return run_call(self.gemm, self.config, gpu, self.options)
        if self.gemm in kept:
            with suppress(ConfigError):  # does not fit: chosen anew
                return run_call(self.gemm, kept[self.gemm], gpu, self.options)
        return search(self.gemm, gpu, usual(self.gemm, gpu, self.family), self.options, best=1, threads=1).best


@dataclass(frozen=True)
class LlmCase:
    """A phase of a model."""

    request: Llm
    options: Options = DEFAULTS
    how: How = AS_LAUNCHED

    def figures(self, gpu: Gpu, kept: Tiles | None = None) -> Figures:
        """As `Case.figures`."""
        kernels = self._kernels(gpu, kept)
        result = simulate_llm(self.request, gpu, self.options, self.how, kernels=kernels)
        ran = result.shown.ran
        limited = {share.name: share.time_s for share in result.by_limiter()}
        idle_s = result.shown.host.end_to_end_s - sum(limited.values())
        if idle_s > 0:
            limited["idle"] = idle_s
        ordered = dict(sorted(limited.items(), key=lambda item: -item[1]))
        moved = _moved([kernel for each in ran for kernel in each.kernels])
        works = [each.operation.work for each in ran]
        tiles = {work: kernels.config_of(work) for work in works if isinstance(work, Gemm)}
        return Figures(result.time_s, result.energy_j, result.tokens, ordered, moved, tiles)

    def _kernels(self, gpu: Gpu, kept: Tiles | None) -> Kernels:
        asked = gpu, burst_options(self.options), self.how.attention, self.how.tile
        if kept is None:
            return kernels_on(*asked)
        kernels = Kernels(*asked)
        for gemm, config in kept.items():
            with suppress(ConfigError):  # does not fit: chosen anew
                occupancy(config, gemm, gpu)
                kernels.choose(gemm, config)
        return kernels


def _limited(kernels: Sequence[KernelResult]) -> dict[str, float]:
    """Seconds by limiter, longest first."""
    found: dict[str, float] = {}
    for kernel in kernels:
        found[limiter_of(kernel)] = found.get(limiter_of(kernel), 0.0) + kernel.time_s
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _joules(kernels: Sequence[KernelResult]) -> float:
    return sum(sum(kernel.energy_j.values()) for kernel in kernels)


def _moved(kernels: Sequence[KernelResult]) -> dict[str, int]:
    counts = Counter(map(id, kernels))
    different = {id(kernel): kernel for kernel in kernels}.items()
    return {
        level: sum(counts[key] * sum(kernel.bytes.get(level, {}).values()) for key, kernel in different)
        for level in LEVELS
    }
