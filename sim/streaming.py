"""Kernels bound by memory, in closed form: elementwise, norms, softmax, copies, gathers, optimizer.

    time = launch + first round trip + waves of CTAs

1. A CTA makes its round trips to memory one after another. A round trip to L2 passes the SM's L1 at the SM's clock and
   the rest at L2's, which stays the same under load, as HBM's does: kernels bound by it do not slow down with the SM
   (hot.csv). The slowest of all lines asked for comes later than the first. What a CTA reads again comes from L1 while
   that has room, and a wave of CTAs waits for HBM if any of what it reads lies there (handover.csv).
2. The CTAs of a wave are launched one after another and work through a closed queueing network: they wait for round
   trips beside each other, and take turns at their SM's schedulers and at the memory (`stays`).
3. HBM reads what L2 does not hold and writes what L2 does not keep back, which is little: it writes dirty lines out
   early. L2 spends time on reads, on filling what came from HBM, and on writes, which are dearer. The slower of HBM
   and L2 is the memory's server.
4. Where barriers part passes over the data, the first of which reads and the last writes, CTAs that start together do
   each in step, and do not share the memory between passes (`StreamKernel.barrier`).
5. A grid of short CTAs takes as long as launching them.
6. A kernel whose code other kernels have driven out of the caches fetches it first.

Not modelled: TLB misses, strides that favour some memory channels, atomics, registers that spill.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.call import Options
from sim.energy import energy_j
from sim.power import settled
from sim.result import WINDOW_FIELDS, KernelResult, Windows
from sim.schedule.streams import StreamKernel, stream_launches
from workloads.stream import Stream

ROLES = ("x", "w", "code")


class Held(NamedTuple):
    """Fractions that lie in L2 when a kernel starts: of its data, of the vectors its CTAs share, of its code."""

    x: float = 0.0
    w: float = 0.0
    code: float = 0.0


ALONE_AGAIN: Mapping[str, float] = {"w": 1.0, "code": 1.0}
"""`resident` of a kernel launched again and again on other data, as tables of single kernels are measured."""


class Traffic(NamedTuple):
    """Bytes of one launch, and the time L2 spends on them in bytes read."""

    hbm_read: float
    hbm_write: float
    l2_read: float
    l2_write: float
    l2_time: float


class Stays(NamedTuple):
    """Seconds that a party spends in one pass through a wave: at the schedulers, at the memory, and elsewhere."""

    sm: float
    memory: float
    elsewhere: float

    @property
    def total(self) -> float:
        """All of the pass."""
        return math.fsum(self)


@dataclass(frozen=True)
class Times:
    """Seconds of one launch by cause."""

    floor_s: float
    """Outside the CTAs, fetching of code included."""
    trips_hbm_s: float
    """Waiting for data that lies in HBM, beside what its bandwidth takes."""
    trips_l2_s: float
    """The rest of the round trips."""
    sm_s: float
    """At the schedulers, and waiting for instructions."""
    start_s: float
    """What launching all CTAs one after another takes beyond."""
    memory_s: float
    """What the bandwidth of HBM or that of L2 takes."""
    hbm_s: float
    l2_s: float
    """How long each would take alone."""

    @property
    def total_s(self) -> float:
        """The kernel's time."""
        return self.floor_s + self.trips_hbm_s + self.trips_l2_s + self.sm_s + self.start_s + self.memory_s

    def waits(self, filled: float) -> dict[str, float]:
        """As `KernelResult.waits`; `filled` is the share of CTA slots that the grid uses. What the bandwidth takes
        counts as that of the slowest."""
        shares = {
            "mma": self.sm_s,
            "hbm": self.trips_hbm_s,
            "l2": self.trips_l2_s,
            "start": self.floor_s + self.start_s,
        }
        shares["hbm" if self.hbm_s >= self.l2_s else "l2"] += self.memory_s
        empty = dict.fromkeys(("sm_port", "barrier", "issue", "epilogue"), 0.0)
        return {**{name: filled * part / self.total_s for name, part in shares.items()}, **empty, "idle": 1.0 - filled}


