"""Whatever a user can get wrong: one clear line, exit code 2, no traceback, nothing computed, no file left behind."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sim
import sim.saved
from hwmodels.errors import ConfigError
from hwmodels.folders import GPUS
from hwmodels.measured import measured_path
from tests.command_line import ROOT, FakeSimulate, answer_every_row, one_error, process, replace_simulate, tilewalk
from tests.sample_result import sample_result
from viz.commands.app import app
from viz.commands.failures import LONGEST, Commands

COMMANDS = typer.main.get_command(app)
GEMM_CSV = measured_path("h200_sxm", "gemm")
GB = 10**9


@pytest.fixture
def simulate(monkeypatch: pytest.MonkeyPatch) -> FakeSimulate:
    fake = FakeSimulate()
    replace_simulate(monkeypatch, fake)
    return fake


# Command lines: what must be said of each.
REFUSED = {
    "gemm 0 4 4": ("M", "'0'", "1 to 262144"),
    "gemm 4 -4 4": ("size", "-4", "1 to 262144"),
    "gemm 4 4 -.5": ("size", "-.5", "1 to 262144"),
    "gemm 4 4 262145": ("K", "'262145'", "1 to 262144"),
    f"gemm 4 {'9' * 5000} 4": ("N", "'9999", "1 to 262144"),
    "gemm 4.0 4 4": ("M", "'4.0'", "integer"),
    "gemm 4_0 4 4": ("M", "'4_0'", "integer"),
    "gemm ４ 4 4": ("M", "'４'", "integer"),
    "gemm nan 4 4": ("M", "'nan'", "integer"),
    "gemm 1e3 4 4": ("M", "'1e3'", "integer"),
    "gemm": ("missing argument", "'M'", "tilewalk gemm --help"),
    "gemm 4 4": ("missing argument", "'K'"),
    "gemm 4 4 4 4": ("unexpected extra argument", "4"),
    "gemm 4 4 4 --nonsense": ("no such option", "--nonsense"),
    "gemm 4 4 4 --gpu": ("--gpu", "requires an argument"),
    "nonsense": ("no such command", "'nonsense'"),
    "gpus nonsense": ("no such command", "'nonsense'"),
    "gpus show": ("missing argument", "'NAME'"),
    "gemm 4 4 4 --batch 0": ("--batch", "'0'", "1 to 65536"),
    "gemm 4 4 4 --batch -1": ("--batch", "'-1'", "1 to 65536"),
    "gemm 4 4 4 --dtype bf17": ("dtype", "'bf17'", "bf16"),
    "gemm 4 4 4 --out-dtype int8": ("out_dtype", "'int8'", "bf16, fp32"),
    "gemm 4 4 4 --acc-dtype fp16": ("acc_dtype", "'fp16'", "fp32"),
    "gemm 4 4 4 --layout xx": ("layout", "'xx'", "tn, nn, nt, tt"),
    "gemm 4 4 4 --lda 3": ("lda", "3", "4 to"),
    "gemm 4 4 4 --epilogue relu": ("epilogue", "'relu'", "bias_gelu"),
    "gemm 4 4 4 --l2 hot": ("l2", "'hot'", "cold, warm"),
    "gemm 4 4 4 --weights disk": ("weights", "'disk'", "hbm, pinned, pageable"),
    "gemm 4 4 4 --result disk": ("result", "'disk'", "hbm, host"),
    "gemm 4 4 4 --family split_k --stream-k": ("--family split_k", "--stream-k", "only persistent kernels"),
    "gemm 4 4 4 --split 2 --stream-k": ("--split 2", "--stream-k", "both cut k"),
    "gemm 4 4 4 --tile auto --stream-k": ("--tile auto", "--stream-k", "whole menu"),
    "gemm 4 4 4 --kernel-name nvjet --stream-k": ("--kernel-name", "--stream-k", "the name says it all"),
    "gemm 4 4 4 --family gemv": ("family", "'gemv'", "multistage, persistent, split_k"),
    "gemm 4 4 4 --launch often": ("launch", "'often'", "stream, graph"),
    "gemm 4 4 4 --without gravity": ("without", "'gravity'", "coalescing"),
    "gemm 4 4 4 --tile 128x128": ("--tile", "'128x128'", "BMxBNxBK"),
    "gemm 4 4 4 --tile 0x64x64": ("--tile", "'0x64x64'", "1 to 4096"),
    "gemm 4 4 4 --tile 8192x64x64": ("--tile", "'8192x64x64'", "1 to 4096"),
    "gemm 4 4 4 --stages 0": ("--stages", "'0'", "1 to 32"),
    "gemm 4 4 4 --warps 99": ("--warps", "'99'", "1 to 32"),
    "gemm 4 4 4 --cluster 2": ("--cluster", "'2'", "CMxCN"),
    "gemm 4 4 4 --group x": ("--group", "'x'", "1 to 262144"),
    "gemm 4 4 4 --split 1.5": ("--split", "'1.5'", "1 to 262144"),
    "gemm 4 4 4 --clock nan": ("--clock", "'nan'", "100 to 10000 MHz"),
    "gemm 4 4 4 --clock 1_000": ("--clock", "'1_000'", "100 to 10000 MHz"),
    "gemm 4 4 4 --clock -5": ("--clock", "'-5'", "100 to 10000 MHz"),
    "gemm 4 4 4 --kernel-name sgemm": ("kernel name", "'sgemm'", "nvjet"),
    "gemm 4 4 4 --layout nt --kernel-name nvjet_sm90_tst_64x64_64x4_1x1_h_bz_TNT": ("64x64", "layout tn", "'nt'"),
    "gemm 4 4 4 --gpu h200_sx": ("GPU", "'h200_sx'", "h200_sxm"),
    "gemm 4 4 4 --set hbm.bandwidth=1": ("hbm.bandwidth", "hbm.bandwidth_gb_per_s"),
    "gemm 4 4 4 --set hbm.bandwidth_gb_per_s=nan": ("hbm.bandwidth_gb_per_s", "nan", "0.1 to 1000000"),
    "gemm 4 4 4 --set hbm.bandwidth_gb_per_s=-1": ("hbm.bandwidth_gb_per_s", "-1", "0.1 to 1000000"),
    "gemm 4 4 4 --set hbm.bandwidth_gb_per_s=": ("hbm.bandwidth_gb_per_s=", "key=value"),
    "gemm 4 4 4 --set l2.capacity_mib=*0": ("l2.capacity_mib=*0", "above 0"),
    "gemm 4 4 4 --set sm.count=1.5": ("sm.count", "1.5", "whole number"),
    "gpus show h200_sx": ("GPU", "'h200_sx'", "h200_sxm"),
    f"validate --measurements {GEMM_CSV} --limit 0": ("--limit", "'0'", "1 to"),
    f"validate --measurements {GEMM_CSV} --tile 64": ("tile", "'64'", "auto"),
    f"validate --measurements {GEMM_CSV} --gpu h200_sx": ("GPU", "'h200_sx'"),
}


@pytest.mark.parametrize("line", REFUSED, ids=lambda line: line[:60])
def test_a_refusal_says_what_value_and_range_before_anything_is_simulated(line: str, simulate: FakeSimulate) -> None:
    error = one_error(tilewalk(*line.split(" ")))
    assert [text for text in REFUSED[line] if text not in error] == []
    assert simulate.asked == []


FITS_NOT = {
    "--tile 256x256x128 --stages 8 --warps 12": "too many",
    "--tile 64x64x64 --stages 32 --family multistage": "too many",
    "--family multistage --tile 100x64x64": "multiple of",
    "--gpu t4 --dtype fp16 --family persistent": "nothing fits t4",
    "--gpu v100_sxm2_32gb --dtype fp8_e4m3": "fp8_e4m3",
    "--gpu t4 --dtype fp16 --cluster 2x1": "1x1 on t4",
    "--gpu t4 --dtype fp16 --stream-k": "nothing fits t4",
    "--dtype int8 --stream-k": "stream_k = True: must be False with sums in int32",
    "--family persistent --ldc 4097": "leading dimension of C = 8194 B: must be a multiple of 16 B",
    "--family multistage --cluster 2x1": "cluster = 2x1: must be 1x1 with loads = 'cp_async'",
    "--lda 4097 --family split_k --tile 64x16x32 --cluster 8x1": "cluster = 8x1: must be 1x1 with loads = 'ldg'",
}


@pytest.mark.parametrize("words", FITS_NOT)
def test_what_does_not_fit_the_gpu_is_refused(words: str) -> None:
    assert FITS_NOT[words] in one_error(tilewalk("gemm", "4096", "4096", "4096", *words.split()))


# Paths of outputs.
OUTPUTS = ["gemm 4 4 4 --figure", "gemm 4 4 4 --trace", "gemm 4 4 4 --save", "explain 4 4 4 --trace"]
OUTPUTS += [f"validate --measurements {GEMM_CSV} --markdown"]


@pytest.fixture
def bad_paths(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "file").touch()
    return {
        "folder missing": str(tmp_path / "missing" / "out.png"),
        "a folder": str(tmp_path),
        "below a file": str(tmp_path / "file" / "out.png"),
        "a device": os.devnull,
        "empty": "",
        "too long": str(tmp_path / ("x" * 300 + ".png")),
        "no name at all": "out\0.png",
        "two lines": str(tmp_path / "missing" / "a\nb.png"),
    }


@pytest.mark.parametrize("line", OUTPUTS, ids=lambda line: line.rsplit(" ", 1)[-1])
def test_outputs_are_checked_before_anything_is_simulated(
    line: str, bad_paths: dict[str, str], simulate: FakeSimulate, tmp_path: Path
) -> None:
    option = line.rsplit(" ", 1)[-1]
    for path in bad_paths.values():
        assert one_error(tilewalk(*line.split(" "), path)).startswith(f"{option} = ")
    assert simulate.asked == []
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_figure_needs_a_known_suffix(simulate: FakeSimulate, tmp_path: Path) -> None:
    error = one_error(tilewalk("gemm", "4", "4", "4", "--figure", str(tmp_path / "out.bmp")))
    assert all(text in error for text in ("--figure", "'out.bmp'", ".png, .svg, .pdf"))


def test_one_file_for_two_outputs(simulate: FakeSimulate, tmp_path: Path) -> None:
    path = str(tmp_path / "out.svg")
    error = one_error(tilewalk("gemm", "4", "4", "4", "--figure", path, "--trace", path))
    assert error.startswith("--trace = ")
    assert "--figure" in error


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_paths_without_permission(simulate: FakeSimulate, tmp_path: Path) -> None:
    (tmp_path / "mine.json").touch(mode=0o400)
    (tmp_path / "shut").mkdir(mode=0o500)
    for path in (tmp_path / "mine.json", tmp_path / "shut" / "t.json"):
        assert one_error(tilewalk("gemm", "4", "4", "4", "--trace", str(path))).startswith("--trace = ")


# Files that are read.
def sparse(path: Path, n_bytes: int, head: bytes = b"") -> Path:
    """A file of that size that takes no room."""
    with path.open("wb") as out:
        out.write(head)
        out.truncate(n_bytes)
    return path


def test_a_gigabyte_is_refused_at_once(simulate: FakeSimulate, tmp_path: Path) -> None:
    table = sparse(tmp_path / "large.csv", GB, GEMM_CSV.read_bytes())
    gpu = sparse(tmp_path / "large.toml", GB, b'inherits = "h200_sxm"\n')
    tilewalk("validate", "--measurements", str(tmp_path / "missing.csv"))  # what is imported once is not measured
    began = time.monotonic()
    assert "must be at most" in one_error(tilewalk("validate", "--measurements", str(table)))
    assert "large.toml" in one_error(tilewalk("gemm", "4", "4", "4", "--gpu", str(gpu)))
    assert time.monotonic() - began < 1


CONTENTS = {
    "empty": b"",
    "binary": bytes(range(256)) * 100,
    "zeros": b"\0" * 1000,
    "prose": b"this is no table\nat all\n",
    "latin-1": "größe = 1\n".encode("latin-1"),
    "one long line": b"x" * 500_000,
    "header of gemm.csv": GEMM_CSV.read_bytes().split(b"\n")[0] + b"\n",
    "open quote": GEMM_CSV.read_bytes()[:2000] + b'\n"',
}


@pytest.mark.parametrize("content", CONTENTS)
def test_files_of_another_kind(
    content: str, simulate: FakeSimulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_every_row(monkeypatch)
    for name, line in {
        "bad.toml": ("gemm", "4", "4", "4", "--gpu"),
        "bad.TOML": ("gpus", "show"),
        "bad.csv": ("validate", "--measurements"),
    }.items():
        path = tmp_path / name
        path.write_bytes(CONTENTS[content])
        done = tilewalk(*line, str(path))
        assert done.exit_code == 2 or content == "open quote"
        if done.exit_code == 2:
            assert name in one_error(done)
    assert simulate.asked == []


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1.0", "1e400", '"fast"', "true", "[]", "{}", "9" * 5000])
def test_hardware_values_that_cannot_be(value: str, simulate: FakeSimulate, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f'inherits = "h200_sxm"\n[hbm]\nbandwidth_gb_per_s = {value}\n')
    error = one_error(tilewalk("gemm", "4", "4", "4", "--gpu", str(path)))
    assert "mine.toml" in error
    assert len(error) < 600


def test_a_missing_hardware_value_is_named(simulate: FakeSimulate, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('label = "Mine"\nvendor = "I"\narchitecture = "hopper"\n')
    assert "is missing" in one_error(tilewalk("gemm", "4", "4", "4", "--gpu", str(path)))


# What is no user's fault, or nobody's.
def test_an_error_line_is_bounded_and_printable(simulate: FakeSimulate) -> None:
    error = one_error(tilewalk("\x1b[31m\n\t\udcff" + "x" * 100_000))
    assert len(error) <= LONGEST


def raising(error: BaseException) -> Any:
    def simulate(*_: Any, **__: Any) -> Any:
        raise error

    return simulate


def test_too_little_memory_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_simulate(monkeypatch, raising(MemoryError("Unable to allocate 48. GiB")))
    assert "48. GiB" in one_error(tilewalk("gemm", "4", "4", "4"))


def test_a_defect_still_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_simulate(monkeypatch, raising(ZeroDivisionError("a defect")))
    with pytest.raises(ZeroDivisionError, match="a defect"):
        tilewalk("gemm", "4", "4", "4")


# At random.
def outcome(words: list[str]) -> tuple[int, str, str]:
    """Exit code, stdout, stderr of a command line; quicker than typer's runner. A defect raises."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as left:
        COMMANDS.main(words, prog_name="tilewalk")
    return int(left.value.code or 0), out.getvalue(), err.getvalue()


