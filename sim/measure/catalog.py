"""Every table that can be measured."""

from __future__ import annotations

from sim.measure import attention, counters, elementwise, gemm, more, programs, stacks, sustained, tiles
from sim.measure.table import Table

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        *programs.TABLES,
        gemm.TABLE,
        tiles.TABLE,
        counters.TABLE,
        sustained.TABLE,
        attention.TABLE,
        elementwise.TABLE,
        stacks.TABLE,
        *more.TABLES,
    )
}