def stream_kernels(
    work: Stream, gpu: Gpu, options: Options, *, resident: Mapping[str, float] | None = None
) -> tuple[KernelResult, ...]:
    """Every launch of `work`, in order. `resident`: the fractions that lie in L2 at the start (0 where absent) of "x",
    what the operation reads of [rows, width]; of "w", vectors that all rows share, and indices; of "code", the
    kernel's instructions (1 where the same kernel ran just before). What a first
    launch leaves to the next is found here. Results are shared between calls: not to be changed.

    Raises `ConfigError` for what is no such operation, another role, or a fraction outside 0 to 1.
    """
    if not isinstance(work, Stream):
        raise ConfigError(f"workload = {str(work)[:60]!r}: must be a workloads.stream.Stream")
    return _launched(work, gpu, options, _held(resident or {}))


@lru_cache(maxsize=4096)
def _launched(work: Stream, gpu: Gpu, options: Options, held: Held) -> tuple[KernelResult, ...]:
    """As `stream_kernels`, kept: a model repeats its layers. Launches alike share one result."""
    found: list[KernelResult] = []
    before: dict[tuple[StreamKernel, Held], KernelResult] = {}
    for kernel in stream_launches(work, gpu):
        if (kernel, held) not in before:
            before[kernel, held] = _run(kernel, gpu, options, held)
        found.append(before[kernel, held])
        held = _after(kernel, gpu, held)
    return tuple(found)


def _held(resident: Mapping[str, float]) -> Held:
    """A role that is absent lies elsewhere."""
    for role, fraction in resident.items():
        if role not in ROLES:
            raise ConfigError(f"resident role = {str(role)[:60]!r}: must be one of {', '.join(ROLES)}")
        if not 0.0 <= fraction <= 1.0:
            raise ConfigError(f"resident {role} = {fraction:g}: must be from 0 to 1")
    return Held(**{role: float(fraction) for role, fraction in resident.items()})


def _after(kernel: StreamKernel, gpu: Gpu, held: Held) -> Held:
    """What the next launch of the same operation finds: of a conversion's result what L2 kept, else what there was."""
    if not kernel.feeds_next:
        return held
    return held._replace(x=min(1.0, gpu.streaming.reread_fraction * _l2_bytes(gpu) / kernel.write_bytes))


def _run(kernel: StreamKernel, gpu: Gpu, options: Options, held: Held) -> KernelResult:
    """The launch at a burst's clock, at a held one, or at the one that the board's power leaves."""

    def at(mhz: float | None) -> KernelResult:
        return _result(kernel, gpu, options, held, mhz)

    burst = at(options.clock_mhz)
    free = options.clock_mhz is None and "clock" not in options.without
    by_power = options.sustained and not gpu.activity.sustained_tensor_mhz
    return settled(gpu, burst, at) if by_power and free else burst


