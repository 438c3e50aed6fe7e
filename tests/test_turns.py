"""CTAs of an SM that take turns at its tensor cores: what that changes, and what not."""

from __future__ import annotations

import numpy as np
import pytest

from hwmodels.catalog import load_gpu
from sim.kernel import run_kernel
from sim.machine import build_machine
from sim.result import KernelResult
from sim.schedule.plan import build_plan
from tests.kernel_runs import CYCLE_FS, MHZ, multistage, run, time_fs, whole_gpu
from workloads import Gemm

FULL = Gemm(22 * 128, 12 * 128, 4096)
"""Two tiles of 128x128 for each SM."""
N_LOADS = 12
"""That a ring of 13 stages asks for at once."""
PAIRS = multistage(128, 128, 64, 3, registers_per_thread=128)


def kernel(gemm: Gemm, turn: float, *more: str, without: tuple[str, ...] = ()) -> KernelResult:
    return run(gemm, PAIRS, whole_gpu(f"multistage.turn_fraction={turn}", *more), without=without)


def test_they_part_and_share_fewer_reads_of_l2_for_the_same_work() -> None:
    in_turn, loose = (kernel(FULL, turn) for turn in (0, 0.5))
    assert loose.bytes["l2"]["read"] > 1.1 * in_turn.bytes["l2"]["read"]
    assert loose.bytes["sm"] == in_turn.bytes["sm"]
    busy = [found.utilisation["tensor"] * found.time_s for found in (in_turn, loose)]
    assert busy[0] == pytest.approx(busy[1], rel=0.01)


def test_without_jitter_they_do_not() -> None:
    assert time_fs(kernel(FULL, 0.5, without=("jitter",))) == time_fs(kernel(FULL, 0))


@pytest.mark.parametrize("turn", [0.2, 0.9])
@pytest.mark.parametrize("tile", [(128, 128, 64, 3), (64, 64, 64, 4), (128, 64, 32, 5)])
def test_a_cta_with_an_sm_of_its_own_waits_for_nobody(tile: tuple[int, int, int, int], turn: float) -> None:
    """Not even where its own fills are in the way of its MMAs."""
    gemm, config = Gemm(11 * tile[0], 12 * tile[1], 2048), multistage(*tile)
    on = [load_gpu("h200_sxm", [f"multistage.turn_fraction={each}"]) for each in (0, turn)]
    assert len({time_fs(run(gemm, config, gpu)) for gpu in on}) == 1


def test_loads_that_merge_vary_alike() -> None:
    """Four CTAs of a GPC ask for the same chunks of B, from memory, and each for its own of A, which L2 holds:
    when B is there differs between them by what each SM draws itself, the draw of L2 being that of all."""
    jitter, gemm, config = 400, Gemm(4 * 64, 64, 16 * 64), multistage(64, 64, 64, 13)
    ready = []
    for width in (0, jitter):
        gpu = whole_gpu(f"l2.jitter_cycles={width}", "hbm.latency_ns=20000")
        plan = build_plan(gemm, config, gpu, full=True)
        spans = run_kernel(build_machine(gpu, MHZ, ()), plan, resident=(1.0, 0.0), trace=True).spans
        assert spans is not None
        loads = spans[(spans["kind"] == 1) & (spans["k"] < N_LOADS)]
        ready.append(np.array([np.sort(loads["end_fs"][loads["k"] == k]) for k in range(N_LOADS)]) / CYCLE_FS)
    late = ready[1] - ready[0]
    assert late.shape == (N_LOADS, 4)
    assert np.ptp(late, axis=1).max() <= jitter
    assert np.ptp(late) > 1.3 * jitter
