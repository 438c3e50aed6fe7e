"""Kernels for operands not aligned to 16 B, and the other older kernels: L1, short MMAs, masks, slices in place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hwmodels import load_gpu
from sim import simulate
from sim.schedule import narrow
from sim.schedule.beside import reduction
from sim.schedule.config import KernelConfig
from sim.schedule.instructions import tensor_rate
from sim.schedule.names import parse_kernel_name
from sim.schedule.plan import build_plan, store_cycles
from sim.validation.replay import gemm_of, named_config
from sim.validation.tables import Inputs
from tests.kernel_runs import multistage, persistent, run, whole_gpu
from workloads import Gemm

H200 = load_gpu("h200_sxm")
BANKS = H200.smem.banks
HEAD = Gemm(64, 50304, 768)
"""Rows of 1,536 B, a multiple of 128: all rows start in one bank."""


def unaligned(load_bytes: int = 2, **more: object) -> KernelConfig:
    """A 64x64x32 tile of mma.sync whose operands come through registers."""
    return multistage(64, 64, 32, 2, mma="mma_sync", loads="ldg", loop="cutlass", load_bytes=load_bytes, **more)


# One warp's load.
@pytest.mark.small
@pytest.mark.parametrize(
    ("pitch", "width", "row_lanes", "expected"),
    [
        (1536, 2, 4, (8, 8)),  # 8 rows of 4 lanes, all in the same banks
        (1536 + 16, 2, 4, (4, 11)),  # rows 16 B on: 8 banks for 32 lanes, three rows across two lines
        (1024, 4, 8, (4, 4)),  # 4 rows of 128 B
        (1024 + 64, 4, 8, (4, 6)),  # every other row lies across two lines
    ],
)
def test_banks_and_lines_of_one_warp_s_load(pitch, width, row_lanes, expected):
    assert narrow.load_pattern(pitch, width, row_lanes, BANKS) == expected


@pytest.mark.small
def test_rows_of_odd_pitch_touch_lines_but_share_no_bank():
    """4 lanes span 50 B, starting at any even offset of a 128 B line: 24 of 64 starts cross into the next one."""
    fullest, lines = narrow.load_pattern(2366, 2, 4, BANKS)
    assert lines == 8 * (1 + 24 / 64)
    assert fullest < lines * H200.multistage.l1_line_cycles


# One iteration.
@pytest.mark.small
def test_an_iteration_takes_l1_loads_and_stores():
    """Each operand: 64 loads of 64 B a warp, 8 cycles each, and 4 KiB stored to shared memory."""
    work = build_plan(HEAD, unaligned(), H200).work
    assert narrow.l1_cycles(HEAD, unaligned(), H200) == 2 * (64 * 8 + 4096 / 128)
    assert work.fill_smem_x16 == 16 * 2 * (64 * 8 + 32)


@pytest.mark.small
def test_rows_outside_the_matrix_are_not_loaded():
    """But the zeros in their place are stored."""
    few, config = replace(HEAD, m=8), unaligned()
    assert narrow.l1_cycles(few, config, H200) == 8 * 8 + 32 + 64 * 8 + 32
    assert build_plan(few, config, H200).work.a_sm_bytes == 8 * 64
    assert build_plan(few, replace(config, loop="triton"), H200).work.a_sm_bytes == 64 * 64


@pytest.mark.small
def test_copies_write_whole_banks_of_shared_memory():
    """4 rows of 128 B a warp, read in 4 cycles and written in 4, be they 4 lines or 6."""
    config = replace(unaligned(4), loads="cp_async", block_k=64)
    loads = 64 * 64 * 2 // 128
    for k in (1024, 1056):
        assert narrow.l1_cycles(Gemm(64, 64, k), config, H200) == 2 * loads * (4 + 4)


@pytest.mark.small
def test_aligned_copies_cost_what_they_did():
    config = multistage(mma="mma_sync")
    assert not narrow.is_narrow(HEAD, config)
    assert build_plan(HEAD, config, H200).work.fill_smem_x16 == 16 * (128 + 128) * 128 // 128


@pytest.mark.parametrize("m", [64, 4096])
def test_narrower_loads_are_slower(m):
    times = [simulate(replace(HEAD, m=m), H200, config=unaligned(width)).time_s for width in (16, 8, 4, 2)]
    assert times == sorted(times)
    assert times[-1] > 1.3 * times[0]


def test_many_ctas_are_bound_by_l1():
    """Two CTAs an SM hide each other's latency: what is left is the time of the shared data path."""
    gemm, config = Gemm(4096, 132 * 64, 1024), unaligned()
    work = build_plan(gemm, config, whole_gpu()).work
    result = run(gemm, config, whole_gpu())
    an_iteration = (work.fill_smem_x16 + work.mma_smem_x16) / 16
    least = work.n_items / 132 * (work.n_k * an_iteration + work.epi_smem_x16 / 16)
    assert least <= result.sm_cycles < 1.1 * least


