"""Why one tile beats another: parts that add up to the difference of the times."""

from __future__ import annotations

import random

import pytest

from hwmodels.catalog import load_gpu
from sim.call import Call, Options, run_call
from sim.tile_difference import CLOCK, CLOCKED, difference, useful_share, waits_s
from sim.tiles import every
from viz.tiles.explain import difference_json, sentences
from workloads.gemm import Gemm

CASES = (
    (Gemm(1024, 1024, 2048), "h200_sxm"),
    (Gemm(16, 4096, 4096), "h200_sxm"),
    (Gemm(300, 500, 700, dtype="fp16"), "t4"),
    (Gemm(512, 512, 1024, dtype="fp32"), "a100_sxm_80gb"),
)


def pairs() -> list[tuple[Gemm, str, int]]:
    return [(gemm, gpu, seed) for gemm, gpu in CASES for seed in range(4)]


def drawn(gemm: Gemm, name: str, seed: int, options: Options | None = None) -> tuple[Call, Call]:
    """Two configurations of all that fit, simulated."""
    gpu = load_gpu(name)
    one, other = random.Random(seed).sample(every(gemm, gpu), 2)
    return run_call(gemm, one, gpu, options or Options()), run_call(gemm, other, gpu, options or Options())


@pytest.mark.parametrize(("gemm", "gpu", "seed"), pairs())
def test_parts_add_up_to_the_difference(gemm: Gemm, gpu: str, seed: int) -> None:
    one, other = drawn(gemm, gpu, seed)
    found = difference(one, other)
    assert found.first.time_s <= found.second.time_s
    assert sum(part.time_s for part in found.parts) == pytest.approx(found.time_s, rel=1e-9, abs=1e-15)
    assert sum(part.first_s for part in found.parts) == pytest.approx(found.first.time_s, rel=1e-9)
    assert sum(part.second_s for part in found.parts) == pytest.approx(found.second.time_s, rel=1e-9)
    sizes = [abs(part.time_s) for part in found.parts]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(waits_s(one.main).values()) == pytest.approx(one.main.time_s, rel=1e-9)


def test_the_order_of_the_two_does_not_matter() -> None:
    one, other = drawn(*CASES[0], 1)
    assert difference(one, other) == difference(other, one)


def test_at_one_clock_the_clock_is_no_part() -> None:
    found = difference(*drawn(*CASES[0], 2, Options(clock_mhz=1200.0)))
    parts = {part.name: part for part in found.parts}
    assert abs(parts[CLOCK].time_s) < 1e-4 * found.time_s
    for name in CLOCKED:
        assert parts[name].second_s == pytest.approx(waits_s(found.second.main)[name], rel=1e-4)


def test_a_lower_clock_is_told_as_one() -> None:
    gemm, name = Gemm(2048, 2048, 2048), "h200_sxm"
    config = every(gemm, load_gpu(name), "persistent")[-1]
    fast, slow = (run_call(gemm, config, load_gpu(name), Options(clock_mhz=mhz)) for mhz in (1500.0, 1000.0))
    found = difference(slow, fast)
    assert (found.first, found.parts[0].name) == (fast, CLOCK)
    assert sentences(found)[0].startswith("B's clock is lower")


def test_a_kernel_beside_the_main_one_is_a_part() -> None:
    gemm, gpu = Gemm(64, 256, 8192), load_gpu("h200_sxm")
    split, whole = (run_call(gemm, every(gemm, gpu, family)[0], gpu, Options()) for family in ("split_k", "persistent"))
    part = next(part for part in difference(split, whole).parts if part.name == "split-K reduction")
    assert max(part.first_s, part.second_s) == next(k.time_s for k in split.kernels if k.name == part.name)


def test_padding_is_the_share_of_useful_flops() -> None:
    gemm, gpu = Gemm(16, 256, 256), load_gpu("h200_sxm")
    config = next(config for config in every(gemm, gpu, "persistent") if (config.block_m, config.block_n) == (32, 64))
    assert useful_share(run_call(gemm, config, gpu, Options())) == pytest.approx(0.5)


@pytest.mark.parametrize(("gemm", "gpu", "seed"), pairs()[::3])
def test_sentences_are_led_by_the_largest_part(gemm: Gemm, gpu: str, seed: int) -> None:
    found = difference(*drawn(gemm, gpu, seed))
    told = difference_json(found)
    assert told["sentences"] == sentences(found)
    assert all(text.endswith(".") and "\n" not in text for text in sentences(found))
    assert sum(part["b_less_a_us"] for part in told["parts"]) == pytest.approx(told["difference_us"], rel=1e-6)


def test_equal_ones_do_not_differ() -> None:
    one, _ = drawn(*CASES[0], 3)
    assert sentences(difference(one, one)) == ["Both take the same time for everything."]
