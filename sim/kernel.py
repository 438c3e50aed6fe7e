"""The seam between the two time scales: one kernel in, its duration, traffic, waits and activity out.

Pure: the same plan and machine give the same outcome, to the last integer.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hwmodels.errors import ConfigError
from sim import engine as e
from sim.machine import fs_per_cycle
from sim.result import SPAN_DTYPE, WINDOW_FIELDS, KernelResult, Windows
from sim.schedule.plan import Plan

N_WINDOWS = 512
MAX_SPANS = 400_000
WAITS = ("mma", "hbm", "l2", "sm_port", "barrier", "issue", "start", "epilogue")
NODE_LIMIT = 2**31 - 4


def _state(machine: e.Machine, plan: Plan, trace: bool) -> e.State:
    """Fresh state: large tables are zero-filled and so take memory only where they are touched."""
    work = plan.work
    n_chunks = _n_chunks(work)
    nodes = n_chunks * machine.n_sides
    if nodes > NODE_LIMIT:
        raise ConfigError(f"tile {work.block_m}x{work.block_n}: {n_chunks} chunks, at most {NODE_LIMIT // machine.n_sides}; use a larger tile or --split")
    bits = max(1, (work.n_agents - 1).bit_length())
    tree = np.full(2 << bits, e.NEVER, dtype=np.int64)
    previous, following = np.zeros(nodes + 1 + machine.n_sides, np.int32), np.zeros(nodes + 1 + machine.n_sides, np.int32)
    for side in range(machine.n_sides):
        previous[nodes + 1 + side] = following[nodes + 1 + side] = nodes + 1 + side
    agents = np.zeros((work.n_agents, e.N_AGENT), np.int64)
    agents[:, e.SM] = plan.placement.sm[: work.n_agents]
    agents[:, e.GPC] = plan.placement.gpc[: work.n_agents]
    agents[:, e.SIDE] = machine.gpc_side[agents[:, e.GPC]]
    scalars = np.zeros(e.N_SCALARS, np.int64)
    scalars[e.FS_CYCLE] = machine.fixed_fs_per_cycle or fs_per_cycle(machine.idle_mhz)
    scalars[e.WIN_WIDTH] = scalars[e.WIN_END] = machine.window_fs
    scalars[e.CHECK_AT] = work.sample_items
    zeros = lambda n: np.zeros(n, np.int64)  # noqa: E731  one-word helper for eight arrays
    return e.State(
        tree=tree, bits=bits, scalars=scalars, counters=zeros(e.N_COUNTERS), agents=agents,
        ready=zeros(work.n_agents * work.stages), why=np.zeros(work.n_agents * work.stages, np.int8),
        queue=zeros(work.n_agents * (work.stages + 2)), prev=previous, next=following,
        flags=np.zeros(nodes, np.uint8), fill=zeros(nodes), lrc=zeros(n_chunks * machine.n_gpc),
        used=zeros(machine.n_sides), l2_free=zeros(machine.n_sides), gpc_free=zeros(machine.n_gpc),
        port_free=zeros(machine.n_sm), tensor_free=zeros(machine.n_sm), smem_free=zeros(machine.n_sm),
        waits=zeros(e.N_WAITS), windows=np.zeros((N_WINDOWS, 9)), spans=np.zeros((MAX_SPANS if trace else 0, 7), np.int64),
    )  # fmt: skip


def _n_chunks(work: e.Work) -> int:
    """Chunks of A, B and C (partial sums of every split)."""
    tiles_m, tiles_n = work.grid_m * work.cluster_m, work.grid_n * work.cluster_n
    return work.batch * ((tiles_m + tiles_n) * work.n_k + work.splits * tiles_m * tiles_n)


def warm_chunks(machine: e.Machine, work: e.Work) -> npt.NDArray[np.int64]:
    """Chunks of A and B in the order a previous run left them: no more than L2 can hold, latest last."""
    n_a = work.batch * work.grid_m * work.cluster_m * work.n_k
    n_b = work.batch * work.grid_n * work.cluster_n * work.n_k
    held = max(1, min(work.a_dram_bytes * work.block_m, work.b_dram_bytes * work.block_n) >> 8)
    keep = 2 * machine.l2_side_bytes * machine.n_sides // held + 1
    return np.arange(max(0, n_a + n_b - keep), n_a + n_b, dtype=np.int64)


def run_kernel(machine: e.Machine, plan: Plan, *, warm: bool = False, floor_s: float = 0.0, trace: bool = False, name: str = "") -> KernelResult:
    """Replay one kernel. `floor_s` is the part of a kernel's time outside its CTAs (measured on an empty kernel)."""
    state = _state(machine, plan, trace)
    if warm:
        e.warm(machine, plan.work, state, warm_chunks(machine, plan.work))
        state.counters[:] = 0
    if e.run(machine, plan.work, state, np.int64(0)) == e.TOO_LONG:
        raise ConfigError(f"kernel longer than {2 ** (62 - state.bits) / 1e15:.2g} s of GPU time: drop --full, or use a larger tile")
    return _outcome(machine, plan, state, floor_s, name)