# Outside the main loop.
@pytest.mark.small
def test_narrow_kernels_start_late_and_store_element_by_element():
    work, wide = (build_plan(HEAD, unaligned(width), H200).work for width in (2, 16))
    stores = narrow.STORE_INSTRUCTIONS * 64 * 64 / 128
    assert work.start_cycles - wide.start_cycles == round(2 * narrow.START_INSTRUCTIONS)
    assert (work.fused_cycles, wide.fused_cycles) == (round(4 * stores), 0)
    assert work.epi_smem_x16 == round(16 * (narrow.START_INSTRUCTIONS + stores))


@pytest.mark.small
def test_fused_operations_take_their_time_in_the_epilogue():
    """GELU and bias are 10 operations an element, one behind another; a bias alone hides behind the stores."""
    plain, bias, gelu = (Gemm(4096, 4096, 4096, epilogue=epilogue) for epilogue in ("none", "bias", "bias_gelu"))
    fused = [build_plan(gemm, persistent(), H200).work.fused_cycles for gemm in (plain, bias, gelu)]
    assert fused == [0, 4 * 128 * 128 // 256, 4 * 10 * 128 * 128 // 256]
    assert fused[1] < store_cycles(plain, persistent(), H200) < fused[2]


# Instructions.
@pytest.mark.small
def test_short_instructions_are_slower():
    config = multistage(mma="mma_sync")
    short = replace(config, mma_k_bytes=16)
    ratio = tensor_rate(HEAD, short, H200) / tensor_rate(HEAD, config, H200)
    assert ratio == pytest.approx(H200.tensor.short_mma_fraction)


@pytest.mark.parametrize(
    ("name", "k_bytes"),
    [
        ("cutlass_75_tensorop_bf16_s1688gemm_bf16_64x64_tn_align1", 16),
        ("cutlass_80_tensorop_bf16_s16816gemm_bf16_64x64_32x6_tt_align2", 32),
        ("turing_h1688gemm_256x64_ldg8_stages_32x3_tn", 16),
    ],
)
def test_names_tell_the_depth_of_an_instruction(name, k_bytes):
    assert parse_kernel_name(name).mma_k_bytes == k_bytes


@pytest.mark.small
def test_loops_of_cutlass_issue_copies_between_mmas():
    work = build_plan(HEAD, multistage(mma="mma_sync", loop="cutlass"), H200).work
    assert work.issue_cycles == 0
    assert build_plan(HEAD, multistage(mma="mma_sync"), H200).work.issue_cycles > 0


# Split-K.
SERIAL = "cutlass_75_tensorop_bf16_s1688gemm_bf16_64x64_tn_align1"


@pytest.mark.parametrize(
    ("others", "in_place"),
    [("", False), ("Memset (Device)", True), ("void cublasLt::splitKreduce_kernel<32>", False)],
)
def test_a_memset_without_a_reduction_means_slices_in_place(others, in_place):
    inputs = Inputs("gemm", 32, 50257, 768, kernel=SERIAL, grid=(8, 99, 2), block=(128, 1, 1), other_kernels=others)
    assert named_config(inputs, gemm_of(inputs)).split_in_place is in_place


def test_slices_in_place_store_c_and_need_no_reduction():
    gemm, config = Gemm(256, 256, 8192), multistage(split_k=4)
    apart, in_place = (simulate(gemm, H200, config=replace(config, split_in_place=flag)) for flag in (False, True))
    assert [kernel.name for kernel in apart.kernels][1:] == ["split-K reduction"]
    assert [kernel.name for kernel in in_place.kernels][:-1] == ["memset"]
    assert 2 * in_place.main.bytes["sm"]["write"] == apart.main.bytes["sm"]["write"]


@pytest.mark.small
def test_many_slices_are_added_one_after_another():
    few, many = (reduction(H200, Gemm(2, 79, 16921), slices).time_s for slices in (16, 116))
    cycles = 100 * H200.l2.latency_cycles / 4
    assert many == pytest.approx(H200.split_k.reduce_floor_us * 1e-6 + cycles / (H200.clock.boost_mhz * 1e6))
    assert few < H200.split_k.reduce_floor_us * 1.01e-6


def test_long_work_on_cuda_cores_keeps_the_clock():
    gemm = Gemm(512, 512, 512, dtype="fp32")
    config = multistage(64, 64, 16, 2, mma="fma")
    fallen = load_gpu("h200_sxm", ["activity.late_us=0"])  # as the clock of a long load is from the start
    once, long = (simulate(gemm, fallen, config=config, sustained=flag).time_s for flag in (False, True))
    assert once == long
