"""What microbenchmarks say of a GPU, read and not fitted: one entry of `READINGS` for each value that a table can give.

A value that agrees with the GPU's within `SAME` is left with its own source; one that the GPU marks fitted is left too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from hwmodels.rules import link_gb_per_s, value_at
from hwmodels.spec import FIELDS
from sim.calibration.tables import Bench, number

if TYPE_CHECKING:
    from hwmodels.spec import Gpu

SAME = 0.01
"""Relative difference up to which a reading agrees with what the GPU's file says already."""
KIB, MIB = 2**10, 2**20
L2_RATE = "l2.bytes_per_clk"
LONG_BYTES = 2**30
"""Footprint from which a read runs at the memory's rate: many times every L2."""


@dataclass(frozen=True)
class Reading:
    """One value read off microbenchmarks, beside what the GPU holds; `said` tells how it was read."""

    key: str
    before: float
    value: float
    said: str
    file: str

    @property
    def agrees(self) -> bool:
        """Whether it says what the GPU's file says already."""
        return abs(self.value / self.before - 1) <= SAME if self.before else self.value == 0


@dataclass(frozen=True)
class _Recipe:
    key: str
    bench: str
    said: str
    read: Callable[[list[Bench], Gpu], float]
    """From the lines of the bench to the value; NaN where they do not hold it."""


def read(benches: Sequence[Bench], gpu: Gpu, counted_gb_per_s: float = 0.0) -> tuple[Reading, ...]:
    """Every value that these lines give and that may be replaced, in the order of `READINGS`. `counted_gb_per_s`: the
    most that L2 sent to a counted kernel, over its whole time; where the lines fall short of it, it counts."""
    by_name: dict[str, list[Bench]] = {}
    for bench in benches:
        by_name.setdefault(bench.name, []).append(bench)
    found = []
    for recipe in READINGS:
        lines = by_name.get(recipe.bench, [])
        value = recipe.read(lines, gpu) if lines and gpu.provenance[recipe.key].kind != "fitted" else math.nan
        if recipe.key == L2_RATE:
            value = max(value, counted_gb_per_s / (gpu.clock.boost_mhz / 1e3))
        field = FIELDS[recipe.key]
        if field.low is not None and field.high is not None and field.low <= value <= field.high:
            rounded = float(f"{value:.4g}")
            found.append(Reading(recipe.key, float(value_at(gpu, recipe.key)), rounded, recipe.said, lines[0].file))
    return tuple(found)


# Arithmetic on lines of a bench.
def _l2_bytes(gpu: Gpu) -> float:
    return gpu.l2.capacity_mib * MIB


def _best(values: list[float]) -> float:
    return max(values, default=math.nan)


def _only(lines: list[Bench], gpu: Gpu) -> float:
    return lines[-1].number


def _near_l2(lines: list[Bench], gpu: Gpu) -> float:
    """The plateau of a pointer chase: footprints of a thirtieth to a quarter of L2, all in the near partition."""
    low, high = _l2_bytes(gpu) / 32, _l2_bytes(gpu) / 3.6
    plateau = [line.number for line in lines if low <= line.param("footprint") <= high]
    return median(plateau) if plateau else math.nan


def _memory_latency_ns(lines: list[Bench], gpu: Gpu) -> float:
    """What the longest chase takes beyond the plateau."""
    longest = max(lines, key=lambda line: line.param("footprint"))
    beyond = longest.param("footprint") >= LONG_BYTES
    return longest.number - _near_l2(lines, gpu) if beyond else math.nan


def _reads(lines: list[Bench], blocks: int, low: float, high: float) -> list[float]:
    """GB/s of reads by so many SMs from footprints between two sizes in bytes."""
    return [line.number for line in lines if line.param("blocks") == blocks and low <= line.param("footprint") <= high]


def _l2_rate(blocks: Callable[[Gpu], int]) -> Callable[[list[Bench], Gpu], float]:
    """Bytes a cycle of the boost clock that so many SMs read from L2 at best."""

    def read(lines: list[Bench], gpu: Gpu) -> float:
        return _best(_reads(lines, blocks(gpu), 0, 0.7 * _l2_bytes(gpu))) / (gpu.clock.boost_mhz / 1e3)

    return read


