"""The fine time scale: one kernel, replayed chunk by chunk in one njit event loop over integers.

A *chunk* is the part of one operand that one CTA loads for one k-iteration; an *agent* is what holds CTA slots and
walks through work items: one CTA, or a cluster of CTAs in lockstep. Each agent has exactly one pending event, so the
event queue is a winner tree over agents: its leaves hold (time << bits | agent), the root is the next event, and
the order (time, agent) is total. One event is one pop of the root. No agent waits for ever (`sim.schedule.stream_k`).

Time is int64 femtoseconds. Durations in SM cycles are scaled by `fs_per_cycle`, which moves with activity at window
ends and affects later reservations only. Every server is reserved at the event that asks for it, never ahead of
time, so the order of reservations is the order of requests.

Not modelled: single lines and banks inside a chunk, instruction issue, TLBs, shares of HBM (docs/how-it-works.md).

All njit functions of the package live in this file. They return codes and never raise; `sim.kernel` builds the
arguments (records of `sim.records`), checks the codes and raises.
"""

from __future__ import annotations

import numpy as np
from numba import njit

NEVER = 2**63 - 1
OK, TOO_LONG, PAUSED = 0, 1, 2
START, READY, DONE, END, FILL, LATE, SUMS, WHOLE = 0, 1, 2, 3, 4, 5, 6, 7
MMA, HBM, L2, PORT, BARRIER, ISSUE, BEGIN, EPILOGUE = 0, 1, 2, 3, 4, 5, 6, 7
HOME, COPY, DIRTY = 1, 2, 4

jit = njit(
    nogil=True, error_model="numpy", _nrt=False, forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True
)
"""Views only, no reference counts (`_nrt`: 40 % of the time), all in one body (`forceinline`: half of what was left),
nothing to call them by from Python (a quarter of the compilation). Division never checks for zero."""
entry = njit(cache=True, nogil=True, error_model="numpy", _nrt=False)
"""As `jit`, kept on disk: what Python calls. The others are part of these."""


@jit
def _push(tree, bits, a, t):
    """Set agent `a`'s next event and replay its path to the root.

    As a rule it loses at once: a branch, from which on nothing hangs on `t`, so that the next event need not wait.
    """
    j = (tree.size >> 1) + a
    v = NEVER if t == NEVER else (t << bits) | a
    tree[j] = v
    while j > 1 and v < tree[j ^ 1]:
        j >>= 1
        tree[j] = v
    v = tree[j ^ 1]
    while j > 1:
        j >>= 1
        tree[j] = v
        o = tree[j ^ 1]
        v = o if o < v else v


@jit
def _unlink(nodes, i):
    p, n = nodes[i].prev, nodes[i].next
    nodes[p].next, nodes[n].prev = n, p
    nodes[i].next = 0


@jit
def _front(s, nodes, i, sentinel):
    """Make node `i` the most recently used of its side."""
    nodes[i].moved = s.filled + s.written
    head = nodes[sentinel].next
    if head == i:
        return
    if nodes[i].next != 0:
        _unlink(nodes, i)
    nodes[i].next, nodes[i].prev = head, sentinel
    nodes[head].prev = nodes[sentinel].next = i


@jit
def _hbm_read(m, w, s, t, n_bytes):
    """Reserve HBM for a read, row openings included; returns when its last byte has moved."""
    dur = (n_bytes * m.hbm_read_fs_per_kib >> 10) * w.hbm_x256 >> 8
    s.hbm_free = s.hbm_reading = max(t, s.hbm_free) + dur
    s.hbm_read += n_bytes
    s.n_hbm_read += 1
    s.hbm_fs += dur
    return s.hbm_free


@jit
def _hbm_write(m, s, t, n_bytes):
    """Reserve HBM for a write-back, dearer where reads queue: the bus turns round for it."""
    dur = n_bytes * (m.hbm_mixed_fs_per_kib if s.hbm_reading > t else m.hbm_write_fs_per_kib) >> 10
    s.hbm_free = max(t, s.hbm_free) + dur
    s.hbm_write += n_bytes
    s.n_hbm_write += 1
    s.hbm_fs += dur


