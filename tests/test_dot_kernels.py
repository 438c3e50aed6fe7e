"""Kernels for few rows on CUDA cores (gemmSN, gemv2T, gemvx, dot, largek): names, traffic, and time in closed form."""

from __future__ import annotations

import dataclasses

import pytest

from hwmodels import load_gpu
from hwmodels.errors import ConfigError
from sim.call import Call, Options, run_call
from sim.schedule import dots
from sim.schedule.beside import adds_in_turn, reduction
from sim.schedule.direct import l1_cycles
from sim.schedule.instructions import instructions
from sim.schedule.library import library_candidates
from sim.schedule.names import parse_kernel_name
from sim.schedule.plan import hbm_latency_fs
from workloads import Gemm

H200 = load_gpu("h200_sxm")
SMALL_N = "gemmSN_TN_kernel<float, 128, 16, 2, 4, 4, 4, true, cublasGemvTensorStridedBatched<float const>"
VECTOR = "gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false, false, cublasGemvParamsEx<int"
VECTOR_X = "internal::gemvx::kernel<int, int, float, float, float, float, false, true, true, false, 7, false>"
LARGE_K = "sgemm_largek_lds64<true, false, 6, 3, 4, 5, 2, 66>(float*, float const*)"
XMMA = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4_execute"


def run(name: str, gemm: Gemm, grid: str | None = None) -> Call:
    return run_call(gemm, parse_kernel_name(name, gemm, grid), H200, Options())


# Names.
@pytest.mark.parametrize("name", [SMALL_N, VECTOR, VECTOR_X, LARGE_K], ids=lambda name: name[:10])
def test_names_are_read_in_every_spelling(name: str) -> None:
    gemm = Gemm(1, 4096, 4096, dtype="fp32")
    config = parse_kernel_name(name, gemm)
    spelled = (
        f"void {name}",
        name.replace(",", ";"),
        name.replace(", ", ","),
        name.replace("true", "1").replace("false", "0"),
        name.replace("internal::gemvx::", "std::enable_if<!T7, void>::type internal::"),
    )
    for other in spelled:
        assert parse_kernel_name(other, gemm) == dataclasses.replace(config, name=other)


def test_columns_rows_and_trips_are_those_of_the_name_and_grid() -> None:
    gemm = Gemm(3, 1024, 8192, dtype="fp32")
    exact = parse_kernel_name(SMALL_N, gemm)
    padded = parse_kernel_name(SMALL_N.replace("true", "false"), gemm)
    assert (exact.block_m, exact.block_n, exact.block_k) == (4, 8, 128)
    assert padded.block_k == exact.block_k // 2
    one = Gemm(1, 1024, 8192, dtype="fp32")
    assert parse_kernel_name(VECTOR, one).block_k == 2 * parse_kernel_name(VECTOR.replace("4, 4", "2, 2"), one).block_k
    for ctas, columns in ((256, 4), (128, 8), (30, 64)):
        assert parse_kernel_name(VECTOR_X, one, f"{ctas}x1x1", "32x4x1").block_n == columns
    large = parse_kernel_name(LARGE_K, Gemm(8, 1024, 8192, dtype="fp32"), "16x1x9", "32x4x1")
    assert (large.block_m, large.block_n, large.block_k, large.split_k) == (8, 64, 16, 9)
    dot = parse_kernel_name("dot_kernel<float, 128, 0>", Gemm(1, 16, 12784, dtype="tf32"), "66x1x16")
    assert (dot.split_k, dot.block_k) == (66, 194)


