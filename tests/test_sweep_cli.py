"""`tilewalk sweep`: what a study file may say, what comes out, and what is refused in one line."""

from __future__ import annotations

import csv
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from sim.cases import Figures, GemmCase, LlmCase
from sim.sweep.study_file import read_study
from sim.sweep.table import Table
from tests.command_line import one_error, process, tilewalk
from viz.sweep import MOST_LINES, drawn, lines

SMALL = """
gpus = ["h200_sxm", "a100_sxm_80gb"]
scan = ["hbm.bandwidth_gb_per_s=*1:*2:*1"]

[[gemm]]
m = [64, 128]
n = 128
k = 256

[[kernel]]
family = "multistage"
block_m = 64
block_n = 64

[[picture]]
file = "m.png"
x = "m"
y = "time_s"
series = "gpu"
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEWALK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Points that take no time."""
    moved = dict.fromkeys(("hbm", "l2", "sm", "smem"), 2 * 10**9)

    def figures(work: GemmCase | LlmCase, gpu: Any, kept: Any = None) -> Figures:
        size = work.gemm.m if isinstance(work, GemmCase) else work.request.batch
        return Figures(size * 1e-3 / gpu.hbm.bandwidth_gb_per_s, 1.0, 0, {"hbm": 1.0}, moved, {})

    monkeypatch.setattr(GemmCase, "figures", figures)
    monkeypatch.setattr(LlmCase, "figures", figures)


def study(folder: Path, text: str, name: str = "study.toml") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "cache")


# What comes out.
def test_a_study_becomes_a_table_and_its_pictures(tmp_path: Path) -> None:
    done = tilewalk("sweep", study(tmp_path, SMALL))
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines() == [
        "study: 8 points, 8 simulated",
        f"Table      {tmp_path}/study.csv",
        f"Picture    {tmp_path}/m.png",
    ]
    table = read(tmp_path / "study.csv")
    assert [(row["gpu"], row["hbm.bandwidth_gb_per_s_factor"], row["m"]) for row in table] == [
        (gpu, factor, m) for gpu in ("h200_sxm", "a100_sxm_80gb") for factor in ("1.0", "2.0") for m in ("64", "128")
    ]
    assert all(float(row["time_s"]) > 0 and row["block_m"] == "64" and not row["error"] for row in table)
    assert names(tmp_path) == ["m.png", "study.csv", "study.toml"]
    assert (tmp_path / "m.png").read_bytes().startswith(b"\x89PNG")


