"""Combinations of values that no GPU can have, each refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from hwmodels.spec import Gpu

PCIE_LANE_GB_PER_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563, 7: 15.125, 8: 30.25}
"""{generation: GB/s of one lane in one direction} after line coding, before packet overhead; 1-7 from the PCI-SIG's
raw rates (2.5, 5, 8, 16, 32, 64, 128 GT/s), 8 as announced."""


class Rule(NamedTuple):
    """One law: the keys it binds, what it says, and whether a GPU keeps it."""

    keys: tuple[str, ...]
    text: str
    holds: Callable[[Gpu], bool]


_TENSOR_RATES = tuple(
    f"tensor.{dtype}_flops_per_clk_per_sm" for dtype in ("fp64", "tf32", "fp16", "bf16", "fp8", "int8")
)
_CUDA_CORE_RATES = tuple(f"cuda_core.{dtype}_flops_per_clk_per_sm" for dtype in ("fp64", "fp32", "fp16"))


def value_at(gpu: Gpu, key: str) -> Any:
    """The value under a key such as `hbm.bandwidth_gb_per_s`."""
    section, _, name = key.rpartition(".")
    return getattr(getattr(gpu, section) if section else gpu, name)


def link_gb_per_s(gpu: Gpu) -> float:
    """Bandwidth of the GPU's PCI Express link in one direction, GB/s, before packet overhead."""
    return PCIE_LANE_GB_PER_S[gpu.pcie.generation] * gpu.pcie.lanes


def _present_or_absent(gpu: Gpu, keys: tuple[str, ...]) -> bool:
    return not any(0 < value_at(gpu, key) < 1 for key in keys)


MOST_GPCS = 64
"""As `sim.records.MAX_GPCS`; a test compares."""

RULES: tuple[Rule, ...] = (
    Rule(
        _TENSOR_RATES,
        "a tensor core rate is 0 (the GPU lacks it) or at least 1 FLOP/clk/SM",
        lambda gpu: _present_or_absent(gpu, _TENSOR_RATES),
    ),
    Rule(
        _CUDA_CORE_RATES,
        "a CUDA core rate is 0 (the GPU lacks it) or at least 1 FLOP/clk/SM",
        lambda gpu: _present_or_absent(gpu, _CUDA_CORE_RATES),
    ),
    Rule(
        ("clock.base_mhz", "clock.boost_mhz"),
        "the base clock is above the boost clock",
        lambda gpu: gpu.clock.base_mhz <= gpu.clock.boost_mhz,
    ),
    Rule(
        ("activity.active_mhz", "activity.tensor_mhz"),
        "a fully busy kernel would have no clock left (active - tensor must be positive)",
        lambda gpu: gpu.activity.active_mhz > gpu.activity.tensor_mhz,
    ),
    Rule(
        ("sm.count", "sm.sms_per_tpc", "sm.tpcs_per_gpc"),
        f"the SMs would form more than {MOST_GPCS} GPCs, which is what the engine holds",
        lambda gpu: gpu.sm.count <= MOST_GPCS * gpu.sm.sms_per_tpc * gpu.sm.tpcs_per_gpc,
    ),
    Rule(
        ("smem.max_kib_per_cta", "smem.reserved_bytes_per_cta", "smem.kib_per_sm"),
        "a CTA with its largest shared memory and the reserved bytes does not fit an SM",
        lambda gpu: gpu.smem.max_kib_per_cta * 1024 + gpu.smem.reserved_bytes_per_cta <= gpu.smem.kib_per_sm * 1024,
    ),
    Rule(
        ("sm.warp_size", "tensor.wgmma", "tensor.tmem_kib_per_sm"),
        "a warp has 32 threads, or 64 where there is neither wgmma nor tcgen05",
        lambda gpu: (
            gpu.sm.warp_size == 32 or (gpu.sm.warp_size == 64 and not (gpu.tensor.wgmma or gpu.tensor.tmem_kib_per_sm))
        ),
    ),
    Rule(
        ("launch.sync_us", "launch.stream_us"),
        "a launch and the wait for its end take less time than a launch alone",
        lambda gpu: gpu.launch.sync_us >= gpu.launch.stream_us,
    ),
    Rule(
        ("sm.max_threads_per_cta", "sm.max_warps", "sm.warp_size"),
        "the largest CTA has more threads than the warps an SM can hold",
        lambda gpu: gpu.sm.max_threads_per_cta <= gpu.sm.max_warps * gpu.sm.warp_size,
    ),
    Rule(
        ("sm.max_ctas", "sm.max_warps"),
        "an SM holds more CTAs than warps",
        lambda gpu: gpu.sm.max_ctas <= gpu.sm.max_warps,
    ),
    Rule(
        ("sm.schedulers", "sm.max_warps"),
        "an SM has more schedulers than warps",
        lambda gpu: gpu.sm.schedulers <= gpu.sm.max_warps,
    ),
    Rule(
        ("registers.max_per_thread", "sm.warp_size", "registers.per_sm"),
        "one warp with the most registers a thread does not fit the register file",
        lambda gpu: gpu.registers.max_per_thread * gpu.sm.warp_size <= gpu.registers.per_sm,
    ),
    Rule(
        ("registers.allocation_per_warp", "registers.per_sm"),
        "the allocation granularity does not divide the register file",
        lambda gpu: gpu.registers.per_sm % gpu.registers.allocation_per_warp == 0,
    ),
    Rule(
        ("l2.sector_bytes", "l2.line_bytes"),
        "sectors do not divide a line",
        lambda gpu: gpu.l2.line_bytes % gpu.l2.sector_bytes == 0,
    ),
    Rule(
        ("l2.capacity_mib", "hbm.capacity_gb"),
        "L2 is larger than the memory behind it",
        lambda gpu: gpu.l2.capacity_mib * 2**20 < gpu.hbm.capacity_gb * 1e9,
    ),
    Rule(
        ("tensor.wgmma", "tensor.tma"),
        "wgmma needs tma, which fills the shared memory it reads",
        lambda gpu: gpu.tensor.tma or not gpu.tensor.wgmma,
    ),
    Rule(
        ("tensor.tmem_kib_per_sm", "tensor.tma"),
        "tensor memory needs tma, which fills the shared memory that tcgen05 reads",
        lambda gpu: gpu.tensor.tma or not gpu.tensor.tmem_kib_per_sm,
    ),
    Rule(
        ("tensor.tma", "tensor.cp_async"),
        "tma needs cp_async, the asynchronous copies it extends",
        lambda gpu: gpu.tensor.cp_async or not gpu.tensor.tma,
    ),
    Rule(
        ("pcie.pinned_h2d_gb_per_s", "pcie.generation", "pcie.lanes"),
        "copies to the GPU are faster than the link",
        lambda gpu: gpu.pcie.pinned_h2d_gb_per_s <= link_gb_per_s(gpu),
    ),
    Rule(
        ("pcie.pinned_d2h_gb_per_s", "pcie.generation", "pcie.lanes"),
        "copies to the host are faster than the link",
        lambda gpu: gpu.pcie.pinned_d2h_gb_per_s <= link_gb_per_s(gpu),
    ),
)
"""Every law, in the order in which they are looked at."""


def first_broken(gpu: Gpu) -> Rule | None:
    """The first law that the GPU breaks, None if it keeps them all."""
    return next((rule for rule in RULES if not rule.holds(gpu)), None)
