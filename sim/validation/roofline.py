"""The control: t = t0 + max(FLOPs / P, bytes / B), its three constants fitted for least MAPE on other folds.

It knows the shape and nothing of tiles, caches or clocks. A shape's fold is a hash of (m, n, k), so no shape is both
fitted on and judged. Constants come from the table shipped for the GPU, never from the user's file, separately for
each library, data type and L2 state with at least `MIN_ROWS` rows there (else each library and data type).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hwmodels.errors import ConfigError
from hwmodels.measured import measured_path
from sim.validation.replay import gemm_of
from sim.validation.tables import Inputs, Row, read_table

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from hwmodels.spec import Gpu

    Array = npt.NDArray[np.float64]

N_FOLDS = 5
MIN_ROWS = 20
_START_QUANTILES = (0.75, 1.0)
_STEPS = {"xatol": 1e-4, "fatol": 1e-7, "maxiter": 400}


@dataclass(frozen=True)
class Roofline:
    """t0 in microseconds, FLOPs and bytes a microsecond."""

    t0_us: float
    flops_per_us: float
    bytes_per_us: float

    def time_us(self, flops: float, n_bytes: float) -> float:
        """Predicted time of one GEMM, us."""
        return self.t0_us + max(flops / self.flops_per_us, n_bytes / self.bytes_per_us)


def fold(m: int, n: int, k: int) -> int:
    """The shape's fold, 0 to `N_FOLDS` - 1."""
    return zlib.crc32(f"{m}x{n}x{k}".encode()) % N_FOLDS


def fold_of(inputs: Inputs) -> int:
    """The row's fold, by its shape alone."""
    return fold(inputs.m, inputs.n, inputs.k)


class Control:
    """Rooflines fitted on the rows of a shipped table, one a class of rows and held-out fold, each when first asked."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._classes: dict[tuple[str, ...], list[Row]] = {}
        for row in rows:
            if _counts(row.inputs) is not None:
                for key in _class_keys(row.inputs):
                    self._classes.setdefault(key, []).append(row)
        self._fits: dict[tuple[tuple[str, ...], int], Roofline | None] = {}

    def time_us(self, inputs: Inputs) -> float | None:
        """The roofline's time for a row, from constants that have not seen its shape; None without enough rows."""
        counts = _counts(inputs)
        key = next((key for key in _class_keys(inputs) if len(self._classes.get(key, ())) >= MIN_ROWS), None)
        if counts is None or key is None:
            return None
        held_out = fold_of(inputs)
        if (key, held_out) not in self._fits:
            self._fits[key, held_out] = _fit_others(self._classes[key], held_out)
        roofline = self._fits[key, held_out]
        return None if roofline is None else roofline.time_us(*counts)


def _class_keys(inputs: Inputs) -> tuple[tuple[str, ...], ...]:
    """Classes of a row, the narrowest first."""
    kernels = (inputs.library, inputs.dtype)
    return (*kernels, inputs.l2), kernels


def _counts(inputs: Inputs) -> tuple[float, float] | None:
    """FLOPs and compulsory bytes, or None for a shape no GEMM has."""
    try:
        gemm = gemm_of(inputs)
    except ConfigError:
        return None
    return float(gemm.flops), float(gemm.compulsory_bytes)


def _fit_others(rows: Sequence[Row], held_out: int) -> Roofline | None:
    """Constants from the rows of all other folds."""
    import numpy as np

    others = [row for row in rows if fold_of(row.inputs) != held_out]
    counts = [counted for row in others if (counted := _counts(row.inputs)) is not None]
    if len(counts) < 3:
        return None
    flops, n_bytes = np.array(counts, dtype=np.float64).T
    return fit(flops, n_bytes, np.array([row.measured.time_us for row in others], dtype=np.float64))


def fit(flops: Array, n_bytes: Array, time_us: Array) -> Roofline:
    """The three constants with the least MAPE over the given rows.

    For given rates the best t0 is a weighted median, so the search runs over the logarithms of two rates only, by
    Nelder-Mead from several quantiles of the rates reached; deterministic.
    """
    import numpy as np
    from scipy.optimize import minimize

    def loss(log_rates: Array) -> float:
        throughput_us = _throughput_us(flops, n_bytes, log_rates)
        return float(np.mean(np.abs(_best_t0_us(throughput_us, time_us) + throughput_us - time_us) / time_us))

    starts = [
        np.log([np.quantile(flops / time_us, p), np.quantile(n_bytes / time_us, b)])
        for p in _START_QUANTILES
        for b in _START_QUANTILES
    ]
    found = [minimize(loss, start, method="Nelder-Mead", options=_STEPS) for start in starts]
    best = min(found, key=lambda result: float(result.fun)).x
    t0_us = _best_t0_us(_throughput_us(flops, n_bytes, best), time_us)
    return Roofline(t0_us, float(np.exp(best[0])), float(np.exp(best[1])))


def _throughput_us(flops: Array, n_bytes: Array, log_rates: Array) -> Array:
    import numpy as np

    rates = np.exp(log_rates)
    slower: Array = np.maximum(flops / rates[0], n_bytes / rates[1])
    return slower


def _best_t0_us(throughput_us: Array, time_us: Array) -> float:
    """The t0 >= 0 with the least MAPE: median of what remains of each row, weighted by 1 / time."""
    import numpy as np

    remainder = time_us - throughput_us
    order = np.argsort(remainder)
    weight = np.cumsum(1 / time_us[order])
    return max(0.0, float(remainder[order][np.searchsorted(weight, weight[-1] / 2)]))


def shipped_control(gpu: Gpu, kind: str) -> Control | None:
    """The control for one kind of table, from the table shipped for the GPU; None where none is shipped."""
    try:
        path = measured_path(gpu.name, kind)
    except ConfigError:
        return None
    return Control(read_table(path, gpu).rows)
