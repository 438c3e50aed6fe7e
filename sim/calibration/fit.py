"""Moving the constants: for each stage, the least robust loss over its observations, by a trust-region method.

A residual is the logarithm of predicted over measured, in units of the error that counts in full; beyond that the loss
(soft L1) grows in proportion only, so that kernels which the model does not know do not steer the rest. Rows of one
shape err together, so n of them count as the square root of n. Constants move on a logarithmic scale.

What a kernel takes is no smooth function of a constant: SMs that drift apart otherwise meet other chunks in L2, so that
times of cp.async kernels jump by some tenths of a percent at any change. So slopes are taken over steps of 20 % both
ways, and a constant counts as determined only by what its rows do on the whole.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from sim.calibration.constants import Constant, within
from sim.calibration.predictions import QUANTITIES, Array, Predictions, Values
from sim.calibration.tables import Item

Indices = npt.NDArray[np.int64]

SLOPE_STEP = 1.2
"""Factor up and down over which slopes are taken: large against the jumps, small against curvature."""
PRIOR_FACTOR = 10.0
"""A constant this factor away from where it started counts as one row whose error counts in full: of directions that
the data cannot tell apart, the nearest is taken."""
LEAST_ROWS, LEAST_SHAPES = 8, 3
LEAST_EFFECT, LEAST_CERTAINTY = 3e-4, 2.5
"""Mean change of its rows for 10 % of a constant, and that mean over its standard error, that determine it at least."""
STEEPEST = 1.5
"""Slope of a row (logarithm by logarithm) beyond which it is a jump: no time is more than proportional to one constant,
a clock hardly."""
LOSS_TOLERANCE, STEP_TOLERANCE = 3e-3, 1e-3
"""Relative change of the loss, and step relative to the logarithms' length, at which a fit is done."""


@dataclass(frozen=True)
class Target:
    """What a stage compares: a quantity of one kind of table. `held`: simulated at the measured clock."""

    stage: str
    table: str
    quantity: str
    scale: float
    """Error (logarithm) up to which a row counts in full."""
    held: bool = False
    least_us: float = 0.0
    """Shorter kernels are left out."""

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.quantity} of {self.table}"


TARGETS = (
    Target("traffic", "counters", "l2_read_bytes", 0.03, held=True),
    Target("traffic", "counters", "dram_read_bytes", 0.03, held=True),
    Target("cycles", "counters", "sm_cycles", 0.03, held=True),
    Target("cycles", "gemm", "time_us", 0.03),
    Target("cycles", "tile_sweep", "time_us", 0.03),
    Target("clock", "counters", "sm_mhz", 0.01, least_us=20.0),
)


@dataclass(frozen=True)
class Observation:
    """One measured figure of one row."""

    item: Item
    target: Target

    @property
    def measured(self) -> float:
        """In the quantity's own unit, above 0."""
        return float(getattr(self.item.row.measured, self.target.quantity))


def observations(items: Sequence[Item], stage: str | None = None) -> list[Observation]:
    """What the rows have to say to a stage, or to all."""
    return [
        Observation(item, target)
        for target in TARGETS
        if stage in (None, target.stage)
        for item in items
        if item.table == target.table
        and getattr(item.row.measured, target.quantity)
        and item.row.measured.time_us >= target.least_us
    ]


class Problem:
    """Residuals of some observations and their slopes, as functions of the constants' values."""

    def __init__(self, predictions: Predictions, seen: Sequence[Observation]) -> None:
        self.predictions = predictions
        self.seen = tuple(seen)
        self._measured = np.array([one.measured for one in seen])
        self._scale = np.array([one.target.scale for one in seen])
        self._column = np.array([QUANTITIES.index(one.target.quantity) for one in seen], dtype=np.int64)
        self._held = np.array([one.target.held for one in seen], dtype=bool)
        of_shape = Counter((one.target, one.item.shape) for one in seen)
        self.weights = np.array([of_shape[one.target, one.item.shape] ** -0.5 for one in seen])

    def errors(self, values: Values, among: Indices | None = None) -> Array:
        """log(predicted / measured) of each observation (of those at indices `among`); 0 where none is predicted."""
        index = np.arange(len(self.seen)) if among is None else among
        found = np.zeros(len(index))
        for held in (True, False):
            part = np.flatnonzero(self._held[index] == held)
            chosen = index[part]
            rows = self.predictions.of([self.seen[i].item for i in chosen], values, held)
            predicted = rows[np.arange(len(chosen)), self._column[chosen]]
            with np.errstate(divide="ignore", invalid="ignore"):
                logs = np.log(predicted / self._measured[chosen])
            found[part] = np.where(np.isfinite(logs), logs, 0.0)
        return found

    def residuals(self, values: Values) -> Array:
        """Errors in units of what counts in full."""
        found: Array = self.errors(values) / self._scale
        return found

    def feeling(self, constant: Constant) -> Indices:
        """Indices of the observations whose kernel can feel a constant."""
        return np.flatnonzero([constant.uses(one.item.config) for one in self.seen])

    def slope(self, constant: Constant, values: Values) -> Array:
        """d residual / d log(constant) of each observation, between the constant a step larger and a step smaller."""
        column: Array = self._steepness(constant, values) / self._scale
        return column

    def _steepness(self, constant: Constant, values: Values) -> Array:
        """d log(predicted) / d log(constant) of each observation, no more than `STEEPEST`; 0 where it is not felt."""
        low, high = (within(constant, values[constant.key] * step) for step in (1 / SLOPE_STEP, SLOPE_STEP))
        among, column = self.feeling(constant), np.zeros(len(self.seen))
        if high > low:
            ends = (self.errors({**values, constant.key: value}, among) for value in (high, low))
            column[among] = np.clip((next(ends) - next(ends)) / math.log(high / low), -STEEPEST, STEEPEST)
        return column

    def shapes(self, among: Indices) -> int:
        """How many shapes these observations are of."""
        return len({self.seen[i].item.shape for i in among})

    def loss(self, values: Values) -> float:
        """Weighted mean of the observations' soft-L1 loss: half the squared residual while that is small."""
        return float(np.average(soft_l1(self.residuals(values)), weights=self.weights)) if self.seen else 0.0

    def mean_error_pct(self, values: Values) -> float:
        """Mean absolute error over all observations, percent."""
        return 100 * float(np.mean(np.abs(np.expm1(self.errors(values))))) if self.seen else math.nan

    def effect(self, constant: Constant, values: Values) -> tuple[float, float]:
        """Mean relative change, for 10 % of the constant, of the quantity that it changes most clearly, and the
        standard error of that: a mean over shapes, each the mean of its rows that can feel the constant."""
        change = math.log(1.1) * self._steepness(constant, values)
        by_shape: dict[Target, dict[str, list[float]]] = {}
        for i in self.feeling(constant):
            one = self.seen[i]
            by_shape.setdefault(one.target, {}).setdefault(one.item.shape, []).append(float(change[i]))
        found = [(0.0, 0.0)]
        for shapes in by_shape.values():
            means = np.array([np.mean(rows) for rows in shapes.values()])
            if len(means) >= LEAST_SHAPES:
                found.append((float(np.mean(means)), float(np.std(means, ddof=1) / math.sqrt(len(means)))))
        return max(found, key=lambda one: (certainty(*one), abs(one[0])))


