"""The console that commands print on."""

from __future__ import annotations

import os

from rich.console import Console

PIPE_COLUMNS = 100


def console() -> Console:
    """stdout as wide as its terminal; where there is none and COLUMNS does not say, 100 columns."""
    made = Console(highlight=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = PIPE_COLUMNS
    return made
