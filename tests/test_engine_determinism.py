"""Same input, same integers: twice, in threads, in another process, in plain Python, traced or not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hwmodels import load_gpu
from sim import engine, simulate
from sim.result import KernelResult
from tests.kernel_runs import multistage, persistent, run, time_fs
from workloads import Gemm

ROOT = Path(__file__).parent.parent
GPU = load_gpu("h200_sxm")
TINY = {
    "multistage": (Gemm(200, 136, 200), multistage(64, 64, 32, 3)),
    "two on an SM": (Gemm(160, 470, 64), multistage(16, 32, 32, 2, warps=1)),
    "split-K": (Gemm(100, 72, 500, dtype="fp16"), multistage(64, 64, 32, 3, split_k=3)),
    "cluster": (Gemm(512, 256, 256), persistent(128, 64, cluster_m=2, stages=3)),
    "ping-pong": (Gemm(512, 128, 128), persistent(64, 64, pingpong=True, n_ctas=2)),
    "stream-K": (Gemm(128, 192, 1280), persistent(64, 64, stream_k=True, n_ctas=2)),
    "warm": (Gemm(130, 130, 128, batch=2, l2="warm", epilogue="residual"), multistage(stages=3)),
}
"""Small enough for plain Python, where each takes a fraction of a second."""


def integers(kernel: KernelResult) -> dict[str, Any]:
    """All that a run counted, exact: floats by their bits."""
    return {
        "time_fs": time_fs(kernel),
        "sm_mhz": float(kernel.sm_mhz).hex(),
        "bytes": kernel.bytes,
        "requests": kernel.requests,
        "lookups": kernel.lookups,
        "waits": {name: float(share).hex() for name, share in kernel.waits.items()},
        "utilisation": {name: float(share).hex() for name, share in kernel.utilisation.items()},
        "n_events": kernel.n_events,
        "windows": kernel.windows.values.tobytes().hex(),
    }


def outcomes() -> dict[str, Any]:
    """Every tiny kernel, its clock moving."""
    return {name: integers(run(gemm, config, GPU, clock_mhz=None)) for name, (gemm, config) in TINY.items()}


def in_process(**environment: str) -> dict[str, Any]:
    """`outcomes` of a fresh interpreter."""
    code = "import json; from tests.test_engine_determinism import outcomes; print(json.dumps(outcomes()))"
    env = {name: value for name, value in os.environ.items() if name not in ("NUMBA_DISABLE_JIT", "PYTHONHASHSEED")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.small
def test_twice():
    assert outcomes() == outcomes()


def test_whole_results_twice():
    gemm = Gemm(1000, 500, 300)
    first, second = (simulate(gemm, GPU) for _ in range(2))
    assert first == second


def test_two_threads_at_once():
    """The engine lets go of the interpreter's lock: runs do overlap, and share nothing."""
    cases = [
        (Gemm(1024, 1024, 1024), multistage()),
        (Gemm(1024, 1024, 768), persistent(cluster_m=2)),
        (Gemm(777, 1024, 512), multistage(64, 64, 32)),
    ] * 3
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda case: integers(run(*case, GPU)), cases))
    assert together == [integers(run(*case, GPU)) for case in cases]


def test_fresh_process():
    assert in_process(PYTHONHASHSEED="1") == outcomes()


def test_jit_on_is_jit_off():
    assert in_process(NUMBA_DISABLE_JIT="1") == outcomes()


@pytest.mark.small
@pytest.mark.parametrize("name", TINY)
def test_tracing_changes_nothing(name):
    gemm, config = TINY[name]
    traced, plain = (run(gemm, config, GPU, clock_mhz=None, trace=trace) for trace in (True, False))
    assert integers(traced) == integers(plain)
    assert plain.spans is None
    assert traced.spans is not None
    assert len(traced.spans) > 0
    assert traced.spans_dropped == 0


@pytest.mark.skipif(bool(os.environ.get("NUMBA_DISABLE_JIT")), reason="nothing is compiled")
def test_one_compiled_signature():
    """A float where an integer belongs would compile the engine a second time."""
    outcomes()
    simulate(Gemm(512, 512, 512, l2="warm"), GPU, trace=True)
    simulate(Gemm(300, 200, 100, dtype="fp32", epilogue="residual"), load_gpu("t4"), clock_mhz=1000)
    assert len(engine.run.signatures) == 1
    assert len(engine.warm.signatures) == 1
