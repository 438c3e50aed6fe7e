"""The engine's arguments: what the hardware is, what the kernel does, and the records its state is kept in.

`Machine` and `Work` are read only. They and the state travel to the engine as numpy records, which numba passes as
one pointer (as tuples of arrays, each event took 15 times as long).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

N_WAITS = 8
MAX_STAGES = 32
MAX_GPCS = 64
MAX_SIDES = 2


class Machine(NamedTuple):
    """What the hardware is, as integers. Rates are fs (or 1/1024 cycles) for 1 KiB; built by `sim.machine`."""

    n_sm: int
    n_gpc: int
    n_sides: int
    gpc_side: Ints
    """L2 partition of each GPC."""
    l2_side_bytes: int
    l2_fs_per_kib: int
    """Of one partition."""
    l2_write_weight_x256: int
    l2_cycles: int
    far_cycles: int
    hbm_read_fs_per_kib: int
    hbm_write_fs_per_kib: int
    hbm_mixed_fs_per_kib: int
    """Of a write among reads: what a copy takes beyond its reads."""
    port_x1k_per_kib: int
    """1/1024 SM cycles for 1 KiB into one SM."""
    store_x1k_per_kib: int
    """1/1024 SM cycles for 1 KiB out of one SM."""
    gpc_fs_per_kib: int
    """Of 1 KiB from L2 into one GPC: at L2's clock, which stays as it is when that of the SMs falls (triton kernels of
    counters.csv read up to 5,263 B a cycle of 1,781 MHz, more than all ports together pass in one of 1,980)."""
    l2_jitter_cycles: int
    """Width of what L2 takes more or less than its mean to answer, for all whose requests merged, and of what its data
    take to get into each SM."""
    launch_fs: int
    """From the launch of one CTA or cluster of a grid to the next."""
    idle_mhz: int
    tensor_mhz: int
    """By how much the clock falls with busy tensor cores: by `soon_mhz` at once, by all of it `late_fs` after the
    kernel's start."""
    soon_mhz: int
    late_fs: int
    fixed_fs_per_cycle: int
    """> 0: the clock is held there."""
    window_fs: int


class Work(NamedTuple):
    """What one kernel does, as integers: the same set for every family. Built by `sim.schedule`."""

    n_agents: int
    cluster_size: int
    spare_mhz: int
    """Clock gained as most SMs idle."""
    exclusive: int
    """1: no two agents share an SM, so a ready tile may start its MMA without an event of its own."""
    persistent: int
    static: int
    """1: the CTAs of a persistent kernel know all their tiles beforehand; 0: they count, or have one each."""
    pingpong: int
    n_items: int
    grid_m: int
    grid_n: int
    cluster_m: int
    cluster_n: int
    raster_n: int
    group: int
    splits: int
    n_k: int
    k_per_split: int
    n_chunks: int
    """Chunks are numbered A, B, C; `first_b`, `first_c` begin the second and third."""
    first_b: int
    first_c: int
    rows_a: int
    rows_b: int
    batch: int
    block_m: int
    block_n: int
    stages: int
    depth: int
    """Loads in flight at most."""
    a_l2_bytes: int
    """Bytes one row piece (one row of one chunk) takes from L2, x256."""
    b_l2_bytes: int
    a_dram_bytes: int
    b_dram_bytes: int
    a_sm_bytes: int
    """Bytes of a whole chunk as an SM receives it."""
    b_sm_bytes: int
    a_split_x256: int
    """Fraction of a chunk's rows that lie in two lines: they never merge."""
    b_split_x256: int
    last_k_x256: int
    """Fraction of a chunk that the last k-iteration reads."""
    wrap: int
    """1: rows past the matrix's edge are asked for too (Triton reads others, TMA boxes are whole)."""
    hbm_x256: int
    """Time of a read in units of its time in long rows, x256: rows opened for short runs cost more."""
    a_hbm_fs: int
    """Extra latency of a chunk that comes from HBM: the slowest of its lines."""
    b_hbm_fs: int
    c_l2_bytes: int
    """Bytes one row of a C tile writes, x256."""
    c_cost_x256: int
    """Time of a store over that of as many bytes in whole sectors."""
    c_weight_x256: int
    """L2 time of a byte stored, a byte read being 1."""
    c_read_bytes: int
    """Bytes one row of a C tile's residual reads, x256."""
    mma_x16: int
    """Tensor-core cycles of one iteration of one CTA, x16."""
    mma_smem_x16: int
    fill_smem_x16: int
    epi_smem_x16: int
    smem_bytes_per_mma: int
    spill_bytes: int
    """Registers of one CTA that go to local memory in every k-iteration and come back; of these, from L2:"""
    spill_read_bytes: int
    floor_x16: int
    start_cycles: int
    restart_cycles: int
    """From the end of one CTA to the start of the next in its slot."""
    barrier_cycles: int
    drain_cycles: int
    turn_x256: int
    """Part by which a wait for tensor cores or shared memory that another CTA holds comes out longer or shorter."""
    issue_cycles: int
    reorder_x256: int
    """Memory requests that come while a stage waits for memory and are served before it: this part of them, in the mean
    of the latest CTA of a cluster."""
    fill_cycles: int
    """Between two stages of a ring that fills; 0: all are asked for at once."""
    latency_cycles: int
    """Of a load instruction beyond L2's own latency (TMA)."""
    epilogue_cycles: int
    """Before a tile's stores."""
    fused_cycles: int
    """Beside them, at least."""
    end_cycles: int
    """Of a CTA's last item, on top."""
    merge_cycles: int
    """A GPC's request merges with one whose data L2 does not have yet, or that it sent no more than this before."""
    scatter_cycles: int
    """Width of the order in which the threads of CTAs in step ask for the lines of a chunk."""
    sample_items: int
    """0: simulate everything; else the period whose repetition is looked for."""
    # Attention, whose A is Q and whose B are K and V in turn, a block of keys taking two k-iterations, the last first.
    a_once: int = 0
    """1: A has one chunk an item, which comes with its first k-iteration."""
    b_share: int = 1
    """Matrices of the batch that multiply with the same B."""
    n_short: int = 0
    """> 0: as many k-iterations from the first on are short ones, in place of the last."""
    ahead: int = 0
    """1: an iteration's loads are issued as the one before it begins, not when it is done."""
    beside_x16: int = 0
    """Cycles of one iteration in which an SM's tensor cores wait for other instructions of the same warps, x16."""
    n_masked: int = 0
    """First k-iterations of an item that take longer, as single scores are masked there, by:"""
    masked_x16: int = 0
    see_block: int = 0
    """> 0: rows of items see some of the keys, which come in blocks of as many: up to `see_last` and `see_step` more
    from row to row, `see_keys` at most, and from `see_first` on, as many more from row to row."""
    see_keys: int = 0
    see_last: int = 0
    see_first: int = 0
    see_step: int = 0
    # Stream-K (`sim.schedule.stream_k`).
    stream_tiles: int = 0
    """Cluster tiles, the first ones, whose k-iterations are dealt out evenly among agents, cut at any of them."""
    part_bytes: int = 0
    """Sums that a CTA leaves of a tile of which another does the last k-iterations."""


