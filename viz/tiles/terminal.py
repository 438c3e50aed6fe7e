"""The ranking of a tile search: on a console, as an object for JSON, as a table in a file."""

from __future__ import annotations

import csv
import dataclasses
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hwmodels.spec import Gpu
from sim.call import Call
from sim.limiter import limiter_code, limiter_words
from sim.result import SCHEMA
from sim.schedule.config import KernelConfig
from sim.schedule.names import short_name
from sim.tile_front import AGAINST, front
from sim.tile_rows import TileRow, left_out_by, rank_of, row, rows
from sim.tiles import TileSearch
from viz import files, levels, words
from viz.terminal import expected_error_text, facts, grids, show
from workloads.gemm import Gemm

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

HEADS = (
    ("#", "right"), ("Configuration", "left"), ("Time", "right"), ("Behind", "right"), ("Limited by", "left"),
    ("Waves", "right"), ("Tail", "right"), ("CTAs/SM", "right"), ("HBM", "right"), ("L2", "right"), ("Energy", "right"),
)  # fmt: skip
LEGEND = (
    "family, tile m x n x k, s stages, w warps, c cluster m x n, m or n: tiles walk along it in groups of so many. "
    "Tail: slots for CTAs that the last wave leaves empty, of all. HBM, L2: bytes read and written"
)
AGAINST_WORDS = {
    "smem": "shared memory of a CTA",
    "registers": "registers of a CTA",
    "l2": "L2 traffic",
    "energy": "energy",
}
"""`sim.tile_front.AGAINST` in words."""
CONFIG_FIELDS = (
    "family", "block_m", "block_n", "block_k", "stages", "warps", "cluster_m", "cluster_n", "raster", "group",
    "split_k", "stream_k", "pingpong", "loads", "mma",
)  # fmt: skip
ROW_FIELDS = tuple(
    field.name for field in dataclasses.fields(TileRow) if field.name not in ("name", "config", "limiter")
)


@dataclass(frozen=True)
class Ranking:
    """A tile search and what is told with it."""

    found: TileSearch
    gpu: Gpu
    library: Call | None
    """What a library would launch."""
    expected_error: dict[str, Any] | None
    """Of the fastest, as `Result.options` has it."""
    n_shown: int
    """So many of the best are told of."""
    against: str | None = None
    """What time is weighed against, a key of `sim.tile_front.AGAINST`; all are simulated then."""

    @cached_property
    def rows(self) -> tuple[TileRow, ...]:
        """All that were simulated, fastest first."""
        return rows(self.found)

    @cached_property
    def front(self) -> tuple[TileRow, ...]:
        """The Pareto front of time against that; none where it was not asked for."""
        return front(self.rows, self.against) if self.against else ()


def print_ranking(ranking: Ranking, console: Console) -> None:
    """The best in a table (in two, on a narrow console), and what became of the others."""
    from rich.text import Text

    found = ranking.found
    what = found.gemm.describe()
    head = Text.assemble((levels.work_title(what), "bold"), f" ({levels.setting_text(what)}) on {ranking.gpu.label}")
    cells = [(str(i), *ranking_cells(each)) for i, each in enumerate(ranking.rows[: ranking.n_shown], 1)]
    show(console, head, "", *grids(HEADS, cells, console.width, folded=True), "", facts(_facts(ranking)))
    if ranking.against:
        show(console, "", *_front(ranking, ranking.against, console.width))


def _front(ranking: Ranking, against: str, width: int) -> Iterator[RenderableType]:
    """The Pareto front: what less of one thing costs in time."""
    from rich.text import Text

    n_front = words.plural(len(ranking.front), "configuration")
    yield Text(f"Time against {AGAINST_WORDS[against]}: {n_front} that none beats in both", style="bold")
    heads = (*HEADS[:4], (AGAINST_WORDS[against][0].upper() + AGAINST_WORDS[against][1:], "right"))
    ranks = {each: str(i) for i, each in enumerate(ranking.rows, 1)}
    field = AGAINST[against]
    cells = []
    for each in ranking.front:
        name, time, behind, *_ = ranking_cells(each)
        cells.append((ranks[each], name, time, behind, amount_text(against, getattr(each, field))))
    yield from grids(heads, cells, width)


def amount_text(against: str, amount: float) -> str:
    """An amount of what time is weighed against, with its unit."""
    if against == "smem":
        return f"{amount / 1024:,.0f} KiB"
    if against == "registers":
        return f"{amount:,.0f}"
    return words.bytes_text(amount) if against == "l2" else words.energy_text(amount)


def ranking_cells(each: TileRow) -> tuple[str, ...]:
    """Under all `HEADS` but the first."""
    return (
        each.name,
        words.time_text(each.time_s),
        behind_text(each.behind),
        limiter_words(each.limiter).removeprefix("the "),
        words.three_digits(each.waves),
        words.percent_text(each.tail_loss),
        str(each.ctas_per_sm),
        words.bytes_text(each.hbm_bytes),
        words.bytes_text(each.l2_bytes),
        words.energy_text(each.energy_j),
    )


