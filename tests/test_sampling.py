"""Kernels with repeated bands skipped against the same kernels replayed whole.

Which kernels are sampled is decided by `sim.schedule.plan`, whether their periods agree by `sim.sampling`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hwmodels import load_gpu
from sim.kernel import run_kernel
from sim.machine import build_machine
from sim.result import KernelResult
from sim.sampling import _level, touched_bytes
from sim.schedule.config import KernelConfig
from sim.schedule.plan import build_plan
from tests.kernel_runs import multistage, persistent, places, resident
from workloads import Gemm

FROZEN = Path(__file__).parent / "data" / "h200_frozen.toml"
LARGE = Gemm(16384, 16384, 16384)
QUICK = (Gemm(8192, 16384, 8192), multistage(group=8))
"""A million k-iterations: the smallest that is sampled."""
WIDE, TALL = multistage(128, 256, 64, 3, warps=8, group=8), multistage(256, 128, 64, 3, warps=8, group=8)


def ampere(block_m: int, block_n: int, block_k: int = 32, stages: int = 4, group: int = 8) -> KernelConfig:
    return multistage(block_m, block_n, block_k, stages, mma="mma_sync", group=group)


CASES: dict[str, tuple[Gemm, KernelConfig, str]] = {
    # The usual tiles, square.
    "128x128": (LARGE, multistage(group=8), ""),
    "128x256": (LARGE, WIDE, ""),
    "256x128": (LARGE, TALL, ""),
    "128x128, along n": (LARGE, multistage(group=8, raster="n"), ""),
    "256x128, along n": (LARGE, multistage(256, 128, 64, 3, warps=8, group=8, raster="n"), ""),
    "two CTAs an SM": (LARGE, multistage(128, 128, 32, group=8), ""),
    "narrow groups": (LARGE, multistage(group=4), ""),
    "wide groups": (LARGE, multistage(group=16), ""),
    # Other shapes.
    "ragged, long k": (Gemm(16200, 15000, 30000), multistage(group=8), ""),
    "tall": (Gemm(32768, 8192, 8192), multistage(group=8), ""),
    "flat": (Gemm(8192, 32768, 8192), multistage(group=8), ""),
    "short k": (Gemm(16384, 16384, 4096), multistage(64, 128, 32, group=8), ""),
    "shorter k": (Gemm(32768, 32768, 1024), multistage(group=8), ""),
    "neither along k": (Gemm(16384, 16384, 8192, layout="nt"), multistage(group=8), ""),
    "residual": (Gemm(16384, 16384, 8192, epilogue="residual"), WIDE, ""),
    "warm": (Gemm(16384, 8192, 8192, l2="warm"), multistage(group=8), ""),
    "fp8": (Gemm(16384, 16384, 16384, dtype="fp8_e4m3"), multistage(128, 128, 128, group=8), ""),
    "larger": (Gemm(32768, 32768, 16384), WIDE, ""),
    "wide chunks": (LARGE, multistage(128, 128, 128, 3, group=8), ""),
    # Persistent, tiles by a counter.
    "persistent": (LARGE, persistent(128, 256, cluster_m=2, group=8), ""),
    "persistent, along m": (LARGE, persistent(256, 128, 64, 4, cluster_n=2, group=6), ""),
    # Other GPUs.
    "A100": (LARGE, ampere(128, 128), "a100_sxm_80gb"),
    "A100, wide": (Gemm(16384, 16384, 8192), ampere(128, 256, 32, 3), "a100_sxm_80gb"),
    "L40S": (Gemm(16384, 16384, 16384, dtype="fp16"), ampere(128, 128, 32, 3), "l40s"),
    "T4": (
        Gemm(8192, 8192, 8192, dtype="fp16"),
        multistage(128, 128, 32, 2, mma="mma_sync", loads="ldg", group=8),
        "t4",
    ),
    "H100 PCIe": (LARGE, WIDE, "h100_pcie"),
}


DRIFTING: dict[str, tuple[Gemm, KernelConfig, str]] = {
    "ragged, short": (Gemm(16200, 15000, 12344), multistage(group=8), ""),
}
"""Kernels whose SMs drift for longer than is replayed, so that what they share of L2 is another part later on."""
OFF = {"ragged, short": (0.86, 0.96)}
"""DRAM bytes of them, sampled over whole: the known gap."""


def pair(gemm: Gemm, config: KernelConfig, name: str = "") -> tuple[KernelResult, KernelResult]:
    """(sampled, whole) results on a GPU, by default the frozen one."""
    gpu = load_gpu(name or FROZEN)
    machine = build_machine(gpu, None, ())
    sampled, whole = (
        run_kernel(machine, build_plan(gemm, config, gpu, full), resident=resident(gemm)) for full in (False, True)
    )
    assert (sampled.sampled, whole.sampled) == (True, False)
    return sampled, whole


def dram(kernel: KernelResult) -> int:
    return kernel.bytes["hbm"]["read"] + kernel.bytes["hbm"]["write"]


def check(sampled: KernelResult, whole: KernelResult) -> None:
    """Time and DRAM bytes within 1 %, what items alone decide nearly exact; L2 reads, which follow how far SMs have
    drifted out of step, within a fifth."""
    assert sampled.time_s == pytest.approx(whole.time_s, rel=0.01)
    assert dram(sampled) == pytest.approx(dram(whole), rel=0.01)
    assert sampled.bytes["hbm"]["write"] == pytest.approx(whole.bytes["hbm"]["write"], rel=0.02)
    assert sampled.bytes["l2"]["read"] == pytest.approx(whole.bytes["l2"]["read"], rel=0.2)
    assert sampled.bytes["sm"] == pytest.approx(whole.bytes["sm"], rel=0.02)
    assert sampled.sm_mhz == pytest.approx(whole.sm_mhz, rel=0.005)
    assert sampled.n_events < 0.8 * whole.n_events


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_time_and_dram_bytes_are_those_of_the_whole_kernel(name: str) -> None:
    check(*pair(*CASES[name]))


@pytest.mark.slow
@pytest.mark.parametrize("name", DRIFTING)
def test_dram_bytes_of_drifting_kernels_are_off(name: str) -> None:
    """Their time holds."""
    sampled, whole = pair(*DRIFTING[name])
    assert sampled.time_s == pytest.approx(whole.time_s, rel=0.01)
    least, most = OFF[name]
    assert least < dram(sampled) / dram(whole) < most


def test_the_smallest_that_is_sampled() -> None:
    check(*pair(*QUICK))


def test_waits_and_utilisation_are_those_of_the_whole_kernel() -> None:
    sampled, whole = pair(*QUICK)
    for name, share in whole.waits.items():
        assert sampled.waits[name] == pytest.approx(share, abs=0.01)
    for name, busy in whole.utilisation.items():
        assert sampled.utilisation[name] == pytest.approx(busy, abs=0.05)


def test_lookups_add_up() -> None:
    """Nothing is lost in what is added for skipped bands."""
    sampled, _ = pair(*QUICK)
    found = sampled.lookups
    gone = found["clean_evicted"] + found["written_back"] + found["overwritten"]
    assert found["filled"] + found["written"] == gone + found["resident"]
    assert found["hits"] + found["merged"] + found["misses"] == pytest.approx(found["accesses"], abs=3)


@pytest.mark.parametrize(
    ("gemm", "config"),
    [
        (Gemm(4096, 4096, 4096), multistage(group=8)),
        (Gemm(16384, 16384, 16384), persistent(128, 256, cluster_m=2, group=8, split_k=2)),
        (Gemm(16384, 16384, 16384), multistage(group=1)),
        (Gemm(4096, 4096, 4096, batch=32), multistage(group=8)),
    ],
    ids=["small", "static", "narrow bands", "batch"],
)
def test_what_drifts_or_is_quick_is_simulated_whole(gemm: Gemm, config: KernelConfig) -> None:
    assert build_plan(gemm, config, load_gpu(FROZEN)).work.sample_items == 0


def test_full_is_never_sampled() -> None:
    assert build_plan(LARGE, WIDE, load_gpu(FROZEN), full=True).work.sample_items == 0


@pytest.mark.parametrize("raster", ["m", "n"])
@pytest.mark.parametrize("batch", [1, 2])
def test_touched_bytes_are_those_of_the_items_of_each_wave(raster: str, batch: int) -> None:
    """Against the engine's own order of items, one at a time."""
    gpu = load_gpu(FROZEN)
    gemm, config = Gemm(1900, 3000, 256, batch=batch), multistage(64, 128, group=3, raster=raster)
    work = build_plan(gemm, config, gpu).work._replace(n_agents=17)
    walked = places(work)
    expected = [0.0]
    for first in range(0, work.n_items, 17):
        wave = walked[first : first + 17]
        rows, cols = ({(b, place[i]) for b, _, *place in wave} for i in (0, 1))
        expected.append(expected[-1] + (len(rows) * 64 + len(cols) * 128) * 256 * 2)
    assert touched_bytes(work) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("values", "level"),
    [([100, 101], True), ([100, 102], False), ([99, 101, 101, 99], True), ([100, 100, 102, 102], False),
     ([95, 105, 95, 105], False)],
)  # fmt: skip
def test_periods_agree_where_halves_do_and_none_stands_out(values: list[float], level: bool) -> None:
    assert _level(np.array(values, dtype=float), 0.0125) == level
