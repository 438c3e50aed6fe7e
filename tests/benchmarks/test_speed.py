"""How fast it is, against the targets: `pytest -n 0 tests/benchmarks`, compiled code in place, on an idle machine.

Asserts the least time of several rounds, which noise can only raise. The targets are for one core of an AMD EPYC of the
third generation (family 25, model 1).
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hwmodels import load_gpu
from sim import engine, simulate
from sim import kernel as seam
from sim.llm import simulate_llm
from sim.machine import build_machine
from sim.operation import kernels_on
from sim.schedule.choose import ranked
from sim.schedule.menu import menu
from sim.schedule.plan import build_plan
from sim.step import run_step
from sim.tile_sets import best_of_each, gemms_of
from sim.tiles import every, search
from tests.kernel_runs import multistage, persistent
from workloads import Gemm, load_model
from workloads.execution import Execution
from workloads.llm import Llm
from workloads.training import Training, forward_step

ROOT = Path(__file__).parent.parent.parent
GPU = load_gpu("h200_sxm")
POPS_PER_S = 15e6
TILE = multistage(group=8)
MAIN = "from viz.cli import main; main()"


def best(benchmark: Any) -> float:
    """Seconds of the fastest round."""
    return float(benchmark.stats.stats.min)


# The engine.
@pytest.mark.parametrize("size", [1024, 4096, 8192])
@pytest.mark.parametrize("config", [TILE, persistent(256, 128, cluster_m=2, group=8)], ids=lambda config: config.family)
def test_heap_pops(benchmark, config, size):
    """Pops of the event heap in a second, the state's tables made beforehand."""
    machine = build_machine(GPU, None, ())
    plan = build_plan(Gemm(size, size, size), config, GPU, full=True)
    states: list[Any] = []

    def fresh() -> tuple[tuple[Any, ...], dict[str, Any]]:
        states[:] = [seam._state(machine, plan, False)]
        for table in states[0]:  # pages are there, as they are for whoever simulates more than once
            table.view("u1").reshape(-1)[:: mmap.PAGESIZE] += np.uint8(0)
        return tuple(states[0]), {}

    benchmark.pedantic(engine.run, setup=fresh, rounds=8, warmup_rounds=1)
    pops = int(states[-1].scalars["n_events"][0])
    benchmark.extra_info.update(pops=pops, pops_per_s=pops / best(benchmark))
    if size == 4096 and config is TILE:
        assert pops / best(benchmark) >= POPS_PER_S
    assert len(engine.run.signatures) == 1


@pytest.mark.parametrize("trace", [False, True])
def test_tracing(benchmark, trace):
    """Spans of four SMs or none: what tracing costs where it is on. Compare the two."""
    plan = build_plan(Gemm(4096, 4096, 4096), TILE, GPU)
    benchmark(seam.run_kernel, build_machine(GPU, None, ()), plan, trace=trace)


# Tiles, on two cores.
@pytest.mark.parametrize(("size", "target_s"), [(4096, 1.5), (8192, 4.0)])
def test_best_tiles_of_the_multistage_menu(benchmark, size, target_s):
    """The ten best of the grid of tile_sweep.csv, proved to be."""
    gemm = Gemm(size, size, size)
    configs = every(gemm, GPU, "multistage")
    found = benchmark.pedantic(search, (gemm, GPU, configs), {"threads": 2}, rounds=3, warmup_rounds=1)
    assert found.n_configs > 280
    assert best(benchmark) <= target_s


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_best_tiles_of_a_model(benchmark, phase):
    """All distinct products of llama3-8b at eight batch sizes."""
    model = load_model("llama3-8b")
    wanted = gemms_of(Llm(model, phase, batch).step() for batch in (1, 2, 4, 8, 16, 32, 64, 128))
    benchmark.pedantic(best_of_each, (wanted, GPU), {"threads": 2}, rounds=1)
    assert best(benchmark) <= 20.0


# One call.
@pytest.mark.parametrize(
    ("size", "full", "target_s"),
    [(4096, False, 0.020), (8192, False, 0.150), (16384, True, 1.5), (16384, False, 0.2)],
    ids=["4096", "8192", "16384 full", "16384 sampled"],
)
def test_simulate(benchmark, size, full, target_s):
    """`simulate` of a square GEMM with 128x128x64 tiles, warm."""
    gemm = Gemm(size, size, size)
    result = benchmark.pedantic(
        simulate, (gemm, GPU), {"config": TILE, "full": full}, rounds=3 if full else 8, warmup_rounds=1
    )
    benchmark.extra_info.update(target_s=target_s, sampled=result.main.sampled, pops=result.main.n_events)
    assert best(benchmark) <= target_s
    assert result.main.sampled or size != 16384 or full


