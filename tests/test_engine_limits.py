"""The engine against closed forms: latencies, rates, Little's law, waves, rings, epilogues, slices.

Most run on a GPU of whole numbers at 1000 MHz (`kernel_runs`), where the forms hold to the femtosecond. Tolerances,
where there are any, say what they leave room for.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sim.machine import place
from sim.result import SPAN_KINDS, KernelResult
from sim.schedule.config import KernelConfig
from sim.schedule.plan import row_cost
from tests.kernel_runs import CYCLE_FS, cycles, multistage, persistent, run, time_fs, warm, whole_gpu
from workloads import Gemm

GPU = whole_gpu()
KIB = 1024
TILE = Gemm(128, 128, 64)
CHUNK_KIB = 16
"""A or B of one k-iteration of TILE; HBM moves 1 KiB a cycle, an L2 partition 2, a port 1/8."""
MMA = 512
"""m64n128k16 takes 64 cycles; 128x128x64 is eight of them."""
EPILOGUE_WRITE = 1024
"""32 KiB of C at 32 B/clk."""


def per_iteration(config: KernelConfig, gpu=GPU, many: int = 40, without=(), ldc: int | None = None) -> float:
    """Cycles that one more k-iteration of a single warm tile takes, beyond the start and end of the pipeline."""
    few = many // 2
    tile = [warm(Gemm(config.block_m, config.block_n, n * config.block_k, ldc=ldc)) for n in (few, many)]
    short, long = (cycles(run(gemm, config, gpu, without=without)) for gemm in tile)
    return (long - short) / (many - few)


# One idle tile.
@pytest.mark.small
@pytest.mark.parametrize(
    ("config", "around"),
    [
        (multistage(), 600 + 120 + 70 + 400),  # CTA start, cp.async, drain, epilogue
        (persistent(), 700 + 110 + 1000),  # start, TMA, epilogue
    ],
    ids=["multistage", "persistent"],
)
@pytest.mark.parametrize("partitions", [1, 2])
def test_latency_of_a_cold_tile(config, around, partitions):
    hbm = 2 * CHUNK_KIB + 200 + 16 * 7  # bytes of A and B, latency, the slowest of 2^7 lines of B
    l2 = 300 + (200 if partitions == 2 else 0)  # half of every chunk comes from the far partition
    port = 2 * CHUNK_KIB * 8
    kernel = run(TILE, config, GPU, without=("l2_partitions",) if partitions == 1 else ())
    assert time_fs(kernel) == (around + hbm + l2 + port + MMA + EPILOGUE_WRITE) * CYCLE_FS


@pytest.mark.small
@pytest.mark.parametrize(("config", "around"), [(multistage(), 600 + 120 + 70 + 400), (persistent(), 700 + 110 + 1000)])
def test_latency_of_a_warm_tile(config, around):
    l2 = 300 + 2 * CHUNK_KIB // 2  # latency, A then B through the near partition's data path
    kernel = run(warm(TILE), config, GPU)
    assert kernel.bytes["hbm"] == {"read": 0, "write": 0}
    assert time_fs(kernel) == (around + l2 + 2 * CHUNK_KIB * 8 + MMA + EPILOGUE_WRITE) * CYCLE_FS


@pytest.mark.small
def test_a_tile_of_one_line_has_no_slowest_line():
    narrow = replace(TILE, n=8)
    config = multistage(64, 8, 64)  # B: 8 rows of 128 B; A: 64 rows
    of_lines, of_one = (cycles(run(narrow, config, GPU, without=off)) for off in ((), ("tile_latency",)))
    assert of_lines - of_one == 16 * 6  # A's 2^6 lines arrive last: it is asked for first but waits longer


@pytest.mark.small
def test_far_partition_costs_its_latency_once():
    near = cycles(run(TILE, multistage(), whole_gpu("l2.far_latency_cycles=0")))
    assert cycles(run(TILE, multistage(), GPU)) - near == 200


@pytest.mark.small
def test_waits_name_what_a_tile_spent_its_time_on():
    """One tile on a GPU of one SM: each of its cycles under one name, nothing idle."""
    gpu = whole_gpu("sm.count=1")
    load = 2 * CHUNK_KIB + 312 + 500 + 2 * CHUNK_KIB * 8 + 120
    multi = {"start": 600, "barrier": 60, "hbm": load - 60, "mma": MMA + 70, "epilogue": 400 + EPILOGUE_WRITE}
    persist = {"start": 700, "hbm": load - 10, "mma": MMA, "epilogue": 1000 + EPILOGUE_WRITE}
    for config, expected in ((multistage(), multi), (persistent(), persist)):
        kernel = run(TILE, config, gpu)
        spent = {name: share * cycles(kernel) for name, share in kernel.waits.items() if share > 1e-12}
        assert spent == pytest.approx(expected)


@pytest.mark.small
def test_waits_of_a_long_tile_show_issue_and_barriers():
    """Warm, n_k iterations: all but the last wait for their loads' issue and a barrier, and for no data."""
    n_k, gpu = 20, whole_gpu("sm.count=1")
    kernel = run(warm(Gemm(128, 128, 64 * n_k)), multistage(), gpu)
    spent = {name: share * cycles(kernel) for name, share in kernel.waits.items()}
    assert spent["mma"] == pytest.approx(n_k * (MMA + 70))
    assert spent["barrier"] == pytest.approx(n_k * 60)
    assert spent["issue"] == pytest.approx((n_k - 3) * 128)  # a ring of four: the last three have nothing to load
    assert spent["hbm"] == spent["sm_port"] == 0
    assert spent["idle"] == pytest.approx(0, abs=1e-6)


