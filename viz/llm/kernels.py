"""`tilewalk kernels`: every kernel of a step in launch order, equal layers and equal experts folded into one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from sim.limiter import limiter_code, limiter_words
from sim.llm import SCHEMA, LlmResult, limiter_of
from sim.result import KernelResult
from sim.step import Ran, StepResult
from viz import words
from viz.llm import facts
from viz.terminal import show, write_lines

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

WIDE = 120
"""Consoles below this many columns get fewer columns."""


@dataclass(frozen=True)
class Row:
    """One kernel, or `times` equal ones of equal experts. `part`: "expert 3" where it is one of several."""

    operation: str
    part: str
    ran: Ran
    kernel: KernelResult
    times: int = 1

    @property
    def key(self) -> tuple[Any, ...]:
        """What makes two of them the same."""
        kernel = self.kernel
        return self.operation, self.ran.operation.work, kernel.name, kernel.time_s, self.times


@dataclass(frozen=True)
class Section:
    """Kernels that run one after another in each of `layers` (none: before, between or behind them)."""

    layers: tuple[int, ...]
    times: int
    rows: tuple[Row, ...]


def sections(step: StepResult, *, every: bool = False) -> tuple[Section, ...]:
    """The kernels of a step; equal layers are one section where it first occurs, unless `every` one is wanted."""
    last = facts.last_layer(step)
    n_layers = 1 + max((ran.operation.layer for ran in step.ran if _inside(ran, last)), default=-1)
    found: dict[Any, Section] = {}
    for i, (layer, rans) in enumerate(groupby(step.ran, key=lambda ran: ran.operation.layer)):
        rows = tuple(_rows(rans)) if every else _folded(_rows(rans))
        layers = (layer,) if 0 <= layer < n_layers else ()
        key = i if every else tuple(row.key for row in rows)
        known = found.get(key)
        if known is None:
            found[key] = Section(layers, 1, rows)
        else:
            found[key] = replace(known, layers=tuple(dict.fromkeys((*known.layers, *layers))), times=known.times + 1)
    return tuple(found.values())


def _inside(ran: Ran, last: int) -> bool:
    """Whether an operation is one of a layer: what follows the last layer has the number after it, `last`."""
    return ran.operation.layer < last or last == 0


def _rows(rans: Iterable[Ran]) -> Iterable[Row]:
    for ran in rans:
        found = facts.NUMBERED.match(ran.operation.name)
        part = f"{found['part']} {found['number']}" if found else ""
        name = ran.operation.name[found.end() :] if found else ran.operation.name
        for kernel in ran.kernels:
            yield Row(f"{found['part']}: {name}" if found else name, part, ran, kernel)


def _folded(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Equal experts one after another as one, each of its kernels so many times."""
    found: list[list[Row]] = []
    for _, each in groupby(rows, key=lambda row: row.part):
        block = list(each)
        if found and block[0].part and [_once(row) for row in found[-1]] == [_once(row) for row in block]:
            found[-1] = [replace(row, times=row.times + 1) for row in found[-1]]
        else:
            found.append(block)
    return tuple(row for block in found for row in block)


def _once(row: Row) -> tuple[Any, ...]:
    return row.key[:-1]


# Print.
def shown_only(result: LlmResult) -> str:
    """Of a generation: which of its steps this is."""
    if result.request.phase != "generate":
        return ""
    return f"Of the generation, {facts.shown_text(result)}; --phase prefill lists what reads the tokens"


def print_kernels(step: StepResult, console: Console, *, every: bool = False, note: str = "") -> None:
    """One line a kernel, under a line for each section, below `note`. A pipe gets lines as long as they get, a narrow
    terminal fewer columns."""
    found = sections(step, every=every)
    total = f"{step.n_kernels:,} kernels, {words.time_text(step.kernels_s)}; {words.time_text(step.wall_s)} with gaps"
    kept = [i for i, head in enumerate(HEADS) if not console.is_terminal or console.width >= WIDE or head in NARROW]
    cells = [[[_cells(row, step)[i] for i in kept] for row in section.rows] for section in found]
    heads, sides = [HEADS[i] for i in kept], [SIDES[i] for i in kept]
    every_row = [heads, *(row for rows in cells for row in rows)]
    widths = [max(len(row[i]) for row in every_row) for i in range(len(kept))]
    lines = [*([note] if note else []), f"{step.step.label}: {total}", _aligned(heads, widths, sides)]
    for section, rows in zip(found, cells, strict=True):
        lines += [_title(section), *(_aligned(row, widths, sides) for row in rows)]
    if console.is_terminal:
        show(console, *(_whole(line) for line in lines))
    else:
        write_lines(console, lines)


