"""Which kernel configurations to simulate: the one given, the best few by a closed-form bound, or the whole menu."""

from __future__ import annotations

import dataclasses
from typing import Any

from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.schedule.config import FAMILIES, KernelConfig
from sim.schedule.menu import loads_for, menu
from sim.schedule.plan import tensor_rate
from sim.schedule.resources import flops_per_clk_per_sm, occupancy
from workloads.gemm import Gemm

BEST_BY_BOUND = 8
TMA_BYTES = 16


def default_families(gemm: Gemm, gpu: Gpu) -> tuple[str, ...]:
    """Families that a library would use: warp-specialised kernels, split or not, where TMA can load the operands."""
    aligned = all(gemm.alignment_bytes(operand) >= TMA_BYTES for operand in "ab")
    tensor = flops_per_clk_per_sm("wgmma", gemm.dtype, gpu) > 0 and gemm.dtype not in ("fp64", "fp32")
    return ("persistent", "split_k") if gpu.tensor.tma and aligned and tensor else ("multistage", "split_k")


def bound_s(config: KernelConfig, gemm: Gemm, gpu: Gpu) -> float:
    """Lower estimate of kernel time: waves of tiles at the tensor rate or the L2 rate, and no less than HBM needs."""
    clock = gpu.activity.active_mhz * 1e6
    size = config.cluster_m * config.cluster_n
    tiles_m = -(-gemm.m // (config.block_m * config.cluster_m))
    tiles_n = -(-gemm.n // (config.block_n * config.cluster_n))
    items = tiles_m * tiles_n * gemm.batch * config.split_k
    per_sm = occupancy(config, gemm, gpu).ctas_per_sm
    slots = gpu.sm.count * (1 if config.loads == "tma" else per_sm) // size
    waves = -(-items // max(1, slots))
    iterations = -(-gemm.k // config.block_k // config.split_k)
    mma = 2 * config.block_m * config.block_n * config.block_k / tensor_rate(gemm, config, gpu)
    shared = min(per_sm, -(-items * size // gpu.sm.count)) if config.loads != "tma" else 1
    chunk = (
        (config.block_m / config.cluster_n + config.block_n / config.cluster_m) * config.block_k * gemm.a_element_bytes
    )
    load = chunk * min(items * size, slots * size) / gpu.l2.bytes_per_clk
    fixed = gpu.persistent.epilogue_cycles if config.loads == "tma" else gpu.multistage.epilogue_cycles
    cycles = waves * (iterations * max(mma * shared, load) + fixed)
    traffic = gemm.compulsory_bytes + (
        2 * config.split_k * gemm.m * gemm.n * gemm.batch * 4 if config.split_k > 1 else 0
    )
    hbm = traffic / (gpu.hbm.bandwidth_gb_per_s * gpu.hbm.read_fraction * 1e9)
    reduction = gpu.split_k.reduce_floor_us * 1e-6 if config.split_k > 1 else 0.0
    return max(cycles / clock, hbm) + reduction


def candidates(gemm: Gemm, gpu: Gpu, family: str | None, tile: str) -> tuple[KernelConfig, ...]:
    """Configurations to simulate, best bound first. `tile`: "bound" for the best eight of the menu, "auto" for all.

    Raises `ConfigError` where nothing on the menu fits.
    """
    if tile not in ("bound", "auto"):
        raise ConfigError(f"tile = {tile!r}: must be bound or auto")
    found = ranked(gemm, gpu, family)
    return found if tile == "auto" else found[:BEST_BY_BOUND]


def ranked(gemm: Gemm, gpu: Gpu, family: str | None = None) -> tuple[KernelConfig, ...]:
    """The menu of a family (of the default ones, if None) by `bound_s`, ties in menu order."""
    families = (family,) if family else default_families(gemm, gpu)
    found: list[KernelConfig] = []
    refused: ConfigError | None = None
    for name in families:
        try:
            found += menu(gpu, name, gemm)
        except ConfigError as error:
            refused = refused or error
    if not found and refused:
        raise refused
    return tuple(sorted(found, key=lambda config: bound_s(config, gemm, gpu)))


def complete(gemm: Gemm, gpu: Gpu, family: str | None = None, **given: Any) -> KernelConfig:
    """A configuration with the fields of `given` (names of KernelConfig), the rest from the nearest menu entry.

    Nearest: the most given fields in common, then the least bound. Raises `ConfigError` where the result does not fit.
    """
    if family is not None and family not in FAMILIES:
        raise ConfigError(f"family = {family!r}: must be one of {', '.join(FAMILIES)}")
    split = given.get("split_k", 1) > 1
    base = family or ("split_k" if split else default_families(gemm, gpu)[0])
    entries = ranked(gemm, gpu, base)
    best = max(entries, key=lambda config: sum(getattr(config, name) == value for name, value in given.items()))
    config = dataclasses.replace(best, **given)
    if config.loads == "cp_async":
        config = dataclasses.replace(config, loads=loads_for(gemm, gpu), **_instruction(config, best))
    if config.loads == "tma" and "mma_m_along" not in given:
        config = dataclasses.replace(config, mma_m_along=_along(config))
    if "stages" not in given:
        config = _fewer_stages(config, gemm, gpu)
    occupancy(config, gemm, gpu)
    return config


def _along(config: KernelConfig) -> str:
    """The side that holds whole instructions of 64 rows, that along n where both do (as cuBLAS names say)."""
    return "n" if config.block_n % 64 == 0 else "m"


def _instruction(config: KernelConfig, best: KernelConfig) -> dict[str, str]:
    """Tiles of fewer than 64 rows fall back from wgmma to mma.sync."""
    return {"mma": "mma_sync"} if best.mma == "wgmma" and config.block_m < 64 else {}


def _fewer_stages(config: KernelConfig, gemm: Gemm, gpu: Gpu) -> KernelConfig:
    """As many of the menu's stages as fit."""
    for stages in range(config.stages, 1, -1):
        fewer = dataclasses.replace(config, stages=stages)
        try:
            occupancy(fewer, gemm, gpu)
        except ConfigError:
            continue
        return fewer
    return config
