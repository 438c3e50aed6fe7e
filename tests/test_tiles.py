"""Tile search: bounds that hold, and the answer of simulating everything."""

from __future__ import annotations

import random

import pytest

from hwmodels.catalog import load_gpu
from hwmodels.errors import ConfigError
from sim.call import Options, run_call
from sim.lower_bound import lower_bound
from sim.schedule.menu import families, menu
from sim.tiles import every, search
from workloads.gemm import Gemm

GPUS = ("h200_sxm", "a100_sxm_80gb", "l40s", "v100_pcie_32gb", "t4")
SHAPES = ((8, 4096, 4096), (300, 500, 700), (1000, 1024, 512), (128, 2048, 8192), (1, 640, 320))
DTYPES = ("bf16", "fp16", "fp8_e4m3", "int8", "fp32", "fp64", "tf32")


def cases(n: int) -> list[tuple[Gemm, str, str]]:
    """Products of odd and even sizes on every GPU, with a family of kernels that fits."""
    draw, found = random.Random(5), list[tuple[Gemm, str, str]]()
    while len(found) < n:
        m, cols, k = draw.choice(SHAPES)
        gpu, dtype = draw.choice(GPUS), draw.choice(DTYPES)
        form = draw.choice(("dense", "dense", "int4", "2:4"))
        try:
            gemm = Gemm(
                m, cols, k, dtype=dtype, layout=draw.choice(("tn", "nn")), l2=draw.choice(("cold", "warm")),
                epilogue=draw.choice(("none", "bias_gelu", "residual")), weights_format=form,
            )  # fmt: skip
            fitting = families(load_gpu(gpu), gemm)
        except ConfigError:
            continue
        if fitting:
            found.append((gemm, gpu, draw.choice(fitting)))
    return found


@pytest.mark.parametrize(("gemm", "name", "family"), cases(60))
def test_no_simulation_is_below_its_bound(gemm: Gemm, name: str, family: str) -> None:
    gpu = load_gpu(name)
    configs = menu(gpu, family, gemm)
    resident = (1.0, 1.0) if gemm.l2 == "warm" else (0.0, 0.0)
    options = Options(clock_mhz=1000.0 if gemm.m == 300 else None)
    for config in random.Random(gemm.k).sample(configs, min(3, len(configs))):
        bound = lower_bound(gemm, config, gpu, options, resident)
        assert bound.time_s <= run_call(gemm, config, gpu, options).time_s * (1 + 1e-9), config


def test_bounds_are_near_where_one_server_does_all() -> None:
    """A large product is bound by its tensor cores: the bound says so, and is not far below."""
    gpu, gemm = load_gpu("h200_sxm"), Gemm(4096, 4096, 4096)
    best = search(gemm, gpu, menu(gpu, "persistent", gemm), best=1).best
    bound = lower_bound(gemm, best.plan.config, gpu, Options())
    assert bound.by in ("tensor cores", "iterations in order")  # the latter drain them as well
    assert 0.9 < bound.time_s / best.time_s <= 1


@pytest.mark.parametrize(("sizes", "name"), [((256, 1024, 2048), "h200_sxm"), ((1000, 1024, 512), "a100_sxm_80gb")])
def test_search_finds_what_simulating_all_finds(sizes: tuple[int, int, int], name: str) -> None:
    gpu, gemm = load_gpu(name), Gemm(*sizes)
    configs = every(gemm, gpu)
    times = {config: run_call(gemm, config, gpu, Options()).time_s for config in configs}
    found = search(gemm, gpu, configs, best=5, threads=2)
    fastest = sorted(configs, key=lambda config: (times[config], configs.index(config)))
    assert [call.plan.config for call in found.calls[:5]] == fastest[:5]
    assert found.n_best == 5
    assert found.n_configs == len(configs)
    assert found.left_out
    assert all(times[each.config] >= found.calls[4].time_s for each in found.left_out)


def test_search_by_groups_finds_the_best_of_each() -> None:
    gpu, gemm = load_gpu("h200_sxm"), Gemm(512, 1024, 1024)
    configs = menu(gpu, "multistage", gemm)
    by_width = search(gemm, gpu, configs, best=1, group=lambda config: config.block_n)
    for width in {config.block_n for config in configs}:
        alone = search(gemm, gpu, [config for config in configs if config.block_n == width], best=1)
        assert alone.best.time_s == min(c.time_s for c in by_width.calls if c.plan.config.block_n == width)


def test_search_does_not_hang_on_threads() -> None:
    gpu, gemm = load_gpu("h200_sxm"), Gemm(256, 512, 1024)
    one, two = (search(gemm, gpu, every(gemm, gpu), best=3, threads=n) for n in (1, 2))
    assert [(c.plan.config, c.time_s) for c in one.calls] == [(c.plan.config, c.time_s) for c in two.calls]
    assert one.left_out == two.left_out


def test_all_are_simulated_where_as_many_are_wanted() -> None:
    gpu, gemm, heard = load_gpu("t4"), Gemm(64, 64, 64, dtype="fp16"), []
    configs = every(gemm, gpu)
    found = search(gemm, gpu, configs, best=len(configs), progress=lambda done, total: heard.append((done, total)))
    assert not found.left_out
    assert heard[-1] == (len(configs), len(configs))


@pytest.mark.parametrize("best", [0, -1, 1.5, True])
def test_search_refuses_a_number_of_best_that_is_none(best: object) -> None:
    gpu, gemm = load_gpu("t4"), Gemm(64, 64, 64, dtype="fp16")
    with pytest.raises(ConfigError, match="best"):
        search(gemm, gpu, every(gemm, gpu), best=best)  # type: ignore[arg-type]


def test_search_says_why_nothing_fits() -> None:
    gpu, gemm = load_gpu("t4"), Gemm(64, 64, 64, dtype="bf16")
    with pytest.raises(ConfigError, match="bf16"):
        every(gemm, gpu)
    with pytest.raises(ConfigError, match="none given"):
        search(Gemm(64, 64, 64, dtype="fp16"), gpu, [])
