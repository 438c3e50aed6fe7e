"""`tilewalk tiles`: the best kernel configurations of a product among all that fit, and what is told of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from hwmodels.errors import ConfigError
from viz.commands import outputs
from viz.commands.progress import Status, in_background, telling
from viz.commands.request import contradiction
from viz.commands.tiles_options import TilesOptions
from viz.commands.tiles_request import Request, explained, pictured, ranked, request
from viz.commands.values import choice, refused

if TYPE_CHECKING:
    from viz.tiles.figure import Pictured
    from viz.tiles.terminal import Ranking

TRITON, PYTHON = "triton", ".py"
EXPORTS = (TRITON, "cutlass")
FOR_MANY = {"at_most": "--shapes or --model", **dict.fromkeys(("phase", "tokens", "context"), "--model")}
"""Options that one product does not have -> what they go with."""


class Found(NamedTuple):
    """What files are written of."""

    ranking: Ranking
    picture: Pictured | None
    """Where a figure was asked for."""


def tiles(options: TilesOptions) -> None:
    """Print the ranking, or why one beats another, or the best of many products. Raises `ConfigError`."""
    if options.shapes is not None or options.model is not None:
        from viz.commands.tile_sets import tile_sets

        tile_sets(options)
        return
    _refuse_what_is_for_many(options)
    target, export = options.export or (None, None)
    choice("--export", target, EXPORTS)
    if export is not None and (Path(export).suffix == PYTHON) != (target == TRITON):
        raise refused("--export", export, f"a file that {'ends' if target == TRITON else 'does not end'} in {PYTHON}")
    files = outputs.checked({"figure": options.figure, "csv": options.csv, "export": export})
    outputs.check_inputs(files, {"gpu": options.gpu})
    if "figure" in files:
        outputs.check_format(files["figure"])
    asked = request(options)
    if options.explain is not None:
        _explain(asked, options, files)
        return
    with telling() as status:
        found = in_background(lambda: _found(asked, "figure" in files, status))
        for name, path in files.items():
            status.text, status.total = f"writing {path.name}", None
            WRITERS[name](found, path, options)
    from viz.commands.console import console
    from viz.tiles.terminal import print_ranking, to_json

    if options.json:
        typer.echo(json.dumps(to_json(found.ranking)))
    else:
        print_ranking(found.ranking, console())


def _refuse_what_is_for_many(options: TilesOptions) -> None:
    """Raise `ConfigError` for sizes that are missing, and options that need --shapes or --model."""
    if not (options.m and options.n and options.k):
        raise ConfigError("M N K: must be given, or --shapes or --model (command line)")
    for name, needs in FOR_MANY.items():
        if getattr(options, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')}: needs {needs} (command line)")


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


def _found(asked: Request, drawn: bool, status: Status) -> Found:
    ranking = ranked(asked, status)
    return Found(ranking, pictured(asked, ranking, status) if drawn else None)


def _write_figure(found: Found, path: Path, options: TilesOptions) -> None:
    from viz.tiles.figure import save_figure

    if found.picture is not None:
        save_figure(found.picture, path)


def _write_csv(found: Found, path: Path, options: TilesOptions) -> None:
    from viz.tiles.terminal import write_csv

    write_csv(found.ranking, path)


def _write_export(found: Found, path: Path, options: TilesOptions) -> None:
    from viz.tiles.exports import write_export

    target, _ = options.export or ("", "")
    ranking = found.ranking
    best = ranking.rows[: ranking.n_shown]
    left_out = write_export(target, ranking.found.gemm, ranking.gpu.label, best, path)
    if left_out:
        typer.echo(
            f"tilewalk: {path.name}: {left_out:,} of the best {len(best):,} left out, not for {target}", err=True
        )


WRITERS: dict[str, Callable[[Found, Path, TilesOptions], None]] = {
    "figure": _write_figure,
    "csv": _write_csv,
    "export": _write_export,
}
