"""Better hardware is never slower, the clock being fixed: exactly so for one CTA, within 1 % for whole kernels whose
CTAs start together, whose requests do not merge, whose loads do not vary and whose memory serves in turn; where they do
otherwise, for rates and capacities on the average.

Whole kernels are not exactly monotone, in the model as on hardware: requests that come in another order merge, evict
and queue otherwise, and CTAs that end in another order leave another tail. One per cent is a few iterations of a kernel
of 20 us: the kernels here take that long or longer, and fill the GPU in one wave or many.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from statistics import mean

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hwmodels import load_gpu
from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.schedule.config import KernelConfig
from tests.kernel_runs import WHOLE, multistage, persistent, run, time_fs, warm
from workloads import Gemm

FROZEN = Path(__file__).parent / "data" / "h200_frozen.toml"
MHZ = 1500.0
FASTER = (
    "hbm.bandwidth_gb_per_s", "l2.bytes_per_clk", "l2.sm_port_bytes_per_clk", "l2.gpc_port_bytes_per_clk",
    "smem.bytes_per_clk", "tensor.bf16_flops_per_clk_per_sm", "l2.sm_store_bytes_per_clk",
    "multistage.issue_bytes_per_clk",
)  # fmt: skip
SHORTER = (
    "hbm.latency_ns", "hbm.spread_ns", "hbm.row_open_bytes", "l2.latency_cycles", "l2.far_latency_cycles",
    "l2.write_weight", "kernel.turnround_cycles", "multistage.barrier_cycles", "multistage.drain_cycles",
    "multistage.load_cycles", "multistage.cta_start_cycles", "multistage.epilogue_cycles", "persistent.start_cycles",
    "persistent.load_cycles", "persistent.epilogue_cycles", "persistent.iteration_cycles",
    "persistent.reorder_fraction", "persistent.drain_cycles", "kernel.launch_ns",
)  # fmt: skip
LARGER = ("l2.capacity_mib",)
BASES = {
    "h200_sxm": (),
    "whole numbers": WHOLE,
    "little L2": ("l2.capacity_mib=0.0625",),
    "fast L2": (*WHOLE, "l2.bytes_per_clk=65536"),
}


@cache
def gpu(base: str, key: str = "", factor: float = 1) -> Gpu:
    return load_gpu("h200_sxm", (*BASES[base], *([f"{key}=*{factor}"] if key else [])))


def times(gemm: Gemm, config: KernelConfig, base: str, key: str, factor: float) -> tuple[int, int]:
    """Femtoseconds before and after `key` gets better by `factor`."""
    factor = factor if key in FASTER + LARGER else 1 / factor
    before, after = (time_fs(run(gemm, config, on, clock_mhz=MHZ)) for on in (gpu(base), gpu(base, key, factor)))
    return before, after


# One CTA, exactly.
ONE_TILE = {
    "cold": (Gemm(128, 128, 2048), multistage()),
    "warm, two stages": (warm(Gemm(64, 64, 1000)), multistage(64, 64, 64, 2)),
    "edge, short rows": (Gemm(50, 99, 999, layout="nn"), multistage(64, 128, 32, 3, loads="ldg")),
    "narrow": (warm(Gemm(64, 8, 2048)), multistage(64, 8, 64, 8, registers_per_thread=128)),
    "TMA": (Gemm(128, 256, 1024), persistent(128, 256)),
}
ONE_CTA = {
    "twelve tiles": (Gemm(512, 384, 512), persistent(n_ctas=1)),
    "ping-pong": (warm(Gemm(256, 512, 256)), persistent(64, 128, 64, 6, pingpong=True, n_ctas=1)),
    "short iterations": (Gemm(640, 256, 512, epilogue="residual"), persistent(64, 64, 64, 5, pingpong=True, n_ctas=1)),
}


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("key", FASTER + SHORTER + LARGER)
def test_one_tile_is_never_slower(key, base):
    for gemm, config in ONE_TILE.values():
        for factor in (1.01, 1.5, 4):
            before, after = times(gemm, config, base, key, factor)
            assert after <= before


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("key", FASTER + SHORTER)
def test_one_cta_of_many_tiles_is_never_slower(key, base):
    """Capacity apart: it moves write-backs of earlier tiles, perhaps to where they delay a read."""
    for gemm, config in ONE_CTA.values():
        for factor in (1.01, 1.5, 4):
            before, after = times(gemm, config, base, key, factor)
            assert after <= before


@st.composite
def one_cta_kernels(draw: st.DrawFn) -> tuple[Gemm, KernelConfig]:
    block_m, block_n = draw(st.sampled_from(((64, 64), (128, 64), (64, 128), (128, 128), (64, 32), (128, 256))))
    block_k, stages = draw(st.sampled_from((32, 64, 128))), draw(st.integers(1, 6))
    tma = draw(st.booleans())
    tiles = (draw(st.integers(1, 4)), draw(st.integers(1, 3))) if tma else (1, 1)
    config = (
        persistent(block_m, block_n, block_k, stages, pingpong=block_m == 64 or draw(st.booleans()), n_ctas=1)
        if tma
        else multistage(block_m, block_n, block_k, stages)
    )
    gemm = Gemm(
        block_m * tiles[0] - draw(st.sampled_from((0, 3))),
        block_n * tiles[1] - draw(st.sampled_from((0, 8))),
        8 * draw(st.integers(1, 200)),
        l2=draw(st.sampled_from(("cold", "warm"))),
    )
    return gemm, config


@settings(max_examples=100)
@given(one_cta_kernels(), st.sampled_from(FASTER + SHORTER), st.floats(1.001, 8), st.sampled_from(tuple(BASES)))
def test_any_one_cta_is_never_slower(kernel, key, factor, base):
    try:
        before, after = times(*kernel, base, key, factor)
    except ConfigError:
        assume(False)
    assert after <= before


@pytest.mark.small
@pytest.mark.parametrize("key", FASTER + SHORTER + LARGER)
def test_one_short_tile_is_never_slower(key):
    before, after = times(Gemm(100, 72, 136), multistage(64, 128, 64, 3), "h200_sxm", key, 2)
    assert after <= before


def test_each_improvement_counts_somewhere():
    """None of the keys is dead: some kernel here is faster for it."""
    two_waves = ((Gemm(22 * 128, 12 * 128, 1024), config) for config in (multistage(), persistent()))
    cases = [*ONE_TILE.values(), *ONE_CTA.values(), *two_waves]
    for key in FASTER + SHORTER + LARGER:
        pairs = (times(*case, base, key, 4) for base in BASES for case in cases)
        assert any(after < before for before, after in pairs), key


# Whole kernels, within 1 %.
KERNELS = {
    "multistage 128x128": multistage(),
    "multistage 128x256": multistage(128, 256, 64, 3, warps=8, group=8),
    "multistage split": multistage(split_k=4),
    "persistent 128x128": persistent(128, 128, 64, 6, cluster_m=2),
    "persistent 256x128": persistent(256, 128, 64, 4, cluster_n=2, group=4),
    "ping-pong 64x128": persistent(64, 128, 64, 6, pingpong=True),
    "small tiles": multistage(64, 64, 64, 3),
}
SHAPES = (Gemm(2048, 2048, 1024), Gemm(64, 8192, 4096), Gemm(2000, 1000, 3000), Gemm(4096, 4096, 256))
MAIN = FASTER[:6] + SHORTER[:5] + LARGER
RATES = FASTER[:5] + LARGER


IN_STEP = ("coalescing", "jitter", "memory_order")


@cache
def kernel_fs(config: KernelConfig, shape: Gemm, in_step: bool, key: str = "") -> int:
    """Time on the frozen H200, `key` twice as good: refits move nothing here."""
    factor = 2 if key in FASTER + LARGER else 0.5
    together = ("kernel.launch_ns=0",) if in_step else ()
    on = load_gpu(FROZEN, (*together, *([f"{key}=*{factor}"] if key else [])))
    return time_fs(run(shape, config, on, clock_mhz=MHZ, without=IN_STEP if in_step else ()))


def ratios(config: KernelConfig, key: str, in_step: bool) -> list[float]:
    """Time after over time before, of each shape."""
    return [kernel_fs(config, shape, in_step, key) / kernel_fs(config, shape, in_step) for shape in SHAPES]


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("key", MAIN)
def test_kernels_are_not_slower_by_one_per_cent(key, name):
    """Where CTAs start together, requests do not merge, loads do not vary and memory serves in turn."""
    assert max(ratios(KERNELS[name], key, in_step=True)) < 1.01


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("key", RATES)
def test_better_rates_upset_merging_by_a_few_per_cent(key, name):
    """CTAs that live off each other's requests fall in and out of step: the known exception to the law. At the worst,
    2048x2048x1024 by ping-pong, a GPC's port is the limit, and it matters which GPCs' CTAs get a fourth tile from the
    counter. What changes how long requests are under way (latencies) or how close CTAs follow each other (tensor cores)
    upsets it more."""
    found = ratios(KERNELS[name], key, in_step=False)
    assert max(found) < 1.08
    assert mean(found) < 1.01