@pytest.mark.parametrize(
    ("name", "gemm", "why"),
    [
        (SMALL_N, Gemm(5, 64, 64, dtype="fp32"), "for 4 rows at most, but m = 5"),
        (VECTOR, Gemm(2, 64, 64, dtype="fp32"), "for 1 rows at most, but m = 2"),
        (VECTOR_X, Gemm(2, 64, 64, dtype="fp32"), "for 1 rows at most, but m = 2"),
        (SMALL_N, Gemm(4, 64, 64, dtype="fp32", layout="nn"), "for layout tn, but layout = 'nn'"),
        (SMALL_N, Gemm(4, 64, 64), "for fp32 or tf32, but dtype = 'bf16'"),
        (VECTOR, Gemm(1, 64, 64, dtype="fp16"), "for fp32 or tf32, but dtype = 'fp16'"),
        (SMALL_N.replace("128", "256"), Gemm(4, 64, 64, dtype="fp32"), "the gemmSN .* family is not modelled"),
    ],
)
def test_a_wrong_name_is_refused_with_its_reason(name: str, gemm: Gemm, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_kernel_name(name, gemm)


def test_xmma_slices_where_only_the_reduction_is_named() -> None:
    gemm = Gemm(8, 768, 3072, dtype="fp32")
    assert parse_kernel_name(f"{XMMA}_split_k_kernel__5x_cublas", gemm, "1x24x1").split_k == 32
    assert parse_kernel_name(f"{XMMA}_kernel__5x_cublas", gemm, "1x24x16").split_k == 16


# Traffic and time.
@pytest.mark.parametrize(("name", "m"), [(SMALL_N, 4), (VECTOR, 1), (VECTOR_X, 1)], ids=["gemmSN", "gemv2T", "gemvx"])
def test_operands_are_read_from_memory_once_and_time_grows_with_k(name: str, m: int) -> None:
    times = []
    for k in (4096, 8192, 16384):
        call = run(name, Gemm(m, 1024, k, dtype="fp32"), "128x1x1")
        assert call.main.bytes["hbm"]["read"] == pytest.approx(call.gemm.a_bytes + call.gemm.b_bytes, rel=0.001)
        assert call.main.bytes["sm"]["read"] == pytest.approx(128 * call.gemm.a_bytes + call.gemm.b_bytes, rel=0.001)
        times.append(call.time_s)
    assert times[2] - times[1] == pytest.approx(2 * (times[1] - times[0]), rel=0.05)


@pytest.mark.parametrize(("name", "m"), [(SMALL_N, 4), (VECTOR, 1)], ids=["gemmSN", "gemv2T"])
def test_a_lone_trip_waits_for_memory(name: str, m: int) -> None:
    """Latencies of L2 and of HBM's slowest line, the SM's port, then A out of shared memory for every column."""
    gemm = Gemm(m, 1024, 131072, dtype="fp32")
    config = parse_kernel_name(name, gemm)
    call = run_call(gemm, config, H200, Options(without=frozenset({"jitter"})))
    trips = gemm.k / config.block_k
    b_bytes = config.block_n * config.block_k * 4
    cycles = H200.l2.latency_cycles + H200.l2.far_latency_cycles / 2
    cycles += hbm_latency_fs(H200, b_bytes, ()) * H200.clock.boost_mhz * 1e-9
    cycles += (b_bytes + m * config.block_k * 4) / H200.l2.sm_port_bytes_per_clk
    cycles += m * b_bytes / H200.smem.bytes_per_clk + dots.wait_cycles(gemm, config, H200)
    assert call.main.sm_cycles / trips == pytest.approx(cycles, rel=0.1)


@pytest.mark.parametrize(("name", "m", "cycles"), [(SMALL_N, 4, (300, 325)), (VECTOR, 1, (234, 258))])
def test_l1_is_as_busy_in_a_trip_as_counted(name: str, m: int, cycles: tuple[int, int]) -> None:
    """Of l1_busy_pct and sm_cycles in counters_odd.csv, whatever the type."""
    gemm = Gemm(m, 4096, 4096, dtype="fp32")
    config = parse_kernel_name(name, gemm)
    busy = l1_cycles(gemm, config, H200) + instructions(gemm, config, H200)[1] / H200.smem.bytes_per_clk
    assert cycles[0] <= busy <= cycles[1]


def test_slices_of_xmma_are_added_one_after_another() -> None:
    gemm = Gemm(32, 768, 3072, dtype="fp32")
    config = parse_kernel_name(f"{XMMA}_kernel__5x_cublas", gemm, "1x24x16")
    assert adds_in_turn(config)
    slice_s = H200.attention.combine_slice_us * 1e-6
    found = reduction(H200, gemm, 16, in_turn=True).time_s
    assert found == pytest.approx(H200.split_k.reduce_floor_us * 1e-6 + 16 * slice_s)
    alone = run_call(gemm, dataclasses.replace(config, split_in_place=True), H200, Options()).main.time_s
    assert alone - run_call(gemm, config, H200, Options()).main.time_s == pytest.approx(15 * slice_s, rel=0.1)


# Choice.
def test_a_library_launches_dot_kernels_for_the_rows_they_were_seen_with() -> None:
    for m in (1, 2, 3, 4):
        gemm = Gemm(m, 4096, 4096, dtype="fp32")
        first = library_candidates(gemm, H200, but_itself=True)[0]
        assert dots.multiplies_dots(first)
        assert first.block_m == {1: 1, 2: 2, 3: 4, 4: 4}[m]
    assert not any(dots.multiplies_dots(each) for each in library_candidates(Gemm(64, 4096, 4096, dtype="fp32"), H200))


def test_a_library_splits_k_to_fill_the_gpu() -> None:
    """Kernels of other shapes get as many slices as make the CTAs they had; those that TMA loads stay as they are."""
    few, many = (library_candidates(Gemm(64, n, 4096, dtype="fp32"), H200)[0] for n in (512, 4096))
    ctas = [each.split_k * -(-n // each.block_n) for each, n in ((few, 512), (many, 4096))]
    assert few.split_k > many.split_k
    assert ctas[0] == pytest.approx(ctas[1], rel=0.5)
