"""The kernels of one operation, whatever it is: the seam between a model's step and what happens inside a kernel.

Pure, and so remembered: layer 41 asks what layer 40 asked.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from functools import lru_cache

from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.attention import attention_kernels
from sim.call import Call, Options, run_call
from sim.launch import check_partial_sums
from sim.result import KernelResult, main_kernel
from sim.schedule.attention import BACKENDS
from sim.schedule.choose import candidates
from sim.schedule.config import KernelConfig
from sim.schedule.plan import build_plan
from sim.streaming import stream_kernels
from workloads.attention import Attention
from workloads.gemm import Gemm
from workloads.operations import Work
from workloads.stream import Stream

Resident = Mapping[str, float]
"""Role of an operand -> the part of it that is in L2 when the first kernel starts."""
ATTENTION_ROLES = ("q", "k", "v")
"""Of attention's operands, those that an earlier kernel may have left in L2; backward's others are not followed."""
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
        self._waves: dict[Gemm, float] = {}

    def of(
        self, work: Work, resident: Resident | None = None, cap_mhz: float | None = None
    ) -> tuple[KernelResult, ...]:
        """Kernels of `work` in launch order; `cap_mhz` holds the clock there where they would run faster.

        Raises ConfigError for what cannot be simulated.
        """
        parts = resident or {}
        library = self.attention if isinstance(work, Attention) else ""
        key = (work, library, cap_mhz, *sorted(parts.items()))
        if key not in self._known:
            self._known[key] = self._run(work, parts, self._capped(work, parts, cap_mhz))
        return self._known[key]

    def beside(self, attention: str) -> Kernels:
        """The same with attention from another library; what is known of other work is shared."""
        other = copy.copy(self)
        other.attention = attention
        return other

    def traced(self, work: Work, resident: Resident, cap_mhz: float | None = None) -> KernelResult:
        """The main kernel of `of`, with its spans."""
        options = dataclasses.replace(self._capped(work, resident, cap_mhz), trace=True)
        return main_kernel(self._run(work, resident, options))

    def _capped(self, work: Work, resident: Resident, cap_mhz: float | None) -> Options:
        """The options, with the clock held at `cap_mhz` where the main kernel would run faster."""
        if cap_mhz is None or main_kernel(self.of(work, resident)).sm_mhz <= cap_mhz:
            return self.options
        return dataclasses.replace(self.options, clock_mhz=cap_mhz)

    def config_of(self, gemm: Gemm) -> KernelConfig:
        """The configuration chosen for a GEMM."""
        if gemm not in self._configs:
            self._configs[gemm] = self._chosen(gemm)
        return self._configs[gemm]

    def waves(self, work: Work) -> float:
        """Waves of CTAs in which a product's result is written; 1 where another kernel adds parts of it up, and for
        other work, which is not followed so far."""
        if not isinstance(work, Gemm) or self.config_of(work).split_k > 1:
            return 1.0
        if work not in self._waves:
            options = self.options
            plan = build_plan(work, self.config_of(work), self.gpu, options.full, options.without, options.quick)
            self._waves[work] = plan.work.n_items / plan.work.n_agents
        return self._waves[work]

    def choose(self, gemm: Gemm, config: KernelConfig) -> None:
        """Have this GEMM run with a configuration, such as that of a kernel's name."""
        self._waves.pop(gemm, None)
        self._known = {key: found for key, found in self._known.items() if key[0] != gemm}
        self._configs[gemm] = config

    def _run(self, work: Work, resident: Resident, options: Options) -> tuple[KernelResult, ...]:
        if isinstance(work, Stream):
            return stream_kernels(work, self.gpu, options, resident=resident)
        if isinstance(work, Gemm):
            parts = resident.get("a", 0.0), resident.get("b", 0.0)
            kernels = run_call(work, self.config_of(work), self.gpu, options, resident=parts).kernels
        else:
            known = {role: part for role, part in resident.items() if role in ATTENTION_ROLES}
            kernels = attention_kernels(work, self.gpu, options, backend=self.attention, resident=known)
        return kernels if resident.get("code") else _behind_others(kernels, self.gpu)

    def _chosen(self, gemm: Gemm) -> KernelConfig:
        """The fastest of those that may be, on an L2 that holds nothing of it."""
        configs, most = candidates(gemm, self.gpu, None, self.tile)
        calls: list[Call] = []
        refusals: list[ConfigError] = []
        for config in configs:
            try:
                check_partial_sums(gemm, config, self.gpu, False)
                calls.append(run_call(gemm, config, self.gpu, self.options))
            except ConfigError as error:
                refusals.append(error)
            if len(calls) == most:
                break
        if not calls:
            raise refusals[0]
        return min(calls, key=lambda call: call.time_s).plan.config


def _behind_others(kernels: tuple[KernelResult, ...], gpu: Gpu) -> tuple[KernelResult, ...]:
    """The same behind kernels of other operations: the main one fetches its code, which these pushed out of the
    instruction caches. In stacks, products take 0.6 us longer than in bursts of one kernel (decoder_stack_kernels.csv
    against gemm_again.csv); kernels bound by memory have that in their own model."""
    main = main_kernel(kernels)
    code_s = gpu.streaming.code_us * 1e-6
    later = dataclasses.replace(
        main, time_s=main.time_s + code_s, sm_cycles=main.sm_cycles + code_s * main.sm_mhz * 1e6
    )
    return tuple(later if kernel is main else kernel for kernel in kernels)


@lru_cache(maxsize=MOST_KINDS)
def kernels_on(gpu: Gpu, options: Options, attention: str = "flash", tile: str = "library") -> Kernels:
    """The kernels of a GPU, kept from one call to the next."""
    if attention == BACKENDS[0]:
        return Kernels(gpu, options, attention, tile)
    return kernels_on(gpu, options, BACKENDS[0], tile).beside(attention)
