"""Hardware varied under a workload: comparisons, sensitivities, scans, and their commands."""

from __future__ import annotations

import csv
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hwmodels.catalog import load_gpu
from hwmodels.errors import ConfigError
from hwmodels.levers import variant
from sim.call import Options, run_call
from sim.cases import Figures, GemmCase, LlmCase
from sim.step import run_step
from sim.whatif import Axis, Scan, axis, compare, scan, sensitivity
from tests.command_line import one_error, tilewalk
from workloads.gemm import Gemm
from workloads.llm import Llm
from workloads.models.catalog import load_model

H200 = load_gpu("h200_sxm")
SMALL = GemmCase(Gemm(256, 512, 512))
DECODE = LlmCase(Llm(load_model("gpt2"), phase="decode", batch=2, tokens=1, context=64))


def figures(time_s: float) -> Figures:
    return Figures(time_s, 1.0, 0, {"tensor": time_s}, {"hbm": 1}, {})


# Figures of a case.
def test_a_product_takes_its_kernels_time_and_energy() -> None:
    found = SMALL.figures(H200)
    call = run_call(SMALL.gemm, found.tiles[SMALL.gemm], H200, Options())
    assert found.time_s == call.time_s
    assert found.energy_j == pytest.approx(sum(sum(kernel.energy_j.values()) for kernel in call.kernels))
    assert sum(found.limited_s.values()) == pytest.approx(found.time_s)
    assert found.bytes["hbm"] == sum(sum(kernel.bytes["hbm"].values()) for kernel in call.kernels)


def test_a_step_takes_as_long_as_by_itself() -> None:
    found = DECODE.figures(H200)
    step = run_step(DECODE.request.step("flash"), H200, launch="stream")
    assert found.time_s == pytest.approx(step.host.end_to_end_s)
    assert found.tokens == 2
    assert sum(found.limited_s.values()) == pytest.approx(found.time_s)


def test_kept_kernels_are_kept_where_they_fit() -> None:
    base = SMALL.figures(H200)
    other = GemmCase(SMALL.gemm, family="multistage").figures(H200).tiles[SMALL.gemm]
    assert SMALL.figures(H200, {SMALL.gemm: other}).tiles == {SMALL.gemm: other}
    narrow = variant(H200, ["smem_capacity=*0.25"])
    kept = SMALL.figures(narrow, base.tiles).tiles[SMALL.gemm]
    assert kept != base.tiles[SMALL.gemm], "what does not fit is chosen anew"
    assert DECODE.figures(H200, DECODE.figures(H200).tiles).time_s == DECODE.figures(H200).time_s


# One variant.
def test_more_bandwidth_helps_what_memory_bounds() -> None:
    found = compare(GemmCase(Gemm(8, 8192, 8192)), H200, ["hbm_bandwidth=*1.5"])
    assert 1.05 < found.speedup < 1.5
    assert compare(SMALL, H200, []).speedup == 1.0


def test_kernels_are_chosen_anew_unless_told_otherwise() -> None:
    case = GemmCase(Gemm(1024, 1024, 2048))
    anew, kept = (compare(case, H200, ["sms=*0.5"], retune=flag) for flag in (True, False))
    assert kept.variant.tiles == kept.base.tiles
    assert anew.variant.time_s <= kept.variant.time_s


# Every lever.
def test_the_most_telling_lever_stands_first() -> None:
    with ThreadPoolExecutor(1) as pool:
        base, found = sensitivity(GemmCase(Gemm(8, 8192, 8192)), H200, ["sms", "hbm_bandwidth", "power"], executor=pool)
    assert base.time_s > 0
    assert [each.lever.name for each in found] == ["hbm_bandwidth", "sms", "power"]
    first = found[0]
    assert first.down is not None
    assert first.up is not None
    assert first.elasticity is not None
    assert first.up < 1.0
    assert first.down > 1.0
    assert -1.01 < first.elasticity < -0.5
    assert found[-1].elasticity == 0.0


