"""What a CTA takes of an SM: against the compiler's figures and by hand; what does not fit is refused by how much."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest

import hwmodels
from hwmodels import list_gpus, load_gpu
from hwmodels.errors import ConfigError
from sim.schedule.config import FAMILIES, KernelConfig
from sim.schedule.menu import families, loads_for, menu, menu_data
from sim.schedule.names import parse_kernel_name
from sim.schedule.resources import (
    occupancy,
    register_need,
    registers_per_thread,
    smem_bytes,
    spill_bytes_per_thread,
    wgmma_tile,
)
from workloads import Gemm

MEASURED = Path(hwmodels.__file__).parent / "measured" / "h200_sxm"
H200 = load_gpu("h200_sxm")
A100 = load_gpu("a100_sxm_80gb")
T4 = load_gpu("t4")
SQUARE = Gemm(4096, 4096, 4096)


def tile(
    block_m: int = 128, block_n: int = 128, block_k: int = 64, stages: int = 3, warps: int = 4, **more: Any
) -> KernelConfig:
    mma = "wgmma" if block_m >= 64 else "mma_sync"
    return KernelConfig("multistage", block_m, block_n, block_k, stages, warps, **{"mma": mma, **more})


def nvjet(name: str, gemm: Gemm = SQUARE) -> KernelConfig:
    return parse_kernel_name(f"nvjet_sm90_tst_{name}", gemm)


@cache
def sweep() -> list[tuple[dict[str, str], Gemm, KernelConfig]]:
    with open(MEASURED / "tile_sweep.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = []
    for row in rows:
        block_m, block_n, block_k, stages, warps, group = (
            int(row[key]) for key in ("block_m", "block_n", "block_k", "stages", "warps", "group_m")
        )
        gemm = Gemm(int(row["m"]), int(row["n"]), int(row["k"]))
        found.append((row, gemm, tile(block_m, block_n, block_k, stages, warps, group=group)))
    return found


# Against what compilers reported.
def test_shared_memory_is_exact_on_the_tile_sweep():
    assert len(sweep()) == 1377
    assert all(smem_bytes(config, gemm, H200) == int(float(row["smem"])) for row, gemm, config in sweep())


def test_shared_memory_of_nvjet_is_ring_epilogue_and_barriers():
    with open(MEASURED / "gemm.csv", newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["kernel"].startswith("nvjet")]
    off = []
    for row in rows:
        dtype = "fp8_e4m3" if row["dtype"] == "fp8" else row["dtype"]
        gemm = Gemm(int(row["m"]), int(row["n"]), int(row["k"]), dtype=dtype, layout=row["layout"])
        config = parse_kernel_name(row["kernel"], gemm, row["grid"], row["block"])
        fit = occupancy(config, gemm, H200)
        assert (fit.ctas_per_sm, fit.registers_per_thread) == (1, int(float(row["regs"])))
        off.append(abs(fit.smem_bytes_per_cta - int(float(row["smem"]))))
    assert len(off) == 771
    assert max(off) <= 64  # barriers that we do not know
    assert sum(distance == 0 for distance in off) == 519


def test_registers_are_near_the_compiler_s():
    distinct = {(replace(config, group=1), int(float(row["regs"]))) for row, _, config in sweep()}
    errors = [registers_per_thread(config, SQUARE, H200) / regs - 1 for config, regs in distinct]
    assert len(errors) == 225
    assert median(map(abs, errors)) < 0.03
    assert mean(map(abs, errors)) < 0.05
    assert max(map(abs, errors)) < 0.2


def test_occupancy_from_formulas_is_the_one_from_the_compiler_s_figures():
    same = 0
    for row, gemm, config in sweep():
        known = replace(config, registers_per_thread=int(float(row["regs"])), smem_bytes=int(float(row["smem"])))
        by_formula, by_compiler = occupancy(config, gemm, H200), occupancy(known, gemm, H200)
        assert abs(by_formula.ctas_per_sm - by_compiler.ctas_per_sm) <= 3
        same += by_formula.ctas_per_sm == by_compiler.ctas_per_sm
    assert same >= 0.96 * len(sweep())


# By hand.
@pytest.mark.parametrize(
    ("config", "ctas", "limit"),
    [
        (tile(registers_per_thread=128, smem_bytes=100_000), 2, "shared memory"),
        (tile(registers_per_thread=128, smem_bytes=0), 4, "registers"),  # 65536 / (128 x 128)
        (
            tile(registers_per_thread=129, smem_bytes=0),
            3,
            "registers",
        ),  # 136 allotted: 3 warps a scheduler
        (tile(warps=8, registers_per_thread=32, smem_bytes=0), 8, "registers"),
        (tile(warps=16, registers_per_thread=16, smem_bytes=1), 4, "threads"),
        (tile(32, 32, 32, warps=1, registers_per_thread=16, smem_bytes=0), 32, "ctas"),
        (tile(registers_per_thread=40, smem_bytes=115_712), 2, "shared memory"),  # (115712 + 1024) x 2 = 228 KiB
        (tile(registers_per_thread=40, smem_bytes=115_713), 1, "shared memory"),
    ],
)
def test_occupancy_by_hand(config, ctas, limit):
    fit = occupancy(config, SQUARE, H200)
    assert (fit.ctas_per_sm, fit.limit) == (ctas, limit)
    assert fit.warps_per_sm == ctas * config.warps


def test_warp_specialised_kernels_take_the_whole_register_file():
    coop, pingpong = nvjet("256x128_64x4_1x2_h_bz_coopA_TNT"), nvjet("128x128_64x6_2x1_v_bz_TNT")
    assert registers_per_thread(coop, SQUARE, H200) == 168
    assert register_need(coop, SQUARE, H200) - register_need(pingpong, SQUARE, H200) == 0  # 128 accumulators each
    assert wgmma_tile(coop) == (128, 128)
    assert wgmma_tile(pingpong) == (128, 128)
    assert wgmma_tile(nvjet("320x128_64x3_1x2_h_bz_coopB_TNT")) == (320, 64)


def test_boxes_of_operands_along_m_or_n_are_padded_to_128_bytes():
    name = "96x128_64x6_2x1_v_bz_NTN"
    along_k, along_mn = SQUARE, replace(SQUARE, layout="nt")
    grown = smem_bytes(nvjet(name, along_mn), along_mn, H200) - smem_bytes(nvjet(name, along_mn), along_k, H200)
    assert grown == 6 * 32 * 64 * 2  # 96 columns of B become 128


def test_too_many_accumulators_spill_in_multistage_kernels():
    huge = tile(256, 256, 32, stages=2, warps=4)
    assert registers_per_thread(huge, SQUARE, H200) == 255
    assert spill_bytes_per_thread(huge, SQUARE, H200) == 4 * (register_need(huge, SQUARE, H200) - 255) > 1024
    assert occupancy(huge, SQUARE, H200).spill_bytes_per_thread > 1024
    assert spill_bytes_per_thread(tile(), SQUARE, H200) == 0


@pytest.mark.parametrize("gpu", [load_gpu(name) for name in list_gpus()], ids=list_gpus())
def test_more_of_everything_never_lowers_occupancy(gpu):
    config = tile(64, 64, 32, stages=2, mma="mma_sync", loads="ldg")
    gemm = replace(SQUARE, dtype="fp16")
    before = occupancy(config, gemm, gpu).ctas_per_sm
    roomier = load_gpu(
        gpu.name, [f"smem.kib_per_sm={gpu.smem.kib_per_sm * 2}", f"registers.per_sm={gpu.registers.per_sm * 2}"]
    )
    assert occupancy(config, gemm, roomier).ctas_per_sm >= before >= 1
    assert occupancy(replace(config, block_n=128), gemm, gpu).ctas_per_sm <= before


# Refusals.
@pytest.mark.parametrize(
    ("config", "gemm", "gpu", "message"),
    [
        (
            tile(256, 256, 64, stages=4),
            SQUARE,
            H200,
            "= 262144 B: at most 232448 B a CTA on h200_sxm, 29696 B too many",
        ),
        (
            tile(registers_per_thread=300),
            SQUARE,
            H200,
            "registers_per_thread = 300: at most 255 on h200_sxm, 45 too many",
        ),
        (nvjet("512x64_64x2_2x1_v_bz_TNT"), SQUARE, H200, "= 278: at most 240, 38 too many"),
        (tile(warps=33), SQUARE, H200, "warps = 33"),
        (tile(stages=0), SQUARE, H200, "stages = 0: must be an integer from 1"),
        (tile(block_k=True), SQUARE, H200, "block_k = True"),
        (tile(block_m=128.0), SQUARE, H200, "block_m = 128.0"),  # type: ignore[arg-type]
        (tile(block_m=96), SQUARE, H200, "M side of a wgmma tile = 96: must be a multiple of 64"),
        (tile(block_n=1), SQUARE, H200, "N side of a wgmma tile = 1: must be a multiple of 8"),
        (tile(block_n=100), SQUARE, H200, "N side of a wgmma tile = 100: must be a multiple of 8"),
        (tile(block_k=8), SQUARE, H200, "k bytes of a wgmma tile = 16: must be a multiple of 32"),
        (tile(24, 64), SQUARE, H200, "M side of a mma_sync tile = 24: must be a multiple of 16"),
        (tile(warps=2), SQUARE, H200, "warps = 2: must be whole warpgroups"),
        (tile(), SQUARE, A100, "mma = 'wgmma': must be mma_sync or fma on a100_sxm_80gb"),
        (tile(mma="mma_sync"), replace(SQUARE, dtype="fp8_e4m3"), A100, "dtype = 'fp8_e4m3' with mma = 'mma_sync'"),
        (tile(mma="mma_sync", loads="ldg"), SQUARE, T4, "dtype = 'bf16' with mma = 'mma_sync'"),
        (tile(mma="mma_sync"), replace(SQUARE, dtype="fp32"), H200, "dtype = 'fp32' with mma = 'mma_sync'"),
        (tile(), replace(SQUARE, dtype="fp8_e4m3", layout="nn"), H200, "layout = 'nn': must be tn for wgmma"),
        (tile(mma="mma_sync"), replace(SQUARE, dtype="fp16"), T4, "loads = 'cp_async'"),
        (tile(), Gemm(64, 64, 101), H200, "leading dimension of A = 202 B: must be a multiple of 4 B"),
        (
            nvjet("64x64_64x4_1x1_h_bz_TNT"),
            Gemm(64, 64, 68),
            H200,
            "leading dimension of A = 136 B: must be a multiple of 16 B",
        ),
        (
            nvjet("64x64_64x4_1x1_h_bz_TNT"),
            replace(SQUARE, ldc=4097),
            H200,
            "leading dimension of C = 8194 B: must be a multiple of 16 B with loads = 'tma'",
        ),
        (
            replace(nvjet("64x64_64x4_1x1_h_bz_TNT"), family="split_k", split_k=2),
            Gemm(64, 68, 4096),
            H200,
            "leading dimension of C = 136 B: must be a multiple of 16 B with loads = 'tma'",
        ),
        (nvjet("64x64_64x4_4x8_h_bz_TNT"), SQUARE, H200, "cluster = 8x4: at most 16 CTAs"),
        (nvjet("64x8_64x4_16x1_h_bz_TNT"), SQUARE, H200, "block_m = 8: must be a multiple of 16"),
        (tile(mma="mma_sync", cluster_m=2), SQUARE, A100, "cluster = 2x1: must be 1x1 on a100_sxm_80gb"),
        (tile(cluster_m=2), SQUARE, H200, "cluster = 2x1: must be 1x1 with loads = 'cp_async'"),
        (tile(loads="ldg", cluster_n=4), SQUARE, H200, "cluster = 1x4: must be 1x1 with loads = 'ldg'"),
        (
            replace(tile(cluster_n=2, split_k=2), family="split_k"),
            SQUARE,
            H200,
            "cluster = 1x2: must be 1x1 with loads = 'cp_async'",
        ),
        (
            replace(tile(split_k=65), family="split_k"),
            SQUARE,
            H200,
            "split_k = 65: must be 1 to 64, the k-iterations of k = 4096",
        ),
        (tile(raster="h"), SQUARE, H200, "raster = 'h': must be one of m, n"),
        (replace(tile(), family="persistent"), SQUARE, H200, "loads = 'cp_async': must be tma"),
        (replace(tile(), family="stream_k"), SQUARE, H200, "family = 'stream_k'"),
    ],
)
def test_refusals_say_what_and_by_how_much(config, gemm, gpu, message):
    with pytest.raises(ConfigError) as refused:
        occupancy(config, gemm, gpu)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"registers_per_thread": 0},
        {"registers_per_thread": -1},
        {"registers_per_thread": "x"},
        {"registers_per_thread": 1.5},
        {"registers_per_thread": True},
        {"smem_bytes": -1},
        {"smem_bytes": math.nan},
        {"n_ctas": 0},
        {"n_ctas": -5},
        {"n_ctas": "x"},
        {"spill_bytes_per_thread": -1},
        {"spill_bytes_per_thread": None},
        {"load_bytes": 3},
        {"load_bytes": 32},
        {"load_bytes": None},
        {"pingpong": "no"},
        {"pingpong": 1},
        {"name": 5},
        {"name": None},
        {"raster": ["m"]},
        {"stages": 10**5000},
        {"family": None},
        {"family": "split_k", "split_k": 1},
        {"family": "multistage", "split_k": 2},
        {"family": "persistent", "split_k": 2, "loads": "tma", "warps": 12},
    ],
    ids=lambda wrong: "-".join(
        f"{key}={str(value)[:9] if key != 'stages' else 'huge'}" for key, value in wrong.items()
    ),
)
def test_a_field_that_cannot_be_is_refused_by_name(wrong):
    with pytest.raises(ConfigError, match=f"({'|'.join(wrong)}) = .*must be") as refused:
        occupancy(replace(tile(), **wrong), SQUARE, H200)
    assert str(refused.value).isprintable()


def test_what_is_short_is_what_is_blamed():
    with pytest.raises(
        ConfigError, match=r"shared memory of one CTA .*steps of 1048576 B: an SM of h200_sxm has 233472"
    ):
        occupancy(tile(), SQUARE, load_gpu("h200_sxm", ["smem.allocation_bytes=1048576"]))
    with pytest.raises(ConfigError, match="registers of one CTA = 255 x 512 threads"):
        occupancy(tile(warps=16, registers_per_thread=255), SQUARE, H200)


def test_a_missing_type_is_answered_with_those_there_are():
    with pytest.raises(ConfigError, match="tensor cores of a100_sxm_80gb have: fp64, tf32, fp16, bf16, int8"):
        occupancy(tile(mma="mma_sync"), replace(SQUARE, dtype="fp8_e4m3"), A100)


# Menus.
@pytest.mark.parametrize("name", list_gpus())
def test_everything_on_a_menu_fits_and_is_distinct(name):
    gpu = load_gpu(name)
    for gemm in (replace(SQUARE, dtype="fp16"), Gemm(1, 1, 1, dtype="fp16"), Gemm(77, 101, 65, dtype="fp32")):
        offered = families(gpu, gemm)
        assert "multistage" in offered
        for family in offered:
            configs = menu(gpu, family, gemm)
            assert len(set(configs)) == len(configs)
            assert {config.family for config in configs} == {family}
            assert all(occupancy(config, gemm, gpu).ctas_per_sm >= 1 for config in configs[::7])


def test_persistent_menu_is_the_tiles_seen_in_the_names():
    bf16 = {replace(config, split_k=1) for config in menu(H200, "persistent", SQUARE)}
    seen = set()
    with open(MEASURED / "gemm.csv", newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["kernel"].startswith(("nvjet_sm90_tst", "nvjet_sm90_hsh")):
                sizes = (int(row[key]) for key in "mnk")
                gemm = Gemm(*sizes, dtype=row["dtype"], layout=row["layout"])
                config = parse_kernel_name(row["kernel"], gemm, row["grid"])
                seen.add(replace(config, name="", n_ctas=None, split_k=1, family="persistent"))
    assert bf16 == seen
    assert len(seen) == 158


def test_multistage_menu_covers_the_sweep():
    offered = set(menu(H200, "multistage", SQUARE))
    swept = {config for _, gemm, config in sweep() if gemm == SQUARE}
    assert len(swept) == 140
    assert swept <= offered


def test_menus_follow_the_hardware():
    assert families(A100, SQUARE) == ("multistage", "split_k")
    assert families(H200, SQUARE) == FAMILIES
    assert {config.mma for config in menu(A100, "multistage", replace(SQUARE, dtype="fp32"))} == {"fma"}
    assert {config.loads for config in menu(T4, "multistage", replace(SQUARE, dtype="fp16"))} == {"ldg"}
    assert all(config.split_k > 1 for config in menu(H200, "split_k", Gemm(16, 4096, 16384)))
    assert loads_for(Gemm(8, 8, 101), H200) == "ldg"


def test_menus_refuse_with_the_first_reason():
    with pytest.raises(ConfigError, match=r"persistent.*leading dimension of A = 202 B"):
        menu(H200, "persistent", Gemm(64, 64, 101))
    with pytest.raises(ConfigError, match=r"persistent.*not in the menu of ampere"):
        menu(A100, "persistent", SQUARE)
    with pytest.raises(ConfigError, match=r"^dtype = 'bf16': t4 has no bf16; it has fp16, int8 on tensor cores; "):
        menu(T4, "multistage", SQUARE)
    with pytest.raises(ConfigError, match="no fp8_e5m2; it has fp64, tf32, fp16, bf16, int8 on tensor cores; "):
        menu(A100, "multistage", replace(SQUARE, dtype="fp8_e5m2"))
    with pytest.raises(ConfigError, match="family = 'gemv'"):
        menu(H200, "gemv", SQUARE)
    with pytest.raises(ConfigError, match="architecture = 'pascal'"):
        menu_data("pascal")
