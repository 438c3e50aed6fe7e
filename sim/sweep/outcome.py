"""What became of one point, and as one line of text: the same for the file of finished points and for the cache."""

from __future__ import annotations

import json
import zlib
from typing import Any, NamedTuple

from sim.cases import LEVELS, Figures


class Outcome(NamedTuple):
    """Figures of a point as the table shows them, or why there are none."""

    time_s: float | None = None
    energy_j: float | None = None
    tokens_done: int | None = None
    """Read or generated, of all sequences; 0 for a GEMM."""
    limiter: str | None = None
    hbm_bytes: int | None = None
    l2_bytes: int | None = None
    sm_bytes: int | None = None
    smem_bytes: int | None = None
    tiles: str | None = None
    """The kernel of the product; of a model, those of all its products."""
    error: str | None = None


def outcome_of(figures: Figures) -> Outcome:
    """Of a point that was simulated. Bytes are both ways."""
    hbm, l2, sm, smem = (int(figures.bytes[level]) for level in LEVELS)
    names = figures.tile_names()
    tiles = (
        next(iter(names.values())) if len(names) == 1 else "; ".join(f"{key}: {name}" for key, name in names.items())
    )
    return Outcome(
        float(figures.time_s), float(figures.energy_j), int(figures.tokens), figures.limiter, hbm, l2, sm, smem, tiles
    )


def to_line(digest: str, outcome: Outcome) -> bytes:
    """As JSON, with the checksum of what was found."""
    found = json.dumps(outcome)
    return f'{{"point": "{digest}", "crc32": {zlib.crc32(found.encode())}, "found": {found}}}\n'.encode()


def from_line(line: bytes) -> tuple[str, Outcome] | None:
    """(digest, outcome) of a whole and unharmed line; None of any other."""
    try:
        read: dict[str, Any] = json.loads(line)
        found = read["found"]
        if zlib.crc32(json.dumps(found).encode()) != read["crc32"]:
            return None
        return str(read["point"]), Outcome(*found)
    except (ValueError, TypeError, KeyError):
        return None
