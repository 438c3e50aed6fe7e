"""Kernel names: what they say is checked on every row of the shipped H200 tables and on names of other libraries."""

from __future__ import annotations

import csv
import dataclasses
import math
from collections import Counter, OrderedDict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

import hwmodels
from hwmodels.errors import ConfigError
from sim.schedule.config import KernelConfig
from sim.schedule.launches import CLUSTER_SLOTS, PLAIN
from sim.schedule.names import NOT_MODELLED, parse_kernel_name, short_name
from sim.schedule.resources import wgmma_tile
from workloads import Gemm

MEASURED = Path(hwmodels.__file__).parent / "measured" / "h200_sxm"
EPILOGUES = {"mm": "none", "addmm": "bias", "addmm_gelu": "bias_gelu"}
Row = dict[str, str]
Case = tuple[Row, Gemm, KernelConfig]


def gemm_of(row: Row) -> Gemm:
    dtype = "fp8_e4m3" if row["dtype"] == "fp8" else row["dtype"]
    layout, epilogue = row.get("layout", "tn"), EPILOGUES[row.get("op", "mm")]
    return Gemm(int(row["m"]), int(row["n"]), int(row["k"]), dtype=dtype, layout=layout, epilogue=epilogue)


@cache
def table(name: str) -> list[Row]:
    with open(MEASURED / name, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@cache
def parsed(name: str, word: str) -> list[Case]:
    """Rows of a table whose kernel name contains `word` and is of a modelled family."""
    rows = [row for row in table(name) if word in row["kernel"] and not any(no in row["kernel"] for no in NOT_MODELLED)]
    gemms = [gemm_of(row) for row in rows]
    configs = [parse_kernel_name(r["kernel"], g, r["grid"], r["block"]) for r, g in zip(rows, gemms, strict=True)]
    return list(zip(rows, gemms, configs, strict=True))


def grid_of(row: Row) -> tuple[int, ...]:
    return tuple(int(part) for part in row["grid"].split("x"))


def clusters_needed(gemm: Gemm, config: KernelConfig) -> int:
    rows = -(-gemm.m // (config.block_m * config.cluster_m))
    return rows * -(-gemm.n // (config.block_n * config.cluster_n))


def family_of(row: Row) -> str:
    try:
        return parse_kernel_name(row["kernel"], gemm_of(row), row["grid"], row["block"]).family
    except ConfigError as refused:
        return "refused" if "family is not modelled" in str(refused) else str(refused)


def test_every_name_of_the_tables_is_read_or_refused_by_family():
    families: Counter[str] = Counter()
    for name in ("gemm.csv", "counters.csv"):
        for row in table(name):
            if row.get("library") == "triton":
                continue
            families[family_of(row)] += 1
    assert sum(families.values()) == 961 + 339
    assert families["refused"] == 1  # magma
    assert set(families) == {"persistent", "split_k", "multistage", "refused"}


def test_the_example_of_the_readme():
    config = parse_kernel_name(
        "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT", Gemm(4096, 4096, 4096), "2x66x1", "384x1x1"
    )
    assert (config.block_m, config.block_n, config.block_k, config.stages) == (128, 256, 64, 4)
    assert (config.cluster_m, config.cluster_n, config.raster, config.group) == (2, 1, "n", 11)
    assert (config.family, config.pingpong, config.mma_m_along, config.warps) == ("persistent", False, "n", 12)
    assert (config.n_ctas, config.split_k, config.loads, config.mma) == (132, 1, "tma", "wgmma")
    assert short_name(config) == "persistent_128x256x64_s4_w12_c2x1_n11_coop"


# nvjet, on all 771 rows.
def test_nvjet_grid_is_cluster_size_by_clusters_capped_at_the_slots():
    cases = parsed("gemm.csv", "nvjet")
    assert len(cases) == 771
    unsplit = [case for case in cases if "splitK" not in case[0]["kernel"]]
    assert len(unsplit) == 628
    for row, gemm, config in unsplit:
        size = config.cluster_m * config.cluster_n
        assert grid_of(row) == (size, min(clusters_needed(gemm, config), CLUSTER_SLOTS[size]), 1)
        assert config.n_ctas == math.prod(grid_of(row))


def test_nvjet_counter_is_cleared_exactly_where_tiles_exceed_two_rounds():
    n_memsets = 0
    for row, gemm, config in parsed("gemm.csv", "nvjet"):
        if config.split_k == 1:
            rounds = clusters_needed(gemm, config) / CLUSTER_SLOTS[config.cluster_m * config.cluster_n]
            assert (row["other_kernels"] == "Memset (Device)") == (rounds > 2)
            n_memsets += rounds > 2
    assert n_memsets == 173


def test_nvjet_split_is_clusters_over_tiles():
    cases = [case for case in parsed("gemm.csv", "nvjet") if "splitK" in case[0]["kernel"]]
    whole = 0
    for row, gemm, config in cases:
        exact = grid_of(row)[1] / clusters_needed(gemm, config)
        assert config.split_k == math.ceil(exact) >= 2
        assert config.family == "split_k"
        whole += exact == config.split_k
        assert "splitKreduce" in row["other_kernels"]
    assert (len(cases), whole) == (143, 134)


def test_nvjet_sides_match_the_consumers():
    schedules: Counter[str] = Counter()
    for row, _, config in parsed("gemm.csv", "nvjet"):
        side = config.block_n if config.mma_m_along == "n" else config.block_m
        assert side % 64 == 0
        schedule = next((word for word in ("coopA", "coopB") if word in row["kernel"]), "pingpong")
        schedules[schedule] += 1
        assert config.pingpong == (schedule == "pingpong")
        if schedule == "coopA":
            assert wgmma_tile(config)[0] == side // 2
        if schedule == "coopB":
            assert side // 64 % 2 == 1
            assert wgmma_tile(config)[0] == side
        assert row["block"] == "384x1x1"
        assert config.block_k * (1 if row["dtype"] == "fp8" else 2) == 128
    assert schedules == {"coopA": 124, "coopB": 102, "pingpong": 545}


def test_nvjet_split_without_a_grid_fills_the_slots():
    name = "nvjet_sm90_tst_128x32_64x10_2x1_v_bz_splitK_TNT"
    assert parse_kernel_name(name, Gemm(32, 4096, 16384)).split_k == 4
    with pytest.raises(ConfigError, match="split is not in the name"):
        parse_kernel_name(name)
    agree = total = 0
    for row, gemm, config in parsed("gemm.csv", "splitK"):
        total += 1
        agree += parse_kernel_name(row["kernel"], gemm).split_k == config.split_k
    assert agree >= 0.75 * total


# Rasterisation, from bytes that DRAM delivered.
def raster_order(config: KernelConfig, gemm: Gemm) -> Iterator[tuple[int, int]]:
    """(cluster row, cluster column) of consecutive clusters: bands of `group` along the raster, then across."""
    rows, cols = -(-gemm.m // (config.block_m * config.cluster_m)), -(-gemm.n // (config.block_n * config.cluster_n))
    along, across = (cols, rows) if config.raster == "n" else (rows, cols)
    for first in range(0, along, config.group):
        for j in range(across):
            for i in range(first, min(first + config.group, along)):
                yield (j, i) if config.raster == "n" else (i, j)


def dram_read_bytes(config: KernelConfig, gemm: Gemm, wave: int, capacity_bytes: float = 40e6) -> float:
    """Waves in lockstep against one LRU of quarter-k strips of A and B and of written C."""
    held: OrderedDict[tuple[str, int, int], float] = OrderedDict()
    read = 0.0
    block_m, block_n = config.block_m * config.cluster_m, config.block_n * config.cluster_n
    order = list(raster_order(config, gemm))
    for start in range(0, len(order), wave):
        now = order[start : start + wave]
        wanted: list[tuple[tuple[str, int, int], float]] = []
        for part in range(4):
            k_bytes = gemm.k / 4 * gemm.a_element_bytes
            wanted += [
                (("b", j, part), min(block_n, gemm.n - j * block_n) * k_bytes) for j in sorted({j for _, j in now})
            ]
            wanted += [
                (("a", i, part), min(block_m, gemm.m - i * block_m) * k_bytes) for i in sorted({i for i, _ in now})
            ]
        for key, size in [*wanted, (("c", start, 0), len(now) * block_m * block_n * gemm.c_element_bytes)]:
            if key in held:
                held.move_to_end(key)
                continue
            read += size if key[0] != "c" else 0
            held[key] = size
            while sum(held.values()) > capacity_bytes:
                held.popitem(last=False)
    return read


@cache
def two_wave_cases() -> list[Case]:
    """Profiled nvjet kernels of one to two waves (a static schedule) that read something twice."""
    found: dict[tuple[str, ...], Case] = {}
    for row, gemm, config in parsed("counters.csv", "nvjet"):
        clusters = (config.n_ctas or 0) / (config.cluster_m * config.cluster_n)
        again = float(row["dram_read_bytes"]) > 1.02 * (gemm.a_bytes + gemm.b_bytes)
        if (
            config.split_k == 1
            and clusters < clusters_needed(gemm, config) <= 2 * clusters
            and again
            and gemm.k >= 1000
        ):
            found[row["m"], row["n"], row["k"], row["kernel"]] = (row, gemm, config)
    return list(found.values())


def errors(change: dict[str, Any]) -> list[float]:
    found = []
    for row, gemm, config in two_wave_cases():
        wave = (config.n_ctas or 1) // (config.cluster_m * config.cluster_n)
        changed = dataclasses.replace(config, **change)
        found.append(abs(dram_read_bytes(changed, gemm, wave) / float(row["dram_read_bytes"]) - 1))
    return found


def test_bands_explain_what_dram_read():
    assert len(two_wave_cases()) >= 10
    assert max(errors({})) < 0.04
    assert sorted(errors({}))[-2] < 0.01
    for other in ({"group": PLAIN}, {"group": 1}, {"group": 8}):
        assert max(errors(other)) > 0.15
        assert mean(errors(other)) > 5 * mean(errors({}))


# Other libraries' kernels.
def test_cutlass2_grid_walks_in_bands():
    cases = parsed("gemm.csv", "cutlass_")
    assert len(cases) == 113
    for row, gemm, config in cases:
        tiles_m, tiles_n = -(-gemm.m // config.block_m), -(-gemm.n // config.block_n)
        assert config.group in (1, 2, 4, 8)
        assert grid_of(row) == (tiles_m * config.group, -(-tiles_n // config.group), config.split_k)
        assert 32 * config.warps == math.prod(int(part) for part in row["block"].split("x"))
        without_grid = parse_kernel_name(row["kernel"], gemm, block=row["block"])
        assert without_grid.group == config.group
        if "wmma" not in row["kernel"]:
            assert config.smem_bytes == int(float(row["smem"]))


def test_xmma_sm80_grid_is_tiles_m_tiles_n_splits():
    cases = parsed("gemm.csv", "sm80_xmma")
    assert len(cases) == 18
    for row, gemm, config in cases:
        assert grid_of(row) == (-(-gemm.m // config.block_m), -(-gemm.n // config.block_n), config.split_k)
        assert (config.mma, config.block_k, config.stages) == ("fma", 8, 3)
        assert row["block"] == f"{32 * parse_kernel_name(row['kernel'], gemm).warps}x1x1"


def test_xmma_sm90_is_persistent_and_fills_shared_memory():
    cases = [case for case in parsed("gemm.csv", "sm90_xmma") if case[2].loads == "tma"]
    assert len(cases) == 40
    for row, _, config in cases:
        assert config.smem_bytes == int(float(row["smem"]))
        assert config.pingpong == ("warpgroupsize1x1x1" in row["kernel"])
        assert (config.n_ctas, config.warps) == (math.prod(grid_of(row)), 12)


OTHER_NAMES = {
    "cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8": (
        "multistage_32x32x128_s2_w4_n8 mma_sync cp_async"
    ),
    "cutlass_75_tensorop_bf16_s1688gemm_bf16_256x128_tn_align1": "multistage_128x256x32_s2_w8_n8 mma_sync ldg",
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_64x64_8x5_tn_align1>(cut": "multistage_64x64x8_s5_w4_n8 fma cp_async",
    "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x64x16_stage4_warpsize2x2x1_tensor16x8x8_execute": (
        "multistage_128x64x16_s4_w4_m mma_sync cp_async"
    ),
    "ampere_sgemm_128x64_tn": "multistage_64x128x8_s2_w4_n fma ldg",
    "ampere_sgemm_32x32_sliced1x4_tn": "multistage_32x32x32_s2_w4_n fma ldg",
    "volta_sgemm_32x128_nt": "multistage_128x32x8_s2_w8_n fma ldg",
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn": "multistage_128x128x32_s5_w4_n mma_sync cp_async",
    "ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_f2f_stages_64x5_tn": (
        "multistage_64x64x64_s5_w4_n mma_sync cp_async"
    ),
    "turing_h1688gemm_256x64_ldg8_stages_32x3_tn": "multistage_64x256x32_s3_w4_n mma_sync ldg",
    "volta_h884gemm_256x128_ldg8_nn": "multistage_128x256x32_s2_w8_n mma_sync ldg",
    "cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32_bf16_bf16_128x256x64_2x1x1_0_tnn_align8"
    "_warpspecialized_cooperative_epi_tma": "persistent_256x128x64_s4_w12_c1x2_m_coop wgmma tma",
    "cutlass3x_sm90_tensorop_s64x64x16gemm_bf16_bf16_f32_void_bf16_64x64x64_1x2x1_7_tnt_align8"
    "_warpspecialized_pingpong_epi_nosmem": "persistent_64x64x64_s7_w12_c1x2_m_pingpong wgmma tma",
}


@pytest.mark.parametrize(("name", "expected"), OTHER_NAMES.items())
def test_names_of_other_libraries(name, expected):
    config = parse_kernel_name(name)
    assert f"{short_name(config)} {config.mma} {config.loads}" == expected
    assert config.name == name


def test_grid_of_sgemm_gives_the_split():
    gemm = Gemm(400, 900, 9000, dtype="fp32", batch=2)
    config = parse_kernel_name("volta_sgemm_128x64_tn", gemm, "8x7x6", "(128,1,1)")
    assert (config.family, config.split_k, config.block_m, config.block_n) == ("split_k", 3, 64, 128)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "mm_kernel",
        "nvjet_sm90",
        "nvjet_sm100_tst_256x128_64x4_1x2_h_bz_TNT",
        "cutlass_80_tensorop",
        "\x00\xff",
        "x" * 5000,
    ],
)
def test_unknown_names_are_refused_in_one_short_line(name):
    with pytest.raises(ConfigError, match="not known") as refused:
        parse_kernel_name(name)
    assert len(str(refused.value)) < 400
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "name",
    [
        "void gemmSN_TN_kernel<float; 128>",
        "void gemv2T_kernel_val<int>",
        "std::enable_if<true; void>::type internal::gemvx::kernel<int>",
        "void dot_kernel<float>",
        "void magma_sgemmEx_kernel<float>",
    ],
)
def test_families_that_are_not_modelled_say_so(name):
    with pytest.raises(ConfigError, match="family is not modelled"):
        parse_kernel_name(name)


@pytest.mark.parametrize("grid", ["2x66", "2x66x0", "axbxc", "-2x66x1x1", "2x66x99999999999"])
def test_bad_grids_are_refused(grid):
    with pytest.raises(ConfigError, match="grid = "):
        parse_kernel_name("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT", Gemm(64, 64, 64), grid)


def test_grid_must_hold_whole_clusters_and_types_must_match():
    name = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT"
    with pytest.raises(ConfigError, match="multiple of the cluster 1x2"):
        parse_kernel_name(name, Gemm(64, 64, 64), "1x33x1")
    with pytest.raises(ConfigError, match="for bf16, but dtype = 'fp16'"):
        parse_kernel_name(name, Gemm(64, 64, 64, dtype="fp16"))


SIZED = [
    "nvjet_sm90_tst_{0}x{0}_64x4_1x2_h_bz_coopA_TNT",
    "nvjet_sm90_tst_256x128_{0}x4_1x2_h_bz_coopA_TNT",
    "nvjet_sm90_tst_256x128_64x{0}_1x2_h_bz_coopA_TNT",
    "nvjet_sm90_tst_256x128_64x4_{0}x{0}_h_bz_coopA_TNT",
    "cutlass_80_tensorop_s16816gemm_bf16_{0}x{0}_32x3_tn_align8",
    "cutlass_80_tensorop_s16816gemm_bf16_64x64_{0}x{0}_tn_align8",
    "cutlass_80_tensorop_s16816gemm_bf16_64x64_32x3_tn_align{0}",
    "cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32_bf16_bf16_{0}x{0}x{0}_2x1x1_0_tnn_align8_warpspecialized",
    "cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32_bf16_bf16_64x64x64_{0}x{0}x1_0_tnn_align8_warpspecialized",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize{0}x{0}x{0}_warpgroupsize1x1x1_execute",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_cgasize{0}x{0}x1_warpgroupsize1x1x1_execute",
    "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_stage{0}_warpsize2x2x1_execute",
    "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_stage4_warpsize{0}x{0}x{0}_execute",
    "ampere_bf16_s16816gemm_bf16_{0}x{0}_ldg8_stages_32x5_tn",
    "ampere_bf16_s16816gemm_bf16_64x64_sliced1x{0}_ldg8_stages_32x5_tn",
    "ampere_bf16_s16816gemm_bf16_64x64_ldg8_stages_{0}x{0}_tn",
]


@pytest.mark.parametrize("number", ["0", "00", "064", "9" * 5000, "\u0664"], ids=ascii)
@pytest.mark.parametrize("name", SIZED)
def test_sizes_that_no_kernel_has_are_no_known_name(name, number):
    parse_kernel_name(name.format(2), Gemm(640, 640, 640), "2x20x1")
    with pytest.raises(ConfigError, match="not known"):
        parse_kernel_name(name.format(number), Gemm(640, 640, 640), "2x20x1")


def test_a_grid_of_5000_digits_is_refused():
    with pytest.raises(ConfigError, match="grid = "):
        parse_kernel_name("volta_sgemm_128x64_tn", Gemm(64, 64, 64, dtype="fp32"), f"1x1x{'9' * 5000}")


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("nvjet_sm90_qqtst_256x128_128x4_1x2_h_bz_coopA_TNT", "fp8_e5m2", "bf16"),
        ("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_tn", "fp16", "bf16"),
        ("turing_h1688gemm_256x64_ldg8_stages_32x3_tn", "fp16", "bf16"),
        ("volta_sgemm_128x64_tn", "fp32", "bf16"),
        ("maxwell_fp16_sgemm_fp16_128x64_tn", "fp16", "fp32"),
        ("cutlass_75_tensorop_s1688gemm_f16_256x128_tn_align1", "fp16", "bf16"),
        ("cutlass_80_tensorop_i16832gemm_s8_128x64_64x3_tn_align16", "int8", "bf16"),
        ("cutlass_80_simt_sgemm_64x64_8x5_tn_align1", "tf32", "fp16"),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x64x16_stage4_warpsize2x2x1_execute", "tf32", "fp32"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x64x8_stage4_warpsize2x2x1_ffma", "fp32", "fp16"),
    ],
)
def test_operand_types_in_a_name_must_be_the_workloads(name, right, wrong):
    parse_kernel_name(name, Gemm(640, 640, 640, dtype=right))
    with pytest.raises(ConfigError, match=f"but dtype = '{wrong}'"):
        parse_kernel_name(name, Gemm(640, 640, 640, dtype=wrong))


XMMA90 = (
    "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize{}x32_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas"
)


@pytest.mark.parametrize(
    ("tile", "grid", "shape", "rows"),
    [
        ("64x128", "132x1x1", (16, 28672, 3584), 35840),
        ("128x128", "60x2x1", (256, 28672, 3584), 43008),
        ("128x64", "112x1x1", (256, 3584, 14336), 8960),
    ],
)
def test_clusters_of_xmma_read_what_was_counted(tile: str, grid: str, shape: tuple[int, int, int], rows: int) -> None:
    """counters_more.csv: L2 reads in rows of k, each operand's tiles shared by the CTAs of a cluster and no further."""
    m, n, k = shape
    config = parse_kernel_name(XMMA90.format(tile), Gemm(m, n, k, dtype="tf32"), grid)
    tiles_m, tiles_n = -(-m // config.block_m), -(-n // config.block_n)
    a = tiles_m * config.block_m * tiles_n / config.cluster_n  # rows of a box outside the matrix are read too
    assert a + n * tiles_m / config.cluster_m == rows
