"""What a case would take on other hardware: one variant, each lever in turn, or a grid of values.

Tiles: a variant and the points of a scan have kernels chosen anew for each GPU, unless `retune` is off. Of a
sensitivity, small steps keep the base's kernels (where a choice is best, another changes nothing to first order), but
of levers that change how many CTAs run at once; the doubled lever gets its own.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from hwmodels.errors import ConfigError
from hwmodels.levers import Lever, lever, levers, variant
from hwmodels.rules import value_at
from hwmodels.spec import Gpu
from sim.cases import Case, Figures, Tiles

STEP = 0.1
"""Of a lever, both ways, for its elasticity."""
DOUBLED = 2.0
KNEE = 0.02
"""From a knee on, what a curve can still gain is no more than this part of the time there."""
FEW_POINTS = 8
"""Below this many, other processes would take longer to start than they save."""
MOST_AXES = 2
MOST_POINTS = 10_000
MOST_COUNTED = 10**12
Progress = Callable[[int, int], None]
"""(points done, of how many)."""
Point = tuple[Case, Gpu, Tiles | None]
Found = Figures | ConfigError


@dataclass(frozen=True)
class Comparison:
    """A case on a GPU and on its variant."""

    base: Figures
    variant: Figures
    gpu: Gpu
    varied: Gpu
    retuned: bool

    @property
    def speedup(self) -> float:
        """How many times as fast the variant is."""
        return self.base.time_s / self.variant.time_s


@dataclass(frozen=True)
class Sensitivity:
    """One lever: time of the case with it a step down, a step up and doubled, over the base's; why not, where not."""

    lever: Lever
    down: float | None
    up: float | None
    doubled: float | None
    elasticity: float | None
    """d ln(time) / d ln(lever), from the steps down and up as they came out once rounded: -1 where time falls as the
    lever rises, 0 where it does not matter."""
    refused: str = ""


@dataclass(frozen=True)
class Axis:
    """A value or lever of a GPU and what it is set to; of a lever, and where `factors`, as factors of the base."""

    name: str
    values: tuple[float, ...]
    factors: bool = False

    def sets(self, value: float) -> str:
        """As `hwmodels.levers.variant` takes it."""
        return f"{self.name}={'*' if self.factors else ''}{value!r}"


@dataclass(frozen=True)
class Scan:
    """Figures over a grid: `points[i]` has the values `grid[i]` of the axes, the last axis first to change."""

    axes: tuple[Axis, ...]
    base: Figures
    grid: tuple[tuple[float, ...], ...]
    points: tuple[Found, ...]
    retuned: bool

    def knee(self, along: int, at: tuple[float, ...] = ()) -> float | None:
        """The least value of axis `along`, from which on time falls by `KNEE` at most; `at`: values of the others.
        None where none of its points can be simulated, and where time does not fall."""
        line = [
            (values[along], found.time_s)
            for values, found in zip(self.grid, self.points, strict=True)
            if isinstance(found, Figures) and values[:along] + values[along + 1 :] == at
        ]
        line.sort()
        best = min((time_s for _, time_s in line), default=math.inf)
        if not line or line[0][1] <= best * (1 + KNEE):
            return None
        return next(value for value, time_s in line if time_s <= best * (1 + KNEE))


def axis(text: str) -> Axis:
    """An axis as typed: `name=low:high:step`, `name=a,b,c`, or either with `*` before the numbers, which then are
    factors (`clock=*0.8:*1.2:*0.1`). Raises ConfigError for anything else, and for no or too many values."""
    name, equals, right = (part.strip() for part in text.partition("="))
    given = right.split(":" if ":" in right else ",")
    factors = all(part.strip().startswith("*") for part in given)
    try:
        numbers = [float(part.strip().removeprefix("*") if factors else part) for part in given]
    except ValueError:
        numbers = [math.nan]
    spread = ":" in right
    if not equals or not all(0 < number < math.inf for number in numbers) or (spread and len(numbers) != 3):
        form = "name=low:high:step or name=a,b,c, numbers above 0"
        raise ConfigError(f"scan {text[:60]!r}: needs the form {form} (scan)")
    values = _spread(text, numbers[0], numbers[1], numbers[2]) if spread else numbers
    if len(set(values)) < len(values):
        raise ConfigError(f"scan {text[:60]!r}: a value stands twice, must stand once (scan)")
    return Axis(lever(name).name, tuple(int(v) if v.is_integer() and not factors else v for v in values), factors)


def _spread(text: str, low: float, high: float, step: float) -> list[float]:
    many = (high - low) / step
    count = math.floor(many + 1e-9) + 1 if abs(many) < MOST_COUNTED else MOST_COUNTED
    if not 1 <= count <= MOST_POINTS:
        least = "at least " * (count == MOST_COUNTED)
        raise ConfigError(f"scan {text[:60]!r}: {least}{max(0, count):,} values, must be 1 to {MOST_POINTS:,} (scan)")
    return [round(low + i * step, 9) for i in range(count)]