@jit
def _l2_serve(m, s, side, t, n_bytes):
    """Reserve one L2 partition's data path; returns when the last byte has left."""
    dur = n_bytes * m.l2_fs_per_kib >> 10
    s.l2_free[side] = max(t, s.l2_free[side]) + dur
    s.l2_fs += dur
    return s.l2_free[side]


@jit
def _evict(m, w, s, nodes, side, t):
    """Drop least recently used chunks of one partition until it holds no more than its capacity."""
    sentinel = m.n_sides * w.n_chunks + 1 + side
    while s.used[side] > m.l2_side_bytes:
        i = nodes[sentinel].prev
        _unlink(nodes, i)
        have, part = nodes[i].have, nodes[i].part
        size = part * ((have & HOME) + ((have & COPY) >> 1))
        s.used[side] -= size
        s.clean_out += size
        if have & DIRTY:
            s.clean_out -= part
            s.back += part
            _hbm_write(m, s, t, part)
        nodes[i].have = 0


@jit
def _fill_home(m, w, s, nodes, side, i, part, hbm_fs, t):
    """Bring the home part of a chunk from HBM into its partition; returns when its slowest line has arrived."""
    end = _hbm_read(m, w, s, t, part) + hbm_fs
    nodes[i].have |= HOME
    nodes[i].due = max(nodes[i].due, end)
    s.used[side] += part
    s.filled += part
    return end


@jit
def _copy(m, w, s, nodes, side, chunk, part, hbm_fs, t):
    """Copy the other partition's part of a chunk into this one, from HBM if need be. Returns (arrival, missed)."""
    other = 1 - side
    i = other * w.n_chunks + chunk + 1
    nodes[i].part = part
    missed = nodes[i].have & HOME == 0
    arrival = _fill_home(m, w, s, nodes, other, i, part, hbm_fs, t) if missed else max(t, nodes[i].due)
    _front(s, nodes, i, 2 * w.n_chunks + 1 + other)
    _evict(m, w, s, nodes, other, t)
    _l2_serve(m, s, other, t, part)
    s.fabric += part
    s.n_fabric += 1
    s.used[side] += part
    s.filled += part
    return arrival, missed


@jit
def _noise(ag, width):
    """A deviate from 0 to `width`, uniform: each agent has its own sequence (a linear congruence)."""
    ag.noise = (ag.noise * 1103515245 + 12345) & 0x7FFFFFFF
    return (ag.noise >> 7) * width >> 24


@jit
def _lookup_slow(m, w, s, ag, nodes, chunk, i, held, hbm_fs, t):
    """A chunk not wholly here: copy from the other partition, fill from HBM, or both. Returns (arrival, far)."""
    side = ag.side
    part = (held + m.n_sides - 1) >> (m.n_sides - 1)
    nodes[i].part = part
    arrival, missed, far = t, False, False
    if m.n_sides == 2 and not nodes[i].have & COPY:
        far = True
        arrival, missed = _copy(m, w, s, nodes, side, chunk, part, hbm_fs, t)
        nodes[i].have |= COPY
    if not nodes[i].have & HOME:
        arrival = max(arrival, _fill_home(m, w, s, nodes, side, i, part, hbm_fs, t))
        missed = True
    nodes[i].due = max(nodes[i].due, arrival)
    _front(s, nodes, i, m.n_sides * w.n_chunks + 1 + side)
    _evict(m, w, s, nodes, side, t)
    late = arrival > t
    s.n_miss += missed
    s.n_merged += late and not missed
    s.n_hit += not late and not missed
    return arrival, far


@jit
def _lookup(m, w, s, ag, nodes, chunk, held, hbm_fs, t):
    """Find a chunk from one side of L2. Returns (arrival of its last line at L2, whether lines crossed partitions)."""
    side = ag.side
    i = side * w.n_chunks + chunk + 1
    whole = HOME | COPY if m.n_sides == 2 else HOME
    if nodes[i].have & whole != whole:
        return _lookup_slow(m, w, s, ag, nodes, chunk, i, held, hbm_fs, t)
    if (s.filled + s.written - nodes[i].moved) << 4 > m.l2_side_bytes:  # else it moved lately: nearly LRU, less traffic
        _front(s, nodes, i, m.n_sides * w.n_chunks + 1 + side)
    arrival = nodes[i].due
    late = np.int64(arrival > t)
    s.n_merged += late
    s.n_hit += 1 - late
    return max(arrival, t), False


