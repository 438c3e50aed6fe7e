"""The kernel configurations to choose from: a family's menu is data of the GPU's architecture (`hwmodels/menus`)."""

from __future__ import annotations

import dataclasses
import itertools
import math
import tomllib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import hwmodels
from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.schedule.config import FAMILIES, KernelConfig
from sim.schedule.formats import stored_bytes
from sim.schedule.launches import CLUSTER_SLOTS, band
from sim.schedule.resources import CP_ASYNC_MIN_BYTES, check_dtype, flops_per_clk_per_sm, occupancy, smem_bytes
from sim.schedule.stream_k import LEAST_ITERATIONS
from workloads.gemm import Gemm

LEAST_SPLIT_BYTES = 2048
"""Bytes along k below which a slice is not worth a launch of its own."""
MOST_SPLIT = 64
MOST_TMA_STAGES = 16
"""As in the nvjet names of the H200's gemm.csv: stages fill shared memory, up to these."""
SMALL_SIDE = 64
"""Tile side that is offered however small the output."""


@lru_cache(maxsize=64)
def menu(gpu: Gpu, family: str, gemm: Gemm) -> tuple[KernelConfig, ...]:
    """Every configuration of `family` that fits `gpu` and `gemm`, complete, in the order of the menu's file.

    Raises `ConfigError` for an unknown family or architecture, a data type that the GPU lacks, and where nothing fits,
    with the first reason.
    """
    if family not in FAMILIES:
        raise ConfigError(f"family = {family!r}: must be one of {', '.join(FAMILIES)} (kernel menu)")
    check_dtype(gemm, gpu)
    found: list[KernelConfig] = []
    reasons: list[str] = []
    for config in _candidates(gpu, family, gemm):
        try:
            occupancy(config, gemm, gpu)
        except ConfigError as refused:
            reasons.append(str(refused))
        else:
            found.append(config)
    if not found:
        none = "k is too short to split" if family == "split_k" else f"not in the menu of {gpu.architecture}"
        reason = reasons[0] if reasons else none
        raise ConfigError(f"family = {family!r}: nothing fits {gpu.name} and the workload: {reason}")
    return tuple(found)


