"""`tilewalk tiles`: the best kernel configurations of a product among all that fit, and what is told of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hwmodels.catalog import load_gpu, resolved
from viz.commands import outputs
from viz.commands.progress import COMPILING, Status, engine_needs_compiling, in_background, telling
from viz.commands.request import contradiction, how, workload
from viz.commands.tiles_options import ALL, ANY_FAMILY, TilesOptions
from viz.commands.values import choice, integer, optional_integer, refused

if TYPE_CHECKING:
    from hwmodels.spec import Gpu
    from sim.call import Options
    from sim.schedule.config import KernelConfig
    from sim.tile_difference import TileDifference
    from sim.tiles import TileSearch
    from viz.tiles.terminal import Ranking
    from workloads.gemm import Gemm

EXPORTS = ("triton", "cutlass")
MOST_TOP, MOST_THREADS = 100_000, 1024


@dataclass(frozen=True)
class Request:
    """What to search, and how."""

    gemm: Gemm
    gpu: Gpu
    options: Options
    family: str | None
    """None for all."""
    best: int
    threads: int | None


def tiles(options: TilesOptions) -> None:
    """Print the ranking, or why one beats another. Raises `ConfigError`."""
    target, export = options.export or (None, None)
    choice("--export", target, EXPORTS)
    files = outputs.checked({"csv": options.csv, "export": export})
    asked = request(options)
    if options.explain is not None:
        _explain(asked, options, files)
        return
    with telling() as status:
        ranking = in_background(lambda: ranked(asked, options.every, status))
        for name, path in files.items():
            status.text, status.total = f"writing {path.name}", None
            WRITERS[name](ranking, path, options)
    from viz.commands.console import console
    from viz.tiles.terminal import print_ranking, to_json

    if options.json:
        typer.echo(json.dumps(to_json(ranking)))
    else:
        print_ranking(ranking, console())


def _explain(asked: Request, options: TilesOptions, files: Mapping[str, Path]) -> None:
    if files:
        raise contradiction("--explain", next(iter(files)), "that tells of all configurations")
    with telling() as status:
        found = in_background(lambda: explained(asked, options.explain or (), status))
    from viz.commands.console import console
    from viz.tiles.explain import difference_json, print_difference
    from viz.tiles.terminal import about

    if options.json:
        typer.echo(json.dumps({**about(asked.gemm, asked.gpu), "explanation": difference_json(found)}))
    else:
        print_difference(found, console())


def request(options: TilesOptions) -> Request:
    """Everything that is to be searched. Raises `ConfigError` for the first thing that is wrong."""
    family = choice("--family", options.family, ANY_FAMILY)
    best = integer("--top", options.top, MOST_TOP)
    threads = optional_integer("--threads", options.threads, MOST_THREADS)
    keywords, gemm, gpu = how(options), workload(options), load_gpu(options.gpu, options.sets or ())
    from sim.call import Options, check_options
    from sim.launch import check_memory

    simulated = Options(**{**keywords, "without": frozenset(keywords["without"])})
    check_options(simulated)
    check_memory(gemm, gpu, stream_weights=False)
    return Request(gemm, gpu, simulated, None if family == ALL else family, best, threads)


def ranked(asked: Request, every: bool, status: Status) -> Ranking:
    """The search, with what a library would launch; says when the engine is compiled first, and how far it is."""
    status.text = COMPILING if engine_needs_compiling() else "simulating"
    from sim.report import expected
    from sim.tile_rows import library_call
    from sim.tiles import every as all_that_fit
    from viz.tiles.terminal import Ranking

    configs = all_that_fit(asked.gemm, asked.gpu, asked.family)
    found = searched(asked, configs, len(configs) if every else asked.best, status)
    status.total = None
    library = library_call(asked.gemm, asked.gpu, asked.options)
    error = expected(found.best, resolved(asked.gpu), asked.options).get("expected_error")
    return Ranking(found, asked.gpu, library, error, min(asked.best, found.n_best))


def searched(asked: Request, configs: Sequence[KernelConfig], best: int, status: Status) -> TileSearch:
    """The `best` of `configs`; says how far it is."""
    from sim.tiles import search

    def tell(done: int, total: int) -> None:
        status.text, status.done, status.total = "simulating", done, total

    gemm, gpu, threads = asked.gemm, asked.gpu, asked.threads
    return search(gemm, gpu, configs, asked.options, best=best, threads=threads, progress=tell)


def explained(asked: Request, pair: Sequence[str], status: Status) -> TileDifference:
    """Why one of two beats the other, each a rank or a name. Raises `ConfigError` for what is neither."""
    status.text = COMPILING if engine_needs_compiling() else "simulating"
    from sim.call import run_call
    from sim.tile_difference import difference
    from sim.tiles import every

    configs = every(asked.gemm, asked.gpu, asked.family)
    ranks = [integer("--explain", text, len(configs)) for text in pair if text.isdigit()]
    best = searched(asked, configs, max(ranks), status).calls if ranks else ()
    named = {text: _named(text, asked, configs) for text in pair if not text.isdigit()}
    calls = [
        run_call(asked.gemm, named[text], asked.gpu, asked.options) if text in named else best[int(text) - 1]
        for text in pair
    ]
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


def _write_csv(ranking: Ranking, path: Path, options: TilesOptions) -> None:
    from viz.tiles.terminal import write_csv

    write_csv(ranking, path)


def _write_export(ranking: Ranking, path: Path, options: TilesOptions) -> None:
    from sim.tile_rows import rows
    from viz.tiles.exports import write_export

    target, _ = options.export or ("", "")
    best = rows(ranking.found)[: ranking.n_shown]
    left_out = write_export(target, ranking.found.gemm, ranking.gpu.label, best, path)
    if left_out:
        typer.echo(
            f"tilewalk: {path.name}: {left_out:,} of the best {len(best):,} left out, not for {target}", err=True
        )


WRITERS: dict[str, Callable[[Ranking, Path, TilesOptions], None]] = {"csv": _write_csv, "export": _write_export}
