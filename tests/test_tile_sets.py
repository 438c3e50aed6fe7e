"""Tiles for many GEMMs: the best of each, and small sets against all sets of that size."""

from __future__ import annotations

from itertools import combinations

import pytest

from hwmodels.catalog import load_gpu
from hwmodels.errors import ConfigError
from sim.call import Options, run_call
from sim.schedule.config import KernelConfig
from sim.tile_sets import CANDIDATES, NEVER, Served, Wanted, at_most, best_of_each, gemms_of
from sim.tiles import every, search
from workloads.gemm import Gemm
from workloads.llm import Llm
from workloads.models.catalog import load_model
from workloads.operations import Step

GPU = load_gpu("h200_sxm")
WANTED = (
    Wanted(Gemm(16, 1024, 1024), 5, ("q",)),
    Wanted(Gemm(128, 512, 2048), 3, ("k",)),
    Wanted(Gemm(512, 1024, 512), 1, ("up",)),
    Wanted(Gemm(1024, 1024, 1024), 2, ("down",)),
    Wanted(Gemm(48, 3072, 256), 1, ("head",)),
)


@pytest.fixture(scope="module")
def served() -> tuple[Served, ...]:
    return best_of_each(WANTED, GPU, candidates=CANDIDATES, threads=2)


@pytest.fixture(scope="module")
def all_times(served: tuple[Served, ...]) -> dict[KernelConfig, list[float]]:
    """Every candidate on every GEMM."""
    configs = dict.fromkeys(call.plan.config for each in served for call in each.calls)
    return {config: [_time_s(each.wanted.gemm, config) for each in served] for config in configs}


def _time_s(gemm: Gemm, config: KernelConfig) -> float:
    try:
        return run_call(gemm, config, GPU, Options()).time_s
    except ConfigError:
        return NEVER


def cost(configs: tuple[KernelConfig, ...], times: dict[KernelConfig, list[float]]) -> float:
    return sum(each.count * min(times[config][i] for config in configs) for i, each in enumerate(WANTED))


def test_each_gets_the_best_of_all(served: tuple[Served, ...]) -> None:
    for each in served:
        found = search(each.wanted.gemm, GPU, every(each.wanted.gemm, GPU), best=CANDIDATES)
        assert [call.plan.config for call in each.calls] == [call.plan.config for call in found.calls[:CANDIDATES]]
    alone = best_of_each(WANTED[:2], GPU)
    assert [each.calls for each in alone] == [each.calls[:1] for each in served[:2]]


def test_threads_change_nothing_but_the_order_of_progress(served: tuple[Served, ...]) -> None:
    heard: list[tuple[int, int]] = []
    alone = best_of_each(
        WANTED, GPU, candidates=CANDIDATES, threads=1, progress=lambda done, total: heard.append((done, total))
    )
    assert [each.wanted for each in alone] == list(WANTED)
    for one, other in zip(alone, served, strict=True):
        assert [(c.plan.config, c.time_s) for c in one.calls] == [(c.plan.config, c.time_s) for c in other.calls]
    assert heard == [(i, len(WANTED)) for i in range(1, len(WANTED) + 1)]


def test_what_fits_nothing_is_refused_before_anything_is_searched() -> None:
    heard: list[int] = []
    wanted = (Wanted(Gemm(64, 64, 64, dtype="fp16")), Wanted(Gemm(64, 64, 64)))
    with pytest.raises(ConfigError, match="bf16"):
        best_of_each(wanted, load_gpu("t4"), progress=lambda done, total: heard.append(done))
    assert not heard


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_set_is_exact_in_its_times_and_no_exchange_betters_it(
    served: tuple[Served, ...], all_times: dict[KernelConfig, list[float]], most: int
) -> None:
    found = at_most(most, served, GPU)
    assert len(found.configs) <= most
    for i in range(len(WANTED)):
        times = [all_times[config][i] for config in found.configs]
        assert found.times_s[i] == min(times) == times[found.choice[i]]
        assert found.losses[i] >= 0
    mine = cost(found.configs, all_times)
    best = sum(count * time_s for count, time_s in zip(found.counts, found.best_s, strict=True))
    assert found.loss == pytest.approx(mine / best - 1)
    for i in range(len(found.configs)):
        others = found.configs[:i] + found.configs[i + 1 :]
        assert all(cost((*others, config), all_times) >= mine * (1 - 1e-12) for config in all_times)
    least = min(cost(some, all_times) for some in combinations(all_times, most))
    assert mine <= least * 1.02  # greedy with exchange; not proved


def test_larger_sets_lose_less_and_nothing_in_the_end(served: tuple[Served, ...]) -> None:
    losses = [at_most(most, served, GPU).loss for most in (1, 2, 3, len(WANTED))]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] == pytest.approx(0, abs=1e-12)
    assert losses[0] > 0


def test_threads_change_no_set(served: tuple[Served, ...]) -> None:
    assert at_most(2, served, GPU, threads=1) == at_most(2, served, GPU, threads=2)


def test_a_model_runs_its_products_as_often_as_it_has_layers() -> None:
    model = load_model("gpt2")
    llm = Llm(model, "decode", 8, context=512)
    found = gemms_of([llm.step()])
    assert sum(each.count for each in found) == sum(isinstance(o.work, Gemm) for o in llm.step().operations)
    assert {each.count for each in found} == {1, model.n_layers}
    assert all(each.gemm.m == 8 for each in found)
    twice = gemms_of([llm.step(), llm.step()])
    assert [each.count for each in twice] == [2 * each.count for each in found]
    assert [each.names for each in twice] == [each.names for each in found]


def test_what_cannot_be_is_refused(served: tuple[Served, ...]) -> None:
    with pytest.raises(ConfigError, match="at most = 0"):
        at_most(0, served, GPU)
    with pytest.raises(ConfigError, match="none in this phase"):
        gemms_of([Step("nothing", (), {})])