def test_a_lever_that_no_gpu_has_says_why() -> None:
    heard: list[tuple[int, int]] = []
    _, found = sensitivity(SMALL, H200, ["sm.sms_per_tpc"], progress=lambda done, total: heard.append((done, total)))
    assert found[0].doubled is not None or found[0].refused
    assert heard[-1][0] == heard[-1][1]


# A grid.
def test_a_scan_has_every_combination_in_order() -> None:
    found = scan(SMALL, H200, [axis("sms=*0.5,*1"), axis("l2.capacity_mib=20:60:20")])
    assert [*found.grid] == [(0.5, 20), (0.5, 40), (0.5, 60), (1.0, 20), (1.0, 40), (1.0, 60)]
    assert all(isinstance(point, Figures) for point in found.points)


def test_a_point_that_cannot_be_is_told_and_the_others_stand() -> None:
    found = scan(SMALL, H200, [axis("hbm.capacity_gb=0.001,141")])
    assert isinstance(found.points[0], ConfigError)
    assert isinstance(found.points[1], Figures)


@pytest.mark.parametrize(
    ("times", "knee"), [((4.0, 2.0, 1.01, 1.0), 3), ((1.0, 1.0), None), ((1.0, 2.0), None), ((2.0, 1.0), 2)]
)
def test_the_knee_is_where_no_more_than_2_percent_is_left(times: tuple[float, ...], knee: float | None) -> None:
    values = tuple(float(i) for i in range(1, len(times) + 1))
    points = tuple(figures(time) for time in times)
    made = Scan((Axis("sm.count", values),), figures(1.0), tuple((v,) for v in values), points, True)
    assert made.knee(0) == knee


@pytest.mark.parametrize(
    ("text", "values", "factors"),
    [
        ("l2.capacity_mib=20:60:20", (20, 40, 60), False),
        ("clock=*0.8:*1.2:*0.2", (0.8, 1.0, 1.2), True),
        ("sm.count=80,132", (80, 132), False),
    ],
)
def test_axes_as_typed(text: str, values: tuple[float, ...], factors: bool) -> None:
    made = axis(text)
    assert made.values == values
    assert made.factors is factors


WRONG_AXES = (
    "sms",
    "sms=",
    "sms=*1:*2",
    "sms=a,b",
    "sms=*0,*1",
    "=1,2",
    "sm.count=9:1:1",
    "sm.count=1:1e9:0.1",
    "sm.count=1:1e300:1e-300",
    "sms=*1,*1",
)


@pytest.mark.parametrize("text", WRONG_AXES)
def test_a_wrong_axis_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"scan|unknown"):
        axis(text)


def test_no_more_than_two_axes_and_none_twice() -> None:
    with pytest.raises(ConfigError, match="axes = 3"):
        scan(SMALL, H200, [axis("sms=*1,*2")] * 3)
    with pytest.raises(ConfigError, match="the same value"):
        scan(SMALL, H200, [axis("sms=*1,*2"), axis("sm.count=100,120")])


def test_what_is_read_is_not_written_over(tmp_path: Path) -> None:
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    one.write_text('inherits = "h200_sxm"\n', "utf-8")
    two.write_text('inherits = "one.toml"\n', "utf-8")
    words = ("--set", "sms=*2", "256", "512", "512")
    for option, path in (("--csv", two), ("--save", one), ("--save", two)):
        assert "another file" in one_error(tilewalk("whatif", "--gpu", str(two), option, str(path), *words))
    assert "another file" in one_error(tilewalk("tiles", "--gpu", str(two), "--csv", str(two), "256", "512", "512"))
    assert one.read_text("utf-8") == 'inherits = "h200_sxm"\n'


# Commands.
def test_whatif_compares_and_saves(tmp_path: Path) -> None:
    saved = tmp_path / "mine.toml"
    done = tilewalk("whatif", "--set", "sms=*1.5", "--save", str(saved), "--json", "256", "512", "512")
    found = json.loads(done.stdout)
    assert [table["title"] for table in found["tables"]][:2] == ["time", "kernels by what limits them"]
    assert load_gpu(saved).sm.count == 198


