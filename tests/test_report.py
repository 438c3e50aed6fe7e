"""The limiter of a kernel and its evidence, on results made by hand and on runs; advice; copies."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import Any

import pytest

from hwmodels import load_gpu
from hwmodels.spec import Gpu
from sim import simulate
from sim.call import Options, run_call
from sim.limiter import LIMITERS, find_limiter
from sim.report import CHANGES, _better
from sim.result import KernelResult, Result
from sim.schedule.config import KernelConfig
from sim.schedule.names import parse_kernel_name
from tests.sample_result import sample_kernel
from workloads import Gemm

QUIET = {"tensor": 0.1, "smem": 0.1, "sm_port": 0.1, "l2": 0.1, "hbm": 0.1}
KNOWN = {
    *("tensor", "smem", "hbm", "l2", "sm_port", "hbm latency", "l2 latency", "too few CTAs", "synchronisation"),
    *("issuing loads", "epilogue", "launch and start"),
}


def kernel(utilisation: dict[str, float], waves: float = 4.0, **waits: float) -> KernelResult:
    """A kernel that waited like this; what is left of the slots' time is idle."""
    names = ("mma", "hbm", "l2", "sm_port", "barrier", "issue", "start", "epilogue")
    shares = {name: waits.get(name, 0.0) for name in names}
    shares["idle"] = 1 - sum(shares.values())
    main = sample_kernel(traced=False)
    return dataclasses.replace(main, utilisation={**QUIET, **utilisation}, waits=shares, waves=waves)


# Rules.
@pytest.mark.parametrize(
    ("limiter", "utilisation", "waits"),
    [
        ("tensor", {"tensor": 0.95, "smem": 0.7}, {"mma": 0.9}),
        ("smem", {"tensor": 0.5, "smem": 0.95}, {"mma": 0.7, "issue": 0.2}),
        ("hbm", {"hbm": 0.9, "l2": 0.6}, {"hbm": 0.5, "mma": 0.4}),
        ("l2", {"l2": 0.97, "tensor": 0.7}, {"mma": 0.5, "l2": 0.25, "issue": 0.2}),
        ("sm_port", {"sm_port": 0.8, "l2": 0.6}, {"sm_port": 0.6, "mma": 0.3}),
        ("hbm", {"hbm": 0.6}, {"hbm": 0.6, "mma": 0.3}),
        ("hbm latency", {"hbm": 0.3}, {"hbm": 0.6, "mma": 0.3}),
        ("l2 latency", {"l2": 0.3}, {"l2": 0.6, "mma": 0.3}),
        ("tensor", {"tensor": 0.4, "smem": 0.45}, {"mma": 0.6, "hbm": 0.3}),
        ("synchronisation", {"tensor": 0.02}, {"mma": 0.9}),
        ("synchronisation", {}, {"barrier": 0.5, "mma": 0.4}),
        ("issuing loads", {}, {"issue": 0.5, "mma": 0.4}),
        ("epilogue", {"l2": 0.6}, {"epilogue": 0.6, "mma": 0.4}),
        ("launch and start", {}, {"start": 0.5, "mma": 0.3, "epilogue": 0.1}),
        ("too few CTAs", {}, {"mma": 0.2, "hbm": 0.1, "start": 0.05}),
        ("too few CTAs", {"hbm": 0.8}, {"mma": 0.25, "start": 0.05}),
    ],
)
def test_rules(limiter: str, utilisation: dict[str, float], waits: dict[str, float]) -> None:
    assert find_limiter(kernel(utilisation, **waits))[0] == limiter


def test_cuda_cores_are_named_where_they_multiply() -> None:
    main = kernel({"tensor": 0.95, "smem": 0.96}, mma=0.9)
    assert find_limiter(main)[0] == "tensor"
    limiter, evidence = find_limiter(dataclasses.replace(main, config={**main.config, "mma": "fma"}))
    assert limiter == "cuda_cores"
    assert evidence[0].startswith("The CUDA cores are busy 95 % of the time")
    assert not any("ensor" in sentence for sentence in evidence)


def test_idle_tensor_cores_are_told_as_such() -> None:
    _, evidence = find_limiter(kernel({"tensor": 0.52}, mma=0.53, hbm=0.24, issue=0.08))
    assert "only 52 % of the time: waits are not hidden" in evidence[0]
    assert evidence[1].startswith("Next, they wait for HBM")


