"""The host's part of one call: allocation, copies over PCIe, launches, and the copy back."""

from __future__ import annotations

import dataclasses
from functools import lru_cache

from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.call import Call, Options, run_call
from sim.host import HostOutcome, play
from sim.program import KernelTime, Launch, Part, Program, Tensor

MAX_PIECES = 16


def play_call(call: Call, gpu: Gpu, options: Options, launch: str, stream_weights: bool) -> HostOutcome:
    """Play the call on an idle host and GPU: copies in what starts in host memory, runs the kernels, copies out.

    Raises ConfigError where the tensors do not fit HBM, or there is nothing to stream.
    """
    gemm = call.gemm
    if stream_weights and gemm.weights == "hbm":
        raise ConfigError("stream-weights: needs weights in host memory, pinned or pageable, but weights = 'hbm'")
    reads = ["a"] + ([] if stream_weights else ["b"]) + (["epilogue operand"] if gemm.epilogue_bytes else [])
    tensors = [
        Tensor("a", gemm.a_bytes, gemm.inputs),
        Tensor("b", gemm.b_bytes, gemm.weights),
        Tensor("c", gemm.c_bytes),
    ]
    if gemm.epilogue_bytes:
        tensors.append(Tensor("epilogue operand", gemm.epilogue_bytes, gemm.inputs))
    partial = (
        call.plan.work.splits * gemm.batch * gemm.m * gemm.n * gemm.accumulator_bytes
        if call.plan.work.splits > 1
        else 0
    )
    parts = (
        _pieces(call, gpu, options)
        if stream_weights
        else tuple(Part(_timed(call, gpu, options, i)) for i in range(len(call.kernels)))
    )
    launches = _launches(call, tuple(reads), parts, stream_weights)
    if partial:
        tensors.append(Tensor("partial sums", partial))
        launches[0] = dataclasses.replace(launches[0], reads=launches[0].reads + ("partial sums",))
    home = "hbm" if gemm.result == "hbm" else "pinned" if "pageable" not in (gemm.inputs, gemm.weights) else "pageable"
    return play(Program(tuple(tensors), tuple(launches), result_home=home, launch_mode=launch), gpu)


def _launches(call: Call, reads: tuple[str, ...], parts: tuple[Part, ...], stream_weights: bool) -> list[Launch]:
    if stream_weights:
        return [Launch(call.kernels[-1].name, reads, ("c",), parts, weights="b")]
    launches = []
    for index, (kernel, part) in enumerate(zip(call.kernels, parts, strict=True)):
        first = index == 0
        launches.append(Launch(kernel.name, reads if first else reads + ("c",), ("c",), (part,)))
    return launches


def _timed(call: Call, gpu: Gpu, options: Options, index: int) -> KernelTime:
    """Seconds of one kernel under a background HBM rate; simulated again only where copies overlap it."""

    @lru_cache(maxsize=8)
    def kernel_s(background_gb_per_s: float) -> float:
        if background_gb_per_s <= 0:
            return call.kernels[index].time_s
        return run_call(call.gemm, call.plan.config, gpu, options.untraced(), background_gb_per_s).kernels[index].time_s

    return kernel_s


def _pieces(call: Call, gpu: Gpu, options: Options) -> tuple[Part, ...]:
    """B cut along n into pieces, each a GEMM of its own: whole tiles, at most MAX_PIECES."""
    gemm, tile = call.gemm, call.plan.config.block_n * call.plan.config.cluster_n
    tiles = -(-gemm.n // tile)
    per_piece = -(-tiles // MAX_PIECES) * tile
    widths = [min(per_piece, gemm.n - start) for start in range(0, gemm.n, per_piece)]
    parts = []
    for width in widths:
        piece = dataclasses.replace(gemm, n=width, ldb=None, ldc=None)
        config = dataclasses.replace(call.plan.config, n_ctas=None)
        part = run_call(piece, config, gpu, options.untraced())
        parts.append(Part(_total(part, gpu, options), piece.b_bytes))
    return tuple(parts)


def _total(part: Call, gpu: Gpu, options: Options) -> KernelTime:
    @lru_cache(maxsize=8)
    def kernel_s(background_gb_per_s: float) -> float:
        if background_gb_per_s <= 0:
            return part.time_s
        return run_call(part.gemm, part.plan.config, gpu, options.untraced(), background_gb_per_s).time_s

    return kernel_s