@jit
def _l2_read(m, s, ag, t, n_bytes):
    """Read L2 for an agent: reserve its partition and its GPC's port. Returns when the last byte has passed each."""
    served = _l2_serve(m, s, ag.side, t, n_bytes)
    s.l2_read += n_bytes
    s.gpc_free[ag.gpc] = max(t, s.gpc_free[ag.gpc]) + (n_bytes * m.gpc_fs_per_kib >> 10)
    return served, s.gpc_free[ag.gpc]


@jit
def _access(m, w, s, ag, nodes, lrc, chunk, n_bytes, held, hbm_fs, split_x256, alone, t):
    """One agent asks for one chunk at time t; unless `alone` (multicast), it may merge with a request of its GPC, but
    for rows that lie in two lines, and varies as that does. Returns (time its data reaches the GPC, why so late)."""
    s.n_access += 1
    entry = lrc[ag.gpc * w.n_chunks + chunk]
    asked, varies = t + _noise(ag, w.scatter_cycles) * s.fs_cycle, _noise(ag, m.l2_jitter_cycles)
    if not alone and asked < entry.until:
        left = n_bytes * split_x256 >> 8
        s.n_coalesced += 1
        s.coalesced += n_bytes - left
        last = max(_l2_read(m, s, ag, t, left)) + m.l2_cycles * s.fs_cycle if left else t
        return max(entry.due, last), HBM if entry.due & 1 and entry.due >= last else L2
    arrival, far = _lookup(m, w, s, ag, nodes, chunk, held, hbm_fs, t)
    served, port = _l2_read(m, s, ag, t, n_bytes)
    cycles = m.l2_cycles + m.far_cycles * far + varies - (m.l2_jitter_cycles >> 1)
    data, why = max(served, arrival, port) + cycles * s.fs_cycle, HBM if arrival > max(served, port) else L2
    if not alone:
        entry.until = max(asked, arrival) + w.merge_cycles * s.fs_cycle
        entry.due = data & ~1 | (why == HBM)  # in the last bit: whether it waits for HBM
    return data, why


@jit
def _store(m, w, s, nodes, chunk, n_bytes, t):
    """Write one C chunk: a part to each partition's own lines, dirty until evicted. Returns when L2 has taken it."""
    end = t
    part = n_bytes >> (m.n_sides - 1)
    for side in range(m.n_sides):
        i = side * w.n_chunks + chunk + 1
        nodes[i].part = part
        if nodes[i].have & HOME:
            s.overwritten += part
        else:
            s.used[side] += part
        nodes[i].have |= HOME | DIRTY
        s.written += part
        _front(s, nodes, i, m.n_sides * w.n_chunks + 1 + side)
        _evict(m, w, s, nodes, side, t)
        end = max(end, _l2_serve(m, s, side, t, (part * w.c_cost_x256 >> 8) * w.c_weight_x256 >> 8))
    s.l2_write += n_bytes
    return end


@jit
def _take_item(w, s, ag, items):
    """Give the agent's producer its next work item: the one a whole round on (`static`), or the first that nobody has;
    `skip_items` further from `skip_at` on. False when none is left."""
    number = ag.number + ag.p_j * w.n_agents if w.static else s.next_item
    if number >= s.skip_at:
        number += s.skip_items
    if number >= items.size or items[number].row < 0:
        return False
    s.next_item += 1
    item = items[number]
    ag.p_item, ag.p_k = number, 0
    ag.p_k0, ag.p_nk, ag.p_a, ag.p_b = item.k0, item.nk, item.a, item.b
    ag.p_rows_a, ag.p_rows_b = w.rows_a - item.row * w.block_m, w.rows_b - item.col * w.block_n
    ag.queue[ag.p_j % (w.stages + 2)] = number
    ag.p_j += 1
    return True


@jit
def _load(m, w, s, ag, nodes, lrc, chunk, n_tiles, rows, operand, alone, part_x256, t):
    """The chunks of one operand for one iteration: `n_tiles` from `chunk` on, of which `rows` are left to the matrix's
    edge; `operand` = (rows of a tile, bytes of a row from L2 and from HBM, HBM latency, rows split). Returns (latest
    data time, its reason)."""
    latest, reason = t, L2
    block, l2_bytes, dram_bytes, hbm_fs, split = operand
    for i in range(n_tiles):
        valid = min(block, rows - i * block)
        if valid <= 0:
            break
        n_bytes = ((block if w.wrap else valid) * l2_bytes >> 8) * part_x256 >> 8
        held = (valid * dram_bytes + 255) >> 8
        data, why = _access(m, w, s, ag, nodes, lrc, chunk, n_bytes, held, hbm_fs, split, alone, t)
        if data > latest:
            latest, reason = data, why
        chunk += w.n_k
    return latest, reason


