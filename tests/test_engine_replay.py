"""Pinned integers: a change that means to keep the model changes none of these.

The GPU is `data/h200_frozen.toml`, so refits of the shipped file move nothing here. A change of the model moves pins:
say in the commit which and why, and write them anew with

    python -m tests.test_engine_replay
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hwmodels import load_gpu
from hwmodels.spec import FIELDS
from sim import simulate
from sim.kernel import run_kernel
from sim.machine import build_machine
from sim.schedule.config import KernelConfig
from sim.schedule.names import parse_kernel_name
from sim.schedule.plan import build_plan
from tests.kernel_runs import multistage, persistent, resident, warm
from workloads import Gemm

HERE = Path(__file__).parent
FROZEN = HERE / "data" / "h200_frozen.toml"
PINS = HERE / "replay.json"


class Case(NamedTuple):
    """One run through the seam."""

    gemm: Gemm
    config: KernelConfig
    overrides: tuple[str, ...] = ()
    clock_mhz: float | None = None
    full: bool = False
    without: tuple[str, ...] = ()


SQUARE, SMALL = Gemm(1024, 1024, 1024), Gemm(512, 512, 256)


def named(name: str, gemm: Gemm) -> KernelConfig:
    return parse_kernel_name(f"nvjet_sm90_{name}", gemm)


def split(config: KernelConfig, slices: int) -> KernelConfig:
    return replace(config, family="split_k", split_k=slices)


CASES: Mapping[str, Case] = {
    # Multistage: tiles, rings, orders, edges, instructions, ways to load.
    "one tile": Case(Gemm(128, 128, 64), multistage()),
    "one element": Case(Gemm(1, 1, 1), multistage(16, 16, 16, 2, loads="ldg")),
    "square": Case(SQUARE, multistage()),
    "two stages, short rows": Case(SQUARE, multistage(block_k=32, stages=2)),
    "eight warps, group": Case(Gemm(2048, 2048, 512), multistage(128, 256, 64, 3, warps=8, group=8)),
    "raster along n": Case(SQUARE, multistage(64, 128, 64, 4, raster="n", group=3)),
    "several on an SM": Case(SQUARE, multistage(64, 64, 32, 3)),
    "mma.sync, few rows": Case(Gemm(16, 4096, 1024), multistage(16, 64, 128, 4)),
    "edges, odd k": Case(Gemm(1000, 777, 501), multistage(64, 128, 64, 3, loads="ldg")),
    "both along k": Case(replace(SQUARE, layout="tt"), multistage()),
    "neither along k": Case(replace(SQUARE, layout="nt"), multistage()),
    "batch, residual": Case(Gemm(300, 200, 128, batch=5, epilogue="residual"), multistage(64, 64)),
    "CUDA cores": Case(Gemm(256, 256, 256, dtype="fp32"), multistage(64, 64, 16, 3, mma="fma")),
    "double": Case(Gemm(256, 256, 256, dtype="fp64"), multistage(64, 64, 16, 3, mma="mma_sync")),
    "eight bits": Case(Gemm(512, 512, 1024, dtype="int8"), multistage(128, 128, 128)),
    "split": Case(Gemm(256, 256, 4096), split(multistage(), 5)),
    # Persistent: clusters, schedules, names.
    "cooperative": Case(SQUARE, persistent(256, 128, cluster_m=2)),
    "ping-pong": Case(Gemm(2048, 1024, 512), persistent(64, 128, 64, 6, pingpong=True, group=4)),
    "few CTAs": Case(SQUARE, persistent(cluster_n=2, n_ctas=24)),
    "clusters of four": Case(Gemm(3000, 1024, 512), persistent(cluster_m=2, cluster_n=2, raster="n")),
    "fp8": Case(Gemm(2048, 2048, 1024, dtype="fp8_e4m3"), persistent(128, 128, 128, cluster_m=2)),
    "named": Case(Gemm(4096, 4096, 512), named("tst_256x128_64x4_1x2_h_bz_coopA_TNT", Gemm(4096, 4096, 512))),
    "named, few rows": Case(Gemm(16, 8192, 2048), named("tst_64x8_64x16_2x1_v_bz_TNT", Gemm(16, 8192, 2048))),
    "persistent split": Case(Gemm(128, 512, 8192), split(persistent(128, 128, 64, 4, cluster_n=2), 12)),
    "stream-K": Case(Gemm(1024, 1152, 4096), persistent(stream_k=True, n_ctas=40)),
    "stream-K, clusters": Case(Gemm(700, 1104, 8192), persistent(256, 128, 64, 4, cluster_m=2, group=3, stream_k=True)),
    # Memory: warm, too small, one partition, slow.
    "warm": Case(warm(SQUARE), multistage(stages=3)),
    "warm, persistent": Case(warm(SQUARE), persistent(cluster_m=2)),
    "little L2": Case(SQUARE, multistage(64, 64), ("l2.capacity_mib=1",)),
    "one partition": Case(SQUARE, multistage(), ("l2.partitions=1",)),
    "wide C": Case(Gemm(4096, 4096, 64, out_dtype="fp32"), multistage(128, 128, 64, 3, warps=8)),
    # Clock, sampling, mechanisms switched off.
    "clock held": Case(SQUARE, multistage(), clock_mhz=1234),
    "sampled": Case(Gemm(8192, 16384, 8192), multistage(group=8)),
    "bare": Case(SQUARE, multistage(), without=("coalescing", "l2_partitions", "gpc_port", "write_back", "clock")),
    "bare SM": Case(SQUARE, persistent(), without=("tile_latency", "barriers", "smem_bandwidth")),
}
CHOSEN: Mapping[str, Gemm] = {
    "chosen": Gemm(2048, 2048, 2048),
    "chosen, few rows": Gemm(8, 4096, 4096),
    "chosen, misaligned": Gemm(333, 333, 333),
}


def pin(case: Case) -> dict[str, Any]:
    """The integers of one run."""
    gpu = load_gpu(FROZEN, case.overrides)
    machine = build_machine(gpu, case.clock_mhz, case.without)
    plan = build_plan(case.gemm, case.config, gpu, case.full, without=case.without)
    kernel = run_kernel(machine, plan, resident=resident(case.gemm))
    moved = {f"{level}_{way}": n for level, ways in kernel.bytes.items() for way, n in ways.items() if n}
    return {"time_fs": round(kernel.time_s * 1e15), "events": kernel.n_events, **moved, **kernel.lookups}


def pin_chosen(gemm: Gemm) -> dict[str, Any]:
    """What `simulate` chooses and how long it takes, launch included."""
    result = simulate(gemm, load_gpu(FROZEN))
    return {"time_fs": round(result.time_s * 1e15), "kernels": [kernel.name for kernel in result.kernels]}


def pins() -> dict[str, Any]:
    """{name: integers} of every run."""
    return {name: pin(case) for name, case in CASES.items()} | {name: pin_chosen(gemm) for name, gemm in CHOSEN.items()}


def write() -> None:
    """Write the pins anew, one run a line."""
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(found)}" for name, found in pins().items())
    PINS.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def pinned() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(PINS.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("name", CASES)
def test_integers_are_as_pinned(name):
    assert pin(CASES[name]) == pinned()[name]


@pytest.mark.parametrize("name", CHOSEN)
def test_choices_are_as_pinned(name):
    assert pin_chosen(CHOSEN[name]) == pinned()[name]


def test_every_pin_belongs_to_a_run():
    assert set(pinned()) == set(CASES) | set(CHOSEN)


def test_the_frozen_gpu_states_every_value():
    """Else a value would come from the shipped files and move with them."""
    origins = load_gpu(FROZEN).provenance
    assert [key for key in FIELDS if origins[key].source != str(FROZEN)] == []


if __name__ == "__main__":
    write()
