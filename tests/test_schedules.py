"""From a GEMM and a configuration to work items: order, placement, slices, chunks, instructions, padding."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels import list_gpus, load_gpu, measured_path
from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.machine import build_machine, gpc_sides, gpc_sizes, place
from sim.schedule.config import KernelConfig
from sim.schedule.instructions import is_serial
from sim.schedule.launches import CLUSTER_SLOTS
from sim.schedule.plan import Plan, build_plan, sectors_per_piece
from tests.kernel_runs import multistage, persistent, places
from workloads import Gemm

H200 = load_gpu("h200_sxm")
SQUARE = Gemm(4096, 4096, 4096)
each_gpu = pytest.mark.parametrize("gpu", [load_gpu(name) for name in list_gpus()], ids=list_gpus())


def plan(gemm: Gemm = SQUARE, config: KernelConfig | None = None, gpu: Gpu = H200, full: bool = False) -> Plan:
    return build_plan(gemm, config or multistage(), gpu, full)


# Rasterisation.
def rasters(raster: str, group: int, m: int = 5, n: int = 3) -> list[tuple[int, int]]:
    """(row, column) of a grid of m x n tiles, in launch order."""
    work = plan(Gemm(m * 128, n * 128, 64), multistage(raster=raster, group=group)).work
    return [(row, column) for _, _, row, column in places(work)]


@pytest.mark.small
def test_plain_order_walks_along_n():
    assert rasters("m", 1, 2, 3) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


@pytest.mark.small
def test_groups_walk_down_their_rows_first():
    """Triton's GROUP_M: two rows at a time, the last group shorter."""
    first_group = [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]
    last_group = [(4, 0), (4, 1), (4, 2)]
    order = rasters("m", 2)
    assert order[:6] == first_group
    assert order[-3:] == last_group


@pytest.mark.small
def test_raster_along_n_is_the_transpose():
    for group in (1, 2, 4):
        assert rasters("n", group, 3, 5) == [(row, column) for column, row in rasters("m", group, 5, 3)]


@pytest.mark.small
@settings(max_examples=60)
@given(
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(1, 20),
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from("mn"),
)
def test_every_tile_of_every_slice_is_walked_once(m, n, group, batch, split, raster):
    gemm = Gemm(m * 64, n * 64, 256, batch=batch)
    work = plan(gemm, multistage(64, 64, 64, 2, raster=raster, group=group, split_k=split)).work
    walked = places(work)
    splits = -(-4 // -(-4 // split))
    expected = {(b, s, r, c) for b in range(batch) for s in range(splits) for r in range(m) for c in range(n)}
    assert len(walked) == len(expected)
    assert set(walked) == expected


# Where CTAs sit.
@pytest.mark.small
@each_gpu
def test_gpcs_hold_all_sms(gpu):
    sizes = gpc_sizes(gpu.sm)
    assert sum(sizes) == gpu.sm.count
    assert max(sizes) <= gpu.sm.tpcs_per_gpc * gpu.sm.sms_per_tpc
    assert max(sizes) - min(sizes) <= gpu.sm.sms_per_tpc


@pytest.mark.small
@pytest.mark.parametrize("ctas_per_sm", [1, 3])
@each_gpu
def test_plain_grids_fill_one_gpc_after_another_one_cta_an_sm(gpu, ctas_per_sm):
    placement = place(gpu, ctas_per_sm, 1)
    assert list(placement.sm) == list(range(gpu.sm.count)) * ctas_per_sm
    assert Counter(placement.gpc.tolist()) == {g: n * ctas_per_sm for g, n in enumerate(gpc_sizes(gpu.sm))}
    assert list(placement.gpc[: gpu.sm.count]) == sorted(placement.gpc[: gpu.sm.count])


@pytest.mark.small
@pytest.mark.parametrize("size", [2, 4, 8, 16])
@each_gpu
def test_clusters_sit_inside_a_gpc_and_share_no_sm(gpu, size):
    sizes = gpc_sizes(gpu.sm)
    first = [sum(sizes[:g]) for g in range(len(sizes))]
    placement = place(gpu, 1, size)
    taken = [(sm + i, gpc) for sm, gpc in zip(placement.sm, placement.gpc, strict=True) for i in range(size)]
    assert len({sm for sm, _ in taken}) == len(taken)
    assert all(first[gpc] <= sm < first[gpc] + sizes[gpc] for sm, gpc in taken)


@pytest.mark.small
@pytest.mark.parametrize(("size", "slots"), [(1, 132), (2, 66), (4, 30), (8, 15)])
def test_cluster_slots_of_an_h200_are_those_measured(size, slots):
    """Grids of cuBLAS's kernels. Six GPCs of 16 SMs (eight of them in lone TPCs, for pairs at most) and two of 18:
    2 + 5 x 4 + 2 x 4 clusters of four."""
    assert gpc_sizes(H200.sm) == [16] * 6 + [18] * 2
    assert len(place(H200, 1, size).sm) == slots == CLUSTER_SLOTS[size]


@cache
def placed() -> list[tuple[int, list[int]]]:
    """(CTAs of a cluster, first SM of each) of the grids of merging.csv, place_policy."""
    with measured_path("h200_sxm", "merging").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["bench"] == "place_policy"]
    sizes = [int(row["param1"].removeprefix("cluster=").partition("x")[0]) for row in rows]
    return [(size, [int(sm) for sm in row["value"].split(";")]) for size, row in zip(sizes, rows, strict=True)]


