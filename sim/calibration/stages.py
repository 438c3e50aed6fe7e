"""Going through the stages: bytes, then cycles, then the clock; and again with folds of shapes left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sim.calibration.constants import STAGES, Constant
from sim.calibration.fit import Observation, Problem, determined, fit_stage, observations
from sim.calibration.plan import Plan
from sim.calibration.predictions import Predictions, cost_s
from sim.calibration.tables import Item, deal_folds

ROUNDS = 2
"""Times the stages are gone through: the second time with the clock that the first found."""
SETTLED = 0.01
"""Change of the clock (root mean square) up to which one round is enough: times were fitted with the old clock."""
MOST_TRIES, FOLD_TRIES = 12, 4
"""Sets of values tried in a stage: from the GPU's, and from the optimum where a fold is left out."""
USUAL_SLOPES, USUAL_TRIES, USUAL_FOLD = 2.5, 5.0, 3.0
"""Sets of slopes and of values that a stage takes as a rule, and sets of values of a fold: for the time left."""
Values = dict[str, float]


@dataclass(frozen=True)
class Fold:
    """What comes of leaving out a fold's shapes: the constants, and {stage: errors (logarithms) on those shapes}."""

    values: Values
    errors: dict[str, list[float]]


class Stages:
    """The fit of `constants` to the observations of some rows."""

    def __init__(
        self, predictions: Predictions, items: Sequence[Item], constants: Sequence[Constant], start: Values, plan: Plan
    ) -> None:
        self.predictions, self.items, self.start = predictions, tuple(items), start
        self.constants = tuple(constants)
        """Those that are determined, once `fit` has been called."""
        self.left: dict[str, str] = {}
        """{key: why not} of the others."""
        self._plan = plan

    def of(self, stage: str) -> list[Constant]:
        """The constants of a stage."""
        return [constant for constant in self.constants if constant.stage == stage]

    def seen(self, stage: str, items: Sequence[Item] | None = None) -> list[Observation]:
        """The observations of a stage that its constants can move, of all rows or of these."""
        mine = self.of(stage)
        return [
            one
            for one in observations(self.items if items is None else items, stage)
            if any(constant.uses(one.item.config) for constant in mine)
        ]

    def foresee(self, n_folds: int) -> None:
        """Tell the plan what the fits and the folds will cost."""
        tries = {stage: sum(self._costs_s(stage).values()) for stage in STAGES}
        for stage in STAGES:
            slopes = sum(cost * 2 * self._n_felt(stage, item) for (item, _), cost in self._costs_s(stage).items())
            for turn in range(ROUNDS):
                cost_s = slopes * USUAL_SLOPES + tries[stage] * USUAL_TRIES
                self._plan.expect(_phase(stage, turn), cost_s / (1 + turn))
        for i in range(n_folds):
            self._plan.expect(_fold_phase(i, n_folds), sum(tries.values()) * USUAL_FOLD)

    def _costs_s(self, stage: str) -> dict[tuple[Item, bool], float]:
        """Rough cost of each simulation that a set of values takes."""
        return {(one.item, one.target.held): cost_s(one.item) for one in self.seen(stage)}

    def _n_felt(self, stage: str, item: Item) -> int:
        return sum(constant.uses(item.config) for constant in self.of(stage))

    def fit(self) -> Values:
        """The constants' values with the least loss, stage by stage, twice where the first round moved much.

        Constants that the rows do not determine are dropped before they are fitted.
        """
        values = dict(self.start)
        for turn in range(ROUNDS):
            before = dict(values)
            for stage in STAGES:
                self._plan.begin(_phase(stage, turn))
                if turn == 0:
                    self._drop_undetermined(stage, values)
                values = self._fit_stage(stage, values, self.items, MOST_TRIES)
            if self._clock_moved(before, values) < SETTLED:
                break
        for stage in STAGES:
            self._plan.skip(_phase(stage, 1))
        return values

    def _clock_moved(self, before: Values, after: Values) -> float:
        """Root-mean-square relative change of what the clock stage compares."""
        problem = Problem(self.predictions, self.seen("clock"))
        change = problem.errors(after) - problem.errors({**after, **{c.key: before[c.key] for c in self.of("clock")}})
        return float(np.sqrt(np.mean(change**2))) if len(change) else 0.0

    def _drop_undetermined(self, stage: str, values: Values) -> None:
        if self.of(stage):
            self._plan.say(f"{stage}: which constants the rows determine")
        problem = Problem(self.predictions, self.seen(stage))
        kept, left = determined(problem, self.of(stage), values)
        self.left |= left
        self.constants = tuple(c for c in self.constants if c.stage != stage or c in kept)

    def _fit_stage(
        self,
        stage: str,
        values: Values,
        items: Sequence[Item],
        most_tries: int,
        slopes_at: Values | None = None,
        said: str = "",
    ) -> Values:
        def told(step: int, error_pct: float) -> None:
            self._plan.say(f"{said}{stage}, step {step}, {error_pct:.2f} % off")

        problem = Problem(self.predictions, self.seen(stage, items))
        return fit_stage(problem, self.of(stage), values, self.start, most_tries, slopes_at, told)

    def folds(self, values: Values, n_folds: int) -> list[Fold]:
        """Fit again from `values` without each fold's shapes, with the slopes there, and predict the shapes left out;
        fewer folds where shapes are few."""
        fold_of = deal_folds(self.items, n_folds)
        n = min(n_folds, len(fold_of)) if self.constants else 0
        return [self._fold(i, n_folds, values, fold_of) for i in range(n if n > 1 else 0)]

    def _fold(self, i: int, n_folds: int, optimum: Values, fold_of: dict[str, int]) -> Fold:
        self._plan.begin(_fold_phase(i, n_folds))
        others = [item for item in self.items if fold_of[item.shape] != i]
        mine = [item for item in self.items if fold_of[item.shape] == i]
        values = dict(optimum)
        for stage in STAGES:
            values = self._fit_stage(stage, values, others, FOLD_TRIES, optimum, f"{_fold_phase(i, n_folds)}: ")
        errors = {stage: Problem(self.predictions, self.seen(stage, mine)).errors(values) for stage in STAGES}
        return Fold(values, {stage: [float(e) for e in found] for stage, found in errors.items()})


def out_of_fold_pct(folds: Sequence[Fold], stage: str) -> float | None:
    """Mean absolute error on shapes that were left out, percent; None without folds."""
    errors = [error for fold in folds for error in fold.errors[stage]]
    return 100 * float(np.mean(np.abs(np.expm1(errors)))) if errors else None


def _phase(stage: str, turn: int) -> str:
    return f"{stage}{', second round' if turn else ''}"


def _fold_phase(i: int, n_folds: int) -> str:
    return f"without fold {i + 1} of {n_folds}"