def _outcome(machine: e.Machine, plan: Plan, state: e.State, floor_s: float, name: str) -> KernelResult:
    s, work = state.scalars, plan.work
    inside_fs = int(s[e.END_FS])
    total_fs = inside_fs + int(s[e.SKIPPED_FS])
    scale = work.n_items / (work.n_items - int(s[e.SKIPPED_ITEMS]))
    counters = np.rint(state.counters * scale).astype(np.int64)
    mhz = s[e.CYCLES_X1K] / 1024 / inside_fs * 1e9
    time_s = total_fs / 1e15 + floor_s
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
        utilisation=_utilisation(machine, work, counters, total_fs),
        waits=_waits(plan, state, inside_fs),
        occupancy=plan.occupancy.describe(),
        waves=work.n_items / (plan.n_slots if not work.persistent else work.n_agents),
        sampled=bool(s[e.SKIPPED_ITEMS]),
        n_events=int(s[e.N_EVENTS]),
        windows=_windows(state),
        spans=_spans(state),
        spans_dropped=int(s[e.SPANS_LOST]),
    )


def _bytes(work: e.Work, c: npt.NDArray[np.int64]) -> dict[str, dict[str, int]]:
    """Bytes moved at each level, towards the tensor cores (read) and away from them (write)."""
    pairs = {
        "hbm": (c[e.HBM_READ], c[e.HBM_WRITE]),
        "l2": (c[e.L2_READ], c[e.L2_WRITE]),
        "l2_fabric": (c[e.FABRIC], 0),
        "sm": (c[e.SM_READ], c[e.SM_WRITE]),
        "smem": (c[e.N_MMA] * work.smem_bytes_per_mma, c[e.SM_READ]),
    }
    return {level: {"read": int(read), "write": int(write)} for level, (read, write) in pairs.items()}


def _requests(c: npt.NDArray[np.int64]) -> dict[str, dict[str, int]]:
    return {
        "l2": {"read": int(c[e.N_ACCESS] - c[e.N_COALESCED]), "write": int(c[e.N_STORES])},
        "sm": {"read": int(c[e.N_LOADS]), "write": int(c[e.N_STORES])},
    }


def _lookups(state: e.State, c: npt.NDArray[np.int64]) -> dict[str, int]:
    names = {
        "accesses": c[e.N_ACCESS] - c[e.N_COALESCED], "hits": c[e.N_HIT], "merged": c[e.N_MERGED], "misses": c[e.N_MISS], "coalesced": c[e.N_COALESCED],
        "coalesced_bytes": c[e.COALESCED], "filled": c[e.FILLED], "written": c[e.WRITTEN], "clean_evicted": c[e.CLEAN_OUT], "written_back": c[e.BACK],
        "overwritten": c[e.OVERWRITTEN], "resident": state.used.sum(),
    }  # fmt: skip
    return {name: int(value) for name, value in names.items()}


def _utilisation(machine: e.Machine, work: e.Work, c: npt.NDArray[np.int64], total_fs: int) -> dict[str, float]:
    """Busy fraction of each resource over the kernel's time inside its CTAs."""
    busy = {
        "tensor": c[e.TENSOR_FS] / machine.n_sm,
        "smem": c[e.SMEM_FS] / machine.n_sm,
        "sm_port": c[e.PORT_FS] / machine.n_sm,
        "l2": c[e.L2_FS] / machine.n_sides,
        "hbm": c[e.HBM_FS],
    }
    return {name: float(value / total_fs) for name, value in busy.items()}


def _waits(plan: Plan, state: e.State, inside_fs: int) -> dict[str, float]:
    """Fractions of all agent-slot time, by what the slot was waiting for; the rest is idle."""
    slots = min(plan.n_slots, len(plan.placement.sm))
    total = slots * inside_fs
    waits = {name: float(state.waits[i] / total) for i, name in enumerate(WAITS)}
    waits["idle"] = max(0.0, 1.0 - sum(waits.values()))
    return waits


def _windows(state: e.State) -> Windows:
    n = int(state.scalars[e.N_WIN])
    rows = state.windows[:n]
    values = np.zeros((n, len(WINDOW_FIELDS)))
    values[:, :7] = rows[:, :7]
    return Windows(int(state.scalars[e.WIN_WIDTH]), values)


def _spans(state: e.State) -> npt.NDArray[np.void] | None:
    n = int(state.scalars[e.N_SPANS])
    if not state.spans.shape[0]:
        return None
    spans = np.zeros(n, SPAN_DTYPE)
    for column, field in enumerate(("kind", "sm", "slot", "tile", "k", "start_fs", "end_fs")):
        spans[field] = state.spans[:n, column]
    return spans
