"""One calibration from tables to outcome: microbenchmarks read, then traffic, cycles and clock fitted, then judged."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hwmodels.catalog import load_gpu, resolved
from hwmodels.errors import ConfigError
from hwmodels.spec import FIELDS
from sim.calibration import judge, readings, tables
from sim.calibration.constants import CONSTANTS, LEFT, OWN_PROGRAMS, STAGES, Constant, candidates, values_of, within
from sim.calibration.fit import Problem, observations
from sim.calibration.outcome import Fitted, Identified, Outcome, StageError
from sim.calibration.plan import Plan, Told
from sim.calibration.predictions import Predictions, Simulate, cost_s
from sim.calibration.stages import Fold, Stages, Values, out_of_fold_pct
from sim.calibration.tables import Item

MIN_FOLDS, MAX_FOLDS = 2, 20
CODE = Path(__file__).resolve().parents[2]
JUDGING, AROUND = "judging", "how sure"


@dataclass(frozen=True)
class Request:
    """What to calibrate: the GPU (a shipped name or a file), tables or folders of them, and how."""

    gpu: str
    paths: tuple[Path, ...]
    every_row: bool = False
    n_folds: int = 5
    n_drawn: int = tables.DRAWN_ROWS
    """Rows of each half that are drawn, unless `every_row`."""
    command: str = "tilewalk calibrate"
    """To be quoted as the source of what is fitted."""
    threads: int = 2


class Calibration:
    """One run. `state` keeps what was simulated, so that a run that was stopped is continued by the next.

    Raises ConfigError for a GPU, tables or options that cannot be used. `simulate` stands in for the simulator.
    """

    def __init__(self, request: Request, state: Path | None = None, simulate: Simulate | None = None) -> None:
        if not MIN_FOLDS <= request.n_folds <= MAX_FOLDS:
            raise ConfigError(f"folds = {request.n_folds}: must be from {MIN_FOLDS} to {MAX_FOLDS}")
        self.request = request
        self.gpu = load_gpu(request.gpu)
        self.data = tables.read(request.paths, self.gpu)
        self.rows = {half: _drawn(self.data.items, half, request) for half in (True, False)}
        """Rows to fit (True) and to judge by (False)."""
        self.readings = readings.read(self.data.benches, self.gpu, self.data.counted_gb_per_s)
        changed = {one.key: one for one in self.readings if not one.agrees}
        self.chosen, self.left = self._candidates()
        self.before = {key: one.before for key, one in changed.items()} | values_of(self.gpu, self.chosen)
        self.start = {key: one.value for key, one in changed.items()} | {
            constant.key: within(constant, self.before[constant.key]) for constant in self.chosen
        }
        self.predictions = Predictions(self.gpu, self.chosen, tuple(changed), request.threads, simulate)
        self.resumed = self.predictions.keep(state, self._header()) if state is not None else ""
        """What became of the state of an earlier run: nothing, "continued", or why it was not."""

    def _candidates(self) -> tuple[tuple[Constant, ...], dict[str, str]]:
        """The constants to fit, and {key: why not} of the others."""
        read = {one.key: one.file for one in self.readings}
        chosen, left = candidates(self.gpu, [item.config for item in self.rows[True]])
        left |= {key: why for key, why in LEFT.items() if self.gpu.provenance[key].kind == "fitted"}
        for section, command in OWN_PROGRAMS.items():
            left[f"{section}.*"] = f"fitted to tables of other operations by {command}"
        left |= {constant.key: f"read from {read[constant.key]}" for constant in CONSTANTS if constant.key in read}
        return tuple(constant for constant in chosen if constant.key not in read), left

    def _header(self) -> dict[str, Any]:
        """What answers depend on beside the question asked, by the word for what may have changed."""
        return {
            "data": self.data.digest,
            "GPU": hashlib.sha256(repr(resolved(self.gpu)).encode()).hexdigest(),
            "arguments": [self.request.every_row, self.request.n_folds, self.request.n_drawn],
            "Tilewalk": _code_digest(),
        }

    def stop(self) -> None:
        """End a `run` in another thread, and save what it has simulated."""
        self.predictions.stop()

    def forget(self) -> None:
        """Remove the state: the outcome has been written."""
        self.predictions.forget()

    def run(self, told: Told = lambda text, left_s: None) -> Outcome:
        """Fit and judge. `told` hears what is being done."""
        began_s = time.monotonic()
        plan = Plan(self.predictions, told)
        self.predictions.heard = plan.tell
        stages = Stages(self.predictions, self.rows[True], self.chosen, self.start, plan)
        stages.foresee(self.request.n_folds)
        self._foresee_judging(plan)
        values = stages.fit()
        folds = stages.folds(values, self.request.n_folds)
        plan.begin(AROUND)
        constants, identified = self._around(stages, values, folds)
        plan.begin(JUDGING)
        points = judge.points(self.predictions, [*self.rows[True], *self.rows[False]], self.before, values)
        return Outcome(
            gpu=self.gpu.name,
            label=self.gpu.label,
            inherits=self.request.gpu,
            command=self.request.command,
            files=self.data.files,
            digest=self.data.digest,
            drawn=self._drawn_words(),
            n_folds=len(folds),
            seconds=time.monotonic() - began_s,
            simulations=self.predictions.simulated,
            constants=constants,
            left=self.left | stages.left,
            readings=self.readings,
            stages=tuple(_stage_error(stages, stage, values, folds) for stage in STAGES if stages.of(stage)),
            groups=judge.error_groups(points),
            identified=identified,
            points=points,
            unused=self.data.unused,
        )

    def _foresee_judging(self, plan: Plan) -> None:
        """Tell the plan what judging will cost."""
        plan.expect(JUDGING, 2 * sum(cost_s(item) for half in self.rows.values() for item in half))
        rows = {(one.item, one.target.held) for one in observations(self.rows[True])}
        plan.expect(AROUND, sum(2.5 * cost_s(i) * sum(c.uses(i.config) for c in self.chosen) for i, _ in rows))

    def _around(self, stages: Stages, values: Values, folds: Sequence[Fold]) -> tuple[tuple[Fitted, ...], Identified]:
        """How sure each constant is, and which cannot be told apart."""
        everything = Problem(self.predictions, observations(stages.items))
        identified = judge.identified(everything, stages.constants, values)
        problems = {stage: Problem(self.predictions, stages.seen(stage)) for stage in STAGES}
        fitted = tuple(
            _fitted(problems[constant.stage], constant, self.before[constant.key], values, folds, deviation_pct)
            for constant, deviation_pct in zip(stages.constants, identified.deviations_pct, strict=True)
        )
        return fitted, identified

    def _drawn_words(self) -> str:
        n, n_judged = len(self.rows[True]), len(self.rows[False])
        n_shapes = len({item.shape for item in self.rows[True]})
        halves = f"{n:,} rows of {n_shapes:,} shapes of even hash are fitted, {n_judged:,} of odd hash judged"
        usable = f"of {len(self.data.items):,} usable rows"
        if self.request.every_row:
            return f"{halves}: all {usable}."
        return (
            f"{halves}, {usable}: of each stratum (table, kernel family, data type, class of shape) a number of rows "
            f"in proportion to the square root of its size, {tables.LEAST_DRAWN} at least, by a hash of inputs with "
            f"seed {tables.SEED}; kernels of more than {tables.MOST_ITERATIONS:,} k-iterations are left out."
        )


def _drawn(items: Sequence[Item], fitted: bool, request: Request) -> list[Item]:
    """The rows of one half that are used."""
    half = [item for item in items if item.fitted == fitted]
    return half if request.every_row else tables.draw(half, request.n_drawn)


def _fitted(
    problem: Problem, constant: Constant, before: float, values: Values, folds: Sequence[Fold], deviation_pct: float
) -> Fitted:
    among = problem.feeling(constant)
    up_pct, down_pct = judge.around(problem, constant, values)
    return Fitted(
        key=constant.key,
        unit=FIELDS[constant.key].unit,
        stage=constant.stage,
        before=before,
        after=values[constant.key],
        low=constant.low,
        high=constant.high,
        rows=constant.rows,
        n_rows=len({problem.seen[i].item for i in among}),
        n_shapes=problem.shapes(among),
        folds=tuple(fold.values[constant.key] for fold in folds),
        loss_up_pct=up_pct,
        loss_down_pct=down_pct,
        effect_pct=100 * problem.effect(constant, values)[0],
        deviation_pct=deviation_pct,
    )


def _stage_error(stages: Stages, stage: str, values: Values, folds: Sequence[Fold]) -> StageError:
    problem = Problem(stages.predictions, stages.seen(stage))
    rows = {one.item for one in problem.seen}
    return StageError(
        stage=stage,
        compares=tuple(dict.fromkeys(one.target.name for one in problem.seen)),
        n_rows=len(rows),
        n_shapes=len({item.shape for item in rows}),
        before_pct=problem.mean_error_pct(stages.start),
        after_pct=problem.mean_error_pct(values),
        out_of_fold_pct=out_of_fold_pct(folds, stage),
    )


def _code_digest() -> str:
    """Of all code that an answer can depend on."""
    digest = hashlib.sha256()
    for package in ("hwmodels", "workloads", "sim"):
        for path in sorted((CODE / package).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()
