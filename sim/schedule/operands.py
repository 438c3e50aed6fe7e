"""Which data types and layout of operands the name of a kernel states."""

from __future__ import annotations

import re

from workloads.gemm import Gemm

OPERANDS = {
    "tst": ("bf16",),
    "hsh": ("fp16",),
    "qqtst": ("fp8",),
    "bf16": ("bf16",),
    "f16": ("fp16",),
    "fp16": ("fp16",),
    "e4m3": ("fp8_e4m3",),
    "e5m2": ("fp8_e5m2",),
    "s8": ("int8",),
    "i8": ("int8",),
    "int8": ("int8",),
    "tf32": ("tf32",),
    "f32": ("fp32", "tf32"),
    "fp32": ("fp32", "tf32"),
    "f64": ("fp64",),
    "sgemm": ("fp32", "tf32"),
    "hgemm": ("fp16",),
    "dgemm": ("fp64",),
    "tinygemm": ("bf16",),
    "float": ("fp32", "tf32"),
    "__nv_bfloat16": ("bf16",),
    "__half": ("fp16",),
}
"""{word of a kernel name: data types that its operands may have}; tf32 is stored as fp32."""
_OPERAND_WORD = "bf16|f16|fp16|e4m3|e5m2|s8|i8|int8|tf32|f32|fp32|f64"
_SCALAR = "float|__nv_bfloat16|__half"
_OPERANDS = tuple(
    re.compile(pattern, re.ASCII)
    for pattern in (
        "nvjet_sm90_([a-z]+)_",
        "xmma_gemm_[a-z0-9]+_(tf32)",
        rf"xmma_(?:sparse_)?gemm_({_OPERAND_WORD})",
        rf"[a-z]\d*gemm_({_OPERAND_WORD})_",
        "(tinygemm)_",
        "_([shd]gemm)_",
        r"_(h)\d+gemm_",
        rf"StridedBatched<({_SCALAR})\b",
        rf"(?:gemv2T_kernel_val|kernel)<(?:int[,;] *){{2}}({_SCALAR})\b",
        rf"gemvNSP_kernel<({_SCALAR})\b",
        "(sgemm)_largek",
    )
)


def operand_types(name: str) -> tuple[str, ...]:
    """Data types that the operands of a kernel of this name may have (fp8: either), () where the name does not say."""
    found = next((match for match in (pattern.search(name) for pattern in _OPERANDS) if match), None)
    return OPERANDS.get({"h": "hgemm"}.get(found[1], found[1]), ()) if found else ()


def weights_format(name: str) -> str:
    """How a kernel of this name takes its weights: one of `workloads.packing.FORMATS`."""
    return "int4" if "tinygemm" in name else "2:4" if "xmma_sparse" in name else "dense"


def layout_agrees(stated: str, gemm: Gemm) -> bool:
    """Whether the two letters of nvjet, cutlass_NN, xmma and older cuBLAS names (n, t) are those of the workload.

    The library computes the column-major transpose, so the first letter is B's, t where k is contiguous, and the second
    A's, n where k is: the letters of `Gemm.layout`. So it is in all 1,693 measured H200 rows whose names have letters
    and in the 801 of A100, T4 and V100. A packed operand of one row or column is the same memory either way.
    """
    operands = (("b", "t", gemm.n, gemm.ldb), ("a", "n", gemm.m, gemm.lda))
    return all(
        gemm.k_is_contiguous(operand) == (letter == along_k) or (given is None and 1 in (width, gemm.k))
        for letter, (operand, along_k, width, given) in zip(stated.lower(), operands, strict=True)
    )
