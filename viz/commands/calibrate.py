"""`tilewalk calibrate`: constants fitted to tables of measured kernels, a GPU file that holds them, and a report."""

from __future__ import annotations

import json as json_format
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hwmodels.errors import ConfigError
from hwmodels.folders import list_gpus
from hwmodels.measured import measured_path
from viz.commands import outputs
from viz.commands.progress import COMPILING, Status, engine_needs_compiling, in_background, telling
from viz.commands.values import integer, refused
from viz.files import replacing

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from sim.calibration import Calibration, Outcome

MOST_FOLDS = 20
SHIPPED = "gemm"
"""A table by which the folder of a shipped GPU's tables is found."""


def calibrate(
    tables: Sequence[str],
    gpu: str,
    *,
    output: str | None,
    report: str | None,
    every_row: bool,
    folds: str,
    quiet: bool,
    json: bool,
) -> None:
    """Fit, write the GPU file and the report, and say what was found. Raises `ConfigError`."""
    n_folds = _folds(folds)
    path = outputs.writable("--output", output or f"{Path(gpu).name.removesuffix('.toml')}_calibrated.toml")
    _check_suffix(path)
    folder = _report_folder(report or f"{path.with_suffix('')}_report")
    state = path.with_name(f"{path.name}.state")
    command = _command(tables, gpu, every_row, n_folds)
    with telling(quiet) as status:
        status.text = COMPILING if engine_needs_compiling() else "reading tables"
        calibration = _prepared(tables or [str(shipped_folder(gpu))], gpu, every_row, n_folds, command, state, path)
        if calibration.resumed and not quiet:
            typer.echo(f"tilewalk: {_resumed(calibration.resumed, state)}", err=True)
        outcome = _run(calibration, status)
        status.text, status.total, status.left_s = f"writing {path.name}", None, None
        _write(outcome, path, folder)
        calibration.forget()
    if json:
        typer.echo(json_format.dumps(outcome.to_dict()))
    elif quiet:
        typer.echo(str(path))
    else:
        from viz.commands.console import console

        print_outcome(outcome, path, folder, console())


def shipped_folder(gpu: str) -> Path:
    """The folder of tables that come with the package for this GPU. Raises `ConfigError` where there is none."""
    if gpu not in list_gpus():
        raise ConfigError(f"tables: none given for {gpu}; name tables of kernels measured on it, or their folder")
    return measured_path(gpu, SHIPPED).parent


def _folds(text: str) -> int:
    n_folds = integer("--folds", text, MOST_FOLDS)
    if n_folds < 2:
        raise refused("--folds", text, f"an integer from 2 to {MOST_FOLDS}")
    return n_folds


def _check_suffix(path: Path) -> None:
    if path.suffix != ".toml":
        raise refused("--output", str(path), "a file that ends in .toml, as GPU files do")


def _report_folder(text: str) -> Path:
    """The folder that the report will be in. Raises `ConfigError` where it could not be made or written to."""
    try:
        folder = Path(text)
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
            return folder
    except (OSError, ValueError) as error:
        raise refused("--report", text, f"the name of a folder ({error})") from None
    raise refused("--report", text, "a folder that can be written")


def _command(tables: Sequence[str], gpu: str, every_row: bool, n_folds: int) -> str:
    """The command line as it is quoted in the GPU file, without where it wrote to."""
    words = ["tilewalk", "calibrate", "--gpu", gpu, *tables]
    words += ["--all"] if every_row else []
    return shlex.join([*words, *(["--folds", str(n_folds)] if n_folds != 5 else [])])


def _prepared(
    tables: Sequence[str], gpu: str, every_row: bool, n_folds: int, command: str, state: Path, path: Path
) -> Calibration:
    """The calibration with its tables read. Raises `ConfigError`."""
    from sim.calibration import Calibration
    from sim.calibration.files import inherited
    from sim.calibration.run import Request

    inherited(gpu, path)  # refuses to write over the GPU's own file
    paths = tuple(Path(text) for text in tables)
    return Calibration(Request(gpu, paths, every_row, n_folds, command=command), state)


def _resumed(found: str, state: Path) -> str:
    if found == "continued":
        return f"continuing from {state.name}"
    return f"starting anew: {found if found != 'unreadable' else 'it is unreadable'} since {state.name} was written"


def _run(calibration: Calibration, status: Status) -> Outcome:
    """The outcome; says how far it is. An interrupt saves what was simulated."""

    def told(text: str, left_s: float | None) -> None:
        status.text, status.left_s = text, left_s

    try:
        return in_background(lambda: calibration.run(told))
    except BaseException:
        calibration.stop()
        raise


def _write(outcome: Outcome, path: Path, folder: Path) -> None:
    """The report, figures first, then the GPU file."""
    from sim.calibration.files import gpu_toml, markdown
    from viz.calibration import FIGURES

    folder.mkdir(parents=True, exist_ok=True)
    for stem, draw in FIGURES.items():
        with replacing(folder / f"{stem}.png") as temporary:
            draw(outcome).savefig(temporary, format="png")
    for target, text in ((folder / "report.md", markdown(outcome, FIGURES)), (path, gpu_toml(outcome, path))):
        with replacing(target) as temporary:
            temporary.write_text(text, encoding="utf-8")


def print_outcome(outcome: Outcome, path: Path, folder: Path, console: Console) -> None:
    """Constants, errors, and what to beware of."""
    from rich.text import Text

    from sim.calibration.files import constants_table, errors_table, warnings
    from viz.terminal import show

    show(console, Text(f"{outcome.label}: {len(outcome.constants)} constants fitted", style="bold"), outcome.drawn)
    for head, rows in (constants_table(outcome), errors_table(outcome)):
        if rows:
            show(console, "", _table(head, rows))
    show(console, "", *map(Text, warnings(outcome)))
    if outcome.left:
        show(console, Text(f"{len(outcome.left)} constants were left as they are; the report says why."))
    show(console, "", Text(f"GPU file {_shown(path)}, report {_shown(folder / 'report.md')}"))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for name in head:
        table.add_column(name, overflow="fold", vertical="bottom")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _shown(path: Path) -> str:
    """The path as short as it can be typed from here."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else str(path)
