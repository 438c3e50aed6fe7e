"""The order in which work items walk over C, as the engine's `tile_of` has it, for many items at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def tiles(items: Ints, grid_m: int, grid_n: int, group: int, raster_n: bool) -> tuple[Ints, Ints]:
    """Rows and columns, in cluster tiles, of work items of one matrix: bands of `group` along m, or n if `raster_n`."""
    rows, columns = (grid_n, grid_m) if raster_n else (grid_m, grid_n)
    group = min(group, rows)
    band, rest = np.divmod(items, group * columns)
    size = np.minimum(rows - band * group, group)
    row, column = band * group + rest % size, rest // size
    return (column, row) if raster_n else (row, column)
