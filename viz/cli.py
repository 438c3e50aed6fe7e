"""The command `tilewalk`. The application is declared in `viz.commands.app`; here is only what must come before it.

Exit codes: 0, 2 for what a user can get wrong (one line on stderr), 130 for an interrupt, 143 and 129 where the process
was told to end or its terminal went away. A defect still traces.
"""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
from typing import Any

GC_THRESHOLD = 100_000
"""Objects made between two searches for garbage. Loading makes 190,000 that stay and hardly any garbage: at Python's
700, the searches take a tenth of a short run."""

ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals after which unfinished files are removed."""
AT_ONCE = (130, *(128 + number for number in ENDING))


def main() -> None:
    """Run the command line and leave the process.

    The application is imported here, so that an interrupt while it loads is answered too. After an interrupt the
    process ends at once: compiled code of the engine may still run in a thread, and would have to be waited for.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # scripts start background jobs with interrupts ignored
    _end_in_order()
    gc.set_threshold(GC_THRESHOLD)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files and sources may hold anything
    try:
        from viz.commands.app import app

        app(prog_name="tilewalk")
    except KeyboardInterrupt:
        print("tilewalk: interrupted", file=sys.stderr)  # noqa: T201, nothing else is loaded yet
        os._exit(130)
    except SystemExit as leaving:
        if isinstance(leaving.code, int) and leaving.code in AT_ONCE:
            os._exit(leaving.code)
        raise
    finally:
        gc.freeze()  # else Python searches all that was loaded once more as it ends: 0.4 s


def _end_in_order() -> None:
    """Let the signals that end a process raise SystemExit, so that what is half written is removed; those that the
    caller had ignored (nohup) stay ignored."""
    for number in ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _ended)


def _ended(number: int, _: Any) -> None:
    for each in ENDING:
        signal.signal(each, signal.SIG_IGN)  # a second one must not stop the clearing up
    raise SystemExit(128 + number)


if __name__ == "__main__":
    main()
