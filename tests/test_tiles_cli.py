"""`tilewalk tiles`: what is printed and written, and what is refused."""

from __future__ import annotations

import csv
import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hwmodels.catalog import load_gpu
from sim.schedule.config import KernelConfig
from sim.schedule.launches import PLAIN
from sim.schedule.menu import menu
from sim.tiles import every, search
from tests.command_line import one_error, tilewalk
from viz.commands.progress import Status
from viz.commands.tiles_options import TilesOptions
from viz.commands.tiles_request import pictured, ranked, request
from viz.tiles.exports import _arguments
from viz.tiles.figure import figure
from workloads.gemm import Gemm

SIZES = ("256", "512", "1024")


def ranking(*args: str) -> dict[str, Any]:
    """What `tiles --json` prints."""
    done = tilewalk("tiles", *SIZES, *args, "--json")
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# What is printed.
def test_the_ranking_is_in_order_and_counts_all() -> None:
    found = ranking("--top", "5")
    times = [each["time_us"] for each in found["configurations"]]
    assert times == sorted(times)
    assert [each["rank"] for each in found["configurations"]] == [1, 2, 3, 4, 5]
    assert found["configurations"][0]["behind"] == 0
    assert found["n_fit"] == len(every(Gemm(256, 512, 1024), load_gpu("h200_sxm")))
    assert found["n_simulated"] + found["left_out"]["n"] == found["n_fit"]
    assert sum(found["left_out"]["by"].values()) == found["left_out"]["n"]
    assert found["left_out"]["least_bound_us"] * 1.0 >= times[-1] * 0.99
    assert found["expected_error"]["n"] > 0


def test_the_screen_says_what_was_simulated_and_what_only_bounded() -> None:
    done = tilewalk("tiles", *SIZES, "--top", "3")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("256 × 512 × 1,024 bf16 (tn, L2 cold) on NVIDIA H200")
    for text in ("Configuration", "Behind", "Waves", "Tail", "CTAs/SM", "HBM", "L2", "Energy", "only lower bounds"):
        assert text in done.stdout
    assert "would launch" in done.stdout
    assert "expect it to be off by" in done.stdout
    assert max(map(len, lines)) <= 100


def test_a_wide_console_has_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert tilewalk("tiles", *SIZES, "--top", "3").stdout.count("\n#") == 1


def test_all_are_simulated_when_asked() -> None:
    found = ranking("--all", "--family", "multistage", "--top", "2")
    assert found["n_simulated"] == found["n_fit"] == len(menu(load_gpu("h200_sxm"), "multistage", Gemm(256, 512, 1024)))
    assert found["left_out"] == {"n": 0, "least_bound_us": None, "by": {}}
    assert len(found["configurations"]) == 2
    assert {each["family"] for each in found["configurations"]} == {"multistage"}


def test_the_options_of_gemm_arrive() -> None:
    found = ranking("--dtype", "fp16", "--batch", "2", "--epilogue", "bias", "--clock", "1000", "--full", "--top", "1")
    assert (found["workload"]["dtype"], found["workload"]["batch"], found["workload"]["epilogue"]) == (
        "fp16",
        2,
        "bias",
    )
    assert found["configurations"][0]["sm_mhz"] == pytest.approx(1000)
    assert found["expected_error"] is None


def test_where_no_library_was_seen_that_is_said() -> None:
    done = tilewalk("tiles", "64", "64", "64", "--gpu", "t4", "--dtype", "fp16", "--top", "1")
    assert "Library    not known" in done.stdout
    assert ranking("--gpu", "t4", "--dtype", "fp16", "--top", "1")["library"] is None


def test_threads_change_nothing() -> None:
    assert ranking("--top", "3", "--threads", "1") == ranking("--top", "3", "--threads", "2")