def check(words: list[str]) -> None:
    """Answered, or refused in one line."""
    code, out, err = outcome(words)
    assert code in (0, 2)
    if code == 2:
        assert out == ""
        assert err.startswith("tilewalk: error: ")
        assert err.endswith("\n")
        assert err[:-1].isprintable()
    else:
        assert err == ""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working directory that may fill with files, and a simulator that answers at once."""
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(tmp_path_factory.mktemp("random")):
        replace_simulate(patch, lambda *_, **__: sample_result())
        patch.setattr(sim, "save", lambda result, path: path.write_text("saved"), raising=False)
        patch.setattr("viz.sheet.save_figure", lambda result, path: path.write_text("drawn"))
        answer_every_row(patch)
        patch.setattr("viz.commands.validate.SHIPPED", ("microbench",))  # no table of kernels: refused at once
        yield Path.cwd()


def options_of(name: str) -> list[str]:
    """Options of a command, without those that change the user's shell."""
    command = COMMANDS.commands[name]  # type: ignore[attr-defined]
    return sorted({option for parameter in command.params for option in parameter.opts if option.startswith("-")})


# fmt: off
NUMBERS = ("1", "64", "4096", "262144", "262145", "0", "-1", "1.5", "nan", "inf", "1e9", "9" * 30, "0x10", "٣", "")
WORDS = (
    "hbm", "pinned", "warm", "fp16", "fp8_e4m3", "int8", "nt", "bias", "split_k", "persistent", "auto", "graph", "host",
    "clock", "h100_pcie", "t4", "out.svg", "t.json",
)
SHAPES = ("128x128x64", "64x64x64", "2x1", "1x", "x", "4096x4096x4096", "-1x2x3", "sm.count=1", "l2.capacity_mib=*2")
NASTY = ("\0", "\n", "\udcff", "--", "-", "../..", "/", ".", "🙂", "%s%n", "$(id)", "a=b=c", "\x1b[31m")
# fmt: on
word = st.sampled_from(NUMBERS + WORDS + SHAPES + NASTY) | st.text(max_size=8)
size = st.sampled_from(NUMBERS) | st.integers(1, 10**6).map(str)
quickly = settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])


