"""What a person sees on stderr while something takes longer than a second. stdout is never touched."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

FIRST_S = 1.0
"""Nothing is shown of what is done by then."""
POLL_S = 0.1
LINE_S = 10.0
"""Where stderr is no terminal: so often a line with how far it is."""
COMPILING = "compiling the engine (once, about 15 s)"

T = TypeVar("T")


@dataclass
class Status:
    """What is being done, changed by whoever does it."""

    text: str = "starting"
    done: int = 0
    total: int | None = None
    left_s: float | None = None
    """About how many seconds are left, where that can be told."""

    def line(self) -> str:
        """As one line without a bar."""
        counted = self.text if self.total is None else f"{self.text}, {self.done} of {self.total}"
        return counted if self.left_s is None else f"{counted}, about {_duration(self.left_s)} left"


def _duration(seconds: float) -> str:
    """To a minute, or to ten seconds below two."""
    return f"{seconds / 60:.0f} min" if seconds >= 115 else f"{max(10.0, round(seconds, -1)):.0f} s"


@contextlib.contextmanager
def telling(quiet: bool = False) -> Iterator[Status]:
    """Show the yielded status on stderr after a second, until the block ends. `quiet` shows nothing."""
    status, ended = Status(), threading.Event()
    teller = threading.Thread(target=_tell, args=(status, ended, sys.stderr), daemon=True)
    if not quiet and sys.stderr is not None:
        teller.start()
    try:
        yield status
    finally:
        ended.set()
        if teller.is_alive():
            teller.join()


def in_background(work: Callable[[], T]) -> T:
    """The value of `work()`, run in a thread: an interrupt is answered at once, even while compiled code runs there."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    while not wait([future], POLL_S).done:  # timed: a signal that comes just before an untimed wait would not end it
        pass
    return future.result()


def _tell(status: Status, ended: threading.Event, stream: TextIO) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody reads stderr: nothing to tell
        if not stream.isatty():
            _write_lines(status, ended, stream)
        elif not ended.wait(FIRST_S):
            _draw(status, ended, stream)


def _draw(status: Status, ended: threading.Event, stream: TextIO) -> None:
    """A bar that goes when it is done."""
    bar = _bar(stream)
    with bar:
        task = bar.add_task(status.text, total=status.total)
        while not ended.wait(POLL_S):
            bar.update(task, description=status.line(), completed=status.done, total=status.total)


def _bar(stream: TextIO) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn())
    return Progress(*columns, console=Console(file=stream), transient=True)


def _write_lines(status: Status, ended: threading.Event, stream: TextIO) -> None:
    """A line for each thing that lasts; where there is something to count, one more now and again."""
    text, told, waited_s, wait_s = "", "", 0.0, FIRST_S
    while not ended.wait(POLL_S):
        waited_s += POLL_S
        if status.text != text:
            text, waited_s, wait_s = status.text, 0.0, FIRST_S
        elif waited_s >= wait_s:
            waited_s, wait_s = 0.0, LINE_S
            if status.line() != told:
                told = status.line()
                stream.write(f"tilewalk: {told}\n")
                stream.flush()


def engine_needs_compiling() -> bool:
    """Whether numba has no compiled engine that is as new as its source. Imports the engine."""
    from sim import engine

    stats = getattr(engine.run, "stats", None)  # absent where compilation is switched off
    if stats is None or engine.run.signatures:
        return False
    source = Path(engine.run.py_func.__code__.co_filename)
    line = engine.run.py_func.__code__.co_firstlineno
    indexes = Path(stats.cache_path).glob(f"{source.stem}.run-{line}.*.nbi")
    return not any(index.stat().st_mtime >= source.stat().st_mtime for index in indexes)