def gpc_of_sm() -> dict[int, int]:
    """ports.csv: lone TPCs have numbers of their own, from 8 on."""
    with measured_path("h200_sxm", "ports").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["bench"] == "gpc_of_sm"]
    return {int(row["param1"].removeprefix("sm=")): int(row["value"]) for row in rows}


@pytest.mark.small
def test_clusters_go_round_the_gpcs_as_measured():
    """How many clusters of a grid, of 8 to 66, each GPC gets, and how many the lone TPCs."""
    gpc = gpc_of_sm()
    for size, first_sms in placed():
        measured = Counter(min(gpc[sm], 8) for sm in first_sms)
        here = place(H200, 1, size, len(first_sms) * size)
        lone = 2 * H200.sm.singleton_tpcs
        slots = zip(here.sm[: len(first_sms)].tolist(), here.gpc.tolist(), strict=False)
        assert Counter(8 if sm < lone else g for sm, g in slots) == measured
    assert len(placed()) == 24


@pytest.mark.small
def test_each_partition_serves_half_of_the_gpcs():
    assert gpc_sides(8, 2).tolist() == [0, 1, 1, 1, 0, 0, 0, 1]
    assert set(gpc_sides(8, 1)) == {0}


@pytest.mark.small
@each_gpu
def test_agents_are_no_more_than_slots_or_items(gpu):
    loads, mma = ("cp_async", "mma_sync") if gpu.tensor.cp_async else ("ldg", "mma_sync")
    config = multistage(64, 64, 32, 2, mma=mma, loads=loads)
    for gemm in (Gemm(64, 64, 64, dtype="fp16"), Gemm(8192, 8192, 64, dtype="fp16")):
        found = plan(gemm, config, gpu)
        assert found.work.n_agents == min(found.n_slots, found.work.n_items)
        assert found.n_slots == gpu.sm.count * found.occupancy.ctas_per_sm
        assert build_machine(gpu, None, ()).gpc_side[found.placement.gpc].max() < gpu.l2.partitions


@pytest.mark.small
def test_persistent_ctas_are_as_many_as_launched():
    assert plan(config=persistent(n_ctas=100)).work.n_agents == 100
    assert plan(config=persistent(cluster_m=2, n_ctas=100)).work.n_agents == 50
    assert plan(config=persistent()).work.n_agents == 132
    assert plan(Gemm(128, 256, 64), persistent(n_ctas=100)).work.n_agents == 2


@pytest.mark.small
def test_a_cluster_that_no_gpc_holds_is_refused():
    few = load_gpu("h200_sxm", ["sm.count=8"])
    with pytest.raises(ConfigError, match="cluster = 2x2"):
        plan(config=persistent(cluster_m=2, cluster_n=2), gpu=few)


