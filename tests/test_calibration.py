"""Calibration: does it find constants it should, leave those it cannot know, continue where it stopped, say how sure?

Most tests use a closed-form stand-in for the simulator, on tables made with it under other constants.
"""

from __future__ import annotations

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from hwmodels import load_gpu
from hwmodels.errors import ConfigError
from hwmodels.folders import GPUS
from hwmodels.measured import measured_path
from hwmodels.rules import value_at
from hwmodels.spec import FIELDS
from sim.calibration import Calibration, Outcome, readings, tables
from sim.calibration.constants import CONSTANTS, LEFT, OWN_PROGRAMS, with_values
from sim.calibration.files import gpu_toml, inherited, markdown, warnings
from sim.calibration.predictions import StoppedError, simulate_case
from sim.calibration.run import Request
from sim.validation.replay import Case
from tests.command_line import ROOT, one_error, process, tilewalk
from tests.kernel_runs import cycles, persistent, run, whole_gpu
from tests.synthetic_tables import closed_form, gpu_file, write_tables
from viz.calibration import FIGURES
from viz.commands import progress
from workloads import Gemm

GPU = load_gpu("h200_sxm")
SHIPPED = measured_path("h200_sxm", "gemm").parent
CYCLES = ("persistent.start_cycles", "persistent.epilogue_cycles", "persistent.iteration_cycles")
CLOCK = ("activity.active_mhz", "activity.tensor_mhz")
TRUTH = {
    "persistent.start_cycles": 900.0,
    "persistent.epilogue_cycles": 600.0,
    "persistent.iteration_cycles": 220.0,
    "activity.active_mhz": 1600.0,
    "activity.tensor_mhz": 400.0,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables that the closed form made with `TRUTH`, and the file of a GPU whose five constants are guesses."""
    made = tmp_path_factory.mktemp("calibration")
    gpu_file(made / "mine.toml", (*CYCLES, *CLOCK))
    write_tables(made / "tables", with_values(GPU, TRUTH), closed_form)
    return made


def request(folder: Path, **changes: Any) -> Request:
    return replace(Request(str(folder / "mine.toml"), (folder / "tables",), every_row=True, n_folds=3), **changes)


@pytest.fixture(scope="module")
def outcome(folder: Path) -> Outcome:
    return Calibration(request(folder), simulate=closed_form).run()


# What is found.
def test_constants_are_found(outcome: Outcome) -> None:
    assert {one.key: one.after for one in outcome.constants} == pytest.approx(TRUTH, rel=0.03)
    assert all(one.before == value_at(GPU, one.key) for one in outcome.constants)
    assert all(value == pytest.approx(one.after, rel=0.03) for one in outcome.constants for value in one.folds)
    assert [len(one.folds) for one in outcome.constants] == [3] * 5


def test_errors_fall_on_shapes_that_were_not_fitted(outcome: Outcome) -> None:
    unseen = [group for group in outcome.groups if not group.fitted and group.quantity in ("time_us", "sm_mhz")]
    assert {group.table for group in unseen} == {"gemm", "counters"}
    assert all(group.before_pct > 5 and group.after_pct < 0.5 for group in unseen)
    assert {stage.stage for stage in outcome.stages} == {"cycles", "clock"}
    assert all(stage.out_of_fold_pct is not None and stage.out_of_fold_pct < 0.5 for stage in outcome.stages)


@pytest.mark.parametrize("tiles", [1, 2, 4])
def test_the_end_of_a_persistent_cta_is_felt_once_whatever_its_tiles(tiles: int) -> None:
    """So rows of few tiles a CTA tell it, and four trips to memory bound it."""
    gemm, config = Gemm(128, 128 * tiles, 256), persistent(n_ctas=1)
    times = [cycles(run(gemm, config, whole_gpu(f"persistent.epilogue_cycles={value}"))) for value in (0, 1000)]
    assert times[1] - times[0] == 1000
    constant = next(constant for constant in CONSTANTS if constant.key == "persistent.epilogue_cycles")
    assert "few tiles a CTA" in constant.rows
    assert "once a CTA" in constant.why
    trip = GPU.l2.latency_cycles + GPU.hbm.latency_ns * GPU.clock.boost_mhz / 1e3
    assert constant.low < value_at(GPU, constant.key) < constant.high == pytest.approx(4 * trip, rel=0.05)


@pytest.mark.slow
def test_the_simulators_own_constants_are_found(tmp_path: Path) -> None:
    truth = {"persistent.epilogue_cycles": 1900.0, "activity.active_mhz": 1700.0}
    gpu_file(tmp_path / "mine.toml", tuple(truth))

    def takes(item: tables.Item) -> bool:
        return item.family == "persistent" and item.fitted and item.iterations < 40_000

    write_tables(tmp_path / "tables", with_values(GPU, truth), n=16, takes=takes)
    found = Calibration(request(tmp_path, n_folds=2)).run()
    assert {one.key: one.after for one in found.constants} == pytest.approx(truth, rel=0.03)


def test_it_is_deterministic(folder: Path, outcome: Outcome) -> None:
    again = Calibration(request(folder, threads=1), simulate=closed_form).run()
    first, second = ({**one.to_dict(), "seconds": 0} for one in (outcome, again))
    assert json.dumps(first) == json.dumps(second)


def test_what_only_a_sum_tells_is_said_to_be_alike(folder: Path) -> None:
    """Of shapes with one tile a CTA, start and epilogue are one number."""

    def one_round(case: Case, gpu: Any, mhz: float | None) -> Any:
        return closed_form(replace(case, gemm=replace(case.gemm, m=128, n=128)), gpu, mhz)

    found = Calibration(request(folder), simulate=one_round).run()
    pairs = {frozenset(pair[:2]): pair[2] for pair in found.identified.alike}
    assert pairs[frozenset(CYCLES[:2])] < -0.9
    assert any("start_cycles and persistent.epilogue_cycles apart" in text for text in warnings(found))


def test_the_loss_is_least_at_the_optimum(outcome: Outcome) -> None:
    assert all(one.loss_up_pct > 0 and one.loss_down_pct > 0 for one in outcome.constants)
    assert all(0 < abs(one.effect_pct) < 15 for one in outcome.constants)
    assert outcome.identified.condition >= 1
    assert np.allclose(np.diag(outcome.identified.correlation), 1)


# Bounds, and what is left alone.
def test_a_fit_ends_at_its_bound_and_says_so(folder: Path, tmp_path: Path) -> None:
    bound = next(constant for constant in CONSTANTS if constant.key == "persistent.iteration_cycles").high
    far = with_values(GPU, TRUTH | {"persistent.iteration_cycles": 3 * bound})
    write_tables(tmp_path / "tables", far, closed_form)
    shutil.copy(folder / "mine.toml", tmp_path)
    found = Calibration(request(tmp_path), simulate=closed_form).run()
    one = next(one for one in found.constants if one.key == "persistent.iteration_cycles")
    assert one.after == bound
    assert one.at_bound
    assert any("iteration_cycles ended at a bound" in text for text in warnings(found))


@pytest.mark.parametrize("constant", CONSTANTS, ids=lambda constant: constant.key)
def test_bounds_are_within_what_a_gpu_file_allows(constant: Any) -> None:
    field = FIELDS[constant.key]
    assert field.is_constant
    assert field.low is not None
    assert field.high is not None
    assert field.low <= constant.low < value_at(GPU, constant.key) < constant.high <= field.high or (
        constant.key == "multistage.narrow_row_weight"
    )


def test_the_clock_keeps_something_at_all_bounds() -> None:
    active, tensor = (next(c for c in CONSTANTS if c.key == key) for key in CLOCK)
    assert active.low > tensor.high


def test_every_fitted_constant_can_be_fitted_again() -> None:
    fitted = {key for key, (_, kind, _) in GPU.provenance.items() if kind == "fitted"}
    apart = {key for key in fitted if key.partition(".")[0] in OWN_PROGRAMS}
    assert fitted <= {constant.key for constant in CONSTANTS} | LEFT.keys() | apart
    for key in apart:
        assert OWN_PROGRAMS[key.partition(".")[0]] in GPU.provenance[key].source, key


@pytest.mark.slow
def test_a_constant_that_a_kernel_is_said_not_to_feel_changes_nothing() -> None:
    found = tables.read([SHIPPED / "gemm.csv", SHIPPED / "tile_sweep.csv"], GPU).items
    cheap = {item.family: item for item in found if item.iterations < 20_000}
    assert cheap.keys() >= {"persistent", "multistage", "multistage mma.sync", "split_k"}
    for item in cheap.values():
        plain = simulate_case(item.case, GPU, None)
        for constant in CONSTANTS:
            if not constant.uses(item.config):
                gpu = with_values(GPU, {constant.key: 1.5 * value_at(GPU, constant.key)})
                moved = simulate_case(item.case, gpu, None)
                assert (moved.time_s, moved.main.bytes) == (plain.time_s, plain.main.bytes), (constant.key, item.family)


def test_too_few_rows_leave_a_constant_as_it_is(folder: Path, tmp_path: Path) -> None:
    write_tables(tmp_path / "tables", with_values(GPU, TRUTH), closed_form, n=6)
    shutil.copy(folder / "mine.toml", tmp_path)
    found = Calibration(request(tmp_path), simulate=closed_form).run()
    assert found.left["activity.tensor_mhz"].startswith("too few rows: ")
    assert found.left["coalescing.window_cycles"].startswith("known: ")
    assert "activity.tensor_mhz" not in gpu_toml(found, tmp_path / "out.toml")


def test_what_rows_do_not_feel_is_left(folder: Path) -> None:
    def blind(case: Case, gpu: Any, mhz: float | None) -> Any:
        return closed_form(case, with_values(gpu, {"persistent.start_cycles": 10.0}), mhz)

    found = Calibration(request(folder), simulate=blind).run()
    assert found.left["persistent.start_cycles"].startswith("no clear effect on ")
    assert "persistent.epilogue_cycles" in {one.key for one in found.constants}


def test_a_gpu_of_known_values_has_nothing_to_fit(folder: Path, tmp_path: Path) -> None:
    known = gpu_file(tmp_path / "known.toml", ())
    with pytest.raises(ConfigError, match="no constant is of kind fitted or assumed"):
        Calibration(request(folder, gpu=str(known)))


# Rows.
def test_rows_are_drawn_by_strata_and_without_looking_at_what_was_measured() -> None:
    found = tables.read([SHIPPED], GPU).items
    drawn = tables.draw(found, 300)
    assert drawn == tables.draw(found, 300)
    assert {item.stratum for item in drawn} == {item.stratum for item in found if item.iterations < 400_000}
    assert 250 < len(drawn) < 450
    scrambled = [
        replace(item, row=replace(item.row, measured=found[i - 1].row.measured)) for i, item in enumerate(found)
    ]
    assert [item.row.line for item in tables.draw(scrambled, 300)] == [item.row.line for item in drawn]


def test_no_shape_is_in_two_folds_and_no_fold_is_empty() -> None:
    found = [item for item in tables.read([SHIPPED], GPU).items if item.fitted]
    fold_of = tables.deal_folds(found, 5)
    sizes = [sum(fold_of[item.shape] == i for item in found) for i in range(5)]
    assert min(sizes) > 50
    sweeps = {fold_of[item.shape] for item in found if item.table == "tile_sweep"}
    assert len(sweeps) == min(5, len({item.shape for item in found if item.table == "tile_sweep"}))


def test_rows_not_used_are_counted_by_reason() -> None:
    found = tables.read([SHIPPED], GPU)
    assert found.unused["has a fused epilogue"] > 20
    assert found.unused["spills registers"] > 20
    assert all(item.row.inputs.op == "mm" for item in found.items)


# Microbenchmarks.
def test_the_shipped_microbenchmarks_say_what_the_gpu_file_says() -> None:
    data = tables.read([SHIPPED], GPU)
    found = readings.read(data.benches, GPU, data.counted_gb_per_s)
    assert len(found) == len(readings.READINGS)
    assert [one.key for one in found if not one.agrees] == []


def test_what_l2_sent_to_kernels_counts_where_a_loop_of_loads_falls_short() -> None:
    benches = tables.read([SHIPPED], GPU).benches
    for counted, expected in ((0.0, 4505), (5_000.0, 4505), (9_900.0, 5000)):
        rate = next(one for one in readings.read(benches, GPU, counted) if one.key == "l2.bytes_per_clk")
        assert rate.value == expected


def test_another_latency_is_read_and_written(folder: Path, tmp_path: Path) -> None:
    bench = (SHIPPED / "microbench.csv").read_text().replace(",287.", ",301.")
    (tmp_path / "micro.csv").write_text(bench)
    asked = request(folder, paths=(folder / "tables", tmp_path / "micro.csv"), command="tilewalk calibrate x")
    found = Calibration(asked, simulate=closed_form).run()
    (tmp_path / "out.toml").write_text(gpu_toml(found, tmp_path / "out.toml"))
    gpu = load_gpu(tmp_path / "out.toml")
    assert gpu.l2.latency_cycles == pytest.approx(301.4)
    assert gpu.provenance["l2.latency_cycles"][1:] == (
        "microbenchmark",
        "tilewalk calibrate x: micro.csv, plateau of the pointer chase",
    )
    assert "| l2.latency_cycles | 287.5 | 301.4 | taken |" in markdown(found, ())


# Continuing.
class Interrupted:
    """The closed form, which is interrupted after so many kernels."""

    def __init__(self, after: int) -> None:
        self.n, self.after = 0, after

    def __call__(self, case: Case, gpu: Any, mhz: float | None) -> Any:
        self.n += 1
        if self.n > self.after:
            raise StoppedError
        return closed_form(case, gpu, mhz)


def test_what_was_simulated_before_is_not_simulated_again(folder: Path, outcome: Outcome, tmp_path: Path) -> None:
    state = tmp_path / "state"
    first = Calibration(request(folder), state, Interrupted(after=700))
    with pytest.raises(StoppedError):
        first.run()
    first.stop()
    second = Calibration(request(folder), state, counting := Interrupted(after=10**9))
    assert (first.resumed, second.resumed) == ("", "continued")
    found = second.run()
    assert 400 < outcome.simulations - counting.n <= 700
    first_time, later = ({**one.to_dict(), "seconds": 0, "simulations": 0} for one in (outcome, found))
    assert json.dumps(first_time) == json.dumps(later)
    second.forget()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"n_folds": 2}, "arguments changed"), ({"gpu": "h200_sxm"}, "GPU changed"), ({"paths": ()}, "data changed")],
)
def test_a_state_of_something_else_is_not_used(
    changes: dict[str, Any], reason: str, folder: Path, tmp_path: Path
) -> None:
    Calibration(request(folder), tmp_path / "state", closed_form).stop()
    if not changes.get("paths", True):
        changes = {"paths": (folder / "tables" / "gemm.csv",)}
    assert Calibration(request(folder, **changes), tmp_path / "state", closed_form).resumed == reason


def test_a_broken_state_is_not_used(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b"PK\x03\x04 not a state")
    assert Calibration(request(folder), tmp_path / "state", closed_form).resumed == "unreadable"


def test_it_tells_what_it_does_and_how_long_it_will_take(folder: Path) -> None:
    heard: list[tuple[str, float | None]] = []
    Calibration(request(folder), simulate=closed_form).run(lambda text, left_s: heard.append((text, left_s)))
    texts = list(dict.fromkeys(text for text, _ in heard))
    assert texts[:2] == ["traffic", "cycles"]
    assert any(text.startswith("cycles, step 1, ") for text in texts)
    assert texts[-2:] == ["how sure", "judging"]
    left = [left_s for _, left_s in heard if left_s is not None]
    assert len(left) > len(heard) / 2
    assert min(left) >= 0
    assert left[-1] < 0.1 * max(left)
    assert progress.Status("cycles", left_s=240.0).line() == "cycles, about 4 min left"
    assert progress.Status("cycles", 3, 9, 61.0).line() == "cycles, 3 of 9, about 60 s left"


# Files.
def test_the_gpu_file_can_be_used_at_once(folder: Path, outcome: Outcome, tmp_path: Path) -> None:
    path = folder / "out.toml"
    path.write_text(gpu_toml(outcome, path))
    gpu = load_gpu(path)
    assert {key: value_at(gpu, key) for key in TRUTH} == {one.key: one.after for one in outcome.constants}
    unit, kind, source = gpu.provenance["persistent.start_cycles"]
    assert (unit, kind) == ("cycles", "fitted")
    assert all(text in source for text in ("tilewalk calibrate", outcome.digest[:12], "mean error of sm_cycles"))
    assert gpu.label == "a test GPU, calibrated"
    assert value_at(gpu, "multistage.barrier_cycles") == value_at(GPU, "multistage.barrier_cycles")
    assert 'inherits = "./mine.toml"' in path.read_text()
    with pytest.raises(ConfigError, match="must be another file"):
        inherited("h200_sxm", GPUS / "h200_sxm.toml")
    with pytest.raises(ConfigError, match="must be another file"):
        gpu_toml(outcome, folder / "mine.toml")


def test_the_page_has_every_constant_error_and_figure(outcome: Outcome) -> None:
    page = markdown(outcome, FIGURES)
    assert all(f"| {key} | " in page for key in (*TRUTH, *outcome.left))
    assert all(f"({stem}.png)" in page for stem in FIGURES)
    assert f"SHA-256 {outcome.digest[:12]}" in page
    assert "| gemm | all | time | " in page


def drawn_text(sheet: Figure) -> str:
    from matplotlib.text import Text

    sheet.draw_without_rendering()
    return " ".join(text.get_text() for text in sheet.findobj(Text))


@pytest.mark.parametrize("stem", FIGURES)
def test_figures_say_what_they_show(stem: str, outcome: Outcome) -> None:
    text = drawn_text(FIGURES[stem](outcome))
    says = {
        "predicted": ("measured (µs)", "shapes not fitted", "library kernels (gemm)", "kernels with counters"),
        "shapes": ("error (%)", "FLOP", "median before"),
        "configurations": ("persistent", "middle half", "after"),
        "sensitivity": (*TRUTH, "10 % larger", "loss"),
        "identifiability": (*TRUTH, "condition number"),
        "folds": ("persistent.start_cycles", "a fold left out", "(%)"),
    }
    assert [word for word in says[stem] if word not in text] == []


@pytest.mark.parametrize("stem", FIGURES)
def test_figures_of_nothing_are_drawn(stem: str, outcome: Outcome) -> None:
    nothing = replace(
        outcome,
        constants=(),
        points=(),
        identified=replace(outcome.identified, keys=(), correlation=np.zeros((0, 0)), alike=()),
    )
    assert drawn_text(FIGURES[stem](nothing))


# The command.
@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sim.calibration.predictions.simulate_case", closed_form)
    monkeypatch.setattr("viz.commands.calibrate.engine_needs_compiling", lambda: False)


def test_the_command_writes_file_and_report(quick: None, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.toml"
    given = ("calibrate", "--gpu", str(folder / "mine.toml"), str(folder / "tables"), "-o", str(out), "--folds", "2")
    done = tilewalk(*given)
    assert done.exit_code == 0
    assert "5 constants fitted" in done.stdout
    assert all(f"\n{key}  " in done.stdout for key in TRUTH)
    written = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert written == {"out.toml", "report.md", *(f"{stem}.png" for stem in FIGURES)}
    assert load_gpu(out).persistent.start_cycles == pytest.approx(TRUTH["persistent.start_cycles"], rel=0.05)


def test_json_is_one_object(quick: None, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("viz.calibration.FIGURES", {"folds": FIGURES["folds"]})
    given = ("calibrate", "--gpu", str(folder / "mine.toml"), str(folder / "tables"), "--json", "--folds", "2")
    done = tilewalk(*given, "-o", str(tmp_path / "out.toml"), "--report", str(tmp_path / "r"))
    assert {one["key"] for one in json.loads(done.stdout)["constants"]} == set(TRUTH)
    assert (tmp_path / "r" / "report.md").is_file()


REFUSED = {
    "calibrate --gpu h300 x.csv": "unknown GPU",
    "calibrate absent.csv": "must be an existing CSV file",
    "calibrate --gpu mine.toml": "none given",
    "calibrate empty": "a folder must hold at least one CSV table",
    "calibrate tables --folds 1": "--folds = '1': must be an integer from 2 to 20",
    "calibrate tables --folds 21": "from 1 to 20",
    "calibrate tables -o out.txt": "ends in .toml",
    "calibrate --gpu mine.toml tables -o mine.toml": "must be another file",
    "calibrate tables --report mine.toml": "a folder that can be written",
    "calibrate tables -o absent/out.toml": "can be written",
    "calibrate warm.csv": "must hold measured kernels that can be simulated",
}


@pytest.mark.parametrize("line", REFUSED)
def test_bad_input_is_one_line(line: str, quick: None, folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    shutil.copytree(folder / "tables", tmp_path / "tables")
    shutil.copy(folder / "mine.toml", tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.csv").write_text("a,b\n1,2\n")
    (tmp_path / "warm.csv").write_text((tmp_path / "tables" / "gemm.csv").read_text().replace(",cold,", ",warm,"))
    monkeypatch.chdir(tmp_path)
    assert REFUSED[line] in one_error(tilewalk(*line.split()))
    assert {path.name for path in tmp_path.iterdir()} == {"tables", "mine.toml", "empty", "warm.csv"}


@pytest.mark.slow
def test_an_interrupt_keeps_what_was_done_and_the_next_run_continues(folder: Path, tmp_path: Path) -> None:
    slow = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from sim.calibration import predictions
from tests.synthetic_tables import closed_form
from viz.commands import calibrate
calibrate.engine_needs_compiling = lambda: False
n = 0
def simulate(*given):
    global n
    n += 1
    if n == 300:
        print("ready", file=sys.stderr, flush=True)
    if n > 300 and {{wait}}:
        time.sleep(0.2)
    return closed_form(*given)
predictions.simulate_case = simulate
"""
    out = tmp_path / "out.toml"
    given = ("calibrate", "--gpu", str(folder / "mine.toml"), str(folder / "tables"), "-o", str(out), "--folds", "2")
    running = process(*given, before=slow.format(wait=True))
    assert running.stderr is not None
    while running.stderr.readline() != "ready\n":
        pass
    running.send_signal(signal.SIGINT)
    _, stderr = running.communicate(timeout=20)
    assert (running.returncode, stderr.splitlines()[-1]) == (130, "tilewalk: interrupted")
    assert out.with_name("out.toml.state").is_file()
    assert not out.exists()
    again = process(*given, before=slow.format(wait=False))
    _, stderr = again.communicate(timeout=60)
    assert again.returncode == 0, stderr
    assert "continuing from out.toml.state" in stderr
    assert not out.with_name("out.toml.state").exists()
    assert load_gpu(out).activity.active_mhz == pytest.approx(1600, rel=0.02)
