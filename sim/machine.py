"""Turn a GPU's values into the integers that the engine runs on, and say where CTAs land.

The order of CTAs over SMs was measured on an H200 (`sim/measure/topology.cu`): a plain grid fills one GPC after
another, one CTA an SM, before any SM gets its second; a small one is spread over the GPCs. Requests merge inside a GPC,
and each L2 partition serves half of the GPCs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from hwmodels.spec import Gpu, Sm
from sim.records import Machine

FS_PER_S = 10**15
MOST_PLACEMENTS = 1024
"""Grids whose places are kept: a choice of tiles asks for the same ones again and again."""
MECHANISMS = (
    "coalescing",
    "l2_partitions",
    "gpc_port",
    "write_back",
    "tile_latency",
    "clock",
    "barriers",
    "smem_bandwidth",
    "bank_conflicts",
    "sm_port",
    "issue",
    "cta_start",
    "ring_fill",
    "epilogue",
    "row_opening",
    "memory_order",
    "turn_round",
    "jitter",
    "spills",
)
"""What `without` can switch off: merged requests of a GPC, copies between L2 partitions (one L2 instead), the GPC's
port, HBM time of write-backs, the growth of HBM latency with a chunk's lines, the moving clock (boost instead),
barriers and the floor of an iteration, shared-memory bandwidth, its conflicts, the SM's ports, the time to issue loads,
to launch and start CTAs, between the stages of a TMA ring that fills, to convert and write C, to open DRAM rows,
memory that serves out of turn, the time to turn the DRAM bus from reads to writes, what loads take more or less than
their mean, registers that go to local memory in the main loop."""


def fs_per_cycle(mhz: float) -> int:
    """Femtoseconds of one cycle at `mhz`."""
    return round(1e9 / mhz)


def _fs_per_kib(gb_per_s: float) -> int:
    """Femtoseconds that 1 KiB takes at `gb_per_s` (GB = 10^9 bytes)."""
    return max(1, round(1024 * FS_PER_S / (gb_per_s * 1e9)))


def gpc_sizes(sm: Sm) -> list[int]:
    """SMs of each GPC: TPCs dealt out evenly, the larger GPCs last."""
    tpcs = -(-sm.count // sm.sms_per_tpc)
    n_gpc = -(-tpcs // sm.tpcs_per_gpc)
    sizes = [(tpcs + i) // n_gpc * sm.sms_per_tpc for i in range(n_gpc)]
    sizes[-1] -= sum(sizes) - sm.count
    return sizes


@dataclass(frozen=True)
class Placement:
    """Where agents run: `sm[i]` the (first) SM and `gpc[i]` the GPC of the i-th agent launched."""

    sm: npt.NDArray[np.int64]
    gpc: npt.NDArray[np.int64]


def place(gpu: Gpu, ctas_per_sm: int, cluster_size: int, n_ctas: int | None = None) -> Placement:
    """All agent slots of the GPU in launch order, for a grid of `n_ctas` CTAs (None: it fills the GPU).

    A plain grid fills GPC 0, then GPC 1 and so on, an SM each CTA; what does not fill all SMs is spread over GPCs. The
    clusters of a persistent kernel take the singleton TPCs of GPC 0, which hold no more than one TPC's SMs together,
    then GPC after GPC, from the last, as many of the others as if they were dealt out one by one: so the hardware does,
    but L2 traffic (counters.csv) says that neighbouring tiles of nvjet kernels share a GPC.
    """
    return _place(gpu.sm, ctas_per_sm, cluster_size, n_ctas or ctas_per_sm * gpu.sm.count)


@lru_cache(maxsize=MOST_PLACEMENTS)
def _place(sm: Sm, ctas_per_sm: int, cluster_size: int, n_ctas: int) -> Placement:
    sizes = gpc_sizes(sm)
    first = np.concatenate([[0], np.cumsum(sizes)])
    if cluster_size == 1:
        plain = _plain_order(sm, sizes, ctas_per_sm, n_ctas)
        return Placement(plain, np.searchsorted(first, plain, side="right").astype(np.int64) - 1)
    alone = _singletons(sm, sizes)
    tpcs = [(i, min(sm.sms_per_tpc, alone - i)) for i in range(0, alone, sm.sms_per_tpc)]
    slots = [(i, 0) for i, n_sms in tpcs for _ in range(n_sms * ctas_per_sm // cluster_size)]
    begins = [alone, *[0] * (len(sizes) - 1)]
    rooms = [(size - begin) * ctas_per_sm // cluster_size for size, begin in zip(sizes, begins, strict=True)]
    shares = _shares(rooms, n_ctas // cluster_size - len(slots))
    order = sorted(range(len(sizes)), key=lambda g: g != len(sizes) - 1)
    for g, start, stop in [(g, 0, shares[g]) for g in order] + [(g, shares[g], rooms[g]) for g in order]:
        wide = sizes[g] - begins[g]
        slots += [(int(first[g]) + begins[g] + i * cluster_size % wide, g) for i in range(start, stop)]
    return Placement(np.array([s for s, _ in slots], dtype=np.int64), np.array([g for _, g in slots], dtype=np.int64))


def _shares(rooms: list[int], n_clusters: int) -> list[int]:
    """How many of `n_clusters` each GPC gets, dealt out one by one to those with room. Those on GPC 0's singleton TPCs
    do not count: it gets its turn all the same (merging.csv, place_policy)."""
    shares = [0] * len(rooms)
    while n_clusters > 0 and shares != rooms:
        for g, room in enumerate(rooms):
            if shares[g] < room and n_clusters > 0:
                shares[g] += 1
                n_clusters -= 1
    return shares


def _singletons(sm: Sm, sizes: list[int]) -> int:
    """SMs of GPC 0 in singleton TPCs; they come first in its numbering."""
    return min(sm.singleton_tpcs * sm.sms_per_tpc, sizes[0])


def _plain_order(sm: Sm, sizes: list[int], ctas_per_sm: int, n_ctas: int) -> npt.NDArray[np.int64]:
    """The SM of every CTA slot of a plain grid.

    CTAs left over from whole layers of one CTA an SM go to the SMs that come first when singletons, then one SM of each
    TPC, then the second ones are dealt out round the GPCs (merging.csv, place_small).
    """
    everywhere = np.arange(sm.count, dtype=np.int64)
    layers = [everywhere] * ctas_per_sm
    whole, left = divmod(n_ctas, sm.count)
    if left and whole < ctas_per_sm:
        taken = np.sort(np.argsort(_ranks(sm, sizes), kind="stable")[:left])
        layers[whole] = np.concatenate([taken, np.delete(everywhere, taken)])
    return np.concatenate(layers)


def _ranks(sm: Sm, sizes: list[int]) -> npt.NDArray[np.int64]:
    """The turn in which each SM gets its first CTA: singletons at once, then SM `which` of TPC `tpc` of each GPC."""
    ranks = [0] * _singletons(sm, sizes)
    for g, size in enumerate(sizes):
        for i in range(size - (len(ranks) if g == 0 else 0)):
            tpc, which = divmod(i, sm.sms_per_tpc)
            ranks.append(1 + (which * sm.tpcs_per_gpc + tpc) * len(sizes) + g)
    return np.array(ranks, dtype=np.int64)


def gpc_sides(n_gpc: int, n_sides: int) -> npt.NDArray[np.int64]:
    """L2 partition of each GPC: 0 1 1 1 0 0 0 1 as measured on the H200's eight, continued."""
    return (np.arange(n_gpc, dtype=np.int64) + 2) // 3 % n_sides