# What is written.
def test_the_table_has_every_configuration(tmp_path: Path) -> None:
    path = tmp_path / "tiles.csv"
    found = ranking("--top", "4", "--csv", str(path))
    with path.open(encoding="utf-8", newline="") as stream:
        table = list(csv.DictReader(stream))
    assert len(table) == found["n_fit"]
    assert [each["name"] for each in table[:4]] == [each["name"] for each in found["configurations"]]
    assert [each["rank"] for each in table[:5]] == ["1", "2", "3", "4", ""]
    simulated = [each for each in table if each["time_us"]]
    assert len(simulated) == found["n_simulated"]
    assert all(bool(each["time_us"]) != bool(each["bound_us"]) for each in table)
    assert [path.name for path in tmp_path.iterdir()] == ["tiles.csv"]


# What is refused.
@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("0", "1", "1"), "M = '0'"),
        (("1", "x", "1"), "N = 'x'"),
        (("-1", "1", "1"), "size = -1"),
        ((*SIZES, "--top", "0"), "--top = '0'"),
        ((*SIZES, "--threads", "none"), "--threads = 'none'"),
        (
            (*SIZES, "--family", "stream_k"),
            "--family = 'stream_k': must be one of multistage, persistent, split_k, all",
        ),
        ((*SIZES, "--dtype", "bf15"), "dtype = 'bf15'"),
        ((*SIZES, "--gpu", "t4"), "bf16"),
        ((*SIZES, "--gpu", "t4", "--dtype", "fp16", "--family", "persistent"), "nothing fits"),
        ((*SIZES, "--clock", "1000", "--sustained"), "--clock with --sustained"),
        ((*SIZES, "--without", "gravity"), "--without = 'gravity'"),
        ((*SIZES, "--csv", "no/such/folder/tiles.csv"), "--csv"),
        (("262144", "262144", "262144"), "HBM of h200_sxm"),
    ],
)
def test_what_is_wrong_is_refused_in_one_line(args: tuple[str, ...], said: str) -> None:
    assert said in one_error(tilewalk("tiles", *args))


# Why one beats another.
def test_ranks_and_names_are_explained_alike() -> None:
    best = ranking("--top", "3")["configurations"]
    by_rank = explanation("1", "3")
    assert by_rank == explanation(best[2]["name"], best[0]["name"])
    assert by_rank["a"]["name"] == best[0]["name"]
    assert "both are 1" in one_error(tilewalk("tiles", *SIZES, "--explain", "1", best[0]["name"]))
    assert by_rank["difference_us"] == pytest.approx(best[2]["time_us"] - best[0]["time_us"])


def explanation(one: str, other: str) -> dict[str, Any]:
    """What `tiles --explain ONE OTHER --json` holds of it."""
    found: dict[str, Any] = json.loads(tilewalk("tiles", *SIZES, "--explain", one, other, "--json").stdout)
    assert found["gpu"] == "h200_sxm"
    return dict(found["explanation"])


def test_an_explanation_has_sentences_and_two_tables() -> None:
    done = tilewalk("tiles", *SIZES, "--explain", "1", "9")
    assert done.stdout.startswith("A beats B by ")
    for text in ("µs of CTA-slot time", "together", "HBM", "tensor cores busy", "CTAs (warps) an SM", "SM clock"):
        assert text in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("0", "1"), "--explain = '0': must be an integer from 1 to"),
        (("1", "-1"), "--explain = '-1': must be an integer from 1 to"),
        (("1", "01"), "--explain = '1 01': must be two different ones"),
        (("1", "99999"), "--explain = '99999'"),
        (("1", "persistent_1x1x1"), "--explain = 'persistent_1x1x1': must be a rank or the name of a configuration"),
        (("1",), "requires 2 arguments"),
        (("1", "2", "--csv", "tiles.csv"), "--explain with --csv"),
    ],
)
def test_what_cannot_be_explained_is_refused_before_anything_is_simulated(
    args: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("sim.tiles.search")
    assert said in one_error(tilewalk("tiles", *SIZES, "--explain", *args))


# For other tools.
def exported(target: str, path: Path, *args: str) -> tuple[list[dict[str, Any]], str]:
    """The best, and what was said on stderr of those left out."""
    done = tilewalk("tiles", *SIZES, "--export", target, str(path), "--json", *args)
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)["configurations"], done.stderr