def behind_text(behind: float) -> str:
    """0.0123 -> "1.2 %"; "–" for the fastest."""
    return f"{100 * behind:.1f} %" if behind > 0 else "–"


def _facts(ranking: Ranking) -> list[tuple[str, Sequence[str]]]:
    found = ranking.found
    configs = [call.plan.config for call in found.calls] + [each.config for each in found.left_out]
    by_family = Counter(config.family for config in configs)
    fit = f"{found.n_configs:,} configurations: {', '.join(f'{name} {n:,}' for name, n in sorted(by_family.items()))}"
    notes = [expected_error_text(ranking.expected_error)]
    if any(kernel.sampled for call in found.calls for kernel in call.kernels):
        notes.append("Sampled: repeated waves were skipped; --full replays all of them.")
    return [
        ("Fit", [fit]),
        ("Simulated", [_simulated(found)]),
        ("Library", [_library(ranking)]),
        ("Note", notes),
        ("Columns", [LEGEND]),
    ]


def _simulated(found: TileSearch) -> str:
    if not found.left_out:
        return "all of them"
    by = ", ".join(f"{reason} {n:,}" for reason, n in left_out_by(found).items())
    last = words.time_text(found.calls[found.n_best - 1].time_s)
    return (
        f"{len(found.calls):,}. Of the other {len(found.left_out):,} only lower bounds are known, no times: they take "
        f"longer than number {found.n_best:,} ({last}). What bounds them: {by}. --all simulates them"
    )


def _library(ranking: Ranking) -> str:
    found, call = ranking.found, ranking.library
    if call is None:
        return f"not known: no library's kernels for such a product were seen on {ranking.gpu.architecture}"
    rank, behind = rank_of(call, found), call.time_s / found.best.time_s - 1
    listed = call.plan.config in {each.plan.config for each in found.calls}
    place = f"not among the best {found.n_best:,}" if rank is None else f"rank {rank}"
    there = place if listed or rank is None else f"would be {place}, but is not on the menu"
    far = (
        "as fast as the best"
        if behind == 0
        else f"{100 * abs(behind):.1f} % {'behind' if behind > 0 else 'ahead of'} the best"
    )
    return f"would launch {short_name(call.plan.config)}, {words.time_text(call.time_s)}: {there}, {far}"


# JSON.
def to_json(ranking: Ranking) -> dict[str, Any]:
    """The object that `--json` prints: microseconds, bytes, joules; `configurations` are the best, in order."""
    found, library = ranking.found, ranking.library
    best_s = found.best.time_s
    return {
        **about(found.gemm, ranking.gpu),
        "n_fit": found.n_configs,
        "n_simulated": len(found.calls),
        "left_out": {
            "n": len(found.left_out),
            "least_bound_us": found.left_out[0].bound.time_s * 1e6 if found.left_out else None,
            "by": left_out_by(found),
        },
        "configurations": [{"rank": i, **row_json(each)} for i, each in enumerate(ranking.rows[: ranking.n_shown], 1)],
        "library": {"rank": rank_of(library, found), **row_json(row(library, best_s))} if library else None,
        "expected_error": ranking.expected_error,
        **({"pareto": _front_json(ranking, ranking.against)} if ranking.against else {}),
    }


def _front_json(ranking: Ranking, against: str) -> dict[str, Any]:
    ranks = {each: i for i, each in enumerate(ranking.rows, 1)}
    return {"against": AGAINST[against], "front": [{"rank": ranks[e], **row_json(e)} for e in ranking.front]}


def about(gemm: Gemm, gpu: Gpu) -> dict[str, Any]:
    """What every such object begins with."""
    return {"workload": gemm.describe(), "gpu": gpu.name, "schema": SCHEMA}


def row_json(each: TileRow) -> dict[str, Any]:
    """One configuration: its name, its fields, its figures."""
    return {
        "name": each.name,
        **config_json(each.config),
        "time_us": each.time_s * 1e6,
        "limiter": limiter_code(each.limiter),
        **{name: getattr(each, name) for name in ROW_FIELDS if name != "time_s"},
    }


def config_json(config: KernelConfig) -> dict[str, Any]:
    """The fields that tell configurations of a menu apart."""
    return {name: getattr(config, name) for name in CONFIG_FIELDS}


# A table in a file.
def write_csv(ranking: Ranking, path: str | os.PathLike[str]) -> None:
    """Every configuration: the simulated ones with their figures (the best with a rank), the others with their bound.

    Raises `ConfigError` where the file cannot be written.
    """
    entries = list(_entries(ranking))
    with files.replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(
            stream,
            ["rank", *(name for name in entries[0] if name != "rank"), "bound_us", "bound_by"],
            restval="",
            lineterminator="\n",
        )
        writer.writeheader()
        writer.writerows(entries)


def _entries(ranking: Ranking) -> Iterator[dict[str, Any]]:
    for i, each in enumerate(ranking.rows, 1):
        yield {**row_json(each), **({"rank": i} if i <= ranking.found.n_best else {})}
    for out in ranking.found.left_out:
        bound = {"bound_us": out.bound.time_s * 1e6, "bound_by": out.bound.by}
        yield {"name": short_name(out.config), **config_json(out.config), **bound}
