"""Pareto fronts that nothing beats, and slices whose cliffs are where occupancy, waves and limits change."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise

import pytest

from hwmodels.catalog import load_gpu
from hwmodels.errors import ConfigError
from sim.call import Options, run_call
from sim.schedule.config import KernelConfig
from sim.schedule.resources import occupancy
from sim.tile_front import AGAINST, front
from sim.tile_rows import TileRow, rows
from sim.tile_slices import PARAMETERS, SMEM_LIMIT, TMA_PARAMETERS, Slice, slices
from sim.tiles import every, search
from viz.commands import tiles_request
from viz.commands.tiles import EXPORTS
from viz.tiles.exports import TARGETS
from viz.tiles.terminal import AGAINST_WORDS
from workloads.gemm import Gemm

GEMM, GPU = Gemm(512, 1024, 1024), load_gpu("h200_sxm")
RING = KernelConfig("multistage", 64, 128, 64, 3, 4, group=8)


@pytest.fixture(scope="module")
def simulated() -> tuple[TileRow, ...]:
    configs = every(GEMM, GPU, "multistage")
    return rows(search(GEMM, GPU, configs, best=len(configs)))


# The front.
@pytest.mark.parametrize("against", AGAINST)
def test_nothing_beats_the_front_in_both_and_all_else_is_beaten(simulated: tuple[TileRow, ...], against: str) -> None:
    found, name = front(simulated, against), AGAINST[against]
    assert found[0].time_s == simulated[0].time_s
    assert min(getattr(each, name) for each in simulated) == getattr(found[-1], name)
    for one, other in pairwise(found):
        assert one.time_s < other.time_s
        assert getattr(one, name) > getattr(other, name)
    for each in simulated:
        as_good = [e for e in found if e.time_s <= each.time_s and getattr(e, name) <= getattr(each, name)]
        assert as_good


def test_time_is_weighed_against_four_things_only(simulated: tuple[TileRow, ...]) -> None:
    assert tuple(AGAINST) == tuple(AGAINST_WORDS) == tiles_request.AGAINST
    assert tuple(TARGETS) == EXPORTS
    with pytest.raises(ConfigError, match="against = 'beauty'"):
        front(simulated, "beauty")


# Slices.
def through(gemm: Gemm, config: KernelConfig, gpu: str = "h200_sxm") -> dict[str, Slice]:
    return {each.parameter: each for each in slices(gemm, config, load_gpu(gpu), Options(), 2)}


def test_each_point_is_the_tile_with_one_value_changed() -> None:
    found = through(GEMM, RING)
    assert tuple(found) == PARAMETERS
    for name, each in found.items():
        assert each.value == getattr(RING, name)
        own = next(point for point in each.points if point.value == each.value)
        assert own.row is not None
        assert own.row.behind == 0
        for point in each.points[:2]:
            if point.row:
                changed = dataclasses.replace(RING, **{name: point.value})  # type: ignore[arg-type]
                assert point.row.time_s == run_call(GEMM, changed, GPU, Options()).time_s


def test_stages_end_at_the_shared_memory_limit() -> None:
    stages = through(GEMM, RING)["stages"]
    last = stages.points[-1]
    assert (last.row, last.refused) == (None, SMEM_LIMIT)
    assert stages.cliffs[-1].name == SMEM_LIMIT
    with pytest.raises(ConfigError, match="shared memory"):
        occupancy(dataclasses.replace(RING, stages=last.value), GEMM, GPU)
    assert [point.value for point in stages.points] == list(range(2, last.value + 1))


def test_occupancy_steps_and_wave_boundaries_are_where_they_change() -> None:
    gemm = Gemm(2048, 2048, 512)
    names = set()
    for each in through(gemm, RING).values():
        cliffs = {cliff.i_point: cliff.name for cliff in each.cliffs}
        for i, (one, other) in enumerate(pairwise(each.points), 1):
            if one.row is None or other.row is None:
                continue
            steps = one.row.ctas_per_sm != other.row.ctas_per_sm
            waves = math.ceil(one.row.waves) != math.ceil(other.row.waves)
            assert steps == cliffs.get(i, "").startswith("occupancy step")
            assert (waves and not steps) == cliffs.get(i, "").startswith("wave boundary")
        names |= {name.split(":")[0] for name in cliffs.values()}
    assert names >= {"occupancy step"}


def test_spills_are_named() -> None:
    config = KernelConfig("multistage", 128, 256, 32, 3, 8, mma="mma_sync", group=8)
    warps = through(Gemm(256, 512, 256, dtype="fp16"), config, "a100_sxm_80gb")["warps"]
    spilled = [point.row is not None and point.row.spill_bytes > 0 for point in warps.points]
    assert (spilled[0], spilled[-1]) == (True, False)
    ends = next(cliff for cliff in warps.cliffs if "end of the register spill" in cliff.name)
    assert spilled[ends.i_point - 1 : ends.i_point + 1] == [True, False]
    assert "occupancy step: 2 to 1 CTAs an SM" in ends.name


def test_warp_specialised_kernels_have_clusters_for_warps() -> None:
    config = every(GEMM, GPU, "persistent")[0]
    assert tuple(through(GEMM, config)) == TMA_PARAMETERS
