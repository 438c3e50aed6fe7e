"""The error to expect of a prediction: classes of kernels, the file that holds their errors, and where it is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from hwmodels import load_gpu
from hwmodels.errors import ConfigError
from sim import report, simulate
from sim.validation import expected
from sim.validation.expected import KernelClass, expected_error, kernel_class, pooled, write_expected_errors
from sim.validation.groups import is_held_out, names
from sim.validation.report import Report
from sim.validation.tables import Inputs, Measured, Row
from workloads import Gemm

GEMV = KernelClass("persistent", "bf16", "gemv")
LARGE = KernelClass("multistage", "bf16", "large")


def group(kernels: KernelClass, n: int, mape_pct: float) -> dict[str, object]:
    return {"name": kernels.name, "n": n, "mape_pct": mape_pct}


def made_report(*groups: dict[str, object], gpu: str = "h200_sxm", kind: str = "gemm") -> Report:
    others = {"name": "all bf16", "n": 900, "mape_pct": 99.0}
    return Report(gpu, kind, f"{kind}.csv", (others, *groups), {"n": 900}, (), 900)


# Classes.
def test_classes_of_shapes() -> None:
    assert kernel_class("persistent", "bf16", 16, 4096, 4096) == GEMV
    assert kernel_class("persistent", "fp8_e4m3", 17, 4096, 4096) == KernelClass("persistent", "fp8", "small")
    assert kernel_class("multistage", "bf16", 4096, 4096, 4096) == LARGE


NVJET = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT"


@pytest.mark.parametrize(
    ("inputs", "kernels"),
    [
        (Inputs("gemm", 1, 4096, 4096, kernel=NVJET), GEMV),
        (Inputs("tile_sweep", 4096, 4096, 4096, library="triton"), LARGE),
        (Inputs("gemm", 4096, 4096, 4096, kernel="magma_gemm"), None),
        (Inputs("counters", 4096, 4096, 4096, library="triton"), None),
    ],
)
def test_rows_of_shapes_not_fitted_belong_to_their_class(
    inputs: Inputs, kernels: KernelClass | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Row(2, inputs, Measured(time_us=1.0))
    for held_out in (True, False):
        monkeypatch.setattr("sim.validation.groups.is_held_out", lambda inputs, held_out=held_out: held_out)
        found = [name for name in names(row) if name in {kernels.name for kernels in expected._all_classes()}]
        assert found == ([kernels.name] if kernels and held_out else [])


def test_half_of_the_shapes_are_held_out() -> None:
    shapes = [Inputs("gemm", 64 * i, 4096, 4096) for i in range(1, 200)]
    assert 0.35 < sum(map(is_held_out, shapes)) / len(shapes) < 0.65


# The file.
def test_written_errors_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "errors.toml"
    assert expected_error("h200_sxm", GEMV, path) is None
    assert write_expected_errors([made_report(group(GEMV, 120, 4.256))], path) == 1
    assert expected_error("h200_sxm", GEMV, path) == {"mape_pct": 4.26, "group": GEMV.name, "n": 120}
    assert expected_error("h100_sxm", GEMV, path) is None
    assert expected_error("h200_sxm", LARGE, path) is None


def test_tables_are_pooled_by_their_kernels() -> None:
    reports = [
        made_report(group(LARGE, 30, 4.0)),
        made_report(group(LARGE, 10, 8.0), kind="tile_sweep"),
        made_report(group(LARGE, 1000, 50.0), kind="counters"),
    ]
    assert pooled(reports) == {("h200_sxm", LARGE): (40, 5.0)}


def test_few_kernels_tell_nothing() -> None:
    assert pooled([made_report(group(GEMV, 4, 1.0), group(LARGE, 5, 2.0))]).keys() == {("h200_sxm", LARGE)}


def test_other_gpus_keep_their_entries(tmp_path: Path) -> None:
    path = tmp_path / "errors.toml"
    write_expected_errors([made_report(group(GEMV, 9, 9.0), gpu="t4")], path)
    write_expected_errors([made_report(group(GEMV, 8, 8.0), group(LARGE, 8, 8.0))], path)
    write_expected_errors([made_report(group(GEMV, 7, 7.0))], path)
    found = {
        (gpu, kernels): expected_error(gpu, kernels, path) for gpu in ("t4", "h200_sxm") for kernels in (GEMV, LARGE)
    }
    assert {key: entry and entry["n"] for key, entry in found.items()} == {
        ("t4", GEMV): 9,
        ("t4", LARGE): None,
        ("h200_sxm", GEMV): 7,
        ("h200_sxm", LARGE): None,
    }


@pytest.mark.parametrize("text", ["[[kernels]]\ngpu = 'x'\n", "kernels = 3\n", "[[kernels\n"])
def test_a_broken_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "errors.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"errors\.toml"):
        expected_error("h200_sxm", GEMV, path)


# In a result.
def test_a_result_tells_the_error_of_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {("h200_sxm", kernel_class("persistent", "bf16", 1, 64, 512)): {"mape_pct": 5.0, "group": "g", "n": 50}}
    monkeypatch.setattr(report, "expected_error", lambda gpu, kernels: known.get((gpu, kernels)))
    gemm, h200 = Gemm(1, 64, 512), load_gpu("h200_sxm")
    assert simulate(gemm, h200, family="persistent").options["expected_error"] == {
        "mape_pct": 5.0,
        "group": "g",
        "n": 50,
    }
    assert "expected_error" not in simulate(gemm, h200, family="multistage").options
    assert "expected_error" not in simulate(gemm, h200, family="persistent", clock_mhz=1500).options
    assert "expected_error" not in simulate(gemm, h200, family="persistent", without=("clock",)).options
    changed = load_gpu("h200_sxm", ("hbm.latency_ns=*2",))
    assert "expected_error" not in simulate(gemm, changed, family="persistent").options