# Rates of one CTA.
@pytest.mark.parametrize("stages", [3, 4, 5])
def test_multistage_iteration_is_mma_drain_barrier_and_issue(stages):
    issue = 2 * CHUNK_KIB * KIB // 256
    assert per_iteration(multistage(stages=stages)) == MMA + 70 + 60 + issue


@pytest.mark.parametrize("stages", [3, 4, 5])
def test_barrier_and_drain_are_paid_once_an_iteration(stages):
    config = multistage(stages=stages)
    assert per_iteration(config) - per_iteration(config, without=("barriers",)) == 70 + 60


def test_each_warp_beyond_four_makes_the_barrier_longer():
    assert per_iteration(multistage(warps=8)) - per_iteration(multistage(warps=4)) == (8 - 4) * 2


def test_waiting_for_each_wgmma_shows_what_mmas_hide():
    """256 columns by 8 warps: while one warpgroup waits for m64n256k16, the other's 128 cycles fill the tensor cores,
    but no instruction of the loop runs beside MMAs. Rows of C not at multiples of 16 elements leave ptxas no reason."""
    config, mma, issue = multistage(128, 256, 64, 3, warps=8), 2 * MMA, (128 + 256) * 128 // 256
    assert per_iteration(config) == mma + 70 + 60 + 4 * 2 + issue + 200
    assert per_iteration(config, ldc=256 + 8) == mma + 70 + 60 + 4 * 2 + issue


def test_short_wgmmas_that_are_waited_for_take_their_latency():
    """256 x 32 by 8 warps, stored a row a warp element by element: each warpgroup waits eight times for the 16 cycles
    of m64n32k16 and their drain. Where it does not, shared memory is the limit: a load written, all operands read."""
    config, issue = multistage(256, 32, 64, 3, warps=8), (256 + 32) * 128 // 256
    assert per_iteration(config, ldc=32 + 8) == 8 * (16 + 70) + 60 + 4 * 2 + issue + 200
    assert per_iteration(config) == (256 + 32) * 128 // 128 + 16 * (64 + 32) * 32 // 128 + 70


