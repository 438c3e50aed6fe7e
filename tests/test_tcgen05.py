"""tcgen05 (Blackwell): accumulators in tensor memory, one or two SMs an instruction; and warps of 64 threads (AMD)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hwmodels import ConfigError, load_gpu
from sim import simulate
from sim.schedule.config import KernelConfig
from sim.schedule.instructions import instructions
from sim.schedule.menu import menu
from sim.schedule.plan import build_plan
from sim.schedule.resources import (
    consumer_threads,
    n_threads,
    occupancy,
    register_need,
    registers_per_thread,
    smem_bytes,
)
from sim.schedule.tensor_memory import tmem_bytes
from viz.explain import explain
from workloads.gemm import Gemm

B200, H200, MI300X = load_gpu("b200"), load_gpu("h200_sxm"), load_gpu("mi300x")
SQUARE = Gemm(4096, 4096, 4096, dtype="bf16")
LONE = KernelConfig(
    "persistent", 256, 128, 64, stages=4, warps=8, pingpong=True, loads="tma", mma="tcgen05", mma_m_along="n"
)
"""128 of n along the instruction's M, 256 of m along its N."""
APART = replace(LONE, cluster_n=2)
PAIR = replace(APART, pair=True)


def test_a_tile_takes_as_long_as_its_rate_says():
    cycles, _, flops = instructions(SQUARE, LONE, B200)
    assert flops == 2 * 128 * 256 * 64
    assert cycles == flops / 8192 == 512
    assert instructions(SQUARE, PAIR, B200)[0] == cycles, "a pair does twice as much on two SMs"


@pytest.mark.parametrize("m_side", [64, 192])
def test_sixty_four_rows_take_as_long_as_128(m_side):
    cycles, _, flops = instructions(SQUARE, replace(LONE, block_n=m_side, block_m=128, pingpong=False), B200)
    assert cycles * 8192 == flops * (m_side + 64) / m_side


def test_a_pair_halves_what_each_sm_reads_of_the_shared_operand():
    row_bytes = 64 * 2
    assert instructions(SQUARE, LONE, B200)[1] == (128 + 256) * row_bytes
    assert instructions(SQUARE, PAIR, B200)[1] == (128 + 128) * row_bytes
    along_m = replace(PAIR, block_m=128, block_n=256, cluster_m=2, cluster_n=1, mma_m_along="m")
    assert instructions(SQUARE, along_m, B200)[1] == (128 + 128) * row_bytes


def test_two_row_blocks_read_the_other_operand_twice():
    tall = replace(LONE, block_n=256, block_m=128, pingpong=False)
    assert instructions(SQUARE, tall, B200)[1] == (256 + 2 * 128) * 64 * 2


def test_a_pair_keeps_half_of_the_shared_operand():
    stage = {config: smem_bytes(replace(config, stages=2), SQUARE, B200) for config in (APART, PAIR)}
    more = {config: smem_bytes(replace(config, stages=3), SQUARE, B200) - stage[config] for config in stage}
    assert more[APART] - more[PAIR] == 128 * 64 * 2
    assert more[PAIR] == (128 + 128) * 64 * 2 + 24
    work = {config: build_plan(SQUARE, config, B200).work for config in (APART, PAIR)}
    assert work[APART].a_sm_bytes == 2 * work[PAIR].a_sm_bytes == 256 * 64 * 2
    assert work[APART].b_sm_bytes == work[PAIR].b_sm_bytes == 128 * 64 * 2


def test_without_multicast_sms_receive_just_what_l2_gives():
    pair, apart = (simulate(SQUARE, B200, config=config, without=("coalescing",)).main for config in (PAIR, APART))
    assert pair.bytes["sm"]["read"] == pair.bytes["l2"]["read"]
    assert apart.bytes["sm"]["read"] == pytest.approx(pair.bytes["sm"]["read"] * 3 / 2)


def test_accumulators_take_no_registers():
    assert register_need(LONE, SQUARE, B200) == register_need(replace(LONE, block_m=64), SQUARE, B200) < 64
    assert registers_per_thread(LONE, SQUARE, B200) == register_need(LONE, SQUARE, B200)
    on_hopper = replace(LONE, mma="wgmma", warps=12, pingpong=False)
    assert register_need(on_hopper, SQUARE, H200) > 128 * 256 / 256


