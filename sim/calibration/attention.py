"""Constants of attention, fitted to shipped tables: `python -m sim.calibration.attention` prints them (ten minutes).

Data: shapes of attention.csv and attention_more.csv whose hash is even; the others are there to judge by. A residual is
the logarithm of predicted over measured time, in units of `SCALE`; soft L1 keeps kernels that the model does not know
from steering the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from hwmodels import load_gpu
from hwmodels.measured import measured_path
from hwmodels.spec import FIELDS, Gpu
from sim.validation import attention
from sim.validation.timed import Asked, held_out, read

GPU = "h200_sxm"
DATA = ((GPU, "attention"), ("h200_sxm_further", "attention_more"))
TABLE = attention.TABLES[0]
SCALE = 0.05
MOST_CHANGE = math.log(4)
"""Of a constant's logarithm."""
STEP = 0.03
"""Of a logarithm, by which a slope is taken."""
THREADS = 2


def rows(gpu: Gpu) -> list[Asked]:
    """Measured times of the shapes that are fitted to."""
    every = [each for place in DATA for each in read(TABLE, measured_path(*place), gpu).asked]
    return [each for each in every if not held_out(TABLE.shape(each.question))]


def fit(gpu: Gpu, given: Sequence[Asked], names: Sequence[str]) -> dict[str, float]:
    """Values of the named constants of `[attention]` of the least soft-L1 loss over `given`."""
    start = np.log([getattr(gpu.attention, name) for name in names])
    most = np.log([FIELDS[f"attention.{name}"].high or math.inf for name in names])
    bounds = start - MOST_CHANGE, np.minimum(start + MOST_CHANGE, most + 1e-9)

    def residuals(logs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        values = dict(zip(names, map(float, np.exp(logs)), strict=True))
        moved = gpu.model_copy(update={"attention": gpu.attention.model_copy(update=values)})
        with ThreadPoolExecutor(THREADS) as pool:
            return np.array(list(pool.map(lambda each: _residual(each, moved), given)))

    found = least_squares(residuals, start, bounds=bounds, loss="soft_l1", diff_step=STEP, x_scale=0.3, ftol=1e-3)
    return dict(zip(names, map(float, np.exp(found.x)), strict=True))


def _residual(asked: Asked, gpu: Gpu) -> float:
    predicted_us = TABLE.predict(asked.question, gpu)[asked.column]
    return math.log(predicted_us / asked.measured_us) / SCALE


def main() -> None:
    """Fit those that are marked as fitted, and print them."""
    gpu = load_gpu(GPU)
    fitted = [key for key, origin in gpu.provenance.items() if key.startswith("attention.") and origin.kind == "fitted"]
    for name, value in fit(gpu, rows(gpu), [key.removeprefix("attention.") for key in fitted]).items():
        print(f"{name} = {value:.3g}")  # noqa: T201 (a command that prints)


if __name__ == "__main__":
    main()