@pytest.mark.parametrize("stages", [3, 4, 5])
def test_persistent_iteration_is_the_mma_rate(stages):
    """With the producer apart, nothing but the tensor cores: 2 * 128 * 128 * 64 FLOPs at 4,096 a cycle."""
    assert per_iteration(persistent(stages=stages)) == MMA == 2 * 128 * 128 * 64 / 4096


def test_persistent_iterations_drain_the_tensor_cores_between_them():
    """But where they wait for one another's stages all the same."""
    gpu = whole_gpu("persistent.drain_cycles=15")
    assert per_iteration(persistent(stages=4), gpu) == MMA + 15
    assert per_iteration(persistent(64, 64, stages=6, pingpong=True), gpu) == 160


def test_short_iterations_hit_the_floor_between_stages():
    assert per_iteration(persistent(64, 64, stages=6, pingpong=True)) == 160


def test_mma_sync_reaches_its_fraction_of_the_rate():
    gpu = whole_gpu("tensor.mma_sync_fraction=0.5", "smem.bytes_per_clk=65536")
    config = multistage(mma="mma_sync", stages=4)
    issue = 2 * CHUNK_KIB * KIB // 256
    assert per_iteration(config, gpu) == 2 * MMA + 70 + 60 + issue


def test_shared_memory_bounds_narrow_tiles():
    """m64n8k16 is 4 tensor cycles but reads (64 + 8) rows of 32 B: 18 cycles at 128 B/clk. The next load's way into
    shared memory begins with the barrier, outlasts it, and keeps the reads waiting."""
    config = multistage(64, 8, 64, stages=8, registers_per_thread=128)
    gpu = whole_gpu("multistage.issue_bytes_per_clk=65536")
    reads = 4 * (64 + 8) * 32 / 128
    fill = (64 + 8) * 64 * 2 / 128
    assert per_iteration(config, gpu) == fill + reads + 70
    assert per_iteration(config, gpu, without=("smem_bandwidth",)) == 60 + 4 * 4 + 70


# Little's law.
@pytest.mark.parametrize("stages", [2, 3])
def test_little_s_law_of_a_ring(stages):
    """A ring of S stages has S - 1 loads in flight: each iteration takes the round trip over S - 1."""
    config = multistage(64, 64, 64, stages)
    load = 8 + 300 + 128 + 120  # through L2's data path, latency, 16 KiB through the port, cp.async
    round_trip = load + 128 + 70  # then MMA and drain, after which the stage is loaded again
    assert per_iteration(config, many=128) == pytest.approx(round_trip / (stages - 1), rel=1e-12)


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_little_s_law_of_tma(stages):
    """With a producer all S loads are in flight; uneven spacing of the first few averages out to within 1 %."""
    config = persistent(64, 64, 64, stages, pingpong=True)
    round_trip = 8 + 300 + 128 + 110 + 160
    assert per_iteration(config, many=128) == pytest.approx(round_trip / stages, rel=0.01)


def test_bytes_in_flight_bound_the_kernel_s_bandwidth():
    """All SMs together: bytes in flight / round trip, within the 3 % of start and end of a kernel of 128 iterations."""
    config = multistage(64, 64, 64, 2, smem_bytes=200_000)  # one CTA an SM
    gpu = whole_gpu("l2.bytes_per_clk=65536", "l2.gpc_port_bytes_per_clk=65536")
    kernel = run(warm(Gemm(64 * 12, 64 * 11, 64 * 128)), config, gpu)
    in_flight, round_trip = 132 * 2 * 8 * KIB, 300 + 128 + 120 + 128 + 70
    assert kernel.bytes["sm"]["read"] / cycles(kernel) == pytest.approx(in_flight / round_trip, rel=0.03)


