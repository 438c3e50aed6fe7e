"""Which configurations are worth their cost: those that none beats in time and in what they take, both."""

from __future__ import annotations

from collections.abc import Sequence

from hwmodels.errors import ConfigError
from sim.tile_rows import TileRow

AGAINST = {"smem": "smem_bytes", "registers": "registers", "l2": "l2_bytes", "energy": "energy_j"}
"""What time is weighed against -> the field of `TileRow`: shared memory and registers of a CTA, L2 traffic, joules."""


def front(rows: Sequence[TileRow], against: str) -> tuple[TileRow, ...]:
    """The Pareto front of time against one of `AGAINST`, fastest first: each takes less of it than all faster ones.

    Of equal ones the first of `rows`. Raises ConfigError for what time is not weighed against.
    """
    if against not in AGAINST:
        raise ConfigError(f"against = {against!r}: must be one of {', '.join(AGAINST)} (Pareto front)")
    name, least, found = AGAINST[against], float("inf"), list[TileRow]()
    for each in sorted(rows, key=lambda each: (each.time_s, getattr(each, name))):
        if getattr(each, name) < least:
            least = getattr(each, name)
            found.append(each)
    return tuple(found)
