"""Long kernels repeat themselves: replay the first bands of the raster and the last, add what lies between.

The engine pauses half a band into the kernel and a band later each time. Periods so cut hold the change from one band
to the next in their middle. Where the last two agree in time and DRAM bytes, the following bands are skipped, but for
the last, and counted at the rate of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from sim import records as rec
from sim.engine import NEVER, PAUSED

AGREEMENT = {("paused_fs",): 0.0025, ("hbm_read", "hbm_write"): 0.015, ("l2_read",): 0.05}
"""Relative difference of two periods, at most: in time, DRAM bytes, L2 bytes."""
MOST_ITERATIONS = 40_000_000
"""k-iterations after which two periods must do, whatever they say (some 5 s)."""
COUNTERS = rec.SCALARS.names[rec.SCALARS.names.index("hbm_read") : rec.SCALARS.names.index("waits") + 1]
"""What grows with the work done, `end_fs` aside: traffic, busy times, counts, waits."""
STORED = ("l2_write", "sm_write", "written", "n_stores")
Records = npt.NDArray[np.void]


def replay(run: Callable[[], int], scalars: Records, work: rec.Work) -> tuple[int, Records]:
    """Replay a kernel by `run`, which goes on with it until its end or `pause_at`. `scalars` is an array of one.

    Returns (code of the engine, scalars of the whole kernel). The latter are `scalars`, unless bands were skipped.
    """
    period = work.sample_items * work.k_per_split * work.cluster_size
    if period:
        scalars["pause_at"] = period // 2
    marks: list[Records] = []
    while (code := run()) == PAUSED:
        marks.append(scalars.copy())
        if scalars["skip_items"][0]:
            scalars["pause_at"] = NEVER
        else:
            scalars["pause_at"] += period
            if len(marks) >= 3 and (_agree(marks[-_steady(marks) - 1 :]) or scalars["n_mma"][0] >= MOST_ITERATIONS):
                _skip(scalars, work)
    return code, _whole(scalars, work, marks) if scalars["skip_items"][0] else scalars


def _steady(marks: Sequence[Records]) -> int:
    """Periods that must agree: two of the first two or three, later two thirds of all, lest noise agrees by chance."""
    return -(-2 * (len(marks) - 1) // 3)


def _agree(marks: Sequence[Records]) -> bool:
    """Whether the two periods between three marks took the same time and moved as much through DRAM and L2."""
    for names, limit in AGREEMENT.items():
        values = np.diff([sum(float(mark[name][0]) for name in names) for mark in marks])
        if np.ptp(values) > limit * values.mean():
            return False
    return True


def _skip(scalars: Records, work: rec.Work) -> None:
    """Skip whole bands from the next on, all but the last one or two waves, rounded up to whole waves, so that the last
    is as full as it would be."""
    band, wave = work.sample_items, work.n_agents
    first = -(-int(scalars["next_item"][0]) // band) * band
    n_bands = (work.n_items - first - max(band, 2 * wave)) // band
    if n_bands > 0:
        scalars["skip_at"] = first
        scalars["skip_items"] = -(-n_bands * band // wave) * wave


def _whole(scalars: Records, work: rec.Work, marks: Sequence[Records]) -> Records:
    """Scalars with what was skipped added at the rate of the last two periods, one of which is behind the skip; stores,
    which come in bursts at the ends of items, at their rate by items."""
    begin, end = marks[-3], marks[-1]
    n_skipped = int(scalars["skip_items"][0])
    share = n_skipped * work.k_per_split * work.cluster_size / float(end["n_mma"][0] - begin["n_mma"][0])
    whole = scalars.copy()
    for name in COUNTERS:
        whole[name] += np.rint((end[name] - begin[name]) * share).astype(np.int64)
    for name in STORED:
        whole[name] = scalars[name] + np.rint(scalars[name] * (n_skipped / (work.n_items - n_skipped))).astype(np.int64)
    for name in ("back", "hbm_write"):
        whole[name] = scalars[name] + whole["written"] - scalars["written"]
    whole["end_fs"] += round(float(end["paused_fs"][0] - begin["paused_fs"][0]) * share)
    whole["cycles_x1k"] += round((_cycles_x1k(end) - _cycles_x1k(begin)) * share)
    return whole


def _cycles_x1k(mark: Records) -> float:
    """SM cycles until a pause, x1024: those of closed windows and what has passed since."""
    return float(mark["cycles_x1k"][0] + 1024 * (mark["paused_fs"][0] - mark["win_start"][0]) / mark["fs_cycle"][0])
