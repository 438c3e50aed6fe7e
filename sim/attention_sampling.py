"""Long attention kernels repeat themselves: replay two short ones, and add what lies between as often as it is needed.

One query, or few, against many keys: time and bytes grow by the same with every block of keys, once memory is busy.
Many heads: they grow by the same with every few heads, once all SMs are. Both within 2 % of a whole replay.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sim.result import KernelResult
from sim.schedule.attention import AttentionKernel
from workloads.attention import Attention

FEW_STEPS, MANY_STEPS = 20_000, 1_500_000
"""k-iterations of a kernel up to which keys, and from which on heads, are all replayed."""
SHORT_BLOCKS, LONG_BLOCKS, LEAST_BLOCKS = 8, 16, 48
"""Blocks of keys of a slice in the two that are replayed, and from which on they stand for it."""
MANY_LENGTHS = 128
"""Query blocks of a head from which on causal masks give items of every length."""
WORTH = 0.75
"""Of a kernel's heads, more than which are not replayed in place of all."""
WAVES = 12
"""Waves of items in each of two replays of some heads, and between them, at least."""


@dataclass(frozen=True)
class Sample:
    """Two calls to replay; the kernel is the second and `n_more` times what it has more than the first."""

    first: tuple[AttentionKernel, Attention]
    second: tuple[AttentionKernel, Attention]
    n_more: float


def sample(kernel: AttentionKernel, work: Attention, n_agents: int) -> Sample | None:
    """What stands for the kernel on `n_agents` CTA slots, or None where all of it is replayed."""
    if kernel.family == "flash_backward":
        grid, n_blocks = -(-work.kv_len // kernel.block_kv), -(-work.q_len // kernel.block_q)
    else:
        grid, n_blocks = -(-kernel.rows // kernel.block_q), -(-work.kv_len // kernel.block_kv)
    n_steps = 2 * work.batch * kernel.heads * grid * n_blocks
    masked = work.window is not None or (work.causal and work.q_len > 1)
    if grid == 1 and not masked and n_steps > FEW_STEPS and n_blocks >= LEAST_BLOCKS * kernel.splits:
        return _fewer_keys(kernel, work, n_blocks)
    if n_steps > MANY_STEPS * (2 if masked else 1) and kernel.splits == 1:
        return _fewer_heads(kernel, work, grid, n_agents)
    return None


def _fewer_keys(kernel: AttentionKernel, work: Attention, n_blocks: int) -> Sample:
    short, long = (n * kernel.splits for n in (SHORT_BLOCKS, LONG_BLOCKS))
    first, second = ((kernel, replace(work, kv_len=n * kernel.block_kv)) for n in (short, long))
    return Sample(first, second, (work.kv_len / kernel.block_kv - long) / (long - short))


def _fewer_heads(kernel: AttentionKernel, work: Attention, grid: int, n_agents: int) -> Sample | None:
    """Heads after which waves and heads begin together again, and as many before as leave the last wave as full as it
    is. Where blocks of very different length follow each other, waves have no edges: any number will do."""
    group, matrices = kernel.group(work), work.batch * kernel.heads
    some = -(-WAVES * n_agents // (grid * group)) * group
    period = math.lcm(n_agents // math.gcd(n_agents, grid), group)
    if work.causal and grid >= MANY_LENGTHS:
        period, first = some, some
    else:
        period *= -(-some // period)
        first = matrices % period or period
        first += 0 if first >= some else period
    if 2 * first + period > WORTH * matrices:
        return None

    def part(n: int) -> tuple[AttentionKernel, Attention]:
        """`n` of the heads that the kernel sees, as sequences of those that share one head of K and V."""
        alone = replace(work, batch=n // group, heads=work.heads // work.kv_heads, kv_heads=1)
        return replace(kernel, heads=group), alone

    return Sample(part(first), part(first + period), (matrices - first - period) / period)


def extrapolated(first: KernelResult, second: KernelResult, n_more: float, flops: int, waves: float) -> KernelResult:
    """The kernel that `Sample` describes, from its two replays. `flops` and `waves` are its own."""

    def more(a: float, b: float) -> float:
        return b + n_more * (b - a)

    def counts(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
        return {name: round(more(a[name], b[name])) for name in b}

    def shares(a: Mapping[str, float], b: Mapping[str, float]) -> dict[str, float]:
        return {n: min(1.0, max(0.0, more(a[n] * first.time_s, b[n] * second.time_s) / time_s)) for n in b}

    time_s, cycles = more(first.time_s, second.time_s), more(first.sm_cycles, second.sm_cycles)
    waits = shares(first.waits, second.waits)
    used = sum(waits.values())
    return replace(
        second,
        time_s=time_s,
        sm_cycles=cycles,
        sm_mhz=cycles / time_s / 1e6,
        flops_executed=flops,
        bytes={level: counts(first.bytes[level], second.bytes[level]) for level in second.bytes},
        requests={level: counts(first.requests[level], second.requests[level]) for level in second.requests},
        lookups=counts(first.lookups, second.lookups),
        utilisation=shares(first.utilisation, second.utilisation),
        waits={name: share / used for name, share in waits.items()},
        waves=waves,
        sampled=True,
        n_events=first.n_events + second.n_events,
    )
