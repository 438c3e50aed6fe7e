"""One linear layer as a program launches it: a product, or what its compression makes of it (`workloads.compress`).

Quantised activations are shared: a fused program quantises a tensor once, and where a norm or a gated activation wrote
it, that kernel writes the quantised one instead, with a scale fixed beforehand. An eager program quantises for each
layer anew, as its modules do. Packed layers (Q, K and V, gate and up) have low-rank factors and adapters for each part;
the second of the two products reads its part of what the first wrote, which is counted as packed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from hwmodels.errors import ConfigError
from workloads.checks import check_integer
from workloads.compress import lora, low_rank, w8a8
from workloads.dtypes import BYTES
from workloads.execution import WHERE, Execution
from workloads.gemm import Gemm
from workloads.models.model import Model
from workloads.operations import Work
from workloads.stream import Stream

if TYPE_CHECKING:
    from workloads.forward import Builder

SCALE_BYTES = BYTES["fp32"]
"""A scale of each output of a matrix that is multiplied in one byte."""
WRITE_QUANTISED = ("rms_norm", "layer_norm", "add_rms_norm", "add_layer_norm", "silu_mul", "gelu_mul", "relu_mul")
"""Kernels that may write one byte an element for the product that follows."""
PARTS = {"qkv": 3, "gate_up": 2}
"""Layers packed into one."""
PLAIN = ("router", "project_in", "project_out", "transform")
"""Linear layers that are never compressed."""


class Piece(NamedTuple):
    """One operation of a layer. Operands are "source", "to", or what is named here: weights begin with "weight"."""

    suffix: str
    work: Work
    reads: tuple[tuple[str, str], ...]
    to: str


def pieces(gemm: Gemm, execution: Execution, parts: int = 1) -> tuple[Piece, ...]:
    """The operations of a layer whose dense product is `gemm`, packed of `parts`.

    Raises `ConfigError` for what compression does not take.
    """
    if execution.low_rank is not None:
        return _factors(gemm, execution.low_rank, parts)
    if execution.weights != "dense" or execution.matmul_dtype:
        group = execution.group if execution.weights in ("int8", "int4") else None
        gemm = replace(gemm, layout="tn", weights_format=execution.weights, weight_group=group)
    if execution.lora_rank is not None:
        return _adapted(gemm, execution, parts)
    return _own(gemm, execution)


def _own(gemm: Gemm, execution: Execution, to: str = "to") -> tuple[Piece, ...]:
    """The product with its weight. The int32 of an int8 one are rescaled in its epilogue where programs fuse."""
    if execution.matmul_dtype is None:
        return (Piece("", gemm, (("a", "source"), ("b", "weight")), to),)
    quantise, product, *rest = w8a8(gemm, execution.matmul_dtype)
    first = Piece(": quantise", quantise, (("x", "source"),), "quantised")
    reads = (("a", "quantised"), ("b", "weight"))
    if not rest or execution.fuses("epilogue"):
        fused = replace(gemm, dtype=execution.matmul_dtype, acc_dtype=None, out_dtype=gemm.result_dtype)
        return first, Piece("", fused, reads, to)
    rescale, *epilogue = rest
    behind = (Piece(f": {each.op}", each, (("x", to),), to) for each in epilogue if isinstance(each, Stream))
    return (
        first,
        Piece("", product, reads, "accumulated"),
        Piece(": rescale", rescale, (("x", "accumulated"),), to),
        *behind,
    )


def _adapted(gemm: Gemm, execution: Execution, parts: int) -> tuple[Piece, ...]:
    """With adapters beside it, added in the second one's epilogue where programs fuse; a bias is added before their
    sum, an activation behind it."""
    assert execution.lora_rank is not None
    early, in_place = gemm.epilogue == "bias", execution.fuses("epilogue")
    own, down, up, *streams = lora(
        replace(gemm, epilogue="none") if early else gemm, execution.lora_rank, execution.lora_adapters
    )
    assert isinstance(own, Gemm)
    assert isinstance(down, Gemm)
    assert isinstance(up, Gemm)
    own = replace(own, epilogue=gemm.epilogue) if early else own
    behind = (
        Piece(f": {each.op}", each, (("x", "to"), *((("x", "adapted"),) if each.op == "add" else ())), "to")
        for each in streams
        if isinstance(each, Stream) and not (each.op == "add" and in_place)
    )
    reads = (("a", "thin"), ("b", "weight up"))
    last = Piece(": adapter up", up, reads, "adapted")
    if in_place:
        last = Piece(": adapter up", replace(up, epilogue="residual"), (*reads, ("c", "to")), "to")
    return (
        *_own(own, execution),
        Piece(": adapter down", replace(down, n=parts * down.n), (("a", "source"), ("b", "weight down")), "thin"),
        last,
        *behind,
    )


def _factors(gemm: Gemm, rank: int, parts: int) -> tuple[Piece, ...]:
    first, second = low_rank(gemm, rank)
    return (
        Piece(": first factor", replace(first, n=parts * rank), (("a", "source"), ("b", "weight first")), "thin"),
        Piece("", second, (("a", "thin"), ("b", "weight second")), "to"),
    )


# Into a step.
def add_linear(b: Builder, name: str, gemm: Gemm, source: str, to: str, weight: str, bias: str | None = None) -> None:
    """Add the operations of layer `name` to a builder; `weight` and `bias` name the tensors of its parameters."""
    for piece in _layer(b.execution, name, gemm):
        if piece.to == "quantised" and _is_quantised(b, source):
            continue
        reads = [(role, _operand(b, piece, slot, name, source, to, weight)) for role, slot in piece.reads]
        if bias and isinstance(piece.work, Gemm) and piece.work.epilogue.startswith("bias"):
            reads.append(("bias", b.weight(bias, gemm.batch * gemm.n)))
        elif bias and isinstance(piece.work, Stream) and piece.work.op == "bias":
            reads.append(("w", b.weight(bias, gemm.batch * gemm.n)))
        b.add(f"{name}{piece.suffix}", piece.work, tuple(reads), _result(b, name, piece, source, to))


def _layer(execution: Execution, name: str, gemm: Gemm) -> tuple[Piece, ...]:
    """The operations of one layer of a model; the head has no adapters."""
    is_head = name == "head"
    if name in PLAIN or not execution.compressed or (is_head and not execution.compress_head):
        return (Piece("", gemm, (("a", "source"), ("b", "weight")), "to"),)
    _check_ranks(execution, name, gemm)
    if is_head:
        return pieces(gemm, replace(execution, lora_rank=None, lora_adapters=1))
    return pieces(gemm, execution, PARTS.get(name.rsplit(".", maxsplit=1)[-1], 1))


def _check_ranks(execution: Execution, name: str, gemm: Gemm) -> None:
    """Refuse ranks that a layer does not have, and more adapters than rows, in the words of `Execution`."""
    for field in ("lora_rank", "low_rank"):
        rank = getattr(execution, field)
        if rank is not None:
            check_integer(field, rank, 1, min(gemm.n, gemm.k), f"{name} of {gemm.k} inputs, {gemm.n} outputs, {WHERE}")
    rows = gemm.batch * gemm.m
    check_integer("lora_adapters", execution.lora_adapters, 1, rows, f"one for each of {rows} rows at most, {WHERE}")


def _operand(b: Builder, piece: Piece, slot: str, name: str, source: str, to: str, weight: str) -> str:
    """The tensor that an operand is."""
    if slot.startswith("weight") and isinstance(piece.work, Gemm):
        scales = piece.work.batch * piece.work.n * SCALE_BYTES if piece.work.a_element_bytes == 1 else 0
        of = f"{weight}{slot.removeprefix('weight').replace(' ', '.')}"
        return b.weight(of, n_bytes=piece.work.b_bytes + scales)
    return _tensor(slot, name, source, to)


def _tensor(slot: str, name: str, source: str, to: str) -> str:
    return {"source": source, "to": to, "quantised": f"{source}.quantised"}.get(slot, f"{name}.{slot}")


def _result(b: Builder, name: str, piece: Piece, source: str, to: str) -> str:
    n_bytes = piece.work.c_bytes if isinstance(piece.work, Gemm) else piece.work.write_bytes
    if piece.to == "quantised":
        b.quantised[source] = len(b.operations)
    return b.tensor(_tensor(piece.to, name, source, to), n_bytes)


def _is_quantised(b: Builder, source: str) -> bool:
    """Whether `source` is there quantised already, or the kernel that wrote it last can write it so."""
    if not b.execution.fuses("epilogue"):
        return False
    since = b.quantised.get(source, -1)
    later = [i for i in range(since + 1, len(b.operations)) if source in b.operations[i].writes]
    if since >= 0 and not later:
        return True
    return bool(later) and later[-1] == len(b.operations) - 1 and _writes_quantised(b, source)


def _writes_quantised(b: Builder, source: str) -> bool:
    """Have the last operation write it so, if it can; adapters read it as it was."""
    last, execution = b.operations[-1], b.execution
    work = last.work
    if not execution.fuses("full") or execution.lora_rank is not None or not isinstance(work, Stream):
        return False
    if work.op not in WRITE_QUANTISED or last.writes[-1] != source:
        return False
    name = b.tensor(f"{source}.quantised", work.elements)
    work = replace(work, out_dtype=execution.matmul_dtype)
    b.operations[-1] = replace(last, work=work, writes=(*last.writes[:-1], name))
    b.quantised[source] = len(b.operations) - 1
    return True


def check_model(model: Model, execution: Execution) -> None:
    """Raise `ConfigError` for compression that the model does not take."""
    if execution.compress_head and model.tied:
        raise ConfigError(f"compress_head = True: the head of {model.name} is its embedding, which stays ({WHERE})")
    if model.n_experts and (execution.lora_rank or execution.low_rank):
        raise ConfigError(f"lora_rank, low_rank: not for mixtures of experts, such as {model.name} ({WHERE})")