# Slices, chunks, iterations.
@pytest.mark.small
@settings(max_examples=60)
@given(st.integers(1, 40), st.integers(1, 40))
def test_slices_are_even_and_leave_none_empty(n_k, split):
    split = min(split, n_k)
    work = plan(Gemm(128, 128, 64 * n_k), multistage(split_k=split)).work
    assert (work.splits - 1) * work.k_per_split < work.n_k <= work.splits * work.k_per_split
    assert work.k_per_split == -(-n_k // split)
    assert work.n_items == work.splits <= split


@pytest.mark.small
@pytest.mark.parametrize("config", [multistage(), persistent(cluster_m=2), multistage(split_k=3)])
def test_chunks_of_a_b_and_c_follow_each_other(config):
    work = plan(Gemm(1000, 304, 504, batch=2), config).work
    tiles_m, tiles_n = work.grid_m * config.cluster_m, work.grid_n * config.cluster_n
    assert work.first_b == 2 * tiles_m * work.n_k
    assert work.first_c - work.first_b == 2 * tiles_n * work.n_k
    assert work.n_chunks - work.first_c == 2 * work.splits * tiles_m * tiles_n


@pytest.mark.small
@pytest.mark.parametrize(
    ("k", "n_k", "last_x256"), [(64, 1, 256), (65, 2, 4), (96, 2, 128), (32, 1, 256), (127, 2, 252)]
)
def test_the_last_iteration_reads_what_is_left_of_k(k, n_k, last_x256):
    work = plan(Gemm(128, 128, k), multistage(loads="ldg")).work
    assert (work.n_k, work.last_k_x256) == (n_k, last_x256)


@pytest.mark.small
def test_a_multistage_ring_has_one_load_fewer_in_flight_than_stages():
    assert [plan(config=multistage(stages=s)).work.depth for s in (1, 2, 3, 4)] == [1, 1, 2, 3]
    assert [plan(config=persistent(stages=s)).work.depth for s in (1, 2, 3, 4)] == [1, 2, 3, 4]


# Bytes of a row piece.
@pytest.mark.small
@pytest.mark.parametrize(
    ("piece", "pitch", "expected"),
    [
        (128, 8192, 128),  # aligned: whole sectors
        (100, 8192, 128),  # begins aligned: four sectors
        (128, 8208, 144),  # half the rows begin 16 B into a sector
        (2, 2, 32),  # one element never straddles
        (32, 2, 62),  # any even offset: one sector in one row of 16, else two
        (64, 1, 95),
    ],
)
def test_sectors_a_row_piece_touches(piece, pitch, expected):
    assert sectors_per_piece(piece, pitch, 32) == expected


@pytest.mark.small
def test_operands_take_their_bytes_from_l2_in_sectors():
    """Loads through L1 find the sector that two pieces share there."""
    aligned, odd = (plan(Gemm(256, 256, k)).work for k in (1024, 1032))
    assert aligned.a_l2_bytes == aligned.b_l2_bytes == 256 * 128
    assert odd.a_l2_bytes == 256 * sectors_per_piece(128, 2064, 32) > 256 * 128
    assert plan(Gemm(256, 256, 1001), multistage(loads="ldg")).work.a_l2_bytes == 256 * 128
    assert plan(Gemm(256, 256, 1024)).work.a_dram_bytes == 256 * 128


# Instructions.
@pytest.mark.small
@pytest.mark.parametrize("block_n", [8, 64, 128, 256])
def test_wgmma_takes_half_of_n_cycles(block_n):
    """m64nNk16: N / 2 cycles of an SM; a 128 x N x 64 tile is eight of them."""
    work = plan(config=multistage(128, block_n, 64, 2, warps=8)).work
    assert work.mma_x16 / 16 == 8 * block_n / 2


@pytest.mark.small
def test_wgmma_reads_both_operands_for_every_instruction():
    work = plan(config=multistage(128, 256, 64, 2, warps=8)).work
    assert work.smem_bytes_per_mma == 8 * (64 + 256) * 32
    assert work.mma_smem_x16 / 16 == 8 * (64 + 256) * 32 / H200.smem.bytes_per_clk


@pytest.mark.parametrize(("block_m", "warps", "n"), [(64, 8, 64), (64, 4, 128), (128, 8, 128), (64, 16, 32)])
def test_warpgroups_without_rows_of_their_own_share_the_columns(block_m, warps, n):
    """Triton: along m first, so that each warpgroup of a tile of 64 rows reads all of A and its part of B."""
    work = plan(config=multistage(block_m, 128, 64, 2, warps=warps)).work
    assert work.smem_bytes_per_mma == block_m // 64 * 128 // n * 4 * (64 + n) * 32
    assert work.mma_x16 == 16 * 2 * block_m * 128 * 64 // 4096


@pytest.mark.parametrize(
    ("block_m", "block_n", "warps", "n", "serial"),
    [
        (64, 256, 8, 4096, True), (128, 256, 8, 4096, True), (64, 256, 4, 4096, False), (128, 128, 8, 4096, False),
        (256, 128, 8, 4096, False), (256, 32, 8, 4096, False), (256, 32, 8, 5000, True), (256, 32, 4, 5000, False),
        (128, 256, 8, 5000, False), (64, 256, 8, 5000, False), (256, 64, 8, 5000, False),
    ],
)  # fmt: skip
def test_loops_are_serial_that_ptxas_warned_of(block_m, block_n, warps, n, serial):
    """Triton 3.6 and its ptxas: warning C7515, and WARPGROUP.DEPBAR.LE gsb0, 0x0 behind each HGMMA. So with C in fp32,
    half as many columns at once."""
    gemm, config = Gemm(4096, n, 4096), multistage(block_m, block_n, 64, 3, warps=warps)
    assert is_serial(gemm, config) == serial
    assert is_serial(replace(gemm, out_dtype="fp32"), config) == (warps == 8 and block_n == 128 and n == 4096) | (
        serial and n == 5000
    )
    assert not is_serial(gemm, replace(config, mma="mma_sync"))
    assert not is_serial(gemm, replace(config, loop="cutlass"))


@pytest.mark.small
@pytest.mark.parametrize(("block_m", "along", "instructions"), [(192, "m", 3), (192, "n", 2), (320, "n", 4)])
def test_wgmma_s_m_runs_along_either_side(block_m, along, instructions):
    """Along n, a side of over 256 takes two instructions: 320 two of 160."""
    config = persistent(block_m, 128, 64, 2, mma_m_along=along)
    work = plan(Gemm(3840, 4096, 4096), config).work
    width = 128 if along == "m" else block_m // (instructions // 2)
    assert work.smem_bytes_per_mma == instructions * 4 * (64 + width) * 32
    assert work.mma_x16 == 16 * 2 * block_m * 128 * 64 // 4096


@pytest.mark.small
@pytest.mark.parametrize(
    ("dtype", "config", "rate"),
    [
        ("bf16", multistage(), 4096),
        ("fp8_e4m3", multistage(block_k=128), 8192),
        ("int8", multistage(block_k=128), 8192),
        ("tf32", multistage(block_k=32), 2048),
        ("fp64", multistage(64, 64, 16, 2, mma="mma_sync"), 256),
        ("bf16", multistage(mma="mma_sync"), 4096 * H200.tensor.mma_sync_fraction),
        ("fp32", multistage(64, 64, 16, 2, mma="fma"), 256),
        ("fp64", multistage(64, 64, 16, 2, mma="fma"), 128),
    ],
)
def test_rates_by_type_and_instruction(dtype, config, rate):
    work = plan(replace(SQUARE, dtype=dtype), config).work
    flops = 2 * config.block_m * config.block_n * config.block_k
    assert work.mma_x16 == round(16 * flops / rate)


# Padding.
@pytest.mark.small
@pytest.mark.parametrize("config", [multistage(), persistent(cluster_m=2, cluster_n=2), multistage(split_k=2)])
def test_flops_are_the_operation_s_and_padding_to_whole_clusters(config):
    gemm = Gemm(1000, 520, 136, batch=3)
    side_m, side_n = config.block_m * config.cluster_m, config.block_n * config.cluster_n
    padded = [-(-extent // side) * side for extent, side in ((1000, side_m), (520, side_n), (136, 64))]
    found = plan(gemm, config)
    assert found.flops_executed == 2 * 3 * padded[0] * padded[1] * padded[2]
    assert found.flops_executed > gemm.flops
    assert plan(Gemm(1024, 512, 128), config).flops_executed == Gemm(1024, 512, 128).flops


# Sampling.
@pytest.mark.small
def test_sampling_periods_are_bands_or_waves():
    """Bands of the raster, where DRAM traffic repeats, or four waves where a band takes long."""
    large, huge = Gemm(16384, 16384, 16384), Gemm(131072, 131072, 16384)
    for group in (4, 8):
        assert plan(large, multistage(group=group)).work.sample_items == group * 128
    for config in (multistage(group=8), persistent(group=4)):
        work = plan(huge, config).work
        assert work.sample_items == 4 * work.n_agents


@pytest.mark.small
def test_one_cta_an_sm_needs_no_event_of_its_own():
    assert plan(config=persistent()).work.exclusive == 1
    assert plan(config=multistage(64, 64, 32, 2)).work.exclusive == 0
    assert plan(Gemm(128, 128, 64), multistage(64, 64, 32, 2)).work.exclusive == 1


@pytest.mark.parametrize(("tiles", "split_k", "static"), [(264, 1, 1), (265, 1, 0), (400, 2, 1)])
def test_ctas_of_more_than_two_tiles_count(tiles: int, split_k: int, static: int) -> None:
    """A persistent kernel on 132 SMs: what the memset clears hands out its tiles."""
    config = persistent(128, 128, split_k=split_k)
    plan = build_plan(Gemm(128 * tiles, 128, 1024), config, load_gpu("h200_sxm"))
    assert plan.work.static == static