def test_empty_slots_do_not_hide_a_busy_memory() -> None:
    """A GEMV on half of the slots that keeps HBM busy: more CTAs would have nothing to read sooner."""
    main = kernel({"hbm": 0.78}, waves=0.48, hbm=0.2, mma=0.2, start=0.05)
    assert main.waits["idle"] == pytest.approx(0.55)
    assert find_limiter(main)[0] == "hbm"


def test_one_short_cta_is_a_matter_of_its_launch() -> None:
    """All other slots are empty, but more CTAs would not start and end any sooner."""
    assert find_limiter(kernel({}, waves=0.001, start=0.0006, epilogue=0.0002, hbm=0.0005))[0] == "launch and start"
    assert find_limiter(kernel({}, waves=0.001, start=0.0001, epilogue=0.0001, hbm=0.0005))[0] == "too few CTAs"


def test_every_wait_has_a_limiter() -> None:
    names = ("mma", "hbm", "l2", "sm_port", "barrier", "issue", "start", "epilogue")
    assert {find_limiter(kernel({}, **{name: 1.0}))[0] for name in names} <= KNOWN
    assert set(LIMITERS.values()) <= KNOWN


# Evidence.
def test_evidence_gives_the_figures() -> None:
    _, evidence = find_limiter(kernel({"hbm": 0.98, "l2": 0.6}, waves=1.25, hbm=0.6, mma=0.2))
    assert evidence == (
        "HBM is busy 98 % of the time; CTAs wait for HBM for 75 % of their time.",
        "Next, they run MMAs (25 %).",
        "The last of 1.25 waves fills 25 % of the slots.",
    )


def test_evidence_of_latency_says_that_bandwidth_is_left() -> None:
    _, evidence = find_limiter(kernel({"hbm": 0.25, "smem": 0.66}, hbm=0.8, mma=0.2))
    assert evidence[0] == "CTAs wait for HBM for 80 % of their time, though HBM is busy only 25 % of it."
    assert evidence[1] == "Next, they run MMAs (20 %); the busiest resource is shared memory (66 %)."


def test_evidence_of_empty_slots_says_how_many() -> None:
    _, evidence = find_limiter(kernel({}, waves=0.25, mma=0.2))
    assert evidence[0] == "Slots for CTAs stand empty for 80 % of the time."
    assert evidence[-1] == "The work fills 25 % of the slots."


# Runs.
@lru_cache
def gpu() -> Gpu:
    return load_gpu("h200_sxm")


@lru_cache
def run(gemm: Gemm, config: KernelConfig | None = None) -> Result:
    return simulate(gemm, gpu(), config=config)


def triton(block_m: int, block_n: int, block_k: int, stages: int, warps: int) -> KernelConfig:
    mma = "wgmma" if block_m >= 64 else "mma_sync"
    return KernelConfig("multistage", block_m, block_n, block_k, stages, warps, group=8, mma=mma)


NVJET = parse_kernel_name("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT")
RUNS: dict[str, tuple[Gemm, KernelConfig | None, str]] = {
    "GEMV": (Gemm(1, 8192, 8192), None, "hbm"),
    "GEMV on few slots": (Gemm(8, 4096, 4096), triton(16, 64, 128, 4, 4), "too few CTAs"),
    "large": (Gemm(8192, 8192, 8192), NVJET, "tensor"),
    "small tiles": (Gemm(4096, 4096, 4096), triton(64, 32, 64, 3, 4), "l2"),
    "one tile": (Gemm(64, 64, 64, l2="warm"), triton(64, 64, 64, 3, 4), "launch and start"),
    "one long tile": (Gemm(64, 64, 16384), triton(64, 64, 64, 3, 4), "too few CTAs"),
    "short k": (Gemm(4096, 16384, 64), NVJET, "epilogue"),
}


@pytest.mark.parametrize("name", RUNS)
def test_limiters_of_runs(name: str) -> None:
    gemm, config, limiter = RUNS[name]
    assert run(gemm, config).limiter == limiter


CURES = {
    "tensor": "tensor cores twice as fast",
    "hbm": "HBM twice as fast",
    "l2": "L2 and its ports twice as fast",
}


@pytest.mark.parametrize("name", [name for name, (_, _, limiter) in RUNS.items() if limiter in CURES])
def test_no_other_change_helps_more_than_that_of_the_limiter(name: str) -> None:
    result = run(*RUNS[name][:2])
    call = run_call(RUNS[name][0], KernelConfig(**_config(result)), gpu(), Options())
    speedups = {
        text: call.time_s / run_call(call.gemm, call.plan.config, _better(gpu(), changes), Options()).time_s
        for text, changes in CHANGES.items()
    }
    assert max(speedups, key=speedups.__getitem__) == CURES[result.limiter]
    assert speedups[CURES[result.limiter]] > 1.05