@quickly
@given(
    command=st.sampled_from(["gemm", "explain"]),
    sizes=st.lists(size, min_size=2, max_size=4),
    options=st.lists(st.tuples(st.sampled_from(options_of("gemm")), word), max_size=4),
    more=st.lists(word, max_size=1),
)
def test_random_command_lines(
    folder: Path, command: str, sizes: list[str], options: list[tuple[str, str]], more: list[str]
) -> None:
    check([command, *sizes, *(text for pair in options for text in pair), *more])


@quickly
@given(st.lists(st.sampled_from(["gemm", "gpus", "show", "validate", "--help", "--version"]) | word, max_size=6))
def test_random_words(folder: Path, words: list[str]) -> None:
    check(words)


@quickly
@given(st.lists(st.tuples(st.sampled_from(options_of("gemm")), st.sampled_from(WORDS + SHAPES)), max_size=3))
def test_well_formed_options_are_answered_or_refused(folder: Path, options: list[tuple[str, str]]) -> None:
    check(["gemm", "512", "512", "512", *(text for pair in options for text in pair)])


def damaged(original: bytes) -> st.SearchStrategy[bytes]:
    """The file cut short, with a stretch replaced, or nothing of it."""
    places = st.integers(0, len(original))
    cut = places.map(lambda i: original[:i])
    hit = st.builds(lambda i, put: original[:i] + put + original[i + 3 :], places, st.binary(max_size=12))
    return cut | hit | st.binary(max_size=200)


