"""Attention as kernels: FlashAttention-2, cuDNN's, FlashAttention-3 and the unfused products, forward and backward."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.attention_sampling import extrapolated, sample
from sim.call import Options, small_kernel, with_energy
from sim.kernel import run_kernel
from sim.machine import build_machine
from sim.power import settled
from sim.residency import distinct_bytes, kept_part
from sim.result import KernelResult
from sim.schedule.attention import (
    AttentionKernel,
    check_backend,
    cudnn_forward,
    flash3_forward,
    flash_backward,
    flash_forward,
)
from sim.schedule.attention_plan import build_attention_plan, longest_part
from sim.schedule.plan import Plan
from sim.streaming import stream_kernels
from sim.unfused import passed, unfused_kernels
from workloads.attention import Attention
from workloads.stream import Stream

ROLES = ("q", "k", "v")
FORWARD = {"flash": flash_forward, "cudnn": cudnn_forward, "flash3": flash3_forward}
FP32_BYTES = 4
COMBINE_STEPS = 4
"""Dependent passes of the combine kernel before it adds slices one by one: load, maximum, sum and scale of their
logarithms (flash_fwd_kernel.h, combine_attn_seqk_parallel)."""


def attention_kernels(
    work: Attention,
    gpu: Gpu,
    options: Options,
    *,
    backend: str = "flash",
    resident: Mapping[str, float] | None = None,
) -> tuple[KernelResult, ...]:
    """The kernels of one call, in launch order. Their sum is the call's time, without gaps.

    `backend`: "flash" (FlashAttention-2 as PyTorch ships it), "cudnn" (Hopper), "flash3" (not measured), "math" or
    "unfused" (`sim.unfused`). `resident`: fraction of "q", "k" and "v" that lies in L2 at the start; K and V as their
    mean.
    Not modelled: dropout, bias, alibi, soft capping.
    Raises ConfigError for what no kernel of the backend takes, and for a role or fraction that is none.
    """
    resident = _checked(resident or {})
    check_backend(work, gpu, backend)
    if backend in ("math", "unfused"):
        return unfused_kernels(work, gpu, options, backend)
    if work.phase == "backward":
        return _backward(work, gpu, options, resident)
    kernel = FORWARD[backend](work, gpu)
    plan = build_attention_plan(kernel, work, gpu, options.without)
    main = _main(kernel, plan, work, gpu, options, resident)
    return (*_before(kernel, gpu, main, work), main, *_after(kernel, plan, work, gpu, main))


def _checked(resident: Mapping[str, float]) -> Mapping[str, float]:
    for role, fraction in resident.items():
        if role not in ROLES:
            raise ConfigError(f"resident role = {role!r}: must be one of {', '.join(ROLES)} (attention)")
        if not 0 <= fraction <= 1:
            raise ConfigError(f"resident {role} = {fraction!r}: must be from 0 to 1 (attention)")
    return resident


def _main(
    kernel: AttentionKernel, plan: Plan, work: Attention, gpu: Gpu, options: Options, resident: Mapping[str, float]
) -> KernelResult:
    """The kernel that multiplies, at a held clock, a burst's, or what the board's power leaves."""
    q, k, v = (resident.get(role, 0.0) for role in ROLES)

    whole = options.full or options.trace or any((q, k, v))
    found = None if whole else sample(kernel, work, plan.work.n_agents)

    def replayed(plan: Plan, clock_mhz: float | None) -> KernelResult:
        return run_kernel(
            build_machine(gpu, clock_mhz, options.without, options.sustained),
            plan,
            resident=(q, (k + v) / 2),
            floor_s=gpu.kernel.floor_us * 1e-6,
            trace=options.trace,
            name=kernel.name,
        )

    def run(clock_mhz: float | None) -> KernelResult:
        if found is None:
            result = replayed(plan, clock_mhz)
        else:
            plans = [build_attention_plan(*each, gpu, options.without) for each in (found.first, found.second)]
            first, second = (replayed(each, clock_mhz) for each in plans)
            waves = plan.work.n_items / plan.work.n_agents
            result = extrapolated(first, second, found.n_more, plan.flops_executed, waves)
        config = dataclasses.asdict(plan.config) | {
            "measured": kernel.measured,
            "splits": plan.work.splits,
            "longest_part": longest_part(kernel, work, gpu),
        }
        return with_energy(gpu, dataclasses.replace(result, config=config), work.dtype, options.data)

    main = run(options.clock_mhz)
    by_power = options.sustained and not gpu.activity.sustained_tensor_mhz
    if by_power and options.clock_mhz is None and "clock" not in options.without:
        main = settled(gpu, main, run)
    return main


def _before(kernel: AttentionKernel, gpu: Gpu, main: KernelResult, work: Attention) -> tuple[KernelResult, ...]:
    """cuDNN clears the counter by which its persistent CTAs take items."""
    if not kernel.persistent:
        return ()
    memset = small_kernel("memset", gpu.persistent.memset_us * 1e-6, main.sm_mhz, (0, FP32_BYTES), (0, 0))
    return (with_energy(gpu, memset, work.dtype),)


def combined_rows(width: int) -> int:
    """Rows of the output that a CTA of the combine kernel joins (flash_fwd_launch_template.h)."""
    return 4 if width % 128 == 0 else 8 if width % 64 == 0 else 16


def _after(
    kernel: AttentionKernel, plan: Plan, work: Attention, gpu: Gpu, main: KernelResult
) -> tuple[KernelResult, ...]:
    """The kernel that joins the slices of the keys."""
    splits = plan.work.splits
    if splits == 1:
        return ()
    rows = work.batch * work.heads * work.q_len
    read = splits * rows * (work.head_dim + 1) * FP32_BYTES
    spilled = max(0, read - int(gpu.l2.capacity_mib * 2**20))
    moved_s = (read + work.q_bytes) / (gpu.split_k.reduce_gb_per_s * 1e9)
    hbm_s = spilled / (gpu.hbm.bandwidth_gb_per_s * gpu.hbm.read_fraction * 1e9)
    fixed_s = gpu.split_k.reduce_floor_us * 1e-6
    if kernel.family == "flash_split":
        ctas = -(-rows // combined_rows(kernel.width))
        whole = kept_part(work.kv_bytes, plan.work.n_items / plan.work.n_agents, distinct_bytes(gpu)) == 1.0
        fixed_s += (COMBINE_STEPS + splits) * gpu.attention.combine_slice_us * 1e-6 + ctas * gpu.kernel.launch_ns * 1e-9
        fixed_s += 0.0 if whole else splits * gpu.hbm.latency_ns * 1e-9
    joined = small_kernel("combine", fixed_s + max(moved_s, hbm_s), main.sm_mhz, (read, work.q_bytes), (spilled, 0))
    return (with_energy(gpu, joined, work.dtype),)


def _backward(work: Attention, gpu: Gpu, options: Options, resident: Mapping[str, float]) -> tuple[KernelResult, ...]:
    """FlashAttention-2's backward: row sums of dO x O and a cleared dQ; dQ, dK and dV; dQ converted. Where heads share
    keys, dK and dV of the heads of a group are added after that, as PyTorch does."""
    kernel = flash_backward(work, gpu)
    plan = build_attention_plan(kernel, work, gpu, options.without)
    main = _main(kernel, plan, work, gpu, options, {})
    dq32 = work.batch * work.heads * work.q_len * work.head_dim * FP32_BYTES
    rows = work.batch * work.heads * work.q_len * FP32_BYTES
    before = _pass(gpu, work, "dot_do_o", 2 * work.q_bytes, dq32 + rows)
    return before, main, _pass(gpu, work, "convert_dq", dq32, work.q_bytes), *_group_sums(work, gpu, options, dq32)


def _group_sums(work: Attention, gpu: Gpu, options: Options, dq32: int) -> tuple[KernelResult, ...]:
    """Sums of dK and of dV over the query heads of a group. L2 holds of them what dQ, converted last, leaves."""
    if work.group == 1:
        return ()
    total = Stream("reduce", work.batch * work.kv_len, work.kv_heads * work.head_dim, work.dtype, fan_in=work.group)
    room = gpu.l2.capacity_mib * 2**20 / gpu.l2.partitions - dq32 - work.q_bytes
    held = min(1.0, max(0.0, room / (work.all_kv_bytes * work.group)))
    first, second = ({"x": held, "code": code} for code in (0.0, 1.0))
    return (*stream_kernels(total, gpu, options, resident=first), *stream_kernels(total, gpu, options, resident=second))


def _pass(gpu: Gpu, work: Attention, name: str, read: int, write: int) -> KernelResult:
    return with_energy(gpu, passed(gpu, name, read, write), work.dtype)
