"""What is said of each configuration that a tile search simulated, and of the kernel that a library would launch."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from hwmodels.spec import Gpu
from sim.call import Call, Options
from sim.limiter import find_limiter
from sim.run import fastest
from sim.schedule.choose import candidates
from sim.schedule.config import KernelConfig
from sim.schedule.library import library_candidates
from sim.schedule.names import short_name
from sim.tiles import TileSearch
from workloads.gemm import Gemm

WARP_THREADS = 32


@dataclass(frozen=True)
class TileRow:
    """One simulated configuration. Bytes and joules are of all kernels of the call, the rest of the one that
    multiplies."""

    name: str
    """`sim.schedule.names.short_name` of `config`."""
    config: KernelConfig
    time_s: float
    behind: float
    """Time over that of the fastest, less 1."""
    flops_per_s: float
    limiter: str
    ctas_per_sm: int
    occupancy_limit: str
    waves: float
    tail_loss: float
    """Share of CTA slots, over all waves, that the last one leaves empty; with stream-K, which cuts its tiles, none."""
    hbm_bytes: int
    """Read and written; so are those of L2."""
    l2_bytes: int
    smem_bytes: int
    """Shared memory that a CTA asks for."""
    registers: int
    """Of all threads of a CTA."""
    spill_bytes: int
    """Of a thread."""
    energy_j: float
    sm_mhz: float
    sampled: bool


def row(call: Call, best_s: float) -> TileRow:
    """What is said of a call, where the fastest takes `best_s` seconds."""
    main, config, taken = call.main, call.plan.config, call.plan.occupancy
    moved = {level: sum(sum(each.bytes[level].values()) for each in call.kernels) for level in ("hbm", "l2")}
    return TileRow(
        name=short_name(config),
        config=config,
        time_s=call.time_s,
        behind=call.time_s / best_s - 1,
        flops_per_s=call.gemm.flops / call.time_s,
        limiter=find_limiter(main)[0],
        ctas_per_sm=taken.ctas_per_sm,
        occupancy_limit=taken.limit,
        waves=main.waves,
        tail_loss=0.0 if config.stream_k and main.waves >= 1 else tail_loss(main.waves),
        hbm_bytes=moved["hbm"],
        l2_bytes=moved["l2"],
        smem_bytes=taken.smem_bytes_per_cta,
        registers=taken.registers_per_thread * WARP_THREADS * config.warps,
        spill_bytes=taken.spill_bytes_per_thread,
        energy_j=sum(sum(each.energy_j.values()) for each in call.kernels),
        sm_mhz=main.sm_mhz,
        sampled=any(each.sampled for each in call.kernels),
    )


def rows(found: TileSearch) -> tuple[TileRow, ...]:
    """All that were simulated, fastest first; the first `found.n_best` are ranks."""
    return tuple(row(call, found.best.time_s) for call in found.calls)


def tail_loss(waves: float) -> float:
    """3.75 -> 0.0625: of four waves of slots, a quarter of the last stays empty."""
    return 1 - waves / math.ceil(waves)


def left_out_by(found: TileSearch) -> dict[str, int]:
    """{what bounds it: configurations that were left out for it}, most first."""
    return dict(Counter(each.bound.by for each in found.left_out).most_common())


def library_call(gemm: Gemm, gpu: Gpu, options: Options) -> Call | None:
    """What a library was seen to launch for similar shapes, simulated (`tile="library"` of `sim.simulate`); None where
    no kernel of such a product was seen on the architecture, or none of them can be simulated."""
    configs, most = candidates(gemm, gpu, None, "library")
    if configs[0] not in library_candidates(gemm, gpu):
        return None
    return fastest(gemm, gpu, configs, most, options)


def rank_of(call: Call, found: TileSearch) -> int | None:
    """The rank that a call has, or would have, among the best; None where it is slower than all of them."""
    slower = [i for i, each in enumerate(found.calls[: found.n_best], 1) if call.time_s <= each.time_s]
    return slower[0] if slower else None
