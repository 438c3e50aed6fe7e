"""Stream-K: how tiles are cut among agents, that nobody waits for ever, what moves, and closed forms of its time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hwmodels import load_gpu
from hwmodels.errors import ConfigError
from sim.call import Options, run_call
from sim.records import Work
from sim.result import KernelResult
from sim.schedule import stream_k
from sim.schedule.config import KernelConfig
from sim.schedule.plan import build_plan
from sim.schedule.resources import occupancy
from tests.kernel_runs import cycles, multistage, persistent, run, warm, whole_gpu
from tests.test_engine_conservation import GPUS
from workloads import Gemm

GPU = whole_gpu()
FIRST = 700 + 300 + 16 + 256 + 110
"""Cycles until a CTA's first warm stage is ready: start, L2, A then B through a partition, its port, TMA."""
MMA, STORE, END = 512, 1024, 1000
"""An iteration of 128x128x64; 32 KiB of C at 32 B/clk; the end of a CTA."""
SUMS = 128 * 128 * 4
LEAVE = SUMS // 32
TAKE = 32 + 300 + 200 + SUMS // 128
"""Sums out of a partition, half of them from the far one, and through the port."""


def stream(**more: Any) -> KernelConfig:
    return persistent(stream_k=True, **more)


# Cutting.
cuts = st.tuples(st.integers(1, 300), st.integers(1, 100), st.integers(1, 140), st.integers(1, 20))
"""(tiles, k-iterations, agents, tiles along the raster)."""


@pytest.mark.small
@settings(max_examples=200)
@given(cuts)
def test_parts_are_all_of_every_tile_once(cut):
    n_tiles, n_k, agents, side = cut
    streamed = stream_k.stream_tiles(n_tiles, n_k, agents)
    assert streamed == 0 or streamed % agents == n_tiles % agents
    assert streamed < 2 * agents
    if not streamed:
        return
    found = stream_k.parts(streamed, n_k, agents, side)
    done = np.zeros((streamed, n_k), int)
    for tile, k0, nk in zip(found.tile, found.k0, found.nk, strict=True):
        done[tile, k0 : k0 + nk] += 1
    assert (done == 1).all()
    assert (found.nk >= min(n_k, stream_k.LEAST_ITERATIONS)).all()
    assert 0 <= found.agent.min() <= found.agent.max() < stream_k.n_runs(streamed, n_k, agents) <= agents


@pytest.mark.small
@settings(max_examples=200)
@given(cuts)
def test_agents_do_as_much_as_each_other(cut):
    """But for what moves to the borders of tiles, and groups of which some have a tile more."""
    n_tiles, n_k, agents, side = cut
    streamed = stream_k.stream_tiles(n_tiles, n_k, agents)
    if not streamed:
        return
    runs, found = stream_k.n_runs(streamed, n_k, agents), stream_k.parts(streamed, n_k, agents, side)
    groups = stream_k.n_groups(streamed, n_k, runs, side)
    per_run = np.bincount(found.agent, found.nk, runs)
    for group in range(groups):
        of_group = per_run[group::groups]
        assert of_group.sum() == len(range(group, streamed, groups)) * n_k
        assert abs(of_group - of_group.mean()).max() <= 1 + 2 * (stream_k.LEAST_ITERATIONS - 1)


@pytest.mark.parametrize(
    ("tiles", "runs", "side", "groups"),
    [(132, 66, 99, 6), (100, 66, 99, 2), (67, 66, 99, 6), (67, 66, 3, 3), (16, 15, 99, 5), (17, 13, 99, 1)],
)
def test_runs_go_in_groups_that_divide_them(tiles: int, runs: int, side: int, groups: int) -> None:
    assert stream_k.n_groups(tiles, 64, runs, side) == groups


def work_of(tiles: tuple[int, int], n_k: int, **more: Any) -> Work:
    gemm = Gemm(tiles[0] * 128, tiles[1] * 128, 64 * n_k)
    return build_plan(gemm, stream(**more), GPU).work