def test_triton_reads_the_best_multistage_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Config:
        def __init__(self, sizes: dict[str, int], num_stages: int, num_warps: int) -> None:
            self.all = (*sizes.values(), num_stages, num_warps)

    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(Config=Config))
    path = tmp_path / "configs.py"
    best, said = exported("triton", path, "--family", "multistage")
    found = runpy.run_path(str(path))["CONFIGS"]
    fields = ("block_m", "block_n", "block_k", "group", "stages", "warps")
    assert [config.all for config in found] == [tuple(each[name] for name in fields) for each in best]
    assert said == ""
    assert f"# {best[0]['name']}: " in path.read_text(encoding="utf-8")


def test_cutlass_gets_a_line_of_arguments_for_each(tmp_path: Path) -> None:
    path = tmp_path / "arguments.txt"
    best, said = exported("cutlass", path, "--top", "40")
    lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert f"arguments.txt: {40 - len(lines)} of the best 40 left out, not for cutlass" in said
    assert all(word.startswith("--") and "=" in word for line in lines for word in line)
    first = dict(word.removeprefix("--").split("=", 1) for word in lines[0])
    kept = next(each for each in best if each["loads"] == "tma" or each["mma"] == "mma_sync")
    assert {int(first["cta_m"]), int(first["cta_n"])} == {kept["block_m"], kept["block_n"]}
    assert int(first["cta_k"]) == kept["block_k"]


def test_a_transposed_tile_is_asked_of_cutlass_as_the_transposed_product() -> None:
    gemm = Gemm(16, 512, 1024)
    config = KernelConfig(
        "persistent", 16, 64, 64, 8, 12, cluster_m=1, cluster_n=2, raster="n", group=5, loads="tma",
        pingpong=True, mma_m_along="n",
    )  # fmt: skip
    found = _arguments(config, gemm)
    assert (found["m"], found["n"], found["cta_m"], found["cta_n"]) == (512, 16, 64, 16)
    assert (found["cluster_m"], found["cluster_n"]) == (2, 1)
    assert (found["A"], found["B"], found["C"]) == ("bf16:row", "bf16:column", "bf16:column")
    assert (found["raster_order"], found["swizzle_size"]) == ("N", 4)
    plain = _arguments(replace(config, mma_m_along="m", group=PLAIN, block_m=64), Gemm(64, 512, 1024, layout="nt"))
    assert (plain["A"], plain["B"], plain["raster_order"]) == ("bf16:column", "bf16:row", "N")


def test_stream_k_is_asked_of_cutlass_and_not_of_triton(tmp_path: Path) -> None:
    sizes, path = ("2304", "2304", "8192"), tmp_path / "arguments.txt"
    done = tilewalk("tiles", *sizes, "--family", "persistent", "--top", "2", "--json", "--export", "cutlass", str(path))
    best = json.loads(done.stdout)["configurations"][0]
    assert best["stream_k"] is True
    assert "_stream_coop" in best["name"]
    said, asked = path.read_text(encoding="utf-8").splitlines()[2:4]
    assert said.endswith("; stream-K, where its scheduler decides on that (DecompositionMode)")
    assert asked.endswith("--kernels=*stream_k_warpspecialized_cooperative*")
    refused = tilewalk("tiles", *sizes, "--family", "persistent", "--export", "triton", str(tmp_path / "configs.py"))
    assert "can be expressed; --family multistage" in one_error(refused)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("tvm", "x.py"), "--export = 'tvm': must be one of triton, cutlass"),
        (("triton", "no/such/folder/x.py"), "--export"),
        (("triton", "x.txt"), "--export = 'x.txt': must be a file that ends in .py"),
        (("cutlass", "x.py"), "--export = 'x.py': must be a file that does not end in .py"),
    ],
)
def test_exports_that_cannot_be_are_refused(args: tuple[str, ...], said: str) -> None:
    assert said in one_error(tilewalk("tiles", *SIZES, "--export", *args))


