"""Long kernels repeat themselves: replay the first bands of the raster and the last, add what lies between.

The engine pauses half a band into the kernel and a band later each time. Periods so cut hold the change from one band
to the next in their middle. Where enough of them agree in time, DRAM reads and L2 reads, the bands that follow are
skipped, but for the last, and counted at the rate of the later half of all periods.

Where a wave keeps nothing of the wave before in L2, DRAM reads follow the rows and columns that waves touch, not the
items: a wave across two bands touches more. Which waves do changes slowly over the kernel, but is known beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from sim.engine import NEVER, PAUSED
from sim.records import SCALARS, Work
from sim.schedule.raster import tiles

TIME_AGREES, DRAM_AGREES, L2_AGREES = 0.0025, 0.015, 0.05
"""Relative difference between the two halves of the periods that agree, at most."""
REREAD = 0.05
"""How far DRAM reads may be from what waves touch to follow it, relative."""
LONG_AGREEMENT, MOST_ITERATIONS = 4_000_000, 20_000_000
"""k-iterations of CTAs over which agreement is enough, and after which none is waited for (some 2 s)."""
QUICK_WAVES, QUICK_AGREES = 3, 0.01
_NAMES = SCALARS.names or ()
BY_TIME = (*_NAMES[_NAMES.index("hbm_read") : _NAMES.index("waits") + 1], "end_fs", "cycles_x1k")
"""What grows as work goes on; the exceptions follow."""
BY_ITEMS = ("l2_write", "sm_write", "written", "n_stores")
"""Stores come in bursts at the ends of items, of which a period may hold one more or less."""
BY_READS = ("hbm_read", "filled", "fabric", "hbm_fs")
# What L2 takes in, it gives out again: back and hbm_write grow as written, clean_out as filled.
SUMMED = ("tensor_fs", "smem_fs", "port_fs", "l2_fs", "hbm_fs", "waits", "end_fs", "cycles_x1k")
"""Times of all SMs or slots together, and of the kernel: 132 SMs busy for 70 s are more femtoseconds than 63 bits hold.
What is replayed stays below (`TOO_LONG`), what is skipped is added in floating point."""
WHOLE = np.dtype(
    [
        (name, np.dtype((np.float64, field[0].shape)) if name in SUMMED else field[0])
        for name, field in (SCALARS.fields or {}).items()
    ]
)
"""`SCALARS` of a whole kernel of which some was skipped."""
Records = npt.NDArray[np.void]
Floats = npt.NDArray[np.float64]


def replay(run: Callable[[], int], scalars: Records, work: Work, quick: bool = False) -> tuple[int, Records]:
    """Replay a kernel by `run`, which goes on with it until its end or `pause_at`. `scalars` is an array of one.
    `quick`: a few waves that agree in time are enough.

    Returns (code of the engine, scalars of the whole kernel). The latter are `scalars`, unless bands were skipped.
    """
    if not work.sample_items:
        return run(), scalars
    touched = touched_bytes(work)
    marks: list[Records] = []
    period = work.sample_items * work.k_per_split * work.cluster_size
    scalars["pause_at"] = period // 2
    while (code := run()) == PAUSED:
        marks.append(_mark(scalars))
        scalars["pause_at"] += period
        if scalars["skip_items"]:
            scalars["pause_at"] = NEVER
        elif _enough(marks) if quick else _steady(marks, work, touched):
            _skip(scalars, work, _follow(*_reads(marks[-3:], work, touched)))
    return code, _whole(scalars, marks[(len(marks) - 1) // 2], marks[-1], work, touched) if scalars[
        "skip_items"
    ] else scalars


def _mark(scalars: Records) -> Records:
    """Scalars at a pause, with time and cycles until then."""
    mark = scalars.copy()
    mark["end_fs"] = mark["paused_fs"]
    mark["cycles_x1k"] += ((mark["paused_fs"] - mark["win_start"]) << 10) // mark["fs_cycle"]
    return mark


def touched_bytes(work: Work) -> Floats:
    """Bytes of A and B that the items of a wave touch, summed over the first 0, 1, ... waves."""
    item = np.arange(work.n_items)
    matrix, place = np.divmod(item, work.grid_m * work.grid_n)
    row, col = tiles(place, work.grid_m, work.grid_n, work.group, bool(work.raster_n))
    wave = item // work.n_agents
    total = np.zeros(wave[-1] + 2)
    row_bytes = work.cluster_m * work.block_m * work.a_dram_bytes * work.k_per_split / 256
    col_bytes = work.cluster_n * work.block_n * work.b_dram_bytes * work.k_per_split / 256
    for index, n_bytes in ((matrix * work.grid_m + row, row_bytes), (matrix * work.grid_n + col, col_bytes)):
        touched = np.unique(wave * (index.max() + 1) + index) // (index.max() + 1)
        total[1:] += np.bincount(touched) * n_bytes
    return np.cumsum(total)


def _due(touched: Floats, work: Work, n_items: float) -> float:
    """DRAM reads of the first `n_items`, if every wave reads all that it touches."""
    return float(np.interp(n_items / work.n_agents, np.arange(touched.size), touched))


def _items_done(mark: Records, work: Work) -> float:
    """Items done at a mark, by k-iterations."""
    return float(mark["n_mma"][0]) / (work.k_per_split * work.cluster_size)


def _reads(marks: Sequence[Records], work: Work, touched: Floats) -> tuple[Floats, Floats]:
    """DRAM reads between marks, nothing skipped, and what they would be if every wave read all that it touches."""
    due = [_due(touched, work, _items_done(mark, work)) for mark in marks]
    return np.diff([float(mark["hbm_read"][0]) for mark in marks]), np.diff(due)


def _follow(reads: Floats, due: Floats) -> bool:
    """Whether DRAM reads follow what waves touch."""
    return bool(abs(np.sum(reads) - np.sum(due)) <= REREAD * np.sum(due))


def _enough(marks: Sequence[Records]) -> bool:
    """Whether the last `QUICK_WAVES` took the same time, or twice as many went by."""
    times = np.diff([float(mark["end_fs"][0]) for mark in marks[-1 - QUICK_WAVES :]])
    return len(marks) > 2 * QUICK_WAVES or (len(times) == QUICK_WAVES and _level(times, QUICK_AGREES))


def _steady(marks: Sequence[Records], work: Work, touched: Floats) -> bool:
    """Whether the last two periods agree, or two thirds of all where these are more, lest noise agrees by chance; at
    least an eighth of the kernel or `LONG_AGREEMENT`, with L2 turned over before. After `MOST_ITERATIONS` what was
    found must do."""
    n_periods = len(marks) - 1
    least = min(work.n_items * work.k_per_split * work.cluster_size // 8, LONG_AGREEMENT)
    n_agree = max(2, -(-2 * n_periods // 3), least // (work.sample_items * work.k_per_split * work.cluster_size))
    if n_periods >= 2 and marks[-1]["n_mma"] >= MOST_ITERATIONS:
        return True
    if n_periods < n_agree:
        return False
    last = marks[-1 - n_agree :]
    turned_over = last[0]["clean_out"] + last[0]["back"] >= last[0]["used"].sum()
    return bool(turned_over) and _agree(last, work, touched)


def _agree(marks: Sequence[Records], work: Work, touched: Floats) -> bool:
    """Whether the periods between marks took the same time and read as much from DRAM and L2."""
    times, l2 = (np.diff([float(mark[name][0]) for mark in marks]) for name in ("end_fs", "l2_read"))
    reads, due = _reads(marks, work, touched)
    if _follow(reads, due):
        reads = reads / due
    limits = ((times, TIME_AGREES), (reads, DRAM_AGREES), (l2, L2_AGREES))
    return all(_level(values, limit) for values, limit in limits)


def _level(values: Floats, limit: float) -> bool:
    """Whether the means of both halves differ by no more than `limit`, relative, and single values by four times it."""
    first, second = np.array_split(values, 2)
    mean = values.mean()
    return bool(abs(first.mean() - second.mean()) <= limit * mean and np.ptp(values) <= 4 * limit * mean)


def _skip(scalars: Records, work: Work, by_waves: bool) -> None:
    """Skip as many items as whole bands have, rounded up to whole waves, so that the last is as full as it would be,
    but for a period and two waves: from the next wave on, or from the next band on where L2 keeps a band's rows."""
    band, wave = work.sample_items, work.n_agents
    step = wave if by_waves else band
    first = -(-int(scalars["next_item"][0]) // step) * step
    n_bands = (work.n_items - first - band - 2 * wave) // band
    if n_bands > 0:
        scalars["skip_at"] = first
        scalars["skip_items"] = -(-n_bands * band // wave) * wave


def _whole(scalars: Records, begin: Records, end: Records, work: Work, touched: Floats) -> Records:
    """Scalars with what was skipped added at the rate between two marks, the second of which is behind the skip."""
    first, n_skipped = int(scalars["skip_at"][0]), int(scalars["skip_items"][0])
    n_done = _items_done(end, work) - _items_done(begin, work)
    due_skipped = _due(touched, work, first + n_skipped) - _due(touched, work, first)
    due = _due(touched, work, _items_done(end, work) + n_skipped) - _due(touched, work, _items_done(begin, work))
    due -= due_skipped
    reads = float(end["hbm_read"][0] - begin["hbm_read"][0])
    by_reads = due_skipped / due if _follow(np.array(reads), np.array(due)) else n_skipped / n_done
    whole = scalars.astype(WHOLE)
    for name in BY_TIME:
        rate = by_reads if name in BY_READS else n_skipped / n_done
        whole[name] += np.rint((end[name] - begin[name]) * rate).astype(WHOLE[name].base)
    for name in BY_ITEMS:
        whole[name] = np.rint(scalars[name] * (work.n_items / (work.n_items - n_skipped))).astype(WHOLE[name])
    for name, source in (("back", "written"), ("hbm_write", "written"), ("clean_out", "filled")):
        whole[name] = scalars[name] + whole[source] - scalars[source]
    return whole