@pytest.mark.small
@settings(max_examples=100)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 70), st.integers(1, 40), st.sampled_from((1, 2, 8)))
def test_nobody_waits_for_ever(m, n, n_k, agents, group):
    """What a part waits for is the first thing its agent does, and that agent has a lower number."""
    work = work_of((m, n), n_k, n_ctas=agents, group=group)
    if not work.stream_tiles:
        return
    items, parts = stream_k.items(work)
    waits = np.flatnonzero(parts["after"] >= 0)
    before = parts["after"][waits]
    assert (before < work.n_agents).all()  # its first item
    assert (before % work.n_agents < waits % work.n_agents).all()
    assert (items["k0"][before] + items["nk"][before] == items["k0"][waits]).all()
    assert ((items["k0"] == 0) == (parts["after"][:-1] < 0))[items["row"] >= 0].all()
    assert parts[-1]["at"] == 0
    of_agents = items["nk"].reshape(-1, work.n_agents).sum(axis=0)
    assert stream_k.most_iterations(work) == of_agents.max()
    assert of_agents.sum() == work.n_items * work.n_k


def turns(work: Work) -> list[list[tuple[int, int, int]]]:
    """(column, first k-iteration, number of them) of what each agent does, in order."""
    items, _ = stream_k.items(work)
    return [
        [(int(i["col"]), int(i["k0"]), int(i["nk"])) for i in items[agent :: work.n_agents] if i["row"] >= 0]
        for agent in range(work.n_agents)
    ]


@pytest.mark.small
def test_agents_go_from_their_last_part_backwards_and_then_on_to_whole_tiles():
    """Seven tiles of 30 iterations, three agents: one wave is of whole tiles, four are in runs of 40."""
    work = work_of((1, 7), 30, n_ctas=3)
    assert turns(work) == [
        [(1, 0, 10), (0, 0, 30), (4, 0, 30)],
        [(2, 0, 20), (1, 10, 20), (5, 0, 30)],
        [(3, 0, 30), (2, 20, 10), (6, 0, 30)],
    ]
    _, parts = stream_k.items(work)
    assert parts["after"].tolist() == [-1, -1, -1, -1, 0, 1, -1, -1, -1, -1]
    first = work.first_c + 7
    assert parts["sums"].tolist() == [first + 1, first + 2, 0, 0, first + 1, first + 2, 0, 0, 0, 0]
    assert work.n_chunks == first + 4


@pytest.mark.small
def test_short_runs_move_to_the_borders_of_tiles():
    """Runs of 27, 27 and 26 iterations of tiles of 20 would begin with 7 of one, and end 6 before another's end."""
    work = work_of((1, 7), 20, n_ctas=3)
    assert turns(work) == [
        [(0, 0, 20), (4, 0, 20)],
        [(2, 0, 20), (1, 0, 20), (5, 0, 20)],
        [(3, 0, 20), (6, 0, 20)],
    ]


@pytest.mark.small
def test_fewer_runs_than_agents_where_there_is_little_to_do():
    """Two tiles of 12 iterations make three runs of 8, whose ends move to the border of the tiles: one is empty."""
    assert turns(work_of((1, 2), 12, n_ctas=8)) == [[(0, 0, 12)], [], [(1, 0, 12)], *[[]] * 5]
    assert turns(work_of((1, 1), 32, n_ctas=8)) == [*([(0, 8 * i, 8)] for i in range(4)), *[[]] * 4]


@pytest.mark.small
def test_too_little_for_a_run_is_not_cut():
    work = work_of((1, 1), 7)
    assert (work.stream_tiles, work.part_bytes, work.n_agents) == (0, 0, 1)


# What moves.
SHAPES = {
    "more than a wave": (Gemm(128 * 4, 128 * 5, 64 * 40), stream(n_ctas=16)),
    "less than a wave": (Gemm(128 * 3, 128, 64 * 64), stream(n_ctas=10)),
    "several waves": (Gemm(128 * 5, 128 * 5, 64 * 24), stream(n_ctas=7, group=2)),
    "clusters": (Gemm(256 * 3, 256 * 3, 64 * 48), stream(cluster_m=2, cluster_n=2, n_ctas=24)),
    "edges, batch": (Gemm(300, 200, 64 * 31 + 8, batch=3), stream(n_ctas=13, raster="n")),
    "residual": (Gemm(128 * 3, 128 * 3, 64 * 40, epilogue="residual"), stream(n_ctas=7)),
}
every_shape = pytest.mark.parametrize("name", SHAPES)


def both(name: str, **more: Any) -> tuple[KernelResult, KernelResult, Work]:
    """As stream-K, as whole tiles by the same schedule, and the integers of the first."""
    gemm, config = SHAPES[name]
    work = build_plan(gemm, config, GPU).work
    return (run(gemm, config, GPU, **more), run(gemm, replace(config, stream_k=False), GPU, **more), work)


