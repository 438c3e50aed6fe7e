"""How a grid begins, against closed forms: CTAs launched one after another, rings filled stage by stage, memory that
serves out of turn, and the clock of few SMs. On the GPU of whole numbers (`kernel_runs`), to the femtosecond."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.kernel import TRACED_SMS
from sim.result import SPAN_KINDS, KernelResult
from sim.schedule.plan import build_plan
from tests.kernel_runs import CYCLE_FS, cycles, multistage, persistent, run, time_fs, warm, whole_gpu
from workloads import Gemm

GPU = whole_gpu("persistent.iteration_cycles=171")
START, FILL, MMA = 700, 171, 512
CHUNK = 16
"""KiB of A or B of one 128x64 chunk, and the cycles that HBM takes for it."""


def spans(kernel: KernelResult, kind: str) -> list[tuple[int, int, int, float, float]]:
    """(CTA, tile, k, start, end) of one kind in the order of their starts, in cycles."""
    assert kernel.spans is not None
    rows = kernel.spans[kernel.spans["kind"] == SPAN_KINDS.index(kind)]
    found = [(int(row["slot"]), int(row["tile"]), int(row["k"]), row["start_fs"], row["end_fs"]) for row in rows]
    return sorted(((*of, start / CYCLE_FS, end / CYCLE_FS) for *of, start, end in found), key=lambda span: span[3])


def asked(kernel: KernelResult) -> list[float]:
    """Cycles at which stages are asked for."""
    return [start for *_, start, _ in spans(kernel, "load")]


# A ring that fills.
@pytest.mark.small
@pytest.mark.parametrize(("block_n", "stages", "l2"), [(128, 6, "warm"), (8, 12, "warm"), (8, 12, "cold")])
def test_an_idle_cta_asks_for_a_stage_every_so_many_cycles(block_n, stages, l2):
    """Whatever its consumer does meanwhile: the first stage is there before the last is asked for."""
    config = persistent(128, block_n, stages=stages)
    kernel = run(Gemm(128, block_n, 64 * stages, l2=l2), config, GPU, trace=True)
    assert asked(kernel) == [START + FILL * i for i in range(stages)]
    assert spans(kernel, "mma")[0][3] < START + FILL * (stages - 1)


@pytest.mark.small
@pytest.mark.parametrize("pingpong", [False, True])
@pytest.mark.parametrize("n_k", [1, 2, 3, 5])
def test_a_ring_longer_than_a_tile_fills_across_tiles(n_k, pingpong):
    """Through main loops and epilogues; and no tile begins before the one before it is done with, in ping-pong the
    one before that."""
    config = persistent(stages=6, pingpong=pingpong, n_ctas=1)
    kernel = run(warm(Gemm(128 * 6, 128, 64 * n_k)), config, GPU, trace=True)
    assert asked(kernel)[:6] == [START + FILL * i for i in range(6)]
    begins = [start for *_, k, start, _ in spans(kernel, "mma") if k == 0]
    ends = [end for *_, end in spans(kernel, "epilogue")]
    behind = 2 if pingpong else 1
    assert all(begin >= end for begin, end in zip(begins[behind:], ends, strict=False))


@pytest.mark.small
def test_a_ring_that_was_full_asks_as_stages_fall_free():
    kernel = run(warm(Gemm(128, 128, 64 * 12)), persistent(stages=3), GPU, trace=True)
    ends = [end for *_, end in spans(kernel, "mma")]
    assert asked(kernel) == [START, START + FILL, START + 2 * FILL, *ends[:9]]


@pytest.mark.small
def test_a_ring_without_its_fill_asks_for_all_at_once():
    gemm = warm(Gemm(128, 128, 64 * 6))
    assert asked(run(gemm, persistent(stages=6), GPU, trace=True, without=("ring_fill",))) == [START] * 6
    assert asked(run(gemm, multistage(), GPU, trace=True, without=("issue",)))[:3] == [600] * 3


@pytest.mark.small
def test_ctas_fill_their_rings_together():
    """Everyone's first stage comes before anyone's last, however the grid is launched."""
    gpu = whole_gpu("kernel.launch_ns=10")
    kernel = run(Gemm(128 * 4, 128, 64 * 6), persistent(stages=6), gpu, trace=True)
    order = [(k, cta) for cta, _, k, _, _ in spans(kernel, "load")]
    assert order == [(k, cta) for k in range(6) for cta in range(4)]


# Memory that serves out of turn: how much comes before a stage is anything from nothing to `reorder_fraction` of what
# was asked for after it, and the latest CTA of a cluster counts.
def part(fraction: float, size: int = 1) -> float:
    """Mean of the largest of `size` uniform numbers from 0 to `fraction`."""
    return fraction * size / (size + 1)


@pytest.mark.small
@pytest.mark.parametrize(("cluster_m", "cluster_n"), [(1, 1), (2, 1), (2, 2), (1, 8)])
def test_the_latest_cta_of_a_cluster_counts(cluster_m, cluster_n):
    gpu, config = whole_gpu("persistent.reorder_fraction=0.75"), persistent(cluster_m=cluster_m, cluster_n=cluster_n)
    work = build_plan(Gemm(1024, 1024, 64), config, gpu).work
    assert work.reorder_x256 == pytest.approx(256 * part(0.75, cluster_m * cluster_n), abs=0.5)


def burst(fraction: float, n_ctas: int, n_k: int = 1, **more: Any) -> KernelResult:
    """CTAs that ask for rows of A of their own and the same of B, cold, one partition."""
    gpu = whole_gpu(f"persistent.reorder_fraction={fraction}")
    gemm, off = Gemm(128 * n_ctas, 128, 64 * n_k), ("l2_partitions", *more.pop("without", ()))
    return run(gemm, persistent(stages=6), gpu, trace=True, without=off, **more)


def first_mmas(kernel: KernelResult) -> list[float]:
    """When each CTA has its first stage."""
    return [start for _, start in sorted((cta, start) for cta, _, k, start, _ in spans(kernel, "mma") if k == 0)]


@pytest.mark.small
@pytest.mark.parametrize("fraction", [0, 0.25, 0.5, 1])
def test_a_stage_is_late_by_a_part_of_what_was_asked_for_after_it(fraction):
    """Four CTAs ask at once: 32 KiB the first, 16 KiB each other. The last stage comes when HBM has moved all bytes,
    whatever the fraction."""
    kernel = burst(fraction, 4)
    served = [CHUNK * (2 + i) for i in range(4)]
    after_hbm = 200 + 16 * 7 + 300 + 2 * CHUNK * 8 + 110  # latency, slowest line, L2, port, TMA
    late = [part(fraction) * (served[-1] - of) for of in served]
    assert first_mmas(kernel) == [START + of + by + after_hbm for of, by in zip(served, late, strict=True)]
    assert time_fs(kernel) == time_fs(burst(0, 4))


@settings(max_examples=25)
@given(st.integers(1, TRACED_SMS), st.integers(1, 6), st.sampled_from((0.125, 0.5, 0.75, 1)))
def test_no_stage_is_early_or_later_than_a_part_of_the_rest(n_ctas, n_k, fraction):
    in_turn, out_of_turn = burst(0, n_ctas, n_k), burst(fraction, n_ctas, n_k)
    assert asked(in_turn) == asked(out_of_turn)
    moved = [CHUNK * (2 if cta == 0 else 1) for cta, *_ in spans(in_turn, "load")]
    after = [sum(moved[i + 1 :]) for i in range(n_ctas)]
    for rest, first, then in zip(after, first_mmas(in_turn), first_mmas(out_of_turn), strict=True):
        assert 0 <= then - first <= part(fraction) * rest
    last = [max(spans(kernel, "mma"), key=lambda span: span[2:4])[3] for kernel in (in_turn, out_of_turn)]
    assert last[0] <= last[1] <= last[0] + part(fraction) * sum(moved)
    assert out_of_turn.bytes == in_turn.bytes


@pytest.mark.small
def test_memory_in_turn_is_a_fraction_of_nothing():
    assert time_fs(burst(0.7, 4, 6, without=("memory_order",))) == time_fs(burst(0, 4, 6))
    gemm = warm(Gemm(128 * 4, 128, 64 * 6))
    late, plain = (whole_gpu(f"persistent.reorder_fraction={fraction}") for fraction in (1, 0))
    assert time_fs(run(gemm, persistent(), late)) == time_fs(run(gemm, persistent(), plain))


@pytest.mark.parametrize("fraction", [0.5, 1])
def test_a_long_stream_loses_no_throughput(fraction):
    """264 MiB for 64 rows: memory is as busy, in whatever order it serves."""
    gemm, config = Gemm(64, 132 * 128, 8192), persistent(64, 128, 64, 6, pingpong=True)
    in_turn = cycles(run(gemm, config, whole_gpu()))
    out_of_turn = cycles(run(gemm, config, whole_gpu(f"persistent.reorder_fraction={fraction}")))
    assert out_of_turn == pytest.approx(in_turn, rel=0.01)


@pytest.mark.small
def test_who_merges_with_a_request_for_memory_waits_for_memory():
    """Two CTAs share B, whose lines come last: the second's wait for it is the first's."""
    gemm, config = Gemm(128, 256, 64), persistent(64, 256, 64)
    kernel = run(gemm, config, GPU, without=("l2_partitions",))
    assert kernel.lookups["coalesced"] == 1
    b = 200 + 16 * 8 + 300 + 40 * 8 + 110
    waited = 2 * (CHUNK / 2 + 2 * CHUNK + b)
    assert kernel.waits["hbm"] * cycles(kernel) * 132 == pytest.approx(waited)
    assert kernel.waits["l2"] == kernel.waits["sm_port"] == 0


# The launch.
@pytest.mark.small
@pytest.mark.parametrize(
    ("config", "start"), [(multistage(), 600), (persistent(), START), (persistent(cluster_n=2), START)], ids=repr
)
def test_ctas_and_clusters_start_one_after_another(config, start):
    gpu = whole_gpu("kernel.launch_ns=1.5")
    gemm = Gemm(128 * 4, 128 * config.cluster_n, 64)
    kernel = run(gemm, config, gpu, trace=True)
    firsts = {cta: begin for cta, _, _, begin, _ in reversed(spans(kernel, "load"))}
    assert firsts == {cta: start + 1.5 * cta for cta in range(4)}
    together = run(gemm, config, gpu, trace=True, without=("cta_start",))
    assert {begin for *_, begin, _ in spans(together, "load")} == {0}


@pytest.mark.small
def test_the_next_cta_of_a_slot_waits_for_the_one_before_alone():
    """Its turn-round, not the launch of those before it."""
    gpus = [whole_gpu("sm.count=1", f"kernel.launch_ns={ns}") for ns in (0, 100)]
    few, many = (time_fs(run(warm(Gemm(128 * 6, 128, 64 * 8)), multistage(smem_bytes=200_000), gpu)) for gpu in gpus)
    assert few == many


# The clock.
FEW = ("activity.few_sms_mhz=130", "activity.few_sms=36", "activity.tensor_mhz=0", "clock.boost_mhz=1980")


@pytest.mark.small
@pytest.mark.parametrize(("n_ctas", "mhz"), [(1, 1130), (2, 1126), (19, 1065), (37, 1000), (132, 1000), (264, 1000)])
@pytest.mark.parametrize("config", [multistage(), persistent()], ids=lambda config: config.family)
def test_the_clock_of_a_grid_that_leaves_most_sms_idle_is_higher(config, n_ctas, mhz):
    kernel = run(warm(Gemm(128 * n_ctas, 128, 64)), config, whole_gpu(*FEW), clock_mhz=None)
    assert kernel.sm_mhz == pytest.approx(mhz, rel=1e-3)


@pytest.mark.small
def test_a_cluster_s_ctas_count_each():
    kernel = run(warm(Gemm(256, 128, 64)), persistent(cluster_m=2), whole_gpu(*FEW), clock_mhz=None)
    assert kernel.sm_mhz == pytest.approx(1000 + 130 * (1 - 1 / 36), rel=1e-3)


@pytest.mark.small
def test_the_boost_clock_is_the_limit_and_a_held_one_stays():
    tile = warm(Gemm(128, 128, 64))
    boost, held = whole_gpu(*FEW[:-1], "clock.boost_mhz=1050"), whole_gpu(*FEW)
    assert run(tile, persistent(), boost, clock_mhz=None).sm_mhz == pytest.approx(1050, rel=1e-3)
    assert run(tile, persistent(), held).sm_mhz == pytest.approx(1000, rel=1e-3)
    free = run(tile, persistent(), held, clock_mhz=None, without=("clock",))
    assert math.isclose(free.sm_mhz, 1980, rel_tol=1e-3)
