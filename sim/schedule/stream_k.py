"""Stream-K: the k-iterations of some tiles dealt out evenly among all agents, wherever that cuts a tile.

As CUTLASS 3 has it (PersistentTileSchedulerSm90StreamK with DecompositionMode::StreamK; the idea: Osama et al., PPoPP
2023). Whole waves of tiles but one go as they always do, last; what is left, one to two tiles an agent, comes first:
each agent gets a contiguous run of its k-iterations, from its last tile backwards. Ends of runs near the border of a
tile move onto it. Runs go in groups that walk over neighbouring tiles side by side, for L2. Of a tile in several parts
each but the last leaves its sums in a workspace in fp32, added to those of the parts before it, for which it waits; the
agent of the last part waits, reads the sums, and runs the epilogue.

No agent waits for ever. All of them run at once, and a part waits for the one before it in its tile alone. That is of
the run before, and of all tiles of that run the last, so that it is the first thing its agent does: what it may itself
wait for is again the first thing an agent of a lower number does, and the first run of a group begins with a tile,
which waits for nobody.

Not modelled: CUTLASS's heuristic, which falls back to whole tiles or to split-K where it expects more of them; tiles
added to make the order of tiles even; atomic additions in L2, which cost what plain stores of C do, ragged rows
included; partial sums that L2 could not keep when more are added to them; the traffic of asking; room for the workspace
(two waves of tiles at most).
No stream-K kernel was measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.records import ITEM, PART, Work
from sim.schedule.raster import Ints, Records, place, tiles

LEAST_ITERATIONS = 8
"""k-iterations of a part, at least, but where tiles have fewer (min_iters_per_sk_unit_)."""
MOST_GROUPS = 8
"""max_sk_groups_"""
NEVER = 2**63 - 1


def stream_tiles(n_tiles: int, n_k: int, n_agents: int) -> int:
    """Tiles that are dealt out by k-iterations: all but whole waves less one; none where there is too little of them
    for one run."""
    found = n_tiles - max(0, n_tiles // n_agents - 1) * n_agents
    return found if n_runs(found, n_k, n_agents) else 0


def n_runs(n_tiles: int, n_k: int, n_agents: int) -> int:
    """Agents that get a run of k-iterations of so many tiles."""
    return min(n_agents, n_tiles * n_k // LEAST_ITERATIONS)


def n_groups(n_tiles: int, n_k: int, runs: int, side: int) -> int:
    """Groups of runs: the most, up to the `side` tiles that follow one another, that divide runs and, if possible,
    tiles evenly and leave runs long enough."""
    fitting = [
        groups
        for groups in range(min(MOST_GROUPS, side), 1, -1)
        if runs % groups == 0 and n_tiles // groups * n_k // (runs // groups) >= LEAST_ITERATIONS
    ]
    even = [groups for groups in fitting if n_tiles % groups == 0]
    return (even or fitting or [1])[0]


@dataclass(frozen=True)
class Parts:
    """Parts of tiles, [n_parts] each, in the order of each tile's k-iterations."""

    agent: Ints
    tile: Ints
    """In the order of tiles, over all matrices."""
    k0: Ints
    nk: Ints


def parts(n_tiles: int, n_k: int, n_agents: int, side: int) -> Parts:
    """The first `n_tiles` tiles cut among agents; `side` as in `n_groups`."""
    runs = n_runs(n_tiles, n_k, n_agents)
    groups = n_groups(n_tiles, n_k, runs, side)
    found = []
    for group in range(groups):
        of_group = len(range(group, n_tiles, groups))
        borders = _borders(of_group * n_k, runs // groups, n_k)
        cuts = np.union1d(borders, np.arange(of_group + 1) * n_k)
        begin, size = cuts[:-1], np.diff(cuts)
        run = np.searchsorted(borders, begin, side="right") - 1
        found.append((run * groups + group, begin // n_k * groups + group, begin % n_k, size))
    return Parts(*(np.concatenate(each) for each in zip(*found, strict=True)))


def _borders(n_iterations: int, runs: int, n_k: int) -> Ints:
    """Where runs begin, and the last ends: evenly, the first ones an iteration longer; near a tile's border, on it."""
    run = np.arange(runs + 1)
    even = run * (n_iterations // runs) + np.minimum(run, n_iterations % runs)
    past = even % n_k
    up = (past > n_k - LEAST_ITERATIONS) & (past >= LEAST_ITERATIONS)
    return np.where(past < LEAST_ITERATIONS, even - past, np.where(up, even - past + n_k, even))


def cut(work: Work) -> Parts:
    """The parts of a kernel's tiles."""
    along, across = (work.grid_n, work.grid_m) if work.raster_n else (work.grid_m, work.grid_n)
    side = along if work.group >= along else across  # tiles that follow one another: along the raster, or the bands
    return parts(work.stream_tiles, work.n_k, work.n_agents, side)


def items(work: Work) -> tuple[Records, Records]:
    """The items of a stream-K kernel, [turns * n_agents] of `sim.records.ITEM`: what each agent does first, what each
    does second, and so on, a row below 0 where an agent has nothing more to do; and of each, `sim.records.PART`, with
    one more, of no item, whose sums are there."""
    some = cut(work)
    whole = np.arange(work.stream_tiles, work.n_items)
    place_in_line = whole - work.stream_tiles + n_runs(work.stream_tiles, work.n_k, work.n_agents)
    agent = np.concatenate([some.agent, place_in_line % work.n_agents])
    tile = np.concatenate([some.tile, whole])
    number = _turns(agent, np.where(tile < work.stream_tiles, -tile, tile)) * work.n_agents + agent
    each = np.zeros(tile.size, ITEM)
    matrix, of_matrix = np.divmod(tile, work.grid_m * work.grid_n)
    place(each, work, matrix, *tiles(of_matrix, work.grid_m, work.grid_n, work.group, bool(work.raster_n)))
    each["nk"] = work.n_k
    each["k0"][: some.k0.size], each["nk"][: some.nk.size] = some.k0, some.nk
    found = np.zeros(-(-(number.max() + 1) // work.n_agents) * work.n_agents, ITEM)
    found["row"] = -1
    found[number] = each
    return found, _parts(work, some, number[: some.tile.size], found.size)


def most_iterations(work: Work) -> int:
    """k-iterations of the agent that has most, whole tiles included, of which each agent has as many."""
    some, n_whole = cut(work), (work.n_items - work.stream_tiles) // work.n_agents
    return int(np.bincount(some.agent, some.nk).max()) + n_whole * work.n_k


def _turns(agent: Ints, rank: Ints) -> Ints:
    """When each agent does each of its things, from 0 on: in order of `rank`."""
    order = np.lexsort((rank, agent))
    turn = np.empty_like(order)
    turn[order] = np.arange(order.size) - np.searchsorted(agent[order], agent[order])
    return turn


def _parts(work: Work, some: Parts, number: Ints, n_items: int) -> Records:
    """Where the sums of parts of tiles meet, and which part comes before; `number`: of the item that is each."""
    found = np.zeros(n_items + 1, PART)
    found["at"][:-1], found["after"] = NEVER, -1
    workspace = work.n_chunks - work.stream_tiles * work.cluster_size
    found["sums"][number] = np.where(some.nk < work.n_k, workspace + some.tile * work.cluster_size, 0)
    order = np.lexsort((some.k0, some.tile))
    follows = some.k0[order][1:] > 0
    found["after"][number[order][1:][follows]] = number[order][:-1][follows]
    return found
