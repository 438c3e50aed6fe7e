"""`tilewalk gemm` and `tilewalk explain`: simulate once, write what was asked for, print one screen or one walk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from viz import levels, terminal, words
from viz.commands import outputs
from viz.commands.options import GemmOptions
from viz.commands.progress import COMPILING, Status, engine_needs_compiling, in_background, telling
from viz.commands.request import Request, request

if TYPE_CHECKING:
    from rich.console import Console

    from sim.result import Result

Print = Callable[["Result", "Console"], None]


def gemm(options: GemmOptions) -> None:
    """Print one screen. Raises `ConfigError`."""
    result = run(options, advise=not (options.json or options.quiet))
    show(result, options, terminal.print_result, terminal.to_json(result))


def explain(options: GemmOptions) -> None:
    """Print one tile's walk; in JSON, as "steps" beside what `gemm` prints. Raises `ConfigError`."""
    from viz.explain import print_explanation, steps

    result = run(options, trace=True)
    walk = [{"title": step.title, "text": step.text} for step in steps(result)] if options.json else []
    show(result, options, print_explanation, {**terminal.to_json(result), "steps": walk})


def run(options: GemmOptions, *, trace: bool = False, advise: bool = False) -> Result:
    """Check everything, simulate, write the files that were asked for."""
    files = outputs.checked({name: getattr(options, name) for name in WRITERS})
    if "figure" in files:
        outputs.check_format(files["figure"])
    asked = request(options, trace=trace or bool(files.keys() & {"figure", "trace"}), advise=advise)
    with telling(options.quiet) as status:
        result = in_background(lambda: simulated(asked, status))
        for name, path in files.items():
            status.text = f"writing {path.name}"
            WRITERS[name](result, path)
    return result


def simulated(asked: Request, status: Status) -> Result:
    """The result; says when the engine is compiled first, and how far it is where there are kernels to choose from."""
    status.text = COMPILING if engine_needs_compiling() else "simulating"
    from sim import simulate

    def progress(done: int, total: int) -> None:
        status.text = "simulating"
        status.done, status.total = (done, total) if done < total else (0, None)

    return simulate(asked.gemm, asked.gpu, progress=progress, **asked.keywords)


def _write_figure(result: Result, path: Path) -> None:
    from viz.sheet import save_figure

    save_figure(result, path)


def _write_trace(result: Result, path: Path) -> None:
    from viz.trace import write_trace

    dropped = write_trace(result, path)
    if dropped:
        typer.echo(f"tilewalk: {path.name}: the latest {dropped:,} spans left out to bound its size", err=True)


def _write_result(result: Result, path: Path) -> None:
    from sim import save

    save(result, path)


WRITERS: dict[str, Callable[[Result, Path], None]] = {
    "figure": _write_figure,
    "trace": _write_trace,
    "save": _write_result,
}


def show(result: Result, options: GemmOptions, printed: Print, as_json: dict[str, Any]) -> None:
    """One JSON object, one line with the time, or what `printed` prints."""
    if options.json:
        typer.echo(json.dumps(as_json))
        return
    from viz.commands.console import console

    if options.quiet:
        terminal.show(console(), time_line(result))
    else:
        printed(result, console())


def time_line(result: Result) -> str:
    """What --quiet prints."""
    pieces = " with B in pieces" if levels.streamed(result) else ""
    end_to_end = words.time_text(result.end_to_end_s) + pieces
    return (
        f"{words.time_text(result.time_s)}, {words.flops_text(result.flops / result.time_s)}, end to end {end_to_end}"
    )
