"""CTAs of an SM that take turns at its tensor cores: what that changes, and what not."""

from __future__ import annotations

import pytest

from sim.result import KernelResult
from tests.kernel_runs import multistage, run, time_fs, whole_gpu
from workloads import Gemm

FULL = Gemm(22 * 128, 12 * 128, 4096)
"""Two tiles of 128x128 for each SM."""
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
def test_a_cta_with_an_sm_of_its_own_waits_for_nobody(turn: float) -> None:
    lone = Gemm(11 * 128, 12 * 128, 1024)
    jitter = "l2.jitter_cycles=300"
    assert time_fs(kernel(lone, turn, jitter)) == time_fs(kernel(lone, 0, jitter))
