"""The fine time scale: one kernel, replayed chunk by chunk in one njit event loop over integers.

A *chunk* is the part of one operand that one CTA loads for one k-iteration; an *agent* is what holds CTA slots and
walks through work items: one CTA, or a cluster of CTAs in lockstep. Each agent has exactly one pending event, so the
event queue is a winner tree over agents: its leaves hold (time << bits | agent), the root is the next event, and
the order (time, agent) is total. One event is one pop of the root.

Time is int64 femtoseconds. Durations in SM cycles are scaled by `fs_per_cycle`, which moves with activity at window
ends and affects later reservations only. Every server is reserved at the event that asks for it, never ahead of
time, so the order of reservations is the order of requests.

Modelled: CTA placement, waves and tails; ring of stages; issue cost; request coalescing inside a GPC; two L2
partitions with copies, LRU by chunk, merging of misses in flight, write-back; HBM bandwidth and tile latency; SM
and GPC ports; shared-memory bandwidth; tensor-core rate; barriers; epilogue; clock. Not modelled: single cache
lines and banks inside a chunk, instruction issue, TLBs.

All njit functions of the package live in this file. They return codes and never raise; `sim.kernel` builds the
arguments, checks the codes and raises.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

Ints = npt.NDArray[np.int64]

NEVER = 2**63 - 1
OK, TOO_LONG = 0, 1

START, READY, DONE, END = 0, 1, 2, 3
MMA, HBM, L2, PORT, BARRIER, ISSUE, BEGIN, EPILOGUE = 0, 1, 2, 3, 4, 5, 6, 7
N_WAITS = 8

# scalar state
(
    FS_CYCLE, HBM_FREE, NEXT_ITEM, N_DONE, N_EVENTS, WIN_END, WIN_START, WIN_WIDTH, N_WIN, END_FS, SKIPPED_FS, SKIPPED_ITEMS,
    CHECK_AT, CHECK_FS, CHECK_DRAM, LAST_FS, LAST_DRAM, N_SPANS, SPANS_LOST, WIN_TENSOR, WIN_L2R, WIN_L2W, WIN_HBMR, WIN_HBMW, WIN_ACTIVE,
    ACTIVE, ACTIVE_AT, CYCLES_X1K, LAST_CLOCK_AT, N_SCALARS,
) = range(30)  # fmt: skip

# counters (bytes unless named n_)
(
    HBM_READ, HBM_WRITE, L2_READ, L2_WRITE, SM_READ, SM_WRITE, FABRIC, COALESCED, N_ACCESS, N_HIT, N_MERGED, N_MISS, N_COALESCED, FILLED, WRITTEN,
    CLEAN_OUT, BACK, OVERWRITTEN, TENSOR_FS, SMEM_FS, PORT_FS, L2_FS, HBM_FS, N_MMA, SMEM_BYTES, N_LOADS, N_STORES, N_COUNTERS,
) = range(28)  # fmt: skip

# per-agent state
(
    PHASE, SM, GPC, SIDE, C_K, C_NK, C_Q, C_ITEM, C_J, P_ITEM, P_K, P_NK, P_K0, P_ROW, P_COL, P_Q, P_J, ISSUE_FREE, MMA_END, EPI0, EPI1, FROM, N_AGENT,
) = range(23)  # fmt: skip

HOME, COPY, DIRTY = 1, 2, 4


class Machine(NamedTuple):
    """What the hardware is, as integers. Rates are femtoseconds (or 1/1024 cycles) for 1 KiB; built by `sim.machine`."""

    n_sm: int
    n_gpc: int
    n_sides: int
    gpc_side: Ints
    """L2 partition of each GPC."""
    l2_side_bytes: int
    l2_fs_per_kib: int
    """Of one partition."""
    l2_write_weight_x256: int
    l2_fill_weight_x256: int
    l2_cycles: int
    far_cycles: int
    hbm_read_fs_per_kib: int
    hbm_write_fs_per_kib: int
    port_x1k_per_kib: int
    """1/1024 SM cycles for 1 KiB into one SM."""
    gpc_x1k_per_kib: int
    """1/1024 SM cycles for 1 KiB into one GPC."""
    coalesce: int
    idle_mhz: int
    tensor_mhz: int
    l2_mhz: int
    fixed_fs_per_cycle: int
    """> 0: the clock is held there."""
    window_fs: int


class Work(NamedTuple):
    """What one kernel does, as integers: the same set for every family. Built by `sim.schedule`."""

    n_agents: int
    cluster_size: int
    exclusive: int
    """1: no two agents share an SM, so a ready tile may start its MMA without an event of its own."""
    persistent: int
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
    rows_a: int
    """Rows of A (m x batch stay separate items; see batch)."""
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
    wrap: int
    """1: rows past the edge are read as other rows (Triton's modulo), 0: not read (TMA)."""
    last_k_x256: int
    """Fraction of a chunk that the last k-iteration reads."""
    a_hbm_fs: int
    """Extra latency of a chunk that comes from HBM: the slowest of its lines."""
    b_hbm_fs: int
    c_l2_bytes: int
    """Bytes one row of a C tile writes, x256."""
    c_read_bytes: int
    """Bytes one row of a C tile's residual reads, x256."""
    mma_x16: int
    """Tensor-core cycles of one iteration of one CTA, x16."""
    mma_smem_x16: int
    fill_smem_x16: int
    epi_smem_x16: int
    smem_bytes_per_mma: int
    floor_x16: int
    start_cycles: int
    restart_cycles: int
    """From the end of one CTA to the start of the next in its slot."""
    barrier_cycles: int
    drain_cycles: int
    issue_cycles: int
    latency_cycles: int
    """Of a load instruction beyond L2's own latency (TMA)."""
    epilogue_cycles: int
    sample_items: int
    """0: simulate everything; else the period whose repetition is looked for."""
    trace_sm_below: int


class State(NamedTuple):
    """Everything that changes."""

    tree: Ints
    bits: int
    scalars: Ints
    counters: Ints
    agents: Ints
    ready: Ints
    why: npt.NDArray[np.int8]
    queue: Ints
    prev: npt.NDArray[np.int32]
    next: npt.NDArray[np.int32]
    flags: npt.NDArray[np.uint8]
    fill: Ints
    lrc: Ints
    used: Ints
    l2_free: Ints
    gpc_free: Ints
    port_free: Ints
    tensor_free: Ints
    smem_free: Ints
    waits: Ints
    windows: npt.NDArray[np.float64]
    spans: npt.NDArray[np.int64]


@njit(cache=True, nogil=True, inline="always")
def _push(st, a, t):
    """Set agent `a`'s next event and replay its path to the root."""
    size = st.tree.size >> 1
    j = size + a
    v = (t << st.bits) | a if t != NEVER else NEVER
    st.tree[j] = v
    while j > 1:
        o = st.tree[j ^ 1]
        v = o if o < v else v
        j >>= 1
        st.tree[j] = v


@njit(cache=True, nogil=True)
def _unlink(st, node):
    p, n = st.prev[node], st.next[node]
    st.next[p] = n
    st.prev[n] = p


@njit(cache=True, nogil=True)
def _front(st, node, sentinel):
    """Make `node` the most recently used of its side (it is linked already if next[node] != 0)."""
    head = st.next[sentinel]
    if head == node:
        return
    if st.next[node] != 0:
        _unlink(st, node)
    head = st.next[sentinel]
    st.next[node] = head
    st.prev[node] = sentinel
    st.prev[head] = node
    st.next[sentinel] = node


@njit(cache=True, nogil=True)
def chunk_bytes(w, chunk):
    """(bytes held by L2, of which one home part) of a chunk: A, B, residual-free C, by its number."""
    n_a = w.grid_m * w.cluster_m * w.n_k * w.batch
    n_b = w.grid_n * w.cluster_n * w.n_k * w.batch
    if chunk < n_a:
        rows = min(w.block_m, w.rows_a - (chunk // w.n_k) % (w.grid_m * w.cluster_m) * w.block_m)
        return max(rows, 0) * w.a_dram_bytes >> 8
    chunk -= n_a
    if chunk < n_b:
        rows = min(w.block_n, w.rows_b - (chunk // w.n_k) % (w.grid_n * w.cluster_n) * w.block_n)
        return max(rows, 0) * w.b_dram_bytes >> 8
    return w.block_m * w.c_l2_bytes >> 8


@njit(cache=True, nogil=True)
def _hbm(m, st, t, n_bytes, write):
    """Reserve HBM for n_bytes; returns when the last of them has moved."""
    rate = m.hbm_write_fs_per_kib if write else m.hbm_read_fs_per_kib
    dur = n_bytes * rate >> 10
    end = max(t, st.scalars[HBM_FREE]) + dur
    st.scalars[HBM_FREE] = end
    st.counters[HBM_WRITE if write else HBM_READ] += n_bytes
    st.scalars[WIN_HBMW if write else WIN_HBMR] += n_bytes
    st.counters[HBM_FS] += dur
    return end


@njit(cache=True, nogil=True)
def _l2_serve(m, st, side, t, n_bytes):
    """Reserve one L2 partition's data path; returns when the last byte has left."""
    dur = n_bytes * m.l2_fs_per_kib >> 10
    end = max(t, st.l2_free[side]) + dur
    st.l2_free[side] = end
    st.counters[L2_FS] += dur
    return end


@njit(cache=True, nogil=True)
def _evict(m, w, st, side, t):
    """Drop least recently used chunks of one partition until it holds no more than its capacity."""
    n = st.flags.size // m.n_sides
    sentinel = st.flags.size + 1 + side
    while st.used[side] > m.l2_side_bytes:
        node = st.prev[sentinel]
        _unlink(st, node)
        st.next[node] = 0
        flags = st.flags[node - 1]
        part = chunk_bytes(w, (node - 1) % n) // m.n_sides
        size = part * ((flags & HOME) + ((flags & COPY) >> 1))
        st.used[side] -= size
        if flags & DIRTY:
            st.counters[BACK] += part
            _hbm(m, st, t, part, True)
            st.counters[CLEAN_OUT] += size - part
        else:
            st.counters[CLEAN_OUT] += size
        st.flags[node - 1] = 0


@njit(cache=True, nogil=True)
def _fill_home(m, st, side, node, part, hbm_fs, t):
    """Bring the home part of a chunk from HBM into its partition; returns when its slowest line has arrived."""
    end = _hbm(m, st, t, part, False) + hbm_fs
    st.flags[node - 1] |= HOME
    st.fill[node - 1] = max(st.fill[node - 1], end)
    st.used[side] += part
    st.counters[FILLED] += part
    _l2_serve(m, st, side, t, part * m.l2_fill_weight_x256 >> 8)
    return end


@njit(cache=True, nogil=True)
def _lookup(m, w, st, side, chunk, held, hbm_fs, t):
    """Find a chunk from one side: near hit, copy from the other partition, or HBM. Returns (arrival at L2, far)."""
    n = st.flags.size // m.n_sides
    node = side * n + chunk + 1
    sentinel = st.flags.size + 1 + side
    whole = HOME | COPY if m.n_sides == 2 else HOME
    flags = st.flags[node - 1]
    if flags & whole == whole:
        _front(st, node, sentinel)
        arrival = st.fill[node - 1]
        st.counters[N_MERGED if arrival > t else N_HIT] += 1
        return max(arrival, t), False
    part = held // m.n_sides
    arrival, missed, far = t, False, False
    if m.n_sides == 2 and not flags & COPY:
        far = True
        other = (1 - side) * n + chunk + 1
        if st.flags[other - 1] & HOME:
            arrival = max(arrival, st.fill[other - 1])
        else:
            arrival = _fill_home(m, st, 1 - side, other, part, hbm_fs, t)
            missed = True
        _front(st, other, st.flags.size + 1 + 1 - side)
        _evict(m, w, st, 1 - side, t)
        _l2_serve(m, st, 1 - side, t, part)
        st.counters[FABRIC] += part
        st.flags[node - 1] |= COPY
        st.used[side] += part
        st.counters[FILLED] += part
    if not flags & HOME:
        arrival = max(arrival, _fill_home(m, st, side, node, part, hbm_fs, t))
        missed = True
    st.fill[node - 1] = max(st.fill[node - 1], arrival)
    _front(st, node, sentinel)
    _evict(m, w, st, side, t)
    if missed:
        st.counters[N_MISS] += 1
    else:
        st.counters[N_MERGED if arrival > t else N_HIT] += 1
    return arrival, far


@njit(cache=True, nogil=True)
def _access(m, w, st, a, chunk, n_bytes, held, hbm_fs, t):
    """One agent asks for one chunk at time t. Returns (time its data reaches the GPC, reason it took so long)."""
    gpc, side = st.agents[a, GPC], st.agents[a, SIDE]
    st.counters[N_ACCESS] += 1
    slot = chunk * m.n_gpc + gpc
    pending = st.lrc[slot]
    if m.coalesce and t < pending:
        st.counters[N_COALESCED] += 1
        st.counters[COALESCED] += n_bytes
        return pending, L2
    arrival, far = _lookup(m, w, st, side, chunk, held, hbm_fs, t)
    served = _l2_serve(m, st, side, t, n_bytes)
    st.counters[L2_READ] += n_bytes
    st.scalars[WIN_L2R] += n_bytes
    cycles = m.l2_cycles + (m.far_cycles if far else 0)
    data = max(served, arrival) + cycles * st.scalars[FS_CYCLE]
    st.lrc[slot] = data
    return data, (HBM if arrival > max(served, t) else L2)


@njit(cache=True, nogil=True)
def _store(m, w, st, chunk, n_bytes, t):
    """Write one C chunk: a part to each partition's own lines, dirty until evicted."""
    n = st.flags.size // m.n_sides
    part = (w.block_m * w.c_l2_bytes >> 8) // m.n_sides
    for side in range(m.n_sides):
        node = side * n + chunk + 1
        if st.flags[node - 1] & HOME:
            st.counters[OVERWRITTEN] += part
        else:
            st.used[side] += part
        st.flags[node - 1] |= HOME | DIRTY
        st.counters[WRITTEN] += part
        _front(st, node, st.flags.size + 1 + side)
        _evict(m, w, st, side, t)
        _l2_serve(m, st, side, t, (n_bytes // m.n_sides) * m.l2_write_weight_x256 >> 8)
    st.counters[L2_WRITE] += n_bytes
    st.scalars[WIN_L2W] += n_bytes


@njit(cache=True, nogil=True)
def tile_of(w, item):
    """(batch, split, row, column) of a work item, in cluster tiles: grouped rasterisation along m, or n if raster_n."""
    tiles = w.grid_m * w.grid_n
    split = item // (tiles * w.batch)
    item -= split * tiles * w.batch
    b = item // tiles
    item -= b * tiles
    rows, cols = (w.grid_n, w.grid_m) if w.raster_n else (w.grid_m, w.grid_n)
    per = w.group * cols
    g = item // per
    first = g * w.group
    size = min(rows - first, w.group)
    r = item - g * per
    row = first + r % size
    col = r // size
    if w.raster_n:
        return b, split, col, row
    return b, split, row, col


@njit(cache=True, nogil=True)
def _take_item(w, st, a):
    """Give the agent's producer the next work item; False when none is left."""
    item = st.scalars[NEXT_ITEM]
    if item >= w.n_items:
        st.agents[a, P_ITEM] = -1
        return False
    st.scalars[NEXT_ITEM] = item + 1
    b, split, row, col = tile_of(w, item)
    ag = st.agents
    ag[a, P_ITEM] = item
    ag[a, P_K] = 0
    ag[a, P_K0] = split * w.k_per_split
    ag[a, P_NK] = min(w.k_per_split, w.n_k - split * w.k_per_split)
    ag[a, P_ROW] = b * w.grid_m * w.cluster_m + row * w.cluster_m
    ag[a, P_COL] = b * w.grid_n * w.cluster_n + col * w.cluster_n
    st.queue[a * (w.stages + 2) + ag[a, P_J] % (w.stages + 2)] = item
    ag[a, P_J] += 1
    return True


@njit(cache=True, nogil=True)
def _valid_rows(tile, tiles, block, rows):
    """Rows of a tile that exist (tiles are numbered through the batch)."""
    return min(block, max(0, rows - tile % tiles * block))


@njit(cache=True, nogil=True)
def _load_operand(m, w, st, a, t, tile0, n_tiles, tiles, block, rows, base, l2_row, dram_row, hbm_fs, k):
    """The chunks of one operand for one iteration. Returns (latest data time, its reason)."""
    latest, reason = t, L2
    last = k == w.n_k - 1
    for i in range(n_tiles):
        tile = tile0 + i
        valid = _valid_rows(tile, tiles, block, rows)
        if valid == 0:
            continue
        n_bytes = (block if w.wrap else valid) * l2_row >> 8
        if last:
            n_bytes = n_bytes * w.last_k_x256 >> 8
        held = valid * dram_row >> 8
        data, why = _access(m, w, st, a, base + tile * w.n_k + k, n_bytes, held, hbm_fs, t)
        if data > latest:
            latest, reason = data, why
    return latest, reason


@njit(cache=True, nogil=True)
def _issue(m, w, st, a, t):
    """Issue the loads of the producer's next iteration at time t, if the ring and the work allow."""
    ag, sc = st.agents, st.scalars
    if ag[a, P_ITEM] >= 0 and ag[a, P_K] == ag[a, P_NK] and not (w.persistent and _take_item(w, st, a)):
        ag[a, P_ITEM] = -1
    if ag[a, P_ITEM] < 0:
        return
    fs = sc[FS_CYCLE]
    t = max(t, ag[a, ISSUE_FREE])
    ag[a, ISSUE_FREE] = t + w.issue_cycles * fs
    k = ag[a, P_K0] + ag[a, P_K]
    tiles_m, tiles_n = w.grid_m * w.cluster_m, w.grid_n * w.cluster_n
    data, why = _load_operand(m, w, st, a, t, ag[a, P_ROW], w.cluster_m, tiles_m, w.block_m, w.rows_a, 0, w.a_l2_bytes, w.a_dram_bytes, w.a_hbm_fs, k)
    base = tiles_m * w.n_k * w.batch
    data_b, why_b = _load_operand(
        m, w, st, a, t, ag[a, P_COL], w.cluster_n, tiles_n, w.block_n, w.rows_b, base, w.b_l2_bytes, w.b_dram_bytes, w.b_hbm_fs, k
    )
    if data_b > data:
        data, why = data_b, why_b
    ready, why = _deliver(m, w, st, a, t, data, why)
    slot = a * w.stages + ag[a, P_Q] % w.stages
    st.ready[slot] = ready
    st.why[slot] = why
    if ag[a, SM] < w.trace_sm_below:
        _span(w, st, 1, a, ag[a, P_ITEM], k, t, ready)
    ag[a, P_K] += 1
    ag[a, P_Q] += 1


@njit(cache=True, nogil=True)
def _deliver(m, w, st, a, t, data, why):
    """Move an iteration's bytes through the GPC's and the SM's ports and into shared memory. Returns (ready, reason)."""
    sc, sm, gpc = st.scalars, st.agents[a, SM], st.agents[a, GPC]
    fs = sc[FS_CYCLE]
    n_bytes = w.a_sm_bytes + w.b_sm_bytes
    st.counters[SM_READ] += n_bytes * w.cluster_size
    st.counters[N_LOADS] += 1
    dur = (n_bytes * m.port_x1k_per_kib >> 10) * fs >> 10
    st.counters[PORT_FS] += dur * w.cluster_size
    port = max(t, st.port_free[sm]) + dur
    st.port_free[sm] = port
    gpc_end = max(t, st.gpc_free[gpc]) + ((n_bytes * w.cluster_size * m.gpc_x1k_per_kib >> 10) * fs >> 10)
    st.gpc_free[gpc] = gpc_end
    fill = w.fill_smem_x16 * fs >> 4
    st.smem_free[sm] = max(t, st.smem_free[sm]) + fill
    st.counters[SMEM_FS] += fill * w.cluster_size
    latency = m.l2_cycles * fs
    ready, port = data + dur, max(port, gpc_end) + latency
    if port > ready:
        ready, why = port, PORT
    return ready + w.latency_cycles * fs, why


@njit(cache=True, nogil=True)
def _start_mma(w, st, a, t):
    """Reserve tensor cores and shared memory for one iteration; returns when its results are in."""
    sm, fs = st.agents[a, SM], st.scalars[FS_CYCLE]
    dur, smem = w.mma_x16 * fs >> 4, w.mma_smem_x16 * fs >> 4
    end = max(t, st.tensor_free[sm]) + dur
    st.tensor_free[sm] = end
    smem_end = max(t, st.smem_free[sm]) + smem
    st.smem_free[sm] = smem_end
    end = max(end, smem_end, t + (w.floor_x16 * fs >> 4)) + w.drain_cycles * fs
    c = st.counters
    c[TENSOR_FS] += dur * w.cluster_size
    c[SMEM_FS] += smem * w.cluster_size
    c[N_MMA] += w.cluster_size
    st.scalars[WIN_TENSOR] += dur * w.cluster_size
    st.waits[MMA] += end - t
    if sm < w.trace_sm_below:
        _span(w, st, 3, a, st.agents[a, C_ITEM], st.agents[a, C_K], t, end)
    return end


@njit(cache=True, nogil=True)
def _span(w, st, kind, a, tile, k, start, end):
    """Record one span, or count it as lost."""
    n = st.scalars[N_SPANS]
    if n >= st.spans.shape[0]:
        st.scalars[SPANS_LOST] += 1
        return
    row = st.spans[n]
    row[0], row[1], row[2], row[3], row[4], row[5], row[6] = kind, st.agents[a, SM], a, tile, k, start, end
    st.scalars[N_SPANS] = n + 1


@njit(cache=True, nogil=True)
def _next_tile(w, st, a):
    """Move the consumer to the next item its producer took."""
    ag = st.agents
    item = st.queue[a * (w.stages + 2) + ag[a, C_J] % (w.stages + 2)]
    ag[a, C_J] += 1
    ag[a, C_ITEM] = item
    ag[a, C_K] = 0
    split = item // (w.grid_m * w.grid_n * w.batch)
    ag[a, C_NK] = min(w.k_per_split, w.n_k - split * w.k_per_split)


@njit(cache=True, nogil=True)
def _await(w, st, a, t):
    """The consumer, free at t, waits for its next stage; returns when it can start and books what it waited for."""
    ag, fs = st.agents, st.scalars[FS_CYCLE]
    slot = a * w.stages + ag[a, C_Q] % w.stages
    free = t + w.barrier_cycles * fs
    st.waits[BARRIER] += free - t
    ready = st.ready[slot]
    if ready <= free:
        return free
    st.waits[st.why[slot]] += ready - free
    if ag[a, SM] < w.trace_sm_below:
        _span(w, st, 2, a, ag[a, C_ITEM], ag[a, C_K], free, ready)
    return ready


@njit(cache=True, nogil=True)
def _begin(m, w, st, a, t):
    """A CTA (or cluster) starts running at t: fill the ring, then wait for the first stage."""
    st.waits[BEGIN] += t - st.agents[a, FROM]
    _active(st, w.cluster_size, t)
    if st.agents[a, SM] < w.trace_sm_below:
        _span(w, st, 0, a, st.agents[a, P_ITEM], 0, st.agents[a, FROM], t)
    for _ in range(w.depth):
        if st.agents[a, P_ITEM] >= 0 and st.agents[a, P_K] < st.agents[a, P_NK] or w.persistent:
            _issue(m, w, st, a, t)
    _next_tile(w, st, a)
    return _await(w, st, a, t)


@njit(cache=True, nogil=True)
def _active(st, change, t):
    """Integrate the number of running CTAs over time."""
    sc = st.scalars
    sc[WIN_ACTIVE] += sc[ACTIVE] * ((t - sc[ACTIVE_AT]) >> 10)
    sc[ACTIVE_AT] = t
    sc[ACTIVE] += change


@njit(cache=True, nogil=True)
def _finish_tile(m, w, st, a, t):
    """Epilogue of one item starting at t: store C through L2. Returns when the consumer is done with it."""
    ag, fs = st.agents, st.scalars[FS_CYCLE]
    end = t + w.epilogue_cycles * fs
    b, split, row, col = tile_of(w, ag[a, C_ITEM])
    tiles_m, tiles_n = w.grid_m * w.cluster_m, w.grid_n * w.cluster_n
    base = (tiles_m + tiles_n) * w.n_k * w.batch + (split * w.batch + b) * tiles_m * tiles_n
    for i in range(w.cluster_m):
        r = row * w.cluster_m + i
        valid = min(w.block_m, max(0, w.rows_a - r * w.block_m))
        for j in range(w.cluster_n):
            cn = col * w.cluster_n + j
            share = min(w.block_n, max(0, w.rows_b - cn * w.block_n))
            n_bytes = (valid * w.c_l2_bytes >> 8) * share // w.block_n
            if n_bytes:
                _store(m, w, st, base + r * tiles_n + cn, n_bytes, t)
                if w.c_read_bytes:
                    end = max(end, _hbm(m, st, t, (valid * w.c_read_bytes >> 8) * share // w.block_n, False))
            st.counters[SM_WRITE] += n_bytes
            st.counters[N_STORES] += 1
    sm = ag[a, SM]
    smem = w.epi_smem_x16 * fs >> 4
    st.smem_free[sm] = max(t, st.smem_free[sm]) + smem
    st.counters[SMEM_FS] += smem * w.cluster_size
    if sm < w.trace_sm_below:
        _span(w, st, 4, a, ag[a, C_ITEM], 0, t, end)
    st.scalars[N_DONE] += 1
    return end


@njit(cache=True, nogil=True)
def _on_done(m, w, st, a, t):
    """An iteration's MMA is done: its stage is free. Returns the agent's next event time."""
    ag = st.agents
    ag[a, C_K] += 1
    ag[a, C_Q] += 1
    if w.persistent or ag[a, P_K] < ag[a, P_NK]:
        _issue(m, w, st, a, t)
    if ag[a, C_K] == ag[a, C_NK]:
        return _on_tile(m, w, st, a, t)
    at = _await(w, st, a, max(t, ag[a, ISSUE_FREE]) if not w.persistent else t)
    if w.exclusive:
        return _start_mma(w, st, a, at)
    ag[a, PHASE] = READY
    return at


@njit(cache=True, nogil=True)
def _on_tile(m, w, st, a, t):
    """The last iteration of an item is done at t: epilogue, in the way of the next item or beside it (ping-pong)."""
    ag = st.agents
    end = _finish_tile(m, w, st, a, t)
    _sample(w, st, t)
    if not (w.pingpong and ag[a, C_J] < ag[a, P_J]):
        st.waits[EPILOGUE] += end - t
        ag[a, PHASE] = END
        return max(end, ag[a, EPI0], ag[a, EPI1])
    parity = ag[a, C_J] & 1
    ag[a, EPI0 + parity] = end
    free = max(t, ag[a, EPI0 + 1 - parity])
    st.waits[EPILOGUE] += free - t
    _next_tile(w, st, a)
    ag[a, PHASE] = READY
    return _await(w, st, a, free)


@njit(cache=True, nogil=True)
def _on_end(m, w, st, a, t):
    """Epilogue done: next item of a persistent agent, next CTA in the slot, or nothing left."""
    ag, sc = st.agents, st.scalars
    if w.persistent and ag[a, C_J] < ag[a, P_J]:
        _next_tile(w, st, a)
        ag[a, PHASE] = READY
        return _await(w, st, a, t)
    _active(st, -w.cluster_size, t)
    sc[END_FS] = max(sc[END_FS], t)
    if w.persistent or not _take_item(w, st, a):
        return NEVER
    ag[a, PHASE] = START
    ag[a, FROM] = t
    ag[a, ISSUE_FREE] = 0
    return t + w.restart_cycles * sc[FS_CYCLE]


@njit(cache=True, nogil=True)
def _sample(w, st, t):
    """At each period's end, compare time and DRAM bytes with the period before; when both agree, skip whole periods."""
    sc, c = st.scalars, st.counters
    if w.sample_items == 0 or sc[N_DONE] < sc[CHECK_AT]:
        return
    dram = c[HBM_READ] + c[HBM_WRITE]
    d_fs, d_dram = t - sc[CHECK_FS], dram - sc[CHECK_DRAM]
    agree = abs(d_fs - sc[LAST_FS]) * 100 <= d_fs and abs(d_dram - sc[LAST_DRAM]) * 50 <= d_dram
    periods = (w.n_items - sc[NEXT_ITEM]) // w.sample_items - 1
    if agree and periods > 0:
        sc[NEXT_ITEM] += periods * w.sample_items
        sc[SKIPPED_ITEMS] += periods * w.sample_items
        sc[SKIPPED_FS] += periods * ((d_fs + sc[LAST_FS]) >> 1)
    sc[CHECK_AT] += w.sample_items
    sc[CHECK_FS], sc[CHECK_DRAM], sc[LAST_FS], sc[LAST_DRAM] = t, dram, d_fs, d_dram


@njit(cache=True, nogil=True)
def _roll(m, w, st, t):
    """Close activity windows up to t and set the clock from the activity of the last one."""
    sc = st.scalars
    _active(st, 0, t)
    width = sc[WIN_WIDTH]
    span = t - sc[WIN_START]
    row = st.windows[sc[N_WIN]]
    row[0], row[1], row[2], row[3], row[4] = sc[WIN_HBMR], sc[WIN_HBMW], sc[WIN_L2R], sc[WIN_L2W], sc[WIN_TENSOR]
    row[5], row[6], row[7], row[8] = sc[WIN_ACTIVE] * 1024.0 / max(span, 1), 1e9 / sc[FS_CYCLE], sc[WIN_START], t
    sc[CYCLES_X1K] += (span << 10) // sc[FS_CYCLE]
    if m.fixed_fs_per_cycle == 0 and span > 0:
        tensor = sc[WIN_TENSOR] / (span * m.n_sm)
        l2 = (sc[WIN_L2R] + sc[WIN_L2W]) / 1024.0 * m.l2_fs_per_kib / (span * m.n_sides)
        mhz = m.idle_mhz - m.tensor_mhz * min(tensor, 1.0) - m.l2_mhz * min(l2, 1.0)
        sc[FS_CYCLE] = np.int64(1e9 / mhz)
    for i in range(WIN_TENSOR, WIN_ACTIVE + 1):
        sc[i] = 0
    sc[WIN_START] = t
    sc[WIN_END] = t + width
    sc[N_WIN] += 1
    if sc[N_WIN] == st.windows.shape[0]:
        _halve(st)


@njit(cache=True, nogil=True)
def _halve(st):
    """Windows are full: join pairs and double the width."""
    sc, win = st.scalars, st.windows
    half = win.shape[0] // 2
    for i in range(half):
        x, y = win[2 * i], win[2 * i + 1]
        sx, sy = x[8] - x[7], y[8] - y[7]
        for j in range(5):
            win[i, j] = x[j] + y[j]
        for j in range(5, 7):
            win[i, j] = (x[j] * sx + y[j] * sy) / max(sx + sy, 1.0)
        win[i, 7], win[i, 8] = x[7], y[8]
    sc[N_WIN] = half
    sc[WIN_WIDTH] *= 2


@njit(cache=True, nogil=True)
def warm(m, w, st, chunks):
    """Put chunks into L2 as an earlier kernel left them, oldest first; both partitions hold whole chunks."""
    n = st.flags.size // m.n_sides
    for i in range(chunks.size):
        for side in range(m.n_sides):
            node = side * n + chunks[i] + 1
            held = chunk_bytes(w, chunks[i])
            if st.flags[node - 1] == 0:
                st.used[side] += held // m.n_sides * m.n_sides
                st.counters[FILLED] += held // m.n_sides * m.n_sides
            st.flags[node - 1] |= (HOME | COPY) if m.n_sides == 2 else HOME
            _front(st, node, st.flags.size + 1 + side)
            _evict(m, w, st, side, 0)


@njit(cache=True, nogil=True)
def run(m, w, st, launch_fs):
    """Replay the kernel from `launch_fs` (the first CTA begins) until the last CTA ends. Returns OK or TOO_LONG."""
    ag, sc = st.agents, st.scalars
    limit = np.int64(2) ** (62 - st.bits)
    for a in range(w.n_agents):
        if not _take_item(w, st, a):
            break
        ag[a, PHASE] = START
        _push(st, a, launch_fs + w.start_cycles * sc[FS_CYCLE])
    mask = (1 << st.bits) - 1
    while True:
        key = st.tree[1]
        if key == NEVER:
            _roll(m, w, st, sc[END_FS])
            return OK
        a = key & mask
        t = key >> st.bits
        if t > limit:
            return TOO_LONG
        if t >= sc[WIN_END]:
            _roll(m, w, st, t)
        sc[N_EVENTS] += 1
        phase = ag[a, PHASE]
        if phase == DONE:
            t = _on_done(m, w, st, a, t)
        elif phase == READY:
            ag[a, PHASE] = DONE
            t = _start_mma(w, st, a, t)
        elif phase == START:
            ag[a, PHASE] = READY
            t = _begin(m, w, st, a, t)
        else:
            t = _on_end(m, w, st, a, t)
        _push(st, a, t)
