"""Weights that are not dense: exact bytes, what is refused, and what they can gain at most."""

from __future__ import annotations

import dataclasses
import itertools
import json
from functools import lru_cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwmodels import load_gpu
from hwmodels.errors import ConfigError
from sim import simulate
from sim.call import Options, run_call
from sim.schedule import direct, formats
from sim.schedule.choose import complete, ranked
from sim.schedule.config import KernelConfig
from sim.schedule.instructions import instructions
from sim.schedule.names import parse_kernel_name
from sim.schedule.plan import build_plan
from sim.schedule.resources import occupancy, smem_bytes
from sim.sparse import break_even, sparse_time_s
from sim.validation.extra_ops import TABLE, ExtraOp
from sim.validation.timed import read
from viz.commands.options import GemmOptions
from viz.commands.request import request
from workloads import Gemm
from workloads.compress import unstructured
from workloads.packing import FORMATS

gpu = lru_cache(load_gpu)
H200 = "h200_sxm"
PACKED = [("int8", None), ("int8", 128), ("int4", 32), ("int4", 128), ("2:4", None)]
TINY = "void at::native::tinygemm_m16n8k16_chunk_kernel<at::native::ALayout_RM<(at::native::KReductionType)0>"
SPARSE = (
    "sm90_xmma_sparse_gemm_bf16bf16_bf16f32_f32_tn_t_tilesize128x256x64_cgasize1x1x1_warpgroupsize2x1x1_execute_"
    "segment_k_off_kernel_5x_cusparselt"
)


def layer(m: int, n: int = 14336, k: int = 4096, form: str = "dense", group: int | None = None) -> Gemm:
    return Gemm(m, n, k, weights_format=form, weight_group=group)


@lru_cache(maxsize=64)
def time_s(gemm: Gemm, name: str = H200) -> float:
    return simulate(gemm, gpu(name), clock_mhz=gpu(name).clock.base_mhz).time_s


