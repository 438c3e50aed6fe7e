"""What each mechanism of the model is worth: the error on measured tables with one switched off at a time.

Nothing is fitted again: another constant may hide a missing mechanism in part, so that the loss is an upper bound of
what refitting would leave. A mechanism that changes little here is one that these tables do not need.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.machine import MECHANISMS
from sim.validation.replay import simulator
from sim.validation.run import validate

if TYPE_CHECKING:
    from hwmodels.spec import Gpu

COLUMNS = {
    "gemm %": ("gemm", "mape_pct"),
    "tile sweep %": ("tile_sweep", "mape_pct"),
    "Kendall tau": ("tile_sweep", "kendall_tau"),
    "cycles %": ("counters", "sm_cycles_mape_pct"),
    "clock %": ("counters", "sm_mhz_mape_pct"),
    "DRAM read %": ("counters", "dram_read_bytes_mape_pct"),
    "L2 read %": ("counters", "l2_read_bytes_mape_pct"),
}
"""Heading -> kind of table and the score of all its rows."""


def ablation(gpu: Gpu, tables: Mapping[str, Path], limit: int) -> list[tuple[str, dict[str, Any]]]:
    """(mechanism switched off, scores by `COLUMNS`), the whole model first as "none"; `limit` rows of each table, in
    proportion to their groups. Raises ConfigError as `validate` does."""
    found = []
    for name in ("none", *MECHANISMS):
        predict = simulator(gpu, () if name == "none" else (name,))
        overall = {kind: validate(gpu, path, limit=limit, predict=predict).overall for kind, path in tables.items()}
        found.append((name, {column: overall[kind][score] for column, (kind, score) in COLUMNS.items()}))
    return found


def ablation_section(gpu: Gpu, tables: Mapping[str, Path], limit: int) -> str:
    """The same as a section of a Markdown page, mechanisms in the order of the cycles they are worth."""
    whole, *others = ablation(gpu, tables, limit)
    ordered = [whole, *sorted(others, key=lambda item: -float(item[1]["cycles %"]))]
    rows = [["switched off", *COLUMNS], ["---"] * (1 + len(COLUMNS))]
    rows += [[name, *map(_text, scores.values())] for name, scores in ordered]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    text = (
        f"Errors on {limit} rows of each table, in proportion to their groups, with one mechanism switched off\n"
        "(`--without`) and nothing fitted again."
    )
    return f"## Without one mechanism, on {gpu.name}\n\n{text}\n\n{table}"


def _text(value: float) -> str:
    return f"{value:.2f}" if value < 1 else f"{value:.1f}"