def ctas_per_sm(kernel: StreamKernel, gpu: Gpu) -> tuple[int, str]:
    """CTAs that one SM holds at once, and what bounds them."""
    warps = -(-kernel.threads // gpu.sm.warp_size)
    unit = gpu.registers.allocation_per_warp
    registers = -(-kernel.registers * gpu.sm.warp_size // unit) * unit * warps
    smem = kernel.smem_bytes + gpu.smem.reserved_bytes_per_cta
    limits = {
        "threads": gpu.sm.max_warps // warps,
        "ctas": gpu.sm.max_ctas,
        "registers": gpu.registers.per_sm // registers,
        "shared memory": int(gpu.smem.kib_per_sm * 1024 // max(1, smem)),
    }
    limit = min(limits, key=lambda name: limits[name])
    return max(1, limits[limit]), limit


def stays(n: int, elsewhere_s: float, sm_s: float, memory_s: float) -> Stays:
    """Of each of `n` parties (CTAs, mostly) that share an SM, where one takes `sm_s` of its schedulers and `memory_s`
    of its share of the memory, and `elsewhere_s` beside: exact mean value analysis of a closed queueing network of two
    servers and a delay."""
    at_sm = at_memory = 0.0
    found = Stays(sm_s, memory_s, elsewhere_s)
    for i in range(1, n + 1):
        found = Stays(sm_s * (1.0 + at_sm), memory_s * (1.0 + at_memory), elsewhere_s)
        total = found.total
        at_sm, at_memory = (i * found.sm / total, i * found.memory / total) if total else (0.0, 0.0)
    return found


def _clock_mhz(gpu: Gpu, n_ctas: int, options: Options, held_mhz: float | None) -> float:
    if held_mhz or "clock" in options.without:
        return min(held_mhz or gpu.clock.boost_mhz, gpu.clock.boost_mhz)
    a = gpu.activity
    spare = a.few_sms_mhz * max(0.0, 1 - (n_ctas - 1) / a.few_sms)
    return min(a.active_mhz + spare, gpu.clock.boost_mhz)


def _l2_bytes(gpu: Gpu) -> float:
    return gpu.l2.capacity_mib * 2**20


def _lost_from_l1(kernel: StreamKernel, gpu: Gpu, slots: int) -> float:
    """Of what CTAs read again, the part that L1 has lost by then: where the rows of all CTAs of an SM are too many."""
    n_ctas = -(-min(kernel.n_ctas, slots) // gpu.sm.count)
    return _lost(n_ctas * kernel.read_bytes / kernel.n_ctas, gpu.streaming.l1_fraction * gpu.smem.kib_per_sm * 2**10)


def _traffic(kernel: StreamKernel, gpu: Gpu, held: Held, slots: int) -> Traffic:
    """Rows that a CTA reads again come from L1, from L2 where L1 lost them, and from HBM where those of all SMs, with
    what they write, are too many for L2."""
    share, keeps = min(1.0, slots / kernel.n_ctas), gpu.streaming.reread_fraction
    again = kernel.rereads * kernel.read_bytes
    from_l2 = again * _lost_from_l1(kernel, gpu, slots)
    from_hbm = from_l2 * _lost(share * (kernel.read_bytes + kernel.write_bytes), keeps * _l2_bytes(gpu))
    hbm_read = (1.0 - held.x) * kernel.read_bytes + (1.0 - held.w) * kernel.vector_bytes + from_hbm
    hbm_write = max(0.0, kernel.write_bytes - gpu.streaming.dirty_fraction * _l2_bytes(gpu))
    reads = kernel.l2_read_bytes + kernel.vector_bytes + from_l2
    asked = (kernel.request_bytes or kernel.l2_read_bytes) + kernel.vector_bytes + from_l2
    l2_time = asked + hbm_read + gpu.l2.write_weight * kernel.write_bytes
    return Traffic(hbm_read, hbm_write, reads, kernel.write_bytes, l2_time)


def _lost(n_bytes: float, room: float) -> float:
    """Fraction of what is read again that a cache has lost by then; it keeps all of `room` bytes, none of twice as
    many."""
    return min(1.0, max(0.0, n_bytes / room - 1.0))


def _hbm_s(kernel: StreamKernel, traffic: Traffic, gpu: Gpu) -> float:
    """Reads, writes and the turns between them, at the rates of long ones."""
    peak = gpu.hbm.bandwidth_gb_per_s * 1e9
    read, write = 1.0 / gpu.hbm.read_fraction, 1.0 / gpu.hbm.write_fraction
    turn = max(0.0, 2.0 / gpu.streaming.stream_copy_fraction - read - write)
    at_peak = traffic.hbm_read * kernel.hbm_weight * read + traffic.hbm_write * write
    return (at_peak + turn * min(traffic.hbm_read, traffic.hbm_write)) / peak


def _slowest_line_s(kernel: StreamKernel, gpu: Gpu) -> float:
    """By how much the slowest of all lines that the grid asks HBM for comes later than the first."""
    return gpu.hbm.spread_ns * math.log2(1.0 + kernel.read_bytes / gpu.l2.line_bytes) * 1e-9


def l2_trip_s(gpu: Gpu, hz: float) -> float:
    """A round trip to L2, of which a part passes at the SM's clock and the rest at L2's, which stays the same."""
    cycles = gpu.l2.latency_cycles + 0.5 * gpu.l2.far_latency_cycles * (gpu.l2.partitions > 1)
    of_sm = min(cycles, gpu.streaming.trip_cycles)
    return of_sm / hz + (cycles - of_sm) / (gpu.clock.boost_mhz * 1e6)


def _code_us(kernel: StreamKernel, gpu: Gpu) -> float:
    return gpu.streaming.code_us * (1.0 if kernel.long_code else gpu.streaming.short_code_fraction)


def _again_s(kernel: StreamKernel, gpu: Gpu, trip_s: float, hz: float) -> float:
    """Waiting for what a CTA read before: as long as its requests take through L1, and to L2 where that lost it."""
    lost = _lost_from_l1(kernel, gpu, ctas_per_sm(kernel, gpu)[0] * gpu.sm.count)
    return kernel.l1_trips * (lost * trip_s + (1.0 - lost) * min(trip_s, gpu.streaming.trip_cycles / hz))


def _cold_part(kernel: StreamKernel, gpu: Gpu, held: Held) -> float:
    """Of the waves, those that wait for HBM: what L2 lacks lies together, and a wave lasts as its slowest CTA."""
    n_waves = -(-kernel.n_ctas // (ctas_per_sm(kernel, gpu)[0] * gpu.sm.count))
    return math.ceil((1.0 - held.x) * n_waves) / n_waves


def _times(kernel: StreamKernel, traffic: Traffic, gpu: Gpu, held: Held, hz: float) -> Times:
    """Waves of as many CTAs as fit, and the rest. Where memory is the bottleneck, a first round trip goes before."""
    l2_rate = gpu.streaming.l2_fraction * gpu.l2.bytes_per_clk * gpu.clock.boost_mhz * 1e6
    hbm_s, l2_s = _hbm_s(kernel, traffic, gpu), traffic.l2_time / l2_rate
    launch_s = (kernel.n_ctas - 1) * gpu.streaming.cta_ns * 1e-9
    memory_s = max(hbm_s, l2_s)
    trip_s, cold_s = l2_trip_s(gpu, hz), _cold_part(kernel, gpu, held) * gpu.hbm.latency_ns * 1e-9
    n_trips = kernel.trips + kernel.l2_trips + kernel.vector_trips
    hbm_trips_s, l2_trips_s = kernel.trips * cold_s, n_trips * trip_s + _again_s(kernel, gpu, trip_s, hz)
    waves = _waves(kernel, gpu, _by_pass(kernel, traffic, held, hbm_s, l2_s), hbm_trips_s + l2_trips_s, hz)
    memory = math.fsum(n * each.memory for n, each in waves)
    n_waves = math.fsum(n for n, _ in waves)
    inside = math.fsum(n * each.total for n, each in waves)
    first = memory_s / inside if inside else 0.0
    vectors_s = kernel.vector_trips * gpu.hbm.latency_ns * 1e-9 * (1.0 - held.w)
    last_s = launch_s + hbm_trips_s + l2_trips_s + kernel.cycles / hz
    return Times(
        floor_s=(gpu.kernel.floor_us + (1.0 - held.code) * _code_us(kernel, gpu)) * 1e-6,
        trips_hbm_s=n_waves * hbm_trips_s + first * cold_s + (1.0 - held.x) * _slowest_line_s(kernel, gpu) + vectors_s,
        trips_l2_s=n_waves * l2_trips_s + first * bool(kernel.trips) * trip_s,
        sm_s=max(0.0, inside - n_waves * (hbm_trips_s + l2_trips_s) - memory),
        start_s=max(0.0, last_s - inside),
        memory_s=memory,
        hbm_s=hbm_s,
        l2_s=l2_s,
    )


def _by_pass(
    kernel: StreamKernel, traffic: Traffic, held: Held, hbm_s: float, l2_s: float
) -> tuple[float, float, float]:
    """What the slower of HBM and L2 takes in a CTA's first pass over its data, in those between, and in the last, which
    writes. What it has to bring again, that is in all but the first."""
    memory_s, once = max(hbm_s, l2_s), (1.0 - held.x) * kernel.read_bytes + (1.0 - held.w) * kernel.vector_bytes
    from_hbm, from_l2 = traffic.hbm_read - once, traffic.l2_read - kernel.l2_read_bytes - kernel.vector_bytes
    again = max(0.0, from_hbm if hbm_s >= l2_s else from_l2)
    last = again / max(1.0, kernel.rereads)
    first, between, last = kernel.read_bytes, again - last, last + kernel.write_bytes
    whole = max(1.0, first + between + last)
    return memory_s * first / whole, memory_s * between / whole, memory_s * last / whole


def _waves(
    kernel: StreamKernel, gpu: Gpu, passes_s: tuple[float, float, float], trips_s: float, hz: float
) -> tuple[tuple[int, Stays], ...]:
    """(how many, what its warps do) of full waves and of the last one, on the SM with the most CTAs. `passes_s`: at the
    memory, all CTAs together."""
    per_sm, _ = ctas_per_sm(kernel, gpu)
    n_full, rest = divmod(kernel.n_ctas, per_sm * gpu.sm.count)
    slots = per_sm * gpu.sm.count
    ramp_s = (min(kernel.n_ctas, slots) - 1) * gpu.streaming.cta_ns * 1e-9
    alone_s, turnround_s = trips_s + kernel.cycles / hz, gpu.kernel.turnround_cycles / hz
    sm, share = kernel.issue_cycles / hz, min(1.0, gpu.sm.count / kernel.n_ctas) / kernel.parties
    first, between, last = (share * each for each in passes_s)

    def wave(n_ctas: int, before_s: float) -> Stays:
        n, elsewhere_s = n_ctas * kernel.parties, max(0.0, before_s + alone_s - sm)
        if not kernel.barrier:
            return stays(n, elsewhere_s, sm / kernel.parties, first + between + last)
        n_between = max(0.0, kernel.rereads - 1.0)
        own_sm = sm / kernel.parties / (2.0 + n_between)
        passes = (
            stays(n, elsewhere_s, own_sm, first),
            stays(n, 0.0, n_between * own_sm, between),
            stays(n, 0.0, own_sm, last),
        )
        return Stays(*map(math.fsum, zip(*passes, strict=True)))

    left = -(-rest // gpu.sm.count)
    found = [(1, wave(per_sm if n_full else left, ramp_s))]
    if n_full > 1:
        found.append((n_full - 1, wave(per_sm, turnround_s)))
    if n_full and rest:
        found.append((1, wave(left, turnround_s)))
    return tuple(found)


def _result(kernel: StreamKernel, gpu: Gpu, options: Options, held: Held, held_mhz: float | None) -> KernelResult:
    mhz = _clock_mhz(gpu, kernel.n_ctas, options, held_mhz)
    per_sm, limit = ctas_per_sm(kernel, gpu)
    slots = per_sm * gpu.sm.count
    traffic = _traffic(kernel, gpu, held, slots)
    times = _times(kernel, traffic, gpu, held, mhz * 1e6)
    found = KernelResult(
        name=kernel.name,
        time_s=times.total_s,
        sm_cycles=times.total_s * mhz * 1e6,
        sm_mhz=mhz,
        config=_config(kernel),
        flops_executed=kernel.flops,
        bytes=_bytes(traffic),
        requests={},
        lookups={},
        utilisation=_utilisation(kernel, traffic, times, gpu, mhz * 1e6),
        waits=times.waits(min(1.0, kernel.n_ctas / slots)),
        occupancy=_occupancy(kernel, gpu, per_sm, limit),
        waves=kernel.n_ctas / slots,
        sampled=False,
        n_events=0,
        windows=Windows(1, np.zeros((0, len(WINDOW_FIELDS)))),
    )
    return replace(found, energy_j=energy_j(gpu, found, "fp32", options.data))


def _config(kernel: StreamKernel) -> dict[str, Any]:
    return {
        "family": "streaming",
        "mma": "fma",
        "n_ctas": kernel.n_ctas,
        "threads": kernel.threads,
        "registers_per_thread": kernel.registers,
        "smem_bytes": kernel.smem_bytes,
    }


def _occupancy(kernel: StreamKernel, gpu: Gpu, per_sm: int, limit: str) -> dict[str, Any]:
    return {
        "ctas_per_sm": per_sm,
        "warps_per_sm": per_sm * -(-kernel.threads // gpu.sm.warp_size),
        "limit": limit,
        "registers_per_thread": kernel.registers,
        "smem_bytes_per_cta": kernel.smem_bytes,
    }


def _bytes(traffic: Traffic) -> dict[str, dict[str, int]]:
    """SMs receive what L2 sends them: no multicast, and what L1 serves is not counted."""
    pairs = {
        "hbm": (traffic.hbm_read, traffic.hbm_write),
        "l2": (traffic.l2_read, traffic.l2_write),
        "sm": (traffic.l2_read, traffic.l2_write),
    }
    return {level: {"read": round(read), "write": round(write)} for level, (read, write) in pairs.items()}


def _utilisation(kernel: StreamKernel, traffic: Traffic, times: Times, gpu: Gpu, hz: float) -> dict[str, float]:
    """Busy fractions of the time inside the CTAs; "tensor" is the CUDA cores' schedulers, as `mma` says."""
    inside = times.total_s - times.floor_s
    ports = max(traffic.l2_read / gpu.l2.sm_port_bytes_per_clk, traffic.l2_write / gpu.l2.sm_store_bytes_per_clk)
    busy = {
        "tensor": kernel.n_ctas * kernel.issue_cycles / gpu.sm.count / hz,
        "smem": 0.0,
        "sm_port": ports / gpu.sm.count / hz,
        "l2": times.l2_s,
        "hbm": times.hbm_s,
    }
    return {name: min(1.0, seconds / inside) if inside > 0.0 else 0.0 for name, seconds in busy.items()}
