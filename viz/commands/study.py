"""`tilewalk study`: list the case studies, or simulate one and print what it found."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hwmodels.catalog import load_gpu
from sim.studies.catalog import STUDIES
from viz.commands import outputs
from viz.commands.progress import COMPILING, Status, engine_needs_compiling, in_background, telling
from viz.commands.values import refused

if TYPE_CHECKING:
    from hwmodels.spec import Gpu
    from sim.studies.study import Study


def study(name: str | None, gpu: str, sets: list[str], *, figure: str | None, json: bool) -> None:
    """All studies in one line each, or one. Raises `ConfigError`."""
    if name is None:
        _list(json, figure)
        return
    if name not in STUDIES:
        raise refused("study", name, f"one of {', '.join(STUDIES)}")
    path = _checked(figure)
    asked = load_gpu(gpu, sets)
    with telling() as status:
        found = in_background(lambda: _simulated(name, asked, status))
        if path is not None:
            from viz.study import save_figure

            status.text = f"drawing {path.name}"
            save_figure(found, path)
    from viz.commands.console import console
    from viz.study import print_study, to_json

    if json:
        typer.echo(json_module.dumps(to_json(found)))
    else:
        print_study(found, console())


def _list(json: bool, figure: str | None) -> None:
    if figure is not None:
        raise refused("--figure", figure, "given with the name of a study")
    if json:
        typer.echo(json_module.dumps(STUDIES))
        return
    from viz.commands.console import console
    from viz.study import print_studies

    print_studies(STUDIES, console())


def _checked(figure: str | None) -> Path | None:
    """The file to draw into, before anything is simulated."""
    from viz.sheet import FORMATS

    path = outputs.checked({"figure": figure}).get("figure")
    if path is not None and path.suffix.lower().removeprefix(".") not in FORMATS:
        raise refused("--figure", path.name, f"a file that ends in .{', .'.join(FORMATS)}")
    return path


def _simulated(name: str, gpu: Gpu, status: Status) -> Study:
    status.text = COMPILING if engine_needs_compiling() else "simulating"
    from sim.studies.catalog import run_study

    return run_study(name, gpu)
