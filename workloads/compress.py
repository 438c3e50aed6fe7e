"""What compression makes of a linear layer: other products and streams, each with its exact FLOPs and bytes.

Pure functions on a `Gemm` whose B is the layer's weight. None says what becomes of a model's answers.
"""

from __future__ import annotations

import dataclasses
from dataclasses import asdict, dataclass
from typing import Any

from hwmodels.errors import ConfigError
from workloads.checks import check_choice, check_integer
from workloads.dtypes import BYTES, COMBINATIONS
from workloads.gemm import WHERE, Gemm
from workloads.packing import GROUP_VALUES
from workloads.stream import Stream

Operation = Gemm | Stream
EPILOGUE_STREAMS: dict[str, tuple[str, ...]] = {
    "none": (),
    "bias": ("bias",),
    "bias_gelu": ("bias", "gelu"),
    "bias_silu": ("bias", "silu"),
    "bias_relu": ("bias", "relu"),
    "residual": ("add",),
}
"""Epilogue -> the streams that do the same behind a product that cannot."""
INDEX_BYTES = 4
"""A column's number, and where a row begins, in a CSR matrix."""


# Weights in another format.
def quantized(gemm: Gemm, form: str, group: int | None = None) -> Gemm:
    """The same product with weights as integers ("int8", "int4") and a scale for every `group` elements along k."""
    check_choice("form", form, tuple(GROUP_VALUES), WHERE)
    return dataclasses.replace(gemm, weights_format=form, weight_group=group)


def sparse_24(gemm: Gemm) -> Gemm:
    """The same product with two of every four weights along k left out, in the same FLOPs as the dense one's."""
    return dataclasses.replace(gemm, weights_format="2:4", weight_group=None)


def w8a8(gemm: Gemm, dtype: str) -> tuple[Operation, ...]:
    """Weights and activations of one byte: activations quantised row by row, the product, and its rescaling.

    fp8 products are rescaled in the epilogue; int8 ones leave int32, which a kernel of its own rescales, and then the
    epilogue's operations follow. Where a kernel before could write one byte, it saves the first stream.
    """
    check_choice("dtype", dtype, ("fp8_e4m3", "fp8_e5m2", "int8"), WHERE)
    check_choice("dtype of the layer", gemm.dtype, ("fp16", "bf16"), WHERE)
    quantise = Stream("quantize", gemm.batch * gemm.m, gemm.k, gemm.dtype, out_dtype=dtype)
    if dtype != "int8":
        return quantise, dataclasses.replace(gemm, dtype=dtype, acc_dtype=None, out_dtype=gemm.result_dtype)
    product = dataclasses.replace(gemm, dtype=dtype, acc_dtype=None, out_dtype="int32", epilogue="none")
    rescale = Stream("rescale", gemm.batch * gemm.m, gemm.n, "int32", out_dtype=gemm.result_dtype)
    return quantise, product, rescale, *_epilogue(gemm)


def _epilogue(gemm: Gemm) -> tuple[Stream, ...]:
    """What the epilogue does, as kernels of their own."""
    rows = gemm.batch * gemm.m
    return tuple(Stream(op, rows, gemm.n, gemm.result_dtype) for op in EPILOGUE_STREAMS[gemm.epilogue])


# Fewer weights.
def pruned(gemm: Gemm, keep_n: int, keep_k: int) -> Gemm:
    """Structured pruning: so many outputs and inputs are left, in a dense product."""
    check_integer("keep_n", keep_n, 1, gemm.n, WHERE)
    check_integer("keep_k", keep_k, 1, gemm.k, WHERE)
    return dataclasses.replace(gemm, n=keep_n, k=keep_k, lda=None, ldb=None, ldc=None)


def low_rank(gemm: Gemm, rank: int) -> tuple[Gemm, Gemm]:
    """The weight as a product of [k, rank] and [rank, n]: fewer FLOPs and bytes of weights below `break_even_rank`."""
    check_integer("rank", rank, 1, min(gemm.n, gemm.k), WHERE)
    _check_dense(gemm)
    first = dataclasses.replace(gemm, n=rank, out_dtype=None, epilogue="none", ldb=None, ldc=None, result="hbm")
    second = dataclasses.replace(gemm, k=rank, lda=None, ldb=None, inputs="hbm")
    return first, second


def break_even_rank(gemm: Gemm) -> float:
    """Rank at which two factors have as many weights as the matrix."""
    return gemm.n * gemm.k / (gemm.n + gemm.k)


