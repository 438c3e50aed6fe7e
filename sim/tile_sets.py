"""Tiles for many GEMMs at once: the best of each, and at most so many configurations that serve them all.

A set's cost is the time of all GEMMs, each as often as it is run and with the set's best for it. The set is built
greedily (what lowers the cost most is added), then exchanged: one of it for one outside, as long as that lowers the
cost. Candidates are the best few of every GEMM. A candidate is simulated on another GEMM only where its bound
(`sim.lower_bound`) says that it may be better there than what the set has, so that every choice is as if all had been.
Greedy with exchange is not proved to be the best of all sets.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.call import Call, Options, run_call
from sim.launch import check_partial_sums
from sim.lower_bound import lower_bound
from sim.schedule.config import KernelConfig
from sim.tiles import every, search
from workloads.checks import check_integer
from workloads.gemm import Gemm
from workloads.operations import Step

CANDIDATES = 4
"""Of each GEMM, so many of its best are considered for a set."""
MOST_IN_SET = 100
NEVER = float("inf")
"""Seconds of a configuration on a GEMM that it does not fit."""
Cost = tuple[int, float]
Progress = Callable[[int, int], None]
"""(GEMMs searched, of how many)."""


@dataclass(frozen=True)
class Wanted:
    """A GEMM with how often it is run; `names` say what it is."""

    gemm: Gemm
    count: int = 1
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Served:
    """A GEMM with its fastest configurations, the fastest first."""

    wanted: Wanted
    calls: tuple[Call, ...]
    considered: frozenset[KernelConfig] = field(default=frozenset(), repr=False)
    """All that were searched; none of them but `calls` is faster than the last of these."""

    @property
    def best(self) -> Call:
        """The fastest."""
        return self.calls[0]


@dataclass(frozen=True)
class TileSet:
    """Configurations that serve all GEMMs. `choice[i]`: index into `configs` of the fastest for GEMM i, `times_s[i]`
    its seconds there; `best_s[i]`: those of the fastest of all configurations."""

    configs: tuple[KernelConfig, ...]
    choice: tuple[int, ...]
    times_s: tuple[float, ...]
    best_s: tuple[float, ...]
    counts: tuple[int, ...]

    @property
    def loss(self) -> float:
        """Time of all GEMMs, as often as each is run, over that with the best of each, less 1."""
        return _sum(self.counts, self.times_s) / _sum(self.counts, self.best_s) - 1

    @property
    def losses(self) -> tuple[float, ...]:
        """The same of each GEMM."""
        return tuple(time_s / best_s - 1 for time_s, best_s in zip(self.times_s, self.best_s, strict=True))


def gemms_of(steps: Iterable[Step]) -> tuple[Wanted, ...]:
    """The distinct GEMMs of some steps, as often as all run them together, in the order in which they are first met.
    Raises ConfigError where there are none."""
    counts: dict[Gemm, int] = {}
    names: dict[Gemm, dict[str, None]] = {}
    for step in steps:
        for operation in step.operations:
            if isinstance(operation.work, Gemm):
                counts[operation.work] = counts.get(operation.work, 0) + 1
                names.setdefault(operation.work, {})[operation.name] = None
    if not counts:
        raise ConfigError("GEMMs: the model has none in this phase (tile sets)")
    return tuple(Wanted(gemm, count, tuple(names[gemm])) for gemm, count in counts.items())


def best_of_each(
    wanted: Sequence[Wanted],
    gpu: Gpu,
    options: Options | None = None,
    *,
    candidates: int = 1,
    family: str | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> tuple[Served, ...]:
    """The fastest configurations of each GEMM, `candidates` of them (`CANDIDATES` for `at_most`), among all that fit,
    of a family if one is given.

    Raises ConfigError where nothing fits one of them.
    """
    menus = [every(each.gemm, gpu, family) for each in wanted]
    n_threads = threads or os.cpu_count() or 1
    at_once = max(1, min(n_threads, len(wanted)))

    def serve(i: int) -> Served:
        best = search(wanted[i].gemm, gpu, menus[i], options, best=candidates, threads=n_threads // at_once)
        return Served(wanted[i], best.calls[: best.n_best], frozenset(menus[i]))

    longest_first = sorted(range(len(wanted)), key=lambda i: -wanted[i].gemm.flops)
    pool = ThreadPoolExecutor(at_once)
    try:
        running = {i: pool.submit(serve, i) for i in longest_first}
        for done, task in enumerate(as_completed(running.values()), 1):
            if progress and not task.exception():
                progress(done, len(wanted))
        return tuple(running[i].result() for i in range(len(wanted)))
    finally:
        pool.shutdown(cancel_futures=True)


def at_most(
    most: int, served: Sequence[Served], gpu: Gpu, options: Options | None = None, threads: int | None = None
) -> TileSet:
    """`most` configurations or fewer that serve all GEMMs.

    Raises ConfigError for a number that is none, and where so few candidates do not run on all of them.
    """
    check_integer("at most", most, 1, MOST_IN_SET, "tile sets")
    times = _Times(served, gpu, options or Options(), threads)
    chosen: list[int] = []
    while len(chosen) < most and (added := times.addition(chosen)) is not None:
        chosen.append(added)
    chosen = _exchanged(chosen, times)
    current = times.current(chosen)
    if NEVER in current:
        gemm = served[current.index(NEVER)].wanted.gemm
        raise ConfigError(
            f"at most = {most}: must be more, as no {most} of the candidates run on all GEMMs; {gemm.m} x {gemm.n} x "
            f"{gemm.k} is left out (tile sets)"
        )
    used = sorted(set(times.choice(chosen)), key=chosen.index)
    return TileSet(
        configs=tuple(times.configs[i] for i in used),
        choice=tuple(used.index(i) for i in times.choice(chosen)),
        times_s=tuple(current),
        best_s=tuple(each.best.time_s for each in served),
        counts=tuple(each.wanted.count for each in served),
    )


def _exchanged(chosen: list[int], times: _Times) -> list[int]:
    """The set after exchanges of one for one outside, as long as any lowers the cost."""
    better = True
    while better:
        better = False
        for i in range(len(chosen)):
            others = chosen[:i] + chosen[i + 1 :]
            added = times.addition(others)
            if added is not None and times.cost([*others, added]) < times.cost(chosen):
                chosen, better = [*others, added], True
    return chosen


def _sum(counts: Sequence[int], times_s: Sequence[float]) -> float:
    return sum(count * time_s for count, time_s in zip(counts, times_s, strict=True))


@dataclass
class _Times:
    """Seconds of candidates on GEMMs, simulated where they matter."""

    served: Sequence[Served]
    gpu: Gpu
    options: Options
    threads: int | None
    configs: list[KernelConfig] = field(init=False)
    counts: list[int] = field(init=False)
    least: list[list[float]] = field(init=False)
    """[candidate][GEMM]: a bound, or the time itself where `known`."""
    known: list[list[bool]] = field(init=False)

    def __post_init__(self) -> None:
        self.configs = list(dict.fromkeys(call.plan.config for each in self.served for call in each.calls))
        self.counts = [each.wanted.count for each in self.served]
        simulated = [{call.plan.config: call.time_s for call in each.calls} for each in self.served]
        self.known = [[config in times for times in simulated] for config in self.configs]
        self.least = [
            [
                times[config] if config in times else self._bound(config, each)
                for each, times in zip(self.served, simulated, strict=True)
            ]
            for config in self.configs
        ]

    def _bound(self, config: KernelConfig, served: Served) -> float:
        gemm = served.wanted.gemm
        resident = (1.0, 1.0) if gemm.l2 == "warm" else (0.0, 0.0)
        slowest_s = served.calls[-1].time_s if config in served.considered else 0.0
        try:
            check_partial_sums(gemm, config, self.gpu, False)
            bound = lower_bound(gemm, config, self.gpu, self.options, resident)
        except ConfigError:
            return NEVER
        return max(slowest_s, bound.simulated_s)

    def current(self, chosen: Sequence[int]) -> list[float]:
        """Seconds of each GEMM with the best of `chosen`."""
        fastest = self.choice(chosen) if chosen else []
        return [self.least[i][j] for j, i in enumerate(fastest)] or [NEVER] * len(self.served)

    def choice(self, chosen: Sequence[int]) -> list[int]:
        """Which of `chosen` each GEMM is fastest with."""
        return [self._fastest(chosen, j) for j in range(len(self.served))]

    def cost(self, chosen: Sequence[int]) -> Cost:
        """(GEMMs that are not served, seconds of the others, as often as they are run)."""
        return self._cost_with(None, self.current(chosen))

    def _fastest(self, chosen: Sequence[int], j: int) -> int:
        """Simulates those whose bound is least, until the least is no bound."""
        while not self.known[fastest := min(chosen, key=lambda i: self.least[i][j])][j]:
            self._simulate(fastest, [j])
        return fastest

    def addition(self, chosen: Sequence[int]) -> int | None:
        """The candidate with which `chosen` costs least; None where none makes it better."""
        now = self.current(chosen)
        while True:
            costs = {i: self._cost_with(i, now) for i in range(len(self.configs)) if i not in chosen}
            if not costs:
                return None
            best = min(costs, key=lambda i: costs[i])
            if costs[best] >= self._cost_with(None, now):
                return None
            unknown = [j for j in range(len(now)) if not self.known[best][j] and self.least[best][j] < now[j]]
            if not unknown:
                return best
            self._simulate(best, unknown)

    def _cost_with(self, i: int | None, now: Sequence[float]) -> Cost:
        """The cost with a candidate added, at least."""
        with_it = [min(time_s, self.least[i][j]) if i is not None else time_s for j, time_s in enumerate(now)]
        return with_it.count(NEVER), _sum(self.counts, [0.0 if time_s == NEVER else time_s for time_s in with_it])

    def _simulate(self, i: int, gemms: Sequence[int]) -> None:
        def run(j: int) -> float:
            if self.least[i][j] == NEVER:
                return NEVER
            return run_call(self.served[j].wanted.gemm, self.configs[i], self.gpu, self.options).time_s

        with ThreadPoolExecutor(self.threads) as pool:
            for j, time_s in zip(gemms, pool.map(run, gemms), strict=True):
                self.least[i][j], self.known[i][j] = time_s, True