def test_json_is_one_object_and_known_points_come_from_the_cache(
    tmp_path: Path, cache: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sim.sweep.run.WORTH_KEEPING_S", 0.0)
    file = study(tmp_path, SMALL.replace("block_m = 64\nblock_n = 64\n", ""))
    first = json.loads(tilewalk("sweep", file, "--json", "--no-cache").stdout)
    assert first["points"] == {"total": 8, "simulated": 8, "cached": 0, "kept": 0, "refused": 0}
    assert not cache.exists()
    tilewalk("sweep", file)
    again = json.loads(tilewalk("sweep", file, "--json", "--output", str(tmp_path / "again.csv")).stdout)
    assert again["points"]["simulated"] + again["points"]["cached"] == 8
    assert again["table"] == str(tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "study.csv").read_bytes()


@pytest.mark.extra
def test_threads_and_formats_change_no_number(tmp_path: Path, quick: None) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    file = study(tmp_path, SMALL.replace("[[kernel]]", "[[kernel]]\n[[kernel]]"))
    for output, threads in (("a.csv", "1"), ("b.csv", "3"), ("c.parquet", "2")):
        assert tilewalk("sweep", file, "--output", str(tmp_path / output), "--threads", threads).exit_code == 0
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    rows = parquet.read_table(tmp_path / "c.parquet").to_pylist()
    assert [repr(row["time_s"]) for row in rows] == [row["time_s"] for row in read(tmp_path / "a.csv")]


def test_paths_in_a_study_are_relative_to_it(tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder := tmp_path / "studies").mkdir()
    (folder / "mine.toml").write_text('inherits = "t4"\nlabel = "mine"\n[sm]\ncount = 30\n')
    text = '\ufeffgpus = "mine.toml"\noutput = "out.csv"\n[gemm]\nm = 1\nn = 2\nk = 3\ndtype = "fp16"\n'
    study(folder, text)
    monkeypatch.chdir(tmp_path)
    assert tilewalk("sweep", "studies/study.toml").stdout.startswith("study: 1 point, 1 simulated\n")
    assert [row["gpu"] for row in read(folder / "out.csv")] == ["studies/mine.toml"]


def test_every_list_is_an_axis(tmp_path: Path, quick: None) -> None:
    text = """
    sets = ["l2.capacity_mib=60"]
    variants = [[], ["tensor.pipe_utilisation=1"], ["hbm=*2"]]
    [[gemm]]
    sizes = [[1, 2, 3], [4, 5, 6]]
    dtype = ["bf16", "fp16"]
    without = ["clock"]
    [[gemm]]
    m = "16:64:16"
    n = 1
    k = 1
    clock_mhz = [1000, 1500.5]
    """
    from hwmodels.levers import levers
    from hwmodels.spec import FIELDS

    key = next(name for name, field in FIELDS.items() if name.startswith("tensor.") and field.type is float)
    text = text.replace('"tensor.pipe_utilisation=1"', f'"{key}=*1"').replace("hbm=", f"{next(iter(levers()))}=")
    found = read_study(Path(study(tmp_path, text))).sweep
    assert found.n_points == 3 * (2 * 2 + 4 * 2) == len(list(found))
    tilewalk("sweep", str(tmp_path / "study.toml"))
    table = read(tmp_path / "study.csv")
    assert [row["m"] for row in table[:4]] == ["1", "1", "4", "4"]
    assert {row["l2.capacity_mib"] for row in table} == {"60"}
    assert [row["clock_mhz"] for row in table[-2:]] == ["1000.0", "1500.5"]
    assert {row["without"] for row in table[:4]} == {"clock"}


def test_models_are_workloads(tmp_path: Path, quick: None) -> None:
    text = """
    [[llm]]
    model = ["llama3-8b", "gpt2"]
    phase = "decode"
    batch = [1, 8]
    context = [512, 4096]
    attention = "flash"
    [[picture]]
    file = "p.svg"
    x = "context"
    y = "hbm_bytes"
    series = "model"
    log = "xy"
    """
    done = tilewalk("sweep", study(tmp_path, text))
    assert done.stdout.splitlines()[1] == "Errors     2 points could not be simulated; the column error says why"
    table = read(tmp_path / "study.csv")
    assert list(table[0])[:6] == ["model", "phase", "batch", "context", "dtype", "gpu"]
    assert [row["context"] for row in table] == ["512", "4096"] * 4
    assert [bool(row["error"]) for row in table] == 5 * [False] + [True, False, True]
    assert table[5]["model"] == "gpt2"


# Pictures.
def table_of(folder: Path, text: str) -> tuple[Table, Any]:
    from sim.sweep import run_sweep

    found = read_study(Path(study(folder, text)))
    return run_sweep(found.sweep), found.pictures[0]


def test_a_picture_shows_the_points(tmp_path: Path, quick: None) -> None:
    table, picture = table_of(tmp_path, SMALL.replace("[[kernel]]", "[[kernel]]\n[[kernel]]").replace("block_", "#"))
    found = lines(table, picture)
    assert list(found) == ["h200_sxm", "a100_sxm_80gb"]
    least = min(row[table.columns.index("time_s")] for row in table if row[0] == 64 and "h200_sxm" in row)
    assert found["h200_sxm"][64] == least
    (ax,) = drawn(table, picture).axes
    assert [line.get_label() for line in ax.lines] == ["gpu = h200_sxm", "gpu = a100_sxm_80gb"]
    assert ax.lines[0].get_ydata()[0] == pytest.approx(least * 1e6)  # type: ignore[index]
    assert ax.get_ylabel() == "time, µs"


def test_words_are_places_and_too_many_lines_are_told(tmp_path: Path, quick: None) -> None:
    text = (
        SMALL.replace("m = [64, 128]", 'm = "1:40:1"').replace('x = "m"', 'x = "gpu"').replace('"gpu"\n', '"gpu"\n', 1)
    )
    text = text.replace('series = "gpu"', 'series = "m"')
    table, picture = table_of(tmp_path, text)
    (ax,) = drawn(table, picture).axes
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["h200_sxm", "a100_sxm_80gb"]
    assert len(ax.lines) == MOST_LINES
    legend = ax.get_legend()
    assert legend is not None
    assert legend.get_title().get_text() == f"the first {MOST_LINES} of 40"


# What is refused.
GEMM = "[[gemm]]\nm = 1\nn = 1\nk = 1\n"
PICTURE = '[[picture]]\nfile = "a.png"\nx = "m"\ny = "time_s"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no workload: needs [[gemm]] or [[llm]]"),
        ("gemm = []", "holds no workload"),
        ("[gemm]", "gemm[1]: m: missing"),
        (f"{GEMM}clock_mhz = 1000\nsustained = [false, true]", "clock_mhz: must not be given with sustained"),
        (f"{GEMM}[kernel]\nstream_k = 1", "stream_k = 1: must be true or false, or a list of such"),
        (f"{GEMM}[kernel]\npingpong = 'x'", "pingpong = 'x': must be true or false, or a list of such"),
        ("gemm = 3", "gemm: must be a table, [[gemm]]"),
        ("m = [", "is no TOML"),
        ("[gemm]\nm = 1\n[gemm]\nm = 2", "must be [[gemm]] for each of several"),
        (f"[gemm]\nm = 1\n{GEMM}", "must be [[gemm]] for each of several"),
        (f"gpu = 'h200_sxm'\n{GEMM}", "unknown key 'gpu'; did you mean gpus?"),
        (f"gpus = ['h200']\n{GEMM}", "unknown GPU 'h200'"),
        (f"gpus = []\n{GEMM}", "gpus: 0 values, must be 1 to 100,000"),
        (f"gpus = ['t4', 't4']\n{GEMM}", "gpus = 't4': given twice"),
        (f"sets = 'a=1'\n{GEMM}", "sets: must be a list of texts"),
        (f"sets = ['l2.capacity_mb=1']\n{GEMM}", "did you mean l2.capacity_mib?"),
        (f"sets = ['l2.capacity_mib=-1']\n{GEMM}", "l2.capacity_mib = -1: needs a number from"),
        (f"variants = ['l2.capacity_mib=60']\n{GEMM}", "variants[1]: must be a list of texts"),
        (f"variants = []\n{GEMM}", "variants: must be a list of lists of sets"),
        (f"scan = ['l2.capacity_mb=1,2']\n{GEMM}", "unknown value or lever 'l2.capacity_mb'; did you mean"),
        (f"scan = ['l2.capacity_mib=20:10:1']\n{GEMM}", "0 values, must be 1 to 10,000"),
        (f"scan = ['l2.capacity_mib=1e9,2e9']\n{GEMM}", "l2.capacity_mib = 1000000000: needs a number from"),
        (f"scan = ['clock=1,2']\n{GEMM}", "clock stands for several values: needs clock=*factor"),
        (f"scan = ['clock=*1,*2', 'clock=*3,*4']\n{GEMM}", "scan: the same value twice"),
        (f"title = 3\n{GEMM}", "title = 3: must be text"),
        (f"output = 'a.xlsx'\n{GEMM}", "output: 'a.xlsx': must end in .csv or .parquet"),
        (f"output = 'no/such/a.csv'\n{GEMM}", "output = "),
        ("[[gemm]]\nm = 1\nn = 1\n", "gemm[1]: k: missing"),
        (f"{GEMM}mm = 1", "gemm[1]: unknown key 'mm'; did you mean m"),
        ("[[gemm]]\nm = [1, 0]\nn = 1\nk = 1", "gemm[1]: m = 0: must be a whole number from 1 to 262144"),
        ("[[gemm]]\nm = 1.0\nn = 1\nk = 1", "gemm[1]: m = 1.0: must be a whole number"),
        ("[[gemm]]\nm = true\nn = 1\nk = 1", "gemm[1]: m = true: must be a whole number"),
        ("[[gemm]]\nm = [[1]]\nn = 1\nk = 1", "gemm[1]: m = a list: must be a whole number"),
        ("[[gemm]]\nm = '1:2'\nn = 1\nk = 1", 'must be "low:high:step"'),
        ("[[gemm]]\nm = '1:1000000000:1'\nn = 1\nk = 1", 'must be "low:high:step"'),
        (f"{GEMM}dtype = 'bf15'", "gemm[1]: dtype = 'bf15': must be one of"),
        (f"{GEMM}weight_group = 3", "weight_group = 3: only for int8 and int4 weights"),
        (f"{GEMM}sizes = [[1, 2, 3]]", "gemm[1]: m: must not be given with sizes"),
        ("[[gemm]]\nsizes = [[1, 2]]", "sizes: must be a list of [m, n, k]"),
        ("[[gemm]]\nsizes = [[1, 2, 'x']]", "sizes: k = 'x': must be a whole number"),
        (f"{GEMM}without = 'gravity'", "without = 'gravity': must be one of"),
        ("[[llm]]\nphase = 'decode'", "llm[1]: model: missing"),
        ("[[llm]]\nmodel = 'llama9'", "llm[1]: model: "),
        ("[[llm]]\nmodel = 'gpt2'\nphase = 'dream'", "phase = 'dream': must be one of"),
        ("[[llm]]\nmodel = 'gpt2'\ntokens = 2048", "llm[1]: "),
        ("[[llm]]\nmodel = 'gpt2'\ntokens = 8\n[[kernel]]\nblock_m = 64", "must not be given with [[kernel]]"),
        (f"{GEMM}[[kernel]]\nblock = 1", "kernel[1]: unknown key 'block'; did you mean block_k or block_m or block_n?"),
        (f"{GEMM}[[kernel]]\nblock_m = 5000", "kernel[1]: block_m = 5000: must be an integer from 1 to 4096"),
        (f"{GEMM}[[kernel]]\nraster = 'z'", "kernel[1]: raster = 'z': must be one of m, n"),
        (f"{GEMM}[[picture]]\nx = 'm'", "picture[1]: file: missing"),
        (f"{GEMM}{PICTURE}z = 'm'", "picture[1]: unknown key 'z'"),
        (f"{GEMM}{PICTURE.replace('time_s', 'tiles')}", "y = 'tiles': must be one of time_s"),
        (f"{GEMM}{PICTURE}series = 'gpus'", "picture[1]: series = 'gpus': no such column; did you mean gpu?"),
        (f"{GEMM}{PICTURE}log = 'z'", "log = 'z': must be one of x, y, xy"),
        (f"{GEMM}{PICTURE.replace('a.png', 'a.bmp')}", "picture[1].file = 'a.bmp': must end in .png"),
        (f"{GEMM}{PICTURE}{PICTURE}", "picture[2].file = 'a.png': must be another file"),
    ],
)
def test_what_is_wrong_in_a_study_is_one_line(text: str, said: str, tmp_path: Path) -> None:
    error = one_error(tilewalk("sweep", study(tmp_path, text)))
    assert said in error
    assert "study.toml" in error
    assert names(tmp_path) == ["study.toml"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--threads", "0"), "--threads = '0'"),
        (("--threads", "2", "--dask", "tcp://127.0.0.1:1"), "--threads with --dask"),
        (("--output", "table.xlsx"), "must end in .csv or .parquet"),
        (("--output", "no/such/table.csv"), "--output = 'no/such/table.csv'"),
        (("--output", ""), "--output = ''"),
    ],
)
def test_what_is_wrong_in_an_option_is_one_line(args: tuple[str, ...], said: str, tmp_path: Path) -> None:
    assert said in one_error(tilewalk("sweep", study(tmp_path, GEMM), *args))