@jit
def _load_both(m, w, s, ag, nodes, lrc, k, t):
    """The chunks of A and B for one iteration. Returns (latest data time, its reason)."""
    part = w.last_k_x256 if (k < w.n_short if w.n_short else k == w.n_k - 1) else 256
    n_a, k_a, part_a = (w.cluster_m if ag.p_k == 0 else 0, 0, 256) if w.a_once else (w.cluster_m, k, part)
    operand = w.block_m, w.a_l2_bytes, w.a_dram_bytes, w.a_hbm_fs, w.a_split_x256
    rows, alone = ag.p_rows_a, w.cluster_n > 1
    data, why = _load(m, w, s, ag, nodes, lrc, ag.p_a + k_a, n_a, rows, operand, alone, part_a, t)
    operand = w.block_n, w.b_l2_bytes, w.b_dram_bytes, w.b_hbm_fs, w.b_split_x256
    rows, alone = ag.p_rows_b, w.cluster_m > 1
    data_b, why_b = _load(m, w, s, ag, nodes, lrc, ag.p_b + k, w.cluster_n, rows, operand, alone, part, t)
    return (data_b, why_b) if data_b > data else (data, why)


@jit
def _receive(m, w, s, sm, n_bytes, t):
    """Reserve the port through which each SM of a cluster receives `n_bytes`; returns how long they take."""
    dur = (n_bytes * m.port_x1k_per_kib >> 10) * s.fs_cycle >> 10
    sm.port_free = max(t, sm.port_free) + dur
    s.port_fs += dur * w.cluster_size
    s.sm_read += n_bytes * w.cluster_size
    return dur


@jit
def _deliver(m, w, s, ag, sm, t, data, why):
    """Move an iteration's bytes through the SM's port into shared memory. Returns (ready, reason)."""
    fs = s.fs_cycle
    n_bytes = w.b_sm_bytes if w.a_once and ag.p_k else w.a_sm_bytes + w.b_sm_bytes
    s.n_loads += 1
    ready = data + _receive(m, w, s, sm, n_bytes, t)
    port = sm.port_free + m.l2_cycles * fs
    fill = w.fill_smem_x16 * fs >> 4
    sm.smem_free = max(t, sm.smem_free) + fill
    s.smem_fs += fill * w.cluster_size
    if port > ready:
        ready, why = port, PORT
    return ready + (w.latency_cycles + _noise(ag, m.l2_jitter_cycles) - (m.l2_jitter_cycles >> 1)) * fs, why


@jit
def _issue(m, w, s, ag, sm, nodes, lrc, items, spans, t):
    """Issue the loads of the producer's next iteration at time t, if the ring and the work allow."""
    if ag.p_item >= 0 and ag.p_k == ag.p_nk and not (w.persistent and _take_item(w, s, ag, items)):
        ag.p_item = -1
    if ag.p_item < 0:
        return
    t = max(t, ag.issue_free)
    ag.issue_free = t + w.issue_cycles * s.fs_cycle
    k = ag.p_k0 + ag.p_k
    data, why = _load_both(m, w, s, ag, nodes, lrc, k, t)
    ready, why = _deliver(m, w, s, ag, sm, t, data, why)
    ag.ready[ag.p_slot], ag.why[ag.p_slot] = ready, why
    if w.reorder_x256:
        ag.queued[ag.p_slot], ag.served[ag.p_slot] = s.hbm_fs, s.hbm_free
    if ag.traced:
        _span(s, spans, 1, ag, ag.p_item, k, t, ready)
    ag.p_k += 1
    ag.p_slot = 0 if ag.p_slot + 1 == w.stages else ag.p_slot + 1


