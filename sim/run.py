"""Start here: one operation on one GPU, from host memory to the tensor cores and back.

workload + GPU -> configurations -> plans -> engine -> host program -> Result
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.call import Call, Options, check_options, run_call
from sim.launch import check_memory, check_partial_sums, play_call
from sim.report import build_result
from sim.result import Result
from sim.schedule.choose import candidates
from sim.schedule.config import KernelConfig
from workloads.gemm import Gemm

Progress = Callable[[int, int], None]
"""(candidates simulated so far, candidates in all)."""


def simulate(
    workload: Gemm,
    gpu: Gpu,
    *,
    config: KernelConfig | None = None,
    family: str | None = None,
    tile: str = "bound",
    clock_mhz: float | None = None,
    full: bool = False,
    trace: bool = False,
    launch: str = "stream",
    stream_weights: bool = False,
    advise: bool = False,
    sustained: bool = False,
    data: str = "random",
    without: Collection[str] = (),
    progress: Progress | None = None,
) -> Result:
    """Simulate `workload` on `gpu` and say where time and bytes went.

    `config` fixes the kernel; else the menu of `family` (None: what a library would use) is ranked by a closed-form
    bound and the best eight are simulated (`tile="bound"`), or all of it is (`tile="auto"`), or what a library launches
    for similar shapes (`tile="library"`); the fastest is the answer.
    What cannot be simulated is passed over; `progress` hears of the rest: how many are done, of how many.
    `clock_mhz` holds the SM clock; `full` forbids skipping repeated waves; `trace` records spans of some SMs; `launch`
    is "stream" or "graph"; `stream_weights` cuts B into pieces that are copied while others compute; `advise` also
    simulates what would help most; `sustained` takes the clock that the board's power leaves after long load; `data` is
    what A and B hold: "random" (normal numbers), "zeros" or "sparse" ({-1, 0, 1}); `without` names mechanisms to switch
    off (`sim.machine.MECHANISMS`).

    Raises ConfigError for anything that does not fit, naming the parameter, the value and the allowed range.
    """
    _check_types(workload, gpu, config)
    options = Options(clock_mhz, full, trace, without=frozenset(without), sustained=sustained, data=data)
    check_options(options)
    check_memory(workload, gpu, stream_weights)
    configs, most = ((config,), 1) if config is not None else candidates(workload, gpu, family, tile)
    best = fastest(workload, gpu, configs, most, options.untraced(), stream_weights, progress)
    if trace:
        best = run_call(workload, best.plan.config, gpu, options)
    host = play_call(best, gpu, options, launch, stream_weights)
    asked = {"family": family, "tile": tile, "launch": launch, "stream_weights": stream_weights}
    return build_result(best, host, gpu, options, asked, advise)


def fastest(
    workload: Gemm,
    gpu: Gpu,
    configs: Sequence[KernelConfig],
    most: int,
    options: Options,
    stream_weights: bool = False,
    progress: Progress | None = None,
) -> Call:
    """The fastest of the first `most` of `configs` that can be simulated. `stream_weights` only changes what must fit
    HBM at once. Raises the first ConfigError where none can be simulated.
    """

    def call(config: KernelConfig) -> Call:
        check_partial_sums(workload, config, gpu, stream_weights)
        return run_call(workload, config, gpu, options)

    calls = _calls(call, configs, most, progress or (lambda done, total: None))
    return min(calls, key=lambda call: call.time_s)


def _calls(
    run: Callable[[KernelConfig], Call], configs: Sequence[KernelConfig], most: int, progress: Progress
) -> Iterator[Call]:
    """Calls of the first `most` configurations that `run` does not refuse; where it refuses all, raises the first."""
    done, refusals = 0, list[ConfigError]()
    for config in configs:
        try:
            call = run(config)
        except ConfigError as error:
            refusals.append(error)
            continue
        yield call
        done += 1
        progress(done, min(most, len(configs) - len(refusals)))
        if done == most:
            return
    if not done:
        raise refusals[0]


def _check_types(workload: object, gpu: object, config: object) -> None:
    """Refuse what is no workload, GPU or configuration, such as a GPU's name where the GPU is wanted."""
    if not isinstance(workload, Gemm):
        raise ConfigError(f"workload = {str(workload)[:60]!r}: must be a workloads.Gemm")
    if not isinstance(gpu, Gpu):
        raise ConfigError(f"gpu = {str(gpu)[:60]!r}: must be a GPU, such as hwmodels.load_gpu('h200_sxm')")
    if config is not None and not isinstance(config, KernelConfig):
        raise ConfigError(f"config = {str(config)[:60]!r}: must be a KernelConfig or None")
