"""Tables of measured kernels, written for tests."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def write_table(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    """Write rows of the same columns to `path`, which is returned."""
    rows = list(rows)
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path