def test_no_such_study_is_one_line(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in one_error(tilewalk("sweep", str(tmp_path / "none.toml")))
    assert "cannot be read: Is a directory" in one_error(tilewalk("sweep", str(tmp_path)))


def test_many_points_are_asked_about(tmp_path: Path) -> None:
    text = "[[gemm]]\nm = '1:1000:1'\nn = '1:1000:1'\nk = '1:1000:1'\n"
    assert "1,000,000,000 points, must be at most 10,000,000" in one_error(tilewalk("sweep", study(tmp_path, text)))
    text = text.replace("k = '1:1000:1'", "k = [1, 2]")
    assert "2,000,000 points, more than 100,000: needs --yes" in one_error(tilewalk("sweep", study(tmp_path, text)))


def test_without_dask_or_pyarrow_that_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sim.sweep.executors.find_spec", lambda _: None)
    assert "pip install 'tilewalk[dask]'" in one_error(tilewalk("sweep", study(tmp_path, GEMM), "--dask", "local"))
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    error = one_error(tilewalk("sweep", study(tmp_path, GEMM), "--output", str(tmp_path / "t.parquet")))
    assert "pip install 'tilewalk[table]'" in error


def test_a_cache_that_cannot_be_written_is_told_once(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sim.sweep.run.WORTH_KEEPING_S", 0.0)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILEWALK_CACHE", str(tmp_path / "file"))
    done = tilewalk("sweep", study(tmp_path, SMALL.partition("[[kernel]]")[0]))
    assert done.exit_code == 0
    assert [line for line in done.stderr.splitlines() if "note" in line] == [
        f"tilewalk: note: cache {tmp_path}/file/sweep: cannot be written (Not a directory); goes on without"
    ]


# Interrupts, in a process of its own.
SLOW = """
import time
from sim.cases import Figures, GemmCase
def figures(self, gpu, kept=None):
    time.sleep(0.05)
    return Figures(self.gemm.m / 3, 1.0, 0, {"hbm": 1.0}, dict.fromkeys(("hbm", "l2", "sm", "smem"), 1), {})
GemmCase.figures = figures
import viz.commands.sweep
viz.commands.sweep.engine_needs_compiling = lambda: False
"""


def test_an_interrupted_sweep_goes_on_by_the_same_command(tmp_path: Path) -> None:
    file = study(tmp_path, "[[gemm]]\nm = '1:60:1'\nn = 1\nk = 1\n")
    journal = tmp_path / "study.csv.points"
    command = ("sweep", file, "--threads", "2", "--json", "--no-cache")
    running = process(*command, before=SLOW)
    deadline = time.monotonic() + 60
    while (not journal.exists() or journal.read_bytes().count(b"\n") < 10) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(running.pid, signal.SIGINT)
    stdout, stderr = running.communicate(timeout=20)
    assert (running.returncode, stdout) == (130, "")
    told = stderr.splitlines()[-1]
    assert told.startswith("tilewalk: interrupted; ")
    assert told.endswith(f"of 60 points are kept in {journal}; the same command goes on from there")
    finished = journal.read_bytes().count(b"\n") - 1
    assert 9 <= finished < 60
    stdout, stderr = process(*command, before=SLOW).communicate(timeout=60)
    points = json.loads(stdout)["points"]
    assert (points["kept"], points["simulated"]) == (finished, 60 - finished)
    assert [row["m"] for row in read(tmp_path / "study.csv")] == [str(m) for m in range(1, 61)]
    assert names(tmp_path) == ["study.csv", "study.toml"]


@pytest.mark.slow
@pytest.mark.extra
def test_a_local_cluster_gives_the_same_table(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    file = study(tmp_path, SMALL.partition("[[picture]]")[0])
    assert tilewalk("sweep", file, "--no-cache").exit_code == 0
    expected = (tmp_path / "study.csv").read_bytes()
    stdout, stderr = process("sweep", file, "--no-cache", "--dask", "local", "--threads", "2").communicate(timeout=100)
    assert stdout.splitlines()[0] == "study: 8 points, 8 simulated", stderr
    assert all(line.startswith("tilewalk: ") for line in stderr.splitlines())
    assert (tmp_path / "study.csv").read_bytes() == expected


@pytest.mark.slow
@pytest.mark.extra
def test_an_interrupt_ends_a_local_cluster_with_one_line(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    file = study(tmp_path, "[[gemm]]\nm = '64:6400:64'\nn = 1024\nk = 1024\n")
    journal = tmp_path / "study.csv.points"
    command = ("sweep", file, "--no-cache", "--dask", "local", "--threads", "2")
    running = process(*command)
    deadline = time.monotonic() + 60
    while (not journal.exists() or journal.read_bytes().count(b"\n") < 4) and time.monotonic() < deadline:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    stdout, stderr = running.communicate(timeout=60)
    assert (running.returncode, stdout) == (130, "")
    assert all(line.startswith("tilewalk: ") for line in stderr.splitlines())
    assert stderr.splitlines()[-1].startswith("tilewalk: interrupted; ")
    assert journal.read_bytes().count(b"\n") >= 4