def _hbm_rates(gpu: Gpu, without: Collection[str]) -> tuple[int, int, int]:
    """Femtoseconds of 1 KiB read, written, and written between reads: what a copy takes beyond its reads."""
    hbm = gpu.hbm
    reads, writes, copies = (
        _fs_per_kib(hbm.bandwidth_gb_per_s * fraction)
        for fraction in (hbm.read_fraction, hbm.write_fraction, hbm.copy_fraction)
    )
    if "write_back" in without:
        return reads, 0, 0
    return reads, writes, writes if "turn_round" in without else max(writes, 2 * copies - reads)


def build_machine(gpu: Gpu, clock_mhz: float | None, without: Collection[str], sustained: bool = False) -> Machine:
    """The engine's view of `gpu`. `clock_mhz` holds the SM clock; `without` names mechanisms switched off.

    `sustained`: after tensor-bound work of `activity.sustain_ms`, on boards for which that clock is known.
    """
    n_gpc = len(gpc_sizes(gpu.sm))
    sides = 1 if "l2_partitions" in without else min(2, gpu.l2.partitions)
    reads, writes, mixed = _hbm_rates(gpu, without)
    fall = round(sustained * gpu.activity.sustained_tensor_mhz or gpu.activity.tensor_mhz)
    held = clock_mhz or (gpu.clock.boost_mhz if "clock" in without else None)
    return Machine(
        n_sm=gpu.sm.count,
        n_gpc=n_gpc,
        n_sides=sides,
        gpc_side=gpc_sides(n_gpc, sides),
        l2_side_bytes=int(gpu.l2.capacity_mib * 2**20) // sides,
        l2_fs_per_kib=_fs_per_kib(gpu.l2.bytes_per_clk * gpu.clock.boost_mhz / 1e3 / sides),
        l2_write_weight_x256=round(256 * gpu.l2.write_weight),
        l2_cycles=round(gpu.l2.latency_cycles),
        far_cycles=round(gpu.l2.far_latency_cycles),
        hbm_read_fs_per_kib=reads,
        hbm_write_fs_per_kib=writes,
        hbm_mixed_fs_per_kib=mixed,
        port_x1k_per_kib=0 if "sm_port" in without else round(2**20 / gpu.l2.sm_port_bytes_per_clk),
        store_x1k_per_kib=0 if "sm_port" in without else round(2**20 / gpu.l2.sm_store_bytes_per_clk),
        gpc_fs_per_kib=0
        if "gpc_port" in without
        else _fs_per_kib(gpu.l2.gpc_port_bytes_per_clk * gpu.clock.boost_mhz / 1e3),
        l2_jitter_cycles=0 if "jitter" in without else round(gpu.l2.jitter_cycles),
        launch_fs=0 if "cta_start" in without else round(gpu.kernel.launch_ns * 1e6),
        idle_mhz=round(min(gpu.activity.active_mhz, gpu.clock.boost_mhz)),
        tensor_mhz=fall,
        soon_mhz=-(-fall // 2),
        late_fs=0 if sustained else round(gpu.activity.late_us * 1e9),
        fixed_fs_per_cycle=fs_per_cycle(held) if held else 0,
        window_fs=10**9,
    )
