"""Errors of a set of rows: percentages of the measured value, ranks over tiles, and the regret of the tile chosen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sim.validation.groups import names, shape_name
from sim.validation.replay import Predicted
from sim.validation.tables import Row

N_WORST = 5
N_TOP = 3
MIN_TILES = 2
"""Tiles a shape needs for a rank correlation."""

BASE_KEYS = (
    "kind",
    "name",
    "n",
    "mape_pct",
    "median_ape_pct",
    "bias_pct",
    "p95_ape_pct",
    "kendall_tau",
    "regret_pct",
    "regret_top3_pct",
    "regret_worst_pct",
    "roofline_mape_pct",
    "worst",
)
COUNTER_KEYS = {
    "sm_cycles_mape_pct": "sm_cycles",
    "sm_mhz_mape_pct": "sm_mhz",
    "dram_read_bytes_mape_pct": "dram_read_bytes",
    "dram_write_bytes_mape_pct": "dram_write_bytes",
    "l2_read_bytes_mape_pct": "l2_read_bytes",
    "sm_received_bytes_mape_pct": "sm_received_bytes",
}
"""Score -> quantity, as mean absolute percentage error (rows that measured 0 are left out)."""
POINT_KEYS = {"l2_hit_points": "l2_hit_pct", "tensor_active_points": "tensor_active_pct"}
"""Score -> quantity, as mean absolute difference in percentage points."""


@dataclass(frozen=True)
class Scored:
    """One row beside its prediction and the roofline's time (None where no roofline was fitted)."""

    row: Row
    predicted: Predicted
    roofline_us: float | None = None

    @property
    def error_pct(self) -> float:
        """Signed error of time, percent of the measured."""
        return error_pct(self.predicted.time_us, self.row.measured.time_us)


def error_pct(predicted: float, measured: float) -> float:
    """Signed error, percent of the measured."""
    return 100 * (predicted / measured - 1)


def grouped(kind: str, scored: Sequence[Scored]) -> list[dict[str, Any]]:
    """One summary a group: gathering groups first, each in order of first appearance."""
    members: dict[str, list[Scored]] = {}
    finest: dict[str, None] = {}
    for item in scored:
        *summaries, base = names(item.row)
        finest[base] = None
        for name in (*summaries, base):
            members.setdefault(name, []).append(item)
    order = sorted(members, key=lambda name: name in finest)
    return [summary(kind, name, members[name]) for name in order]


def summary(kind: str, name: str, scored: Sequence[Scored]) -> dict[str, Any]:
    """The scores of a set of rows, None where a score does not apply. Keys: `BASE_KEYS`, counters more."""
    scores: dict[str, Any] = dict.fromkeys(BASE_KEYS) | {"kind": kind, "name": name, "n": len(scored)}
    if kind == "counters":
        scores |= dict.fromkeys((*COUNTER_KEYS, *POINT_KEYS))
    scores["worst"] = worst(scored)
    if not scored:
        return scores
    scores |= time_scores([item.error_pct for item in scored])
    scores["roofline_mape_pct"] = _roofline_mape_pct(scored)
    if kind == "tile_sweep":
        scores |= tile_scores(scored)
    if kind == "counters":
        scores |= counter_scores(scored)
    return scores


def time_scores(errors_pct: Sequence[float]) -> dict[str, float]:
    """MAPE, median and 95th percentile of the absolute error, and the mean signed error, percent."""
    import numpy as np

    signed = np.asarray(errors_pct, dtype=np.float64)
    absolute = np.abs(signed)
    return {
        "mape_pct": float(absolute.mean()),
        "median_ape_pct": float(np.median(absolute)),
        "bias_pct": float(signed.mean()),
        "p95_ape_pct": float(np.percentile(absolute, 95)),
    }


def _roofline_mape_pct(scored: Sequence[Scored]) -> float | None:
    """Over all rows, so that it stands beside the simulator's error on the same ones; None where any has none."""
    errors = [
        abs(error_pct(item.roofline_us, item.row.measured.time_us)) for item in scored if item.roofline_us is not None
    ]
    return sum(errors) / len(errors) if len(errors) == len(scored) else None


def tile_scores(scored: Sequence[Scored]) -> dict[str, float | None]:
    """Kendall's tau (tau-b) and the regrets of the tile with the least predicted time: means over shapes, and the
    worst shape's regret."""
    shapes: dict[str, list[Scored]] = {}
    for item in scored:
        shapes.setdefault(f"{item.row.inputs.dtype} {shape_name(item.row.inputs)}", []).append(item)
    tiles = [_by_prediction(items) for items in shapes.values() if len(items) >= MIN_TILES]
    regrets = [_regret_pct(shape, 1) for shape in tiles]
    return {
        "kendall_tau": _mean(_kendall_tau(shape) for shape in tiles),
        "regret_pct": _mean(regrets),
        "regret_worst_pct": max(regrets, default=None),
        "regret_top3_pct": _mean(_regret_pct(shape, N_TOP) for shape in tiles),
    }


def _by_prediction(items: Sequence[Scored]) -> list[tuple[float, float]]:
    """(predicted, measured) times of one shape's tiles, best predicted first; ties stay in file order."""
    return sorted(((item.predicted.time_us, item.row.measured.time_us) for item in items), key=lambda times: times[0])


def _kendall_tau(tiles: Sequence[tuple[float, float]]) -> float | None:
    from scipy.stats import kendalltau

    tau = float(kendalltau([predicted for predicted, _ in tiles], [measured for _, measured in tiles]).statistic)
    return None if tau != tau else tau


def _regret_pct(tiles: Sequence[tuple[float, float]], n_top: int) -> float:
    """How much slower the best of the `n_top` predicted-fastest tiles is than the fastest measured one."""
    chosen = min(measured for _, measured in tiles[:n_top])
    return error_pct(chosen, min(measured for _, measured in tiles))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def counter_scores(scored: Sequence[Scored]) -> dict[str, float | None]:
    """Errors of cycles, clock and bytes in percent, of hit rate and tensor activity in points."""
    scores: dict[str, float | None] = {}
    for key, field in COUNTER_KEYS.items():
        scores[key] = _mean(abs(error_pct(p, m)) for p, m in _pairs(scored, field) if m)
    for key, field in POINT_KEYS.items():
        scores[key] = _mean(abs(p - m) for p, m in _pairs(scored, field))
    return scores


def _pairs(scored: Sequence[Scored], field: str) -> list[tuple[float, float]]:
    pairs = ((getattr(item.predicted, field), getattr(item.row.measured, field)) for item in scored)
    return [(predicted, measured) for predicted, measured in pairs if measured is not None]


def worst(scored: Sequence[Scored]) -> list[dict[str, Any]]:
    """The rows with the largest absolute error of time: line, inputs, measured and predicted."""
    order = sorted(scored, key=lambda item: -abs(item.error_pct))
    return [_described(item) for item in order[:N_WORST]]


def _described(item: Scored) -> dict[str, Any]:
    inputs = {key: value for key, value in asdict(item.row.inputs).items() if value not in (None, "")}
    return {
        "row": item.row.line,
        **inputs,
        "measured_us": item.row.measured.time_us,
        "predicted_us": item.predicted.time_us,
        "error_pct": item.error_pct,
    }
