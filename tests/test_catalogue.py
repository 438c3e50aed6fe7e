"""Every GPU that is shipped, by what it gets out of itself: a wrong rate, menu or latency shows here."""

from __future__ import annotations

import json

import pytest

from hwmodels import list_gpus, load_gpu, resolved
from hwmodels.catalog import differences
from hwmodels.estimates import MEASURED, estimates_note, share_assumed
from sim import simulate
from tests.command_line import one_error, tilewalk
from workloads.gemm import Gemm

PUBLISHED_TFLOPS = {
    "a100_pcie_40gb": 312,
    "a100_sxm_80gb": 312,
    "a10g": 70,
    "b200": 2250,
    "gb200": 2500,
    "h100_pcie": 756.5,
    "h100_sxm": 989.4,
    "h200_sxm": 989.4,
    "l4": 121,
    "l40s": 362.05,
    "mi210": 181,
    "mi250x_gcd": 191.5,
    "mi300x": 1307.4,
    "rtx_3090": 71,
    "rtx_4090": 165.2,
    "rtx_5090": 209.5,
    "rtx_pro_6000": 500,
    "t4": 65,
    "v100_pcie_32gb": 112,
    "v100_sxm2_32gb": 125,
}
"""{GPU: the vendor's dense peak with 16-bit operands and fp32 accumulators}."""
USUAL = 0.70, 0.97
OF_PEAK = {
    "mi300x": (0.42, 0.60),  # its power: AMD's own fp16 and bf16 GEMMs reach 654 and 708 TFLOP/s, 0.50 and 0.54
    "rtx_5090": (0.85, 1.15),  # boards run above the clock of the datasheet's peak: 182 to 237 TFLOP/s are reported
}
OF_BANDWIDTH = dict.fromkeys(("mi210", "mi250x_gcd"), (0.65, 0.97))
OF_BANDWIDTH |= {
    "mi300x": (0.60, 0.97),
    "t4": (0.50, 0.97),
    "v100_pcie_32gb": (0.60, 0.97),
    "v100_sxm2_32gb": (0.60, 0.97),
}
"""Long reads reach 77 % of an MI300X's pins, 82 % of an MI210's, 80 % of a T4's; rings of two stages read short rows
of DRAM."""

each_gpu = pytest.mark.parametrize("name", list_gpus())


def half(gpu):
    """The 16-bit type that its tensor cores take."""
    return "bf16" if gpu.tensor.bf16_flops_per_clk_per_sm else "fp16"


@each_gpu
def test_a_large_product_nears_the_published_peak(name):
    gpu = load_gpu(name)
    result = simulate(Gemm(4096, 4096, 4096, dtype=half(gpu)), gpu)
    least, most = OF_PEAK.get(name, USUAL)
    assert least <= result.flops / result.time_s / 1e12 / PUBLISHED_TFLOPS[name] <= most


@each_gpu
def test_a_few_rows_near_the_memorys_bandwidth(name):
    gpu = load_gpu(name)
    result = simulate(Gemm(8, 8192, 8192, dtype=half(gpu)), gpu)
    least, most = OF_BANDWIDTH.get(name, USUAL)
    weights = 2 * 8192 * 8192
    assert least <= weights / result.time_s / 1e9 / gpu.hbm.bandwidth_gb_per_s <= most


@pytest.mark.parametrize("name", ["a10g", "b200", "mi300x"])
def test_a_decode_step_reads_its_weights_at_memory_speed(name):
    asked = ("llm", "--model", "llama3-8b", "--gpu", name, "--phase", "decode", "--json")
    found = json.loads(tilewalk(*asked).stdout)
    bound_us = 16.06e9 / load_gpu(name).hbm.bandwidth_gb_per_s / 1e3
    assert bound_us < found["time_us"] < 4 * bound_us
    assert found["notes"][-1] == estimates_note(resolved(load_gpu(name)))


def test_no_new_gpu_claims_to_be_fitted():
    for name in set(list_gpus()) - {"h200_sxm", "l40s"}:
        assert not [key for key, origin in load_gpu(name).provenance.items() if origin.kind == "fitted"], name


# What is estimated.
def test_a_gpu_of_estimates_says_so_and_whether_kernels_were_measured():
    assert estimates_note(resolved(load_gpu("h200_sxm"))) == ""
    for name in set(list_gpus()) - {"h200_sxm"}:
        described = resolved(load_gpu(name))
        share, note = share_assumed(described), estimates_note(described)
        assert note.startswith(f"{share.n_assumed} of {share.n_numbers} numbers of this GPU are estimates; "), name
        assert ("check them" in note) == (MEASURED / name).is_dir(), name


def test_numbers_count_once_each_and_flags_not_at_all():
    values = {"a": (3, "assumed"), "b": (1.5, "datasheet"), "c": (True, "assumed"), "d": ("HBM", "assumed")}
    described = {"name": "x", "values": {key: {"value": value, "kind": kind} for key, (value, kind) in values.items()}}
    assert share_assumed(described) == (1, 2)
    assert estimates_note(described) == "", "half is not most"


def test_results_carry_the_note():
    done = tilewalk("gemm", "512", "512", "512", "--gpu", "b200", "--json")
    (note,) = json.loads(done.stdout)["notes"]
    assert note == estimates_note(resolved(load_gpu("b200")))
    assert note in " ".join(tilewalk("gemm", "512", "512", "512", "--gpu", "b200").stdout.split())


# Comparing.
def test_differences_have_both_values_and_their_ratio():
    found = {row.key: row for row in differences(load_gpu("h100_sxm"), load_gpu("h200_sxm"))}
    bandwidth = found["hbm.bandwidth_gb_per_s"]
    assert (bandwidth.values, bandwidth.unit) == ((3350, 4800), "GB/s")
    assert bandwidth.ratio == pytest.approx(4800 / 3350)
    assert bandwidth.kinds == ("datasheet", "datasheet")
    assert found["hbm.technology"].ratio is None
    assert "sm.count" not in found


def test_compare_prints_what_differs_and_nothing_else():
    lines = tilewalk("gpus", "compare", "b200", "gb200").stdout.splitlines()
    assert lines[0].split() == ["key", "b200", "gb200", "unit", "ratio", "kinds"]
    assert len(lines) == 1 + len(differences(load_gpu("b200"), load_gpu("gb200")))
    assert any(line.split()[:5] == ["power.board_w", "1,000", "1,200", "W", "1.2"] for line in lines)
    assert tilewalk("gpus", "compare", "t4", "t4").stdout == "t4 and t4 differ in no value.\n"


def test_compare_in_json():
    found = json.loads(tilewalk("gpus", "compare", "mi210", "mi250x_gcd", "--json").stdout)
    assert found["gpus"] == ["mi210", "mi250x_gcd"]
    count = next(row for row in found["differences"] if row["key"] == "sm.count")
    assert (count["values"], count["unit"], len(count["sources"])) == ([104, 110], "count", 2)


def test_compare_refuses_an_unknown_gpu():
    assert "did you mean b200?" in one_error(tilewalk("gpus", "compare", "b20", "t4"))
    assert "did you mean mi300x?" in one_error(tilewalk("gpus", "compare", "t4", "mi300"))