TOML = (GPUS / "h200_sxm.toml").read_bytes()
CSV = b"".join(GEMM_CSV.read_bytes().splitlines(keepends=True)[:6])


@quickly
@given(damaged(TOML))
def test_damaged_gpu_files(folder: Path, content: bytes) -> None:
    (folder / "damaged.toml").write_bytes(content)
    check(["gpus", "show", "damaged.toml"])


@quickly
@given(damaged(CSV))
def test_damaged_tables(folder: Path, content: bytes) -> None:
    (folder / "damaged.csv").write_bytes(content)
    check(["validate", "--measurements", "damaged.csv", "--json"])


def test_random_command_lines_left_no_temporary_file(folder: Path) -> None:
    """Runs after them, in the order of this file."""
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


# Streams and signals.
@pytest.mark.parametrize("option", ["--trace"])
def test_a_file_that_stdout_goes_to_is_not_replaced(option: str, tmp_path: Path) -> None:
    out = tmp_path / "out.svg"
    for target in (str(out), "/dev/stdout"):
        with out.open("w") as stdout:
            running = process("gemm", "64", "64", "64", option, target, stdout=stdout)
            said = running.communicate(timeout=60)[1]
        assert running.returncode == 2
        assert "must be another file than standard output" in said
        assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("command", ["gemm 64 64 64 --json", "--help"])