# Servers that CTAs share.
def per_k(tiles_m: int, tiles_n: int, gpu, stages: int = 4, without=()) -> float:
    """Cycles that one more k-iteration of `tiles_m` x `tiles_n` warm tiles of 64x64 takes."""
    gemms = [warm(Gemm(64 * tiles_m, 64 * tiles_n, 64 * n)) for n in (16, 32)]
    short, long = (cycles(run(gemm, multistage(64, 64, 64, stages), gpu, without=without)) for gemm in gemms)
    return (long - short) / 16


@pytest.mark.small
def test_ctas_of_an_sm_share_its_tensor_cores():
    """Three hide each other's barriers: m64n64k64 takes 128 cycles, one after another."""
    gpu = whole_gpu("sm.count=1", "l2.sm_port_bytes_per_clk=1024")
    assert per_k(1, 3, gpu, without=("smem_bandwidth",)) == pytest.approx(3 * 128, rel=0.01)


@pytest.mark.small
def test_ctas_of_an_sm_share_its_shared_memory():
    """Of each 64x64x64 iteration 16 KiB come in and 16 KiB are read."""
    assert per_k(1, 3, whole_gpu("sm.count=1")) == pytest.approx(3 * 2 * 128, rel=0.01)


@pytest.mark.small
def test_ctas_of_an_sm_share_its_port():
    assert per_k(1, 3, whole_gpu("sm.count=1", "l2.sm_port_bytes_per_clk=16")) == pytest.approx(3 * 1024, rel=0.01)


@pytest.mark.small
def test_sms_of_a_gpc_share_its_port():
    """Four tiles on four SMs, each of which alone would take 16 KiB in 326 cycles."""
    assert per_k(1, 4, whole_gpu("l2.gpc_port_bytes_per_clk=64")) == pytest.approx(4 * 256, rel=0.01)
    assert per_k(1, 4, whole_gpu()) == 326


@pytest.mark.small
def test_the_port_of_a_gpc_keeps_its_clock_when_that_of_the_sms_falls():
    gpu = whole_gpu("l2.gpc_port_bytes_per_clk=64")
    gemms = [warm(Gemm(64, 64 * 4, 64 * n)) for n in (16, 32)]
    short, long = (run(gemm, multistage(64, 64, 64, 4), gpu, clock_mhz=500).time_s for gemm in gemms)
    assert (long - short) / 16 == pytest.approx(4 * 256e-9, rel=0.01)  # of a clock of 1000 MHz


def test_a_kernel_of_little_work_runs_at_l2_s_rate():
    """264 tiles of 64x64 that share nothing but L2: 4 KiB a cycle, within the 3 % that a few late CTAs leave."""
    kernels = [
        run(warm(Gemm(64 * 22, 64 * 12, 64 * n)), multistage(64, 64, 64, 6), GPU, without=("coalescing",))
        for n in (32, 64)
    ]
    added = cycles(kernels[1]) - cycles(kernels[0])
    moved = kernels[1].bytes["l2"]["read"] - kernels[0].bytes["l2"]["read"]
    assert moved / added == pytest.approx(4096, rel=0.03)


# Rates of the whole GPU.
@pytest.mark.parametrize(
    "config", [persistent(64, 128, 64, 6, pingpong=True), multistage(64, 128, 64, 4)], ids=lambda config: config.family
)
def test_a_copy_like_kernel_runs_at_hbm_peak(config):
    """264 MiB for 64 rows: bytes / bandwidth, and at most 3 % for the first latency and the last epilogue."""
    gemm = Gemm(64, 132 * 128, 8192)
    kernel = run(gemm, config, GPU)
    assert kernel.bytes["hbm"]["read"] == gemm.a_bytes + gemm.b_bytes
    assert 1 < cycles(kernel) / ((gemm.a_bytes + gemm.b_bytes) / KIB) < 1.03
    assert kernel.utilisation["hbm"] > 0.97


