"""What two GPUs differ in, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from viz.gpu_tables import aligned, value_text
from viz.terminal import grids, show, write_lines

if TYPE_CHECKING:
    from rich.console import Console

    from hwmodels.catalog import Difference


def print_differences(names: tuple[str, str], rows: Sequence[Difference], console: Console) -> None:
    """A line for each value in which two GPUs differ: both, unit, how many times the first the second is, kinds."""
    if not rows:
        show(console, f"{names[0]} and {names[1]} differ in no value.")
        return
    heads = [("key", "left"), *((name, "right") for name in names), ("unit", "left"), ("ratio", "right")]
    heads += [("kinds", "left")]
    lines = [
        (row.key, *map(value_text, row.values), row.unit, _ratio_text(row.ratio), " / ".join(dict.fromkeys(row.kinds)))
        for row in rows
    ]
    if console.is_terminal:
        show(console, *grids(heads, lines, console.width))
    else:
        write_lines(console, aligned([tuple(head for head, _ in heads), *lines]))


def _ratio_text(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.3g}"
