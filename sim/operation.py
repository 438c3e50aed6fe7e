"""The kernels of one operation, whatever it is: the seam between a model's step and what happens inside a kernel.

Pure, and so remembered: layer 41 asks what layer 40 asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.attention import attention_kernels
from sim.call import Call, Options, run_call
from sim.launch import check_partial_sums
from sim.result import KernelResult
from sim.schedule.choose import candidates
from sim.schedule.config import KernelConfig
from sim.streaming import stream_kernels
from workloads.attention import Attention
from workloads.gemm import Gemm
from workloads.operations import Work

Resident = Mapping[str, float]
"""Role of an operand -> the part of it that is in L2 when the first kernel starts."""
MOST_KINDS = 32
"""GPUs and options whose kernels are kept."""


class Kernels:
    """What operations launch on one GPU under one set of options.

    `attention`: the library that attention comes from (`sim.attention`); `tile`: how a GEMM's kernel is chosen
    (`sim.simulate`), "library" for what a library would launch. Choices do not look at what L2 holds.
    """

    def __init__(self, gpu: Gpu, options: Options, attention: str = "flash", tile: str = "library") -> None:
        self.gpu, self.options, self.attention, self.tile = gpu, options, attention, tile
        self._known: dict[tuple[object, ...], tuple[KernelResult, ...]] = {}
        self._configs: dict[Gemm, KernelConfig] = {}

    def of(self, work: Work, resident: Resident | None = None) -> tuple[KernelResult, ...]:
        """Kernels of `work` in launch order. Raises ConfigError for what cannot be simulated."""
        parts = resident or {}
        key = (work, *sorted(parts.items()))
        if key not in self._known:
            self._known[key] = self._run(work, parts)
        return self._known[key]

    def config_of(self, gemm: Gemm) -> KernelConfig:
        """The configuration chosen for a GEMM."""
        if gemm not in self._configs:
            self.of(gemm)
        return self._configs[gemm]

    def choose(self, gemm: Gemm, config: KernelConfig) -> None:
        """Have this GEMM run with a configuration, such as that of a kernel's name."""
        self._configs[gemm] = config

    def at(self, clock_mhz: float) -> Kernels:
        """The same kernels, chosen as they are, with the clock held at `clock_mhz`."""
        held = kernels_on(self.gpu, _held(self.options, clock_mhz), self.attention, self.tile)
        held._configs.update(self._configs)
        return held

    def _run(self, work: Work, resident: Resident) -> tuple[KernelResult, ...]:
        if isinstance(work, Gemm):
            return self._gemm(work, (resident.get("a", 0.0), resident.get("b", 0.0))).kernels
        if isinstance(work, Attention):
            return attention_kernels(work, self.gpu, self.options, backend=self.attention, resident=resident)
        return stream_kernels(work, self.gpu, self.options, resident=resident)

    def _gemm(self, gemm: Gemm, resident: tuple[float, float]) -> Call:
        """With its configuration, or the fastest of those that may be."""
        if gemm in self._configs:
            return run_call(gemm, self._configs[gemm], self.gpu, self.options, resident=resident)
        configs, most = candidates(gemm, self.gpu, None, self.tile)
        calls: list[Call] = []
        refusals: list[ConfigError] = []
        for config in configs:
            try:
                check_partial_sums(gemm, config, self.gpu, False)
                calls.append(run_call(gemm, config, self.gpu, self.options, resident=resident))
            except ConfigError as error:
                refusals.append(error)
            if len(calls) == most:
                break
        if not calls:
            raise refusals[0]
        best = min(calls, key=lambda call: call.time_s)
        self._configs[gemm] = best.plan.config
        return best


def _held(options: Options, clock_mhz: float) -> Options:
    import dataclasses

    return dataclasses.replace(options, clock_mhz=clock_mhz)


@lru_cache(maxsize=MOST_KINDS)
def kernels_on(gpu: Gpu, options: Options, attention: str = "flash", tile: str = "library") -> Kernels:
    """The kernels of a GPU, kept from one call to the next."""
    return Kernels(gpu, options, attention, tile)
