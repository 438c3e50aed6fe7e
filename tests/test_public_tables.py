"""Tables of several GPUs that others measured: whose rows are taken, what their times mean, what carries over."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hwmodels import load_gpu, measured_path
from hwmodels.errors import ConfigError
from sim.schedule.menu import menu
from sim.validation import carried, replay, validate
from sim.validation.groups import base_name, is_split_k
from sim.validation.replay import Case, case_of
from sim.validation.tables import Inputs, is_called, read_table
from tests.tables import write_table
from workloads.gemm import Gemm

A100 = load_gpu("a100_sxm_80gb")
Cells = dict[str, Any]


def graph_row(m: int, n: int = 512, k: int = 512, **changes: Any) -> Cells:
    row = {"gpu": "A100-SXM4-80GB", "dtype": "bf16", "m": m, "n": n, "k": k, "time_us": 10.0}
    return {**row, "regime": "memory", "cold_weights": 0, "trtllm_weight_copies": 5, **changes}


def event_row(m: int, n: int = 130, k: int = 64, **changes: Any) -> Cells:
    row = {"gpu": "V100-PCIE-32GB", "op": "gemm", "dtype": "fp32", "m": m, "n": n, "k": k, "batch": 1, "time_us": 300.0}
    name = {"impl": "volta_sgemm_128x64_tn", "tile_m": 128, "tile_n": 64}
    return {**row, **name, "grid_x": 2, "grid_y": -(-m // 64), "grid_z": 1, "block_x": 128, **changes}


def inputs_of(tmp_path: Path, row: Cells) -> Inputs:
    return read_table(write_table(tmp_path / "one.csv", [row])).rows[0].inputs


def made(time_us: float, n_kernels: int = 1) -> Any:
    """A result of so many kernels, that long together."""
    level = {"read": 0, "write": 0}
    kernel = SimpleNamespace(
        name="main",
        time_s=time_us * 1e-6 / n_kernels,
        sm_cycles=1.0,
        sm_mhz=1000.0,
        bytes={"hbm": level, "l2": level, "sm": level},
        lookups={"accesses": 0, "hits": 0, "merged": 0},
        utilisation={"tensor": 0.0},
    )
    return SimpleNamespace(main=kernel, kernels=(kernel,) * n_kernels, time_s=time_us * 1e-6, limiter="hbm")


# Whose rows.
def test_rows_of_other_gpus_are_left_out_and_said_once(tmp_path: Path) -> None:
    rows = [graph_row(16), *[graph_row(m, gpu="L40S") for m in (32, 64)], graph_row(128, gpu="H100-SXM5-80GB")]
    report = validate(A100, write_table(tmp_path / "public.csv", rows), predict=lambda case: made(9.0))
    assert (report.overall["n"], report.skipped, report.n_rows) == (1, (), 1)
    assert "3 rows of other GPUs left out (H100-SXM5-80GB, L40S)." in report.notes


def test_a_table_without_a_row_of_the_gpu_is_refused_in_one_line(tmp_path: Path) -> None:
    path = write_table(tmp_path / "public.csv", [graph_row(16), graph_row(16, gpu="H100-SXM5-80GB")])
    with pytest.raises(ConfigError, match=r"no row of gpu = t4 .*'A100-SXM4-80GB', 'H100-SXM5-80GB'") as caught:
        validate(load_gpu("t4"), path, predict=lambda case: made(9.0))
    assert "\n" not in str(caught.value)


def test_an_unreadable_row_of_another_gpu_is_not_this_ones(tmp_path: Path) -> None:
    rows = [graph_row(16), graph_row(32, gpu="L40S", time_us="fast"), graph_row(64, time_us="fast")]
    report = validate(A100, write_table(tmp_path / "public.csv", rows), predict=lambda case: made(9.0))
    assert [entry["row"] for entry in report.skipped] == [4]


@pytest.mark.parametrize(
    ("text", "gpu"),
    [
        ("A100-SXM4-80GB", "a100_sxm_80gb"),
        ("NVIDIA A100-SXM4-80GB", "a100_sxm_80gb"),
        ("H100-SXM5-80GB", "h100_sxm"),
        ("L40S", "l40s"),
        ("l40s", "l40s"),
        ("Tesla T4", "t4"),
        ("V100-PCIE-32GB", "v100_pcie_32gb"),
        ("A100-PCIE-40GB", "a100_pcie_40gb"),
        ("h200_sxm", "h200_sxm"),
        ("L40", None),
        ("H100", None),
        ("P100-PCIE-16GB", None),
        ("", None),
    ],
)
def test_a_name_means_one_gpu_or_none(text: str, gpu: str | None) -> None:
    shipped = ("a100_pcie_40gb", "a100_sxm_80gb", "h100_pcie", "h100_sxm", "h200_sxm", "l40s", "t4", "v100_pcie_32gb")
    assert [name for name in shipped if is_called(load_gpu(name), text)] == ([gpu] if gpu else [])


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [("m", "0", "from 1"), ("time_us", "nan", "finite"), ("dtype", "fp7", "bf16"), ("regime", "cosy", "memory")],
)
def test_a_bad_cell_is_skipped_by_name(tmp_path: Path, column: str, value: str, reason: str) -> None:
    table = read_table(write_table(tmp_path / "public.csv", [graph_row(16), graph_row(32) | {column: value}]), A100)
    assert len(table.rows) == 1
    assert column in table.skipped[0]["reason"]
    assert reason in table.skipped[0]["reason"]


@pytest.mark.parametrize(("column", "value"), [("op", "conv"), ("grid_z", "0"), ("batch", "1.5"), ("block_x", "")])
def test_a_bad_launch_is_skipped_by_name(tmp_path: Path, column: str, value: str) -> None:
    table = read_table(write_table(tmp_path / "public.csv", [event_row(64) | {column: value}]))
    assert column in table.skipped[0]["reason"]


# From a row to a question.
def test_a_kernel_nobody_named_is_chosen_by_the_bound(tmp_path: Path) -> None:
    inputs = inputs_of(tmp_path, graph_row(64))
    assert (case_of(inputs, A100, None).config, case_of(inputs, A100, None).tile) == (None, "bound")
    assert case_of(inputs, A100, "auto").tile == "auto"


@pytest.mark.parametrize(("n", "state"), [(1024, "warm"), (1025, "cold")])
def test_a_graph_is_warm_where_its_weights_fit(tmp_path: Path, n: int, state: str) -> None:
    # (m k + 6 n k + m n) 2 B with k = 1536 and m = 677 against half of 40 MiB: n = 1024 fits with 720 B to spare
    capacity = A100.l2.capacity_mib * 2**20 / A100.l2.partitions
    m = int((capacity / 2 - 6 * 1024 * 1536) / (1536 + 1024))
    assert case_of(inputs_of(tmp_path, graph_row(m, n, 1536)), A100, None).gemm.l2 == state


def test_a_linear_layer_and_a_batched_product(tmp_path: Path) -> None:
    gpu = load_gpu("v100_pcie_32gb")
    linear = case_of(inputs_of(tmp_path, event_row(100, grid_z=3)), gpu, None)
    assert (linear.gemm.layout, linear.gemm.epilogue, linear.gemm.batch) == ("tn", "bias", 1)
    assert linear.config is not None
    assert (linear.config.block_m, linear.config.block_n, linear.config.warps) == (64, 128, 4)
    assert (linear.config.mma, linear.config.family, linear.config.split_k) == ("fma", "split_k", 3)
    name = "volta_sgemm_128x64_nn"
    bmm = case_of(inputs_of(tmp_path, event_row(100, op="bmm", batch=7, grid_z=7, impl=name)), gpu, None)
    assert (bmm.gemm.layout, bmm.gemm.epilogue, bmm.gemm.batch) == ("nn", "none", 7)
    assert bmm.config is not None
    assert (bmm.config.family, bmm.config.split_k) == ("multistage", 1)
    assert [is_split_k(linear.inputs), is_split_k(bmm.inputs)] == [True, False]
    assert base_name(bmm.inputs) == "fp32 bmm volta_sgemm_128x64"


# What time means.
@pytest.mark.parametrize("n_kernels", [1, 2])
def test_a_graph_pays_the_gap_of_every_kernel(tmp_path: Path, n_kernels: int) -> None:
    case = case_of(inputs_of(tmp_path, graph_row(64)), A100, None)
    found = replay.predicted(case, made(20.0, n_kernels), A100)
    assert found.time_us == pytest.approx(20.0 + n_kernels * (A100.launch.graph_us - A100.kernel.floor_us))


def test_an_event_pays_the_launch_once(tmp_path: Path) -> None:
    gpu = load_gpu("v100_pcie_32gb")
    case = case_of(inputs_of(tmp_path, event_row(100, grid_z=3)), gpu, None)
    found = replay.predicted(case, made(20.0, 2), gpu)
    assert found.time_us == pytest.approx(20.0 + gpu.launch.sync_us - gpu.kernel.floor_us)


@pytest.mark.parametrize("kind", ["gemm", "tile_sweep", "counters"])
def test_other_tables_know_nothing_of_launches(kind: str) -> None:
    inputs = Inputs(kind, 64, 64, 64)
    case = Case(inputs, Gemm(64, 64, 64), None)
    times = {
        replay.predicted(case, made(20.0, 2), load_gpu("h200_sxm", [f"launch.{change}"])).time_us
        for change in ("graph_us=3", "sync_us=50", "stream_us=5")
    }
    whole = {"gemm": 20.0, "tile_sweep": 20.0, "counters": 10.0 + replay.NSIGHT_OVERHEAD_US}
    assert list(times) == [pytest.approx(whole[kind])]


# The kernels to choose from.
@pytest.mark.parametrize("name", ["a100_sxm_80gb", "l40s"])
def test_every_stage_of_a_listed_kernel_lies_in_shared_memory(name: str) -> None:
    gpu = load_gpu(name)
    found = menu(gpu, "multistage", Gemm(4096, 4096, 4096))
    assert {config.mma for config in found} == {"mma_sync"}
    for config in found:
        assert config.smem_bytes == config.stages * (config.block_m + config.block_n) * config.block_k * 2
        assert config.smem_bytes <= gpu.smem.max_kib_per_cta * 1024
    sides = {(config.block_n, config.block_m, config.block_k, config.stages) for config in found}
    assert ((256, 128, 64, 3) in sides) == (name == "a100_sxm_80gb")  # 144 KiB; Ada has 99
    assert (256, 128, 32, 3) in sides


# Constants of a GPU's own.
class Linear:
    """A simulator in closed form: launch, then whichever of compute and memory takes longer."""

    def __init__(self, gpu: Any) -> None:
        self.gpu = gpu

    def time_us(self, gemm: Gemm) -> float:
        gpu = self.gpu
        mhz = gpu.activity.active_mhz - gpu.activity.sustained_tensor_mhz
        compute_us = gemm.flops / (gpu.tensor.bf16_flops_per_clk_per_sm * gpu.sm.count * mhz)
        memory_us = gemm.compulsory_bytes / (gpu.hbm.bandwidth_gb_per_s * 1e3 * gpu.hbm.read_fraction)
        return float(gpu.kernel.floor_us + max(compute_us, memory_us))

    def __call__(self, case: Case) -> Any:
        return made(self.time_us(case.gemm))


def test_three_constants_are_recovered_from_the_other_half_of_the_shapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = load_gpu(
        "a100_sxm_80gb", ["launch.graph_us=3", "hbm.read_fraction=0.7", "activity.sustained_tensor_mhz=300"]
    )
    random = np.random.default_rng(5)
    rows = []
    for n, k in random.integers(8, 64, (60, 2)) * 128:
        for m in (16, 4096):
            us = Linear(truth).time_us(Gemm(m, int(n), int(k))) + 3 - truth.kernel.floor_us
            rows.append(graph_row(m, int(n), int(k), time_us=us))
    path = write_table(tmp_path / "graph_gemm.csv", rows)
    monkeypatch.setattr(carried, "simulator", Linear)
    monkeypatch.setattr(carried, "measured_path", lambda gpu, kind: path)
    monkeypatch.setattr(carried, "shipped_control", lambda gpu, kind: None)
    found = carried.carried("a100_sxm_80gb", 40)
    assert found.constants["hbm.read_fraction"] == pytest.approx(0.7, rel=0.1)
    assert found.constants["activity.sustained_tensor_mhz"] == pytest.approx(300, rel=0.3)
    assert found.fitted_pct < 5 < found.unfitted_pct
    assert found.roofline_pct is None


def test_a_gpu_without_a_public_table_is_refused() -> None:
    with pytest.raises(ConfigError, match="h200_sxm: no graph_gemm or event_gemm"):
        carried.carried("h200_sxm")


# The real simulator.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind", "most_pct"), [("a100_sxm_80gb", "graph_gemm", 15), ("v100_pcie_32gb", "event_gemm", 20)]
)
def test_unfitted_errors_stay_where_they_were_reported(name: str, kind: str, most_pct: float) -> None:
    overall = validate(load_gpu(name), measured_path(name, kind), limit=16).overall
    assert overall["n"] == 16
    assert overall["mape_pct"] < most_pct