def test_tensor_memory_bounds_the_tile():
    assert tmem_bytes(LONE) == 2 * 128 * 256 * 4 == B200.tensor.tmem_kib_per_sm * 1024
    assert tmem_bytes(replace(LONE, block_n=64)) == tmem_bytes(LONE), "half of the lanes lie idle"
    assert tmem_bytes(replace(PAIR, block_n=64)) == tmem_bytes(LONE) / 2, "a pair packs them"
    occupancy(LONE, SQUARE, B200)
    with pytest.raises(ConfigError, match="tensor memory of two tiles 264x128 = 270336 B: at most 262144 B"):
        occupancy(replace(LONE, block_m=264), SQUARE, B200)
    occupancy(replace(LONE, block_m=264, pingpong=False), SQUARE, B200)
    half = load_gpu("b200", ["tensor.tmem_kib_per_sm=128"])
    with pytest.raises(ConfigError, match="131072 B too many"):
        occupancy(LONE, SQUARE, half)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (replace(LONE, loads="cp_async", family="multistage"), "loads = 'cp_async': must be tma with tcgen05"),
        (replace(LONE, warps=4), "warps = 4: must be 8 or more"),
        (replace(LONE, block_n=96), "M side of a tcgen05 tile = 96: must be a multiple of 64"),
        (replace(LONE, pair=True), "cluster_n = 1: must be even with pair = True"),
        (replace(LONE, mma="wgmma", warps=12), "mma = 'wgmma': must be tcgen05 or mma_sync or fma on b200"),
        (replace(LONE, mma="mma_sync", pair=True, cluster_n=2), "pair = True: must be False with mma = 'mma_sync'"),
    ],
)
def test_what_tcgen05_cannot_is_refused(config, said):
    with pytest.raises(ConfigError) as refused:
        occupancy(config, SQUARE, B200)
    assert said in str(refused.value)


def test_gpus_without_tensor_memory_refuse_it():
    for gpu in (H200, load_gpu("rtx_5090"), MI300X):
        with pytest.raises(ConfigError, match="mma = 'tcgen05': must be"):
            occupancy(LONE, SQUARE, gpu)


def test_dense_products_choose_it_and_packed_weights_do_not():
    assert {config.mma for config in menu(B200, "persistent", SQUARE)} == {"tcgen05"}
    packed = Gemm(64, 4096, 4096, dtype="bf16", weights_format="int4")
    assert simulate(packed, B200).main.config["mma"] == "mma_sync"


def test_the_walk_knows_where_accumulators_and_halves_lie():
    told = " ".join(" ".join(explain(simulate(SQUARE, B200, config=PAIR, trace=True))).split())
    assert "256 × 64 of A and 64 × 128 of B, of which this CTA keeps 32 KiB" in told
    assert "a ring of 4 stages in shared memory" in told
    assert "The sums, 128 KiB in tensor memory" in told


# Warps of 64 threads.
def test_a_warp_of_amd_has_64_threads():
    tile = KernelConfig("multistage", 128, 128, 32, stages=2, warps=4, loads="ldg", mma="mma_sync")
    assert n_threads(tile, MI300X) == consumer_threads(tile, MI300X) == 256 == 2 * n_threads(tile, H200)
    assert register_need(tile, SQUARE, MI300X) < register_need(tile, SQUARE, H200)
    with pytest.raises(ConfigError, match="warps = 32: must be 1 to 16 on mi300x"):
        occupancy(replace(tile, block_m=256, block_n=256, warps=32), SQUARE, MI300X)


def test_half_as_many_waves_hold_a_tile():
    wide = KernelConfig("multistage", 128, 128, 32, stages=2, warps=4, loads="ldg", mma="mma_sync")
    fit = occupancy(wide, SQUARE, MI300X)
    assert fit.registers_per_thread - 14 > 128 * 128 / 256
    assert fit.ctas_per_sm == min(
        65536 // (2 * 2 * 128 * 64), MI300X.registers.per_sm // (fit.registers_per_thread * 256)
    )