# Exact bytes.
@pytest.mark.small
@pytest.mark.parametrize(
    ("form", "group", "n_bytes"),
    [
        ("dense", None, 2 * 256 * 384),
        ("int8", None, 256 * 384 + 2 * 384),  # a scale a column
        ("int8", 64, 256 * 384 + 2 * 384 * 4),
        ("int4", None, 256 * 384 // 2 + 2 * 2 * 384),  # a scale and a zero point
        ("int4", 32, 256 * 384 // 2 + 2 * 2 * 384 * 8),
        ("2:4", None, 256 * 384 + 256 * 384 // 2 * 2 // 8),  # half the values, two bits each
    ],
)
def test_bytes_of_weights_are_exact(form: str, group: int | None, n_bytes: int) -> None:
    gemm = Gemm(16, 384, 256, weights_format=form, weight_group=group)
    assert gemm.b_bytes == gemm.allocation_bytes("b") == n_bytes
    assert gemm.compulsory_bytes == 2 * 16 * 256 + n_bytes + 2 * 16 * 384
    assert gemm.b_bytes == 256 * 384 * (gemm.b_element_bytes + gemm.b_side_bytes)
    assert dataclasses.replace(gemm, batch=3).b_bytes == 3 * n_bytes


@pytest.mark.small
def test_sparse_products_have_the_dense_one_s_flops_and_execute_half() -> None:
    dense, sparse = layer(64), layer(64, form="2:4")
    assert sparse.flops == dense.flops == dense.executed_flops == 2 * sparse.executed_flops
    assert layer(64, form="int4").executed_flops == dense.flops


@pytest.mark.small
def test_formats_are_described() -> None:
    described = layer(64, form="int4", group=128).describe()
    assert (described["weights_format"], described["weight_group"]) == ("int4", 128)
    assert layer(64, form="int4").describe()["weight_group"] == 4096
    assert described == json.loads(json.dumps(described))


@pytest.mark.small
@given(st.integers(1, 64), st.integers(1, 64), st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from(["fp16", "bf16"]))
def test_smaller_formats_take_fewer_bytes(n: int, k_groups: int, group: int, dtype: str) -> None:
    k = 16 * k_groups
    sizes = [
        Gemm(4, 8 * n, k, dtype=dtype, weights_format=form, weight_group=given).b_bytes
        for form, given in (("dense", None), ("2:4", None), ("int8", k), ("int4", k))
    ]
    if k >= 32:
        assert sizes == sorted(sizes, reverse=True)
    finer, coarser = (Gemm(4, n, k, dtype=dtype, weights_format="int4", weight_group=g).b_bytes for g in (group, 16))
    assert finer >= coarser


# What does not go together.
@pytest.mark.small
@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"weights_format": "int3"}, "weights_format = 'int3'"),
        ({"weight_group": 128}, "weight_group = 128"),
        ({"weights_format": "2:4", "weight_group": 128}, "weight_group = 128"),
        ({"weights_format": "int4", "weight_group": 96}, "weight_group = 96"),
        ({"weights_format": "int4", "weight_group": 0}, "weight_group = 0"),
        ({"weights_format": "int4", "weight_group": 8192}, "weight_group = 8192"),
        ({"weights_format": "int4", "weight_group": 64.0}, "weight_group = 64.0"),
        ({"weights_format": "int4", "dtype": "fp8_e4m3"}, "dtype = 'fp8_e4m3'"),
        ({"weights_format": "int8", "dtype": "fp32"}, "dtype = 'fp32'"),
        ({"weights_format": "2:4", "dtype": "tf32"}, "dtype = 'tf32'"),
        ({"weights_format": "2:4", "k": 4098}, "k = 4098"),
        ({"weights_format": "int4", "k": 4097}, "k = 4097"),
        ({"weights_format": "int4", "layout": "nn"}, "layout = 'nn'"),
        ({"weights_format": "int4", "ldb": 8192}, "ldb = 8192"),
    ],
)
def test_what_does_not_go_together_is_refused(given: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Gemm(**{"m": 16, "n": 4096, "k": 4096, **given})  # type: ignore[arg-type]


@pytest.mark.small
@pytest.mark.parametrize("name", ["t4", "v100_sxm2_32gb"])
def test_gpus_without_sparse_tensor_cores_refuse_2_4(name: str) -> None:
    with pytest.raises(ConfigError, match="no sparse tensor cores"):
        ranked(Gemm(64, 4096, 4096, dtype="fp16", weights_format="2:4"), gpu(name))


@pytest.mark.small
@pytest.mark.parametrize(
    ("form", "changed"),
    [
        ("int4", {"mma": "fma", "loads": "cp_async", "family": "multistage"}),
        ("2:4", {"mma_m_along": "m"}),
        ("2:4", {"block_k": 16}),
    ],
)
def test_kernels_that_cannot_take_the_weights_are_refused(form: str, changed: dict[str, object]) -> None:
    gemm = layer(256, form=form)
    config = ranked(gemm, gpu(H200), "persistent")[0]
    with pytest.raises(ConfigError, match=next(reversed(changed)) if form == "2:4" else "mma"):
        occupancy(dataclasses.replace(config, **changed), gemm, gpu(H200))  # type: ignore[arg-type]


@pytest.mark.small
def test_names_say_which_weights_a_kernel_takes() -> None:
    assert parse_kernel_name(TINY, layer(1, form="int4", group=128), "1x1792x1", "32x8x1").loads == "direct"
    assert parse_kernel_name(SPARSE, layer(256, form="2:4"), "112x1x1", "384x1x1").block_n == 128
    nvjet = "nvjet_sm90_tst_64x8_64x16_2x1_v_bz_TNT"
    for name, gemm in (
        (TINY, layer(1)),
        (SPARSE, layer(256)),
        (nvjet, layer(1, form="int4")),
        (nvjet, layer(1, form="2:4")),
    ):
        with pytest.raises(ConfigError, match="weights"):
            parse_kernel_name(name, gemm, None, None)


# Bytes at every level follow the format.
@pytest.mark.parametrize(("form", "group"), PACKED)
def test_a_cold_layer_reads_its_weights_once_as_they_are_stored(form: str, group: int | None) -> None:
    gemm = layer(16, form=form, group=group)
    result = simulate(gemm, gpu(H200))
    compulsory = gemm.a_bytes + gemm.b_bytes
    assert 0.98 * compulsory <= result.main.bytes["hbm"]["read"] <= 1.05 * compulsory
    assert result.main.flops_executed >= gemm.executed_flops
    assert result.workload["weights_format"] == form


@pytest.mark.small
@pytest.mark.parametrize(("form", "group"), PACKED)
def test_stages_and_chunks_are_as_large_as_what_is_stored(form: str, group: int | None) -> None:
    gemm = layer(256, form=form, group=group)
    config = KernelConfig("persistent", 128, 128, 64, 4, 12, loads="tma", mma="wgmma", mma_m_along="n")
    stage = 128 * 64 * (2 + gemm.b_element_bytes + gemm.b_side_bytes)
    grown = smem_bytes(dataclasses.replace(config, stages=5), gemm, gpu(H200)) - smem_bytes(config, gemm, gpu(H200))
    assert stage <= grown - 24 <= stage + 1
    work = build_plan(gemm, config, gpu(H200)).work
    assert work.b_dram_bytes == pytest.approx(256 * 64 * (gemm.b_element_bytes + gemm.b_side_bytes), rel=1e-3)
    assert work.a_dram_bytes == 256 * 64 * 2


@pytest.mark.small
def test_sparse_mmas_step_twice_as_far_in_the_same_time() -> None:
    config = KernelConfig("persistent", 256, 128, 64, 4, 12, loads="tma", mma="wgmma", mma_m_along="n")
    dense, sparse = (instructions(layer(256, form=form), config, gpu(H200)) for form in ("dense", "2:4"))
    assert dense[0] == 2 * sparse[0] == 1024
    assert dense[2] == 2 * sparse[2]
    assert (
        sparse[1] == 4 * (64 * 64 + 256 * 128) // 2
    )  # 4 instructions: 64 rows of 32 kept, 256 rows of 32 dense values


def test_more_instructions_for_a_weight_take_longer() -> None:
    gemm = layer(16, form="int4", group=128)
    config = complete(gemm, gpu(H200), block_m=16, block_n=128, block_k=64)
    slow = load_gpu(H200, ["cuda_core.convert_int4_instructions=20"])
    free = load_gpu(H200, ["cuda_core.convert_int4_instructions=0"])
    times = [run_call(gemm, config, each, Options(clock_mhz=1700)).time_s for each in (free, gpu(H200), slow)]
    assert times == sorted(times)
    assert times[2] > 1.5 * times[0]


# What can be gained.
@pytest.mark.parametrize(("form", "least", "most"), [("int4", 1.5, 4.0), ("int8", 1.3, 2.0), ("2:4", 1.2, 2 / 1.125)])
def test_memory_bound_layers_gain_at_most_what_their_weights_shrink(form: str, least: float, most: float) -> None:
    for m in (1, 16):
        gain = time_s(layer(m)) / time_s(layer(m, form=form))
        assert least <= gain <= most


@pytest.mark.parametrize("name", [H200, "a100_sxm_80gb"])
def test_compute_bound_layers_gain_at_most_two_by_sparsity(name: str) -> None:
    gain = time_s(layer(2048), name) / time_s(layer(2048, form="2:4"), name)
    assert 1.1 <= gain <= 2.0


def test_compute_bound_layers_gain_little_by_smaller_weights() -> None:
    for form in ("int8", "int4"):
        assert time_s(layer(2048)) / time_s(layer(2048, form=form)) <= 1.1


def test_finer_groups_are_never_faster() -> None:
    """But for luck: loads that vary make some percent of difference between kernels that are alike."""
    options = Options(clock_mhz=1700, without=frozenset({"jitter"}))
    config = complete(layer(8, form="int4", group=4096), gpu(H200), block_m=16, block_n=128, block_k=64, stages=8)
    times = [
        run_call(layer(8, form="int4", group=group), config, gpu(H200), options).time_s
        for group in (4096, 512, 128, 32)
    ]
    assert all(fine >= 0.99 * coarse for coarse, fine in itertools.pairwise(times))


@pytest.mark.parametrize("form", FORMATS)
def test_more_rows_are_never_faster(form: str) -> None:
    times = [time_s(layer(m, form=form)) for m in (1, 64, 512, 2048)]
    assert all(more >= 0.98 * fewer for fewer, more in itertools.pairwise(times))


def test_break_even_is_where_times_meet_and_falls_with_rows() -> None:
    found = {m: break_even(Gemm(m, 4096, 4096), gpu(H200)) for m in (1, 16, 256)}
    assert found[1] > found[16] > found[256] > 0
    dense = Gemm(16, 4096, 4096)
    meeting = sparse_time_s(unstructured(dense, found[16]), gpu(H200))
    assert meeting == pytest.approx(simulate(dense, gpu(H200)).time_s, rel=1e-3)


# The kernel of PyTorch.
@pytest.mark.small
@pytest.mark.parametrize(
    ("pitch", "rows", "cycles"), [(8192, 8, 8), (8192, 1, 1), (8192, 3, 3), (8208, 8, 4), (8208, 1, 1)]
)
def test_rows_in_the_same_banks_take_a_cycle_each(pitch: int, rows: int, cycles: float) -> None:
    """Rows 8208 B apart lie in banks of their own; L1 still finds their lines, two a cycle."""
    assert direct.load_cycles(pitch, rows, 32, 0.5) == cycles


def test_the_int4_kernel_loses_to_bf16_beyond_few_rows() -> None:
    def tiny_s(m: int) -> float:
        gemm = layer(m, form="int4", group=128)
        config = parse_kernel_name(TINY, gemm, f"1x1792x{-(-m // 16)}", "32x8x1")
        return run_call(gemm, config, gpu(H200), Options()).time_s

    dense_s = {m: simulate(layer(m), gpu(H200)).time_s for m in (1, 16, 64)}
    assert tiny_s(1) < dense_s[1]
    assert tiny_s(16) > 1.5 * dense_s[16]
    assert tiny_s(64) > 5 * dense_s[64]


@pytest.mark.small
def test_clamped_rows_wait_for_one_line() -> None:
    """The root of the rows asked for at once; nothing where the tile is full."""
    gemms = [layer(m, form="2:4") for m in (16, 256)]
    part, full = (
        formats.clamped_cycles(gemm, parse_kernel_name(SPARSE, gemm, "112x1x1", "384x1x1"), gpu(H200)) for gemm in gemms
    )
    assert (part / gpu(H200).l2.hot_line_cycles) ** 2 == pytest.approx(112 * 240)
    assert full == 0


# Validation and the command line.
def test_measured_products_are_predicted_and_streams_beside_them() -> None:
    int4 = ExtraOp("int4_weight_only", 1, 4096, 4096, 128, TINY, (1, 512, 1), (32, 8, 1))
    assert 4 < TABLE.predict(int4, gpu(H200))["time_us"] < 9
    softmax = dataclasses.replace(int4, op="log_softmax", m=64, n=32000, k=0)
    assert 7 < TABLE.predict(softmax, gpu(H200))["time_us"] < 14  # measured: 9.7
    assert TABLE.work(softmax, "time_us")[1] == 2 * 2 * 64 * 32000
    flops, n_bytes = TABLE.work(int4, "time_us")
    assert flops == 2 * 4096 * 4096
    assert n_bytes == 4096 * 2048 + 4096 * 32 * 4 + 2 * 8192


def test_operations_of_the_shipped_table_stay_within_their_target() -> None:
    from hwmodels.measured import measured_path

    errors: dict[str, list[float]] = {}
    for asked in read(TABLE, measured_path(H200, "extra_ops")).asked:
        if asked.question.op in ("int4_weight_only", "sparse_2_4", "bmm"):
            predicted = TABLE.predict(asked.question, gpu(H200))["time_us"]
            errors.setdefault(asked.question.op, []).append(abs(predicted / asked.measured_us - 1))
    assert {op: len(found) for op, found in errors.items()} == {"int4_weight_only": 48, "sparse_2_4": 18, "bmm": 8}
    assert {op: sum(found) / len(found) <= 0.09 for op, found in errors.items()} == {
        "int4_weight_only": True,
        "sparse_2_4": True,
        "bmm": True,
    }


@pytest.mark.small
def test_the_command_line_takes_formats() -> None:
    asked = request(
        GemmOptions("16", "4096", "4096", weights_format="int4", weight_group="128"), trace=False, advise=False
    )
    assert asked.gemm == layer(16, 4096, form="int4", group=128)
    with pytest.raises(ConfigError, match="--weight-group"):
        request(GemmOptions("16", "4096", "4096", weights_format="int4", weight_group="x"), trace=False, advise=False)


def test_json_and_story_name_the_format(capsys: pytest.CaptureFixture[str]) -> None:
    from viz.commands.gemm import explain, gemm

    words = {"m": "16", "n": "4096", "k": "4096", "weights_format": "int4", "weight_group": "128"}
    gemm(GemmOptions(**words, json=True))  # type: ignore[arg-type]
    found = json.loads(capsys.readouterr().out)
    assert (found["weights_format"], found["weight_group"]) == ("int4", 128)
    gemm(GemmOptions(**words))  # type: ignore[arg-type]
    assert "weights int4 in groups of 128" in capsys.readouterr().out
    explain(GemmOptions(**words))  # type: ignore[arg-type]
    assert "Weights stay int4 as far as the registers" in " ".join(capsys.readouterr().out.split())
