"""The command line: what each command prints, that every option arrives, which files are written, what is told."""

from __future__ import annotations

import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
import tomllib
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import sim
from hwmodels.errors import ConfigError
from hwmodels.folders import list_gpus
from hwmodels.measured import measured_path
from hwmodels.spec import FIELDS
from sim.result import SCHEMA
from tests.command_line import ROOT, FakeSimulate, answer_every_row, one_error, process, replace_simulate, tilewalk
from tests.sample_result import TIME_S, sample_result
from viz.commands import progress
from viz.commands.validate import _fitting, _least_widths

NVJET = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT"
SIZES = ("4096", "4096", "4096")
HEAVY = ("matplotlib", "numba", "numpy", "pandas", "pydantic", "rich", "scipy", "simpy")


@pytest.fixture
def simulate(monkeypatch: pytest.MonkeyPatch) -> FakeSimulate:
    fake = FakeSimulate()
    replace_simulate(monkeypatch, fake)
    return fake


# gemm: what is printed.
def test_json_is_one_object_with_the_promised_keys(simulate: FakeSimulate) -> None:
    done = tilewalk("gemm", *SIZES, "--json")
    found = json.loads(done.stdout)
    assert found.keys() == {
        *("time_us", "end_to_end_us", "limiter", "sm_cycles", "sm_mhz", "flops", "bytes", "utilisation", "waits"),
        *("occupancy", "waves", "kernel", "gpu", "sampled", "schema", "energy_j", "power_w", "burst"),
        *("before_settling", "weights_format", "weight_group", "notes"),
    }
    assert found["time_us"] == pytest.approx(TIME_S * 1e6)
    assert found["flops"] == 2 * 4096**3
    assert found["schema"] == SCHEMA
    assert found["bytes"]["hbm"].keys() == {"read", "write"}
    assert done.stderr == ""


def test_the_screen_tells_time_limiter_traffic_and_advice(simulate: FakeSimulate) -> None:
    done = tilewalk("gemm", *SIZES)
    for text in ("218 µs", "L2 bandwidth", "HBM", "Occupancy", "waves", "Clock", "Energy", "tile 128x256x64"):
        assert text in done.stdout
    assert done.stderr == ""


