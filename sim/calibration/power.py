"""Fit of `power.react_ms` and `power.mean_ms`, how the board's control acts over time, to a table of long load.

Usage: python -m sim.calibration.power [GPU] [sustained_load.csv]

Cases that the board slows down are put in the order of their sizes; every other one is fitted, the rest judge. Both
constants are times, so that a case is compared by its own shape: times of a call over what it settles at.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import mean, median

from hwmodels import load_gpu, measured_path
from hwmodels.spec import Gpu
from sim.power_over_time import over_time
from sim.validation.sustained import FIRST, STEADY, Case, cases_of

REACT_MS = tuple(range(40, 105, 5))
MEAN_MS = tuple(range(800, 1020, 20))
"""Values tried."""
SLOWED = 1.01
"""A case's settled time over its burst's, from which it tells anything."""


def error_pct(gpu: Gpu, case: Case, stretch: str) -> float:
    """Mean absolute error, percent, of the times of a call over what it settles at, over a stretch's windows."""
    found = over_time(gpu, case.burst, case.settled, case.windows[-1].end_s)
    settles_s = median(window.call_s for window in case.of(STEADY))
    shapes = [
        (found.between(window.start_s, window.end_s).call_s / case.settled.call_s, window.call_s / settles_s)
        for window in case.of(stretch)
    ]
    return 100 * mean(abs(predicted / measured - 1) for predicted, measured in shapes)


def with_times(gpu: Gpu, react_ms: float, mean_ms: float) -> Gpu:
    """The GPU with other constants."""
    return gpu.model_copy(update={"power": gpu.power.model_copy(update={"react_ms": react_ms, "mean_ms": mean_ms})})


def fit(gpu: Gpu, cases: Sequence[Case]) -> Gpu:
    """The GPU with those of the values tried that have the least error, both stretches counting alike."""
    tried = [with_times(gpu, float(react_ms), float(mean_ms)) for react_ms, mean_ms in product(REACT_MS, MEAN_MS)]
    return min(tried, key=lambda other: sum(error_pct(other, case, part) for case in cases for part in (FIRST, STEADY)))


def main(name: str = "h200_sxm", table: str | None = None) -> None:
    """Fit, and print the values and the errors of both halves."""
    gpu = load_gpu(name)
    cases = cases_of(gpu, Path(table) if table else measured_path(name, "sustained_load"))
    told = sorted(
        (case for case in cases if case.settled.call_s > SLOWED * case.burst.call_s), key=lambda case: case.gemm.flops
    )
    fitted = fit(gpu, told[::2])
    print(f"power.react_ms = {fitted.power.react_ms:g}, power.mean_ms = {fitted.power.mean_ms:g}")  # noqa: T201 (a command that prints)
    for half, chosen in (("fitted", told[::2]), ("not fitted", told[1::2])):
        errors = (f"{part} {mean(error_pct(fitted, case, part) for case in chosen):.2f} %" for part in (FIRST, STEADY))
        print(f"{half} ({', '.join(case.name for case in chosen)}): {', '.join(errors)}")  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
