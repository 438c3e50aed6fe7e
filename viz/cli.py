"""The command `tilewalk`. The application is declared in `viz.commands.app`; here is only what must come before it.

Exit codes: 0, 2 for what a user can get wrong (one line on stderr), 130 for an interrupt. A defect still traces.
"""

from __future__ import annotations

import gc
import io
import os
import signal
import sys

GC_THRESHOLD = 100_000
"""Objects made between two searches for garbage. Loading makes 190,000 that stay and hardly any garbage: at Python's
700, the searches take a tenth of a short run."""


def main() -> None:
    """Run the command line and leave the process.

    The application is imported here, so that an interrupt while it loads is answered too. After an interrupt the
    process ends at once: compiled code of the engine may still run in a thread, and would have to be waited for.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # scripts start background jobs with interrupts ignored
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
        if leaving.code == 130:
            os._exit(130)
        raise