def test_a_pipe_is_wide_enough_for_whole_headings(simulate: FakeSimulate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    done = tilewalk("gemm", *SIZES)
    assert "× compulsory" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_quiet_prints_the_time_alone(simulate: FakeSimulate) -> None:
    done = tilewalk("gemm", *SIZES, "--quiet")
    assert re.fullmatch(r"218 µs, 631 TFLOP/s, end to end \d+ µs\n", done.stdout)
    assert done.stderr == ""


@pytest.mark.parametrize(("words", "advised"), [([], True), (["--json"], False), (["--quiet"], False)])
def test_advice_is_simulated_only_where_it_is_printed(words: list[str], advised: bool, simulate: FakeSimulate) -> None:
    tilewalk("gemm", *SIZES, *words)
    assert simulate.asked[0][2]["advise"] is advised


def test_explain_walks_a_tile_of_a_traced_run(simulate: FakeSimulate) -> None:
    done = tilewalk("explain", *SIZES)
    assert simulate.asked[0][2]["trace"] is True
    assert "one tile's journey" in done.stdout
    assert done.stdout.index("1. ") < done.stdout.index("Epilogue")


def test_explain_in_json_has_the_steps_beside_the_figures(simulate: FakeSimulate) -> None:
    found = json.loads(tilewalk("explain", *SIZES, "--json").stdout)
    assert found["time_us"] == pytest.approx(TIME_S * 1e6)
    assert len(found["steps"]) > 5
    assert all(step.keys() == {"title", "text"} for step in found["steps"])


# gemm: what arrives.
def test_defaults(simulate: FakeSimulate) -> None:
    tilewalk("gemm", "100", "200", "300")
    asked, gpu, keywords = simulate.asked[0]
    assert (asked.m, asked.n, asked.k, asked.batch, asked.dtype, asked.layout) == (100, 200, 300, 1, "bf16", "tn")
    assert (asked.epilogue, asked.l2, asked.inputs, asked.weights, asked.result) == ("none", "cold", *("hbm",) * 3)
    assert gpu.name == "h200_sxm"
    running = {
        "clock_mhz": None,
        "full": False,
        "trace": False,
        "advise": True,
        "launch": "stream",
        "data": "random",
    } | {"sustained": False}
    assert keywords == running | {"stream_weights": False, "without": (), "family": None}


WORKLOAD = {
    "--dtype": ("fp16", "dtype", "fp16"),
    "--acc-dtype": ("fp32", "acc_dtype", "fp32"),
    "--out-dtype": ("fp32", "out_dtype", "fp32"),
    "--batch": ("3", "batch", 3),
    "--layout": ("nt", "layout", "nt"),
    "--lda": ("640", "lda", 640),
    "--ldb": ("641", "ldb", 641),
    "--ldc": ("642", "ldc", 642),
    "--epilogue": ("bias_gelu", "epilogue", "bias_gelu"),
    "--l2": ("warm", "l2", "warm"),
    "--inputs": ("pageable", "inputs", "pageable"),
    "--weights": ("pinned", "weights", "pinned"),
    "--result": ("host", "result", "host"),
}


@pytest.mark.parametrize("option", WORKLOAD)
def test_workload_options_arrive(option: str, simulate: FakeSimulate) -> None:
    word, field, value = WORKLOAD[option]
    dtype = ["--dtype", "fp16"] if option == "--acc-dtype" else []
    tilewalk("gemm", "512", "512", "512", option, word, *dtype)
    assert getattr(simulate.asked[0][0], field) == value


RUNNING = {
    "--clock 1500": ("clock_mhz", 1500.0),
    "--full": ("full", True),
    "--sustained": ("sustained", True),
    "--launch graph": ("launch", "graph"),
    "--without clock --without coalescing": ("without", ("clock", "coalescing")),
    "--weights pinned --stream-weights": ("stream_weights", True),
    "--family split_k": ("family", "split_k"),
    "--tile auto": ("tile", "auto"),
    "--tile auto --family multistage": ("family", "multistage"),
}


@pytest.mark.parametrize("words", RUNNING)
@pytest.mark.parametrize("command", ["gemm", "explain"])
def test_options_of_the_run_arrive(command: str, words: str, simulate: FakeSimulate) -> None:
    keyword, value = RUNNING[words]
    tilewalk(command, *SIZES, *words.split())
    assert simulate.asked[0][2][keyword] == value
    assert "config" not in simulate.asked[0][2]


def test_values_of_the_gpu_are_set_in_order(simulate: FakeSimulate) -> None:
    sets = ("hbm.bandwidth_gb_per_s=4000", "hbm.bandwidth_gb_per_s=*2", "l2.capacity_mib=*2")
    tilewalk("gemm", *SIZES, "--gpu", "h100_sxm", *(word for text in sets for word in ("--set", text)))
    gpu = simulate.asked[0][1]
    assert (gpu.name, gpu.hbm.bandwidth_gb_per_s, gpu.l2.capacity_mib) == ("h100_sxm", 8000, 100)


def test_a_file_of_ones_own_stands_for_a_gpu(simulate: FakeSimulate, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('inherits = "h200_sxm"\nlabel = "Mine"\n[hbm]\nbandwidth_gb_per_s = 6000\n')
    tilewalk("gemm", *SIZES, "--gpu", str(tmp_path / "mine.toml"))
    gpu = simulate.asked[0][1]
    assert (gpu.name, gpu.hbm.bandwidth_gb_per_s) == ("mine", 6000)


def test_a_configuration_is_completed_from_what_is_given(simulate: FakeSimulate) -> None:
    words = "--family multistage --tile 128x64x32 --stages 3 --warps 4 --group 4"
    tilewalk("gemm", *SIZES, *words.split())
    config = simulate.asked[0][2]["config"]
    assert (config.family, config.block_m, config.block_n, config.block_k) == ("multistage", 128, 64, 32)
    assert (config.stages, config.warps, config.group) == (3, 4, 4)


def test_cluster_and_split_arrive(simulate: FakeSimulate) -> None:
    tilewalk("gemm", "512", "512", "8192", "--cluster", "2x1", "--split", "4")
    config = simulate.asked[0][2]["config"]
    assert (config.family, config.cluster_m, config.cluster_n, config.split_k) == ("split_k", 2, 1, 4)


def test_stream_k_arrives(simulate: FakeSimulate) -> None:
    tilewalk("gemm", "2304", "2304", "8192", "--tile", "128x128x64", "--stream-k")
    config = simulate.asked[0][2]["config"]
    assert (config.family, config.stream_k, config.pingpong, config.block_n) == ("persistent", True, False, 128)


def test_a_kernels_name_is_its_configuration(simulate: FakeSimulate) -> None:
    tilewalk("gemm", *SIZES, "--kernel-name", NVJET)
    config = simulate.asked[0][2]["config"]
    assert (config.name, config.block_m, config.block_n, config.stages) == (NVJET, 128, 256, 4)


CONTRADICTIONS = {
    f"--kernel-name {NVJET} --tile 128x128x64": ("--kernel-name", "--tile"),
    f"--kernel-name {NVJET} --stages 4": ("--kernel-name", "--stages"),
    f"--kernel-name {NVJET} --family persistent": ("--kernel-name", "--family"),
    "--tile auto --warps 4": ("--tile auto", "--warps"),
    "--tile auto --cluster 1x2": ("--tile auto", "--cluster"),
    "--family multistage --split 2": ("--family multistage", "--split"),
    "--stream-weights": ("--stream-weights", "--weights hbm"),
}


@pytest.mark.parametrize("words", CONTRADICTIONS)
def test_contradicting_options_are_named(words: str, simulate: FakeSimulate) -> None:
    error = one_error(tilewalk("gemm", *SIZES, *words.split()))
    assert all(name in error for name in CONTRADICTIONS[words])
    assert simulate.asked == []


# Files.
def test_files_are_written_and_nothing_else(
    simulate: FakeSimulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("viz.sheet.save_figure", lambda result, path: path.write_text("drawn"))
    monkeypatch.setattr(sim, "save", lambda result, path: path.write_text("saved"), raising=False)
    figure, trace, saved = tmp_path / "f.png", tmp_path / "t.json", tmp_path / "r.tilewalk"
    saved.write_text("old")
    done = tilewalk("gemm", *SIZES, "--figure", str(figure), "--trace", str(trace), "--save", str(saved), "--json")
    assert json.loads(done.stdout)["gpu"] == "h200_sxm"
    assert simulate.asked[0][2]["trace"] is True
    assert (figure.read_text(), saved.read_text()) == ("drawn", "saved")
    assert json.loads(trace.read_text())["traceEvents"]
    assert sorted(tmp_path.iterdir()) == [figure, saved, trace]


def test_a_link_is_followed(simulate: FakeSimulate, tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to("real.json")
    tilewalk("gemm", *SIZES, "--trace", str(tmp_path / "link.json"))
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "real.json").read_text() != "old"


def test_a_failing_writer_leaves_the_old_file(
    simulate: FakeSimulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.json").write_text("old")
    monkeypatch.setattr("viz.trace._encode", lambda entry: (_ for _ in ()).throw(OSError(28, "No space left")))
    error = one_error(tilewalk("gemm", *SIZES, "--trace", str(tmp_path / "t.json")))
    assert "No space left" in error
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


# gpus.
def test_gpus_are_listed() -> None:
    lines = tilewalk("gpus").stdout.splitlines()
    assert len(lines) == 1 + len(list_gpus())


def test_every_value_of_a_gpu_is_shown_with_unit_kind_and_source() -> None:
    lines = tilewalk("gpus", "show", "h200_sxm", "--set", "hbm.bandwidth_gb_per_s=9600").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(FIELDS)
    assert any(re.match(r"hbm.bandwidth_gb_per_s +9,600 +GB/s +user +override", line) for line in lines)


# validate.
@pytest.fixture
def replayed(simulate: FakeSimulate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row is answered at once."""
    answer_every_row(monkeypatch)


GEMM_CSV = str(measured_path("h200_sxm", "gemm"))


def test_validation_in_json(replayed: None) -> None:
    done = tilewalk("validate", "--measurements", GEMM_CSV, "--limit", "12", "--json")
    found = json.loads(done.stdout)
    assert found.keys() == {"groups", "overall", "skipped"}
    assert found["overall"]["n"] + len(found["skipped"]) == 12
    assert found["overall"]["mape_pct"] > 0


@pytest.mark.parametrize("table", ["gemm", "tile_sweep", "counters"])
@pytest.mark.parametrize("columns", [80, 140])
def test_validation_fits_the_terminal(
    table: str, columns: int, replayed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = tilewalk("validate", "--measurements", str(measured_path("h200_sxm", table)), "--limit", "40").stdout
    assert "all rows" in lines
    assert "Worst rows" in lines
    assert "…" not in lines
    assert max(map(len, lines.splitlines())) <= columns


def test_columns_that_do_not_fit_go_into_a_table_of_their_own() -> None:
    heads, rows = ["group", "MAPE %", "bias %", "DRAM read %"], [["all rows", "12.3", "-1.0", "4.5"]]
    assert _least_widths(heads, rows) == [8, 4, 4, 4]
    assert _fitting(heads, rows, 80) == [[0, 1, 2, 3]]
    assert _fitting(heads, rows, 22) == [[0, 1, 2], [0, 3]]
    assert _fitting(heads, rows, 5) == [[0, 1], [0, 2], [0, 3]]


def test_validation_as_a_page(replayed: None, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    tilewalk("validate", "--measurements", GEMM_CSV, "--limit", "12", "--tile", "auto", "--markdown", str(page))
    assert "# Validation" in page.read_text()
    assert list(tmp_path.iterdir()) == [page]


# The application itself.
def test_version() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    try:
        metadata.version("tilewalk")
    except metadata.PackageNotFoundError:
        declared = "(not installed)"
    assert tilewalk("--version").stdout == f"tilewalk {declared}\n"


INTERFACE = """
--gpu --dtype --acc-dtype --out-dtype --batch --layout --epilogue --l2 --inputs --weights --result --stream-weights
--launch --family --tile --stages --warps --cluster --group --split --kernel-name --clock --sustained --set --without
--full --figure --trace --save --json --quiet
"""


@pytest.mark.parametrize("command", ["gemm", "explain"])
def test_help_has_every_option(command: str) -> None:
    text = tilewalk(command, "--help").stdout
    assert [option for option in INTERFACE.split() if f"{option} " not in text] == []


@pytest.mark.parametrize("module", ["viz", "viz.cli"])
def test_a_module_does_what_the_script_does(module: str) -> None:
    command = [sys.executable, "-m", module, "--version"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, tilewalk("--version").stdout, "")


def test_without_a_command_there_is_help() -> None:
    done = tilewalk()
    assert done.exit_code == 0
    assert all(command in done.stdout for command in ("gemm", "explain", "gpus", "validate"))


COMPLETIONS = {
    "gemm --gpu h2": ["h200_sxm"],
    "gpus show l40": ["l40s"],
    "explain --dtype fp8": ["fp8_e4m3", "fp8_e5m2"],
    "gemm --family s": ["split_k"],
    "gemm --epilogue bias_": ["bias_gelu", "bias_silu", "bias_relu"],
    "gemm --weights p": ["pinned", "pageable"],
    "val": ["validate"],
}


@pytest.mark.parametrize("words", COMPLETIONS)
def test_the_shell_completes_names(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TILEWALK_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"tilewalk {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    assert tilewalk().stdout.split() == COMPLETIONS[words]


# Start-up.
def test_help_loads_nothing_heavy() -> None:
    code = "import sys; sys.argv = ['tilewalk', '--help']\ntry: main()\nexcept SystemExit: print(*sys.modules)"
    loaded = process(before=f"from viz.cli import main\n{code}\nsys.exit()").communicate()[0].split("\n")[-2]
    assert "viz.commands.app" in loaded.split()
    assert {name.split(".")[0] for name in loaded.split()} & set(HEAVY) == set()


def test_help_takes_under_400_ms_of_processor_time() -> None:
    """Processor time, least of three, so that a busy machine does not fail it."""
    assert min(cpu_s("--help") for _ in range(3)) < 0.4


def cpu_s(*args: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert process(*args).wait() == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


# Progress.
@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lasts 50 ms counts as long."""
    monkeypatch.setattr(progress, "FIRST_S", 0.05)
    monkeypatch.setattr(progress, "POLL_S", 0.01)


def slow(*_: Any, **__: Any) -> Any:
    time.sleep(0.3)
    return sample_result()


@pytest.mark.parametrize("words", [["--json"], []])
def test_progress_is_told_on_stderr(words: list[str], hasty: None, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_simulate(monkeypatch, FakeSimulate())
    quick = tilewalk("gemm", *SIZES, *words)
    replace_simulate(monkeypatch, slow)
    done = tilewalk("gemm", *SIZES, *words)
    assert done.stderr == "tilewalk: simulating\n"
    assert (quick.stdout, quick.stderr) == (done.stdout, "")


def test_quiet_has_no_progress(hasty: None, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_simulate(monkeypatch, slow)
    assert tilewalk("gemm", *SIZES, "--quiet").stderr == ""


def test_compiling_is_told(hasty: None, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_simulate(monkeypatch, slow)
    monkeypatch.setattr("viz.commands.gemm.engine_needs_compiling", lambda: True)
    assert tilewalk("gemm", *SIZES, "--json").stderr == "tilewalk: compiling the engine (once, about 15 s)\n"


def test_a_line_is_not_repeated(hasty: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_S", 0.05)
    replace_simulate(monkeypatch, slow)
    assert tilewalk("gemm", *SIZES, "--json").stderr == "tilewalk: simulating\n"


def test_rows_are_counted(hasty: None, replayed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def predict(case: Any) -> Any:
        time.sleep(0.02)
        return sample_result()

    monkeypatch.setattr("sim.validation.run.simulator", lambda gpu: predict)
    done = tilewalk("validate", "--measurements", GEMM_CSV, "--limit", "30", "--json")
    assert json.loads(done.stdout)["overall"]
    assert re.search(r"^tilewalk: replaying rows, \d+ of 30$", done.stderr, re.MULTILINE)


def test_kernels_to_choose_from_are_counted(hasty: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And not what comes after: advice, files."""

    def simulate(*_: Any, progress: Any, **__: Any) -> Any:
        for text in ("simulating, 12 of 316\n", "simulating\n"):
            progress(*((12, 316) if "of" in text else (316, 316)))
            time.sleep(0.3)
        return sample_result()

    monkeypatch.setattr(progress, "LINE_S", 0.05)
    replace_simulate(monkeypatch, simulate)
    told = tilewalk("gemm", *SIZES, "--tile", "auto", "--json").stderr
    assert told == "tilewalk: simulating, 12 of 316\ntilewalk: simulating\n"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_that_goes(hasty: None, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress.telling() as status:
        status.text, status.done, status.total = "replaying rows", 3, 10
        time.sleep(0.5)
    drawn = terminal.getvalue()
    assert "replaying rows, 3 of 10" in drawn
    assert drawn.rstrip().endswith("\x1b[2K")


def test_an_error_in_the_background_is_raised_here() -> None:
    def work() -> None:
        raise ConfigError("m = 0")

    with pytest.raises(ConfigError, match="m = 0"):
        progress.in_background(work)
    assert progress.in_background(threading.current_thread) is not threading.current_thread()


def test_the_engine_needs_compiling_until_its_index_is_as_new_as_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "engine.py"
    source.write_text("def run(): ...\n")
    code = SimpleNamespace(co_filename=str(source), co_firstlineno=1)
    stub = SimpleNamespace(
        signatures=[], py_func=SimpleNamespace(__code__=code), stats=SimpleNamespace(cache_path=str(tmp_path))
    )
    monkeypatch.setattr("sim.engine.run", stub)
    assert progress.engine_needs_compiling()
    (tmp_path / "engine.run-1.py311.nbi").touch()
    assert not progress.engine_needs_compiling()
    (tmp_path / "engine.run-1.py311.nbi").rename(tmp_path / "engine.run-2.py311.nbi")
    assert progress.engine_needs_compiling()
    stub.signatures = ["compiled"]
    assert not progress.engine_needs_compiling()


# Interrupts and closed pipes, in processes of their own.
STUB = """
import sys, time, ctypes
sys.path.insert(0, {root!r})
import sim
from viz.commands import gemm
from tests.sample_result import sample_result

gemm.engine_needs_compiling = lambda: False
"""
BUSY = """
def simulate(*_, **__):
    print("ready", file=sys.stderr, flush=True)
    ctypes.CDLL(None).sleep(30)  # compiled code that cannot be interrupted
sim.simulate = simulate
"""
WRITING = """
sim.simulate = lambda *_, **__: sample_result()
def half(result, path):
    from viz.files import replacing
    with replacing(path) as temporary:
        temporary.write_text("half")
        print("ready", file=sys.stderr, flush=True)
        time.sleep(30)
gemm.WRITERS["trace"] = half
"""


IGNORING = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"


@pytest.mark.parametrize("stage", [BUSY, WRITING, IGNORING + BUSY], ids=["computing", "writing", "in the background"])
def test_an_interrupt_ends_it_at_once_with_one_line_and_no_file(stage: str, tmp_path: Path) -> None:
    begun = STUB.format(root=str(ROOT)) + stage
    running = process("gemm", *SIZES, "--trace", str(tmp_path / "t.json"), before=begun)
    assert running.stderr is not None
    assert running.stderr.readline() == "ready\n"
    began = time.monotonic()
    running.send_signal(signal.SIGINT)
    stdout, stderr = running.communicate(timeout=20)
    assert (running.returncode, stdout, stderr) == (130, "", "tilewalk: interrupted\n")
    assert time.monotonic() - began < 5
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_while_loading_is_one_line_too() -> None:
    before = (
        "import sys\nclass Finder:\n def find_spec(self, name, *_):\n  if name == 'typer': raise KeyboardInterrupt\n"
    )
    stdout, stderr = (running := process("--help", before=f"{before}sys.meta_path.insert(0, Finder())")).communicate()
    assert (running.returncode, stdout, stderr) == (130, "", "tilewalk: interrupted\n")


def test_a_reader_that_has_enough_is_no_error() -> None:
    running = process("gpus", "show", "h200_sxm")
    assert running.stdout is not None
    running.stdout.close()
    _, stderr = running.communicate()
    assert (running.returncode, stderr) == (0, "")


def test_names_that_are_no_text_are_printed_escaped(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/gr\xf6\xdfe"))
    folder.mkdir()
    (folder / "mine.toml").write_text('inherits = "t4"\n[sm]\ncount = 30\n')
    stdout, stderr = process("gpus", "show", str(folder / "mine.toml")).communicate()
    assert stderr == ""
    assert re.search(r"sm.count +30 .*gr\\udcf6\\udcdfe/mine.toml", stdout)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_under_stdout_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        running = process("gpus", stdout=full)
        stderr = running.communicate()[1]
    assert (running.returncode, stderr) == (2, "tilewalk: error: standard output: No space left on device\n")