@pytest.mark.parametrize(
    ("config", "target_s"),
    [
        (multistage(128, 256, 64, 3, warps=8, group=8), 0.2),
        (multistage(256, 128, 64, 3, warps=8, group=8), 0.2),
        (persistent(128, 256, cluster_m=2, group=8), 0.2),
    ],
    ids=["128x256", "256x128", "persistent 128x256"],
)
def test_other_tiles_of_16384(benchmark, config, target_s):
    """16384^3 with other tiles: bands skipped."""
    benchmark.pedantic(simulate, (Gemm(16384, 16384, 16384), GPU), {"config": config}, rounds=5, warmup_rounds=1)
    benchmark.extra_info["target_s"] = target_s
    assert best(benchmark) <= target_s


@pytest.mark.parametrize("tile", ["bound", "auto"])
def test_choose_and_simulate(benchmark, tile):
    """The best eight of the menu, or all of it."""
    benchmark.pedantic(simulate, (Gemm(1024, 1024, 1024), GPU), {"tile": tile}, rounds=2, warmup_rounds=1)


def test_ranking(benchmark):
    """A menu of 300 by the estimate: a fraction of the time of eight simulations."""

    def rank() -> None:
        menu.cache_clear()
        assert len(ranked(Gemm(4096, 4096, 4096), GPU)) > 300

    benchmark.pedantic(rank, rounds=5)
    assert best(benchmark) <= 0.12


# Language models.
LARGE = load_gpu("h200_sxm", ("hbm.capacity_gb=2000",))
LLAMA = load_model("llama3-8b")


def test_decode_step(benchmark):
    """Llama-3-8B, what it launches known from a step before."""
    request = Llm(LLAMA, "decode", batch=8, context=4096)
    benchmark.pedantic(simulate_llm, (request, GPU), rounds=5, warmup_rounds=1)
    assert best(benchmark) <= 0.060


@pytest.mark.parametrize(
    ("request_", "target_s"),
    [
        (Llm(load_model("llama3-70b"), "prefill", tokens=8192), 1.5),
        (Llm(LLAMA, "generate", tokens=512, new_tokens=256), 1.0),
    ],
    ids=["llama3-70b prefill 8192", "llama3-8b generate 256"],
)
def test_phase(benchmark, request_, target_s):
    """With no kernel known before."""
    benchmark.pedantic(simulate_llm, (request_, LARGE), setup=kernels_on.cache_clear, rounds=3, warmup_rounds=1)
    assert best(benchmark) <= target_s


def test_layer_of_gpt3(benchmark):
    """Batch 8, 2,048 tokens, no kernel known before."""
    step = forward_step(load_model("gpt3-175b").with_layers(1), Execution(), Training(layers_only=True), 8, 2048)
    benchmark.pedantic(run_step, (step, LARGE), setup=kernels_on.cache_clear, rounds=3, warmup_rounds=1)
    assert best(benchmark) <= 0.5


# Whole processes.
def process(*args: str, **environment: str) -> None:
    """Run `tilewalk` with its modules compiled to bytecode, as pip leaves them."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", MAIN, *args],
        cwd=ROOT,
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("args", "target_s"),
    [
        (("gemm", "4096", "4096", "4096"), 1.5),
        (("llm", "--model", "llama3-8b", "--phase", "decode", "--no-advise"), 3.0),
        (("--help",), 0.4),
    ],
    ids=["gemm 4096 4096 4096", "llm llama3-8b decode", "--help"],
)
def test_command(benchmark, tmp_path, args, target_s):
    """`tilewalk` from start to exit, numba's cache warm."""
    benchmark.pedantic(process, args, {"PYTHONPYCACHEPREFIX": str(tmp_path)}, rounds=5, warmup_rounds=1)
    benchmark.extra_info["target_s"] = target_s
    assert best(benchmark) <= target_s


def test_first_compilation(benchmark, tmp_path):
    """The same with an empty cache: the engine is compiled."""
    benchmark.pedantic(process, ("gemm", "256", "256", "256"), {"NUMBA_CACHE_DIR": str(tmp_path)}, rounds=1)
    assert best(benchmark) <= 20
