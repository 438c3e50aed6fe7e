"""Tiles of many GEMMs: one table of the best of each, a set that serves all, the same for JSON and as a file."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hwmodels.spec import Gpu
from sim.result import SCHEMA
from sim.schedule.names import short_name
from sim.tile_rows import TileRow, row
from sim.tile_sets import Served, TileSet
from viz import files, words
from viz.terminal import grids, show
from viz.tiles.terminal import behind_text, row_json
from workloads.gemm import Gemm

if TYPE_CHECKING:
    from rich.console import Console

MOST_NAMES = 4
"""Of operations with one shape that a table names."""
HEADS = (
    ("GEMM", "left"), ("m × n × k", "right"), ("Runs", "right"), ("Best configuration", "left"), ("Time", "right"),
)  # fmt: skip
SET_HEADS = (*HEADS[:2], ("#", "right"), ("Time", "right"), ("Behind", "right"))


@dataclass(frozen=True)
class Many:
    """The best of each GEMM, and the set where one was asked for. `what`: whose GEMMs they are."""

    what: str
    gpu: Gpu
    served: Sequence[Served]
    chosen: TileSet | None = None

    @property
    def time_s(self) -> float:
        """Of all GEMMs, each with its best and as often as it is run."""
        return sum(each.wanted.count * each.best.time_s for each in self.served)


def print_many(many: Many, console: Console) -> None:
    """The tables, with what all take together."""
    from rich.text import Text

    found = words.plural(len(many.served), "GEMM")
    head = Text.assemble((f"{found} of {many.what}", "bold"), f" on {many.gpu.label}")
    cells = [_cells(i, each) for i, each in enumerate(many.served, 1)]
    show(console, head, "", *grids(HEADS, cells, console.width, folded=True))
    show(console, "", Text(f"Together {words.time_text(many.time_s)}, each as often as it runs, simulated alone"))
    if many.chosen is not None:
        _print_set(many, many.chosen, console)


def _cells(i: int, each: Served) -> tuple[str, ...]:
    best = _row(each)
    wanted = each.wanted
    return (
        _name(i, each),
        sizes_text(wanted.gemm),
        f"{wanted.count:,}",
        best.name,
        words.time_text(best.time_s),
    )


def _row(each: Served) -> TileRow:
    return row(each.best, each.best.time_s)


def _name(i: int, each: Served) -> str:
    names = each.wanted.names
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more if names else f"{i}"


def sizes_text(gemm: Gemm) -> str:
    """ "8 × 4,096 × 4,096", with the batch if there is one."""
    sizes = (*([gemm.batch] if gemm.batch > 1 else []), gemm.m, gemm.n, gemm.k)
    return " × ".join(f"{size:,}" for size in sizes)


def _sizes_with_name(i: int, each: Served) -> str:
    return f"{_name(i, each)}, {sizes_text(each.wanted.gemm)}" if each.wanted.names else sizes_text(each.wanted.gemm)


def _print_set(many: Many, chosen: TileSet, console: Console) -> None:
    from rich.text import Text

    worst = max(range(len(chosen.losses)), key=chosen.losses.__getitem__)
    n = words.plural(len(chosen.configs), "configuration")
    runs = "serves" if len(chosen.configs) == 1 else "serve"
    loss = f"{100 * chosen.loss:.1f} % slower together, {100 * chosen.losses[worst]:.1f} % at worst"
    head = Text(f"{n} that {runs} all: {loss} ({_sizes_with_name(worst + 1, many.served[worst])})", style="bold")
    configs = [
        (str(i), short_name(config), str(chosen.choice.count(i - 1))) for i, config in enumerate(chosen.configs, 1)
    ]
    table = (("#", "right"), ("Configuration", "left"), ("GEMMs", "right"))
    show(console, "", head, *grids(table, configs, console.width), "")
    cells = [
        (
            _name(i + 1, each),
            sizes_text(each.wanted.gemm),
            str(chosen.choice[i] + 1),
            words.time_text(chosen.times_s[i]),
            behind_text(chosen.losses[i]),
        )
        for i, each in enumerate(many.served)
    ]
    show(console, *grids(SET_HEADS, cells, console.width, folded=True))


# JSON, and a table in a file.
def to_json(many: Many) -> dict[str, Any]:
    """The object that `--json` prints: each GEMM with its best; the set, with its loss, where one was asked for."""
    return {
        "what": many.what,
        "gpu": many.gpu.name,
        "schema": SCHEMA,
        "time_us": many.time_s * 1e6,
        "gemms": [
            {
                "names": each.wanted.names,
                "count": each.wanted.count,
                "workload": each.wanted.gemm.describe(),
                "best": row_json(_row(each)),
            }
            for each in many.served
        ],
        **({"set": _set_json(many.chosen)} if many.chosen else {}),
    }


def _set_json(chosen: TileSet) -> dict[str, Any]:
    return {
        "configurations": [short_name(config) for config in chosen.configs],
        "loss": chosen.loss,
        "gemms": [
            {"configuration": i, "time_us": time_s * 1e6, "loss": loss}
            for i, time_s, loss in zip(chosen.choice, chosen.times_s, chosen.losses, strict=True)
        ],
    }


def write_csv(many: Many, path: str | os.PathLike[str]) -> None:
    """A row for each GEMM: its sizes, its best, and what the set gives it. Raises `ConfigError` where it cannot."""
    entries = [_entry(many, i, each) for i, each in enumerate(many.served)]
    with files.replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(entries[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(entries)


def _entry(many: Many, i: int, each: Served) -> dict[str, Any]:
    gemm, chosen = each.wanted.gemm, many.chosen
    product = {name: getattr(gemm, name) for name in ("m", "n", "k", "batch", "dtype", "layout", "epilogue")}
    best = {key: value for key, value in row_json(_row(each)).items() if key != "behind"}
    served = {}
    if chosen is not None:
        config = short_name(chosen.configs[chosen.choice[i]])
        served = {"set_name": config, "set_time_us": chosen.times_s[i] * 1e6, "set_loss": chosen.losses[i]}
    return {"gemm": " ".join(each.wanted.names), **product, "count": each.wanted.count, **best, **served}
