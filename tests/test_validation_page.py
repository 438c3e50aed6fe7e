"""The parts of docs/validation.md that are not scores: targets, causes, bursts, origins, sensitivities, the picture."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hwmodels import load_gpu, measured_path, rows
from hwmodels.errors import ConfigError
from sim.calibration.constants import OWN_PROGRAMS
from sim.validation import markdown, validate
from sim.validation.bursts import SAME, burst_section, repeat_section, timed_repeat_section
from sim.validation.causes import UNKNOWN, Cause, again, counted, explained, own_kernel, read_causes
from sim.validation.groups import UNFITTED, names, unfitted
from sim.validation.origins import STEP, origins_section, sensitivity_section
from sim.validation.replay import Predicted
from sim.validation.report import Point, Report
from sim.validation.scores import Scored, summary
from sim.validation.tables import Inputs, Measured, Row, read_table
from sim.validation.targets import Target, reached, read_targets, targets_section
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


# Targets.
def target(
    limit: float | None = 4.0, *, at_least: bool = False, fitted: str = "half", group: str = "all fp8"
) -> Target:
    return Target("what", "gemm", group, "mape_pct", limit, at_least, fitted, further=False)


def scored_report(**mape_pct: float | None) -> Report:
    groups = [{"name": name.replace("_", " "), "n": 7, "mape_pct": mape} for name, mape in mape_pct.items()]
    groups.append({"name": unfitted("all fp8"), "n": 3, "mape_pct": 4.0})
    return Report("h200_sxm", "gemm", "gemm.csv", tuple(groups), {"name": "all rows", "n": 9, "mape_pct": 1.0}, (), 9)


def test_a_target_is_met_at_its_limit_and_not_beyond() -> None:
    for figure, at_most, at_least in ((3.999, True, False), (4.0, True, True), (4.001, False, True)):
        assert target().met(figure) is at_most
        assert target(at_least=True).met(figure) is at_least
    assert target(None).met(5.0) is None


def test_shapes_not_fitted_decide_and_all_rows_where_there_are_none() -> None:
    report = scored_report(all_fp8=5.0)
    half, none, whole = (reached(target(fitted=fitted), [report]) for fitted in ("half", "none", "all"))
    assert (half.not_fitted, half.overall, half.met) == ((4.0, 3), (5.0, 7), True)
    assert (none.not_fitted, none.met) == ((5.0, 7), False)
    assert (whole.not_fitted, whole.overall, whole.met) == (None, (5.0, 7), False)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (target(group="all fp9"), "group = 'all fp9'"),
        (target(group="all bf16"), "group = 'all bf16, shapes not fitted'"),
        (target(group="empty", fitted="none"), "score = 'mape_pct'"),
        (Target("what", "gems", "all fp8", "mape_pct", 4.0, False, "none", False), "table = 'gems'"),
    ],
)
def test_a_target_without_figures_is_refused(wrong: Target, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        reached(wrong, [scored_report(all_fp8=5.0, all_bf16=5.0, empty=None)])


TARGET_FILE = """
[tables]
gemm = "{fitted}"
[[targets]]
what = "fp8"
tables = ["gemm"]
groups = ["{group}"]
at_most = {{ {score} = {limit} }}
[[constants]]
what = "constants"
{sections}
at_most = 2
"""


def target_file(path: Path, **changes: str) -> Path:
    filled = {"fitted": "half", "group": "all fp8", "score": "mape_pct", "limit": "4", "sections": 'of = ["activity"]'}
    path.write_text(TARGET_FILE.format(**filled | changes), encoding="utf-8")
    return path


def test_a_page_sets_each_target_beside_its_figures(tmp_path: Path) -> None:
    report = scored_report(all_fp8=5.0)
    page = targets_section(GPU, [report], target_file(tmp_path / "targets.toml"))
    assert "| fp8 | gemm: all fp8 | MAPE % | <= 4 | 4.00 | 3 | 5.00 | 7 | half of the shapes | yes |" in page
    none_fitted = targets_section(GPU, [report], target_file(tmp_path / "targets.toml", fitted="none"))
    assert "| 5.00 | 7 | 5.00 | 7 | no row | **no** |" in none_fitted
    n_clock = sum(row.kind == "fitted" and row.key.startswith("activity.") for row in rows(GPU))
    n_others = sum(row.kind == "fitted" for row in rows(GPU)) - n_clock
    assert f"| <= 2 | - | - | {n_clock} |" in page
    assert f"{1 + (n_clock <= 2)} of 2 are met" in page
    others = target_file(tmp_path / "targets.toml", sections='without = ["activity"]')
    assert f"| <= 2 | - | - | {n_others} | - | - | **no** |" in targets_section(GPU, [report], others)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fitted": "some"}, "fitted = 'some'"),
        ({"score": "mape"}, "score = 'mape'"),
        ({"group": "all fp9"}, "group = 'all fp9'"),
        ({"limit": "'4 %'"}, r"targets\.toml: ValueError"),
        ({"sections": "of = "}, r"targets\.toml"),
    ],
)
def test_a_wrong_file_of_targets_is_refused(tmp_path: Path, changes: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        targets_section(GPU, [scored_report(all_fp8=5.0)], target_file(tmp_path / "targets.toml", **changes))


def test_every_shipped_target_names_groups_that_its_table_has() -> None:
    found: dict[str, set[str]] = {}
    for each in read_targets():
        table = each.table.partition(",")[0]
        if table not in found:
            path = measured_path("h200_sxm_further" if each.further else "h200_sxm", table)
            if table == "sustained_load":
                with path.open(encoding="utf-8") as file:
                    cases = {
                        f"steady state, {row['case']}, {row['m']}x{row['n']}x{row['k']}" for row in csv.DictReader(file)
                    }
                found[table] = cases
            else:
                found[table] = {"all rows"}.union(*(names(row) for row in read_table(path).rows))
        wanted = [each.group] if each.fitted != "half" else [each.group, unfitted(each.group)]
        assert {name.replace(f"all rows, {UNFITTED}", UNFITTED) for name in wanted} <= found[table], each


# Subsets that the targets need.
COUNTED = {"over": "any kernel over 20 us", "sectors": "rows of K a multiple of 32 B"}


@pytest.mark.parametrize(
    ("kind", "k", "time_us", "belongs"),
    [
        ("counters", 4096, 20.1, {"over", "sectors"}),
        ("counters", 4096, 20.0, {"sectors"}),
        ("counters", 4104, 20.1, {"over"}),  # 16 B more
        ("gemm", 4096, 20.1, set()),
    ],
)
@pytest.mark.parametrize("held_out", [True, False])
def test_counters_have_the_subsets_of_their_targets(
    kind: str, k: int, time_us: float, belongs: set[str], held_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sim.validation.groups.is_held_out", lambda inputs: held_out)
    found = names(Row(2, Inputs(kind, 64, 512, k), Measured(time_us)))
    assert {key for key, name in COUNTED.items() if name in found} == belongs
    assert {key for key, name in COUNTED.items() if unfitted(name) in found} == (belongs if held_out else set())


# Worst rows and their causes.
def scored_row(line: int, measured_us: float, predicted_us: float, limiter: str = "hbm", **inputs: Any) -> Scored:
    counts = dict.fromkeys(("sm_cycles", "sm_mhz", "dram_read_bytes", "l2_read_bytes", "sm_received_bytes"), 100.0)
    none = {"dram_write_bytes": 0.0, "l2_hit_pct": 0.0, "tensor_active_pct": 0.0}
    predicted = Predicted(time_us=predicted_us, limiter=limiter, **(none | counts | {"l2_read_bytes": 71.0}))
    asked: dict[str, Any] = {"kind": "gemm", "m": 64, "n": 64, "k": 64} | inputs
    return Scored(Row(line, Inputs(**asked), Measured(measured_us, **counts)), predicted)


def worst_report(*scored: Scored, source: str = "gemm.csv") -> Report:
    points = tuple(Point(each.row.measured.time_us, each.predicted.time_us, 1.0, each) for each in scored)
    return Report("gpu", "gemm", source, (), summary("gemm", "all rows", scored), (), len(scored), points=points)


ODD = Cause("Odd rows.", (("kernel", r"_align[12]\b"),))
WARM = Cause("Too warm.", (("l2", "warm"),), tables=("gemm",), operand_mib=(1, 2))


def test_worst_rows_have_their_limiter_their_kernel_and_their_cause() -> None:
    report = worst_report(
        scored_row(2, 10, 6, kernel="a_align1", limiter="hbm"),
        scored_row(3, 10, 13, kernel="a_align1", limiter="too few CTAs"),
        scored_row(4, 10, 8, kernel="b_align16", limiter="l2 latency"),
    )
    page = explained(report, "beside", lambda scored: "seen" if scored.row.line == 2 else None, [ODD])
    assert "| line | limited by, predicted | beside | other rows of this kernel | known cause |" in page
    assert "| 2 | HBM bandwidth | seen | 1: +30.0 % | (1) |" in page
    assert "| 3 | too few CTAs | - | 1: -40.0 % | (1) |" in page
    assert f"| 4 | L2 latency | - | none | {UNKNOWN} |" in page
    assert "1. Odd rows. The 2 rows of this kind: MAPE 35.0 %, bias -5.0 %." in page


def test_a_cause_fits_by_table_size_and_field() -> None:
    warm = Inputs("gemm", 512, 1024, 512, l2="warm")  # 1.5 MiB
    assert WARM.fits("gemm", warm)
    assert not WARM.fits("gemm_again", warm)
    assert not WARM.fits("gemm", Inputs("gemm", 512, 512, 256, l2="warm"))
    assert not WARM.fits("gemm", Inputs("gemm", 512, 1024, 512))
    assert Cause("", (("m", 512),)).fits("gemm", warm)
    assert not Cause("", (("m", 51),)).fits("gemm", warm)


def test_what_else_was_measured_of_a_row(tmp_path: Path) -> None:
    path = tmp_path / "gemm.csv"
    triple, cells = (
        "1x1x1",
        {"name": "square", "op": "mm", "dtype": "bf16", "layout": "tn", "l2": "cold", "kernel": "a"},
    )
    row = {**cells, "m": 64, "n": 64, "k": 64, "grid": triple, "block": triple, "time_us": 8, "rest_ms": 50}
    path.write_text("\n".join(",".join(map(str, line)) for line in (row, row.values())) + "\n", encoding="utf-8")
    one, other = scored_row(2, 10, 6, kernel="a", name="square"), scored_row(3, 10, 6, kernel="b")
    assert again(path)(one) == "8 us: -25.0 %"
    assert again(path)(other) is None
    assert counted(one) == "cycles +0, clock +0, DRAM read +0, L2 read -29, SM bytes +0 %"
    assert own_kernel(worst_report(one))(one) == "-40.0 %"
    assert own_kernel(worst_report(other))(one) is None


def test_shipped_causes_are_of_fields_that_rows_have(tmp_path: Path) -> None:
    assert len(read_causes()) > 3
    path = tmp_path / "causes.toml"
    path.write_text('[[causes]]\nwhy = "So."\nmatch = { kernal = "a" }\n', encoding="utf-8")
    with pytest.raises(ConfigError, match="match = kernal"):
        read_causes(path)
    path.write_text('[[causes]]\nwhy = "So."\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"causes\.toml.*match"):
        read_causes(path)


def test_every_shipped_cause_fits_a_shipped_row() -> None:
    tables = {("h200_sxm", name) for name in ("gemm", "tile_sweep")}
    tables |= {("h200_sxm_further", name) for name in ("gemm_fp64", "gemm_short", "counters_more")}
    found = {name: [row.inputs for row in read_table(measured_path(gpu, name)).rows] for gpu, name in tables}
    found["gemm, kernels chosen"] = found["gemm"]
    for cause in read_causes():
        assert any(cause.fits(name, inputs) for name, rows in found.items() for inputs in rows), cause.why
