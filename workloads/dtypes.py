"""Data types of operands, accumulators and results, and which of them go together."""

from __future__ import annotations

BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1, "int8": 1, "int32": 4}
"""Bytes an element takes in memory (tf32 is stored as fp32)."""

_FP8_OUT = ("bf16", "fp16", "fp32", "fp8_e4m3", "fp8_e5m2")

COMBINATIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "fp64": (("fp64",), ("fp64",)),
    "fp32": (("fp32",), ("fp32",)),
    "tf32": (("fp32",), ("fp32",)),
    "fp16": (("fp32", "fp16"), ("fp16", "fp32")),
    "bf16": (("fp32",), ("bf16", "fp32")),
    "fp8_e4m3": (("fp32", "fp16"), _FP8_OUT),
    "fp8_e5m2": (("fp32", "fp16"), _FP8_OUT),
    "int8": (("int32",), ("int32", "int8", "bf16", "fp16", "fp32")),
}
"""Operand type -> (accumulation types, result types) that a GEMM may have; the first of each is the default.

The combinations are those of cuBLASLt's table for `cublasLtMatmul` that the tensor cores execute; int8 results
are rescaled in the epilogue, as CUTLASS does to floating-point ones too."""