def _config(result: Result) -> dict[str, Any]:
    """The configuration of a run; registers and shared memory as it was given, not as they were resolved."""
    fields = {field.name for field in dataclasses.fields(KernelConfig)} - {"registers_per_thread", "smem_bytes"}
    return {name: value for name, value in result.main.config.items() if name in fields}


@pytest.mark.parametrize("name", RUNS)
def test_sentences_end_and_hold_figures(name: str) -> None:
    evidence = run(*RUNS[name][:2]).evidence
    assert 1 <= len(evidence) <= 3
    for sentence in evidence:
        assert sentence[0].isupper()
        assert sentence.endswith(".")
        assert " %" in sentence


# The whole call.
def test_the_main_kernel_is_the_one_that_multiplies() -> None:
    """Short k and large output: the reduction of split-K takes longer than the GEMM."""
    result = run(Gemm(4096, 8192, 128), KernelConfig("split_k", 128, 128, 64, 3, 4, split_k=2))
    times = [kernel.time_s for kernel in result.kernels]
    assert times[1] > times[0]
    assert result.main is result.kernels[0]
    assert result.limiter in KNOWN


def test_copies_that_take_most_of_the_time_are_named() -> None:
    copied = run(Gemm(1024, 1024, 1024, weights="pinned", inputs="pinned", result="host"))
    assert copied.evidence[1].startswith("Copies over PCIe take ")
    share = int(copied.evidence[1].split(" take ")[1].split(" %")[0])
    busy_s = sum(span.end_s - span.start_s for span in copied.host_spans if span.lane.startswith("copy"))
    assert share == pytest.approx(100 * busy_s / copied.end_to_end_s, abs=0.5)
    assert not any("PCIe" in sentence for sentence in run(Gemm(1024, 1024, 1024)).evidence)


def test_advice_is_sorted_and_simulated() -> None:
    result = simulate(Gemm(1, 8192, 8192), gpu(), advise=True)
    assert result.advice[0]["change"] == "HBM twice as fast"
    assert {item["change"] for item in result.advice} <= set(CHANGES)
    speedups = [item["speedup"] for item in result.advice]
    assert speedups == sorted(speedups, reverse=True)
    assert min(speedups) >= 1.01
    for item in result.advice:
        assert item["speedup"] == pytest.approx(result.time_s / item["time_s"])


def test_advice_on_cuda_cores_and_on_shared_memory() -> None:
    fp32 = simulate(Gemm(512, 512, 512, dtype="fp32"), gpu(), advise=True)
    assert fp32.main.config["mma"] == "fma"
    assert {item["change"] for item in fp32.advice} & {"CUDA cores twice as fast"}
    config = KernelConfig("multistage", 64, 64, 32, 2, 4, group=8, mma="mma_sync")
    smem = simulate(Gemm(4096, 4096, 4096), gpu(), config=config, advise=True)
    assert smem.limiter == "smem"
    assert smem.advice[0]["change"] == "shared memory twice as fast"


def test_streamed_weights_say_what_bounds_end_to_end() -> None:
    for m, bound in ((16, "PCIe bounds"), (16384, "the kernels bound")):
        result = simulate(Gemm(m, 8192, 4096, weights="pinned"), gpu(), config=NVJET, stream_weights=True)
        assert result.evidence[1].startswith(f"From end to end {bound} the ")
        assert "one kernel on all of B" in result.evidence[1]


def test_a_better_gpu_differs_in_what_was_changed_alone() -> None:
    better = _better(gpu(), CHANGES["latencies halved"])
    assert better.hbm.latency_ns == gpu().hbm.latency_ns / 2
    assert better.l2.far_latency_cycles == gpu().l2.far_latency_cycles / 2
    assert better.hbm.bandwidth_gb_per_s == gpu().hbm.bandwidth_gb_per_s
    assert (better.tensor, better.smem) == (gpu().tensor, gpu().smem)


def test_options_tell_how_it_was_run() -> None:
    options = simulate(Gemm(64, 64, 64), gpu(), clock_mhz=1500, without=("clock",), launch="graph").options
    expected = {"clock_mhz": 1500, "without": ["clock"], "launch": "graph", "tile": "bound", "full": False}
    assert expected.items() <= options.items()


def test_repr_is_short_and_names_work_gpu_time_and_limiter() -> None:
    text = repr(run(Gemm(64, 64, 64)))
    assert len(text) < 120
    for part in ("1x64x64x64 bf16", "h200_sxm", " us", "launch and start"):
        assert part in text