@jit
def _spill(m, w, s, ag, sm, t):
    """Registers that do not fit come from local memory before the MMAs of an iteration and go back: both pass the SM's
    ports and L2, where their lines are taken to stay. Returns when they are there."""
    n_bytes, size = w.spill_read_bytes, w.cluster_size
    end = _store_port(m, s, sm, t, w.spill_bytes)
    for side in range(m.n_sides):
        served = size * (n_bytes + (w.spill_bytes * m.l2_write_weight_x256 >> 8)) >> (m.n_sides - 1)
        end = max(end, _l2_serve(m, s, side, t, served))
    _receive(m, w, s, sm, n_bytes, t)
    s.l2_read += n_bytes * size
    s.l2_write += w.spill_bytes * size
    s.sm_write += w.spill_bytes * size
    end = max(end, sm.port_free) + m.l2_cycles * s.fs_cycle
    s.waits[L2] += end - t
    return end


@jit
def _store_port(m, s, sm, t, n_bytes):
    """Reserve the SM's way out to L2; returns when the last byte has left."""
    sm.store_free = max(t, sm.store_free) + ((n_bytes * m.store_x1k_per_kib >> 10) * s.fs_cycle >> 10)
    return sm.store_free


@jit
def _start_mma(m, w, s, ag, sm, spans, t):
    """Reserve tensor cores and shared memory for one iteration; returns when its results are in."""
    fs = s.fs_cycle
    if w.spill_bytes:
        t = _spill(m, w, s, ag, sm, t)
    dur, smem, floor = w.mma_x16 * fs >> 4, w.mma_smem_x16 * fs >> 4, w.floor_x16 * fs >> 4
    beside = w.beside_x16 + w.masked_x16 if ag.c_k < w.n_masked else w.beside_x16
    sm.tensor_free = max(t, sm.tensor_free) + dur + (beside * fs >> 4)
    sm.smem_free = max(t, sm.smem_free) + smem
    end = max(sm.tensor_free, sm.smem_free, t + floor)
    held = end - t - max(dur, smem, floor)  # by other CTAs, which take turns by instructions, or by fills
    end += ((_noise(ag, 2 * w.turn_x256) - w.turn_x256) * held >> 8) + w.drain_cycles * fs
    s.tensor_fs, s.smem_fs = s.tensor_fs + dur * w.cluster_size, s.smem_fs + smem * w.cluster_size
    s.n_mma += w.cluster_size
    s.waits[MMA] += end - t
    if ag.traced:
        _span(s, spans, 3, ag, ag.c_item, ag.c_k0 + ag.c_k, t, end)
    return end


@jit
def _span(s, spans, kind, ag, tile, k, start, end):
    """Record one span, or count it as lost."""
    if s.n_spans >= spans.shape[0]:
        s.spans_lost += 1
        return
    row = spans[s.n_spans]
    row[0], row[1], row[2], row[3], row[4], row[5], row[6] = kind, ag.sm, ag.number, tile, k, start, end
    s.n_spans += 1


@jit
def _next_tile(w, ag, items):
    """Move the consumer to the next item its producer took."""
    ag.c_item, ag.c_k = ag.queue[ag.c_j % (w.stages + 2)], 0
    ag.c_j += 1
    ag.c_k0, ag.c_nk = items[ag.c_item].k0, items[ag.c_item].nk


@jit
def _await(w, s, ag, spans, t):
    """The consumer, free at t, waits for its next stage; returns when it can start and books what it waited for."""
    free = t + w.barrier_cycles * s.fs_cycle
    s.waits[BARRIER] += free - t
    ready = ag.ready[ag.c_slot]
    if ready <= free:
        return free
    s.waits[ag.why[ag.c_slot]] += ready - free
    if ag.traced:
        _span(s, spans, 2, ag, ag.c_item, ag.c_k0 + ag.c_k, free, ready)
    return ready


@jit
def _active(s, change, t):
    """Integrate the number of running CTAs over time (in 1024 fs)."""
    s.win_active += s.active * ((t - s.active_at) >> 10)
    s.active_at = t
    s.active += change


@jit
def _begin(m, w, s, ag, sm, nodes, lrc, items, spans, t):
    """A CTA (or cluster) starts running at t: its producer begins to fill the ring."""
    s.waits[BEGIN] += t - ag.begun
    _active(s, w.cluster_size, t)
    if ag.traced:
        _span(s, spans, 0, ag, ag.p_item, 0, ag.begun, t)
    ag.filled, ag.fill_at = 0, t
    _fill(m, w, s, ag, sm, nodes, lrc, items, spans, t)
    _next_tile(w, ag, items)
    if ag.c_nk == 0:  # nothing to see: on to the epilogue
        ag.c_k, ag.phase = -1, DONE
        return t
    return _go_on(m, w, s, ag, sm, spans, t)