@every_shape
def test_parts_add_their_sums_and_nothing_else(name):
    """Tensor work and operands are those of whole tiles; each part but a tile's last writes its sums to L2, the last
    reads them once."""
    streamed, whole, work = both(name, without=("coalescing",))
    _, parts = stream_k.items(work)
    n_shared = len(set(parts["sums"][parts["sums"] > 0].tolist()))
    n_left = int((parts["after"] >= 0).sum()) * work.cluster_size  # as many as parts that follow another
    left, taken = n_left * work.part_bytes, n_shared * work.cluster_size * work.part_bytes
    assert n_left > 0
    assert streamed.flops_executed == whole.flops_executed
    assert streamed.requests["smem"]["read"] == whole.requests["smem"]["read"]
    assert streamed.bytes["sm"]["write"] == whole.bytes["sm"]["write"] + left
    assert streamed.bytes["l2"]["write"] == whole.bytes["l2"]["write"] + left
    assert streamed.bytes["sm"]["read"] == whole.bytes["sm"]["read"] + taken
    assert streamed.bytes["l2"]["read"] == whole.bytes["l2"]["read"] + taken
    assert streamed.bytes["hbm"] == whole.bytes["hbm"]


@every_shape
def test_lookups_and_l2_add_up(name):
    streamed, whole, work = both(name)
    lookups = streamed.lookups
    assert lookups["hits"] + lookups["merged"] + lookups["misses"] == lookups["accesses"]
    gone = lookups["clean_evicted"] + lookups["written_back"] + lookups["overwritten"]
    assert lookups["filled"] + lookups["written"] == gone + lookups["resident"]
    assert sum(streamed.waits.values()) == pytest.approx(1, abs=1e-9)
    assert all(0 <= busy <= 1 for busy in streamed.utilisation.values())
    shared = len(set(stream_k.items(work)[1]["sums"].tolist()) - {0}) * work.cluster_size
    asked = [kernel.lookups["accesses"] + kernel.lookups["coalesced"] for kernel in (streamed, whole)]
    assert asked[0] == asked[1] + shared


NAMES = ("whole", "little L2", "one partition", "few SMs", "slow L2")
HARD = {name: load_gpu("h200_sxm", GPUS[name]) for name in NAMES}


@settings(max_examples=60)
@given(
    st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(16, 60), st.integers(1, 2)),
    st.sampled_from(((64, 64), (128, 64), (192, 128), (128, 128))),
    st.sampled_from(((1, 1), (2, 1), (1, 2), (2, 2))),
    st.tuples(st.integers(1, 5), st.integers(1, 24), st.sampled_from("mn"), st.integers(1, 4)),
    st.sampled_from(tuple(HARD)),
)
def test_all_is_done_once_and_no_byte_is_lost(extent, tile, cluster, rest, gpu):
    """On GPUs with jitter, too little L2 or too few SMs."""
    (m, n, n_k, batch), (stages, n_ctas, raster, group) = extent, rest
    gemm = Gemm(m * tile[0] - 3, n * tile[1] - 8, 64 * n_k, batch=batch)
    more = {"cluster_m": cluster[0], "cluster_n": cluster[1], "raster": raster, "group": group, "stages": stages}
    try:
        config = stream(block_m=tile[0], block_n=tile[1], n_ctas=n_ctas, **more)
        both_ways = [replace(config, stream_k=each) for each in (True, False)]
        streamed, whole = (run(gemm, each, HARD[gpu], clock_mhz=None) for each in both_ways)
    except ConfigError:
        assume(False)
    work = build_plan(gemm, config, HARD[gpu]).work
    if not work.stream_tiles:
        return
    _, parts = stream_k.items(work)
    left = int((parts["after"] >= 0).sum()) * work.cluster_size * work.part_bytes
    assert streamed.requests["smem"]["read"] == whole.requests["smem"]["read"]
    assert streamed.bytes["l2"]["write"] == whole.bytes["l2"]["write"] + left
    lookups = streamed.lookups
    gone = lookups["clean_evicted"] + lookups["written_back"] + lookups["overwritten"]
    assert lookups["filled"] + lookups["written"] == gone + lookups["resident"]
    assert streamed.bytes["hbm"]["read"] == lookups["filled"] - streamed.bytes["l2_fabric"]["read"]
    assert streamed.bytes["hbm"]["write"] == lookups["written_back"]
    assert sum(streamed.waits.values()) == pytest.approx(1, abs=1e-9)


