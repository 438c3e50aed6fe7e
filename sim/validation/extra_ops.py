"""extra_ops.csv: weight-only int4, 2:4 sparsity, batched products; and rows bound by memory (`extra_streams`).

`arg` is the group of int4, the batch of bmm. Operands rotate over some copies (sim/measure): those of small batched
products stay in L2 from one turn to the next.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sim.call import Options, run_call
from sim.schedule.names import parse_kernel_name
from sim.validation import extra_streams
from sim.validation.columns import parse_choice, parse_count, parse_triple, parse_whole
from sim.validation.timed import TimedTable, held_out
from workloads.gemm import Gemm
from workloads.stream import Stream

if TYPE_CHECKING:
    from hwmodels.spec import Gpu

FITTED = ("int4_weight_only", "sparse_2_4")
PRODUCTS = (*FITTED, "bmm")
BMM_COPIES = 4
"""Pairs of operands that a batched product takes in turn; its result has one place."""


@dataclass(frozen=True)
class ExtraOp:
    """One row's inputs."""

    op: str
    m: int
    n: int
    k: int
    arg: int
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]

    def __str__(self) -> str:
        return f"{self.op} {shape(self)} {self.arg}"


def shape(question: ExtraOp) -> str:
    """Sizes as mxnxk."""
    return f"{question.m}x{question.n}x{question.k}"


def product(question: ExtraOp, l2_bytes: float) -> Gemm:
    """The product asked for, one of `PRODUCTS`."""
    sizes = question.m, question.n, question.k
    if question.op == "int4_weight_only":
        return Gemm(*sizes, weights_format="int4", weight_group=question.arg)
    if question.op == "sparse_2_4":
        return Gemm(*sizes, weights_format="2:4")
    cold = Gemm(*sizes, batch=question.arg, layout="nn")
    stays = BMM_COPIES * (cold.a_bytes + cold.b_bytes) + cold.c_bytes <= l2_bytes
    return dataclasses.replace(cold, l2="warm") if stays else cold


def predict(question: ExtraOp, gpu: Gpu) -> dict[str, float]:
    """All launches of the call, without gaps."""
    if question.op not in PRODUCTS:
        return extra_streams.predict_stream(_stream(question), gpu)
    gemm = product(question, gpu.l2.capacity_mib * 2**20)
    grid, block = ("x".join(map(str, sides)) for sides in (question.grid, question.block))
    config = parse_kernel_name(question.kernel, gemm, grid, block)
    return {"time_us": run_call(gemm, config, gpu, Options()).time_s * 1e6}


def _stream(question: ExtraOp) -> Stream:
    return extra_streams.stream_of(question.op, question.m, question.n, question.k)


def groups(question: ExtraOp, _column: str) -> tuple[str, ...]:
    """The operation, and its shapes on which constants were fitted or not (none on others here)."""
    if question.op not in FITTED:
        return (question.op,)
    return question.op, f"{question.op}, shapes {'not ' if held_out(shape(question)) else ''}fitted"


def work(question: ExtraOp, _column: str) -> tuple[float, float]:
    """FLOPs and compulsory bytes."""
    asked = product(question, 0.0) if question.op in PRODUCTS else _stream(question)
    return asked.flops, asked.compulsory_bytes


def _question(cells: dict[str, Any]) -> ExtraOp:
    return ExtraOp(**cells)


TABLE = TimedTable(
    kind="extra_ops",
    signature=("op", "arg", "n_kernels", "other_kernels"),
    inputs={
        "op": parse_choice((*PRODUCTS, *extra_streams.OPS)),
        "m": parse_count,
        "n": parse_count,
        "k": parse_whole,
        "arg": parse_whole,
        "kernel": str,
        "grid": parse_triple,
        "block": parse_triple,
    },
    optional={},
    measured=("time_us",),
    question=_question,
    predict=predict,
    groups=groups,
    work=work,
    shape=shape,
)