@jit
def _fill(m, w, s, ag, sm, nodes, lrc, items, spans, t):
    """Ask for the stages of a ring that is not full yet, one every `fill_cycles`: those due at t, one at least."""
    while ag.filled < w.depth and (ag.fill_at <= t or ag.filled == 0):
        if w.persistent or ag.p_k < ag.p_nk:
            _issue(m, w, s, ag, sm, nodes, lrc, items, spans, t)
        ag.filled = ag.filled + 1 if ag.p_item >= 0 else w.depth
        ag.fill_at += w.fill_cycles * s.fs_cycle


@jit
def _go_on(m, w, s, ag, sm, spans, t):
    """The consumer, free at t, goes on with its next stage: at once or when it is ready. A stage from memory is late by
    what was asked for after it and is served before it."""
    slot = ag.c_slot
    if w.reorder_x256 and ag.why[slot] == HBM and ag.queued[slot] and ag.ready[slot] > t:
        ag.phase = LATE
        at = max(t, ag.served[slot])
        s.waits[HBM] += at - t
        return at
    at = _await(w, s, ag, spans, t)
    soon = w.exclusive and ag.c_k > 0  # a tile's first stage is long in coming: not before others' requests and windows
    ag.phase = DONE if soon else READY
    return _start_mma(m, w, s, ag, sm, spans, at) if soon else at