def _record(names: str, *arrays: tuple[str, str, int], places: str = "") -> np.dtype[np.void]:
    """Record type: int64 fields by name, places in arrays, then fixed arrays (name, type, length). `np.record`, so that
    the same source runs with JIT off; a name that is an attribute of np.record would hide its field.

    Places are unsigned, as numba asks of every signed one whether it counts from the end; of 32 bits, as 64 unsigned
    ones and an int64 would make a float.
    """
    fields: list[Any] = [*((name, "i8") for name in names.split()), *((name, "u4") for name in places.split())]
    layout = np.dtype([*fields, *((name, kind, (n,)) for name, kind, n in arrays)], align=True)
    return np.dtype((np.record, layout))


MACHINE = _record(" ".join(name for name in Machine._fields if name != "gpc_side"))
WORK = _record(" ".join(Work._fields))
SCALARS = _record(
    "bits fs_cycle hbm_free hbm_reading next_item n_events end_fs cycles_x1k pause_at paused_fs skip_at skip_items "
    "n_spans spans_lost active active_at "
    "win_start win_end win_width n_win win_tensor win_l2r win_l2w win_hbmr win_hbmw win_active "
    "hbm_read hbm_write l2_read l2_write sm_read sm_write fabric coalesced n_access n_hit n_merged n_miss n_coalesced "
    "filled written clean_out back overwritten tensor_fs smem_fs port_fs l2_fs hbm_fs n_mma n_loads n_stores "
    "n_hbm_read n_hbm_write n_fabric",
    ("waits", "i8", N_WAITS),
    ("used", "i8", MAX_SIDES),
    ("l2_free", "i8", MAX_SIDES),
    ("gpc_free", "i8", MAX_GPCS),
)
"""Scalars, servers shared by SMs, and counters (bytes unless named n_ or _fs)."""
AGENT = _record(
    "number phase next_phase next_at filled fill_at noise traced begun issue_free epi0 epi1 c_k c_k0 c_nk c_item c_j "
    "p_item p_k p_nk p_k0 p_a p_b p_rows_a p_rows_b p_j",
    ("ready", "i8", MAX_STAGES),
    ("queued", "i8", MAX_STAGES),
    ("served", "i8", MAX_STAGES),
    ("queue", "i8", MAX_STAGES + 2),
    ("why", "u1", MAX_STAGES),
    places="sm gpc side c_slot p_slot",
)
"""One agent: its next event's phase, and the phase and time of the one put off while a stage of its ring is due; stages
asked for since it began to fill the ring less those used, and when the next is due; c_ is its consumer's position
(k-iteration, first of the item, iterations, item, items begun, ring slot), p_ its producer's, with the first chunks of
its item and the rows from there to the edge of A and B; a ring of stages with the time each is ready and why, HBM's
work asked for by then (0: what came after is counted) and when HBM is done with that; the items its producer took."""
SM = _record("port_free store_free tensor_free smem_free")
LRC = _record("until due")
"""A chunk's request by one GPC: others merge with it until; its data is there at."""
NODE = np.dtype(
    (np.record, [("due", "i8"), ("moved", "i8"), ("prev", "i4"), ("next", "i4"), ("have", "i4"), ("part", "i4")])
)
"""One chunk in one L2 partition: when its fill arrives, what had been filled when it last moved to the front, its
neighbours in that order (0: not listed), what is held (HOME, COPY, DIRTY) and the bytes of one such part."""
ITEM = np.dtype((np.record, [(name, "i4") for name in ("row", "col", "k0", "nk", "a", "b", "c")]))
"""A work item: its (cluster's first) tile of C (below 0: no item), its first k-iteration and their number, its first
chunks of A, B and C."""
PART = np.dtype((np.record, [("at", "i8"), ("sums", "i4"), ("after", "i4")]))
"""An item that is a part of a tile: when its sums are in L2, the chunk of all sums of its tile (0: it is no part), and
the item that is the part before it (-1: none)."""
