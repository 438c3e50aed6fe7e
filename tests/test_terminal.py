"""The terminal: one screen that tells the story, readable narrow, without colour, piped and in ASCII; JSON; walk."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hwmodels import list_gpus, load_gpu, rows
from hwmodels.catalog import resolved
from sim.result import Result
from tests.sample_result import reduction_kernel, sample_config, sample_kernel, sample_result
from viz.explain import CHART_WIDTH, explain, print_explanation
from viz.gpu_tables import print_gpu, print_gpus
from viz.terminal import print_result, to_json

JSON_KEYS = [
    "time_us",
    "end_to_end_us",
    "energy_j",
    "power_w",
    "burst",
    "before_settling",
    "limiter",
    "sm_cycles",
    "sm_mhz",
    "flops",
    "bytes",
    "utilisation",
    "waits",
    "occupancy",
    "waves",
    "kernel",
    "gpu",
    "notes",
    "weights_format",
    "weight_group",
    "sampled",
    "schema",
]


def long_result() -> Result:
    """Everything a screen can hold: copies, two kernels, sampling, all reasons, more advice than is shown."""
    advice = tuple({"change": f"change {i} of many words that go on", "time_s": 2e-4, "speedup": 1.1} for i in range(9))
    kernels = (sample_kernel(sampled=True), reduction_kernel())
    evidence = tuple(f"Sentence {i} of the evidence, with 81 % of something and a few more words." for i in range(6))
    return sample_result(copied=True, advice=advice, kernels=kernels, evidence=evidence)


RESULTS = {"plain": sample_result(), "copied": sample_result(copied=True), "long": long_result()}


def printed(draw: Any, what: Any, width: int, encoding: str = "utf-8", **options: Any) -> str:
    """What a console of that width and encoding receives, as text."""
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding=encoding, newline="") as out:
        console = Console(file=out, width=width, **options)
        draw(what, console)
        out.flush()
        return raw.getvalue().decode(encoding)


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize("name", RESULTS)
def test_one_screen(name: str) -> None:
    lines = printed(print_result, RESULTS[name], 100).splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("draw", [print_result, print_explanation])
def test_narrow_consoles_lose_no_figures(name: str, draw: Any) -> None:
    text = printed(draw, RESULTS[name], 60)
    assert max(map(len, text.splitlines())) <= 60
    assert "…" not in text


def test_the_screen_tells_the_story() -> None:
    text = " ".join(printed(print_result, sample_result(), 100).split())
    for part in (
        "4,096 × 4,096 × 4,096 bf16 (tn, L2 cold) on NVIDIA H200 SXM",
        "218 µs · 631 TFLOP/s · 72 % of the 872 TFLOP/s peak at 1,612 MHz",
        "computing 55 %",
        "data from L2 18 %",
        "HBM 188 MB 28.2 MB 993 GB/s 21 % 22 % 45.0 µs 2.15",
        "Limiter L2 bandwidth",
        "2 CTAs (8 warps) an SM, limited by shared memory; 3.88 waves: the last fills 88 % of the slots",
        "1,612 MHz on average (boost 1,980); 350,932 SM cycles",
        "multistage 128x128x64, 3 stages, 4 warps, group 8, 188 registers a thread, 96 KiB of shared memory a CTA",
        "1.10 × by tile 128x256x64, 8 warps → 198 µs",
        "its error is not known",
    ):
        assert part in text


def test_shares_of_waits_shown_sum_to_all() -> None:
    text = printed(print_result, sample_result(), 100)
    block = text.split("CTA time spent on")[1].split("\n\n")[0]
    shares = [float(share) for share in re.findall(r"([\d.]+) %", block)]
    assert sum(shares) == pytest.approx(100, abs=1.5)


def test_sampling_and_expected_error_are_told() -> None:
    expected = {"mape_pct": 6.4, "group": "LLM-shaped bf16, cold", "n": 212}
    result = sample_result(sampled=True, options={"expected_error": expected})
    text = " ".join(printed(print_result, result, 100).split())
    assert "off by 6.40 % (mean over 212 measured kernels, LLM-shaped bf16, cold)" in text
    assert "Sampled" in text
    assert "Sampled" not in printed(print_result, sample_result(), 100)


def test_copies_appear_as_a_level_only_where_there_are_any() -> None:
    assert "PCIe" in printed(print_result, sample_result(copied=True), 100)
    assert "PCIe" not in printed(print_result, sample_result(), 100)


def test_the_limiter_stands_out() -> None:
    text = printed(print_result, sample_result(), 100, force_terminal=True, color_system="standard")
    bold = [plain(line) for line in text.splitlines() if line.startswith("\x1b[1mL2 cache")]
    assert len(bold) == 1


def test_no_colour_and_pipes(monkeypatch: pytest.MonkeyPatch) -> None:
    piped = printed(print_result, sample_result(), 100)
    assert "\x1b" not in piped
    assert not any(line != line.rstrip() for line in piped.splitlines())
    coloured = printed(print_result, sample_result(), 100, force_terminal=True, color_system="standard")
    monkeypatch.setenv("NO_COLOR", "1")
    colourless = printed(print_result, sample_result(), 100, force_terminal=True, color_system="standard")
    assert re.search(r"\x1b\[3\dm", coloured)
    assert not re.search(r"\x1b\[(\d;)*3\dm", colourless)
    assert [line.rstrip() for line in plain(colourless).splitlines()] == piped.splitlines()


@pytest.mark.parametrize("draw", [print_result, print_explanation])
def test_consoles_without_unicode(draw: Any) -> None:
    text = printed(draw, long_result(), 100, encoding="ascii")
    assert "?" not in text
    assert "us" in text


def test_partial_waves_and_one_token() -> None:
    kernel = replace(sample_kernel(), waves=0.25)
    assert "25 % of the slots get work" in " ".join(
        printed(print_result, sample_result(kernels=(kernel,)), 100).split()
    )


def test_streamed_runs_tell_both_times() -> None:
    text = " ".join(printed(print_result, sample_result(copied=True, options={"stream_weights": True}), 100).split())
    assert "218 µs · 631 TFLOP/s with all of B in HBM" in text
    assert ", B in pieces, bound by PCIe: copies to the GPU 610 µs, kernels 218 µs" in text


def test_nothing_that_helps_prints_nothing() -> None:
    assert "Would help" not in printed(print_result, sample_result(advice=()), 100)


def test_the_walk_counts_stages_that_lie_in_shared_memory() -> None:
    occupancy = {**sample_kernel().occupancy, "smem_bytes_per_cta": 65536}
    text = "\n".join(explain(sample_result(kernels=(replace(sample_kernel(), occupancy=occupancy),))))
    assert "a ring of 3 stages, 2 of them in shared memory" in text
    assert "a ring of 3 stages in shared memory" in "\n".join(explain(sample_result()))


def test_persistent_and_split_kernels_are_named() -> None:
    config = {**sample_config(), "family": "persistent", "cluster_m": 2, "pingpong": True, "split_k": 4}
    kernels = (replace(sample_kernel(), config=config), reduction_kernel())
    text = " ".join(printed(print_result, sample_result(kernels=kernels), 100).split())
    assert "cluster 2x1, group 8, split 4, ping-pong" in text
    assert "with split_k_reduce: 24.6 µs" in text


# Tables of GPUs.
def test_every_value_of_a_gpu_is_printed_with_its_origin() -> None:
    gpu = load_gpu("h200_sxm")
    for width, terminal in ((140, True), (60, True), (80, False)):
        text = plain(printed(print_gpu, list(rows(gpu)), width, force_terminal=terminal))
        squeezed = "".join(text.split())
        for row in rows(gpu):
            assert row.key in squeezed
            assert row.kind in squeezed
        assert "…" not in text


def test_piped_gpu_values_are_one_line_each() -> None:
    given = list(rows(load_gpu("h200_sxm")))
    lines = printed(print_gpu, given, 80).splitlines()
    assert len(lines) == len(given)
    (line,) = [line for line in lines if line.startswith("hbm.bandwidth_gb_per_s ")]
    assert re.split(r"  +", line)[:4] == ["hbm.bandwidth_gb_per_s", "4,800", "GB/s", "datasheet"]
    assert line.endswith(next(row.source for row in given if row.key == "hbm.bandwidth_gb_per_s"))


@pytest.mark.parametrize("width", [100, 60])
def test_list_of_gpus(width: int) -> None:
    text = printed(print_gpus, [load_gpu(name) for name in list_gpus()], width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for name in list_gpus():
        assert re.search(rf"^{name} ", text, re.M)
    assert re.search(r"^v100_sxm2_32gb .* 125 ", text, re.M)  # the vendor's 125 TFLOP/s at 1,530 MHz


# JSON.
def test_json_object_has_exactly_the_keys_promised() -> None:
    result = sample_result(copied=True)
    told = json.loads(json.dumps(to_json(result), allow_nan=False))
    assert list(told) == JSON_KEYS
    assert told["time_us"] == pytest.approx(217.7)
    assert told["bytes"]["hbm"] == {"read": 188_000_000, "write": 28_200_000}
    assert told["bytes"]["pcie"] == {"read": 33_554_432, "write": 33_554_432}
    assert sum(told["waits"].values()) == pytest.approx(1)
    assert told["kernel"]["block_m"] == 128
    assert told["gpu"] == "h200_sxm"


def test_json_bytes_are_the_whole_calls() -> None:
    told = to_json(sample_result(kernels=(sample_kernel(), reduction_kernel())))
    assert told["bytes"]["l2"]["write"] == 33_554_432 * 2
    assert told["sm_cycles"] == sample_kernel().sm_cycles


# The walk.
def test_the_walk_tells_each_step_with_its_times() -> None:
    text = "\n".join(explain(sample_result(copied=True)))
    steps = [
        "cut into tiles",
        "Host RAM to HBM",
        "Launch",
        "A CTA starts",
        "first loads",
        "first data arrive",
        "first MMA",
        "drawn",
        "Steady state",
        "Epilogue",
        "next tile",
        "HBM to host RAM",
        "adds up",
    ]
    assert [text.index(step) for step in steps] == sorted(text.index(step) for step in steps)
    for part in (
        "32 × 32 = 1,024 tiles of 128 × 128",
        "610 µs",
        "asks for the first 2 (64 KiB)",
        "was a miss",
        "64 KiB",
    ):
        assert part in text


def test_steady_state_adds_up() -> None:
    (text,) = [part for part in explain(sample_result()) if "Steady state" in part]
    period, mma, wait, rest = (
        float(ns)
        for ns in re.search(
            r"takes ([\d.]+) ns .*?: ([\d.]+) ns MMA, ([\d.]+) ns\s+waiting, ([\d.]+) ns", text
        ).groups()  # type: ignore[union-attr]
    )
    assert mma + wait + rest == pytest.approx(period, abs=1.5)


def test_a_short_first_load_is_told_as_a_hit() -> None:
    kernel = sample_kernel()
    assert kernel.spans is not None
    spans = kernel.spans.copy()
    first = (spans["kind"] == 1) & (spans["k"] == 0)
    spans["end_fs"][first] = spans["start_fs"][first] + 200_000_000
    text = "\n".join(explain(sample_result(kernels=(replace(kernel, spans=spans),))))
    assert "it was a hit" in text
    assert "it was a miss" not in text


def test_the_chart_draws_loads_ahead_of_their_use() -> None:
    (chart,) = [part for part in explain(sample_result()) if "drawn" in part]
    lines = chart.splitlines()
    consumer = next(line for line in lines if line.startswith("consumer"))[9:]
    loads = [line[9:] for line in lines if line.startswith("load")]
    assert max(map(len, (consumer, *loads))) <= CHART_WIDTH
    assert consumer.index("s") < consumer.index(".") < consumer.index("#")
    assert loads[0].index("-") == loads[1].index("-") < loads[2].index("-")


def test_untraced_walk_says_how_to_get_times() -> None:
    text = "\n".join(explain(sample_result(traced=False)))
    assert "traced" in text
    assert "Steady state" not in text


def test_the_walk_of_a_split_persistent_kernel(tmp_path: Path) -> None:
    config = {**sample_config(), "family": "persistent", "cluster_m": 2, "split_k": 4}
    text = "\n".join(explain(sample_result(kernels=(replace(sample_kernel(), config=config), reduction_kernel()))))
    assert "cluster of 2 × 1" in text
    assert "fp32 partial sums" in text
    assert "also runs split_k_reduce, for 24.6 µs" in text


def test_power_that_the_board_does_not_hold_is_marked() -> None:
    """The H200 holds 98.8 % of 700 W."""
    for joules, marked in ((0.7, True), (0.6, False)):
        kernel = replace(sample_kernel(), time_s=1e-3, energy_j={"tensor": joules})
        result = replace(sample_result(), kernels=(kernel,), time_s=1e-3, gpu=resolved(load_gpu("h200_sxm")))
        text = " ".join(printed(print_result, result, 100).split())
        assert (f"{1e3 * joules:,.0f} W in a burst (the board holds 692 W)" in text) is marked
        assert to_json(result)["burst"] is marked
