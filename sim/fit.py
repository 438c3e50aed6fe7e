"""Fit the constants marked `fitted` in hwmodels/gpus/h200_sxm.toml.

Usage: python -m sim.fit persistent | multistage | clock

Fits use only shapes whose hash is even (`sim.validation.groups.is_held_out` is the other half) and print the values;
they go into the TOML by hand, so that a fit is looked at before it counts. Nelder-Mead on logarithms, from the values
in the file: deterministic. `sustain_ms` is not fitted by program: it was read off the bursts of gemm.csv.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable

import numpy as np
from scipy.optimize import minimize

from hwmodels import load_gpu, measured_path
from hwmodels.rules import value_at
from sim.validation.groups import is_held_out
from sim.validation.replay import Predicted, replay, simulator
from sim.validation.tables import Inputs, Row, read_table

GPU = "h200_sxm"
LARGE = 10**7
"""Elements of B from which a GEMM is a language model's layer rather than a small kernel."""
CAP = 0.25
"""Largest error (in log) that one row counts with: a kernel the model does not know must not steer the rest."""

CONSTANTS = {
    "persistent": (
        "persistent.start_cycles",
        "persistent.epilogue_cycles",
        "kernel.epilogue_bytes_per_clk",
        "persistent.iteration_cycles",
        "hbm.row_open_bytes",
    ),
    "multistage": (
        "multistage.issue_bytes_per_clk",
        "multistage.cta_start_cycles",
        "multistage.epilogue_cycles",
        "coalescing.cp_async_kib",
    ),
}


def _is_core(inputs: Inputs) -> bool:
    plain = inputs.dtype == "bf16" and inputs.layout == "tn" and inputs.op == "mm"
    return plain and inputs.kernel.startswith("nvjet")


def _gemm(belongs: Callable[[Inputs], bool]) -> Callable[[Inputs], bool]:
    return lambda inputs: _is_core(inputs) and belongs(inputs)


SETS: dict[str, tuple[tuple[str, Callable[[Inputs], bool], int, str, float], ...]] = {
    "persistent": (
        ("gemm", _gemm(lambda i: i.m <= 64 and i.n * i.k > LARGE), 2, "time_us", 1.0),
        ("gemm", _gemm(lambda i: i.n * i.k <= LARGE and i.m * i.n * i.k < 1.5e9), 1, "time_us", 0.7),
        ("gemm", _gemm(lambda i: i.m > 64 and i.n * i.k > LARGE), 2, "time_us", 1.0),
        ("counters", lambda i: i.library == "cublas" and i.kernel.startswith("nvjet"), 3, "sm_cycles", 1.3),
    ),
    "multistage": (
        ("tile_sweep", lambda i: True, 4, "time_us", 1.0),
        ("counters", lambda i: i.library == "triton", 4, "time_us", 1.0),
        ("counters", lambda i: i.library == "triton", 4, "l2_read_bytes", 0.15),
    ),
}
"""Rows a family is fitted on: table, which of its rows, every n-th of them, the quantity compared, its weight."""


def fit(family: str, most_calls: int = 70) -> dict[str, float]:
    """The constants of a family that give the least mean absolute log error, capped a row at `CAP`."""
    names = CONSTANTS[family]
    start = np.array([float(value_at(load_gpu(GPU), name)) for name in names])
    sets = [
        (_rows(table, belongs)[::step], quantity, weight) for table, belongs, step, quantity, weight in SETS[family]
    ]

    def cost(logs: np.ndarray) -> float:
        gpu = load_gpu(GPU, [f"{name}={value:.6g}" for name, value in zip(names, start * np.exp(logs), strict=True)])
        predict = simulator(gpu)
        total = 0.0
        for rows, quantity, weight in sets:
            outcome = replay([row.inputs for row in rows], gpu, predict)
            total += weight * float(
                np.mean([_error(row, found, quantity) for row, found in zip(rows, outcome, strict=True)])
            )
        print(f"{100 * total:.3f}", dict(zip(names, start * np.exp(logs), strict=True)), file=sys.stderr)  # noqa: T201
        return total

    simplex = np.vstack([np.zeros(len(names)), 0.3 * np.eye(len(names))])
    best = minimize(
        cost, np.zeros(len(names)), method="Nelder-Mead", options={"maxfev": most_calls, "initial_simplex": simplex}
    )
    return dict(zip(names, start * np.exp(best.x), strict=True))


def _rows(table: str, belongs: Callable[[Inputs], bool]) -> list[Row]:
    rows = read_table(measured_path(GPU, table)).rows
    return [row for row in rows if not is_held_out(row.inputs) and belongs(row.inputs)]


def _error(row: Row, found: Predicted | str, quantity: str) -> float:
    measured = getattr(row.measured, quantity)
    if isinstance(found, str) or not measured:
        return 0.0
    return min(CAP, abs(float(np.log(getattr(found, quantity) / measured))))


def fit_clock() -> dict[str, float]:
    """The line MHz = active - tensor x activity through kernels of over 20 us in counters.csv, least absolute error."""
    with measured_path(GPU, "counters").open() as file:
        rows = [row for row in csv.DictReader(file) if float(row["time_us"]) > 20 and _is_even(row)]
    activity = np.array([float(row["tensor_active_pct"]) / 100 for row in rows])
    mhz = np.array([float(row["sm_mhz"]) for row in rows])
    best = minimize(
        lambda line: float(np.abs(mhz - line[0] + line[1] * activity).mean()), [1800.0, 250.0], method="Nelder-Mead"
    )
    return {"activity.active_mhz": float(best.x[0]), "activity.tensor_mhz": float(best.x[1])}


def _is_even(row: dict[str, str]) -> bool:
    return not is_held_out(Inputs(kind="counters", m=int(row["m"]), n=int(row["n"]), k=int(row["k"])))


if __name__ == "__main__":
    what = sys.argv[1] if len(sys.argv) == 2 else ""
    if what not in (*CONSTANTS, "clock"):
        sys.exit("usage: python -m sim.fit persistent | multistage | clock")
    for name, value in (fit_clock() if what == "clock" else fit(what)).items():
        print(f"{name} = {value:.4g}")  # noqa: T201
