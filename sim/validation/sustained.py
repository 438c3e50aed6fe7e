"""Long load: `sustained_load.csv`, the same GEMM again and again from a board at rest on.

Windows that begin in the first `FIRST_S` are the "first second", in which the board slows down, against the course of
`sim.power_over_time`; the others are "steady state", against the state that `simulate(sustained=True)` tells. Each is
scored in time, clock (as the board reports it) and power (the meter's mean). The table names no kernel: it is the one
that cuBLAS was seen to launch for the same product, else what Tilewalk takes a library for. A and B are in L2 where
both fit it, as they are left there.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sim.power import reported_mhz
from sim.power_over_time import Load, OverTime, loads, over_time
from sim.validation.report import Report
from sim.validation.scores import summary, time_scores
from workloads.gemm import Gemm

if TYPE_CHECKING:
    from hwmodels.spec import Gpu
    from sim.result import Result

KIND = "sustained_load"
COLUMNS = ("case", "m", "n", "k", "seconds", "us_per_call", "t_mid", "sm_mhz", "watt")
FIRST_S = 1.0
FIRST, STEADY = "first second", "steady state"
DATA = {"random": "random", "zeros": "zeros", "randint": "sparse"}
"""The table's `case` -> what A and B hold."""
NOTE = """First second: windows that begin in it, a board at rest before, against the predicted course; steady state:
the others, against the state it settles at. The kernel is the one that cuBLAS was seen to launch for the same product.
The board's own readings of clock and power come up to 0.1 s late."""
Cells = dict[str, str]
Rows = list[tuple[float, ...]]
Key = tuple[str, int, int, int]
Predict = Callable[[Gemm, str], "Result"]


class Window(NamedTuple):
    """A stretch of repeated calls: from when to when in seconds, mean seconds a call, MHz and watts as reported."""

    start_s: float
    end_s: float
    call_s: float
    mhz: float
    watt: float


@dataclass(frozen=True)
class Case:
    """One GEMM, repeated: what was measured, and the two states that are predicted."""

    name: str
    gemm: Gemm
    windows: tuple[Window, ...]
    burst: Load
    settled: Load

    def of(self, stretch: str) -> list[Window]:
        """The windows of `FIRST` or `STEADY`."""
        return [window for window in self.windows if (window.start_s < FIRST_S) == (stretch == FIRST)]

    def predicted(self, gpu: Gpu) -> OverTime:
        """All that was measured."""
        return over_time(gpu, self.burst, self.settled, max(window.end_s for window in self.windows))


def is_sustained_table(path: Path) -> bool:
    """Whether the file's first line has this table's columns; False for what is no text file."""
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as stream:
            return set(COLUMNS) <= {name.strip() for name in next(csv.reader(stream), [])}
    except (OSError, UnicodeDecodeError, csv.Error):
        return False


def validate_sustained(gpu: Gpu, path: Path, predict: Predict | None = None) -> Report:
    """The errors of each case, one row a window. `predict(gemm, data)` stands in for the simulator."""
    _, skipped = _read(path)
    found = cases_of(gpu, path, predict)
    errors = {stretch: {case.name: _errors(gpu, case, stretch) for case in found} for stretch in (STEADY, FIRST)}
    groups = [_scores(stretch, _joined(by_case)) for stretch, by_case in errors.items()]
    for stretch, by_case in errors.items():
        groups += [_scores(f"{stretch}, {name}", off) for name, off in by_case.items() if off]
    overall = _scores("all rows", [error for by_case in errors.values() for error in _joined(by_case)])
    return Report(
        gpu=gpu.name,
        kind=KIND,
        source=Path(path).name,
        groups=tuple(groups),
        overall=overall,
        skipped=tuple(skipped),
        n_rows=overall["n"] + len(skipped),
        notes=(NOTE,),
    )