@jit
def _finish_tile(m, w, s, ag, sm, nodes, items, spans, t):
    """Epilogue of one item starting at t: store C through L2. Returns when the consumer is done with it."""
    fs = s.fs_cycle
    out = t + w.epilogue_cycles * fs
    end = out + w.fused_cycles * fs
    item, most = items[ag.c_item], 0
    for r in range(w.cluster_m):
        valid = min(w.block_m, max(0, w.rows_a - (item.row + r) * w.block_m))
        for c in range(w.cluster_n):
            share = min(w.block_n, max(0, w.rows_b - (item.col + c) * w.block_n))
            n_bytes = (valid * w.c_l2_bytes >> 8) * share // w.block_n
            if n_bytes:
                end = max(end, _store(m, w, s, nodes, item.c + r * w.grid_n * w.cluster_n + c, n_bytes, t))
                if w.c_read_bytes:
                    end = max(end, _hbm_read(m, w, s, t, (valid * w.c_read_bytes >> 8) * share // w.block_n))
            most = max(most, n_bytes)
            s.sm_write += n_bytes
            s.n_stores += 1
    end = max(end, _store_port(m, s, sm, out, most * w.c_cost_x256 >> 8))
    smem = w.epi_smem_x16 * fs >> 4
    sm.smem_free = max(t, sm.smem_free) + smem
    end = max(end, sm.smem_free) + (w.end_cycles * fs if ag.c_j == ag.p_j else 0)
    s.smem_fs += smem * w.cluster_size
    if ag.traced:
        _span(s, spans, 4, ag, ag.c_item, 0, t, end)
    return end


@jit
def _on_done(m, w, s, ag, sm, nodes, lrc, items, parts, spans, t):
    """An iteration's MMA is done: its stage is free. Returns the agent's next event time."""
    ag.c_k += 1
    ag.c_slot = 0 if ag.c_slot + 1 == w.stages else ag.c_slot + 1
    if w.persistent and ag.filled < w.depth:
        ag.filled -= 1
        _fill(m, w, s, ag, sm, nodes, lrc, items, spans, t)
    elif w.persistent or (ag.p_k < ag.p_nk and not w.ahead):
        _issue(m, w, s, ag, sm, nodes, lrc, items, spans, t)
    if ag.c_k == ag.c_nk and w.part_bytes and parts[ag.c_item].sums:
        ag.phase = SUMS
        return t
    if ag.c_k == ag.c_nk:
        return _on_tile(m, w, s, ag, sm, nodes, items, spans, t)
    if not w.persistent and ag.issue_free > t:
        s.waits[ISSUE] += ag.issue_free - t
        t = ag.issue_free
    return _go_on(m, w, s, ag, sm, spans, t)


@jit
def _on_tile(m, w, s, ag, sm, nodes, items, spans, t):
    """The last iteration of an item is done at t: epilogue, in the way of the next item or beside it (ping-pong)."""
    end = _finish_tile(m, w, s, ag, sm, nodes, items, spans, t)
    if not (w.pingpong and ag.c_j < ag.p_j):
        s.waits[EPILOGUE] += end - t
        ag.phase = END
        return max(end, ag.epi0, ag.epi1)
    if ag.c_j & 1:
        ag.epi1, free = end, max(t, ag.epi0)
    else:
        ag.epi0, free = end, max(t, ag.epi1)
    s.waits[EPILOGUE] += free - t
    _next_tile(w, ag, items)
    return _go_on(m, w, s, ag, sm, spans, free)


@jit
def _on_sums(m, w, s, ag, sm, nodes, lrc, parts, spans, t):
    """A part of a tile is done: once the sums of the part before it are in L2 (it asks again and again), the last part
    reads them, any other adds its own to them. Returns when that is done, or when it asks again."""
    n_bytes, part, end = w.part_bytes, parts[ag.c_item], t
    if parts[part.after].at > t:
        s.waits[BARRIER] += max(1, m.l2_cycles) * s.fs_cycle
        return t + max(1, m.l2_cycles) * s.fs_cycle
    ag.phase = WHOLE if ag.c_k0 + ag.c_nk == w.n_k else END
    for chunk in range(part.sums, part.sums + w.cluster_size):
        if ag.phase == WHOLE:
            end = max(end, _access(m, w, s, ag, nodes, lrc, chunk, n_bytes, n_bytes, w.a_hbm_fs, 0, True, t)[0])
        else:
            end = max(end, _store(m, w, s, nodes, chunk, n_bytes, t))
    if ag.phase == WHOLE:
        end = max(end + _receive(m, w, s, sm, n_bytes, t), sm.port_free + m.l2_cycles * s.fs_cycle)
    else:
        part.at = end = max(end, _store_port(m, s, sm, t, n_bytes))
        s.sm_write += n_bytes * w.cluster_size
        s.n_stores += w.cluster_size
    s.waits[EPILOGUE] += end - t
    if ag.traced:
        _span(s, spans, 4, ag, ag.c_item, 0, t, end)
    return end


@jit
def _on_end(m, w, s, ag, sm, items, spans, t):
    """Epilogue done: next item of a persistent agent, next CTA in the slot, or nothing left."""
    if w.persistent and ag.c_j < ag.p_j:
        _next_tile(w, ag, items)
        return _go_on(m, w, s, ag, sm, spans, t)
    _active(s, -w.cluster_size, t)
    s.end_fs = max(s.end_fs, t)
    if w.persistent or not _take_item(w, s, ag, items):
        return NEVER
    ag.phase, ag.begun = START, t
    return t + w.restart_cycles * s.fs_cycle


@jit
def _roll(m, w, s, windows, t):
    """Close the activity window at t and set the clock from what went on in it."""
    _active(s, 0, t)
    span = t - s.win_start
    row = windows[s.n_win]
    tensor_fs = s.tensor_fs - s.win_tensor
    row[0], row[1] = s.hbm_read - s.win_hbmr, s.hbm_write - s.win_hbmw
    row[2], row[3], row[4] = s.l2_read - s.win_l2r, s.l2_write - s.win_l2w, tensor_fs
    row[5], row[6], row[7], row[8] = s.win_active * 1024.0 / max(span, 1), 1e9 / s.fs_cycle, s.win_start, t
    s.cycles_x1k += (span << 10) // s.fs_cycle
    if m.fixed_fs_per_cycle == 0 and span > 0:
        fall = m.tensor_mhz if t >= m.late_fs else m.soon_mhz
        s.fs_cycle = np.int64(1e9 / (m.idle_mhz + w.spare_mhz - fall * min(tensor_fs / (span * m.n_sm), 1.0)))
    s.win_hbmr, s.win_hbmw, s.win_l2r, s.win_l2w = s.hbm_read, s.hbm_write, s.l2_read, s.l2_write
    s.win_tensor, s.win_active = s.tensor_fs, 0
    s.win_start, s.win_end = t, t + s.win_width
    s.n_win += 1
    if s.n_win == windows.shape[0]:
        _halve(s, windows)


@jit
def _halve(s, windows):
    """Windows are full: join pairs and double the width."""
    half = windows.shape[0] // 2
    for i in range(half):
        x, y = windows[2 * i], windows[2 * i + 1]
        sx, sy = x[8] - x[7], y[8] - y[7]
        for j in range(5):
            windows[i, j] = x[j] + y[j]
        for j in range(5, 7):
            windows[i, j] = (x[j] * sx + y[j] * sy) / max(sx + sy, 1.0)
        windows[i, 7], windows[i, 8] = x[7], y[8]
    s.n_win = half
    s.win_width *= 2


@entry
def warm(m_, w_, s_, nodes, chunks, sizes):
    """Put chunks of `sizes` bytes into L2 as an earlier kernel left them, oldest first, whole in every partition."""
    m, w, s = m_[0], w_[0], s_[0]
    for j in range(chunks.size):
        part = sizes[j] >> (m.n_sides - 1)
        for side in range(m.n_sides):
            i = side * w.n_chunks + chunks[j] + 1
            nodes[i].have = HOME | COPY if m.n_sides == 2 else HOME
            nodes[i].part = part
            s.used[side] += part * m.n_sides
            _front(s, nodes, i, m.n_sides * w.n_chunks + 1 + side)
            _evict(m, w, s, nodes, side, 0)


@entry
def run(m_, w_, s_, items, parts, tree, agents, sms, nodes, lrc, windows, spans):
    """Replay the kernel until its last CTA ends, or go on with it where it paused. Records come as arrays of one.

    Returns OK, TOO_LONG, or PAUSED at the first event after `pause_at` k-iterations; state may be changed then.
    """
    m, w, s = m_[0], w_[0], s_[0]
    limit = np.int64(1) << (62 - s.bits)
    if s.n_events == 0:  # launch: every agent's first item and start, one after another
        for i in range(w.n_agents):
            if _take_item(w, s, agents[i], items):
                _push(tree, s.bits, i, w.start_cycles * s.fs_cycle + i * m.launch_fs)
    mask = (1 << s.bits) - 1
    while True:
        key = tree[1]
        if key == NEVER:
            _roll(m, w, s, windows, s.end_fs)
            return OK
        a, t = key & mask, key >> s.bits
        if t > limit:
            return TOO_LONG
        if s.n_mma >= s.pause_at:
            s.paused_fs = t
            return PAUSED
        if t >= s.win_end:
            _roll(m, w, s, windows, t)
        s.n_events += 1
        ag = agents[a]
        sm = sms[ag.sm]
        if ag.phase == DONE:
            t = _on_done(m, w, s, ag, sm, nodes, lrc, items, parts, spans, t)
        elif ag.phase == READY:
            ag.phase = DONE
            if w.ahead and ag.p_k < ag.p_nk:
                _issue(m, w, s, ag, sm, nodes, lrc, items, spans, t)
            t = _start_mma(m, w, s, ag, sm, spans, t)
        elif ag.phase == START:
            t = _begin(m, w, s, ag, sm, nodes, lrc, items, spans, t)
        elif ag.phase == LATE:
            ag.ready[ag.c_slot] += (s.hbm_fs - ag.queued[ag.c_slot]) * w.reorder_x256 >> 8
            ag.queued[ag.c_slot] = 0
            t = _go_on(m, w, s, ag, sm, spans, t)
        elif ag.phase == FILL:
            _fill(m, w, s, ag, sm, nodes, lrc, items, spans, t)
            ag.phase, t = ag.next_phase, ag.next_at
        elif ag.phase == SUMS:
            t = _on_sums(m, w, s, ag, sm, nodes, lrc, parts, spans, t)
        elif ag.phase == WHOLE:
            t = _on_tile(m, w, s, ag, sm, nodes, items, spans, t)
        else:
            t = _on_end(m, w, s, ag, sm, items, spans, t)
        if ag.filled < w.depth and ag.fill_at < t:  # whatever comes next, a stage of its ring is due before
            ag.next_phase, ag.next_at = ag.phase, t
            ag.phase, t = FILL, ag.fill_at
        _push(tree, s.bits, a, t)
