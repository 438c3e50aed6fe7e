"""The parts of docs/validation.md that are not scores: bursts, origins, sensitivities and the picture."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest

from hwmodels import load_gpu, measured_path, rows
from hwmodels.errors import ConfigError
from sim.calibration.constants import OWN_PROGRAMS
from sim.validation import markdown, validate
from sim.validation.bursts import SAME, burst_section, repeat_section, timed_repeat_section
from sim.validation.origins import STEP, origins_section, sensitivity_section
from sim.validation.report import Point, Report
from viz.validation import LIMIT_PCT, draw_errors

GPU = load_gpu("h200_sxm")
SUBSET_ROWS = 48  # as docs/make_validation.py
PATHS = {kind: measured_path("h200_sxm", kind) for kind in ("gemm", "tile_sweep", "counters")}


def write(path: Path, time_us: float, mhz: float, **changes: str) -> Path:
    row = dict.fromkeys(SAME, "8") | {"time_us": str(time_us), "sm_mhz_after": str(mhz)} | changes
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, row)
        table.writeheader()
        table.writerow(row)
    return path


def test_bursts_are_set_beside_launches_that_lie_apart(tmp_path: Path) -> None:
    spaced = write(tmp_path / "apart.csv", 1000, 1980)
    page = burst_section(write(tmp_path / "burst.csv", 1200, 1500), spaced)
    assert "| 8 x 8 x 8 | 1,000 | 1,200 | 1.20 | 1500" in page
    assert "1.20" not in burst_section(write(tmp_path / "burst.csv", 1200, 1500, kernel="another"), spaced)


def test_two_measurements_of_a_kernel_are_set_beside_each_other(tmp_path: Path) -> None:
    first, again = write(tmp_path / "first.csv", 12, 1500), write(tmp_path / "again.csv", 10, 1980)
    page = repeat_section(first, again)
    assert "| all | 1 | 20.0 | 20.0 | +20.0 | 100 |" in page
    assert "under 10 us" not in page
    assert "| under 10 us | 1 | 10.0 |" in repeat_section(write(first, 9.9, 1980), write(again, 9, 1980))


def test_two_runs_of_a_step_are_compared_kernel_by_kernel(tmp_path: Path) -> None:
    page = timed_repeat_section(*(measured_path(gpu, "elementwise") for gpu in ("h200_sxm", "h200_sxm_further")))
    assert re.search(r"\| norms \| 4 \| 0\.5 \|", page)
    same = measured_path("h200_sxm", "decoder_stack_kernels")
    assert "| memset | 37 | 0.0 | 0.0 | +0.0 | 0 |" in timed_repeat_section(same, same)
    with pytest.raises(ConfigError, match=r"gemm\.csv.*must be one of timed operations"):
        timed_repeat_section(PATHS["gemm"], PATHS["gemm"])


@pytest.mark.slow
@pytest.mark.parametrize("table", PATHS)
def test_no_group_of_a_few_rows_is_off_what_was_written(table: str) -> None:
    """By more than half a point, for worse or better: then docs/validation.md is not the code's."""
    written = json.loads((Path(__file__).parent / "data" / "validation_subset.json").read_text(encoding="utf-8"))
    report = validate(GPU, PATHS[table], limit=SUBSET_ROWS)
    found = {str(group["name"]): group["mape_pct"] for group in report.groups if group["n"]}
    assert found == pytest.approx(written[table], abs=0.5)


def test_shipped_bursts_were_held_back_where_the_clock_says_so() -> None:
    page = burst_section(PATHS["gemm"], measured_path("h200_sxm_further", "gemm_spaced"))
    found = [
        line.split(" | ") for line in page.splitlines() if line.startswith("| ") and " x " in line and "m x" not in line
    ]
    assert len(found) == 15
    for cells in found:
        ratio, mhz = float(cells[3]), float(cells[4].rstrip(" |"))
        assert ratio > 1.14 if mhz < 1600 else ratio < 1.03


def test_every_value_that_no_datasheet_states_is_listed() -> None:
    page = origins_section(GPU)
    for row in rows(GPU):
        assert (f"| {row.key} |" in page) == (row.kind not in ("datasheet", "derived"))


def test_a_page_lists_each_fitted_value_once() -> None:
    """With all values' origins, without a second list of the fitted ones."""
    report = validate(GPU, PATHS["gemm"], limit=2)
    names = [row.key for row in rows(GPU) if row.kind == "fitted"]
    for page in (markdown([report]), markdown([report], origins=origins_section(GPU))):
        assert [page.count(f"| {name} |") for name in names] == [1] * len(names)
    assert "## What is fitted" not in page


@pytest.mark.slow
def test_each_fitted_constant_is_moved_both_ways() -> None:
    page = sensitivity_section(GPU, PATHS, 2)
    for row in rows(GPU):
        for sign in ("/", "x"):
            of_gemms = row.kind == "fitted" and row.key.partition(".")[0] not in OWN_PROGRAMS
            assert (f"| {row.key} {sign} {STEP:g} |" in page) == of_gemms


def test_errors_are_drawn_for_every_row_and_clipped() -> None:
    points = (Point(10.0, 11.0, 1e9), Point(10.0, 100.0, 1e9))
    figure = draw_errors([Report("gpu", "gemm", "gemm.csv", (), {}, (), 2, points=points)])
    for axes in figure.axes:
        drawn = np.asarray(axes.collections[0].get_offsets())[:, 1]
        assert list(drawn) == pytest.approx([10, LIMIT_PCT])
        assert axes.get_xlabel().endswith(")")
        assert axes.get_xscale() == "log"


def test_reports_hold_the_rows_they_compared() -> None:
    report = validate(GPU, PATHS["gemm"], limit=5)
    assert len(report.points) == report.overall["n"]
    errors = [abs(p.predicted_us / p.measured_us - 1) for p in report.points]
    assert 100 * sum(errors) / len(errors) == pytest.approx(report.overall["mape_pct"])
