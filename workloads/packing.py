"""How the weights of a product, its operand B, lie in memory: dense, as integers with scales, or with 2:4 sparsity.

"int8", "int4": weight-only quantisation, one byte or half a byte an element. Every `group` elements along k of a column
share a scale; int4 has a zero point too. Both are of the activations' type, to which a kernel converts the weights.
"2:4": two of every four elements along k are kept, each with two bits that say where it stood.
"""

from __future__ import annotations

from workloads.dtypes import BYTES

FORMATS = ("dense", "int8", "int4", "2:4")
WEIGHT_BITS = {"int8": 8, "int4": 4}
"""Formats whose values are converted before they are multiplied -> bits of a value."""
GROUP_VALUES = {"int8": 1, "int4": 2}
"""What a group has: int8 a scale, int4 a scale and a zero point."""
SPARSE_GROUP, SPARSE_KEPT = 4, 2
"""Elements along k of which so many are kept."""
POSITION_BITS = 2

OPERANDS: dict[str, tuple[str, ...]] = {
    "int8": ("fp16", "bf16"),
    "int4": ("fp16", "bf16"),
    "2:4": ("fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8"),
}
"""Format -> types of the activations it goes with: those with two bytes are converted to; tensor cores skip zeros of
these (tf32 keeps one of two instead, which is not modelled)."""


def value_bytes(form: str, dtype: str) -> float:
    """Bytes that the values take for one element of the dense matrix; whole for a dense one."""
    if form in WEIGHT_BITS:
        return WEIGHT_BITS[form] / 8
    return BYTES[dtype] * SPARSE_KEPT / SPARSE_GROUP if form == "2:4" else BYTES[dtype]


def row_side_bytes(form: str, dtype: str, k: int, group: int) -> int:
    """Bytes beside the values of one column: scales and zero points, or positions filled up to whole bytes."""
    if form in GROUP_VALUES:
        return k // group * GROUP_VALUES[form] * BYTES[dtype]
    return -(-k * SPARSE_KEPT // SPARSE_GROUP * POSITION_BITS // 8) if form == "2:4" else 0
