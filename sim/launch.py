"""The host's part of one call: allocation, copies over PCIe, launches, and the copy back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import lru_cache

from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.call import Call, Options, run_call
from sim.host import HostOutcome, play
from sim.program import KernelTime, Launch, Part, Program, Tensor
from sim.schedule.beside import partial_bytes
from sim.schedule.config import KernelConfig
from sim.schedule.fields import check_fields
from sim.schedule.plan import reduced_splits
from workloads.gemm import Gemm

LEAST_PIECES = 16
"""Pieces that streamed weights are cut into at least, where they can be: nothing computes while the first is copied."""
MOST_PIECES = 4096

PARTIAL, EXTRA = "partial sums", "epilogue operand"

Under = Callable[[float], Call]
"""HBM rate that copies in flight take (GB/s) -> the call at what is left."""


def check_memory(gemm: Gemm, gpu: Gpu, stream_weights: bool) -> None:
    """Raise `ConfigError` where the tensors cannot be in HBM, with what would help; pieces are judged when cut."""
    if stream_weights and gemm.weights == "hbm":
        raise ConfigError("stream-weights: needs weights in host memory, pinned or pageable, but weights = 'hbm'")
    tensors = _tensors(gemm)
    needed = sum(tensor.bytes for tensor in tensors if not (stream_weights and tensor.name == "b"))
    if needed > _capacity_bytes(gpu):
        helps = needed - gemm.allocation_bytes("b") < _capacity_bytes(gpu) and not stream_weights
        cure = "; --weights pinned --stream-weights brings b in piece by piece" if helps else ""
        raise _too_large(tensors, gpu, needed, ", b in pieces" if stream_weights else "", cure)


def check_partial_sums(gemm: Gemm, config: KernelConfig, gpu: Gpu, stream_weights: bool) -> None:
    """Raise `ConfigError` where what the slices of split-K leave does not fit HBM beside all tensors, or beside A, C
    and two pieces of B where weights are streamed, and for fields of no kernel."""
    check_fields(config)
    if stream_weights:
        _pieces(gemm, config, gpu)
        return
    splits = reduced_splits(gemm, config)
    tensors = (*_tensors(gemm), Tensor(PARTIAL, partial_bytes(gemm, splits)))
    needed = sum(tensor.bytes for tensor in tensors)
    if tensors[-1].bytes and needed > _capacity_bytes(gpu):
        most = (_capacity_bytes(gpu) - needed + tensors[-1].bytes) // (tensors[-1].bytes // splits)
        cure = f"must be 2 to {most}" if most > 1 else "must be 1, as not even two slices fit"
        raise _too_large(tensors, gpu, needed, "", f"; split_k = {config.split_k}: {cure} (kernel configuration)")


def _too_large(tensors: tuple[Tensor, ...], gpu: Gpu, needed: int, how: str, cure: str) -> ConfigError:
    sizes = ", ".join(f"{tensor.name} {_gb(tensor.bytes, 3)}" for tensor in tensors)
    return ConfigError(
        f"HBM of {gpu.name}: {_gb(needed, 4)} needed ({sizes}{how}), "
        f"at most hbm.capacity_gb = {gpu.hbm.capacity_gb:g}{cure}"
    )


def _gb(n_bytes: int, digits: int) -> str:
    """As GB, with so many digits or all of a whole number."""
    gb = n_bytes / 1e9
    return f"{gb:.{digits}g} GB" if gb < 10**digits else f"{gb:.0f} GB"


def _capacity_bytes(gpu: Gpu) -> int:
    return round(gpu.hbm.capacity_gb * 1e9)


def play_call(call: Call, gpu: Gpu, options: Options, launch: str, stream_weights: bool) -> HostOutcome:
    """Play the call on an idle host and GPU: copies in what starts in host memory, runs the kernels, copies out.

    Raises ConfigError where the tensors do not fit HBM, or there is nothing to stream.
    """
    gemm = call.gemm
    check_memory(gemm, gpu, stream_weights)
    tensors, launches = _streamed(call, gpu, options) if stream_weights else _resident(call, gpu, options)
    home = "hbm" if gemm.result == "hbm" else "pageable" if "pageable" in (gemm.inputs, gemm.weights) else "pinned"
    return play(Program(tensors, launches, result_home=home, launch_mode=launch), gpu)


def _tensors(gemm: Gemm) -> tuple[Tensor, ...]:
    """A, B, C and what the epilogue reads, as they lie in memory."""
    tensors = (
        Tensor("a", gemm.allocation_bytes("a"), gemm.inputs),
        Tensor("b", gemm.allocation_bytes("b"), gemm.weights),
        Tensor("c", gemm.allocation_bytes("c")),
    )
    return (*tensors, Tensor(EXTRA, gemm.epilogue_bytes, gemm.inputs)) if gemm.epilogue_bytes else tensors


def _partial_sums(call: Call) -> tuple[Tensor, ...]:
    """What the slices of split-K leave for the reduction; nothing without them."""
    n_bytes = partial_bytes(call.gemm, call.plan.reduced_splits)
    return (Tensor(PARTIAL, n_bytes),) if n_bytes else ()


# All operands in HBM.
def _resident(call: Call, gpu: Gpu, options: Options) -> tuple[tuple[Tensor, ...], tuple[Launch, ...]]:
    """One launch for each kernel."""
    under = _under_copies(call, gpu, options)
    launches = tuple(_launch(call, i, under) for i in range(len(call.kernels)))
    return _tensors(call.gemm) + _partial_sums(call), launches


def _launch(call: Call, i: int, under: Under) -> Launch:
    """Kernel i: a memset before the main kernel touches no tensor; split-K hands partial sums to its reduction."""
    extra = (EXTRA,) if call.gemm.epilogue_bytes else ()
    reads: tuple[str, ...] = ("a", "b", *extra)
    writes: tuple[str, ...] = ("c",)
    if call.kernels[i].flops_executed == 0:
        reads, writes = ((PARTIAL, *extra), ("c",)) if i else ((), ())
    elif call.plan.reduced_splits > 1:
        reads, writes = ("a", "b"), (PARTIAL,)
    return Launch(call.kernels[i].name, reads, writes, (Part(lambda rate: under(rate).kernels[i].time_s),))


def _under_copies(call: Call, gpu: Gpu, options: Options) -> Under:
    """The call, simulated again where copies take some of the HBM rate."""

    @lru_cache(maxsize=8)
    def under(gb_per_s: float) -> Call:
        if gb_per_s <= 0:
            return call
        return run_call(call.gemm, call.plan.config, gpu, options.untraced(), gb_per_s)

    return under


# Weights piece by piece.
def _streamed(call: Call, gpu: Gpu, options: Options) -> tuple[tuple[Tensor, ...], tuple[Launch, ...]]:
    """One launch whose parts are GEMMs on pieces of B; equal pieces are simulated once."""
    others = tuple(tensor for tensor in _tensors(call.gemm) if tensor.name != "b")
    pieces = _pieces(call.gemm, call.plan.config, gpu)
    config = dataclasses.replace(call.plan.config, n_ctas=None)
    calls = {piece: run_call(piece, config, gpu, options.untraced()) for piece in dict.fromkeys(pieces)}
    kernel_s = {piece: _total(_under_copies(found, gpu, options)) for piece, found in calls.items()}
    partial = _partial_sums(calls[pieces[0]])
    reads = tuple(tensor.name for tensor in (*others, *partial) if tensor.name != "c")
    parts = tuple(Part(kernel_s[piece], piece.b_bytes) for piece in pieces)
    weights = Tensor("b", call.gemm.b_bytes, call.gemm.weights)
    return (*others, *partial, weights), (Launch(call.main.name, reads, ("c",), parts, weights="b"),)


def _pieces(gemm: Gemm, config: KernelConfig, gpu: Gpu) -> tuple[Gemm, ...]:
    """`pieces_of` in the room that everything but B leaves."""
    others = sum(tensor.bytes for tensor in _tensors(gemm) if tensor.name != "b")
    return pieces_of(gemm, config, gpu, _capacity_bytes(gpu) - others)


def _total(under: Under) -> KernelTime:
    return lambda gb_per_s: under(gb_per_s).time_s


def pieces_of(gemm: Gemm, config: KernelConfig, gpu: Gpu, room_bytes: int) -> tuple[Gemm, ...]:
    """GEMMs on pieces of B of which two fit `room_bytes` beside one's partial sums: runs of whole tiles along n, or of
    batches if those are more.

    Raises `ConfigError` where the smallest piece is too large, or too many would be needed.
    """
    tile = config.block_n * config.cluster_n
    along, extent, unit = max(("n", gemm.n, tile), ("batch", gemm.batch, 1), key=lambda cut: -(-cut[1] // cut[2]))
    units = -(-extent // unit)
    splits = reduced_splits(gemm, config)
    needed = max(LEAST_PIECES, -(-(2 * gemm.b_bytes + partial_bytes(gemm, splits)) // max(1, room_bytes)))
    step = max(1, units // needed) * unit
    sizes = [min(step, extent - start) for start in range(0, extent, step)]
    pieces = tuple(_piece(gemm, along, size) for size in sizes)
    partial = partial_bytes(pieces[0], splits)
    if 2 * pieces[0].b_bytes + partial > room_bytes or len(pieces) > MOST_PIECES:
        size_gb, room_gb = pieces[0].b_bytes / 1e9, room_bytes / 1e9
        beside, fewer = (f" beside {partial / 1e9:.4g} GB of partial sums", ", fewer slices") if partial else ("", "")
        raise ConfigError(
            f"stream-weights: {len(pieces)} pieces of b of {size_gb:.4g} GB, two in HBM at a time{beside}: must be at "
            f"most {MOST_PIECES} and fit the {room_gb:.4g} GB that a and c leave on {gpu.name}; a narrower tile{fewer} "
            "or a smaller batch helps"
        )
    return pieces


def _piece(gemm: Gemm, along: str, size: int) -> Gemm:
    """The part of the GEMM that needs one piece of B: packed as it was copied, C in place, A and B not in L2."""
    return dataclasses.replace(gemm, **{along: size}, ldb=None, ldc=gemm.leading("c"), l2="cold")  # type: ignore[arg-type]
