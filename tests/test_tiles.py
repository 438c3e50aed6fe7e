"""Tile search: bounds that hold, and the answer of simulating everything."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from hwmodels.catalog import load_gpu
from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.call import Call, Options, least_after_s, run_call
from sim.kernel import Records
from sim.lower_bound import lower_bound
from sim.schedule.beside import partial_bytes, reduction
from sim.schedule.bound import Estimator
from sim.schedule.choose import candidates
from sim.schedule.config import KernelConfig
from sim.schedule.menu import families, menu, stream_k
from sim.schedule.plan import build_plan
from sim.tiles import every, search
from sim.time_left import TooSlowError, deadline
from workloads.gemm import Gemm

GPUS = ("h200_sxm", "a100_sxm_80gb", "l40s", "v100_pcie_32gb", "t4")
SHAPES = (
    (8, 4096, 4096), (300, 500, 700), (1000, 1024, 512), (128, 2048, 8192), (1, 640, 320), (64, 64, 64), (8, 320, 64),
)  # fmt: skip
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


@pytest.mark.parametrize(("gemm", "name", "family"), cases(80))
def test_no_simulation_is_below_its_bound(gemm: Gemm, name: str, family: str) -> None:
    """Neither the one before it nor those on the way, which change nothing."""
    gpu = load_gpu(name)
    configs = menu(gpu, family, gemm)
    options = Options(clock_mhz=1000.0 if gemm.m == 300 else None)
    for config in random.Random(gemm.k).sample(configs, min(3, len(configs))):
        call = run_call(gemm, config, gpu, options)
        bound = lower_bound(gemm, config, gpu, options, resident(gemm))
        assert bound.time_s <= call.time_s, config
        bounds, watched = bounds_on_the_way(gemm, config, gpu, options)
        assert max(bounds) <= call.time_s, config
        assert watched.kernels == call.kernels


STREAMED = ((2304, 2304, 4096), (1536, 1536, 8192), (4096, 4352, 2048), (1000, 1024, 2048), (128, 2048, 8192))


@pytest.mark.parametrize("sizes", STREAMED)
def test_no_stream_k_is_below_its_bound_nor_far_from_its_estimate(sizes: tuple[int, int, int]) -> None:
    gpu, gemm = load_gpu("h200_sxm"), Gemm(*sizes, l2="warm" if sizes[2] == 8192 else "cold")
    estimator = Estimator(gemm, gpu)
    cooperative = [config for config in menu(gpu, "persistent", gemm) if not config.pingpong]
    for config in random.Random(gemm.k).sample([replace(each, stream_k=True) for each in cooperative], 6):
        time_s = run_call(gemm, config, gpu, Options()).time_s
        assert lower_bound(gemm, config, gpu, Options(), resident(gemm)).time_s <= time_s, config
        assert 0.75 < estimator.time_s(config) / time_s < 1.5, config


def test_stream_k_is_searched_where_the_last_wave_is_not_full() -> None:
    gpu = load_gpu("h200_sxm")
    for gemm in (Gemm(4096, 4352, 8192), Gemm(256, 256, 65536)):
        found = [config for config in every(gemm, gpu) if config.stream_k]
        assert found
        assert {config.family for config in found} == {"persistent"}
        assert set(found) < set(every(gemm, gpu, "persistent"))
        assert not any(config.pingpong for config in found)
        assert not any(config.stream_k for name in families(gpu, gemm) for config in menu(gpu, name, gemm))
    full = Gemm(128 * 132, 128, 8192)  # one tile of 128x128 an SM
    assert not any((c.block_m, c.block_n, c.cluster_m) == (128, 128, 1) for c in stream_k(gpu, full))
    assert not stream_k(gpu, Gemm(4096, 4352, 512))  # tiles of too few iterations to be cut
    assert not stream_k(gpu, Gemm(4096, 4352, 8192, dtype="int8"))
    assert not stream_k(load_gpu("a100_sxm_80gb"), Gemm(4096, 4352, 8192))


def test_stream_k_wins_a_little_over_a_wave_and_stays_below_the_tensor_cores_rate() -> None:
    """1.23 waves of 128x256; what it wins is less than what the tail of whole tiles loses."""
    gpu, gemm = load_gpu("h200_sxm"), Gemm(2304, 2304, 16384)
    tiles = [c for c in stream_k(gpu, gemm) if (c.block_m, c.block_n, c.cluster_m) == (128, 256, 2)]
    streamed, whole = (run_call(gemm, replace(tiles[0], stream_k=each), gpu, Options()) for each in (True, False))
    assert 1.3 < whole.time_s / streamed.time_s < 2 / 1.23
    peak = gpu.sm.count * gpu.tensor.bf16_flops_per_clk_per_sm * streamed.main.sm_mhz * 1e6
    assert 0.85 * peak < gemm.flops / streamed.time_s < peak


def test_a_library_chooses_no_stream_k() -> None:
    gpu, gemm = load_gpu("h200_sxm"), Gemm(2304, 2304, 16384)
    for tile in ("bound", "auto", "library"):
        assert not any(config.stream_k for config in candidates(gemm, gpu, None, tile)[0])


def resident(gemm: Gemm) -> tuple[float, float]:
    return (1.0, 1.0) if gemm.l2 == "warm" else (0.0, 0.0)


def bounds_on_the_way(gemm: Gemm, config: KernelConfig, gpu: Gpu, options: Options) -> tuple[list[float], Call]:
    """What is said at each check of a simulation that goes on all the same."""
    bounds = []
    raises = deadline(gemm, config, gpu, options, resident(gemm), 0.0)

    def check(scalars: Records) -> None:
        with pytest.raises(TooSlowError) as late:
            raises(scalars)
        bounds.append(late.value.bound.simulated_s)

    return bounds, run_call(gemm, config, gpu, options, check=check)


def test_bounds_hold_and_are_near_where_one_server_does_all() -> None:
    """A large product is bound by its tensor cores: the bound says so, and is not far below."""
    gpu, gemm = load_gpu("h200_sxm"), Gemm(4096, 4096, 4096)
    found = search(gemm, gpu, menu(gpu, "persistent", gemm), best=1000)
    bounds = [lower_bound(gemm, call.plan.config, gpu, Options()) for call in found.calls]
    assert all(bound.time_s <= call.time_s for bound, call in zip(bounds, found.calls, strict=True))
    assert bounds[0].by in ("tensor cores", "iterations in order")  # the latter drain them as well
    assert bounds[0].time_s > 0.9 * found.best.time_s


def test_long_kernels_are_bounded_nearer() -> None:
    """Windows of the clock are then wide beside an MMA."""
    gpu, gemm = load_gpu("h200_sxm"), Gemm(65536, 4096, 4096)
    best = search(gemm, gpu, menu(gpu, "persistent", gemm), best=1).best
    bound = lower_bound(gemm, best.plan.config, gpu, Options())
    assert 0.975 < bound.time_s / best.time_s <= 1
    bounds, _ = bounds_on_the_way(gemm, best.plan.config, gpu, Options())
    assert bounds[0] > 0.975 * best.time_s
    assert max(bounds) <= best.time_s


def test_on_the_way_hbm_is_known_to_have_work_left() -> None:
    gpu, gemm = load_gpu("h200_sxm"), Gemm(8, 32768, 4096)
    best = search(gemm, gpu, menu(gpu, "persistent", gemm), best=1).best
    bounds, _ = bounds_on_the_way(gemm, best.plan.config, gpu, Options())
    assert 0.9 * best.time_s < min(bounds)
    assert bounds == pytest.approx(sorted(bounds), rel=0.01)


def test_a_simulation_ends_once_it_cannot_be_in_time() -> None:
    gpu, gemm = load_gpu("h200_sxm"), Gemm(1024, 4096, 4096)
    config = menu(gpu, "multistage", gemm)[0]
    call = run_call(gemm, config, gpu, Options())
    in_time = deadline(gemm, config, gpu, Options(), (0.0, 0.0), call.time_s)
    assert run_call(gemm, config, gpu, Options(), check=in_time).time_s == call.time_s
    late = deadline(gemm, config, gpu, Options(), (0.0, 0.0), 0.9 * call.time_s)
    with pytest.raises(TooSlowError) as end:
        run_call(gemm, config, gpu, Options(), check=late)
    assert 0.9 * call.time_s < end.value.bound.time_s <= call.time_s


def test_no_reduction_is_below_its_bound() -> None:
    """However many partial sums went to HBM: it reads those, and writes what makes room for C."""
    gpu, gemm = load_gpu("rtx_4090"), Gemm(16384, 2048, 8192, layout="nt")
    plan = build_plan(gemm, menu(gpu, "split_k", gemm)[0], gpu)
    most = partial_bytes(gemm, plan.reduced_splits)
    times = [reduction(gpu, gemm, plan.reduced_splits, most * i // 64).time_s for i in range(65)]
    least = least_after_s(gemm, plan, gpu)
    assert least <= min(times) < min(times[0], times[-1])
    assert least > 0.95 * min(times)


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
