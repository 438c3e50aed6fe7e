"""`tilewalk sweep`: every point of a study file into one table, and the pictures of it."""

from __future__ import annotations

import json as json_module
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, NamedTuple

import typer

from hwmodels.errors import ConfigError
from hwmodels.refusals import refusal
from viz.commands import outputs
from viz.commands.failures import INTERRUPTED, leave
from viz.commands.progress import COMPILING, Status, engine_needs_compiling, in_background, telling
from viz.commands.values import optional_integer
from viz.words import plural

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from sim.sweep.run import Counts
    from sim.sweep.study_file import Study

MOST_THREADS = 1024
ASKED_FROM = 100_000
"""Points above which --yes has to be said."""
MOST_POINTS = 10_000_000
PARQUET = ".parquet"
LAST_S = 5.0
"""What an interrupted run gets at most to end in order."""
KEPT = ".points"
"""Behind the table's name: the file of finished points."""


@dataclass(frozen=True)
class SweepOptions:
    """How a study is run, and what becomes of it; words as typed."""

    output: str | None
    threads: str | None
    dask: str | None
    cache: bool
    yes: bool
    json: bool


def sweep(file: str, options: SweepOptions) -> None:
    """Simulate what is not known yet, write table and pictures, print a summary. Raises `ConfigError`."""
    threads = optional_integer("--threads", options.threads, MOST_THREADS)
    if threads and options.dask not in (None, "local"):
        raise ConfigError("--threads with --dask: must be one of them, the cluster has its own (command line)")
    from sim.sweep.study_file import read_study

    study = read_study(Path(file))
    n_points = study.sweep.n_points
    if n_points > MOST_POINTS:
        raise ConfigError(f"{file}: {n_points:,} points, must be at most {MOST_POINTS:,}")
    if n_points > ASKED_FROM and not options.yes:
        raise ConfigError(f"{file}: {n_points:,} points, more than {ASKED_FROM:,}: needs --yes")
    output = _checked(file, study, options.output)
    run = _Running(study, output, threads, options)
    try:
        with telling() as status:
            status.text = "starting workers"
            with _executor(options.dask, threads) as executor:
                try:
                    done = in_background(lambda: run.go(status, executor))
                except KeyboardInterrupt:
                    run.end()
                    raise
    except KeyboardInterrupt:
        leave(INTERRUPTED, f"interrupted{run.told()}")
    _print(done, options.output or str(study.output), study, as_json=options.json)


def _checked(file: str, study: Study, given: str | None) -> Path:
    """Where the table goes, after it and the pictures were found to be files that can be written."""
    from sim.sweep.study_file import check_output
    from sim.sweep.table import check_parquet
    from viz.sheet import FORMATS

    output = outputs.writable("--output", given) if given is not None else _writable(file, "output", study.output)
    check_output("--output" if given is not None else f"{file}: output", output)
    if output.suffix.lower() == PARQUET:
        check_parquet()
    paths = [output]
    for i, picture in enumerate(study.pictures, 1):
        key = f"picture[{i}].file"
        if picture.path.suffix.lower().removeprefix(".") not in FORMATS:
            raise refusal(file, f"{key} = {picture.path.name!r}: must end in .{', .'.join(FORMATS)}")
        path = _writable(file, key, picture.path)
        if path in paths:
            raise refusal(
                file, f"{key} = {picture.path.name!r}: must be another file than the table and other pictures"
            )
        paths.append(path)
    return output


def _writable(file: str, key: str, path: Path) -> Path:
    """As `outputs.writable`, of a path in a file."""
    try:
        return outputs.writable(key, str(path))
    except ConfigError as error:
        raise refusal(file, str(error).removesuffix(" (command line)")) from None


class Done(NamedTuple):
    """What is told of a sweep at its end."""

    counts: Counts
    n_errors: int
    columns: tuple[str, ...]


class _Running:
    """One run of a study, and how far it is."""

    def __init__(self, study: Study, output: Path, threads: int | None, options: SweepOptions) -> None:
        self._study, self._output, self._threads, self._options = study, output, threads, options
        self._journal = output.with_name(output.name + KEPT)
        self._counts: Counts | None = None
        self._stop, self._ended = Event(), Event()

    def end(self) -> None:
        """Let `go`, in its thread, drop what its workers have not begun, while these are still there to be told."""
        self._stop.set()
        self._ended.wait(LAST_S)

    def go(self, status: Status, executor: Executor | None) -> Done:
        """Write table and pictures; the file of finished points goes when they are there."""
        try:
            return self._go(status, executor)
        finally:
            self._ended.set()

    def _go(self, status: Status, executor: Executor | None) -> Done:
        status.text = COMPILING if engine_needs_compiling() else "simulating"
        from sim.sweep.cache import Cache
        from sim.sweep.executors import DASK_IN_FLIGHT
        from sim.sweep.run import run_sweep
        from viz.files import replacing
        from viz.sweep import save_picture

        cache = Cache(tell=_note) if self._options.cache else None
        table = run_sweep(
            self._study.sweep,
            self._journal,
            executor=executor,
            threads=self._threads,
            in_flight=DASK_IN_FLIGHT if executor is not None else None,
            cache=cache,
            progress=self._progress(status),
            stop=self._stop,
        )
        status.text, status.total, status.left_s = f"writing {self._output.name}", None, None
        with replacing(self._output) as temporary:
            write = table.to_parquet if self._output.suffix.lower() == PARQUET else table.to_csv
            write(temporary)
        for picture in self._study.pictures:
            status.text = f"drawing {picture.path.name}"
            save_picture(table, picture)
        n_errors = table.n_errors
        table.discard()
        return Done(table.counts, n_errors, table.columns)

    def told(self) -> str:
        """What an interrupt leaves, behind its name."""
        if self._counts is None:
            return ""
        points = f"{self._counts.done:,} of {plural(self._counts.total, 'point')}"
        return f"; {points} are kept in {self._journal}; the same command goes on from there"

    def _progress(self, status: Status) -> Callable[[Counts], None]:
        began = time.monotonic()

        def progress(counts: Counts) -> None:
            self._counts = counts
            status.text, status.done, status.total = "simulating", counts.done, counts.total
            if counts.simulated:
                status.left_s = (time.monotonic() - began) / counts.simulated * (counts.total - counts.done)

        return progress


def _executor(dask: str | None, n_workers: int | None) -> AbstractContextManager[Executor | None]:
    """A cluster's; None for threads of this process."""
    if dask is None:
        return nullcontext()
    from sim.sweep import executors

    return executors.dask(dask, n_workers)


def _note(text: str) -> None:
    typer.echo(f"tilewalk: note: {text}", err=True)


def _print(done: Done, output: str, study: Study, *, as_json: bool) -> None:
    pictures = [str(picture.path) for picture in study.pictures]
    counts = done.counts
    if as_json:
        found = {"title": study.title, "points": asdict(counts), "errors": done.n_errors}
        typer.echo(json_module.dumps(found | {"table": output, "columns": done.columns, "pictures": pictures}))
        return
    told = [(counts.simulated, "simulated"), (counts.cached, "from the cache"), (counts.kept, "known already")]
    parts = ", ".join(f"{n:,} {what}" for n, what in told if n)
    typer.echo(f"{study.title}: {plural(counts.total, 'point')}{f', {parts}' if parts else ''}")
    if done.n_errors:
        typer.echo(f"Errors     {plural(done.n_errors, 'point')} could not be simulated; the column error says why")
    typer.echo(f"Table      {output}")
    for path in pictures:
        typer.echo(f"Picture    {path}")
