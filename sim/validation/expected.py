"""What error to expect of a prediction: the mean over measured kernels of its family, data type and class of shape.

`expected_errors.toml` holds it, written by `tilewalk validate` from replays of the shipped tables:

    [[kernels]]
    gpu = "h200_sxm"
    family = "persistent"
    dtype = "bf16"      # both fp8 formats are "fp8"
    shape = "gemv"      # a key of SHAPES
    n = 120             # kernels of shapes on which no constant was fitted
    mape_pct = 4.2
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwmodels.errors import ConfigError
from sim.schedule.config import FAMILIES
from workloads.dtypes import COMBINATIONS

if TYPE_CHECKING:
    from sim.validation.report import Report

PATH = Path(__file__).with_name("expected_errors.toml")
GEMV_ROWS = 16
"""Rows of A up to which a GEMM reads its weights and does little else."""
SMALL_FLOPS = 2 * 10**10
SHAPES = {"gemv": f"m <= {GEMV_ROWS}", "small": "under 20 GFLOP", "large": "20 GFLOP or more"}
"""Class of shape -> in words; each excludes those before it."""
LEAST_KERNELS = 5
"""Measured kernels from which a mean says something."""
KINDS = ("gemm", "tile_sweep")
"""Tables that count; counters.csv holds a profiler's overhead."""


@dataclass(frozen=True, order=True)
class KernelClass:
    """Kernels whose errors are taken together."""

    family: str
    dtype: str
    shape: str

    @property
    def name(self) -> str:
        """As a group of the validation is called."""
        return f"{self.family} {self.dtype}, {SHAPES[self.shape]}, shapes not fitted"


def kernel_class(family: str, dtype: str, m: int, n: int, k: int) -> KernelClass:
    """The class of a kernel by what it computes."""
    small = "small" if 2 * m * n * k < SMALL_FLOPS else "large"
    return KernelClass(family, _short(dtype), "gemv" if m <= GEMV_ROWS else small)


def _short(dtype: str) -> str:
    return "fp8" if dtype.startswith("fp8") else dtype


# Reading.
def expected_error(gpu_name: str, kernels: KernelClass, path: Path = PATH) -> dict[str, Any] | None:
    """{"mape_pct", "group", "n"} of a class on a GPU, or None where too few or no such kernels were measured."""
    found = _load(path).get((gpu_name, kernels))
    return None if found is None else {"mape_pct": found[1], "group": kernels.name, "n": found[0]}


@lru_cache(maxsize=4)
def _load(path: Path) -> dict[tuple[str, KernelClass], tuple[int, float]]:
    """{(GPU, class): (n, MAPE in percent)}; empty without a file. Raises ConfigError where the file is broken."""
    if not path.is_file():
        return {}
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))["kernels"]
        return {
            (entry["gpu"], KernelClass(entry["family"], entry["dtype"], entry["shape"])): (
                int(entry["n"]),
                float(entry["mape_pct"]),
            )
            for entry in entries
        }
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path.name}: {type(error).__name__}: {error} (expected errors)") from None


# Writing.
def write_expected_errors(reports: Sequence[Report], path: Path = PATH) -> int:
    """Write the errors of replays with their kernels known; entries of other GPUs stay. Returns how many are written.

    Classes that several tables measured are pooled by their numbers of kernels.
    """
    gpus = {report.gpu for report in reports}
    kept = {key: value for key, value in _load(path).items() if key[0] not in gpus}
    entries = kept | pooled(reports)
    lines = ["# Written by tilewalk validate. MAPE of time on shapes that no constant was fitted on, kernels known."]
    for (gpu, kernels), (n, mape_pct) in sorted(entries.items()):
        lines.append(
            f'\n[[kernels]]\ngpu = "{gpu}"\nfamily = "{kernels.family}"\ndtype = "{kernels.dtype}"\n'
            f'shape = "{kernels.shape}"\nn = {n}\nmape_pct = {mape_pct:.2f}'
        )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    _load.cache_clear()
    return len(entries)


def pooled(reports: Iterable[Report]) -> dict[tuple[str, KernelClass], tuple[int, float]]:
    """{(GPU, class): (n, MAPE in percent)} of the reports' groups, where they have enough kernels."""
    known = {kernels.name: kernels for kernels in _all_classes()}
    sums: dict[tuple[str, KernelClass], tuple[int, float]] = {}
    for report in reports:
        for group in report.groups if report.kind in KINDS else ():
            if group["name"] in known and group["n"]:
                key = report.gpu, known[group["name"]]
                n, total = sums.get(key, (0, 0.0))
                sums[key] = n + group["n"], total + group["n"] * group["mape_pct"]
    return {key: (n, total / n) for key, (n, total) in sums.items() if n >= LEAST_KERNELS}


def _all_classes() -> list[KernelClass]:
    dtypes = dict.fromkeys(_short(dtype) for dtype in COMBINATIONS)
    return [KernelClass(family, dtype, shape) for family in FAMILIES for dtype in dtypes for shape in SHAPES]