HEADS = ("operation", "shape", "kernel", "tile", "CTAs", "time", "times", "limited by")
SIDES = ("left", "left", "left", "left", "right", "right", "right", "left")
NARROW = ("operation", "kernel", "time", "times", "limited by")


def _cells(row: Row, step: StepResult) -> list[str]:
    ctas = facts.n_ctas(row.kernel, step.gpu.sm.count)
    return [
        f"  {row.operation}",
        facts.shape_text(row.ran.operation.work),
        row.kernel.name,
        facts.tile_text(row.kernel),
        "" if ctas is None else f"{ctas:,}",
        words.time_text(row.kernel.time_s),
        f"× {row.times}" if row.times > 1 else "",
        limiter_words(limiter_of(row.kernel)),
    ]


def _title(section: Section) -> str:
    """Such as "Layers 1 to 31 (× 31): 168 µs each, 5.21 ms"."""
    one_s = sum(row.times * row.kernel.time_s for row in section.rows)
    times = words.time_text(one_s) + (f" each, {words.time_text(section.times * one_s)}" if section.times > 1 else "")
    count = f" (× {section.times})" if section.times > 1 else ""
    return f"{_layers(section.layers) if section.layers else 'Beside the layers'}{count}: {times}"


def _layers(layers: Sequence[int]) -> str:
    first, last, n = min(layers), max(layers), len(layers)
    if n == 1:
        return f"Layer {first}"
    if last - first == n - 1:
        return f"Layers {first} to {last}"
    if n > 1 and len({b - a for a, b in zip(sorted(layers), sorted(layers)[1:], strict=False)}) == 1:
        return f"Layers {first}, {sorted(layers)[1]} to {last}"
    return f"{n} of layers {first} to {last}"


def _aligned(cells: Sequence[str], widths: Sequence[int], sides: Sequence[str]) -> str:
    triples = zip(cells, widths, sides, strict=True)
    return "  ".join(c.rjust(w) if side == "right" else c.ljust(w) for c, w, side in triples).rstrip()


def _whole(line: str) -> RenderableType:
    from rich.text import Text

    return Text(line, overflow="fold")


# JSON.
def kernels_json(step: StepResult, *, every: bool = False, pruned: dict[str, float] | None = None) -> dict[str, Any]:
    """The object that `--json` prints: kernels in launch order; `times` says how often each runs in the step.
    `pruned`: what is to be said of a pruned model."""
    return {
        "step": step.step.label,
        **({"pruned": pruned} if pruned else {}),
        "gpu": step.gpu.name,
        "n_kernels": step.n_kernels,
        "kernels_us": step.kernels_s * 1e6,
        "wall_us": step.wall_s * 1e6,
        "kernels": [
            _kernel_json(row, section, step) for section in sections(step, every=every) for row in section.rows
        ],
        "schema": SCHEMA,
    }


def _kernel_json(row: Row, section: Section, step: StepResult) -> dict[str, Any]:
    kernel, work = row.kernel, row.ran.operation.work
    return {
        "operation": row.operation,
        "kind": facts.kind_of(work),
        "layers": list(section.layers),
        "times": row.times * section.times,
        "work": asdict(work),
        "flops": work.flops,
        "kernel": kernel.name,
        "config": dict(kernel.config),
        "n_ctas": facts.n_ctas(kernel, step.gpu.sm.count),
        "waves": kernel.waves,
        "time_us": kernel.time_s * 1e6,
        "limiter": limiter_code(limiter_of(kernel)),
        "bytes": {level: dict(ways) for level, ways in kernel.bytes.items()},
        "in_l2": dict(row.ran.resident),
    }