def compare(case: Case, gpu: Gpu, sets: Iterable[str], *, retune: bool = True) -> Comparison:
    """The case on `gpu` and with `sets` (`hwmodels.levers.variant`). Raises ConfigError."""
    varied, base = variant(gpu, sets), case.figures(gpu)
    return Comparison(base, case.figures(varied, None if retune else base.tiles), gpu, varied, retune)


def sensitivity(
    case: Case,
    gpu: Gpu,
    names: Sequence[str] = (),
    *,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> tuple[Figures, tuple[Sensitivity, ...]]:
    """The base's figures, and every lever (or those of `names`, which may be values of a GPU) in turn, the most
    telling first. `executor` runs the points; without one, processes on all cores. Raises ConfigError for unknown
    names and where the base cannot be simulated."""
    asked = [lever(name) for name in names] or list(levers().values())
    base = case.figures(gpu)
    points: list[Point | ConfigError] = []
    for each in asked:
        for factor in (1 - STEP, 1 + STEP, DOUBLED):
            kept = None if factor == DOUBLED or each.refits else base.tiles
            points.append(_varied(case, gpu, [f"{each.name}=*{factor!r}"], kept))
    found = iter(_run(points, executor, progress))
    told = [_sensitivity(each, gpu, base, (next(found), next(found), next(found))) for each in asked]
    return base, tuple(sorted(told, key=lambda each: -abs(each.elasticity or 0.0)))


def _sensitivity(each: Lever, gpu: Gpu, base: Figures, found: Sequence[Found]) -> Sensitivity:
    down, up, doubled = (one.time_s / base.time_s if isinstance(one, Figures) else None for one in found)
    refused = next((str(one) for one in found if isinstance(one, ConfigError)), "")
    steps = [math.log(each.factor(gpu, factor)) for factor in (1 - STEP, 1 + STEP)]
    known = down and up and steps[0] < steps[1] and any(value_at(gpu, key) for key in each.keys)
    elasticity = (math.log(up) - math.log(down)) / (steps[1] - steps[0]) if known and up and down else None
    return Sensitivity(each, down, up, doubled, elasticity, refused)


def scan(
    case: Case,
    gpu: Gpu,
    axes: Sequence[Axis],
    *,
    retune: bool = True,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> Scan:
    """The case at every combination of the axes' values. Points that cannot be are ConfigErrors in its `points`.

    Raises ConfigError for unknown names, no or too many axes or points, and where the base cannot be simulated."""
    count = math.prod(len(axis.values) for axis in axes)
    if not 1 <= len(axes) <= MOST_AXES:
        raise ConfigError(f"axes = {len(axes)}: must be 1 to {MOST_AXES} (scan)")
    if not 1 <= count <= MOST_POINTS:
        raise ConfigError(f"points = {count:,}: must be 1 to {MOST_POINTS:,} (scan)")
    keys = [key for axis in axes for key in lever(axis.name).keys]
    if len(set(keys)) < len(keys):
        raise ConfigError(f"axes = {', '.join(axis.name for axis in axes)}: must not change the same value (scan)")
    base = case.figures(gpu)
    grid = tuple(itertools.product(*(axis.values for axis in axes)))
    kept = None if retune else base.tiles
    points = [
        _varied(case, gpu, [axis.sets(value) for axis, value in zip(axes, values, strict=True)], kept)
        for values in grid
    ]
    return Scan(tuple(axes), base, grid, tuple(_run(points, executor, progress)), retune)


def _varied(case: Case, gpu: Gpu, sets: Iterable[str], kept: Tiles | None) -> Point | ConfigError:
    try:
        return case, variant(gpu, sets), kept
    except ConfigError as error:
        return error


def simulated(point: Point) -> Found:
    """The figures of one point, or why there are none."""
    case, gpu, kept = point
    try:
        return case.figures(gpu, kept)
    except ConfigError as error:
        return error


def attempts(points: Sequence[Point], progress: Progress | None = None) -> list[Found]:
    """Figures of each point, or why there are none."""
    return _run(points, None, progress)


def _run(points: Sequence[Point | ConfigError], executor: Executor | None, progress: Progress | None) -> list[Found]:
    """Simulate the points that can be, in other processes or by `executor`; in their order."""
    wanted = [point for point in points if not isinstance(point, ConfigError)]
    found: list[Found] = []
    with _running(executor, len(wanted)) as results:
        for figures in results(wanted):
            found.append(figures)
            if progress:
                progress(len(found), len(wanted))
    rest = iter(found)
    return [point if isinstance(point, ConfigError) else next(rest) for point in points]


@contextmanager
def _running(executor: Executor | None, n_points: int) -> Iterator[Callable[[Sequence[Point]], Iterable[Found]]]:
    if executor is not None:
        yield lambda points: executor.map(simulated, points)
        return
    cores = os.cpu_count() or 1
    if n_points < FEW_POINTS or cores == 1:
        yield lambda points: map(simulated, points)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(cores, n_points), context) as pool:
        yield lambda points: pool.map(simulated, points)
