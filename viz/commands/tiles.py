"""`tilewalk tiles`: the best kernel configurations of a product among all that fit, and what is told of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hwmodels.catalog import load_gpu, resolved
from viz.commands import outputs
from viz.commands.progress import COMPILING, Status, engine_needs_compiling, in_background, telling
from viz.commands.request import how, workload
from viz.commands.tiles_options import ALL, ANY_FAMILY, TilesOptions
from viz.commands.values import choice, integer, optional_integer

if TYPE_CHECKING:
    from hwmodels.spec import Gpu
    from sim.call import Options
    from sim.tiles import Progress
    from viz.tiles.terminal import Ranking
    from workloads.gemm import Gemm

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
    """Print the ranking. Raises `ConfigError`."""
    files = outputs.checked({name: getattr(options, name) for name in WRITERS})
    asked = request(options)
    with telling() as status:
        ranking = in_background(lambda: ranked(asked, options.every, status))
        for name, path in files.items():
            status.text, status.total = f"writing {path.name}", None
            WRITERS[name](ranking, path)
    from viz.commands.console import console
    from viz.tiles.terminal import print_ranking, to_json

    if options.json:
        typer.echo(json.dumps(to_json(ranking)))
    else:
        print_ranking(ranking, console())


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
    from sim.tiles import search
    from viz.tiles.terminal import Ranking

    configs = all_that_fit(asked.gemm, asked.gpu, asked.family)
    best = len(configs) if every else asked.best
    found = search(
        asked.gemm, asked.gpu, configs, asked.options,
        best=best, threads=asked.threads, progress=telling_of(status, "simulating"),
    )  # fmt: skip
    status.total = None
    library = library_call(asked.gemm, asked.gpu, asked.options)
    error = expected(found.best, resolved(asked.gpu), asked.options).get("expected_error")
    return Ranking(found, asked.gpu, library, error, min(asked.best, found.n_best))


def telling_of(status: Status, text: str) -> Progress:
    """What a search calls, to say so."""

    def tell(done: int, total: int) -> None:
        status.text, status.done, status.total = text, done, total

    return tell


def _write_csv(ranking: Ranking, path: Path) -> None:
    from viz.tiles.terminal import write_csv

    write_csv(ranking, path)


WRITERS: dict[str, Callable[[Ranking, Path], None]] = {"csv": _write_csv}