def test_whatif_takes_a_model_draws_and_writes(tmp_path: Path) -> None:
    picture, rows = tmp_path / "scan.png", tmp_path / "scan.csv"
    words = ("--model", "gpt2", "--phase", "decode", "--context", "64")
    done = tilewalk("whatif", "--scan", "hbm_bandwidth=*0.5,*1", "--figure", str(picture), "--csv", str(rows), *words)
    assert "gpt2, one decode step" in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    with rows.open(encoding="utf-8", newline="") as stream:
        points = list(csv.DictReader(stream))
    assert [point["HBM, bandwidth, × the base"] for point in points] == ["0.5", "1.0"]


def test_the_tables_of_a_comparison_are_one_in_csv(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    done = tilewalk("whatif", "--set", "sms=*1.5", "--csv", str(path), "--json", "256", "512", "512")
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream, strict=True))
    tables = json.loads(done.stdout)["tables"]
    assert [(row["table"], row["name"]) for row in rows] == [(t["title"], r[0]) for t in tables for r in t["rows"]]
    assert (rows[0]["unit"], float(rows[0]["base"])) == ("s", tables[0]["rows"][0][1])
    assert all(None not in row and None not in row.values() for row in rows)


def test_compare_puts_gpus_side_by_side() -> None:
    done = tilewalk("compare", "--gpus", "h200_sxm,a100_sxm_80gb", "256", "512", "512")
    assert done.stdout.index("h200_sxm") < done.stdout.index("a100_sxm_80gb")
    assert "h200_sxm  fastest" in done.stdout
    alone = tilewalk("compare", "--gpus", "h200_sxm,t4", "256", "512", "512")
    assert "t4 has no bf16" in alone.stdout
    assert "fastest" not in alone.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("whatif", "8", "8", "8"), "none given"),
        (("whatif", "--set", "sms=*2", "--sensitivity", "8", "8", "8"), "--set and --sensitivity given"),
        (("whatif", "--set", "sms=*2"), "needs M N K"),
        (("whatif", "--set", "sms=*2", "8", "8"), "K"),
        (("whatif", "--set", "sms=*2", "8", "8", "8", "--bogus", "1"), "--bogus"),
        (("whatif", "--scan", "sms=*1,*2", "--save", "a.toml", "8", "8", "8"), "--save: needs --set"),
        (("whatif", "--set", "sms=*2", "--lever", "sms", "8", "8", "8"), "--lever: needs --sensitivity"),
        (("whatif", "--sensitivity", "--lever", "hbm_bandwith", "8", "8", "8"), "--lever: unknown value or lever"),
        (("whatif", "--sensitivity", *("--lever", "sms") * 2, "8", "8", "8"), "--lever = 'sms': must be given once"),
        (("whatif", *("--set", "sms=*2", "--set", "sms=*3"), "8", "8", "8"), "--set = 'sms=*3': must be given once"),
        (("gemm", *("--set", "sm.count=9") * 2, "8", "8", "8"), "--set = 'sm.count=9': must be given once"),
        (("whatif", "--set", "sms=*2", "--save", "a.txt", "8", "8", "8"), "must end in .toml"),
        (("whatif", "--set", "sms=*2", "--save", f"{'a' * 201}.toml", "8", "8", "8"), "1 to 200 printable"),
        (("compare", "--gpus", "h200_sxm,t4", "8", "8", "8", "--gpu", "t4"), "--gpu: must not be given, --gpus names"),
        (("compare", "--gpus", "h200_sxm,t4", "--bogus", "8", "8", "8"), "no such option: --bogus (see tilewalk"),
        (("compare", "--gpus", "h200_sxm", "8", "8", "8"), "different GPUs"),
        (("compare", "--gpus", "h200_sxm,nope", "8", "8", "8"), "unknown GPU 'nope'"),
    ],
)
def test_wrong_words_are_refused_before_anything_is_simulated(
    words: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(GemmCase, "figures")
    error = one_error(tilewalk(*words))
    assert message in error
    assert error.startswith("--save = ") or "a.txt" not in words