def test_a_closed_stdout_is_an_error(command: str) -> None:
    running = process(*command.split(), preexec_fn=lambda: os.close(1), stdout=None)
    said = running.communicate(timeout=60)[1]
    assert (running.returncode, said) == (2, "tilewalk: error: standard output: closed, must be open\n")


SAVING_SLOWLY = """
import signal, sys, time, sim.saved
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever this was started under
def gemm(options):
    with sim.saved._replacing({path!r}) as file:
        print("writing", flush=True)
        time.sleep(60)
import viz.commands.gemm
viz.commands.gemm.gemm = gemm
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_no_half_file(number: signal.Signals, tmp_path: Path) -> None:
    running = process("gemm", "64", "64", "64", before=SAVING_SLOWLY.format(path=str(tmp_path / "a")))
    assert running.stdout is not None
    assert running.stdout.readline() == "writing\n"
    assert len(list(tmp_path.iterdir())) == 1
    running.send_signal(number)
    assert running.communicate(timeout=20)[1] == ""
    assert running.returncode == 128 + number
    assert not list(tmp_path.iterdir())


def test_nohup_still_works(tmp_path: Path) -> None:
    ignored = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    told = "import os; os.kill(os.getpid(), signal.SIGHUP); print(signal.getsignal(signal.SIGHUP).name)"
    code = f"{ignored}from viz import cli; cli._end_in_order()\n{told}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "SIG_IGN\n")


def test_an_interrupt_while_the_command_line_is_read_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr(Commands, "parse_args", interrupted)
    done = tilewalk("gemm", "64", "64", "64")
    assert (done.exit_code, done.stderr) == (130, "tilewalk: interrupted\n")


# Saved results.
def saved_with(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A saved result whose header was edited."""
    sample_result().save(path)
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    header = json.loads(arrays["header"].tobytes())
    change(header["result"])
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    with path.open("wb") as file:
        np.savez(file, **arrays)
    return path