def cases_of(gpu: Gpu, path: Path, predict: Predict | None = None) -> list[Case]:
    """The cases of a table in its order, simulated. Raises OSError where it cannot be read."""
    known = predict or _simulator(gpu)
    return [_case(gpu, key, rows, known) for key, rows in _read(path)[0].items()]


def _read(path: Path) -> tuple[dict[Key, Rows], list[dict[str, Any]]]:
    """(t_mid, seconds, us_per_call, sm_mhz, watt) of each row by case, and rows that cannot be used."""
    found: dict[Key, Rows] = {}
    skipped: list[dict[str, Any]] = []
    with Path(path).open(encoding="utf-8-sig", newline="") as stream:
        for line, row in enumerate(csv.DictReader(stream), 2):
            try:
                key, numbers = _parsed(row)
            except (ValueError, TypeError, KeyError) as error:
                skipped.append({"row": line, "reason": f"cannot be used: {error}"})
            else:
                found.setdefault(key, []).append(numbers)
    return found, skipped


def _parsed(row: Cells) -> tuple[Key, tuple[float, ...]]:
    numbers = [float(row[name]) for name in ("t_mid", "seconds", "us_per_call", "sm_mhz", "watt")]
    usable = all(math.isfinite(number) for number in numbers) and min(numbers[1:]) > 0 and numbers[0] >= 0
    if not usable or row["case"] not in DATA:
        raise ValueError(f"case must be one of {', '.join(DATA)}, time, clock and power above 0")
    m, n, k = (int(row[name]) for name in "mnk")
    Gemm(m, n, k)
    return (row["case"], m, n, k), tuple(numbers)


def _case(gpu: Gpu, key: Key, rows: Rows, predict: Predict) -> Case:
    """The load begins with the case's first window: `t_mid` counts from its middle, in older tables from its start."""
    kind, m, n, k = key
    gemm = Gemm(m, n, k)
    fits = gemm.a_bytes + gemm.b_bytes <= gpu.l2.capacity_mib * 2**20 / gpu.l2.partitions
    begun = min(row[0] for row in rows)
    windows = tuple(Window(at - begun, at - begun + seconds, us * 1e-6, *more) for at, seconds, us, *more in rows)
    burst, settled = loads(predict(Gemm(m, n, k, l2="warm" if fits else "cold"), DATA[kind]))
    return Case(f"{kind}, {m}x{n}x{k}", gemm, windows, burst, settled)


def _simulator(gpu: Gpu) -> Predict:
    from sim.run import simulate
    from sim.schedule.library import launched

    def predict(gemm: Gemm, data: str) -> Result:
        return simulate(gemm, gpu, config=launched(gemm, gpu), tile="library", sustained=True, data=data)

    return predict


def _errors(gpu: Gpu, case: Case, stretch: str) -> list[list[float]]:
    """Signed errors in percent of each window: time, clock, power."""
    course = case.predicted(gpu)
    errors = []
    for window in case.of(stretch):
        found = case.settled if stretch == STEADY else course.between(window.start_s, window.end_s)
        predicted = found.call_s, reported_mhz(gpu, found.mhz), found.mean_w
        errors.append([100 * (value / real - 1) for value, real in zip(predicted, window[2:], strict=True)])
    return errors


def _joined(by_case: dict[str, list[list[float]]]) -> list[list[float]]:
    return [error for errors in by_case.values() for error in errors]


def _scores(name: str, errors: Sequence[Sequence[float]]) -> dict[str, Any]:
    """As `scores.summary`, of time, with the mean absolute errors of clock and power."""
    found = summary(KIND, name, ()) | {"n": len(errors), "sm_mhz_mape_pct": None, "watt_mape_pct": None}
    if not errors:
        return found
    means = [sum(abs(error[i]) for error in errors) / len(errors) for i in range(3)]
    return (
        found | time_scores([error[0] for error in errors]) | {"sm_mhz_mape_pct": means[1], "watt_mape_pct": means[2]}
    )
