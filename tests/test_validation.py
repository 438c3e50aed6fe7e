"""Validation: does it read only what it may, score what it says, and refuse what is no table of kernels?

A stand-in for the simulator answers from a side table of the test, so every score has a closed form.
"""

from __future__ import annotations

import csv
import io
import json
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwmodels import load_gpu
from hwmodels.errors import ConfigError
from hwmodels.measured import measured_path
from sim.result import KernelResult, Result, Windows
from sim.schedule.config import KernelConfig
from sim.validation import columns, markdown, replay, roofline, tables, validate
from sim.validation.columns import SCHEMAS
from sim.validation.groups import base_name, names, subset
from sim.validation.replay import NSIGHT_OVERHEAD_US, Case, case_of
from sim.validation.scores import BASE_KEYS, COUNTER_KEYS, POINT_KEYS
from sim.validation.tables import read_table
from tests.tables import write_table

GPU: Any = SimpleNamespace(
    name="no_measurements",
    label="Of nobody",
    l2=SimpleNamespace(capacity_mib=60, partitions=2),
    tensor=SimpleNamespace(wgmma=True, cp_async=True),
    provenance={"hbm.row_cycles": ("cycles", "fitted", "tile_sweep.csv"), "sm.count": ("", "datasheet", "a sheet")},
    hbm=SimpleNamespace(row_cycles=0.055),
    persistent=SimpleNamespace(memset_us=0.6),
    launch=SimpleNamespace(graph_us=1.3, sync_us=9.0),
    kernel=SimpleNamespace(floor_us=0.7),
)
KERNEL = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_TNT"
Cells = dict[str, Any]


# Rows of the three tables, as cells.
def gemm_row(m: int, time_us: float, **changes: Any) -> Cells:
    return {
        "name": "llama3-8b.qkv",
        "op": "mm",
        "dtype": "bf16",
        "m": m,
        "n": 6144,
        "k": 4096,
        "layout": "tn",
        "l2": "cold",
        "time_us": time_us,
        "kernel": KERNEL,
        "kernel_us": time_us,
        "n_kernels": 1,
        "other_kernels": "",
        "grid": "2x66x1",
        "block": "384x1x1",
        "sm_mhz_after": 1980,
        **changes,
    }


def sweep_row(m: int, block_n: int, time_us: float, **changes: Any) -> Cells:
    tile = {"block_m": 128, "block_n": block_n, "block_k": 64, "stages": 3, "warps": 4, "group_m": 8}
    shape = {"m": m, "n": 4096, "k": 4096}
    return {**shape, **tile, "spills": 0, "time_us": time_us, "regs": 128, "smem": 98304, **changes}


def counters_row(m: int, **changes: Any) -> Cells:
    return {
        "library": "cublas",
        "m": m,
        "n": 4096,
        "k": 4096,
        "dtype": "bf16",
        **dict.fromkeys(columns.TILE_FIELDS, ""),
        "kernel": KERNEL,
        "grid": "(2,66,1)",
        "block": "(384,1,1)",
        "time_us": 100.0,
        "sm_mhz": 1600.0,
        "sm_cycles": 160_000,
        "dram_read_bytes": 1_000_000,
        "dram_write_bytes": 0,
        "l2_read_bytes_from_sm": 4_000_000,
        "l2_hit_pct": 70.0,
        "sm_received_bytes": 8_000_000,
        "tensor_active_pct": 50.0,
        **changes,
    }


def graph_row(m: int, time_us: float, **changes: Any) -> Cells:
    row = {"gpu": GPU.name, "dtype": "bf16", "m": m, "n": 6144, "k": 4096, "time_us": time_us, "t_sglang_us": time_us}
    return {**row, "regime": "compute", "cold_weights": 1, "trtllm_weight_copies": 5, **changes}


