"""`tilewalk llm` and `tilewalk kernels`: simulate once, write what was asked for, print one screen or a list."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hwmodels.errors import ConfigError
from viz.commands import outputs
from viz.commands.llm_options import KernelsOptions, LlmOptions
from viz.commands.llm_request import Request, request
from viz.commands.llm_words import in_options
from viz.commands.progress import COMPILING, Status, engine_needs_compiling, in_background, telling
from viz.commands.values import number

if TYPE_CHECKING:
    from sim.llm import LlmResult

LOWEST_PRICE, HIGHEST_PRICE = 0.001, 1_000_000


def llm(options: LlmOptions) -> None:
    """Print one screen. Raises `ConfigError`."""
    price = number("--price", options.price, LOWEST_PRICE, HIGHEST_PRICE)
    printed_only = not (options.json or options.quiet)
    if options.advise and options.quiet and not options.json:
        raise ConfigError("--advise with --quiet: must be one or the other, advice is not printed then (command line)")
    if options.inside is not None and options.trace is None:
        raise ConfigError(f"--inside {options.inside[:40]!r}: needs --trace, which shows it (command line)")
    asked = request(options)
    result = run(options, asked, advise=printed_only if options.advise is None else options.advise)
    from viz.commands.console import console
    from viz.llm import terminal
    from viz.terminal import write_lines

    if options.json or options.quiet:
        _tell(asked)
    if options.json:
        typer.echo(json.dumps(terminal.to_json(result, price, asked.pruned)))
    elif options.quiet:
        write_lines(console(), [terminal.time_line(result, price)])
    else:
        terminal.print_llm(result, console(), price, asked.notes)


def kernels(options: KernelsOptions) -> None:
    """List the kernels of the step that a breakdown would be of. Raises `ConfigError`."""
    asked = request(options)
    _tell(asked)
    with telling() as status, in_options(options):
        result = in_background(lambda: simulated(asked, status))
    step = result.shown
    from viz.commands.console import console
    from viz.llm.kernels import kernels_json, print_kernels, shown_only

    if options.json:
        typer.echo(json.dumps(kernels_json(step, every=options.every, pruned=asked.pruned)))
    else:
        print_kernels(step, console(), every=options.every, note=shown_only(result))


def _tell(asked: Request) -> None:
    """What was chosen for the GPU, on stderr."""
    for note in asked.notes:
        typer.echo(f"tilewalk: {note}", err=True)


def run(options: LlmOptions, asked: Request, *, advise: bool) -> LlmResult:
    """Check the files that were asked for, simulate, write them."""
    files = outputs.checked({name: getattr(options, name) for name in WRITERS})
    if "figure" in files:
        outputs.check_format(files["figure"])
    one_line = options.quiet and not options.json
    first, steady = not one_line, not one_line or options.price is not None
    with telling(options.quiet) as status:
        with in_options(options):
            result = in_background(lambda: simulated(asked, status, advise=advise, first=first, steady=steady))
        for name, path in files.items():  # in this thread, so that an interrupt leaves nothing half-written
            status.text, status.total = f"writing {path.name}", None
            WRITERS[name](result, path, options)
        return result


def simulated(
    asked: Request, status: Status, *, advise: bool = False, first: bool = False, steady: bool = False
) -> LlmResult:
    """The result; says when the engine is compiled first, and how far it is where there is something to count."""
    status.text = COMPILING if engine_needs_compiling() else "simulating"
    from sim.llm import simulate_llm

    def progress(what: str, done: int, total: int) -> None:
        if done or status.text != COMPILING:
            status.text, status.done, status.total = what, done, total if total > 1 else None

    what = asked.llm, asked.gpu, asked.options, asked.how
    return simulate_llm(*what, advise=advise, first_token=first, steady=steady, progress=progress)


def _write_figure(result: LlmResult, path: Path, options: LlmOptions) -> None:
    from viz.llm.sheet import save_figure

    save_figure(result, path)


def _write_trace(result: LlmResult, path: Path, options: LlmOptions) -> None:
    from viz.llm.trace import write_trace

    dropped = write_trace(result, path, inside=options.inside)
    if dropped:
        typer.echo(f"tilewalk: {path.name}: the latest {dropped:,} spans left out to bound its size", err=True)


WRITERS: dict[str, Callable[[LlmResult, Path, LlmOptions], None]] = {"figure": _write_figure, "trace": _write_trace}
