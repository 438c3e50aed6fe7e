"""One matrix multiplication C[m, n] = A[m, k] B[k, n] (+ epilogue): its tensors, exact FLOPs and exact bytes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from hwmodels.errors import ConfigError
from workloads.checks import check_choice, check_integer
from workloads.dtypes import BYTES, COMBINATIONS
from workloads.packing import FORMATS, GROUP_VALUES, OPERANDS, SPARSE_GROUP, row_side_bytes, value_bytes

WHERE = "workload gemm"

MAX_DIMENSION = 262144
"""The largest vocabularies (256000) and some more."""
MAX_BATCH = 65536
MAX_LEADING = 2**31 - 1
"""BLAS passes leading dimensions as 32-bit integers."""

LAYOUTS = ("tn", "nn", "nt", "tt")
OPERAND_PLACES = ("hbm", "pinned", "pageable")
RESULT_PLACES = ("hbm", "host")
L2_STATES = ("cold", "warm")
DATA = ("random", "zeros", "sparse")
"""What A and B may hold: normal numbers, zeros, or {-1, 0, 1} at random. Energy and power depend on it."""

EPILOGUES = {"none": 0, "bias": 1, "bias_gelu": 10, "bias_silu": 4, "bias_relu": 2, "residual": 1, "row_stats": 4}
"""Epilogue -> FLOPs for each element of C. An add, multiply, divide or transcendental counts 1: bias or residual 1;
GELU (tanh form) 9: x*x*x 2, scale 1, add 1, scale 1, tanh 1, add 1, half 1, times x 1; SiLU 3: exp, add, divide;
ReLU 1.
"row_stats": C is not written; of each row, a tile writes what log-softmax and the pick of a token need of its columns:
the largest, its place, and the sum of exponentials: compare, subtract, exp, add."""
STATISTIC_BYTES = 4
ROW_STATISTICS_BYTES, STATISTICS_COLUMNS = 3 * STATISTIC_BYTES, 256
"""Bytes that "row_stats" writes for a row of a tile, and columns of the widest tile of any kernel: `Gemm.c_bytes` is
of such tiles; narrower ones write more."""

MAX_ALIGNMENT_BYTES = 128


@dataclass(frozen=True)
class Gemm:
    """A GEMM as asked for: sizes in elements, where the tensors lie, and what follows the multiplication.

    `layout` gives A then B, in BLAS letters as PyTorch stores them: A is row-major [m, k] in "tn" and "nn" and
    stored [k, m] in "nt" and "tt"; B is stored [n, k] (a linear layer's weight) in "tn" and "tt" and [k, n] in
    "nn" and "nt". C is row-major [m, n]. Batches are packed one behind the other; a bias is one vector for all.
    A field left None takes its default: types from `COMBINATIONS`, leading dimensions packed; the properties
    `accumulator_dtype`, `result_dtype` and `leading(operand)` give the resolved values.

    `weights_format` says how B lies in memory (`workloads.packing`); one that is not dense is packed along k, so that
    layout is "tn" or "tt" and `ldb` not given. `weight_group`: elements along k that share a scale; None: all.

    With epilogue "row_stats" there is statistics of C's rows instead of C (`EPILOGUES`), and no `ldc`.

    `l2` says whether A and B lie in L2 when the kernel starts; `inputs` (A and the epilogue's operand) and
    `weights` (B) where they start, `result` where C must end.

    Raises `ConfigError` for a value outside its range or a combination of types that no GEMM has.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    dtype: str = "bf16"
    acc_dtype: str | None = None
    out_dtype: str | None = None
    layout: str = "tn"
    lda: int | None = None
    ldb: int | None = None
    ldc: int | None = None
    epilogue: str = "none"
    l2: str = "cold"
    inputs: str = "hbm"
    weights: str = "hbm"
    result: str = "hbm"
    weights_format: str = "dense"
    weight_group: int | None = None

    def __post_init__(self) -> None:
        for name in ("m", "n", "k"):
            check_integer(name, getattr(self, name), 1, MAX_DIMENSION, WHERE)
        check_integer("batch", self.batch, 1, MAX_BATCH, WHERE)
        self._check_types()
        check_choice("layout", self.layout, LAYOUTS, WHERE)
        check_choice("epilogue", self.epilogue, tuple(EPILOGUES), WHERE)
        check_choice("l2", self.l2, L2_STATES, WHERE)
        check_choice("inputs", self.inputs, OPERAND_PLACES, WHERE)
        check_choice("weights", self.weights, OPERAND_PLACES, WHERE)
        check_choice("result", self.result, RESULT_PLACES, WHERE)
        for name in ("lda", "ldb", "ldc"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), self._extent(name[-1]), MAX_LEADING, WHERE)
        if self.epilogue == "row_stats" and (self.ldc, self.out_dtype) != (None, None):
            raise ConfigError(f"ldc, out_dtype: must not be given with epilogue row_stats, there is no C ({WHERE})")
        self._check_weights()

    def _check_weights(self) -> None:
        """What does not go with the format of B."""
        form = self.weights_format
        check_choice("weights_format", form, FORMATS, WHERE)
        if self.weight_group is not None:
            if form not in GROUP_VALUES:
                raise ConfigError(f"weight_group = {self.weight_group!r}: only for int8 and int4 weights ({WHERE})")
            check_integer("weight_group", self.weight_group, 1, self.k, WHERE)
            if self.k % self.weight_group:
                raise ConfigError(f"weight_group = {self.weight_group}: must divide k = {self.k} ({WHERE})")
        if form == "dense":
            return
        check_choice("dtype", self.dtype, OPERANDS[form], f"with weights_format {form}, {WHERE}")
        if not self.k_is_contiguous("b"):
            raise ConfigError(f"layout = {self.layout!r}: must be tn or tt with weights_format {form} ({WHERE})")
        if self.ldb is not None:
            raise ConfigError(f"ldb = {self.ldb}: must not be given with weights_format {form} ({WHERE})")
        unit = {"2:4": SPARSE_GROUP, "int4": 2}.get(form, 1)
        if self.k % unit:
            raise ConfigError(f"k = {self.k}: must be a multiple of {unit} with weights_format {form} ({WHERE})")

    def _check_types(self) -> None:
        check_choice("dtype", self.dtype, tuple(COMBINATIONS), WHERE)
        accumulators, results = COMBINATIONS[self.dtype]
        if self.acc_dtype is not None:
            check_choice("acc_dtype", self.acc_dtype, accumulators, f"with dtype {self.dtype}, {WHERE}")
        if self.out_dtype is not None:
            check_choice("out_dtype", self.out_dtype, results, f"with dtype {self.dtype}, {WHERE}")

    # Types and sizes of one element.
    @property
    def accumulator_dtype(self) -> str:
        """Type the products are summed in."""
        return self.acc_dtype or COMBINATIONS[self.dtype][0][0]

    @cached_property
    def result_dtype(self) -> str:
        """Type of C in memory."""
        if self.epilogue == "row_stats":
            return "fp32"
        default = "bf16" if self.dtype.startswith("fp8") else COMBINATIONS[self.dtype][1][0]
        return self.out_dtype or default

    @cached_property
    def a_element_bytes(self) -> int:
        """Bytes of one element of A."""
        return BYTES[self.dtype]

    @cached_property
    def b_element_bytes(self) -> float:
        """Bytes of values for one element of B; below 1 where they are packed."""
        return value_bytes(self.weights_format, self.dtype)

    @cached_property
    def b_side_bytes(self) -> float:
        """Bytes beside the values for one element of B, in the mean: scales and zero points, or positions."""
        return self._b_column_side_bytes / self.k

    @cached_property
    def _b_column_side_bytes(self) -> int:
        return row_side_bytes(self.weights_format, self.dtype, self.k, self.weight_group or self.k)

    @cached_property
    def c_element_bytes(self) -> int:
        """Bytes of one element of C."""
        return BYTES[self.result_dtype]

    @cached_property
    def accumulator_bytes(self) -> int:
        """Bytes of one accumulator in registers, and of one split-K partial sum."""
        return BYTES[self.accumulator_dtype]

    # Exact counts.
    @property
    def flops(self) -> int:
        """2 m n k for each batch: one multiply and one add a product."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def executed_flops(self) -> int:
        """Of these, what the tensor cores execute: half where 2:4 sparsity leaves out the others."""
        return self.flops // 2 if self.weights_format == "2:4" else self.flops

    @property
    def epilogue_flops(self) -> int:
        """FLOPs of the epilogue, counted as `EPILOGUES` says; they run on the CUDA cores."""
        return EPILOGUES[self.epilogue] * self.batch * self.m * self.n

    @cached_property
    def a_bytes(self) -> int:
        """Bytes of A's elements (not the gaps a leading dimension leaves)."""
        return self.batch * self.m * self.k * self.a_element_bytes

    @cached_property
    def b_bytes(self) -> int:
        """Bytes of B's elements as stored, with what belongs to them: scales and zero points, or positions."""
        return self.batch * self.n * (int(self.k * self.b_element_bytes) + self._b_column_side_bytes)

    @cached_property
    def c_bytes(self) -> int:
        """Bytes of C's elements, or of the statistics instead."""
        if self.epilogue == "row_stats":
            return self.batch * self.m * -(-self.n // STATISTICS_COLUMNS) * ROW_STATISTICS_BYTES
        return self.batch * self.m * self.n * self.c_element_bytes

    @property
    def epilogue_bytes(self) -> int:
        """Bytes the epilogue reads: a bias vector of n, or a residual as large as C, in C's type."""
        if self.epilogue == "residual":
            return self.c_bytes
        return 0 if self.epilogue in ("none", "row_stats") else self.n * self.c_element_bytes

    @property
    def compulsory_bytes(self) -> int:
        """Every input read once and every output written once: no schedule moves less when nothing is cached."""
        return self.a_bytes + self.b_bytes + self.epilogue_bytes + self.c_bytes

    @property
    def arithmetic_intensity(self) -> float:
        """FLOPs of the multiplication for each compulsory byte."""
        return self.flops / self.compulsory_bytes

    # How the tensors lie in memory.
    def k_is_contiguous(self, operand: str) -> bool:
        """Whether rows along k lie contiguous in memory ("a" or "b"); else rows along m (A) or n (B) do.

        A packed [k, 1] is the same memory as [1, k], and BLAS callers pass it as such.
        """
        width, given, layouts = (
            (self.m, self.lda, ("tn", "nn")) if _operand(operand, "ab") == "a" else (self.n, self.ldb, ("tn", "tt"))
        )
        return self.layout in layouts or (width == 1 and given is None)

    def _extent(self, operand: str) -> int:
        if operand == "c":
            return self.n
        return self.k if self.k_is_contiguous(operand) else {"a": self.m, "b": self.n}[operand]

    def leading(self, operand: str) -> int:
        """Leading dimension of "a", "b" or "c": elements from one contiguous row to the next."""
        given = {"a": self.lda, "b": self.ldb, "c": self.ldc}[_operand(operand, "abc")]
        return self._extent(operand) if given is None else given

    def element_bytes(self, operand: str) -> float:
        """Bytes of one element of "a", "b" or "c" (of its values, below 1 where they are packed)."""
        return float(getattr(self, f"{_operand(operand, 'abc')}_element_bytes"))

    def contiguous_bytes(self, operand: str) -> int:
        """Bytes of one row of the operand along its contiguous direction."""
        return int(self._extent(_operand(operand, "abc")) * self.element_bytes(operand))

    def pitch_bytes(self, operand: str) -> int:
        """Bytes from one contiguous row of the operand to the next."""
        return int(self.leading(operand) * self.element_bytes(operand))

    @property
    def a_contiguous_bytes(self) -> int:
        """Bytes of one row of A along its contiguous direction."""
        return self.contiguous_bytes("a")

    @property
    def b_contiguous_bytes(self) -> int:
        """Bytes of one row of B along its contiguous direction."""
        return self.contiguous_bytes("b")

    def alignment_bytes(self, operand: str) -> int:
        """Alignment every row of the operand has: the largest power of two that divides the leading dimension in
        bytes, 128 at most (tensors themselves start aligned). TMA and 16 B cp.async need 16; less means shorter
        loads. Where there is no C it is all."""
        if operand == "c" and self.epilogue == "row_stats":
            return MAX_ALIGNMENT_BYTES
        leading_bytes = self.pitch_bytes(operand)
        return min(leading_bytes & -leading_bytes, MAX_ALIGNMENT_BYTES)

    def allocation_bytes(self, operand: str) -> int:
        """Bytes the operand occupies in memory, gaps between its rows and what belongs to B's values included."""
        rows = {
            "a": self.m if self.k_is_contiguous("a") else self.k,
            "b": self.n if self.k_is_contiguous("b") else self.k,
            "c": self.m,
        }[_operand(operand, "abc")]
        beside = self.n * self._b_column_side_bytes if operand == "b" else 0
        return self.batch * (rows * self.pitch_bytes(operand) + beside)

    def describe(self) -> dict[str, Any]:
        """All fields as resolved, with "flops", "epilogue_flops", the bytes and "arithmetic_intensity"."""
        resolved = {
            "acc_dtype": self.accumulator_dtype,
            "out_dtype": self.result_dtype,
            "weight_group": self.weight_group or self.k,
            **{f"ld{operand}": self.leading(operand) for operand in "abc"},
        }
        derived = (
            "flops",
            "executed_flops",
            "epilogue_flops",
            "a_bytes",
            "b_bytes",
            "c_bytes",
            "epilogue_bytes",
            "compulsory_bytes",
            "arithmetic_intensity",
        )
        return {"operation": "gemm", **asdict(self), **resolved, **{name: getattr(self, name) for name in derived}}


def _operand(name: str, allowed: str) -> str:
    if len(name) != 1 or name not in allowed:
        raise ConfigError(f"operand = {name!r}: must be one of {', '.join(allowed)} (workload gemm)")
    return name