def _with_time(value: object) -> Callable[[dict[str, Any]], object]:
    return lambda header: header.update(time_s=value)


EDITS: dict[str, Callable[[dict[str, Any]], object]] = {
    **{f"time {value}": _with_time(value) for value in (math.nan, 0, -1e-6, True)},
    "time inf": lambda header: header.update(end_to_end_s=math.inf),
    "kernel nan": lambda header: header["kernels"][0].update(time_s=math.nan),
    "kernel time": lambda header: header["kernels"][0].update(time_s=-1.0),
    "kernel bytes": lambda header: header["kernels"][0]["bytes"]["hbm"].update(read="many"),
    "window of no width": lambda header: header["kernels"][0].update(windows=0),
    "gpu name": lambda header: header["gpu"].pop("name"),
    "gpu values": lambda header: header["gpu"].pop("values"),
    "gpu value": lambda header: next(iter(header["gpu"]["values"].values())).pop("value"),
    "gpu no table": lambda header: header["gpu"]["values"].update({"sm.count": 4}),
    "workload": lambda header: header["workload"].pop("dtype"),
    "workload side": lambda header: header["workload"].update(m="x"),
    "workload intensity": lambda header: header["workload"].pop("arithmetic_intensity"),
    "evidence": lambda header: header.update(evidence=[5]),
    "advice": lambda header: header.update(advice=[{"change": "x"}]),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_result_is_refused(edit: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a saved result, or damaged"):
        sim.load(saved_with(tmp_path / "r.npz", EDITS[edit]))


@pytest.mark.parametrize("path", [None, 5, b"r.npz", "\0", ["r.npz"]])
def test_what_is_no_file_name_is_refused(path: Any) -> None:
    for call in (sample_result().save, sim.load):
        with pytest.raises(ConfigError, match="result file") as refused:
            call(path)
        assert str(refused.value).isprintable()


def test_only_results_are_saved(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be a Result"):
        sim.saved.save(None, tmp_path / "r.npz")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
