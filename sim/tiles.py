"""The best kernel configurations of a GEMM among all that fit: simulate those that may be, leave out what cannot.

Configurations are taken in order of their lower bound (`sim.lower_bound`), a batch at a time. What is bounded above the
last of the best so far cannot become one of them, and neither can any after it; nor can what turns out to end later
while it is simulated (`sim.time_left`). The answer is that of simulating all, which a test compares. Batches do not
hang on the number of threads, so that what is simulated does not either; where few are wanted, they are small, as fewer
are then simulated in vain.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.call import Call, Options, check_options, run_call
from sim.launch import check_partial_sums
from sim.lower_bound import LowerBound, lower_bound
from sim.schedule.config import FAMILIES, KernelConfig
from sim.schedule.menu import families, menu, stream_k
from sim.time_left import TooSlowError, deadline
from workloads.checks import check_integer
from workloads.gemm import Gemm

BEST = 10
BATCH, LEAST_BATCH = 8, 2
MOST_BEST = 100_000
WHERE = "tile search"
Progress = Callable[[int, int], None]
"""(configurations done, simulated or left out; of how many)."""
Group = Callable[[KernelConfig], Hashable]
Bounded = tuple[LowerBound, int, KernelConfig]
"""A configuration with its bound and its place among those given."""


@dataclass(frozen=True)
class LeftOut:
    """A configuration that was not simulated, or not to its end, as it takes `bound.time_s` at least, more than the
    best ones."""

    config: KernelConfig
    bound: LowerBound


@dataclass(frozen=True)
class TileSearch:
    """What a search found. `calls`: all that were simulated, fastest first; of these, `n_best` are proved to be the
    best of all, in this order (of each group, where it went by groups: see `search`)."""

    gemm: Gemm
    options: Options
    calls: tuple[Call, ...]
    left_out: tuple[LeftOut, ...]
    """By bound, least first."""
    n_best: int

    @property
    def best(self) -> Call:
        """The fastest."""
        return self.calls[0]

    @property
    def n_configs(self) -> int:
        """Configurations that fit, simulated or not."""
        return len(self.calls) + len(self.left_out)


def every(gemm: Gemm, gpu: Gpu, family: str | None = None) -> tuple[KernelConfig, ...]:
    """Every configuration that fits: of a family's menu, or of all; persistent ones as stream-K, too, where that may
    help. Raises ConfigError where there is none."""
    names = families(gpu, gemm) if family is None else (family,)
    found = [config for name in names for config in menu(gpu, name, gemm)]
    found += stream_k(gpu, gemm) if "persistent" in names else ()
    return tuple(found) or menu(gpu, FAMILIES[0], gemm)  # which says why nothing fits


def search(
    gemm: Gemm,
    gpu: Gpu,
    configs: Sequence[KernelConfig],
    options: Options | None = None,
    *,
    best: int = BEST,
    group: Group | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> TileSearch:
    """The `best` fastest of `configs` (of each group of them that `group` gives the same value). All are simulated
    where there are no more. `threads`: None for as many as there are cores.

    Raises ConfigError where not one of them can be simulated, with the first reason.
    """
    options = options or Options()
    check_options(options)
    check_integer("best", best, 1, MOST_BEST, WHERE)
    bounded = _bounded(gemm, gpu, configs, options)
    place = {config: i for _, i, config in bounded}
    calls: list[Call] = []
    left_out: list[LeftOut] = []

    def tell() -> None:
        if progress:
            progress(len(calls) + len(left_out), len(bounded))

    size = max(LEAST_BATCH, min(BATCH, best))
    with ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool:
        for some in _groups(bounded, group):
            found: list[Call] = []
            rest = sorted(some, key=lambda each: (each[0].simulated_s, each[1]))
            while rest and rest[0][0].simulated_s <= (last_s := _last_s(found, best)):
                batch = [each for each in rest[:size] if each[0].simulated_s <= last_s]
                rest = rest[len(batch) :]
                simulate = partial(_simulated, gemm, gpu, options, last_s)
                ended = list(pool.map(simulate, [config for _, _, config in batch]))
                found += [call for call in ended if isinstance(call, Call)]
                calls += [call for call in ended if isinstance(call, Call)]
                left_out += [out for out in ended if isinstance(out, LeftOut)]
                tell()
            left_out += [LeftOut(config, bound) for bound, _, config in rest]
            tell()
    calls.sort(key=lambda call: (call.time_s, place[call.plan.config]))
    left_out.sort(key=lambda each: (each.bound.time_s, place[each.config]))
    return TileSearch(gemm, options, tuple(calls), tuple(left_out), min(best, len(calls)))


def _bounded(gemm: Gemm, gpu: Gpu, configs: Sequence[KernelConfig], options: Options) -> list[Bounded]:
    """Those that can be simulated. Raises ConfigError where there is none."""
    found: list[Bounded] = []
    refusals: list[ConfigError] = []
    for i, config in enumerate(configs):
        try:
            check_partial_sums(gemm, config, gpu, False)
            found.append((lower_bound(gemm, config, gpu, options, _resident(gemm)), i, config))
        except ConfigError as error:
            refusals.append(error)
    if not found:
        raise refusals[0] if refusals else ConfigError(f"configurations: none given ({WHERE})")
    return found


def _simulated(gemm: Gemm, gpu: Gpu, options: Options, limit_s: float, config: KernelConfig) -> Call | LeftOut:
    """A configuration's call, unless it turns out to take longer than `limit_s`."""
    check = deadline(gemm, config, gpu, options, _resident(gemm), limit_s) if limit_s < float("inf") else None
    try:
        return run_call(gemm, config, gpu, options, check=check)
    except TooSlowError as late:
        return LeftOut(config, late.bound)


def _resident(gemm: Gemm) -> tuple[float, float]:
    """Parts of A and B in L2 at the start."""
    return (1.0, 1.0) if gemm.l2 == "warm" else (0.0, 0.0)


def _groups(bounded: list[Bounded], group: Group | None) -> Iterator[list[Bounded]]:
    """Those of one group together, in the order in which groups are first met."""
    if group is None:
        yield bounded
        return
    first: dict[Hashable, int] = {}
    for _, i, config in bounded:
        first.setdefault(group(config), i)
    ordered = sorted(bounded, key=lambda each: first[group(each[2])])
    for _, members in groupby(ordered, key=lambda each: group(each[2])):
        yield list(members)


def _last_s(found: list[Call], best: int) -> float:
    """Seconds of the last of the best so far; what is slower is not one of them."""
    times = sorted(call.time_s for call in found)
    return times[best - 1] if len(times) >= best else float("inf")
