"""The seam between the two time scales: one kernel in, its duration, traffic, waits and activity out.

Pure: the same plan and machine give the same outcome, to the last integer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hwmodels.errors import ConfigError
from sim import engine as e
from sim import records as rec
from sim.machine import fs_per_cycle
from sim.result import SPAN_DTYPE, KernelResult
from sim.sampling import replay
from sim.schedule import stream_k
from sim.schedule.plan import Plan
from sim.schedule.raster import items
from sim.windows import even_windows

N_WINDOWS = 512
MAX_SPANS = 400_000
SEED = 1
"""Of the sequences by which loads of the agents vary."""
TRACED_SMS = 4
"""SMs (of clusters, their first) whose CTAs are traced: those filled first."""
_NAMES = rec.SCALARS.names or ()
COUNTERS = _NAMES[_NAMES.index("hbm_read") : _NAMES.index("waits")]
WAITS = ("mma", "hbm", "l2", "sm_port", "barrier", "issue", "start", "epilogue")
CHECKS = 32
"""How often a simulation is asked whether it need go on."""
CHUNK_LIMIT = 2**25
"""Chunks of A, B and C at most: about 200 B each of address space, touched only where used."""
if hasattr(e.run, "_cache") and hasattr(e.run._cache, "_load_overload"):
    # A hit in the cache needs no compiler: numba readies it before it looks (0.6 s); on a miss it is readied anyway.
    e.run._cache.load_overload = e.run._cache._load_overload
Records = npt.NDArray[np.void]
Counters = Mapping[str, int]
Check = Callable[[Records], None]
"""Looks at the engine's scalars (an array of one) where it paused, and raises what ends the simulation."""


class State(NamedTuple):
    """Everything one run needs and changes, in the engine's order of arguments."""

    machine: Records
    work: Records
    scalars: Records
    items: Records
    parts: Records
    tree: npt.NDArray[np.int64]
    agents: Records
    sms: Records
    nodes: Records
    lrc: Records
    windows: npt.NDArray[np.float64]
    spans: npt.NDArray[np.int64]


def _one(dtype: np.dtype[np.void], values: Mapping[str, int]) -> Records:
    """An array of one record; fields not named are zero."""
    record = np.zeros(1, dtype)
    for name, value in values.items():
        record[name] = value
    return record


def _nodes(n_chunks: int, n_sides: int) -> Records:
    """L2 nodes of every chunk in every partition (node 0 unused), then one sentinel a partition, linked to itself."""
    n = n_chunks * n_sides
    if n_chunks > CHUNK_LIMIT:
        raise ConfigError(
            f"chunks that the tile cuts A, B and C into = {n_chunks}: must be at most {CHUNK_LIMIT}; use a larger tile"
        )
    nodes = np.zeros(n + 1 + n_sides, rec.NODE)
    nodes["prev"][n + 1 :] = nodes["next"][n + 1 :] = np.arange(n + 1, n + 1 + n_sides)
    return nodes


def _agents(machine: rec.Machine, plan: Plan, traced_sms: int) -> Records:
    n = plan.work.n_agents
    agents = np.zeros(n, rec.AGENT)
    agents["number"] = np.arange(n)
    agents["noise"] = np.random.default_rng(SEED).integers(0, 2**31, n)
    agents["sm"], agents["gpc"] = plan.placement.sm[:n], plan.placement.gpc[:n]
    agents["side"] = machine.gpc_side[agents["gpc"]]
    first = dict.fromkeys(agents["sm"].tolist())
    agents["traced"] = np.isin(agents["sm"], list(first)[:traced_sms])
    return agents


