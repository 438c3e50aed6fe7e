"""Long load: `sustained_load.csv`, the same GEMM again and again, against the clock and power it settles at.

Windows from `STEADY_S` on are steady state; each is scored in time, clock (as the board reports it) and power. The
kernel is Tilewalk's choice, as the table names none, and A and B are in L2 where both fit it, as they are left there.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.power import reported_mhz
from sim.validation.report import Report
from sim.validation.scores import summary, time_scores
from workloads.gemm import Gemm

if TYPE_CHECKING:
    from hwmodels.spec import Gpu
    from sim.result import Result

KIND = "sustained_load"
COLUMNS = ("case", "m", "n", "k", "us_per_call", "t_mid", "sm_mhz", "watt")
SCORED = ("us_per_call", "sm_mhz", "watt")
STEADY_S = 1.0
DATA = {"random": "random", "zeros": "zeros", "randint": "sparse"}
"""The table's `case` -> what A and B hold."""
Cells = dict[str, str]
Case = tuple[str, int, int, int]
Errors = list[list[float]]


def is_sustained_table(path: Path) -> bool:
    """Whether the file's first line has this table's columns; False for what is no text file."""
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as stream:
            return set(COLUMNS) <= {name.strip() for name in next(csv.reader(stream), [])}
    except (OSError, UnicodeDecodeError, csv.Error):
        return False


def validate_sustained(gpu: Gpu, path: Path, predict: Callable[[Gemm, str], Result] | None = None) -> Report:
    """The errors of each case in steady state, one row a window. `predict(gemm, data)` stands in for the simulator."""
    cases, skipped, n_rows = _read(path)
    found = {case: _errors(gpu, case, rows, predict or _simulator(gpu)) for case, rows in cases.items()}
    return Report(
        gpu=gpu.name,
        kind=KIND,
        source=Path(path).name,
        groups=tuple(_scores(f"{case}, {m}x{n}x{k}", errors) for (case, m, n, k), errors in found.items()),
        overall=_scores("all rows", [error for errors in found.values() for error in errors]),
        skipped=tuple(skipped),
        n_rows=n_rows,
        notes=(f"Windows of the first {STEADY_S:g} s are left out; the kernel is chosen by the simulator.",),
    )


def _read(path: Path) -> tuple[dict[Case, list[Cells]], list[dict[str, Any]], int]:
    """Steady windows by case, rows that cannot be used, and how many rows either are."""
    cases: dict[Case, list[Cells]] = {}
    skipped: list[dict[str, Any]] = []
    n_steady = 0
    with Path(path).open(encoding="utf-8-sig", newline="") as stream:
        for line, row in enumerate(csv.DictReader(stream), 2):
            try:
                case = _case(row)
                n_steady += float(row["t_mid"]) > STEADY_S
            except (ValueError, TypeError, KeyError) as error:
                skipped.append({"row": line, "reason": f"cannot be used: {error}"})
                continue
            if float(row["t_mid"]) > STEADY_S:
                cases.setdefault(case, []).append(row)
    return cases, skipped, n_steady + len(skipped)


def _case(row: Cells) -> Case:
    numbers = [float(row[name]) for name in ("us_per_call", "sm_mhz", "watt", "t_mid")]
    if not all(math.isfinite(number) and number > 0 for number in numbers[:3]) or row["case"] not in DATA:
        raise ValueError(f"case must be one of {', '.join(DATA)}, time, clock and power above 0")
    m, n, k = (int(row[name]) for name in "mnk")
    Gemm(m, n, k)
    return row["case"], m, n, k


def _simulator(gpu: Gpu) -> Callable[[Gemm, str], Result]:
    from sim.run import simulate

    return lambda gemm, data: simulate(gemm, gpu, sustained=True, data=data)


def _errors(gpu: Gpu, case: Case, rows: Sequence[Cells], predict: Callable[[Gemm, str], Result]) -> Errors:
    """Signed errors in percent of each window: time, clock, power."""
    kind, m, n, k = case
    gemm = Gemm(m, n, k)
    fits = gemm.a_bytes + gemm.b_bytes <= gpu.l2.capacity_mib * 2**20 / gpu.l2.partitions
    result = predict(Gemm(m, n, k, l2="warm" if fits else "cold"), DATA[kind])
    predicted = (result.time_s * 1e6, reported_mhz(gpu, result.main.sm_mhz), result.power_w)
    return [
        [100 * (value / float(row[name]) - 1) for value, name in zip(predicted, SCORED, strict=True)] for row in rows
    ]


def _scores(name: str, errors: Errors) -> dict[str, Any]:
    """As `scores.summary`, of time, with the mean absolute errors of clock and power."""
    found = summary(KIND, name, ()) | {"n": len(errors), "sm_mhz_mape_pct": None, "watt_mape_pct": None}
    if not errors:
        return found
    means = [sum(abs(error[i]) for error in errors) / len(errors) for i in range(3)]
    return (
        found | time_scores([error[0] for error in errors]) | {"sm_mhz_mape_pct": means[1], "watt_mape_pct": means[2]}
    )
