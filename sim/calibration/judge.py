"""How well, how surely: errors on shapes fitted and not, the loss near the optimum, what cannot be told apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sim.calibration.constants import Constant, within
from sim.calibration.fit import PRIOR_FACTOR, Problem
from sim.calibration.outcome import ErrorGroup, Identified, Point
from sim.calibration.predictions import QUANTITIES, Array, Predictions, Values
from sim.calibration.tables import Item

CHANGE = 1.1
"""The factor by which constants are changed for sensitivities, up and down."""
ALIKE = 0.9
"""Correlation of two estimates from which the data are said not to tell the constants apart."""
COUNTED = ("sm_cycles", "sm_mhz", "dram_read_bytes", "l2_read_bytes")
"""Quantities of counters.csv beside time."""
TABLES = ("gemm", "tile_sweep", "counters")


# Errors as `tilewalk validate` takes them: every kernel at the clock that the model gives it.
def points(predictions: Predictions, items: Sequence[Item], before: Values, after: Values) -> tuple[Point, ...]:
    """Each row's quantities, measured and predicted with the constants before and after; without rows not predicted."""
    old, new = (predictions.of(items, values, held=False) for values in (before, after))
    found = []
    for item, was, now in zip(items, old, new, strict=True):
        if np.isfinite(was).all() and np.isfinite(now).all():
            inputs, config = item.row.inputs, item.config
            found.append(
                Point(
                    table=item.table,
                    family=item.family,
                    fitted=item.fitted,
                    shape=item.shape,
                    configuration=f"{config.block_m}x{config.block_n}x{config.block_k}",
                    flops=2.0 * inputs.m * inputs.n * inputs.k,
                    measured={name: getattr(item.row.measured, name) for name in ("time_us", *COUNTED)},
                    before=dict(zip(QUANTITIES, map(float, was), strict=True)),
                    after=dict(zip(QUANTITIES, map(float, now), strict=True)),
                )
            )
    return tuple(found)


def error_groups(all_points: Sequence[Point]) -> tuple[ErrorGroup, ...]:
    """MAPE before and after of each quantity, kernel family and table, for shapes fitted and not."""
    found = []
    for table in TABLES:
        mine = [point for point in all_points if point.table == table]
        families = sorted({point.family for point in mine})
        for family in families if len(families) > 1 else ():
            found += _halves(table, family, "time_us", [point for point in mine if point.family == family])
        found += _halves(table, "all", "time_us", mine)
        for quantity in COUNTED if table == "counters" else ():
            found += _halves(table, "all", quantity, mine)
    return tuple(found)


def _halves(table: str, family: str, quantity: str, mine: Sequence[Point]) -> list[ErrorGroup]:
    found = []
    for fitted in (True, False):
        half = [point for point in mine if point.fitted == fitted and point.measured[quantity]]
        if half:
            before, after = (
                float(np.mean([abs(point.error_pct(quantity, which)) for point in half]))
                for which in ("before", "after")
            )
            found.append(ErrorGroup(table, family, quantity, fitted, len(half), before, after))
    return found


# Around the optimum.
def around(problem: Problem, constant: Constant, values: Values) -> tuple[float, float]:
    """Change of the problem's loss, percent, where the constant is 10 % larger and where it is 10 % smaller."""
    least = problem.loss(values)
    value = values[constant.key]
    changed = (
        problem.loss({**values, constant.key: within(constant, moved)}) for moved in (value * CHANGE, value / CHANGE)
    )
    up, down = (100 * (loss / least - 1) if least else 0.0 for loss in changed)
    return up, down


def identified(problem: Problem, constants: Sequence[Constant], values: Values) -> Identified:
    """Which constants the observations tell apart, by the slopes of all of them together.

    Correlations are those of the estimates: of two constants near 1 or -1, the data know a combination only. Kernels
    whose error is large, and many of one shape, weigh less, as they do in the fit. The condition number is that of the
    slopes with each constant's brought to length 1.
    """
    if not constants:
        return Identified((), np.zeros((0, 0)), 1.0, (), ())
    residuals = problem.residuals(values)
    slopes = np.array([problem.slope(constant, values) for constant in constants]).T
    weighted = slopes * (problem.weights**0.5 * (1 + residuals**2) ** -0.25)[:, None]
    lengths = np.linalg.norm(weighted, axis=0)
    lengths = np.where(lengths > 0, lengths, 1.0)
    information = weighted.T @ weighted + np.eye(len(constants)) / np.log(PRIOR_FACTOR) ** 2
    covariance = np.linalg.inv(information)
    deviations = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(deviations, deviations)
    noise = np.sqrt(np.mean(residuals**2 / np.sqrt(1 + residuals**2)))
    keys = tuple(constant.key for constant in constants)
    return Identified(
        keys,
        correlation,
        float(np.linalg.cond(weighted / lengths)),
        _alike(keys, correlation),
        tuple(float(100 * noise * deviation) for deviation in deviations),
    )


def _alike(keys: Sequence[str], correlation: Array) -> tuple[tuple[str, str, float], ...]:
    """Pairs that the data cannot tell apart, the worst first."""
    pairs = [
        (keys[i], keys[j], float(correlation[i, j]))
        for i in range(len(keys))
        for j in range(i + 1, len(keys))
        if abs(correlation[i, j]) >= ALIKE
    ]
    return tuple(sorted(pairs, key=lambda pair: -abs(pair[2])))