def lora(gemm: Gemm, rank: int, adapters: int = 1, merged: bool = False) -> tuple[Operation, ...]:
    """A layer with low-rank adapters, its rows spread evenly over them, a full share each.

    Merged, the one adapter is part of the weight and costs nothing. Else two thin products, batched over the adapters,
    and an addition follow the layer's own, and then its epilogue. Raises ConfigError for several adapters merged.
    """
    rows = gemm.batch * gemm.m
    check_integer("rank", rank, 1, min(gemm.n, gemm.k), WHERE)
    check_integer("adapters", adapters, 1, min(rows, 65536), WHERE)
    if merged:
        if adapters > 1:
            raise ConfigError(f"adapters = {adapters}: must be 1 where merged, a weight holds one ({WHERE})")
        return (gemm,)
    each = -(-rows // adapters)
    down = Gemm(each, rank, gemm.k, batch=adapters, dtype=gemm.dtype)
    up = Gemm(each, gemm.n, rank, batch=adapters, dtype=gemm.dtype, out_dtype=gemm.out_dtype)
    own = dataclasses.replace(gemm, epilogue="none")
    return own, down, up, Stream("add", rows, gemm.n, gemm.result_dtype), *_epilogue(gemm)


def _check_dense(gemm: Gemm) -> None:
    if gemm.weights_format != "dense":
        raise ConfigError(f"weights_format = {gemm.weights_format!r}: must be dense to be factorised ({WHERE})")


# Weights left out one by one.
@dataclass(frozen=True)
class SparseProduct:
    """C[m, n] = A[m, k] B with `kept` elements of B[k, n] in CSR form, a row of it for each of the n outputs: values,
    their places along k, and where rows begin, of four bytes each. It runs on CUDA cores.

    Raises `ConfigError` for a value outside its range.
    """

    m: int
    n: int
    k: int
    kept: int
    dtype: str = "bf16"

    def __post_init__(self) -> None:
        dense = Gemm(self.m, self.n, self.k)
        check_choice("dtype", self.dtype, ("fp32", "fp16", "bf16"), WHERE)
        check_integer("kept", self.kept, 0, dense.n * dense.k, WHERE)

    @property
    def density(self) -> float:
        """Part of the weights that is kept."""
        return self.kept / (self.n * self.k)

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return BYTES[self.dtype]

    @property
    def flops(self) -> int:
        """2 m for each weight kept."""
        return 2 * self.m * self.kept

    @property
    def a_bytes(self) -> int:
        """Bytes of the activations."""
        return self.m * self.k * self.element_bytes

    @property
    def b_bytes(self) -> int:
        """Bytes of the weights with their places."""
        return self.kept * (self.element_bytes + INDEX_BYTES) + (self.n + 1) * INDEX_BYTES

    @property
    def c_bytes(self) -> int:
        """Bytes of the result, of the activations' type."""
        return self.m * self.n * BYTES[COMBINATIONS[self.dtype][1][0]]

    @property
    def gathered_bytes(self) -> int:
        """Bytes of activations that are fetched from L2: for each weight kept, its place of all m rows."""
        return self.kept * self.m * self.element_bytes

    @property
    def compulsory_bytes(self) -> int:
        """Every input read once and every output written once."""
        return self.a_bytes + self.b_bytes + self.c_bytes

    def describe(self) -> dict[str, Any]:
        """All fields, with what follows from them."""
        derived = ("density", "flops", "a_bytes", "b_bytes", "c_bytes", "gathered_bytes", "compulsory_bytes")
        return {"operation": "sparse product", **asdict(self), **{name: getattr(self, name) for name in derived}}


def unstructured(gemm: Gemm, density: float) -> SparseProduct:
    """The product with so large a part of the weights left, to the nearest element, anywhere."""
    if isinstance(density, bool) or not isinstance(density, int | float) or not 0 <= density <= 1:
        raise ConfigError(f"density = {density!r}: must be a number from 0 to 1 ({WHERE})")
    if gemm.batch > 1 or gemm.weights_format != "dense" or gemm.epilogue != "none":
        raise ConfigError(f"gemm = {gemm!r}: must be one dense product without epilogue to be left out of ({WHERE})")
    return SparseProduct(gemm.m, gemm.n, gemm.k, round(density * gemm.n * gemm.k), gemm.dtype)