@lru_cache(maxsize=64)
def stream_k(gpu: Gpu, gemm: Gemm) -> tuple[KernelConfig, ...]:
    """The cooperative kernels of the persistent menu as stream-K, those whose tiles can be cut and fill half of the
    last wave at most (of others CUTLASS's own choice is whole tiles). No library's menu has them."""
    if gemm.accumulator_dtype != "fp32" or not has_any(gpu, "persistent", gemm):
        return ()
    return tuple(
        dataclasses.replace(config, stream_k=True)
        for config in menu(gpu, "persistent", gemm)
        if not config.pingpong
        and -(-gemm.k // config.block_k) >= 2 * LEAST_ITERATIONS
        and 0 < _last_wave(config, gemm, gpu) <= 0.5
    )


def _last_wave(config: KernelConfig, gemm: Gemm, gpu: Gpu) -> float:
    """The part of the slots that the last wave of tiles fills; 0 where all waves are full."""
    slots = cluster_slots(gpu, config.cluster_m * config.cluster_n)
    return _n_tiles(config, gemm) % slots / slots


def families(gpu: Gpu, gemm: Gemm) -> tuple[str, ...]:
    """The families of which at least one configuration fits."""
    return tuple(family for family in FAMILIES if has_any(gpu, family, gemm))


def has_any(gpu: Gpu, family: str, gemm: Gemm) -> bool:
    """Whether the family's menu has a configuration that fits."""
    try:
        return bool(menu(gpu, family, gemm))
    except ConfigError:
        return False


@lru_cache(maxsize=16)
def menu_data(architecture: str) -> dict[str, Any]:
    """The architecture's menu file, over that of one that it is `like`. Raises `ConfigError` where there is none."""
    path = Path(hwmodels.__file__).parent / "menus" / f"{architecture}.toml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in path.parent.glob("*.toml")))
        raise ConfigError(f"architecture = {architecture!r}: must be one of {known} to have a kernel menu; give a tile")
    data = tomllib.loads(path.read_text("utf-8"))
    return (menu_data(data.pop("like")) if "like" in data else {}) | data


def _candidates(gpu: Gpu, family: str, gemm: Gemm) -> Iterator[KernelConfig]:
    if family == "persistent":
        return _persistent(gpu, gemm)
    return _multistage(gpu, gemm) if family == "multistage" else _split(gpu, gemm)


def _persistent(gpu: Gpu, gemm: Gemm) -> Iterator[KernelConfig]:
    data = menu_data(gpu.architecture).get("persistent")
    if data is None:
        return
    for row in data["rows_by_element_bytes"].get(str(gemm.a_element_bytes), ()):
        entry = dict(zip(data["columns"], row, strict=True))
        if not _suits(entry, gemm):
            continue
        schedule = entry.pop("schedule")
        slots = cluster_slots(gpu, entry["cluster_m"] * entry["cluster_n"])
        sides = (entry["block_n"], entry["block_m"])
        along, across = sides if entry["raster"] == "n" else sides[::-1]
        config = KernelConfig(
            family="persistent",
            **{"warps": 12, "mma": "wgmma"} | data.get("all", {}),
            group=band(slots, along, across),
            pingpong=schedule == "pingpong",
            loads="tma",
            **entry,
        )
        yield config if gemm.weights_format == "dense" else _for_weights(config, gpu, gemm)


def _for_weights(config: KernelConfig, gpu: Gpu, gemm: Gemm) -> KernelConfig:
    """The same kernel for weights that are not dense: they lie along wgmma's M, and smaller stages fill the room."""
    config = dataclasses.replace(config, mma_m_along="n")
    room = int(gpu.smem.max_kib_per_cta * 1024) - smem_bytes(dataclasses.replace(config, stages=0), gemm, gpu)
    stage = smem_bytes(dataclasses.replace(config, stages=1), gemm, gpu) - smem_bytes(
        dataclasses.replace(config, stages=0), gemm, gpu
    )
    return dataclasses.replace(config, stages=max(2, min(MOST_TMA_STAGES, room // stage)))


def cluster_slots(gpu: Gpu, cluster: int) -> int:
    """Clusters that run at once: measured on 132 SMs, else as many as SMs allow."""
    if gpu.sm.count == CLUSTER_SLOTS[1]:
        return CLUSTER_SLOTS.get(cluster, gpu.sm.count // cluster)
    return max(1, gpu.sm.count // cluster)


def _multistage(gpu: Gpu, gemm: Gemm) -> Iterator[KernelConfig]:
    on_tensor_cores = flops_per_clk_per_sm("fma", gemm.dtype, gpu) <= 0 or _has_tensor_cores(gemm, gpu)
    data = menu_data(gpu.architecture)["multistage" if on_tensor_cores else "fma"]
    loads, loop = loads_for(gemm, gpu), data.get("loop", "library")
    for point in _listed(data, gemm) if "rows" in data else _gridded(data, gemm, gpu):
        k_bytes = point.pop("block_k_bytes")
        mma = instruction_for(point["block_m"], gemm, gpu) if on_tensor_cores else "fma"
        block_k = k_bytes // gemm.a_element_bytes
        yield KernelConfig("multistage", block_k=block_k, loads=loads, loop=loop, mma=mma, **point)


def _gridded(grid: dict[str, Any], gemm: Gemm, gpu: Gpu) -> Iterator[dict[str, Any]]:
    """Points of a sweep's grid, by its rules."""
    keys = ("block_m", "block_n", "block_k_bytes", "stages", "warps", "group")
    for values in itertools.product(*(grid[key] for key in keys)):
        point = dict(zip(keys, values, strict=True))
        if _is_offered(point, grid, gpu) and _suits(point, gemm):
            yield point


def _listed(data: dict[str, Any], gemm: Gemm) -> Iterator[dict[str, Any]]:
    """Kernels listed one by one, in each order of tiles; all stages lie in shared memory, as CUTLASS has them."""
    for row, group in itertools.product(data["rows"], data["group"]):
        point = dict(zip(data["columns"], row, strict=True))
        if _suits(point, gemm):
            b_share = stored_bytes(gemm, "b") / gemm.a_element_bytes
            stage_bytes = (point["block_m"] + point["block_n"] * b_share) * point["block_k_bytes"]
            yield {**point, "group": group, "smem_bytes": math.ceil(point["stages"] * stage_bytes)}


def _has_tensor_cores(gemm: Gemm, gpu: Gpu) -> bool:
    return flops_per_clk_per_sm("mma_sync", gemm.dtype, gpu) > 0


def _is_offered(point: dict[str, int], grid: dict[str, Any], gpu: Gpu) -> bool:
    """The rules of the sweep's grid."""
    tile = point["block_m"] * point["block_n"]
    least, most = grid["accumulators_per_thread"]
    if not least <= tile / (gpu.sm.warp_size * point["warps"]) <= most:
        return False
    if point["warps"] == 8 and tile < grid["eight_warps_least_tile"]:
        return False
    return point["group"] != 1 or all(point[key] == value for key, value in grid["plain_order"].items())


def _suits(point: dict[str, Any], gemm: Gemm) -> bool:
    """No side above 64 that is over twice the output's."""
    sides = (("block_m", gemm.m), ("block_n", gemm.n))
    return all(point[key] <= max(2 * extent, SMALL_SIDE) for key, extent in sides)


def instruction_for(block_m: int, gemm: Gemm, gpu: Gpu) -> str:
    """wgmma where the hardware has it for these operands and the tile holds its 64 rows, as Triton chooses; mma.sync
    for weights that are not dense."""
    both_along_k = gemm.k_is_contiguous("a") and gemm.k_is_contiguous("b")
    able = (
        gpu.tensor.wgmma
        and gemm.weights_format == "dense"
        and gemm.dtype != "fp64"
        and (gemm.a_element_bytes == 2 or both_along_k)
    )
    return "wgmma" if able and block_m >= 64 else "mma_sync"


def loads_for(gemm: Gemm, gpu: Gpu) -> str:
    """How a multistage kernel loads: "cp_async" where the GPU has it and rows are aligned to 4 B, else "ldg"."""
    aligned = all(gemm.alignment_bytes(operand) >= CP_ASYNC_MIN_BYTES for operand in "ab")
    return "cp_async" if gpu.tensor.cp_async and aligned else "ldg"


def _split(gpu: Gpu, gemm: Gemm) -> Iterator[KernelConfig]:
    """Persistent configurations where they fit, else multistage ones, on 2 slices, on as many as fill the GPU once,
    and on half of that."""
    base = "persistent" if has_any(gpu, "persistent", gemm) else "multistage"
    for config in menu(gpu, base, gemm):
        for split in _splits(config, gpu, gemm):
            yield KernelConfig(**{**vars(config), "family": "split_k", "split_k": split})


def _splits(config: KernelConfig, gpu: Gpu, gemm: Gemm) -> list[int]:
    slots = cluster_slots(gpu, config.cluster_m * config.cluster_n)
    slots *= 1 if config.loads == "tma" else occupancy(config, gemm, gpu).ctas_per_sm
    iterations = -(-gemm.k // config.block_k)
    most = min(MOST_SPLIT, iterations, gemm.k * gemm.a_element_bytes // LEAST_SPLIT_BYTES)
    filling = min(most, slots // _n_tiles(config, gemm))
    return sorted({split for split in (2, filling // 2, filling) if 2 <= split <= most})


def _n_tiles(config: KernelConfig, gemm: Gemm) -> int:
    """Tiles of whole clusters that cover C."""
    along_m, along_n = config.block_m * config.cluster_m, config.block_n * config.cluster_n
    return -(-gemm.m // along_m) * -(-gemm.n // along_n) * gemm.batch
