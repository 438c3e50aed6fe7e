"""Columns of the tables of measured kernels: what each kind must have, may have, and how a cell is read.

A kind of table is known by its columns. `inputs` and `optional` are what a prediction may read, `measured` what was
measured; other columns are passed over.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MAX_INTEGER = 2**31 - 1

OPS = ("mm", "addmm", "addmm_gelu")
LAYOUTS = ("tn", "nn", "nt", "tt")
L2_STATES = ("cold", "warm")
LIBRARIES = ("cublas", "triton")
REGIMES = ("compute", "mixed", "memory")
"""What bounds a shape by its FLOPs and compulsory bytes."""
DTYPES = {
    **{name: name for name in ("bf16", "fp16", "fp32", "tf32", "fp64", "int8", "fp8_e4m3", "fp8_e5m2")},
    "fp8": "fp8_e4m3",
}
"""Data types as tables spell them -> as a workload spells them."""

TILE_FIELDS = ("block_m", "block_n", "block_k", "stages", "warps", "group_m")


class CellError(Exception):
    """A cell that cannot be used; the text says what is allowed."""


# Cells: text -> value, or CellError with the allowed range.
def parse_integer(low: int) -> Callable[[str], int]:
    """Parser of whole numbers from `low` up."""

    def parse(text: str) -> int:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= MAX_INTEGER or value != int(value):
            raise CellError(f"must be an integer from {low} to {MAX_INTEGER}")
        return int(value)

    return parse


parse_whole = parse_integer(0)
parse_count = parse_integer(1)


def parse_non_negative(text: str) -> float:
    """A finite number of at least 0."""
    try:
        value = float(text)
    except ValueError:
        raise CellError("must be a number") from None
    if not math.isfinite(value) or value < 0:
        raise CellError("must be a finite number of at least 0")
    return value


def parse_positive(text: str) -> float:
    """A finite number above 0."""
    value = parse_non_negative(text)
    if value == 0:
        raise CellError("must be a finite number above 0")
    return value


def parse_triple(text: str) -> tuple[int, int, int]:
    """A launch dimension, "8x4x1" or "(8,4,1)"."""
    parts = text.strip("()").replace(",", "x").split("x")
    if len(parts) != 3:
        raise CellError("must be three integers, as 8x4x1")
    x, y, z = (parse_count(part) for part in parts)
    return x, y, z


def parse_choice(choices: tuple[str, ...]) -> Callable[[str], str]:
    """Parser of one of `choices`."""

    def parse(text: str) -> str:
        if text not in choices:
            raise CellError(f"must be one of {', '.join(choices)}")
        return text

    return parse


def parse_dtype(text: str) -> str:
    """A data type as tables spell it, as a workload spells it."""
    return DTYPES[parse_choice(tuple(DTYPES))(text)]


_SHAPE: dict[str, Callable[[str], Any]] = {"m": parse_count, "n": parse_count, "k": parse_count}
_TILE: dict[str, Callable[[str], Any]] = dict.fromkeys(TILE_FIELDS, parse_count)
_LAUNCH: dict[str, Callable[[str], Any]] = {"grid": parse_triple, "block": parse_triple}
_COMPILED: dict[str, Callable[[str], Any]] = {"regs": parse_count, "smem": parse_whole, "spills": parse_whole}
_COUNTED: dict[str, Callable[[str], Any]] = {
    "sm_cycles": parse_positive,
    "sm_mhz": parse_positive,
    "dram_read_bytes": parse_non_negative,
    "dram_write_bytes": parse_non_negative,
    "l2_read_bytes_from_sm": parse_non_negative,
    "sm_received_bytes": parse_non_negative,
    "l2_hit_pct": parse_non_negative,
    "tensor_active_pct": parse_non_negative,
}
FIELD_OF = {
    "l2_read_bytes_from_sm": "l2_read_bytes",
    "regime": "name",
    "impl": "kernel",
}
"""Column -> field of `Inputs` or `Measured`, where they differ."""
EVENT_OPS = {"gemm": ("linear", "addmm", "tn"), "bmm": ("bmm", "mm", "nn")}
"""Operation as the table of event timings spells it -> its name, operation and layout: a linear layer with its bias on
a weight stored [n, k], or a batched product of row-major matrices (NeuSight's collection script)."""


@dataclass(frozen=True)
class Schema:
    """The columns of one kind of table: column -> parser. Two columns of its `signature` mark the kind. A table with
    the column `gpu` holds rows of several GPUs."""

    signature: tuple[str, ...]
    inputs: dict[str, Callable[[str], Any]]
    optional: dict[str, Callable[[str], Any]]
    """Inputs that may be absent or blank."""
    measured: dict[str, Callable[[str], Any]]

    @property
    def required(self) -> tuple[str, ...]:
        """Columns the file must have."""
        return (*self.inputs, *self.measured)


SCHEMAS = {
    "counters": Schema(
        signature=("library", "sm_cycles", "dram_read_bytes", "l2_hit_pct"),
        inputs={"library": parse_choice(LIBRARIES), **_SHAPE, "dtype": parse_dtype, "kernel": str, **_LAUNCH},
        optional={**_TILE, **_COMPILED},
        measured={"time_us": parse_positive, **_COUNTED},
    ),
    "gemm": Schema(
        signature=("op", "layout", "l2", "kernel"),
        inputs={
            "name": str,
            "op": parse_choice(OPS),
            "dtype": parse_dtype,
            **_SHAPE,
            "layout": parse_choice(LAYOUTS),
            "l2": parse_choice(L2_STATES),
            "kernel": str,
            **_LAUNCH,
        },
        optional={"other_kernels": str, "rest_ms": parse_non_negative},
        measured={"time_us": parse_positive},
    ),
    "tile_sweep": Schema(
        signature=TILE_FIELDS,
        inputs={**_SHAPE, **_TILE},
        optional={"dtype": parse_dtype, **_COMPILED},
        measured={"time_us": parse_positive},
    ),
    "graph_gemm": Schema(
        signature=("cold_weights", "trtllm_weight_copies", "t_sglang_us", "t_trtllm_us"),
        inputs={"gpu": str, "dtype": parse_dtype, **_SHAPE},
        optional={"regime": parse_choice(REGIMES)},
        measured={"time_us": parse_positive},
    ),
    "event_gemm": Schema(
        signature=("impl", "tile_m", "tile_n", "grid_x", "block_x"),
        inputs={
            "gpu": str,
            "op": parse_choice(tuple(EVENT_OPS)),
            "dtype": parse_dtype,
            **_SHAPE,
            "batch": parse_count,
            "impl": str,
            "grid_x": parse_count,
            "grid_y": parse_count,
            "grid_z": parse_count,
            "block_x": parse_count,
        },
        optional={},
        measured={"time_us": parse_positive},
    ),
}