def certainty(mean: float, error: float) -> float:
    """A mean over its standard error."""
    if error == 0:
        return math.inf if mean else 0.0
    return abs(mean) / error


def soft_l1(residuals: Array) -> Array:
    """sqrt(1 + r^2) - 1: half of r^2 for small r, |r| - 1 for large."""
    loss: Array = np.sqrt(1 + residuals**2) - 1
    return loss


def determined(
    problem: Problem, constants: Sequence[Constant], values: Values
) -> tuple[list[Constant], dict[str, str]]:
    """Those constants that the observations can determine, and {key: why not} of the others."""
    kept, left = [], {}
    for constant in constants:
        among = problem.feeling(constant)
        n, n_shapes = len({problem.seen[i].item for i in among}), problem.shapes(among)
        if n < LEAST_ROWS or n_shapes < LEAST_SHAPES:
            left[constant.key] = (
                f"too few rows: {n} of {n_shapes} shapes feel it, at least {LEAST_ROWS} of {LEAST_SHAPES} must"
            )
            continue
        effect, error = problem.effect(constant, values)
        if abs(effect) < LEAST_EFFECT or certainty(effect, error) < LEAST_CERTAINTY:
            left[constant.key] = (
                f"no clear effect on {n} rows: 10 % of it changes them by {100 * effect:+.3f} ± {100 * error:.3f} % on "
                f"average; {100 * LEAST_EFFECT:g} % and {LEAST_CERTAINTY:g} standard errors are needed"
            )
        else:
            kept.append(constant)
    return kept, left


def fit_stage(
    problem: Problem,
    constants: Sequence[Constant],
    values: Values,
    start: Values,
    most_tries: int,
    slopes_at: Values | None = None,
    told: Callable[[int, float], None] = lambda step, error_pct: None,
) -> dict[str, float]:
    """The values with those of `constants` moved to the least loss. `start` is what the prior pulls towards.

    At most `most_tries` sets of values are tried. With `slopes_at` slopes are those at these values throughout, which
    near an optimum serve as well and have been simulated before. `told(step, error in percent)` is called before each
    set of slopes.
    """
    if not constants or not problem.seen:
        return dict(values)
    origin = np.log([start[constant.key] for constant in constants])
    low, high = (np.log([getattr(constant, side) for constant in constants]) for side in ("low", "high"))
    tried, taken = 0, list[Array]()

    def at(logs: Array) -> dict[str, float]:
        return {**values, **{c.key: within(c, float(v)) for c, v in zip(constants, np.exp(logs), strict=True)}}

    def residuals(logs: Array) -> Array:
        nonlocal tried
        tried += 1
        return np.concatenate([problem.residuals(at(logs)), (logs - origin) / math.log(PRIOR_FACTOR)])

    def slopes(logs: Array) -> Array:
        if tried < most_tries or not taken:  # else it asks once more, and stops before it uses the answer
            here = at(logs)
            told(len(taken) + 1, problem.mean_error_pct(here))
            columns = [problem.slope(constant, slopes_at or here) for constant in constants]
            taken.append(np.vstack([np.array(columns).T, np.eye(len(constants)) / math.log(PRIOR_FACTOR)]))
        return taken[-1]

    weights = np.concatenate([problem.weights, np.ones(len(constants))])

    def loss(squares: Array) -> Array:
        """As scipy wants it: twice the soft-L1 loss, and its first two derivatives by the square."""
        root = np.sqrt(1 + squares)
        weighted: Array = weights * np.array([2 * (root - 1), 1 / root, -0.5 / root**3])
        return weighted

    found = least_squares(
        residuals,
        np.log([values[constant.key] for constant in constants]),
        jac=slopes,
        bounds=(low - 1e-9, high + 1e-9),  # a start at a bound counts as inside
        loss=loss,
        max_nfev=most_tries,
        ftol=LOSS_TOLERANCE,
        xtol=STEP_TOLERANCE,
        gtol=1e-6,
    )
    return at(found.x)
