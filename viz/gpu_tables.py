"""What the command line prints of GPUs: one line each, or every value of one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from viz.terminal import NARROW, grid, show

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from hwmodels.spec import Gpu

WIDE = 110
"""Below this, each value of a GPU takes two lines."""


def print_gpu(rows: Iterable[tuple[str, Any, str, str, str]], console: Console) -> None:
    """Every value of one GPU: key, value, unit, kind, source. A pipe gets one line a value."""
    lines = [(key, value_text(value), unit, kind, source) for key, value, unit, kind, source in rows]
    if not console.is_terminal:
        console.file.write("".join(line + "\n" for line in aligned(lines)))
    elif console.width < WIDE:
        show(console, *_stacked(lines))
    else:
        show(console, _gpu_table(lines))


def aligned(lines: Sequence[tuple[str, ...]]) -> list[str]:
    """One line a value, as long as it gets: what a pipe wants."""
    widths = [max(map(len, column)) for column in list(zip(*lines, strict=True))[:-1]]
    cells = [[cell.ljust(width) for cell, width in zip(line[:-1], widths, strict=True)] for line in lines]
    return ["  ".join([*row, line[-1]]) for row, line in zip(cells, lines, strict=True)]


def _stacked(lines: Iterable[tuple[str, ...]]) -> Iterator[RenderableType]:
    from rich.padding import Padding
    from rich.text import Text

    for key, value, unit, kind, source in lines:
        yield Text.assemble((key, "bold"), f" = {value} {unit}, {kind}")
        yield Padding(Text(source, style="dim"), (0, 0, 0, 4))


def _gpu_table(lines: Iterable[tuple[str, ...]]) -> Table:
    from rich.text import Text

    table = grid(*((name, "right" if name == "value" else "left") for name in ("key", "value", "unit", "kind")))
    table.add_column("source", overflow="fold", style="dim")
    for line in lines:
        table.add_row(*map(Text, line))
    return table


def value_text(value: Any) -> str:
    """A hardware value as its file would give it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.6g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def print_gpus(gpus: Iterable[Gpu], console: Console) -> None:
    """One line a GPU: what tells them apart."""
    from rich.text import Text

    heads = ("name", "GPU", "SMs", "fp16 TFLOP/s", "L2 MiB", "HBM GB", "HBM GB/s")
    narrow = console.width < NARROW
    kept = [i for i in range(len(heads)) if not narrow or heads[i] not in ("GPU", "L2 MiB")]
    table = grid(*((heads[i], "left" if i < 2 else "right") for i in kept))
    for gpu in gpus:
        peak = gpu.tensor.fp16_flops_per_clk_per_sm * gpu.sm.count * gpu.clock.boost_mhz * 1e6
        cells = [gpu.name, gpu.label, f"{gpu.sm.count}", f"{peak / 1e12:,.0f}", f"{gpu.l2.capacity_mib:g}"]
        cells += [f"{gpu.hbm.capacity_gb:g}", f"{gpu.hbm.bandwidth_gb_per_s:,.0f}"]
        table.add_row(*(Text(cells[i]) for i in kept))
    show(console, table)
