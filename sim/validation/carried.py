"""How far constants carry over to another GPU: its error as it stands, and with three constants of its own.

Usage: python -m sim.validation.carried GPU [ROWS]

Replays a public table (graph_gemm or event_gemm) shipped for the GPU. Half of the shapes, those whose hash is even, set
a fixed time a kernel, the share of the memory's bandwidth that reads reach, and the clock that tensor cores (or fp32
arithmetic) leave at full load; the other half is judged. ROWS of each half are taken, in proportion to their groups.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hwmodels import load_gpu, measured_path
from hwmodels.errors import ConfigError
from hwmodels.rules import value_at
from sim.validation.groups import is_held_out, subset
from sim.validation.replay import Predicted, gemm_of, replay, simulator
from sim.validation.roofline import shipped_control
from sim.validation.tables import Row, read_table

if TYPE_CHECKING:
    from hwmodels.spec import Gpu

TABLES = {
    "graph_gemm": ("launch.graph_us", "activity.sustained_tensor_mhz"),
    "event_gemm": ("launch.sync_us", "activity.sustained_tensor_mhz"),
}
"""Public table -> its constants of launch and clock."""
BANDWIDTH = "hbm.read_fraction"
BY_FLOPS, BY_BYTES = 2.0, 0.5
"""FLOPs a byte, over those at which the datasheet's rates balance, from which a row sets the clock, and up to which it
sets the bandwidth."""
CUT = 0.5
"""Largest error (of 1) that one row counts with."""
STEPS = 7
"""Replays of the rows that a constant is searched with."""


@dataclass(frozen=True)
class Carried:
    """Errors on the shapes judged, in percent of the measured time, and the constants that the others set."""

    n: int
    unfitted_pct: float
    fitted_pct: float
    roofline_pct: float | None
    constants: dict[str, float]


def carried(gpu_name: str, n_rows: int = 60, threads: int = 2) -> Carried:
    """The error of `gpu_name` before and after three constants are fitted, on the shapes they have not seen.

    Raises ConfigError where no public table is shipped for the GPU.
    """
    gpu = load_gpu(gpu_name)
    kind = _table_of(gpu)
    rows = read_table(measured_path(gpu_name, kind), gpu).rows
    judged = subset(tuple(row for row in rows if is_held_out(row.inputs)), n_rows)
    seen = subset(tuple(row for row in rows if not is_held_out(row.inputs)), n_rows)
    constants = _fit(gpu_name, kind, seen, threads)
    own = load_gpu(gpu_name, [f"{name}={value:.6g}" for name, value in constants.items()])
    control = shipped_control(gpu, kind)
    lines = [control.time_us(row.inputs) for row in judged] if control else [None]
    roofline = [_error(line, row) for line, row in zip(lines, judged, strict=False) if line is not None]
    return Carried(
        n=len(judged),
        unfitted_pct=100 * float(np.mean(_errors(gpu, judged, threads))),
        fitted_pct=100 * float(np.mean(_errors(own, judged, threads))),
        roofline_pct=100 * float(np.mean(roofline)) if len(roofline) == len(judged) else None,
        constants=constants,
    )


def _table_of(gpu: Gpu) -> str:
    for kind in TABLES:
        try:
            measured_path(gpu.name, kind)
        except ConfigError:
            continue
        return kind
    raise ConfigError(f"gpu = {gpu.name}: no {' or '.join(TABLES)} table is shipped for it")


def _fit(gpu_name: str, kind: str, rows: Sequence[Row], threads: int) -> dict[str, float]:
    """Each constant on the rows that tell it: bandwidth and clock by what bounds a row, then launch on all."""
    launch, clock = TABLES[kind]
    gpu = load_gpu(gpu_name)
    found: dict[str, float] = {}
    for name, belongs, low, high in (
        (BANDWIDTH, (0.0, BY_BYTES), 0.5, 1.0),
        (clock, (BY_FLOPS, np.inf), 0.0, 0.7 * gpu.activity.active_mhz),
    ):
        chosen = [row for row in rows if belongs[0] <= _balance(gpu, row) <= belongs[1]]
        if chosen:
            found[name] = _searched(gpu_name, found, name, (low, high), chosen, threads)
    own = load_gpu(gpu_name, [f"{name}={value:.6g}" for name, value in found.items()])
    found[launch] = _launch_us(own, launch, rows, threads)
    return found


def _balance(gpu: Gpu, row: Row) -> float:
    """FLOPs a byte of the row over those at which compute and memory take equally long."""
    gemm = gemm_of(row.inputs)
    unit = gpu.cuda_core if gemm.dtype == "fp32" else gpu.tensor
    peak = getattr(unit, f"{gemm.dtype}_flops_per_clk_per_sm") * gpu.sm.count * gpu.clock.boost_mhz * 1e6
    return float(gemm.flops / peak / (gemm.compulsory_bytes / (gpu.hbm.bandwidth_gb_per_s * 1e9)))


def _searched(
    gpu_name: str, found: dict[str, float], name: str, bounds: tuple[float, float], rows: Sequence[Row], threads: int
) -> float:
    """The value with the least mean error on `rows`: bounded scalar search, deterministic."""
    from scipy.optimize import minimize_scalar

    def cost(value: float) -> float:
        sets = [f"{key}={value:.6g}" for key, value in {**found, name: float(value)}.items()]
        return float(np.mean(np.minimum(_errors(load_gpu(gpu_name, sets), rows, threads), CUT)))

    return float(minimize_scalar(cost, bounds=bounds, method="bounded", options={"maxiter": STEPS}).x)


def _launch_us(gpu: Gpu, name: str, rows: Sequence[Row], threads: int) -> float:
    """The launch constant that leaves the least mean error: the median of what is missing, weighted by 1 / time."""
    outcome = replay([row.inputs for row in rows], gpu, simulator(gpu), threads=threads)
    pairs = [
        (found.time_us, row.measured.time_us)
        for found, row in zip(outcome, rows, strict=True)
        if isinstance(found, Predicted)
    ]
    missing, weight = np.array([m - p for p, m in pairs]), np.array([1 / m for _, m in pairs])
    order = np.argsort(missing)
    middle = int(np.searchsorted(np.cumsum(weight[order]), weight.sum() / 2))
    least = gpu.launch.stream_us if name == "launch.sync_us" else gpu.kernel.floor_us
    return max(least, float(value_at(gpu, name)) + float(missing[order][middle]))


def _errors(gpu: Gpu, rows: Sequence[Row], threads: int) -> list[float]:
    """Absolute errors of time, of 1; rows that cannot be modelled are left out."""
    outcome = replay([row.inputs for row in rows], gpu, simulator(gpu), threads=threads)
    return [
        _error(found.time_us, row) for found, row in zip(outcome, rows, strict=True) if isinstance(found, Predicted)
    ]


def _error(time_us: float, row: Row) -> float:
    return abs(time_us / row.measured.time_us - 1)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python -m sim.validation.carried GPU [ROWS]")
    print(carried(sys.argv[1], *map(int, sys.argv[2:])))  # noqa: T201