def test_rows_that_open_often_slow_hbm_down():
    """row_open_bytes as long as the run that a ring asks for: reads take twice the time."""
    config = persistent(64, 128, 64, 6, pingpong=True)
    gemm = Gemm(64, 132 * 128, 4096)
    run_bytes = 6 * 64 * 2
    slow = run(gemm, config, whole_gpu(f"hbm.row_open_bytes={run_bytes}"))
    assert cycles(slow) / cycles(run(gemm, config, GPU)) == pytest.approx(2, rel=0.03)


@pytest.mark.small
@pytest.mark.parametrize(("loop", "at_once"), [("triton", 1), ("cutlass", 3), ("library", 3)])
def test_what_opens_a_row_depends_on_how_a_loop_asks(loop, at_once):
    """Triton's for an iteration, others for what a ring of four stages is ahead."""
    gpu = whole_gpu("hbm.row_open_bytes=100")
    assert row_cost(Gemm(64, 1024, 4096), multistage(stages=4, loop=loop), gpu) == 1 + 100 / (at_once * 128)


def test_rows_that_follow_one_another_are_read_as_one():
    """A ring that holds all of k asks for whole rows: nothing is opened between them, unless they are padded."""
    config, costly = persistent(64, 128, 64, 6, pingpong=True), whole_gpu("hbm.row_open_bytes=1000")
    packed, padded = Gemm(64, 132 * 128, 64), Gemm(64, 132 * 128, 64, ldb=512)
    assert row_cost(packed, config, costly) == pytest.approx(1 + 1000 / (128 * 128))
    assert row_cost(padded, config, costly) == pytest.approx(1 + 1000 / 128)
    for k in (8, 16, 32):
        thin, more = (run(Gemm(64, 132 * 128, each), config, costly) for each in (k, 2 * k))
        assert cycles(thin) <= cycles(more) * 1.01


def test_a_compute_bound_kernel_runs_at_the_mma_rate():
    """132 tiles of 256x128 on 132 SMs, L2 out of the way: what longer k adds is FLOPs at peak, within 1 %."""
    gpu = whole_gpu("l2.bytes_per_clk=65536", "l2.gpc_port_bytes_per_clk=65536", "l2.capacity_mib=1024")
    config = persistent(256, 128)
    short, long = (warm(Gemm(12 * 256, 11 * 128, k)) for k in (4096, 8192))
    added = cycles(run(long, config, gpu)) - cycles(run(short, config, gpu))
    assert (long.flops - short.flops) / added == pytest.approx(132 * 4096, rel=0.01)
    assert run(long, config, gpu).utilisation["tensor"] > 0.93


def test_write_back_runs_at_hbm_peak():
    """C is 17 times L2 and k tiny: all but what stays in L2 is written, at no more than HBM's rate."""
    gemm = Gemm(16384, 16384, 64, out_dtype="fp32")
    kernel = run(gemm, multistage(128, 128, 64, 3, warps=8), GPU)
    assert gemm.c_bytes - 60 * 2**20 <= kernel.bytes["hbm"]["write"] <= gemm.c_bytes
    moved = sum(kernel.bytes["hbm"].values())
    assert moved / KIB / cycles(kernel) == pytest.approx(1, abs=0.05)


def test_writes_among_reads_cost_what_a_copy_costs_beyond_its_reads():
    """Copies at 0.8 of the peak: 2 KiB in 2.5 cycles, of which 1 is the read, so each KiB written takes 1.5. A and B
    stream in while C, larger than L2, goes out; the last writes meet no reads."""
    gemm, config = Gemm(16384, 8192, 2048, out_dtype="fp32"), multistage(128, 128, 64, 3, warps=8)
    gpu = whole_gpu("hbm.copy_fraction=0.8", "l2.capacity_mib=16")
    kernel = run(gemm, config, gpu)
    moved = kernel.bytes["hbm"]
    busy_cycles = kernel.utilisation["hbm"] * cycles(kernel)
    assert busy_cycles == pytest.approx((moved["read"] + 1.5 * moved["write"]) / KIB, rel=0.05)
    even = run(gemm, config, gpu, without=("turn_round",))
    assert even.utilisation["hbm"] * cycles(even) == pytest.approx(sum(even.bytes["hbm"].values()) / KIB, rel=0.01)