def _read_fraction(lines: list[Bench], gpu: Gpu) -> float:
    return _best(_reads(lines, gpu.sm.count, LONG_BYTES, math.inf)) / gpu.hbm.bandwidth_gb_per_s


def _write_fraction(lines: list[Bench], gpu: Gpu) -> float:
    return _best([line.number for line in lines]) / gpu.hbm.bandwidth_gb_per_s


def _mma_sync_fraction(lines: list[Bench], gpu: Gpu) -> float:
    peak = gpu.tensor.bf16_flops_per_clk_per_sm
    return _best([line.number for line in lines]) / peak if peak else math.nan


def _drain(lines: list[Bench], gpu: Gpu) -> float:
    """What waiting for each group of four instructions adds, times four."""
    cycles = {line.param("wait_each_group_of_4"): line.number for line in lines if line.param("warpgroups") == 1}
    return 4 * (cycles.get(1.0, math.nan) - cycles.get(0.0, math.nan))


def _turnround(lines: list[Bench], gpu: Gpu) -> float:
    """Median of the medians (values are p10;p50;p90) with one CTA an SM."""
    middle = [
        number(line.value.split(";")[1]) for line in lines if ";" in line.value and line.param("ctas_per_sm") == 1
    ]
    return median(middle) if middle else math.nan


def _empty_kernel_us(lines: list[Bench], gpu: Gpu) -> float:
    """Median over kernels of one CTA an SM."""
    whole = [line.number for line in lines if line.param("blocks") == gpu.sm.count]
    return median(whole) if whole else math.nan


def _copy(lines: list[Bench], gpu: Gpu) -> float:
    """GB/s of the longest copy; NaN for one that would be faster than the link."""
    rate = max(lines, key=lambda line: line.param("bytes")).number
    return rate if rate <= link_gb_per_s(gpu) else math.nan


def _copy_latency_us(lines: list[Bench], gpu: Gpu) -> float:
    """Time of the shortest copy less that of its bytes at the rate of the longest."""
    shortest = min(lines, key=lambda line: line.param("bytes"))
    return shortest.param("us") - shortest.param("bytes") / (1e3 * _copy(lines, gpu))


READINGS = (
    _Recipe("smem.latency_cycles", "smem_latency", "pointer chase", _only),
    _Recipe("tensor.mma_sync_fraction", "mma_sync_m16n8k16_bf16", "best rate over the peak", _mma_sync_fraction),
    _Recipe("l2.latency_cycles", "latency_cg", "plateau of the pointer chase", _near_l2),
    _Recipe(
        L2_RATE, "read_bw", "best of all SMs inside L2, or of a counted kernel", _l2_rate(lambda gpu: gpu.sm.count)
    ),
    _Recipe("l2.sm_port_bytes_per_clk", "read_bw", "one SM alone inside L2", _l2_rate(lambda gpu: 1)),
    _Recipe("hbm.read_fraction", "read_bw", "all SMs from 1 GiB or more, over the pins' peak", _read_fraction),
    _Recipe("hbm.write_fraction", "write_bw", "over the pins' peak", _write_fraction),
    _Recipe("hbm.latency_ns", "latency_ca_ns", "longest chase less the plateau", _memory_latency_ns),
    _Recipe("multistage.drain_cycles", "wgmma_m64n64k16_bf16_cycles_per_inst", "waiting for each group of 4", _drain),
    _Recipe("kernel.turnround_cycles", "cta_turnround", "median, one CTA an SM", _turnround),
    _Recipe("kernel.floor_us", "empty_kernel", "median, one CTA an SM", _empty_kernel_us),
    _Recipe("launch.stream_us", "launch_stream_back_to_back", "as measured", _only),
    _Recipe("launch.sync_us", "launch_and_sync", "as measured", _only),
    _Recipe("pcie.pinned_h2d_gb_per_s", "h2d_pinned", "longest copy", _copy),
    _Recipe("pcie.pinned_d2h_gb_per_s", "d2h_pinned", "longest copy", _copy),
    _Recipe("pcie.pageable_h2d_gb_per_s", "h2d_pageable", "longest copy", _copy),
    _Recipe("pcie.pageable_d2h_gb_per_s", "d2h_pageable", "longest copy", _copy),
    _Recipe("pcie.copy_latency_us", "h2d_pinned", "shortest copy less its bytes' time", _copy_latency_us),
)
