"""The clock after long load: within the board's power, no higher than a burst's, and the table that measured it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from hwmodels import load_gpu
from hwmodels.measured import measured_path
from sim import simulate
from sim.power import limit_w, reported_mhz, settled
from sim.result import KernelResult, Result
from sim.schedule.library import launched
from sim.schedule.names import parse_kernel_name
from sim.validation.run import validate
from sim.validation.sustained import is_sustained_table, validate_sustained
from tests.sample_result import sample_kernel, sample_result
from workloads import Gemm

GPU = load_gpu("h200_sxm")
TABLE = measured_path("h200_sxm", "sustained_load")


def kernel(mhz: float, fixed_w: float, cubic_w: float) -> KernelResult:
    """One second at `mhz`: `cubic_w` at 1,000 MHz goes as the clock's cube."""
    watts = fixed_w + cubic_w * (mhz / 1000) ** 3
    parts = {"idle": fixed_w, "tensor": watts - fixed_w}
    return replace(sample_kernel(traced=False), sm_mhz=mhz, time_s=1.0, energy_j=parts)


@pytest.mark.parametrize(("fixed_w", "cubic_w"), [(100.0, 300.0), (300.0, 200.0), (0.0, 600.0)])
def test_the_clock_is_where_power_meets_the_limit(fixed_w: float, cubic_w: float) -> None:
    found = settled(GPU, kernel(1600, fixed_w, cubic_w), lambda mhz: kernel(mhz, fixed_w, cubic_w))
    assert found.sm_mhz == pytest.approx(1000 * ((limit_w(GPU) - fixed_w) / cubic_w) ** (1 / 3), rel=0.01)


def test_within_the_limit_nothing_is_run_again() -> None:
    burst = kernel(1600, 100.0, 100.0)
    assert settled(GPU, burst, lambda mhz: pytest.fail("ran again")) is burst


def test_idle_power_beyond_the_limit_ends_at_the_lowest_clock() -> None:
    found = settled(GPU, kernel(1600, 900.0, 1.0), lambda mhz: kernel(mhz, 900.0, 1.0))
    assert found.sm_mhz == pytest.approx(160)


def test_random_data_slow_a_long_load_down_and_zeros_do_not() -> None:
    gemm = Gemm(2048, 2048, 2048)
    fallen = load_gpu("h200_sxm", ["activity.late_us=0"])  # as the clock of a long load is from the start
    burst, random, zeros = (
        simulate(gemm, fallen, sustained=sustained, data=data)
        for sustained, data in ((False, "random"), (True, "random"), (True, "zeros"))
    )
    assert burst.main.sm_mhz > random.main.sm_mhz
    assert random.main.time_s > burst.main.time_s
    assert sum(random.main.energy_j.values()) / random.main.time_s == pytest.approx(limit_w(GPU), rel=0.02)
    assert zeros.main.sm_mhz == pytest.approx(burst.main.sm_mhz)
    held = simulate(gemm, GPU, sustained=True, clock_mhz=1500)
    assert held.main.sm_mhz == pytest.approx(1500, rel=1e-3)


def test_more_board_power_is_never_slower() -> None:
    boards = (300, 400, 500, 600, 700, 900)
    config = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT"
    gemm = Gemm(1024, 1024, 4096)
    times = [
        simulate(
            gemm,
            load_gpu("h200_sxm", [f"power.board_w={watts}"]),
            config=parse_kernel_name(config, gemm),
            sustained=True,
        ).time_s
        for watts in boards
    ]
    assert all(later <= earlier * 1.005 for earlier, later in pairwise(times))
    assert times[-1] < times[0]


def test_the_shipped_table_is_recognised_and_scored_by_case() -> None:
    assert is_sustained_table(TABLE)
    assert not is_sustained_table(measured_path("h200_sxm", "gemm"))
    asked: list[tuple[Gemm, str]] = []

    def predict(gemm: Gemm, data: str) -> Result:
        asked.append((gemm, data))
        return sample_result(traced=False)

    report = validate_sustained(GPU, TABLE, predict)
    assert report.groups[2]["name"] == "steady state, random, 8192x8192x8192"
    assert report.groups[9]["name"] == "first second, random, 8192x8192x8192"
    steady, first, *by_case = report.groups
    assert (steady["name"], first["name"]) == ("steady state", "first second")
    assert report.overall["n"] == steady["n"] + first["n"] == sum(group["n"] for group in by_case) == report.n_rows
    assert [gemm.l2 for gemm, _ in asked if gemm.m == 2048] == ["warm"]
    assert {data for _, data in asked} == {"random", "zeros", "sparse"}


def test_errors_are_of_time_clock_and_power(tmp_path: Path) -> None:
    result = sample_result(traced=False)
    mhz, rest_w = reported_mhz(GPU, result.main.sm_mhz), GPU.power.idle_w + GPU.power.clocks_w
    share = 40 / GPU.power.mean_ms
    soon_w = rest_w + share * (result.power_w - rest_w)
    table = tmp_path / "mine.csv"
    table.write_text(
        "case,m,n,k,seconds,t_mid,us_per_call,tflops,sm_mhz,watt\n"
        f"random,4096,4096,4096,0.04,0.02,{result.time_s * 1e6},1,{mhz / 2},{soon_w}\n"
        f"random,4096,4096,4096,0.04,1.52,{result.time_s * 2e6},1,{mhz},{result.power_w * 1.25}\n"
        "ones,4096,4096,4096,0.04,1.5,1,1,1,1\n"
    )
    report = validate_sustained(GPU, table, lambda gemm, data: result)
    assert (report.overall["n"], report.n_rows, report.skipped[0]["row"]) == (2, 3, 4)
    keys = ("mape_pct", "bias_pct", "sm_mhz_mape_pct", "watt_mape_pct")
    steady, first = ([group[key] for key in keys] for group in report.groups[:2])
    assert steady == pytest.approx([50.0, -50.0, 0.0, 20.0])
    assert first == pytest.approx([0.0, 0.0, 100.0, 0.0], abs=1.0)


def test_a_table_without_rows_has_no_scores(tmp_path: Path) -> None:
    table = tmp_path / "mine.csv"
    table.write_text("case,m,n,k,seconds,t_mid,us_per_call,tflops,sm_mhz,watt\n")
    assert validate(GPU, table).overall["n"] == 0


def test_the_product_of_the_table_runs_the_kernel_that_was_seen() -> None:
    found = launched(Gemm(8192, 8192, 8192), GPU)
    assert found is not None
    assert (found.block_m * found.block_n, found.stages) == (320 * 128, 3)
    assert launched(Gemm(8191, 8192, 8192), GPU) is None
