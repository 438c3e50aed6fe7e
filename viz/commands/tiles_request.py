"""From the words of `tilewalk tiles` to a tile search, and what is made of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from hwmodels.catalog import load_gpu, resolved
from viz.commands.progress import COMPILING, Status, engine_needs_compiling
from viz.commands.request import how, workload
from viz.commands.tiles_options import ALL, ANY_FAMILY, TilesOptions
from viz.commands.values import choice, integer, optional_integer, refused

if TYPE_CHECKING:
    from hwmodels.spec import Gpu
    from sim.call import Options
    from sim.schedule.config import KernelConfig
    from sim.tile_difference import TileDifference
    from sim.tiles import Group, TileSearch
    from viz.tiles.figure import Pictured
    from viz.tiles.terminal import Ranking
    from workloads.gemm import Gemm

AGAINST, FIRST = ("smem", "registers", "l2", "energy"), "time,"
"""As in `sim.tile_front`; a test holds them against it."""
MOST_TOP, MOST_THREADS = 100_000, 1024
RANK = re.compile(r"[+-]?\d+")


@dataclass(frozen=True)
class Request:
    """What to search, and how."""

    gemm: Gemm
    gpu: Gpu
    options: Options
    family: str | None
    """None for all."""
    best: int
    every: bool
    """Simulate all."""
    against: str | None
    """What time is weighed against, which needs all of them."""
    threads: int | None


def request(options: TilesOptions) -> Request:
    """Everything that is to be searched. Raises `ConfigError` for the first thing that is wrong."""
    best = integer("--top", options.top, MOST_TOP)
    against = choice("--pareto", options.pareto and options.pareto.removeprefix(FIRST), AGAINST)
    family, threads, simulated = family_of(options), threads_of(options), simulated_as(options)
    gemm, gpu = workload(options), load_gpu(options.gpu, options.sets or ())
    from sim.launch import check_memory

    check_memory(gemm, gpu, stream_weights=False)
    return Request(gemm, gpu, simulated, family, best, options.every or against is not None, against, threads)


def family_of(options: TilesOptions) -> str | None:
    """None for all."""
    family = choice("--family", options.family, ANY_FAMILY)
    return None if family == ALL else family


def threads_of(options: TilesOptions) -> int | None:
    """None for as many as there are cores."""
    return optional_integer("--threads", options.threads, MOST_THREADS)


def simulated_as(options: TilesOptions) -> Options:
    """How kernels are simulated. Raises `ConfigError`."""
    keywords = how(options)
    from sim.call import Options, check_options

    found = Options(**{**keywords, "without": frozenset(keywords["without"])})
    check_options(found)
    return found


def ranked(asked: Request, status: Status) -> Ranking:
    """The search, with what a library would launch; says when the engine is compiled first, and how far it is."""
    status.text = COMPILING if engine_needs_compiling() else "simulating"
    from sim.report import expected
    from sim.tile_rows import library_call
    from sim.tiles import every
    from viz.tiles.terminal import Ranking

    configs = every(asked.gemm, asked.gpu, asked.family)
    found = searched(asked, configs, len(configs) if asked.every else asked.best, status)
    status.total = None
    library = library_call(asked.gemm, asked.gpu, asked.options)
    error = expected(found.best, resolved(asked.gpu), asked.options).get("expected_error")
    return Ranking(found, asked.gpu, library, error, min(asked.best, found.n_best), asked.against)


def pictured(asked: Request, ranking: Ranking, status: Status) -> Pictured:
    """What the figure shows: the best of each tile, proved to be so, and slices through the best of all."""
    from sim.tile_rows import row
    from sim.tile_slices import slices
    from sim.tiles import every
    from viz.tiles.figure import Pictured

    found = ranking.found
    best_s, calls = found.best.time_s, found.calls
    if not asked.every:
        configs = every(asked.gemm, asked.gpu, asked.family)
        calls = searched(asked, configs, 1, status, lambda config: (config.block_m, config.block_n)).calls
    status.text, status.total = "simulating slices", None
    through = slices(asked.gemm, found.best.plan.config, asked.gpu, asked.options, asked.threads)
    cells = {(c.plan.config.block_m, c.plan.config.block_n): row(c, best_s) for c in reversed(calls)}
    return Pictured(ranking, cells, through)


def searched(
    asked: Request, configs: Sequence[KernelConfig], best: int, status: Status, group: Group | None = None
) -> TileSearch:
    """The `best` of `configs`, or of each group; says how far it is."""
    from sim.tiles import search

    def tell(done: int, total: int) -> None:
        status.text, status.done, status.total = "simulating", done, total

    gemm, gpu, threads = asked.gemm, asked.gpu, asked.threads
    return search(gemm, gpu, configs, asked.options, best=best, group=group, threads=threads, progress=tell)


def explained(asked: Request, pair: Sequence[str], status: Status) -> TileDifference:
    """Why one of two beats the other, each a rank or a name. Raises `ConfigError` for what is neither, or the same."""
    status.text = COMPILING if engine_needs_compiling() else "simulating"
    from sim.call import run_call
    from sim.schedule.names import short_name
    from sim.tile_difference import difference
    from sim.tiles import every

    configs = every(asked.gemm, asked.gpu, asked.family)
    one, other = (
        integer("--explain", text, len(configs)) if RANK.fullmatch(text) else _named(text, asked, configs)
        for text in pair
    )
    if one == other:
        raise refused("--explain", " ".join(pair), "two different ones")
    ranks = [each for each in (one, other) if isinstance(each, int)]
    best = searched(asked, configs, max(ranks), status).calls if ranks else ()
    calls = [
        best[each - 1] if isinstance(each, int) else run_call(asked.gemm, each, asked.gpu, asked.options)
        for each in (one, other)
    ]
    if short_name(calls[0].plan.config) == short_name(calls[1].plan.config):
        raise refused("--explain", " ".join(pair), f"two different ones, both are {pair[0]}")
    return difference(*calls)


def _named(text: str, asked: Request, configs: Sequence[KernelConfig]) -> KernelConfig:
    """The configuration of this name: on the menu, or what a library launches for similar shapes."""
    from sim.schedule.library import library_candidates
    from sim.schedule.names import short_name

    known = {short_name(config): config for config in (*library_candidates(asked.gemm, asked.gpu), *configs)}
    if text in known:
        return known[text]
    near = get_close_matches(text, known, n=1)
    hint = f", such as {near[0]}" if near else ""
    raise refused("--explain", text, f"a rank or the name of a configuration that fits{hint}")