def test_where_triton_has_none_of_the_best_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "configs.py"
    said = one_error(tilewalk("tiles", *SIZES, "--top", "1", "--family", "persistent", "--export", "triton", str(path)))
    assert "none of the best 1 can be expressed; --family multistage" in said
    assert not path.exists()


# The Pareto front and the figure.
def test_a_front_simulates_all_and_is_told(tmp_path: Path) -> None:
    found = ranking("--family", "multistage", "--pareto", "time,smem")
    assert found["left_out"]["n"] == 0
    assert found["pareto"]["against"] == "smem_bytes"
    front = found["pareto"]["front"]
    assert front[0]["rank"] == 1
    assert [each["smem_bytes"] for each in front] == sorted((each["smem_bytes"] for each in front), reverse=True)
    done = tilewalk("tiles", *SIZES, "--family", "multistage", "--pareto", "smem", "--top", "2")
    assert f"Time against shared memory of a CTA: {len(front)} configurations that none beats in both" in done.stdout


def test_the_figure_is_drawn_whole(tmp_path: Path) -> None:
    path = tmp_path / "tiles.png"
    done = tilewalk("tiles", "64", "64", "128", "--gpu", "t4", "--dtype", "fp16", "--figure", str(path))
    assert done.exit_code == 0, done.stderr
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [each.name for each in tmp_path.iterdir()] == ["tiles.png"]


def test_what_the_figure_shows_was_simulated() -> None:
    asked = request(TilesOptions(*SIZES, family="multistage"))
    ranks = ranked(asked, Status())
    picture = pictured(asked, ranks, Status())
    configs = menu(load_gpu("h200_sxm"), "multistage", Gemm(256, 512, 1024))
    assert picture.cells.keys() == {(config.block_m, config.block_n) for config in configs}
    assert min(each.time_s for each in picture.cells.values()) == ranks.rows[0].time_s
    texts = [text.get_text() for ax in figure(picture).axes for text in ax.texts]
    assert len(texts) >= len(picture.cells)
    for cell, each in picture.cells.items():
        alone = [config for config in configs if (config.block_m, config.block_n) == cell]
        assert search(Gemm(256, 512, 1024), load_gpu("h200_sxm"), alone, best=1).best.time_s == each.time_s


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--pareto", "time,beauty"), "--pareto = 'beauty': must be one of smem, registers, l2, energy"),
        (("--figure", "tiles.gif"), "--figure"),
        (("--figure", "tiles.png", "--csv", "tiles.png"), "another file"),
    ],
)
def test_pictures_that_cannot_be_are_refused(args: tuple[str, ...], said: str) -> None:
    assert said in one_error(tilewalk("tiles", *SIZES, *args))


# Many products.
TABLE = "m,n,k,batch,dtype,count\n16,1024,512,,,5\n256,512,512,2,fp16,\n\n128,384,1024,,,2\n"


def table(tmp_path: Path, text: str) -> str:
    path = tmp_path / "shapes.csv"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_table_of_shapes_gets_the_best_of_each_and_a_set(tmp_path: Path) -> None:
    path = tmp_path / "best.csv"
    args = ("tiles", "--shapes", table(tmp_path, TABLE), "--at-most", "2", "--csv", str(path), "--json")
    found = json.loads(tilewalk(*args).stdout)
    works = [each["workload"] for each in found["gemms"]]
    assert [(w["m"], w["n"], w["k"], w["batch"], w["dtype"]) for w in works] == [
        (16, 1024, 512, 1, "bf16"),
        (256, 512, 512, 2, "fp16"),
        (128, 384, 1024, 1, "bf16"),
    ]
    assert [each["count"] for each in found["gemms"]] == [5, 1, 2]
    alone = json.loads(tilewalk("tiles", "128", "384", "1024", "--top", "1", "--json").stdout)
    assert found["gemms"][2]["best"]["name"] == alone["configurations"][0]["name"]
    assert len(found["set"]["configurations"]) <= 2
    assert found["set"]["loss"] >= 0
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["name"] for row in rows] == [each["best"]["name"] for each in found["gemms"]]
    assert {row["set_name"] for row in rows} == set(found["set"]["configurations"])


