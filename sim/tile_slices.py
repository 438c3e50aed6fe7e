"""What one parameter of a tile does, all else as it is: times over its values, and where and why they jump."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.call import Options, run_call
from sim.launch import check_partial_sums
from sim.schedule.config import KernelConfig
from sim.schedule.resources import occupancy, registers_per_thread, smem_bytes
from sim.tile_rows import WARP_THREADS, TileRow, row
from workloads.gemm import Gemm

STAGES = tuple(range(2, 17))
K_BYTES = (32, 64, 128, 256, 512)
WARPS = (1, 2, 4, 8, 16)
CLUSTERS = (1, 2, 4, 8)
PARAMETERS = ("stages", "block_k", "warps", "group")
TMA_PARAMETERS = ("stages", "block_k", "cluster_m", "group")
"""Warp-specialised kernels have one producer and two consumer warpgroups each; clusters are theirs alone."""
SMEM_LIMIT, REGISTER_LIMIT, NOT_MADE = "shared-memory limit", "register limit", "not made"
"""Why a value is refused: too much of one, or no kernel is built so."""


@dataclass(frozen=True)
class Point:
    """One value of the parameter: simulated, or why not."""

    value: int
    row: TileRow | None
    refused: str = ""


@dataclass(frozen=True)
class Cliff:
    """Where times may jump: before the value of that index in `Slice.points`."""

    i_point: int
    name: str


@dataclass(frozen=True)
class Slice:
    """Values of one parameter (a field of `KernelConfig`), in order, those that do not fit too; `value`: the tile's."""

    parameter: str
    value: int
    points: tuple[Point, ...]

    @property
    def cliffs(self) -> tuple[Cliff, ...]:
        """Occupancy steps, wave boundaries, the first spill, and limits behind which nothing fits."""
        found = []
        for i, (before, after) in enumerate(pairwise(self.points), 1):
            name = _cliff(before, after)
            found += [Cliff(i, name)] if name else []
        return tuple(found)


def slices(
    gemm: Gemm, config: KernelConfig, gpu: Gpu, options: Options, threads: int | None = None
) -> tuple[Slice, ...]:
    """The slices through one configuration along each of `PARAMETERS`, or `TMA_PARAMETERS`; `row.behind` is what lies
    beyond its own time.

    A value is refused as the engine or the hardware would, not repaired. Raises ConfigError where `config` is refused.
    """
    own_s = run_call(gemm, config, gpu, options).time_s

    def point(parameter: str, value: int) -> Point:
        changed = dataclasses.replace(config, **{parameter: value})  # type: ignore[arg-type]
        if config.smem_bytes is not None and parameter in ("stages", "block_k"):
            changed = dataclasses.replace(changed, smem_bytes=None)
        try:
            check_partial_sums(gemm, changed, gpu, False)
            occupancy(changed, gemm, gpu)
        except ConfigError:
            return Point(value, None, _why(changed, gemm, gpu))
        return Point(value, row(run_call(gemm, changed, gpu, options), own_s))

    with ThreadPoolExecutor(threads) as pool:
        return tuple(
            Slice(name, own, _trimmed(tuple(pool.map(lambda v, name=name: point(name, v), values))))
            for name, own, values in _values(gemm, config)
        )


def _values(gemm: Gemm, config: KernelConfig) -> Iterator[tuple[str, int, list[int]]]:
    """(parameter, the configuration's own value, that and the usual ones); a group of all tiles is taken as so many."""
    tiles = -(-gemm.m // config.block_m) if config.raster == "m" else -(-gemm.n // config.block_n)
    groups = [2**i for i in range(math.ceil(math.log2(max(2, tiles))) + 1)]
    usual: dict[str, Sequence[int]] = {
        "stages": STAGES,
        "block_k": [size // gemm.a_element_bytes for size in K_BYTES],
        "warps": WARPS,
        "cluster_m": CLUSTERS,
        "group": groups,
    }
    for name in TMA_PARAMETERS if config.loads == "tma" else PARAMETERS:
        own = min(getattr(config, name), groups[-1]) if name == "group" else getattr(config, name)
        yield name, own, sorted({own, *usual[name]})


def _trimmed(points: tuple[Point, ...]) -> tuple[Point, ...]:
    """Without what no kernel is built as, and of what is beyond a limit only the first."""
    kept = [point for point in points if point.refused != NOT_MADE]
    last = max(i for i, point in enumerate(kept) if point.row)
    return tuple(kept[: last + 2])


def _why(config: KernelConfig, gemm: Gemm, gpu: Gpu) -> str:
    """What a configuration that does not fit takes too much of."""
    if smem_bytes(config, gemm, gpu) > gpu.smem.max_kib_per_cta * 1024:
        return SMEM_LIMIT
    registers = registers_per_thread(config, gemm, gpu) * WARP_THREADS * config.warps
    return REGISTER_LIMIT if registers > gpu.registers.per_sm else NOT_MADE


def _cliff(before: Point, after: Point) -> str:
    """What changes from one value to the next, if anything does at once. A step of occupancy changes waves, too, which
    is not said again."""
    if before.row is None or after.row is None:
        return after.refused or before.refused
    one, other = before.row, after.row
    waves = math.ceil(one.waves), math.ceil(other.waves)
    names = []
    if bool(one.spill_bytes) != bool(other.spill_bytes):
        names.append("register spill" if other.spill_bytes else "end of the register spill")
    if one.ctas_per_sm != other.ctas_per_sm:
        names.append(f"occupancy step: {one.ctas_per_sm} to {other.ctas_per_sm} CTAs an SM")
    elif waves[0] != waves[1]:
        names.append(f"wave boundary: {waves[0]} to {waves[1]} waves")
    return ", ".join(names)
