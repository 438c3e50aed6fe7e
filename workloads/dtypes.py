"""Data types of operands, accumulators and results."""

from __future__ import annotations

BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1, "int8": 1, "int32": 4}
"""Bytes an element takes in memory (tf32 is stored as fp32)."""
