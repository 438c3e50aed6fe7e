"""From the engine's activity rows to windows of one width, in which no resource is over 100 % busy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sim.records import Machine, Work
from sim.result import WINDOW_FIELDS, Windows

Table = npt.NDArray[np.float64]
SUMS = slice(0, 5)
MEANS = slice(5, len(WINDOW_FIELDS))
START, END = len(WINDOW_FIELDS), len(WINDOW_FIELDS) + 1
"""Columns of an engine row: `WINDOW_FIELDS`, then when it began and ended (fs)."""


def even_windows(rows: Table, machine: Machine, work: Work) -> Windows:
    """As many windows as there are `rows`, of equal width. Sums over them are those over the rows.

    A row ends at the first event behind its nominal end and counts bytes when they are asked for. Here each resource
    serves them in that order at its own rate, and what is left over waits for the next window.
    """
    n = len(rows)
    width_fs = max(1, -(-int(rows[-1, END]) // n))
    totals = rows[:, : len(WINDOW_FIELDS)].copy()
    totals[:, MEANS] *= (rows[:, END] - rows[:, START])[:, None]
    edges = np.arange(n + 1, dtype=np.float64) * width_fs
    even = _split(totals, np.concatenate([[0.0], rows[:, END]]), edges)
    even[:, MEANS] /= width_fs
    for columns, cost_fs, capacity_fs in _servers(machine, work, width_fs):
        even[:, columns] = _served(even[:, columns], np.array(cost_fs), capacity_fs)
    return Windows(width_fs, even)


def _servers(machine: Machine, work: Work, width_fs: int) -> list[tuple[slice, list[float], float]]:
    """Columns, time each unit of them takes (fs), and what one window holds of that: HBM, L2, tensor cores."""
    hbm = [machine.hbm_read_fs_per_kib * work.hbm_x256 / 2**18, machine.hbm_write_fs_per_kib / 2**10]
    l2_fs = machine.l2_fs_per_kib / 2**10 / machine.n_sides
    l2 = [l2_fs, l2_fs * work.c_weight_x256 * work.c_cost_x256 / 2**16]
    return [
        (slice(0, 2), hbm, float(width_fs)),
        (slice(2, 4), l2, float(width_fs)),
        (slice(4, 5), [1.0], float(width_fs * machine.n_sm)),
    ]


def _split(totals: Table, marks: Table, edges: Table) -> Table:
    """Redistribute rows between `marks` over the intervals between `edges`, evenly inside a row."""
    sums = _running(totals)
    at_edges = np.stack([np.interp(edges, marks, column) for column in sums.T], axis=1)
    return np.diff(at_edges, axis=0)


def _served(asked: Table, cost_fs: Table, capacity_fs: float) -> Table:
    """What a first-come server gets done in each window of `asked[n_windows, n_kinds]`.

    What it has not done when the last window ends is put as late as there is room; only a server asked for more than
    it can do in all windows together ends above its capacity, in the first of them.
    """
    sums = _running(asked)
    work = sums @ np.maximum(cost_fs, 1e-6)  # a cost of nothing still keeps its place in the queue
    most = np.arange(len(work)) * capacity_fs
    done = most + np.minimum.accumulate(work - most)
    done = np.maximum(done, work[-1] - most[::-1])
    done[0] = 0.0
    return np.diff(np.stack([np.interp(done, work, column) for column in sums.T], axis=1), axis=0)


def _running(rows: Table) -> Table:
    """Running sums, from 0."""
    return np.concatenate([np.zeros((1, rows.shape[1])), np.cumsum(rows, axis=0)])