def event_row(m: int, time_us: float, **changes: Any) -> Cells:
    row = {"gpu": GPU.name, "op": "gemm", "dtype": "fp32", "m": m, "n": 640, "k": 512, "batch": 1, "time_us": time_us}
    name = {"impl": "volta_sgemm_128x64_tn", "tile_m": 128, "tile_n": 64}
    return {**row, **name, "grid_x": 5, "grid_y": -(-m // 64), "grid_z": 1, "block_x": 128, **changes}


# The stand-in for the simulator.
def make_result(time_us: float, *, name: str = "main", extra_us: float = 0.0, **changes: Any) -> Result:
    level = {"read": 0, "write": 0}
    fields: dict[str, Any] = {
        "sm_cycles": time_us * 1600,
        "sm_mhz": 1600.0,
        "config": {"family": "persistent"},
        "flops_executed": 0,
        "bytes": {"hbm": level, "l2": level, "sm": level},
        "requests": {},
        "lookups": {"accesses": 10, "hits": 5, "merged": 2, "misses": 3},
        "utilisation": {"tensor": 0.5},
        "waits": {},
        "occupancy": {},
        "waves": 1.0,
        "sampled": False,
        "n_events": 0,
        "windows": Windows(1, np.zeros((0, 7))),
    }
    main = KernelResult(name=name, time_s=time_us * 1e-6, **(fields | changes))
    kernels = (main, KernelResult(name="memset", time_s=extra_us * 1e-6, **fields)) if extra_us else (main,)
    total_s = (time_us + extra_us) * 1e-6
    return Result({}, {}, {}, kernels, total_s, total_s, 1, "hbm", ())


Answer = Callable[[Case], Result]


def answers(predicted_us: dict[Any, float], key: Callable[[Case], Any]) -> Answer:
    """A simulator that looks its answer up by `key` of the case, in times written down by the test."""
    return lambda case: make_result(predicted_us[key(case)])


def from_inputs(case: Case) -> Result:
    """A simulator whose answer depends on every input and on nothing else."""
    return make_result(1 + sum(repr((case.gemm, case.config, case.inputs)).encode()) / 1000)


@pytest.fixture(autouse=True)
def _parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernel names are another module's matter: one that says "unknown" is refused, all others are one kernel."""

    def named_config(inputs: tables.Inputs, gemm: Any) -> KernelConfig:
        if "unknown" in inputs.kernel:
            raise ConfigError(f"kernel name = {inputs.kernel!r}: not known")
        return KernelConfig("persistent", 256, 128, 64, 4, 12, name=inputs.kernel)

    monkeypatch.setattr(replay, "named_config", named_config)


def by_name(report: Any) -> dict[str, dict[str, Any]]:
    return {group["name"]: group for group in report.groups}


# Scores in closed form.
def test_errors_of_time_are_those_of_known_factors(tmp_path: Path) -> None:
    factors = {100: 1.1, 200: 1.2, 300: 0.9, 400: 0.5}
    path = write_table(tmp_path / "gemm.csv", [gemm_row(m, time_us=float(m)) for m in factors])
    report = validate(GPU, path, predict=answers({m: m * f for m, f in factors.items()}, lambda case: case.gemm.m))
    overall = report.overall
    assert overall["n"] == 4
    assert overall["mape_pct"] == pytest.approx((10 + 20 + 10 + 50) / 4)
    assert overall["bias_pct"] == pytest.approx((10 + 20 - 10 - 50) / 4)
    assert overall["median_ape_pct"] == pytest.approx((10 + 20) / 2)
    assert overall["p95_ape_pct"] == pytest.approx(20 + 0.85 * (50 - 20))
    assert [row["m"] for row in overall["worst"]][:2] == [400, 200]
    assert overall["worst"][0]["predicted_us"] == pytest.approx(200)
    assert overall["worst"][0]["row"] == 5
    assert overall["kendall_tau"] is None


def test_groups_hold_the_rows_they_name(tmp_path: Path) -> None:
    rows = [
        gemm_row(64, 20.0),
        gemm_row(64, 8.0, l2="warm"),
        gemm_row(8, 5.0, name="random.q8", dtype="fp8"),
        gemm_row(512, 50.0, name="square", op="addmm_gelu", layout="nn"),
        gemm_row(512, 51.0, k=4097, kernel="x_splitK_y"),
    ]
    report = validate(GPU, write_table(tmp_path / "gemm.csv", rows), predict=lambda case: make_result(10.0))
    sizes = {name: group["n"] for name, group in by_name(report).items()}
    assert sizes == {
        "bf16 tn cold mm LLM-shaped": 2,
        "bf16 tn cold mm LLM-shaped, shapes not fitted": 1,
        "bf16 tn cold mm LLM-shaped nvjet": 1,
        "all bf16": 4,
        "all bf16, shapes not fitted": 1,
        "bf16 tn warm mm LLM-shaped": 1,
        "bf16 tn warm mm LLM-shaped nvjet": 1,
        "shapes not fitted": 1,
        "any kernel under 10 us": 2,
        "warm L2": 1,
        "all fp8": 1,
        "GEMV-like (m <= 16)": 1,
        "layouts nn, nt and tt": 1,
        "fused epilogues": 1,
        "split-K": 1,
        "split-K, shapes not fitted": 1,
        "misaligned rows": 1,
        "misaligned rows, shapes not fitted": 1,
        "bf16 tn cold mm llama3-8b": 2,
        "bf16 tn warm mm llama3-8b": 1,
        "fp8 tn cold mm random": 1,
        "bf16 nn cold addmm_gelu square": 1,
    }
    assert by_name(report)["warm L2"]["mape_pct"] == pytest.approx(25)


def test_tau_and_regret_are_means_over_shapes(tmp_path: Path) -> None:
    measured = {16: 10.0, 32: 11.0, 64: 12.0, 128: 13.0}
    rows = [sweep_row(m, block_n, t) for m in (4096, 2048) for block_n, t in measured.items()]
    predicted = {(4096, n): t for n, t in measured.items()} | {(2048, n): 30 - t for n, t in measured.items()}
    simulator = answers(predicted, lambda case: (case.gemm.m, case.config and case.config.block_n))
    report = validate(GPU, write_table(tmp_path / "sweep.csv", rows), predict=simulator)
    right, reversed_ = by_name(report)["bf16 4096x4096x4096"], by_name(report)["bf16 2048x4096x4096"]
    assert (right["kendall_tau"], right["regret_pct"], right["regret_top3_pct"]) == (1.0, 0.0, 0.0)
    assert reversed_["kendall_tau"] == pytest.approx(-1)
    assert reversed_["regret_pct"] == pytest.approx(30)
    assert reversed_["regret_top3_pct"] == pytest.approx(10)
    assert report.overall["kendall_tau"] == pytest.approx(0)
    assert report.overall["regret_pct"] == pytest.approx(15)
    assert report.overall["regret_worst_pct"] == pytest.approx(30)
    assert report.overall["regret_top3_pct"] == pytest.approx(5)


def test_counters_compare_each_quantity(tmp_path: Path) -> None:
    levels = {
        "hbm": {"read": 1_200_000, "write": 7},
        "l2": {"read": 3_000_000, "write": 0},
        "sm": {"read": 8_800_000, "write": 0},
    }
    path = write_table(tmp_path / "counters.csv", [counters_row(4096)])
    time_us = 110 - NSIGHT_OVERHEAD_US
    simulator = lambda case: make_result(time_us, bytes=levels, sm_mhz=1680.0, sm_cycles=time_us * 1680)  # noqa: E731
    scores = validate(GPU, path, predict=simulator).overall
    assert scores["mape_pct"] == pytest.approx(10)
    assert scores["sm_cycles_mape_pct"] == pytest.approx(100 * (110 * 1680 / 160_000 - 1))
    assert scores["sm_mhz_mape_pct"] == pytest.approx(5)
    assert scores["dram_read_bytes_mape_pct"] == pytest.approx(20)
    assert scores["dram_write_bytes_mape_pct"] is None  # the only row measured none
    assert scores["l2_read_bytes_mape_pct"] == pytest.approx(25)
    assert scores["sm_received_bytes_mape_pct"] == pytest.approx(10)
    assert scores["l2_hit_points"] == pytest.approx(0)
    assert scores["tensor_active_points"] == pytest.approx(50 * NSIGHT_OVERHEAD_US / 110)


def test_a_memset_is_added_to_the_call_once(tmp_path: Path) -> None:
    rows = [gemm_row(64, 100.0), gemm_row(128, 100.0, other_kernels="Memset (Device)|Memset (Device)")]
    path = write_table(tmp_path / "gemm.csv", rows)
    plain = validate(GPU, path, predict=lambda case: make_result(100.0)).overall
    assert plain["bias_pct"] == pytest.approx(2 * GPU.persistent.memset_us / 2)
    modelled = validate(GPU, path, predict=lambda case: make_result(100.0, extra_us=4.0)).overall
    assert modelled["bias_pct"] == pytest.approx(4)


def test_json_has_the_stated_keys_and_only_plain_values(tmp_path: Path) -> None:
    tables_of = {"gemm": gemm_row(64, 9.0), "tile_sweep": sweep_row(64, 64, 9.0), "counters": counters_row(64)}
    for kind, row in tables_of.items():
        report = validate(GPU, write_table(tmp_path / f"{kind}.csv", [row]), predict=from_inputs)
        read = json.loads(json.dumps(report.to_dict(), allow_nan=False))
        keys = {*BASE_KEYS, *COUNTER_KEYS, *POINT_KEYS} if kind == "counters" else set(BASE_KEYS)
        assert set(read) == {"groups", "overall", "skipped"}
        assert all(set(scores) == keys for scores in [*read["groups"], read["overall"]])
        assert read["overall"]["kind"] == kind


# A prediction reads inputs only.
MEASURED = {kind: list(schema.measured) for kind, schema in SCHEMAS.items()}


def scrambled(rows: list[Cells], columns: Iterable[str]) -> list[Cells]:
    """Measured values moved to other rows and multiplied, the rest untouched."""
    random = np.random.default_rng(7)
    changed = [dict(row) for row in rows]
    for column in columns:
        for row, source in zip(changed, random.permutation(len(rows)), strict=True):
            row[column] = float(rows[source][column] or 1) * float(random.uniform(0.1, 10))
    return changed


def sample_tables() -> dict[str, list[Cells]]:
    tile: Cells = dict(zip(columns.TILE_FIELDS, (128, 64, 64, 3, 4, 8), strict=True))
    triton = {"library": "triton", "kernel": "mm_kernel", **tile}
    return {
        "gemm": [gemm_row(m, 10.0 + m) for m in (16, 64, 256, 1024)],
        "tile_sweep": [sweep_row(1024, n, 50.0 - n / 8) for n in (32, 64, 128, 256)],
        "counters": [counters_row(64), counters_row(128, **triton), counters_row(256, l2_hit_pct=10.0)],
        "graph_gemm": [graph_row(m, 10.0 + m) for m in (16, 64, 256, 1024)],
        "event_gemm": [event_row(m, 10.0 + m) for m in (16, 64, 256, 1024)],
    }


@pytest.mark.parametrize("tile", [None, "auto", "bound"])
@pytest.mark.parametrize("kind", list(SCHEMAS))
def test_predictions_do_not_change_when_the_measured_columns_are_scrambled(
    tmp_path: Path, kind: str, tile: str | None
) -> None:
    rows = sample_tables()[kind]
    measured = [*MEASURED[kind], *(["kernel_us", "sm_mhz_after"] if kind == "gemm" else [])]
    seen = []
    for name, cells in (("plain", rows), ("scrambled", scrambled(rows, measured))):
        table = read_table(write_table(tmp_path / f"{name}.csv", cells))
        seen.append((table, replay.replay([row.inputs for row in table.rows], GPU, from_inputs, tile=tile)))
    (plain, predicted), (mixed, predicted_again) = seen
    assert [row.measured for row in plain.rows] != [row.measured for row in mixed.rows]
    assert [row.inputs for row in plain.rows] == [row.inputs for row in mixed.rows]
    assert predicted == predicted_again
    assert len(set(map(repr, predicted))) > (0 if tile else 1)


def test_inputs_have_no_measured_field() -> None:
    measured = {column for columns in MEASURED.values() for column in columns} | {"kernel_us", "reduce_us"}
    assert not measured & set(tables.Inputs.__dataclass_fields__)
    assert {"regs", "smem", "spills"} & set(SCHEMAS["gemm"].inputs | SCHEMAS["gemm"].optional) == set()


def test_auto_drops_the_kernel_before_anything_reads_it(tmp_path: Path) -> None:
    rows = [sweep_row(1024, 64, 20.0), sweep_row(1024, 128, 16.0), sweep_row(2048, 64, 40.0)]
    asked: list[Case] = []

    def simulator(case: Case) -> Result:
        asked.append(case)
        return make_result(20.0)

    report = validate(GPU, write_table(tmp_path / "sweep.csv", rows), tile="auto", predict=simulator, threads=1)
    assert [(case.gemm.m, case.config, case.family) for case in asked] == [
        (1024, None, "multistage"),
        (2048, None, "multistage"),
    ]
    assert all(case.inputs.block_n is None and case.inputs.regs is None for case in asked)
    assert report.overall["n"] == 2
    assert report.overall["bias_pct"] == pytest.approx((25 - 50) / 2)
    assert [entry["row"] for entry in report.skipped] == [2]
    limited = validate(GPU, tmp_path / "sweep.csv", tile="auto", predict=simulator, limit=1)
    assert limited.overall["worst"][0]["block_n"] in (128, 64)  # never the slower tile of 1024
    assert limited.overall["worst"][0]["row"] != 2
    unknown = write_table(tmp_path / "gemm.csv", [gemm_row(64, 9.0, kernel="unknown")])
    assert validate(GPU, unknown, tile="auto", predict=simulator).overall["n"] == 1


# From a row to a question.
def inputs_of(tmp_path: Path, row: Cells) -> tables.Inputs:
    return read_table(write_table(tmp_path / "one.csv", [row])).rows[0].inputs


def test_types_operations_and_states_become_a_workload(tmp_path: Path) -> None:
    gemm = replay.gemm_of(inputs_of(tmp_path, gemm_row(64, 9.0, dtype="int8", op="addmm", l2="warm", layout="nt")))
    assert (gemm.dtype, gemm.result_dtype, gemm.epilogue, gemm.l2, gemm.layout) == (
        "int8",
        "int32",
        "bias",
        "warm",
        "nt",
    )
    gemm = replay.gemm_of(inputs_of(tmp_path, gemm_row(64, 9.0, dtype="fp8", op="addmm_gelu")))
    assert (gemm.dtype, gemm.result_dtype, gemm.epilogue) == ("fp8_e4m3", "bf16", "bias_gelu")


def test_a_sweep_row_is_a_cp_async_ring(tmp_path: Path) -> None:
    config = case_of(inputs_of(tmp_path, sweep_row(1024, 256, 9.0, spills=3)), GPU, None).config
    assert config is not None
    assert (config.family, config.loads, config.mma, config.group) == ("multistage", "cp_async", "wgmma", 8)
    assert (config.registers_per_thread, config.smem_bytes, config.spill_bytes_per_thread) == (128, 98304, 12)
    small = case_of(inputs_of(tmp_path, sweep_row(1024, 256, 9.0, block_m=32)), GPU, None).config
    assert small is not None
    assert small.mma == "mma_sync"


@pytest.mark.parametrize(("m", "state"), [(64, "warm"), (128, "warm"), (256, "cold")])
def test_a_sweep_is_warm_where_its_rotation_fits(tmp_path: Path, m: int, state: str) -> None:
    # 12 (m + n) k * 2 bytes against half of 60 MiB: n = k = 1024 fits up to m = 256
    row = sweep_row(m, 64, 9.0, n=1024, k=1024 if m < 256 else 1100)
    assert case_of(inputs_of(tmp_path, row), GPU, None).gemm.l2 == state


# Rows that cannot be used are named; files that cannot be used are refused in one line.
def test_rows_that_cannot_be_modelled_are_skipped_with_the_reason(tmp_path: Path) -> None:
    rows = [gemm_row(64, 9.0), gemm_row(128, 9.0, kernel="unknown"), gemm_row(10**6, 9.0), gemm_row(256, 9.0)]

    def simulator(case: Case) -> Result:
        if case.gemm.m == 256:
            raise ConfigError("tile = 256x128: too large")
        return make_result(9.0)

    report = validate(GPU, write_table(tmp_path / "gemm.csv", rows), predict=simulator)
    assert report.overall["n"] == 1
    assert [entry["row"] for entry in report.skipped] == [3, 4, 5]
    assert "not known" in report.skipped[0]["reason"]
    assert "1000000" in report.skipped[1]["reason"]
    assert report.skipped[2]["reason"] == "tile = 256x128: too large"
    assert report.skipped_by_group["all bf16"] == 2


def test_an_error_that_is_no_refusal_is_not_swallowed(tmp_path: Path) -> None:
    path = write_table(tmp_path / "gemm.csv", [gemm_row(64, 9.0)])
    with pytest.raises(ZeroDivisionError):
        validate(GPU, path, predict=lambda case: make_result(1 / 0))


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("time_us", "nan", "finite"),
        ("time_us", "-1", "finite"),
        ("time_us", "0", "above 0"),
        ("time_us", "1e400", "finite"),
        ("time_us", "fast", "number"),
        ("time_us", "", "blank"),
        ("m", "0", "from 1"),
        ("m", "-4", "from 1"),
        ("m", "inf", "integer"),
        ("m", "many", "integer"),
        ("m", "1.5", "integer"),
        ("m", "9" * 400, "integer"),
        ("dtype", "fp7", "bf16"),
        ("layout", "xx", "tn"),
        ("op", "conv", "addmm"),
        ("l2", "lukewarm", "cold"),
        ("grid", "8x4", "three integers"),
    ],
)
def test_a_bad_row_is_skipped_by_name(tmp_path: Path, column: str, value: str, reason: str) -> None:
    rows = [gemm_row(64, 9.0), gemm_row(128, 9.0) | {column: value}, gemm_row(256, 9.0)]
    report = validate(GPU, write_table(tmp_path / "gemm.csv", rows), predict=lambda case: make_result(9.0))
    assert report.overall["n"] == 2
    assert [entry["row"] for entry in report.skipped] == [3]
    assert column in report.skipped[0]["reason"]
    assert reason in report.skipped[0]["reason"]


