"""The engine against a second one of a hundred lines that shares no code with it (`naive_model`)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hwmodels import load_gpu
from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.schedule.config import KernelConfig
from tests.kernel_runs import multistage, persistent, run, whole_gpu
from tests.naive_model import naive
from workloads import Gemm

IN_TURN = ("l2.jitter_cycles=0", "multistage.turn_fraction=0", "persistent.reorder_fraction=0", "kernel.launch_ns=0")
GPUS = {"whole numbers": whole_gpu(), "h200_sxm": load_gpu("h200_sxm", IN_TURN)}
EXACT, ROUNDED = 1e-9, 1e-3
"""The engine rounds cycles to whole ones (busy time to sixteenths), rates to 1 fs a KiB, the cost of DRAM rows to
1/256. On the GPU of whole numbers at its own clock that is nothing, but for ping-pong's shared memory; on a real one it
is under 1/1000."""
TILES = ((64, 64), (128, 64), (64, 128), (128, 128), (64, 32), (192, 64), (128, 256))


@st.composite
def cases(draw: st.DrawFn, most_k: int = 12) -> tuple[Gemm, KernelConfig, str, float]:
    """(GEMM, configuration, GPU, clock): up to four CTAs, persistent ones with two tiles each, or up to twelve."""
    block_m, block_n = draw(st.sampled_from(TILES))
    block_k, stages = draw(st.sampled_from((64, 128))), draw(st.integers(1, 6))
    if draw(st.booleans()):
        tiles = draw(st.integers(1, 4)), draw(st.integers(1, 3))
        n_tiles = tiles[0] * tiles[1]
        n_ctas = draw(st.sampled_from((1, *range(-(-n_tiles // 2), min(4, n_tiles) + 1))))  # with more each, they count
        pingpong = block_m == 64 or draw(st.booleans())
        config = persistent(block_m, block_n, block_k, stages, pingpong=pingpong, n_ctas=n_ctas)
        if draw(st.booleans()):
            tiles, n_ctas, most_k = (1, draw(st.integers(1, 7))), draw(st.integers(1, 4)), 4 * most_k
            config = replace(config, stream_k=True, pingpong=False, n_ctas=n_ctas)
    else:
        tiles = draw(st.sampled_from(((1, 1), (1, 2), (2, 1), (2, 2), (1, 3), (4, 1))))
        warps = 8 if block_m * block_n > 128 * 128 else 4  # no spills
        config = multistage(block_m, block_n, block_k, stages, warps=warps, n_ctas=tiles[0] * tiles[1])
    m = block_m * tiles[0] - draw(st.sampled_from((0, 0, 1, 7, block_m - 1)))
    n = block_n * tiles[1] - draw(st.sampled_from((0, 0, 16)))  # rows of C stay whole sectors
    gemm = Gemm(m, n, block_k * draw(st.integers(1, most_k)), l2=draw(st.sampled_from(("cold", "warm"))))
    return gemm, config, draw(st.sampled_from(tuple(GPUS))), draw(st.sampled_from((1000.0, 1500.0, 1980.0)))


def compare(gemm: Gemm, config: KernelConfig, gpu: Gpu, mhz: float, tolerance: float) -> None:
    kernel = run(gemm, config, gpu, clock_mhz=mhz)
    seconds, moved = naive(gemm, config, gpu, mhz)
    assert moved["hbm"] == kernel.bytes["hbm"]["read"]
    assert moved["l2"] == kernel.bytes["l2"]["read"]
    assert moved["coalesced"] == kernel.lookups["coalesced_bytes"]
    assert moved["sm"] == kernel.bytes["sm"]["read"]
    assert moved["c"] == kernel.bytes["sm"]["write"]
    assert kernel.time_s == pytest.approx(seconds, rel=tolerance)


def check(case: tuple[Gemm, KernelConfig, str, float]) -> None:
    gemm, config, name, mhz = case
    whole = name == "whole numbers" and mhz == 1000 and not config.pingpong
    try:
        compare(gemm, config, GPUS[name], mhz, EXACT if whole else ROUNDED)
    except ConfigError:
        assume(False)


@settings(max_examples=200)
@given(cases())
def test_both_engines_agree(case):
    """On every byte at every level, and on time."""
    check(case)


@pytest.mark.small
@settings(max_examples=12)
@given(cases(most_k=3))
def test_both_engines_agree_on_short_kernels(case):
    check(case)