def test_the_options_of_the_product_hold_where_a_row_does_not_say(tmp_path: Path) -> None:
    text = "m,n,k,layout,epilogue\n64,64,64,nn,\n64,64,64,,bias\n"
    args = ("tiles", "--shapes", table(tmp_path, text), "--dtype", "fp16", "--l2", "warm", "--json")
    works = [each["workload"] for each in json.loads(tilewalk(*args).stdout)["gemms"]]
    assert [(w["layout"], w["epilogue"]) for w in works] == [("nn", "none"), ("tn", "bias")]
    assert {(w["dtype"], w["l2"]) for w in works} == {("fp16", "warm")}


def test_a_model_is_searched_at_several_batch_sizes() -> None:
    done = tilewalk(
        "tiles", "--model", "gpt2", "--phase", "decode", "--batch", "1,4", "--context", "64", "--at-most", "2"
    )
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("10 GEMMs of gpt2, decode, batches 1, 4 on NVIDIA H200")
    assert "2 configurations that serve all: " in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("m,n\n1,2\n", "line 1: column 'k' is missing"),
        ("m,n,k,tile\n1,2,3,4\n", "line 1: column 'tile'"),
        ("m,n,k,m\n1,2,3,4\n", "line 1: column 'm'"),
        ("m,n,k\n1,2,3\n4,x,6\n", "line 3: N = 'x'"),
        ("m,n,k\n1,2,3\n\n4,,6\n", "line 4: n: missing"),
        ("m,n,k\n1,2\n", "line 2: 2 cells, must be 3"),
        ("m,n,k,dtype\n1,2,3,bf15\n", "line 2: dtype = 'bf15'"),
        ("m,n,k,count\n1,2,3,0\n", "line 2: count = '0'"),
        ("m,n,k\n", "has no rows"),
        ("", "line 1: column 'm' is missing"),
        ("m,n,k\n1,2,\udcff\n", "can be read"),
    ],
)
def test_bad_rows_are_named_by_their_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "shapes.csv"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert said in one_error(tilewalk("tiles", "--shapes", str(path)))


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "M N K: must be given, or --shapes or --model"),
        (("1", "2"), "M N K: must be given"),
        ((*SIZES, "--at-most", "2"), "--at-most: needs --shapes or --model"),
        ((*SIZES, "--phase", "decode"), "--phase: needs --model"),
        (("--shapes", "none.csv"), "--shapes = 'none.csv': must be a table that can be read"),
        (("--shapes", "x.csv", "--model", "gpt2"), "--model with --shapes"),
        (("--shapes", "x.csv", "--tokens", "5"), "--shapes with --tokens"),
        (("--model", "gpt2", "--figure", "x.png"), "--model with --figure"),
        (("--model", "gpt2", "--all"), "--model with --all"),
        ((*SIZES, "--model", "gpt2"), "--model with M N K"),
        (("--model", "gpt2", "--layout", "nn"), "--model with --layout"),
        (("--model", "gpt2", "--phase", "dreaming"), "--phase = 'dreaming'"),
        (("--model", "gpt2", "--batch", "1,x"), "--batch = 'x'"),
        (("--model", "gpt2", "--batch", "1,2,1"), "--batch = '1,2,1': must be different sizes"),
        (("--model", "gpt2", "--at-most", "0"), "--at-most = '0'"),
        (("--model", "gpt9"), "gpt9"),
    ],
)
def test_many_that_cannot_be_are_refused(args: tuple[str, ...], said: str) -> None:
    assert said in one_error(tilewalk("tiles", *args))
