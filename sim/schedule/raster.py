"""The work items of a kernel: which part of C each is, which k-iterations it does, and the order they are taken in."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sim.records import ITEM, Work

Ints = npt.NDArray[np.signedinteger[Any]]
Records = npt.NDArray[np.void]


def tiles(items: Ints, grid_m: int, grid_n: int, group: int, raster_n: bool) -> tuple[Ints, Ints]:
    """Rows and columns, in cluster tiles, of work items of one matrix: bands of `group` along m, or n if `raster_n`."""
    rows, columns = (grid_n, grid_m) if raster_n else (grid_m, grid_n)
    group = min(group, rows)
    band = items // (group * columns)
    rest = items - band * (group * columns)
    column = rest // group  # by one number: several times as fast as by an array of them
    row = rest - column * group
    short = items >= rows // group * group * columns  # the last band, of fewer rows
    if short.any():
        column[short], row[short] = np.divmod(rest[short], rows % group)
    row += band * group
    return (column, row) if raster_n else (row, column)


def steps(work: Work) -> tuple[Ints, Ints]:
    """The first k-iteration and the number of them, [splits, grid_m]: of every slice, all, or of attention those that
    a row of items sees: two of each block of keys, the last block first."""
    split, row = np.arange(work.splits)[:, None], np.arange(work.grid_m)[None, :]
    first, stop = split * work.k_per_split + 0 * row, np.minimum(work.n_k, (split + 1) * work.k_per_split) + 0 * row
    if work.see_block:
        last = np.minimum(work.see_keys, work.see_last + row * work.see_step)
        seen = np.maximum(0, work.see_first + row * work.see_step) // work.see_block
        first = np.maximum(first, work.n_k - 2 * -(-last // work.see_block))
        stop = np.minimum(stop, work.n_k - 2 * seen)
    return first, np.maximum(0, stop - first)


def items(work: Work) -> Records:
    """All items in the order they are numbered, [n_items] of `sim.records.ITEM`: slice by slice, in each matrix by
    matrix, in each as `tiles` walks. Numbers of chunks must fit 32 bits (`sim.kernel.CHUNK_LIMIT`)."""
    n_tiles = work.grid_m * work.grid_n
    split, matrix, tile = (np.arange(n, dtype=np.int32) for n in (work.splits, work.batch, n_tiles))
    row, column = tiles(tile, work.grid_m, work.grid_n, work.group, bool(work.raster_n))
    first, number = steps(work)
    seen = row if work.see_block else slice(1)
    found = np.empty((work.splits, work.batch, n_tiles), ITEM)
    place(found, work, matrix[:, None], row, column)
    found["k0"], found["nk"] = first[:, None, seen], number[:, None, seen]
    if work.splits > 1:
        found["c"] += split[:, None, None] * (work.batch * n_tiles * work.cluster_size)
    return found.reshape(-1)


def place(found: Records, work: Work, matrix: Ints, row: Ints, column: Ints) -> None:
    """Set where items lie in C, in tiles, and their first chunks of A, B and C, from their matrix of the batch and
    their row and column in cluster tiles."""
    rows, columns = work.grid_m * work.cluster_m, work.grid_n * work.cluster_n
    row, column = row * work.cluster_m, column * work.cluster_n
    found["row"], found["col"] = row, column
    found["a"] = (matrix * rows + row) * (1 if work.a_once else work.n_k)
    found["b"] = (matrix // work.b_share * columns + column) * work.n_k + work.first_b
    found["c"] = work.first_c + (matrix * rows + row) * columns + column
