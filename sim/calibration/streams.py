"""Constants of kernels bound by memory, fitted to shipped tables: `python -m sim.calibration.streams` prints them.

Data: of elementwise*.csv, tails.csv and of the rows of extra_*.csv that move data, the shapes whose hash is even;
hot.csv; of training_kernels.csv the kernels of llama2-7b on 2,048 tokens; of decoder_stack_kernels.csv llama2-7b's
decode steps of few bytes of cache, which the board's power does not slow. Rows of other shapes and models are there to
judge by.

A residual is the logarithm of predicted over measured time, in units of `SCALE`; soft L1 keeps kernels that the model
does not know from steering the rest.
"""

from __future__ import annotations

import csv
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from hwmodels import load_gpu
from hwmodels.measured import measured_path
from hwmodels.spec import FIELDS, Gpu
from sim.call import Options
from sim.operation import kernels_on
from sim.step import burst_options, followed
from sim.streaming import ALONE_AGAIN, stream_kernels
from sim.validation import elementwise, extra_ops, extra_streams, stacks, timed
from sim.validation.training import TrainingCase, steps_of
from workloads.operations import Step
from workloads.stream import Stream

GPU = "h200_sxm"
FURTHER = "h200_sxm_further"
SCALE = 0.05
BY_HAND = ("trip_cycles", "softmax_trip_fraction", "softmax_exponential_fraction")
"""Constants that few rows tell; their sources say how they were chosen."""
HOT_WEIGHT = 3.0
"""Of the few rows that tell clocks apart."""
HOT_MHZ = 1366.0
"""Clock inside kernels behind GEMMs, where the board reports 1,485 (sim.power)."""
HOT = {
    "silu_strided": Stream("silu", 8192, 11008, strided=True),
    "silu": Stream("silu", 8192, 11008),
    "mul_strided": Stream("mul", 8192, 11008, strided=True),
    "add": Stream("add", 8192, 4096),
    "rms_norm": Stream("rms_norm", 8192, 4096),
    "softmax": Stream("softmax", 8192, 4096),
    "softmax1024": Stream("softmax", 8192, 1024),
    "transpose": Stream("transpose", 8192, 4096),
    "gelu": Stream("gelu", 8192, 11008),
}
"""Kinds of hot.csv that move data."""
MOST_CHANGE = math.log(4)
"""Of a constant's logarithm in one fit."""
ALONE = ("elementwise", "elementwise_more", "elementwise_warm", "tails")
IN_L2 = ("softmax1024",)
"""Of these, whose input an earlier launch left in L2."""
OTHERS = ("nvjet", "Memset", "pytorch_flash", "cublasLt", "reduce_kernel")
"""In names of a training step's kernels that belong to products and to attention."""
TRAINED = TrainingCase("llama2-7b", 2, 1, 2048, False)
LITTLE_CACHE = 4096
"""Tokens of cache up to which a decode step of llama2-7b keeps the board's power below its limit."""


@dataclass(frozen=True)
class Sample:
    """One measured time, of all launches of an operation or of the longest."""

    name: str
    work: Stream
    options: Options
    resident: tuple[tuple[str, float], ...]
    us: float
    longest: bool = False
    weight: float = 1.0

    def predicted_us(self, gpu: Gpu) -> float:
        """As measured."""
        times = [k.time_s for k in stream_kernels(self.work, gpu, self.options, resident=dict(self.resident))]
        return 1e6 * (max(times) if self.longest else math.fsum(times))


def _alone(name: str, work: Stream, us: float, x: float = 0.0, options: Options | None = None) -> Sample:
    return Sample(name, work, options or Options(), tuple({**ALONE_AGAIN, "x": x}.items()), us)


def _paths(*names: str) -> Iterator[Path]:
    yield from (measured_path(folder, name) for folder, name in (each.split("/") for each in names))


def single_kernels(gpu: Gpu, fitted: bool = True) -> list[Sample]:
    """Rows of elementwise*.csv and extra_*.csv on fitted shapes, or on the others."""
    found = []
    for path in _paths(f"{GPU}/elementwise", *(f"{FURTHER}/{name}" for name in ALONE)):
        for row in timed.read(elementwise.TABLE, path, gpu).asked:
            if timed.held_out(elementwise.shape(row.question)) != fitted:
                x = float(row.question.l2 == "warm")
                found.append(_alone(path.stem, row.question.work, row.measured_us, x))
    for path in _paths(f"{GPU}/extra_ops", f"{FURTHER}/extra_ops", f"{FURTHER}/extra_more"):
        for row in timed.read(extra_ops.TABLE, path, gpu).asked:
            asked = row.question
            if asked.op in extra_streams.OPS and timed.held_out(extra_ops.shape(asked)) != fitted:
                work = extra_streams.stream_of(asked.op, asked.m, asked.n, asked.k)
                found.append(_alone(path.stem, work, row.measured_us))
    return found


