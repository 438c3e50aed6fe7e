"""Kernels bound by memory against what was measured: two clocks, training, and what L2 keeps for a stream."""

from __future__ import annotations

import statistics
from collections import defaultdict
from functools import lru_cache

import pytest

from hwmodels import load_gpu
from hwmodels.spec import Gpu
from sim.calibration.streams import (
    HOT,
    Sample,
    constants,
    fit,
    hot_kernels,
    samples,
    single_kernels,
    training_kernels,
)
from sim.residency import L2Contents
from sim.validation.training import TrainingCase
from workloads.operations import Operation, Tensor
from workloads.stream import Stream


@lru_cache
def gpu() -> Gpu:
    return load_gpu("h200_sxm")


def error(sample: Sample) -> float:
    return sample.predicted_us(gpu()) / sample.us - 1.0


# Clocks.
@pytest.mark.parametrize("kind", HOT)
def test_a_lower_clock_slows_each_kernel_as_measured(kind: str) -> None:
    cool, hot = hot_kernels()[kind]
    ratio = hot.predicted_us(gpu()) / cool.predicted_us(gpu())
    assert ratio == pytest.approx(hot.us / cool.us, rel=0.06)
    assert abs(error(cool)) < 0.05


# Training.
CLOSE = 0.1
"""Mean error of an operation in a training step, but for those of `ACCEPTED`."""
ACCEPTED = {"rms_norm_backward": 0.16}
"""Deviations that are known and their limits. Sixteen CTAs of an SM read 256 KiB twice, of which L1 loses more than of
one row as long (tails.csv, from which `streaming.l1_fraction` is): 16.6 us measured, 13.8 to 14.9 predicted."""


@pytest.mark.parametrize("model", ["llama2-7b", "llama3-8b"])
def test_kernels_of_a_training_step(model: str) -> None:
    """Nothing was fitted to llama3-8b but the registers of its sums over query heads."""
    errors: dict[str, list[float]] = defaultdict(list)
    for sample in training_kernels(TrainingCase(model, 2, 1, 2048, False), gpu()):
        errors[sample.name.removeprefix("training ")].append(abs(error(sample)))
    mean = {op: statistics.mean(each) for op, each in errors.items()}
    assert {"adamw", "concat", "reduce", "rms_norm", "silu_backward", "fill", "mul", *ACCEPTED} <= set(mean)
    assert {op: found for op, found in mean.items() if found >= ACCEPTED.get(op, CLOSE)} == {}


@pytest.mark.parametrize("op", ACCEPTED)
def test_accepted_deviations_are_still_there(op: str) -> None:
    """Else their entry goes."""
    found = [
        statistics.mean(
            abs(error(sample))
            for sample in training_kernels(TrainingCase(model, 2, 1, 2048, False), gpu())
            if sample.work.op == op
        )
        for model in ("llama2-7b", "llama3-8b")
    ]
    assert max(found) >= CLOSE


# Fit.
def test_single_kernels_on_shapes_not_fitted() -> None:
    held_out = single_kernels(gpu(), fitted=False)
    long = [abs(error(sample)) for sample in held_out if sample.us >= 4]
    short = [abs(error(sample)) for sample in held_out if sample.us < 4]
    assert len(long) > 150
    assert statistics.mean(long) < 0.06
    assert statistics.mean(short) < 0.08


def test_samples_are_distinct_from_those_to_judge_by() -> None:
    given = {sample.work for sample in single_kernels(gpu())}
    judged = {sample.work for sample in single_kernels(gpu(), fitted=False)}
    elementwise = {work for work in given & judged if work.op not in ("log_softmax", "embedding", "adamw")}
    assert not elementwise


def test_a_fit_finds_a_constant_again() -> None:
    copies = [sample for sample in samples(gpu()) if sample.work.op == "gelu" and sample.us > 20]
    start = constants(gpu())["gelu_issue_cycles"]
    moved = gpu().model_copy(
        update={"streaming": gpu().streaming.model_copy(update={"gelu_issue_cycles": start * 1.3})}
    )
    assert fit(moved, copies, ["gelu_issue_cycles"])["gelu_issue_cycles"] == pytest.approx(start, rel=0.1)


# What L2 keeps.
def stream(op: str, reads: tuple[str, ...], to: str, n_bytes: int) -> tuple[Operation, dict[str, Tensor]]:
    operation = Operation(op, Stream(op, 1, n_bytes // 2), tuple(("x", name) for name in reads), (to,), 0)
    return operation, {name: Tensor(name, n_bytes, "activation") for name in (*reads, to)}


def test_small_results_are_there_for_the_next_kernel() -> None:
    contents = L2Contents(gpu())
    first, tensors = stream("silu", ("a",), "b", 2**20)
    contents.after(first, tensors)
    second, more = stream("gelu", ("b",), "c", 2**20)
    assert contents.before(second, more) == {"x": 1.0}


def test_a_stream_pushes_out_what_it_has_yet_to_read() -> None:
    contents = L2Contents(gpu())
    n_bytes = contents.capacity_bytes * 3 // 2
    first, tensors = stream("silu", ("a",), "b", n_bytes)
    contents.after(first, tensors)
    second, more = stream("gelu", ("b",), "c", n_bytes)
    assert "x" not in contents.before(second, more)


def test_the_same_kernel_again_finds_its_code() -> None:
    contents = L2Contents(gpu())
    first, tensors = stream("silu", ("a",), "b", 2**20)
    contents.after(first, tensors)
    assert contents.before(first, tensors)["code"] == 1.0