def test_rows_cut_short_or_run_together_are_skipped(tmp_path: Path) -> None:
    path = write_table(tmp_path / "gemm.csv", [gemm_row(64, 9.0), gemm_row(128, 9.0)])
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[1] + ",1", '"open,' + lines[1], lines[1], lines[2][:30]]))
    table = read_table(path)
    assert len(table.rows) == 2
    assert [entry["row"] for entry in table.skipped] == [4, 5]
    assert "fields" in table.skipped[0]["reason"]
    assert "3 lines" in table.skipped[1]["reason"]


def test_bom_windows_line_ends_blank_lines_and_extra_columns_do_no_harm(tmp_path: Path) -> None:
    rows = [gemm_row(64, 9.0, note="mine"), gemm_row(128, 9.0, note="too")]
    plain = write_table(tmp_path / "plain.csv", rows)
    other = tmp_path / "other.csv"
    other.write_bytes(b"\xef\xbb\xbf" + plain.read_text().replace("\n", "\r\n\r\n").encode())
    assert [row.inputs for row in read_table(other).rows] == [row.inputs for row in read_table(plain).rows]


def text_of(rows: list[Cells]) -> bytes:
    stream = io.StringIO()
    csv.writer(stream).writerows([list(rows[0]), *([row[key] for key in rows[0]] for row in rows)])
    return stream.getvalue().encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"\n\n", "empty"),
        (text_of([gemm_row(64, 9.0)]).splitlines()[0], "no rows"),
        (bytes(range(256)) * 8, "binary"),
        (text_of([gemm_row(64, 9.0)]) + b"\xff\xfe", "UTF-8"),
        (b"a,b,c\n1,2,3\n", "no known table"),
        (text_of([gemm_row(64, 9.0)]).replace(b"time_us", b"zeit", 1), "column time_us"),
        (text_of([counters_row(64)]).replace(b"l2_hit_pct", b"hits", 1), "column l2_hit_pct"),
        (text_of([sweep_row(64, 64, 9.0)]).replace(b"warps", b"teams", 1), "column warps"),
        (text_of([gemm_row(64, 9.0)]).replace(b"block", b"grid", 1), "'grid' appears twice"),
        (text_of([gemm_row(64, 9.0)]) + b'"' + b"x" * 200_000, "not a CSV file"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        validate(GPU, path, predict=from_inputs)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_files_too_large_missing_or_no_file_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = tmp_path / "large.csv"
    with large.open("wb") as stream:
        stream.write(text_of([gemm_row(64, 9.0)]))
        stream.truncate(10**9)  # sparse: 1 GB takes no room
    started = time.perf_counter()
    for path, message in ((large, "at most 67108864 bytes"), (tmp_path, "existing"), (tmp_path / "none", "existing")):
        with pytest.raises(ConfigError, match=message):
            validate(GPU, path, predict=from_inputs)
    assert time.perf_counter() - started < 1
    monkeypatch.setattr(tables, "MAX_ROWS", 3)
    with pytest.raises(ConfigError, match="more than 3 rows"):
        read_table(write_table(tmp_path / "long.csv", [gemm_row(64, 9.0)] * 4))


@pytest.mark.parametrize("options", [{"tile": "best"}, {"limit": 0}, {"threads": 0}, {"threads": 1000}])
def test_bad_options_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    path = write_table(tmp_path / "gemm.csv", [gemm_row(64, 9.0)])
    with pytest.raises(ConfigError, match=next(iter(options))):
        validate(GPU, path, predict=from_inputs, **options)


HEADERS = [",".join(gemm_row(1, 1.0)), ",".join(sweep_row(1, 1, 1.0)), ",".join(counters_row(1))]


@given(header=st.sampled_from([*HEADERS, ""]), body=st.one_of(st.text(max_size=200), st.binary(max_size=200)))
def test_no_file_whatever_brings_anything_but_a_table_or_a_refusal(
    tmp_path_factory: pytest.TempPathFactory, header: str, body: str | bytes
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "file.csv"
    raw = body if isinstance(body, bytes) else body.encode("utf-8", "surrogatepass")
    path.write_bytes(header.encode() + b"\n" + raw)
    try:
        table = read_table(path)
    except ConfigError as error:
        n_lines = len(str(error).splitlines())
    else:
        n_lines = 1 if table.rows or table.skipped else 0
    assert n_lines == 1


# Order, threads, limits, interrupts.
def test_the_outcome_does_not_depend_on_the_threads(tmp_path: Path) -> None:
    path = write_table(tmp_path / "gemm.csv", [gemm_row(m, 10.0 + m % 7) for m in range(1, 25)])

    def uneven(case: Case) -> Result:
        time.sleep(0.002 * (case.gemm.m % 3))
        return from_inputs(case)

    reports = [validate(GPU, path, predict=uneven, threads=threads).to_dict() for threads in (1, 2, 5)]
    assert reports[0] == reports[1] == reports[2]


def test_progress_counts_every_row_once(tmp_path: Path) -> None:
    path = write_table(tmp_path / "gemm.csv", [gemm_row(m, 10.0) for m in (64, 64, 128, 256)])
    calls: list[tuple[int, int]] = []
    validate(GPU, path, predict=from_inputs, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_an_interrupt_drops_what_has_not_started(tmp_path: Path) -> None:
    path = write_table(tmp_path / "gemm.csv", [gemm_row(m, 10.0) for m in range(1, 201)])
    asked: list[int] = []
    lock = threading.Lock()

    def slow(case: Case) -> Result:
        with lock:
            asked.append(case.gemm.m)
        time.sleep(0.01)
        return make_result(1.0)

    def interrupt(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        validate(GPU, path, predict=slow, progress=interrupt)
    time.sleep(0.05)
    assert len(asked) < 20


def test_a_limit_is_stratified_and_reads_no_measurement(tmp_path: Path) -> None:
    rows = [gemm_row(m, 1.0 + m) for m in range(1, 61)]
    rows += [gemm_row(m, 1.0 + m, name="random.q8") for m in range(1, 31)]
    rows += [gemm_row(m, 1.0 + m, dtype="fp8") for m in range(1, 11)]
    plain = subset(read_table(write_table(tmp_path / "a.csv", rows)).rows, 10)
    mixed = subset(read_table(write_table(tmp_path / "b.csv", scrambled(rows, ["time_us"]))).rows, 10)
    assert [row.inputs for row in plain] == [row.inputs for row in mixed]
    assert [row.line for row in plain] == sorted({row.line for row in plain})
    strata = [base_name(row.inputs) for row in plain]
    assert {name: strata.count(name) for name in strata} == {
        "bf16 tn cold mm llama3-8b": 6,
        "bf16 tn cold mm random": 3,
        "fp8 tn cold mm llama3-8b": 1,
    }
    report = validate(GPU, tmp_path / "a.csv", predict=from_inputs, limit=10)
    assert report.overall["n"] == 10
    assert "10 of 100 rows" in report.notes[0]


# The control.
def test_the_roofline_recovers_the_constants_of_synthetic_times() -> None:
    random = np.random.default_rng(3)
    flops = 10 ** random.uniform(6, 12, 200)
    n_bytes = 10 ** random.uniform(4, 9, 200)
    truth = roofline.Roofline(2.5, 7e8, 4e6)
    time_us = np.array([truth.time_us(f, b) for f, b in zip(flops, n_bytes, strict=True)])
    time_us[::10] *= 3  # outliers, which a median ignores
    found = roofline.fit(flops, n_bytes, time_us)
    assert found.t0_us == pytest.approx(2.5, rel=0.01)
    assert found.flops_per_us == pytest.approx(7e8, rel=0.01)
    assert found.bytes_per_us == pytest.approx(4e6, rel=0.01)


def control_rows(tmp_path: Path, spoiled_fold: int | None = None) -> tuple[tables.Row, ...]:
    rows = []
    for m in range(8, 8 * 61, 8):
        truth_us = 2 + max(2 * m * 6144 * 4096 / 7e8, 2 * (m * (6144 + 4096) + 6144 * 4096) / 4e6)
        factor = 50 if roofline.fold(m, 6144, 4096) == spoiled_fold else 1
        rows.append(gemm_row(m, truth_us * factor))
        rows.append(gemm_row(m, truth_us * factor, layout="nn"))
    return read_table(write_table(tmp_path / f"control{spoiled_fold}.csv", rows)).rows


def test_folds_are_whole_shapes_and_all_are_used(tmp_path: Path) -> None:
    rows = control_rows(tmp_path)
    folds: dict[tuple[int, int, int], set[int]] = {}
    for row in rows:
        folds.setdefault((row.inputs.m, row.inputs.n, row.inputs.k), set()).add(roofline.fold_of(row.inputs))
    assert all(len(found) == 1 for found in folds.values())
    assert set().union(*folds.values()) == set(range(roofline.N_FOLDS))
    assert roofline.fold(4096, 4096, 4096) == 3  # pinned: the folds of published figures may not move


@pytest.mark.parametrize("held_out", range(roofline.N_FOLDS))
def test_the_roofline_of_a_row_has_not_seen_its_shape(tmp_path: Path, held_out: int) -> None:
    honest = roofline.Control(control_rows(tmp_path))
    spoiled = roofline.Control(control_rows(tmp_path, spoiled_fold=held_out))
    inside = [row for row in control_rows(tmp_path) if roofline.fold_of(row.inputs) == held_out]
    assert inside
    assert [spoiled.time_us(row.inputs) for row in inside] == [honest.time_us(row.inputs) for row in inside]


def test_a_class_with_few_rows_has_no_roofline(tmp_path: Path) -> None:
    control = roofline.Control(control_rows(tmp_path))
    inputs = control_rows(tmp_path)[0].inputs
    warm = inputs_of(tmp_path, gemm_row(inputs.m, 1.0, l2="warm"))
    fp8 = inputs_of(tmp_path, gemm_row(inputs.m, 1.0, dtype="fp8"))
    assert control.time_us(warm) == control.time_us(inputs)  # too few of its own, so the data type's
    assert control.time_us(fp8) is None


def test_the_roofline_stands_beside_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control = roofline.Control(control_rows(tmp_path))
    monkeypatch.setattr("sim.validation.run.shipped_control", lambda gpu, kind: control)
    rows = [gemm_row(m, 2 * cast(float, control.time_us(inputs_of(tmp_path, gemm_row(m, 1.0))))) for m in (64, 128)]
    overall = validate(GPU, write_table(tmp_path / "gemm.csv", rows), predict=from_inputs).overall
    assert overall["roofline_mape_pct"] == pytest.approx(50)
    mixed = [*rows, gemm_row(64, 9.0, dtype="fp8")]
    report = validate(GPU, write_table(tmp_path / "mixed.csv", mixed), predict=from_inputs)
    assert report.overall["roofline_mape_pct"] is None
    assert by_name(report)["all bf16"]["roofline_mape_pct"] == pytest.approx(50)


# What a person reads.
def test_tables_and_markdown_say_what_was_found(tmp_path: Path) -> None:
    rows = [gemm_row(m, 10.0) for m in range(1, 8)] + [gemm_row(64, 10.0, kernel="unknown|x")]
    report = validate(GPU, write_table(tmp_path / "gemm.csv", rows), predict=lambda case: make_result(11.0))
    header, lines = report.table()
    assert header[:5] == ["group", "n", "skipped", "MAPE %", "median %"]
    assert "Kendall tau" not in header
    assert lines[-1][:4] == ["all rows", "7", "1", "10.0"]
    page = markdown([report])
    assert "gemm.csv: 7 rows compared, 1 skipped (12.5 %)" in page
    assert "unknown\\|x" in page
    assert "| hbm.row_cycles | 0.055 | cycles | tile_sweep.csv |" in page
    assert "sm.count" not in page
    assert "no roofline" in page


# The shipped tables and the real simulator.
SHIPPED = {
    ("h200_sxm", "gemm"): 961,
    ("h200_sxm", "tile_sweep"): 1377,
    ("h200_sxm", "counters"): 544,
    ("a100_sxm_80gb", "graph_gemm"): 600,
    ("h100_sxm", "graph_gemm"): 600,
    ("l40s", "graph_gemm"): 600,
    ("a100_pcie_40gb", "event_gemm"): 240,
    ("v100_pcie_32gb", "event_gemm"): 309,
    ("t4", "event_gemm"): 252,
}


@pytest.mark.parametrize(("gpu", "kind"), list(SHIPPED))
def test_shipped_tables_are_read_without_a_loss(gpu: str, kind: str) -> None:
    table = read_table(measured_path(gpu, kind), load_gpu(gpu))
    assert (table.kind, table.skipped, table.other_gpus) == (kind, (), {})
    assert len(table.rows) == SHIPPED[gpu, kind]
    assert all(names(row) for row in table.rows)


def test_shipped_rows_name_kernels_that_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the real parser
    for name, kind in SHIPPED:
        gpu = load_gpu(name)
        rows = read_table(measured_path(name, kind), gpu).rows
        refused = [case for row in rows if isinstance(case := replay.case_or_reason(row.inputs, gpu, None), str)]
        assert len(refused) <= 0.02 * len(rows)
        assert all("not modelled" in reason for reason in refused)


def test_the_real_simulator_does_not_see_the_measured_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the real parser
    gpu = load_gpu("h200_sxm")
    rows: list[Cells] = [gemm_row(m, 10.0 + m, n=1024, k=1024) for m in (256, 512)]
    sweep = [sweep_row(256, n, 10.0 + n, n=1024, k=1024) for n in (64, 128)]
    counters = [counters_row(m, n=1024, k=1024) for m in (256, 512)]
    for kind, cells in (("gemm", rows), ("tile_sweep", sweep), ("counters", counters)):
        found = []
        for name, changed in (("plain", cells), ("scrambled", scrambled(cells, MEASURED[kind]))):
            table = read_table(write_table(tmp_path / f"{kind}-{name}.csv", changed))
            found.append(replay.replay([row.inputs for row in table.rows], gpu, replay.simulator(gpu)))
        assert found[0] == found[1]
        assert not any(isinstance(item, str) for item in found[0])