# Waves.
@pytest.mark.parametrize(("config", "between"), [(multistage(), 350), (persistent(), -700)])
def test_one_and_a_bit_waves_take_two(config, between):
    """132 tiles, then 144: the second wave costs a whole one, `between` more for the CTA's turn-round or less for the
    start that a persistent CTA pays once. Within 2 %: the fuller wave queues a little in L2."""
    gpu = whole_gpu("l2.bytes_per_clk=65536", "l2.gpc_port_bytes_per_clk=65536")
    one, two = (cycles(run(warm(Gemm(12 * 128, n * 128, 2048)), config, gpu)) for n in (11, 12))
    assert run(warm(Gemm(12 * 128, 12 * 128, 2048)), config, gpu).waves == pytest.approx(144 / 132)
    expected = 2 * one + between
    if config.loads == "tma":
        expected -= 300 + 16 + 256 + 110 + 1000  # nor does it wait for its first load again, or end twice
    assert two == pytest.approx(expected, rel=0.02)


# Persistent kernels.
def spans(kernel: KernelResult, kind: str) -> list[tuple[int, int, int, int]]:
    """(tile, k, start, end) of one kind, in order of record."""
    assert kernel.spans is not None
    rows = kernel.spans[kernel.spans["kind"] == SPAN_KINDS.index(kind)]
    return [(int(row["tile"]), int(row["k"]), int(row["start_fs"]), int(row["end_fs"])) for row in rows]


def added_by_a_tile(config: KernelConfig, n_k: int = 16) -> float:
    """Cycles that one CTA takes for a third tile."""
    two, three = (cycles(run(warm(Gemm(128 * n, 128, 64 * n_k)), replace(config, n_ctas=1), GPU)) for n in (2, 3))
    return three - two


def test_a_ring_crosses_tile_boundaries():
    kernel = run(warm(Gemm(128 * 3, 128, 64 * 6)), persistent(n_ctas=1), GPU, trace=True)
    loads, epilogues = spans(kernel, "load"), spans(kernel, "epilogue")
    for tile in (1, 2):
        first_loads = [start for of, k, start, _ in loads if of == tile and k < 3]
        assert max(first_loads) < min(start for of, _, start, _ in epilogues if of == tile - 1)


@pytest.mark.small
def test_the_next_tile_of_a_persistent_cta_shows_no_latency():
    assert added_by_a_tile(persistent()) == 16 * MMA + EPILOGUE_WRITE


@pytest.mark.small
def test_the_next_cta_in_a_slot_starts_anew():
    gpu = whole_gpu("sm.count=1")
    one, two = (cycles(run(warm(Gemm(128 * n, 128, 64 * 8)), multistage(), gpu)) for n in (1, 2))
    assert two - one == one + 350  # turn-round


@pytest.mark.small
def test_ping_pong_hides_the_epilogue():
    assert added_by_a_tile(persistent(pingpong=True)) == 16 * MMA


def test_an_epilogue_longer_than_a_main_loop_shows_in_ping_pong():
    """One iteration a tile: two warpgroups take turns, but C leaves by one port, which is busy all the time."""
    config = persistent(pingpong=True, n_ctas=1)
    few, many = (cycles(run(warm(Gemm(128 * n, 128, 64)), config, GPU)) for n in (20, 40))
    assert (many - few) / 20 == EPILOGUE_WRITE


