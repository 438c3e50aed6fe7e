"""What becomes of errors: all that a user can cause is one line on stderr and exit code 2, an interrupt 130."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from typing import Any, NoReturn, cast

import typer
from typer.core import TyperCommand, TyperGroup

from hwmodels.errors import ConfigError

LONGEST = 1000
"""Characters of an error line; of longer ones the middle is left out."""

INTERRUPTED = 130
"""Exit code after an interrupt; typer returns it where one comes while it reads the command line."""

BadUsage = cast("type[Exception]", typer.BadParameter.__mro__[2])
"""What typer raises for a command line it cannot read; only a subclass of it is public in every release."""

_NEGATIVE = re.compile(r"-\.?\d.*", re.DOTALL)


class Commands(TyperGroup):
    """A group of commands whose errors are one line."""

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        """As typer's, with one line for each error and nothing left in the buffer of stdout."""
        if sys.stdout is None:
            leave(2, "error: standard output: closed, must be open")
        with one_line_errors():
            code = super().main(*args, **{**extra, "standalone_mode": False})
            flush()
        if code == INTERRUPTED:
            leave(INTERRUPTED, "interrupted")
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        """As typer's, before whose own answers to interrupts and closed pipes the errors are caught."""
        with one_line_errors():
            return super().invoke(ctx)


class SizedCommand(TyperCommand):
    """A command with sizes for arguments: a negative one is named, not taken for an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer's. Raises `ConfigError` for a negative number where an option was looked for."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except BadUsage as error:
            option = str(getattr(error, "option_name", ""))
            negative = next((text for text in given if _NEGATIVE.fullmatch(text) and text.startswith(option)), None)
            if option and negative:
                from viz.commands.values import SIZES

                raise ConfigError(f"size = {negative}: must be {SIZES} (command line)") from None
            raise


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn the errors that a user can cause into one line and the exit code."""
    try:
        yield
    except KeyboardInterrupt:
        leave(INTERRUPTED, "interrupted")
    except BrokenPipeError:
        _close_stdout()
        sys.exit(0)
    except BadUsage as error:
        leave(2, f"error: {_usage(error)}")
    except ConfigError as error:
        leave(2, f"error: {error}")
    except MemoryError as error:
        leave(2, f"error: not enough memory: {error or 'use a larger tile or a smaller problem'}")
    except OSError as error:
        _close_stdout()
        leave(2, f"error: {error.filename or 'standard output'}: {error.strerror or error}")


def leave(code: int, text: str) -> NoReturn:
    """End with one line on stderr."""
    with contextlib.suppress(OSError, ValueError):
        typer.echo(f"tilewalk: {one_line(text)}", err=True)
    sys.exit(code)


def one_line(text: str) -> str:
    """The text in one printable line of bounded length."""
    from hwmodels.refusals import printable

    line = printable(" ".join(text.split()))
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 200]} ... {line[-190:]}"


def flush() -> None:
    """Write out stdout now, while an error can still be told."""
    if sys.stdout is not None:
        sys.stdout.flush()


def _usage(error: Any) -> str:
    """typer's sentence, in lower case and with where to read more."""
    text = error.format_message().rstrip(".")
    ctx = getattr(error, "ctx", None)
    more = f" (see {ctx.command_path} --help)" if ctx is not None else ""
    return f"{text[:1].lower()}{text[1:]}{more}"


def _close_stdout() -> None:
    """Nothing more can be written there; let Python's own flush at the end go nowhere."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