@every_shape
def test_every_part_is_traced(name):
    gemm, config = SHAPES[name]
    kernel = run(gemm, config, GPU, trace=True)
    items, _ = stream_k.items(build_plan(gemm, config, GPU).work)
    assert kernel.spans is not None
    mmas = kernel.spans[kernel.spans["kind"] == 3]
    for slot in np.unique(mmas["slot"]):
        mine = mmas[mmas["slot"] == slot]
        for number in np.unique(mine["tile"]):
            item = items[number]
            assert mine["k"][mine["tile"] == number].tolist() == list(range(item["k0"], item["k0"] + item["nk"]))


def test_sums_that_l2_cannot_keep_come_back_from_hbm():
    gemm, config = Gemm(128 * 4, 128 * 5, 64 * 40), stream(n_ctas=16)
    kept, lost = (run(gemm, config, whole_gpu(*sets)).bytes["hbm"] for sets in ((), ("l2.capacity_mib=0.25",)))
    assert kept["write"] == 0
    assert lost["write"] > gemm.c_bytes
    assert lost["read"] > kept["read"]


# Closed forms.
@pytest.mark.small
def test_time_of_a_tile_cut_in_two():
    """One tile, two CTAs: the second asks every 300 cycles until the sums of the first are there."""
    two = cycles(run(warm(Gemm(128, 128, 64 * 32)), stream(n_ctas=2), GPU))
    late = 16  # its first load waits for the first CTA's to leave L2
    ready = FIRST + late + 16 * MMA
    asked = -(-(LEAVE - late) // 300) * 300
    assert two == ready + asked + TAKE + STORE + END


@pytest.mark.small
def test_time_where_nobody_waits():
    """Three tiles, two CTAs: 24 iterations each. The second does the end of the middle tile last, long after the first
    did its beginning."""
    kernel = run(warm(Gemm(128, 128 * 3, 64 * 16)), stream(n_ctas=2), GPU)
    assert cycles(kernel) == pytest.approx(FIRST + 24 * MMA + STORE + TAKE + STORE + END, abs=40)
    assert kernel.waits["barrier"] == 0


@pytest.mark.small
def test_whole_waves_are_as_without():
    gemm = Gemm(128 * 2, 128 * 4, 64 * 20)
    streamed, whole = (run(gemm, persistent(stream_k=each, n_ctas=4), GPU) for each in (True, False))
    assert streamed == whole


def test_what_a_wave_and_a_bit_takes_falls_to_its_share():
    """133 tiles on 132 SMs with an L2 out of the way: no two waves, but 1.008, and what sums and epilogues take."""
    gpu = whole_gpu("l2.bytes_per_clk=65536", "l2.gpc_port_bytes_per_clk=65536", "l2.capacity_mib=1024")
    gemm = warm(Gemm(128, 128 * 133, 64 * 128))
    streamed, whole = (cycles(run(gemm, persistent(stream_k=each), gpu)) for each in (True, False))
    least = 133 / 132 * 128 * MMA
    assert least < streamed < least + FIRST + 2 * LEAVE + TAKE + 2 * STORE + END + 300 + 8 * MMA
    assert 1.8 < whole / streamed < 2


@pytest.mark.small
def test_a_call_clears_its_semaphores_and_reduces_nothing():
    gemm = Gemm(128 * 3, 128, 64 * 64)
    call = run_call(gemm, stream(n_ctas=10), GPU, Options())
    assert [kernel.name for kernel in call.kernels] == ["memset", "persistent_128x128x64_s4_w12_m1_stream_coop"]
    assert call.main.config["stream_k"] is True


# What is refused.
@pytest.mark.small
@pytest.mark.parametrize(
    ("config", "gemm", "words"),
    [
        (multistage(stream_k=True), Gemm(512, 512, 512), "stream_k = True: must be False with family = 'multistage'"),
        (persistent(split_k=2, stream_k=True), Gemm(512, 512, 512), "must be False with family = 'split_k'"),
        (stream(pingpong=True), Gemm(512, 512, 512), "stream_k = True: must be False with pingpong = True"),
        (stream(block_k=128), Gemm(512, 512, 512, dtype="int8"), "stream_k = True: must be False with sums in int32"),
        (persistent(stream_k=1), Gemm(512, 512, 512), "stream_k = 1: must be True or False"),
        (persistent(stream_k="yes"), Gemm(512, 512, 512), "stream_k = 'yes': must be True or False"),
    ],
)
def test_configurations_that_contradict_themselves_are_refused(config, gemm, words):
    with pytest.raises(ConfigError) as refused:
        occupancy(config, gemm, GPU)
    assert words in str(refused.value)