def hot_kernels() -> dict[str, tuple[Sample, Sample]]:
    """Kind -> the kernel at a burst's clock and at `HOT_MHZ`: medians of hot.csv."""
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    with measured_path(FURTHER, "hot").open(newline="") as stream:
        for row in csv.DictReader(stream):
            times[row["kind"], row["state"]].append(float(row["us"]))
    clocks = {"cool": Options(), "hot": Options(clock_mhz=HOT_MHZ)}

    def sample(kind: str, state: str) -> Sample:
        us = statistics.median(times[kind, state])
        alone = _alone(f"hot {kind}", HOT[kind], us, float(kind in IN_L2), clocks[state])
        return replace(alone, weight=HOT_WEIGHT)

    return {kind: (sample(kind, "cool"), sample(kind, "hot")) for kind in HOT}


def _followed(step: Step, gpu: Gpu) -> Iterator[tuple[int, Stream, Mapping[str, float]]]:
    """Place of each stream in a step, and what L2 holds of its operands behind a library's products."""
    for i, (operation, held) in enumerate(followed(step, kernels_on(gpu, burst_options(Options())))):
        if isinstance(operation.work, Stream):
            yield i, operation.work, held


def training_kernels(case: TrainingCase, gpu: Gpu) -> list[Sample]:
    """Streams of a forward and backward pass in order (training_kernels.csv), and the optimizer as a whole."""
    with measured_path(FURTHER, "training_kernels").open(newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if _is_of(row, case)]
    passes = [row for row in rows if row["part"] == "fwd_bwd" and not any(name in row["kernel"] for name in OTHERS)]
    steps = steps_of(case)
    found = [
        Sample(f"training {work.op}", work, Options(), tuple(held.items()), float(row["us"]), longest=True)
        for (_, work, held), row in zip(_followed(steps["fwd_bwd_us"], gpu), passes, strict=False)
    ]
    ((_, update, held),) = _followed(steps["optimizer_us"], gpu)
    total_us = math.fsum(float(row["us"]) for row in rows if row["part"] == "opt")
    return [*found, Sample(f"training {update.op}", update, Options(), tuple(held.items()), total_us)]


def _is_of(row: Mapping[str, str], case: TrainingCase) -> bool:
    asked = (case.model, case.layers, case.batch, case.seq, case.checkpointing)
    return tuple(map(str, asked)) == tuple(row[name] for name in ("model", "layers", "batch", "seq", "checkpointing"))


def decode_kernels(gpu: Gpu) -> list[Sample]:
    """Streams of llama2-7b's decode steps in decoder_stack_kernels.csv."""
    found = []
    for row in timed.read(stacks.KERNELS, measured_path(GPU, "decoder_stack_kernels"), gpu).asked:
        asked = row.question
        if (asked.case.model, asked.case.phase) != ("llama2-7b", "decode") or asked.kind not in stacks.STREAMS:
            continue
        if asked.case.batch * asked.case.ctx <= LITTLE_CACHE:
            ran = stacks.ran_step(asked.case, gpu, asked.products).ran[asked.place]
            held = tuple(ran.resident.items())
            found.append(Sample(f"stack {asked.kind}", ran.operation.work, Options(), held, row.measured_us, True))
    return found


def samples(gpu: Gpu) -> list[Sample]:
    """All that the constants are fitted to."""
    hot = [each for pair in hot_kernels().values() for each in pair]
    return [*single_kernels(gpu), *hot, *training_kernels(TRAINED, gpu), *decode_kernels(gpu)]


def constants(gpu: Gpu) -> dict[str, float]:
    """Those of [streaming] that are fitted, as they stand."""
    keys = [key for key, origin in gpu.provenance.items() if key.startswith("streaming.") and origin.kind == "fitted"]
    return {key.removeprefix("streaming."): getattr(gpu.streaming, key.removeprefix("streaming.")) for key in keys}


def fit(gpu: Gpu, given: Sequence[Sample], names: Sequence[str]) -> dict[str, float]:
    """Values of the named constants of the least soft-L1 loss over `given`."""
    start = np.log([getattr(gpu.streaming, name) for name in names])
    most = np.log([FIELDS[f"streaming.{name}"].high or math.inf for name in names])
    bounds = start - MOST_CHANGE, np.minimum(start + MOST_CHANGE, most + 1e-9)

    def residuals(logs: np.ndarray) -> np.ndarray:
        values = dict(zip(names, map(float, np.exp(logs)), strict=True))
        moved = gpu.model_copy(update={"streaming": gpu.streaming.model_copy(update=values)})
        return np.array([each.weight * math.log(each.predicted_us(moved) / each.us) / SCALE for each in given])

    found = least_squares(
        residuals, start, bounds=bounds, loss="soft_l1", diff_step=0.02, x_scale=0.3, xtol=1e-4, ftol=1e-4
    )
    return dict(zip(names, map(float, np.exp(found.x)), strict=True))


def main() -> None:
    """Fit all but those chosen by hand and print them."""
    gpu = load_gpu(GPU)
    names = [name for name in constants(gpu) if name not in BY_HAND]
    for name, value in fit(gpu, samples(gpu), names).items():
        sys.stdout.write(f"{name} = {value:.3g}\n")


if __name__ == "__main__":
    main()