def _state(machine: rec.Machine, plan: Plan, trace: bool) -> State:
    """Fresh state: large tables are zero-filled and so take memory only where they are touched."""
    bits = max(1, (max(1, plan.work.cluster_size // 2) * plan.work.n_agents - 1).bit_length())  # 2^63 fs of all CTAs
    clock = machine.fixed_fs_per_cycle or fs_per_cycle(machine.idle_mhz + plan.work.spare_mhz)
    n_chunks = plan.work.n_chunks
    scalars = {
        "bits": bits,
        "fs_cycle": clock,
        "win_width": machine.window_fs,
        "win_end": machine.window_fs,
        "pause_at": e.NEVER,
        "skip_at": e.NEVER,
    }
    nodes = _nodes(n_chunks, machine.n_sides)  # refuses more than items can count
    found, parts = stream_k.items(plan.work) if plan.work.stream_tiles else (items(plan.work), np.zeros(1, rec.PART))
    return State(
        machine=_one(rec.MACHINE, {name: value for name, value in machine._asdict().items() if name != "gpc_side"}),
        work=_one(rec.WORK, plan.work._asdict()),
        scalars=_one(rec.SCALARS, scalars),
        items=found,
        parts=parts,
        tree=np.full(2 << bits, e.NEVER, dtype=np.int64),
        agents=_agents(machine, plan, TRACED_SMS if trace else 0),
        sms=np.zeros(machine.n_sm, rec.SM),
        nodes=nodes,
        lrc=np.zeros(n_chunks * machine.n_gpc, rec.LRC),
        windows=np.zeros((N_WINDOWS, 9)),
        spans=np.zeros((MAX_SPANS if trace else 0, 7), np.int64),
    )


def resident_chunks(
    machine: rec.Machine, work: rec.Work, resident: tuple[float, float]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Chunks of A and B and their bytes, in the order an earlier kernel left them: the last part of each, as `resident`
    says, and of these what L2 can hold, latest last."""
    rows = min(work.block_m, work.rows_a), min(work.block_n, work.rows_b)
    sizes = rows[0] * work.a_dram_bytes >> 8, rows[1] * work.b_dram_bytes >> 8
    keep = 2 * machine.l2_side_bytes * machine.n_sides // max(1, min(sizes)) + 1
    a, b = (round(part * n) for part, n in zip(resident, (work.first_b, work.first_c - work.first_b), strict=True))
    chunks = np.concatenate([np.arange(work.first_b - a, work.first_b), np.arange(work.first_c - b, work.first_c)])
    chunks = chunks[-keep:].astype(np.int64)
    return chunks, np.where(chunks < work.first_b, *sizes)


def run_kernel(
    machine: rec.Machine,
    plan: Plan,
    *,
    resident: tuple[float, float] = (0.0, 0.0),
    floor_s: float = 0.0,
    trace: bool = False,
    name: str = "",
    check: Check | None = None,
) -> KernelResult:
    """Replay one kernel. `resident`: parts of A and B that L2 holds when it starts, as far as they fit. `floor_s` is
    the part of a kernel's time outside its CTAs (measured on an empty kernel)."""
    state = _state(machine, plan, trace)
    if any(resident):
        _warm(machine, plan.work, state, resident)
    run = _checked(state, plan.work, check) if check else lambda: int(e.run(*state))
    code, whole = replay(run, state.scalars, plan.work, plan.quick)
    if code == e.TOO_LONG:
        most_s = 2 ** (62 - int(state.scalars["bits"][0])) / 1e15
        raise ConfigError(f"kernel longer than {most_s:.2g} s of GPU time: drop --full, or use a larger tile")
    return _outcome(machine, plan, state, whole, floor_s, name)


def _checked(state: State, work: rec.Work, check: Check) -> Callable[[], int]:
    """Goes on with the engine until its end or `pause_at`, with pauses for `check` until something is skipped."""
    scalars = state.scalars
    step = max(1, work.n_items * work.k_per_split * work.cluster_size // CHECKS)

    def run() -> int:
        pause_at = int(scalars["pause_at"][0])
        while True:
            due = (int(scalars["n_mma"][0]) // step + 1) * step
            scalars["pause_at"] = pause_at if scalars["skip_items"] else min(pause_at, due)
            code = int(e.run(*state))
            scalars["pause_at"] = pause_at
            if code != e.PAUSED or scalars["n_mma"] >= pause_at:
                return code
            check(scalars)

    return run


def _warm(machine: rec.Machine, work: rec.Work, state: State, resident: tuple[float, float]) -> None:
    """Put what is resident into L2, without its being counted."""
    e.warm(state.machine, state.work, state.scalars, state.nodes, *resident_chunks(machine, work, resident))
    for counter in (
        "hbm_read",
        "hbm_write",
        "back",
        "n_hbm_read",
        "n_hbm_write",
        "clean_out",
        "l2_fs",
        "hbm_fs",
        "hbm_free",
    ):
        state.scalars[counter] = 0
    state.scalars["filled"] = int(state.scalars["used"].sum())


def _outcome(machine: rec.Machine, plan: Plan, state: State, whole: Records, floor_s: float, name: str) -> KernelResult:
    """The result; `whole`: scalars of the whole kernel, where `state` has those of what was replayed."""
    s, work = state.scalars[0], plan.work
    counters = {name: int(whole[name][0]) for name in COUNTERS}
    mhz = whole["cycles_x1k"][0] / 1024 / whole["end_fs"][0] * 1e9
    time_s = int(whole["end_fs"][0]) / 1e15 + floor_s
    return KernelResult(
        name=name or plan.config.family,
        time_s=time_s,
        sm_cycles=float(time_s * mhz * 1e6),
        sm_mhz=float(mhz),
        config={},
        flops_executed=plan.flops_executed,
        bytes=_bytes(work, counters),
        requests=_requests(counters),
        lookups=_lookups(state, counters),
        utilisation=_utilisation(machine, state, whole),
        waits=_waits(plan, whole, floor_s / time_s),
        occupancy=plan.occupancy.describe(),
        waves=_waves_of(plan),
        sampled=bool(s["skip_items"]),
        n_events=int(s["n_events"]),
        windows=even_windows(state.windows[: int(s["n_win"])], machine, work),
        spans=_spans(state),
        spans_dropped=int(s["spans_lost"]),
    )


def _waves_of(plan: Plan) -> float:
    """Tiles over slots; where stream-K gives more slots some work than there are tiles, the part of slots that it gives
    some."""
    work = plan.work
    waves = work.n_items / (work.n_agents if work.n_items > work.n_agents else plan.n_slots)
    runs = stream_k.n_runs(work.stream_tiles, work.n_k, work.n_agents)
    return max(waves, runs / plan.n_slots)


def _bytes(work: rec.Work, c: Counters) -> dict[str, dict[str, int]]:
    """Bytes moved at each level, towards the tensor cores (read) and away from them (write)."""
    pairs = {
        "hbm": (c["hbm_read"], c["hbm_write"]),
        "l2": (c["l2_read"], c["l2_write"]),
        "l2_fabric": (c["fabric"], 0),
        "sm": (c["sm_read"], c["sm_write"]),
        "smem": (c["n_mma"] * work.smem_bytes_per_mma, c["sm_write"] - c["n_mma"] * work.spill_bytes),
    }
    return {level: {"read": int(read), "write": int(write)} for level, (read, write) in pairs.items()}


def _requests(c: Counters) -> dict[str, dict[str, int]]:
    """As `KernelResult.requests` documents them."""
    pairs = {
        "hbm": (c["n_hbm_read"], c["n_hbm_write"]),
        "l2": (c["n_access"] - c["n_coalesced"], c["n_stores"]),
        "l2_fabric": (c["n_fabric"], 0),
        "sm": (c["n_loads"], c["n_stores"]),
        "smem": (c["n_mma"], c["n_stores"]),
    }
    return {level: {"read": int(read), "write": int(write)} for level, (read, write) in pairs.items()}


def _lookups(state: State, c: Counters) -> dict[str, int]:
    """As `KernelResult.lookups` documents them."""
    names = {
        "accesses": c["n_access"] - c["n_coalesced"],
        "hits": c["n_hit"],
        "merged": c["n_merged"],
        "misses": c["n_miss"],
        "coalesced": c["n_coalesced"],
        "coalesced_bytes": c["coalesced"],
        "filled": c["filled"],
        "written": c["written"],
        "clean_evicted": c["clean_out"],
        "written_back": c["back"],
        "overwritten": c["overwritten"],
        "resident": state.scalars["used"].sum(),
    }
    return {name: int(value) for name, value in names.items()}


def _utilisation(machine: rec.Machine, state: State, whole: Records) -> dict[str, float]:
    """Busy fraction of each resource over the kernel's time inside its CTAs, without what is left to do behind it.

    Of a sampled kernel both are estimates, so that their quotient may come out above 1, and is cut there.
    """
    s, c = state.scalars[0], whole[0]
    hbm_after_fs, l2_after_fs = (np.maximum(s[name] - s["end_fs"], 0).sum() for name in ("hbm_free", "l2_free"))
    busy = {
        "tensor": c["tensor_fs"] / machine.n_sm,
        "smem": c["smem_fs"] / machine.n_sm,
        "sm_port": c["port_fs"] / machine.n_sm,
        "l2": (c["l2_fs"] - l2_after_fs) / machine.n_sides,
        "hbm": c["hbm_fs"] - hbm_after_fs,
    }
    most = 1.0 if s["skip_items"] else np.inf
    return {name: float(min(value / c["end_fs"], most)) for name, value in busy.items()}


def _waits(plan: Plan, whole: Records, floor_share: float) -> dict[str, float]:
    """Fractions of all agent-slot time, by what the slot was waiting for.

    `floor_share` of the kernel's time lies outside its CTAs: its launch. A slot without a CTA is idle.
    """
    total = plan.n_slots * int(whole["end_fs"][0]) / (1 - floor_share)
    waits = {name: float(whole["waits"][0][i] / total) for i, name in enumerate(WAITS)}
    waits["start"] += floor_share * plan.work.n_agents / plan.n_slots
    used = sum(waits.values())
    if used > 1.0:  # what was skipped is scaled, each wait by itself
        return {**{name: share / used for name, share in waits.items()}, "idle": 0.0}
    return {**waits, "idle": 1.0 - used}


def _spans(state: State) -> npt.NDArray[np.void] | None:
    n = int(state.scalars["n_spans"][0])
    if not state.spans.shape[0]:
        return None
    spans = np.zeros(n, SPAN_DTYPE)
    for column, field in enumerate(("kind", "sm", "slot", "tile", "k", "start_fs", "end_fs")):
        spans[field] = state.spans[:n, column]
    return spans