def test_each_cta_of_a_cluster_stores_by_its_own_port():
    """A short k and a fast L2: the epilogue is most of it, and two CTAs take no longer than one."""
    gpu = whole_gpu("l2.bytes_per_clk=65536")
    alone = cycles(run(warm(Gemm(128, 128, 64)), persistent(), gpu))
    together = cycles(run(warm(Gemm(256, 128, 64)), persistent(cluster_m=2), gpu))
    assert EPILOGUE_WRITE < alone == pytest.approx(together, abs=20)


# Slices of k.
@pytest.mark.small
@pytest.mark.parametrize(("n_k", "split"), [(16, 2), (16, 3), (17, 4), (10, 6), (16, 16)])
def test_slices_cover_k_exactly(n_k, split):
    config = multistage(stages=2, smem_bytes=10_000, split_k=split)
    kernel = run(Gemm(128, 128, 64 * n_k), config, whole_gpu("sm.count=1"), trace=True)
    loads, mmas = ([(tile, k) for tile, k, _, _ in spans(kernel, kind)] for kind in ("load", "mma"))
    assert sorted(k for _, k in loads) == list(range(n_k))
    assert sorted(mmas) == sorted(loads)
    slices = {tile: [k for of, k in loads if of == tile] for tile, _ in loads}
    assert all(ks == list(range(ks[0], ks[-1] + 1)) for ks in slices.values())
    assert max(map(len, slices.values())) == -(-n_k // split)


@pytest.mark.small
@pytest.mark.parametrize("split", [1, 3, 4])
def test_any_split_reads_each_operand_byte_once_and_writes_partial_sums(split):
    gemm = Gemm(128, 128, 64 * 12)
    config = multistage(split_k=split)
    kernel = run(gemm, config, GPU)
    assert kernel.bytes["hbm"]["read"] == gemm.a_bytes + gemm.b_bytes
    assert kernel.bytes["sm"]["write"] == 128 * 128 * (4 * split if split > 1 else 2)


# Epilogues.
@pytest.mark.small
@pytest.mark.parametrize("config", [multistage(), persistent()], ids=["multistage", "persistent"])
def test_a_residual_is_read_once(config):
    gemm = Gemm(200, 152, 128)
    plain, residual = (run(replace(gemm, epilogue=name), config, GPU) for name in ("none", "residual"))
    assert residual.bytes["hbm"]["read"] - plain.bytes["hbm"]["read"] == gemm.c_bytes


# Sharing.
@pytest.mark.small
@pytest.mark.parametrize(("cluster_m", "cluster_n"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_multicast_divides_what_l2_serves(cluster_m, cluster_n):
    """A's chunk serves the CTAs along n, B's those along m."""
    gemm = Gemm(256, 256, 64 * 4)
    config = persistent(cluster_m=cluster_m, cluster_n=cluster_n)
    kernel = run(gemm, config, GPU, without=("coalescing",))
    a_received, b_received = (2 * 2 * 4 * CHUNK_KIB * KIB,) * 2
    assert kernel.bytes["sm"]["read"] == a_received + b_received
    assert kernel.bytes["l2"]["read"] == a_received // cluster_n + b_received // cluster_m


@pytest.mark.small
@pytest.mark.parametrize(("l2", "found"), [("cold", (0, 1, 3)), ("warm", (4, 0, 0))])
def test_lookups_name_what_they_found(l2, found):
    """Two tiles of one row, no merging of requests: cold, one brings A and the other finds it on its way."""
    lookups = run(Gemm(128, 256, 64, l2=l2), multistage(), GPU, without=("coalescing",)).lookups
    assert (lookups["hits"], lookups["merged"], lookups["misses"]) == found


@pytest.mark.small
@pytest.mark.parametrize(("cluster_m", "cluster_n"), [(2, 1), (1, 2), (2, 2)])
def test_clusters_read_each_row_and_column_once(cluster_m, cluster_n):
    """Cold and small enough for L2: were a cluster to load another's rows, some bytes would never be read."""
    gemm = Gemm(512, 512, 128)
    kernel = run(gemm, persistent(cluster_m=cluster_m, cluster_n=cluster_n), GPU)
    assert kernel.bytes["hbm"]["read"] == gemm.a_bytes + gemm.b_bytes
    assert kernel.bytes["sm"]["write"] == gemm.c_bytes


@pytest.mark.small
def test_requests_of_a_gpc_merge_while_one_is_under_way():
    """Two tiles of one row ask for A at once: one read serves both, and both are as fast as one alone."""
    kernel = run(warm(Gemm(128, 256, 64)), multistage(), GPU)
    assert kernel.lookups["coalesced"] == 1
    assert kernel.lookups["coalesced_bytes"] == CHUNK_KIB * KIB
    assert kernel.bytes["l2"]["read"] == 3 * CHUNK_KIB * KIB
    apart = run(warm(Gemm(128, 256, 64)), multistage(), GPU, without=("coalescing",))
    assert apart.lookups["coalesced"] == 0
    assert apart.bytes["l2"]["read"] == 4 * CHUNK_KIB * KIB


@pytest.mark.small
@pytest.mark.parametrize(("window_cycles", "merged"), [(0, 0), (1, 1), (8, 1), (9, 2)])
def test_a_gpc_remembers_a_hit_for_so_many_cycles(window_cycles, merged):
    """Two tiles of one row ask for A at once; their B's leave L2 one after the other, 16 KiB at 2 KiB a cycle, so that
    the second asks for the next A 8 cycles later."""
    gpu = whole_gpu(f"coalescing.window_cycles={window_cycles}")
    kernel = run(warm(Gemm(128, 256, 128)), multistage(stages=2), gpu)
    assert kernel.lookups["coalesced"] == merged


def small_grid_gpcs(n_ctas: int) -> list[int]:
    """CTAs of a plain grid on each GPC of an H200, those of the singleton TPCs first."""
    placement = place(GPU, 1, 1, n_ctas)
    gpcs = np.where(placement.sm < 8, -1, placement.gpc)[:n_ctas]
    return [int((gpcs == g).sum()) for g in range(-1, 8)]


@pytest.mark.small
@pytest.mark.parametrize(
    ("n_ctas", "on_gpcs"),
    [
        (16, [8, 1, 1, 1, 1, 1, 1, 1, 1]),
        (48, [8, 4, 6, 5, 5, 5, 5, 5, 5]),
        (64, [8, 4, 8, 8, 8, 7, 7, 7, 7]),
        (96, [8, 8, 12, 11, 11, 11, 11, 12, 12]),
        (132, [8, 8, 16, 16, 16, 16, 16, 18, 18]),
    ],
)
def test_small_grids_spread_over_gpcs_as_measured(n_ctas, on_gpcs):
    """merging.csv place_small; GPCs with nine TPCs are the last two here."""
    assert small_grid_gpcs(n_ctas) == on_gpcs


# The clock.
def test_a_busy_kernel_runs_at_the_clock_of_its_activity():
    """Active 1000 MHz, 200 less when the tensor cores are always busy."""
    config = persistent(256, 128)
    kernel = run(warm(Gemm(12 * 256, 11 * 128, 8192)), config, GPU, clock_mhz=None)
    assert kernel.sm_mhz == pytest.approx(1000 - 200 * kernel.utilisation["tensor"], rel=0.005)
    idle = run(warm(TILE), multistage(), GPU, clock_mhz=None)
    assert idle.sm_mhz == pytest.approx(1000, rel=1e-3)


@pytest.mark.small
def test_time_of_a_compute_bound_tile_goes_with_the_clock():
    gemm = warm(Gemm(128, 128, 64 * 16))
    slow, fast = (time_fs(run(gemm, persistent(), GPU, clock_mhz=mhz)) for mhz in (1000, 2000))
    serve_fs = 16 * CYCLE_FS  # L2 keeps its own clock
    assert slow - serve_fs == 2 * (fast - serve_fs)
