"""What a calibration found, as frozen data: all that the GPU file, the page and the figures are made of."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from sim.calibration.readings import Reading


@dataclass(frozen=True)
class Point:
    """One kernel: quantities (units in their names) measured, and predicted with the constants before and after."""

    table: str
    family: str
    fitted: bool
    shape: str
    configuration: str
    """Tile, m x n x k."""
    flops: float
    measured: dict[str, Any]
    before: dict[str, float]
    after: dict[str, float]

    def error_pct(self, quantity: str, which: str) -> float:
        """Signed error, percent of the measured; `which` is "before" or "after"."""
        return 100 * (float(getattr(self, which)[quantity]) / float(self.measured[quantity]) - 1)


@dataclass(frozen=True)
class ErrorGroup:
    """Mean absolute error of one quantity over some kernels, percent."""

    table: str
    family: str
    quantity: str
    fitted: bool
    n: int
    before_pct: float
    after_pct: float


@dataclass(frozen=True)
class Fitted:
    """One constant that was fitted, in the unit of its key."""

    key: str
    unit: str
    stage: str
    before: float
    after: float
    low: float
    high: float
    rows: str
    n_rows: int
    n_shapes: int
    folds: tuple[float, ...]
    """Its value where one fold of shapes was left out, for each fold."""
    loss_up_pct: float
    loss_down_pct: float
    """Change of its stage's loss where it is 10 % larger, and 10 % smaller."""
    effect_pct: float
    """Mean change of its rows for 10 % of it, percent."""
    deviation_pct: float
    """Standard deviation from the curvature of the loss: what noise from row to row would make of it."""

    @property
    def at_bound(self) -> bool:
        """Whether the fit ended at a bound."""
        return self.after <= self.low * 1.001 or self.after >= self.high * 0.999

    @property
    def spread(self) -> float:
        """Standard deviation over the folds."""
        return float(np.std(self.folds)) if self.folds else 0.0


@dataclass(frozen=True)
class StageError:
    """Mean absolute error of what a stage compares, percent; `out_of_fold_pct` on shapes that a fold left out."""

    stage: str
    compares: tuple[str, ...]
    n_rows: int
    n_shapes: int
    before_pct: float
    after_pct: float
    out_of_fold_pct: float | None


@dataclass(frozen=True)
class Identified:
    """Correlations of the estimates (a row and a column a key), and what follows from them."""

    keys: tuple[str, ...]
    correlation: npt.NDArray[np.float64]
    condition: float
    alike: tuple[tuple[str, str, float], ...]
    """Pairs that the data cannot tell apart, with their correlation."""
    deviations_pct: tuple[float, ...]


@dataclass(frozen=True)
class Outcome:
    """A whole calibration."""

    gpu: str
    label: str
    inherits: str
    command: str
    files: tuple[str, ...]
    digest: str
    """SHA-256 of the tables, in hexadecimal."""
    drawn: str
    """How rows were chosen, in words."""
    n_folds: int
    seconds: float
    simulations: int
    constants: tuple[Fitted, ...]
    left: dict[str, str]
    """{key: why it was left as it is}."""
    readings: tuple[Reading, ...]
    stages: tuple[StageError, ...]
    groups: tuple[ErrorGroup, ...]
    identified: Identified
    points: tuple[Point, ...]
    unused: dict[str, int]
    """{why rows of the tables were not used: how many}."""

    def to_dict(self) -> dict[str, Any]:
        """All but the single kernels, as JSON can hold it."""
        found = asdict(self) | {"identified": asdict(self.identified)}
        del found["points"]
        found["identified"]["correlation"] = self.identified.correlation.tolist()
        found["constants"] = [asdict(one) | {"at_bound": one.at_bound, "spread": one.spread} for one in self.constants]
        found["readings"] = [asdict(one) | {"agrees": one.agrees} for one in self.readings]
        return found
