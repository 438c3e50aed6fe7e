"""Which data types of operands the name of a kernel states."""

from __future__ import annotations

import re

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
}
"""{word of a kernel name: data types that its operands may have}; tf32 is stored as fp32."""
_OPERAND_WORD = "bf16|f16|fp16|e4m3|e5m2|s8|i8|int8|tf32|f32|fp32|f64"
_OPERANDS = tuple(
    re.compile(pattern, re.ASCII)
    for pattern in (
        "nvjet_sm90_([a-z]+)_",
        "xmma_gemm_[a-z0-9]+_(tf32)",
        rf"xmma_gemm_({_OPERAND_WORD})",
        rf"[a-z]\d*gemm_({_OPERAND_WORD})_",
        "_([shd]gemm)_",
        r"_(h)\d+gemm_",
    )
)


def operand_types(name: str) -> tuple[str, ...]:
    """Data types that the operands of a kernel of this name may have (fp8: either), () where the name does not say."""
    found = next((match for match in (pattern.search(name) for pattern in _OPERANDS) if match), None)
    return OPERANDS.get({"h": "hgemm"}.get(found[1], found[1]), ()) if found else ()
