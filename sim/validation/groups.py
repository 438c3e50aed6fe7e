"""Names of the groups a row is scored in, and the subset a limit takes. Both read inputs only, bar two time bands."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Callable

from hwmodels.errors import ConfigError
from sim.validation.expected import GEMV_ROWS, KINDS, kernel_class
from sim.validation.replay import gemm_of, named_config
from sim.validation.tables import Inputs, Row

SHORT_US = 10.0
LONG_US = 20.0
"""From here on a clock inside a kernel is what its activity makes it (counters.csv)."""
SECTOR_BYTES = 32
ALIGNMENT_BYTES = 16
"""What TMA and 16-byte cp.async need of every row's start."""
_TILE_IN_NAME = re.compile(r"_(?:sliced|[nt]{2}\b)")
"""What ends the part of an sgemm name that says architecture and tile."""
UNNAMED_FAMILIES = ("square", "random")
"""Shape families that are no language model's layer."""
UNFITTED = "shapes not fitted"
HALVED = ("gemm", "counters")
"""Kinds of table whose groups are scored on shapes not fitted, too, but for the finest ones of language models."""


def shape_family(inputs: Inputs) -> str:
    """The shape's name up to the first dot ("llama2-7b.qkv" -> "llama2-7b")."""
    return inputs.name.split(".", 1)[0]


def shape_name(inputs: Inputs) -> str:
    """Sizes as mxnxk."""
    return f"{inputs.m}x{inputs.n}x{inputs.k}"


def is_llm_shaped(inputs: Inputs) -> bool:
    """Whether the row's shape is a layer of a language model."""
    return shape_family(inputs) not in UNNAMED_FAMILIES


def is_split_k(inputs: Inputs) -> bool:
    """Whether the measured kernel splits k, by its name, the reduction launched behind it, or a grid deeper than the
    batch."""
    if inputs.kind == "event_gemm" and inputs.grid is not None:
        return inputs.grid[2] > inputs.batch
    return "splitk" in (inputs.kernel + inputs.other_kernels).lower()


def is_misaligned(inputs: Inputs) -> bool:
    """Whether rows of A, B or C do not all start on 16 bytes."""
    gemm = gemm_of(inputs)
    return any(gemm.alignment_bytes(operand) < ALIGNMENT_BYTES for operand in "abc")


def has_whole_sectors(inputs: Inputs) -> bool:
    """Whether every row of A and B, of K where that is contiguous, is a multiple of 32 bytes."""
    gemm = gemm_of(inputs)
    return all(gemm.pitch_bytes(operand) % SECTOR_BYTES == 0 for operand in "ab")


def is_held_out(inputs: Inputs) -> bool:
    """Whether no constant was fitted on the row's shape: fits use the shapes whose hash is even."""
    return int(hashlib.md5(shape_name(inputs).encode(), usedforsecurity=False).hexdigest(), 16) % 2 == 1


def base_name(inputs: Inputs) -> str:
    """The finest group of a row: type, layout, L2, operation and shape family; or library, type and shape."""
    if inputs.kind == "gemm":
        return f"{_how(inputs)} {shape_family(inputs)}"
    if inputs.kind == "graph_gemm":
        return f"{short_dtype(inputs.dtype)} {inputs.name or 'unnamed'}"
    if inputs.kind == "event_gemm":
        return f"{short_dtype(inputs.dtype)} {inputs.name} {_TILE_IN_NAME.split(inputs.kernel)[0]}"
    if inputs.kind == "tile_sweep":
        return f"{short_dtype(inputs.dtype)} {shape_name(inputs)}"
    return f"{inputs.library} {short_dtype(inputs.dtype)} {shape_name(inputs)}"


def _how(inputs: Inputs) -> str:
    return f"{short_dtype(inputs.dtype)} {inputs.layout} {inputs.l2} {inputs.op}"


def short_dtype(dtype: str) -> str:
    """The table's spelling: both fp8 formats are "fp8"."""
    return "fp8" if dtype.startswith("fp8") else dtype


def unfitted(group: str) -> str:
    """The group of those of another group's rows on whose shapes no constant was fitted."""
    return f"{group}, {UNFITTED}"


def names(row: Row) -> tuple[str, ...]:
    """Every group the row belongs to, summaries first and `base_name` last."""
    inputs, base = row.inputs, base_name(row.inputs)
    counted = inputs.kind == "counters"
    summaries = [f"{inputs.library if counted else 'all'} {short_dtype(inputs.dtype)}"]
    if inputs.kind == "gemm" and is_llm_shaped(inputs):
        summaries.insert(0, f"{_how(inputs)} LLM-shaped")
        if inputs.kernel.startswith("nvjet"):
            summaries.append(f"{_how(inputs)} LLM-shaped nvjet")
    summaries += [name for name, belongs in (_TRAITS | (_COUNTED_TRAITS if counted else {})).items() if belongs(row)]
    if is_held_out(inputs):
        halved = [*summaries, *([base] if shape_family(inputs) in UNNAMED_FAMILIES else [])]
        summaries += [unfitted(name) for name in halved if inputs.kind in HALVED]
        summaries.insert(1, UNFITTED)
    return tuple(dict.fromkeys((*summaries, *_kernel_class(inputs), base)))


def _kernel_class(inputs: Inputs) -> tuple[str, ...]:
    """The class of kernels whose error is expected of a prediction (`sim.validation.expected`)."""
    if inputs.kind not in KINDS or not is_held_out(inputs):
        return ()
    try:
        family = "multistage" if inputs.library == "triton" else named_config(inputs, gemm_of(inputs)).family
    except ConfigError:
        return ()
    return (kernel_class(family, inputs.dtype, inputs.m, inputs.n, inputs.k).name,)


_TRAITS: dict[str, Callable[[Row], bool]] = {
    f"any kernel under {SHORT_US:g} us": lambda row: row.measured.time_us < SHORT_US,
    "warm L2": lambda row: row.inputs.l2 == "warm",
    "layouts nn, nt and tt": lambda row: row.inputs.layout != "tn",
    "fused epilogues": lambda row: row.inputs.op != "mm",
    "split-K": lambda row: is_split_k(row.inputs),
    f"GEMV-like (m <= {GEMV_ROWS})": lambda row: row.inputs.m <= GEMV_ROWS,
    "misaligned rows": lambda row: is_misaligned(row.inputs),
    "spilling": lambda row: bool(row.inputs.spills),
}
_COUNTED_TRAITS: dict[str, Callable[[Row], bool]] = {
    f"any kernel over {LONG_US:g} us": lambda row: row.measured.time_us > LONG_US,
    f"rows of K a multiple of {SECTOR_BYTES} B": lambda row: has_whole_sectors(row.inputs),
}
"""Of counters.csv alone, whose quantities they bear on."""


def subset(rows: tuple[Row, ...], limit: int) -> tuple[Row, ...]:
    """`limit` rows in proportion to their finest groups: sorted by group, hashed within, then every len/limit-th.

    Reads inputs only, so that the choice does not depend on what was measured; rows come back in file order.
    """
    if limit >= len(rows):
        return rows
    order = sorted(rows, key=lambda row: (base_name(row.inputs), _hash(repr(row.inputs)), row.line))
    taken = [order[(2 * i + 1) * len(rows) // (2 * limit)] for i in range(limit)]
    return tuple(sorted(taken, key=lambda row: row.line))


def _hash(text: str) -> int:
    return zlib.crc32(text.encode())
