"""Shipped GPUs: complete, sourced, in agreement with datasheets and with the measured tables; overrides; display."""

from __future__ import annotations

import csv
import json
import math
import pickle
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from hwmodels import ConfigError, list_gpus, load_gpu, measured_path, resolved, rows
from hwmodels.rules import RULES, value_at
from hwmodels.spec import FIELDS, KINDS, SECTIONS, Gpu
from hwmodels.units import UNITS, stem_of, suffix_of

NAMES = ["a100_pcie_40gb", "a100_sxm_80gb", "a10g", "b200", "gb200", "h100_pcie", "h100_sxm", "h200_sxm", "l4", "l40s"]
NAMES += ["mi210", "mi250x_gcd", "mi300x", "rtx_3090", "rtx_4090", "rtx_5090", "rtx_pro_6000", "t4"]
NAMES += ["v100_pcie_32gb", "v100_sxm2_32gb"]

# {GPU: ({key: dense peak in TFLOP/s}, MHz at which the vendor quotes it)}. NVIDIA datasheets and whitepapers; Hopper
# quotes low precision at a lower clock (1,830 MHz on SXM, 1,620 on PCIe) than fp32 and fp64 (1,980 and 1,755).
HOPPER_SXM = [
    (
        {"tensor.fp16": 989.4, "tensor.bf16": 989.4, "tensor.tf32": 494.7, "tensor.fp8": 1978.9, "tensor.int8": 1978.9},
        1830,
    ),
    ({"tensor.fp64": 66.9, "cuda_core.fp32": 66.9, "cuda_core.fp64": 33.5, "cuda_core.fp16": 133.8}, 1980),
]
A100 = {"tensor.fp16": 312, "tensor.bf16": 312, "tensor.tf32": 156, "tensor.int8": 624, "tensor.fp64": 19.5}
A100 |= {"cuda_core.fp32": 19.5, "cuda_core.fp64": 9.7, "cuda_core.fp16": 78}
DATASHEET_TFLOPS = {
    "a10g": [
        ({"tensor.fp16": 70, "tensor.bf16": 70, "tensor.tf32": 35, "tensor.int8": 140, "cuda_core.fp32": 35}, 1710)
    ],
    "rtx_3090": [
        ({"tensor.fp16": 71, "tensor.bf16": 71, "tensor.tf32": 35.6, "tensor.int8": 284, "cuda_core.fp32": 35.6}, 1695)
    ],
    "rtx_4090": [
        ({"tensor.fp16": 165.2, "tensor.bf16": 165.2, "tensor.tf32": 82.6, "tensor.fp8": 330.3}, 2520),
        ({"tensor.int8": 660.6, "cuda_core.fp32": 82.6}, 2520),
    ],
    "l4": [
        ({"tensor.fp16": 121, "tensor.bf16": 121, "tensor.tf32": 60, "tensor.fp8": 242.5, "tensor.int8": 242.5}, 2040)
    ],
    "rtx_5090": [
        ({"tensor.fp16": 209.5, "tensor.bf16": 209.5, "tensor.tf32": 104.8, "tensor.fp8": 419}, 2407),
        ({"tensor.int8": 838, "cuda_core.fp32": 104.8}, 2407),
    ],
    "rtx_pro_6000": [
        ({"tensor.fp16": 500, "tensor.bf16": 500, "tensor.tf32": 250, "tensor.fp8": 1000, "tensor.int8": 1000}, 2600),
        ({"cuda_core.fp32": 125}, 2600),
    ],
    "b200": [
        (
            {"tensor.fp16": 2250, "tensor.bf16": 2250, "tensor.tf32": 1125, "tensor.fp8": 4500, "tensor.int8": 4500},
            1856,
        ),
        ({"tensor.fp64": 40, "cuda_core.fp64": 40, "cuda_core.fp32": 80}, 2112),
    ],
    "gb200": [
        (
            {"tensor.fp16": 2500, "tensor.bf16": 2500, "tensor.tf32": 1250, "tensor.fp8": 5000, "tensor.int8": 5000},
            2062,
        ),
        ({"tensor.fp64": 45, "cuda_core.fp32": 90}, 2375),
    ],
    "mi210": [({"tensor.fp16": 181, "tensor.bf16": 181, "tensor.int8": 181, "tensor.fp64": 45.3}, 1700)],
    "mi250x_gcd": [({"tensor.fp16": 191.5, "tensor.bf16": 191.5, "tensor.int8": 191.5, "tensor.fp64": 47.9}, 1700)],
    "mi300x": [
        ({"tensor.fp16": 1307.4, "tensor.bf16": 1307.4, "tensor.tf32": 653.7, "tensor.fp8": 2614.9}, 2100),
        ({"tensor.int8": 2614.9, "tensor.fp64": 163.4, "cuda_core.fp32": 163.4}, 2100),
    ],
    "h200_sxm": HOPPER_SXM,
    "h100_sxm": HOPPER_SXM,
    "h100_pcie": [
        (
            {"tensor.fp16": 756.5, "tensor.bf16": 756.5, "tensor.tf32": 378, "tensor.fp8": 1513, "tensor.int8": 1513},
            1620,
        ),
        ({"tensor.fp64": 51.2, "cuda_core.fp32": 51.2, "cuda_core.fp64": 25.6}, 1755),
    ],
    "a100_sxm_80gb": [(A100, 1410)],
    "a100_pcie_40gb": [(A100, 1410)],
    "l40s": [
        ({"tensor.fp16": 362.05, "tensor.bf16": 362.05, "tensor.tf32": 183}, 2490),
        ({"tensor.fp8": 733, "tensor.int8": 733, "cuda_core.fp32": 91.6, "cuda_core.fp64": 1.43}, 2520),
    ],
    "v100_sxm2_32gb": [
        ({"tensor.fp16": 125, "cuda_core.fp32": 15.7, "cuda_core.fp64": 7.8, "cuda_core.fp16": 31.4}, 1530)
    ],
    "v100_pcie_32gb": [({"tensor.fp16": 112, "cuda_core.fp32": 14, "cuda_core.fp64": 7}, 1380)],
    "t4": [({"tensor.fp16": 65, "tensor.int8": 130, "cuda_core.fp32": 8.1, "cuda_core.fp64": 0.254}, 1590)],
}

# {GPU: (MHz of the memory clock, transfers a clock, bits of the bus)}, from the same datasheets and a device query.
MEMORY_PINS = {
    "a10g": (1563, 8, 384),
    "rtx_3090": (1219, 16, 384),
    "rtx_4090": (1313, 16, 384),
    "l4": (1563, 8, 192),
    "rtx_5090": (1750, 16, 512),
    "rtx_pro_6000": (1750, 16, 512),
    "b200": (3996, 2, 7680),
    "gb200": (3906, 2, 8192),
    "mi210": (1600, 2, 4096),
    "mi250x_gcd": (1600, 2, 4096),
    "mi300x": (2600, 2, 8192),
    "h200_sxm": (3201, 2, 6016),
    "h100_sxm": (2619, 2, 5120),
    "h100_pcie": (1593, 2, 5120),
    "a100_sxm_80gb": (1593, 2, 5120),
    "a100_pcie_40gb": (1215, 2, 5120),
    "l40s": (2250, 8, 384),
    "v100_sxm2_32gb": (877.5, 2, 4096),
    "v100_pcie_32gb": (877.5, 2, 4096),
    "t4": (1250, 8, 256),
}


@pytest.fixture(params=NAMES)
def gpu(request):
    """Each shipped GPU in turn."""
    return load_gpu(request.param)


def test_these_gpus_are_shipped():
    assert list_gpus() == NAMES


def test_every_value_has_unit_kind_and_source(gpu):
    found = list(rows(gpu))
    assert [row.key for row in found] == list(FIELDS) == list(gpu.provenance)
    for row in found:
        assert row.unit, row
        assert row.kind in set(KINDS) - {"user"}, row
        assert len(row.source) >= 8, row
        assert row.value == value_at(gpu, row.key)


def test_assumed_values_say_so_in_their_source(gpu):
    words = "estimate|carried over|measured on|H200|not read|taken|measured from|no figure|from RTX|multistage"
    for row in rows(gpu):
        assert row.kind != "assumed" or re.search(words, row.source), row


def test_listing_names_loads_nothing_heavy():
    code = "import sys, hwmodels; hwmodels.list_gpus(); assert not {'pydantic', 'numpy', 'tomllib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])


def test_rates_times_clock_meet_the_datasheet(gpu):
    for peaks, mhz in DATASHEET_TFLOPS[gpu.name]:
        for unit, tflops in peaks.items():
            rate = value_at(gpu, f"{unit}_flops_per_clk_per_sm")
            assert rate * gpu.sm.count * mhz / 1e6 == pytest.approx(tflops, rel=0.02), (unit, mhz)


def test_types_without_a_datasheet_peak_are_absent(gpu):
    quoted = {unit for peaks, _ in DATASHEET_TFLOPS[gpu.name] for unit in peaks}
    for dtype in ("fp64", "tf32", "fp16", "bf16", "fp8", "int8"):
        assert (value_at(gpu, f"tensor.{dtype}_flops_per_clk_per_sm") > 0) == (f"tensor.{dtype}" in quoted), dtype


def test_memory_bandwidth_is_that_of_its_pins(gpu):
    mhz, transfers, bits = MEMORY_PINS[gpu.name]
    assert gpu.hbm.bandwidth_gb_per_s == pytest.approx(mhz * 1e6 * transfers * bits / 8 / 1e9, rel=0.01)


def test_l2_is_faster_than_memory_and_nearer(gpu):
    l2_gb_per_s = gpu.l2.bytes_per_clk * gpu.clock.boost_mhz / 1e3
    assert l2_gb_per_s > 1.5 * gpu.hbm.bandwidth_gb_per_s
    assert gpu.smem.latency_cycles < gpu.l2.latency_cycles


def test_loading_a_name_is_quick():
    load_gpu("h200_sxm")
    start = time.perf_counter()
    for _ in range(10):
        load_gpu("h200_sxm", ["sm.count=100"])
    assert (time.perf_counter() - start) / 10 < 0.03


def microbench():
    """{(bench, param1, param2): value} of the shipped H200 table."""
    with measured_path("h200_sxm", "microbench").open() as file:
        table = {(row["bench"], row["param1"], row["param2"]): row["value"] for row in csv.DictReader(file)}
    return {key: float(value) for key, value in table.items() if value.replace(".", "", 1).isdigit()}


def test_h200_values_are_those_of_the_microbenchmark():
    gpu, bench = load_gpu("h200_sxm"), microbench()
    ghz = bench["prop", "clock", ""] / 1e6
    reads = {key: value for key, value in bench.items() if key[0] == "read_bw"}
    from_memory = max(value for key, value in reads.items() if int(key[2].split("=")[1]) >= 2**30)
    expected = {
        "sm.count": bench["prop", "sms", ""],
        "smem.kib_per_sm": bench["prop", "smem_per_sm", ""] / 1024,
        "smem.max_kib_per_cta": bench["prop", "smem_optin", ""] / 1024,
        "smem.latency_cycles": bench["smem_latency", "", ""],
        "l2.capacity_mib": bench["prop", "l2", ""] / 2**20,
        "l2.latency_cycles": bench["latency_cg", "footprint=16777216", "iters=131072"],
        "l2.sm_port_bytes_per_clk": reads["read_bw", "blocks=1;per_sm=1", "footprint=12582912"] / ghz,
        "hbm.read_fraction": from_memory / gpu.hbm.bandwidth_gb_per_s,
        "hbm.write_fraction": bench["write_bw", "", "footprint=4294967296"] / gpu.hbm.bandwidth_gb_per_s,
        "hbm.latency_ns": bench["latency_ca_ns", "footprint=4294967296", "iters=200000"]
        - bench["latency_ca_ns", "footprint=2097152", "iters=16384"],
        "tensor.mma_sync_fraction": max(v for k, v in bench.items() if k[0].startswith("mma_sync")) / 4096,
        "clock.boost_mhz": ghz * 1e3,
        "launch.stream_us": bench["launch_stream_back_to_back", "", ""],
        "launch.graph_us": bench["graph_kernel_to_kernel", "blocks=1", ""],
        "launch.sync_us": bench["launch_and_sync", "", ""],
        "pcie.pinned_h2d_gb_per_s": bench["h2d_pinned", "bytes=1073741824", "us=19739.26"],
        "pcie.pageable_d2h_gb_per_s": bench["d2h_pageable", "bytes=1073741824", "us=89232.81"],
    }
    assert {key: value_at(gpu, key) for key in expected} == pytest.approx(expected, rel=1e-3)


NUMBER = r"(\d{1,3}(?:,\d{3})*(?:\.\d+)?)"
QUOTIENT = re.compile(rf"\b{NUMBER} of {NUMBER} (?:GB/s|MB|W|pJ/B|FLOP/clk/SM)")


def test_a_measured_fraction_is_the_quotient_that_its_source_states(gpu):
    """One of them, where it states several."""
    found = {}
    for row in rows(gpu):
        pairs = [[float(number.replace(",", "")) for number in pair] for pair in QUOTIENT.findall(row.source)]
        if row.kind == "microbenchmark" and row.key.endswith("_fraction") and pairs:
            found[row.key] = [row.value == pytest.approx(part / whole, rel=5e-3) for part, whole in pairs]
    assert {key: any(agree) for key, agree in found.items()} == dict.fromkeys(found, True)
    if gpu.name == "h200_sxm":
        assert {"hbm.read_fraction", "hbm.write_fraction", "hbm.copy_fraction", "tensor.mma_sync_fraction"} <= set(
            found
        )


def test_measured_tables_are_shipped_and_others_refused():
    for table, n_rows in {
        "gemm": 961,
        "tile_sweep": 1377,
        "counters.csv": 544,
        "microbench": 215,
        "topology": 4524,
        "overheads": 194,
        "ports": 827,
        "ring": 1460,
        "power": 70,
        "spills": 136,
        "traffic": 34,
    }.items():
        with measured_path("h200_sxm", table).open() as file:
            assert sum(1 for _ in csv.reader(file)) == n_rows + 1
    for wrong in (("h200_sxm", "nothing"), ("t4", "gemm"), ("..", "gemm"), ("h200_sxm", "../h200_sxm/gemm")):
        with pytest.raises(ConfigError, match=r"known: .*h200_sxm/counters"):
            measured_path(*wrong)


OF_PACKED_WEIGHTS = {
    "tensor.sparse_positions_cycles",
    "cuda_core.convert_int4_instructions",
    "l2.hot_line_cycles",
}


def test_no_more_than_fourteen_constants_are_fitted():
    """For dense products; three more for kernels whose weights are packed, six for attention, two for the board's power
    over time, two an operation for those bound by memory (tests/test_stream_kernels.py)."""
    fitted = {row.key for row in rows(load_gpu("h200_sxm")) if row.kind == "fitted"}
    attention = {key for key in fitted if key.startswith("attention.")}
    streaming = {key for key in fitted if key.startswith("streaming.")}
    power = {key for key in fitted if key.startswith("power.")}
    assert fitted >= OF_PACKED_WEIGHTS
    assert len(attention) <= 6, attention
    assert power == {"power.react_ms", "power.mean_ms"}
    assert len(fitted - OF_PACKED_WEIGHTS - attention - streaming - power) <= 14, fitted


def test_constants_of_the_model_are_carried_as_assumed():
    fitted, other = load_gpu("h200_sxm"), load_gpu("h100_pcie")
    key = "multistage.issue_bytes_per_clk"
    assert fitted.provenance[key].kind == "fitted"
    assert value_at(other, key) == value_at(fitted, key)
    assert other.provenance[key].kind == "assumed"
    assert other.provenance[key].source.startswith("carried over from h200_sxm, not checked on this GPU")
    assert other.activity.active_mhz != fitted.activity.active_mhz, "a value of its own wins"
    own = {(gpu.name, k) for gpu in map(load_gpu, NAMES) for k in FIELDS if gpu.provenance[k].kind == "fitted"}
    assert {pair for pair in own if pair[0] != "h200_sxm"} == {("l40s", "activity.sustained_tensor_mhz")}


def test_keys_and_units_come_from_one_table():
    for key, field in FIELDS.items():
        assert field.unit, key
        assert field.text, key
        if field.type is float:
            assert UNITS[suffix_of(key.rpartition(".")[2])] == field.unit, key
            assert None not in (field.low, field.high), key
    assert (stem_of("bandwidth_gb_per_s"), stem_of("kib_per_sm")) == ("bandwidth", "")


def test_a_gpu_is_frozen_hashable_and_travels_to_other_processes(gpu):
    with pytest.raises(ValidationError):
        gpu.hbm.bandwidth_gb_per_s = 1.0
    with pytest.raises(ValidationError):
        gpu.hbm = None
    again = pickle.loads(pickle.dumps(gpu))
    assert again == gpu
    assert hash(again) == hash(gpu)
    assert load_gpu(gpu.name, ["hbm.latency_ns=*1.5"]) != gpu


def test_resolved_is_what_a_result_keeps(gpu):
    found = json.loads(json.dumps(resolved(gpu)))
    assert (found["name"], found["label"]) == (gpu.name, gpu.label)
    assert list(found["values"]) == list(FIELDS)
    unit, kind, source = gpu.provenance["hbm.latency_ns"]
    assert found["values"]["hbm.latency_ns"] == {
        "value": gpu.hbm.latency_ns,
        "unit": unit,
        "kind": kind,
        "source": source,
    }


def test_overrides_set_and_scale_in_order():
    gpu = load_gpu("h200_sxm", ["hbm.bandwidth_gb_per_s=9600", "l2.capacity_mib=*2", "hbm.bandwidth_gb_per_s = *0.5"])
    assert (gpu.hbm.bandwidth_gb_per_s, gpu.l2.capacity_mib) == (4800, 120)
    assert gpu.provenance["l2.capacity_mib"][:2] == ("MiB", "user")
    assert "60 (microbenchmark: this project" in gpu.provenance["l2.capacity_mib"].source
    assert load_gpu("h200_sxm").l2.capacity_mib == 60, "the catalog itself is untouched"


def test_overrides_keep_types():
    gpu = load_gpu(
        "h200_sxm", ["sm.count=*0.5", "tensor.wgmma=false", "hbm.technology=HBM4", "compute_capability=10.0"]
    )
    assert (gpu.sm.count, type(gpu.sm.count)) == (66, int)
    assert (gpu.tensor.wgmma, gpu.hbm.technology, gpu.compute_capability) == (False, "HBM4", "10.0")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("hbm.bandwidth_gb_per_s", "needs the form key=value or key=\\*factor"),
        ("=3", "needs the form"),
        ("hbm.bandwith_gb_per_s=3", "unknown key 'hbm.bandwith_gb_per_s'; did you mean hbm.bandwidth_gb_per_s\\?"),
        ("hbn.latency_ns=3", "unknown section 'hbn'; did you mean hbm\\?"),
        ("bandwidth_gb_per_s=3", "did you mean hbm.bandwidth_gb_per_s\\?"),
        (
            "hbm.bandwidth_gib_per_s=3",
            "the unit is GB/s \\(10\\^9 bytes a second\\); did you mean hbm.bandwidth_gb_per_s\\?",
        ),
        ("hbm.bandwidth=3", "the unit is GB/s .*did you mean hbm.bandwidth_gb_per_s\\?"),
        ("hbm.latency_us=3", "the unit is ns; did you mean hbm.latency_ns\\?"),
        ("l2.capacity_mb=3", "the unit is MiB \\(2\\^20 bytes\\); did you mean l2.capacity_mib\\?"),
        ("label=mine", "label names the GPU; only a file sets it"),
        ("hbm.bandwidth_gb_per_s=-5", "hbm.bandwidth_gb_per_s = -5: needs a number from 0.1 to 1000000 GB/s"),
        ("hbm.bandwidth_gb_per_s=nan", "needs a number from 0.1 to 1000000 GB/s"),
        ("hbm.bandwidth_gb_per_s=inf", "needs a number from 0.1"),
        ("hbm.bandwidth_gb_per_s=1e999", "hbm.bandwidth_gb_per_s = inf: needs a number"),
        ("hbm.bandwidth_gb_per_s=" + "9" * 5000, "needs a number from 0.1"),
        ("hbm.bandwidth_gb_per_s=*-1", "factor '-1': needs a number above 0"),
        ("hbm.bandwidth_gb_per_s=*0", "needs a number above 0"),
        ("hbm.technology=*2", "has no number to multiply"),
        ("hbm.read_fraction=1.2", "hbm.read_fraction = 1.2: needs a number from 0.01 to 1 fraction"),
        ("sm.count=132.5", "sm.count = 132.5: needs a whole number from 1 to 4096"),
        ("sm.count=*0.3", "sm.count = 39.6: needs a whole number"),
        ("sm.count=true", "needs a whole number"),
        ("tensor.wgmma=1", "needs true or false"),
        ("hbm.technology=a\nb", "needs text: kind of memory"),
        ("compute_capability=9", "needs text: version of the instruction set, such as 9.0"),
    ],
)
def test_a_wrong_override_is_refused_in_one_line(override, said):
    with pytest.raises(ConfigError, match=said) as refused:
        load_gpu("h200_sxm", [override])
    assert str(refused.value).startswith("override ")
    assert str(refused.value).isprintable()


BREAKERS = {
    "clock.base_mhz": ["clock.boost_mhz=1500"],
    "activity.active_mhz": ["activity.tensor_mhz=1850"],
    "sm.count": ["sm.count=4096"],
    "smem.max_kib_per_cta": ["smem.kib_per_sm=227"],
    "sm.warp_size": ["sm.warp_size=64"],
    "tensor.tmem_kib_per_sm": ["tensor.tmem_kib_per_sm=256", "tensor.wgmma=false", "tensor.tma=false"],
    "launch.sync_us": ["launch.sync_us=1"],
    "sm.max_threads_per_cta": ["sm.max_warps=16", "sm.max_ctas=16"],
    "sm.max_ctas": ["sm.max_ctas=65"],
    "sm.schedulers": ["sm.schedulers=32", "sm.max_warps=31", "sm.max_ctas=16", "sm.max_threads_per_cta=512"],
    "registers.max_per_thread": ["registers.max_per_thread=2048", "registers.per_sm=32768"],
    "registers.allocation_per_warp": ["registers.allocation_per_warp=300"],
    "l2.sector_bytes": ["l2.sector_bytes=48"],
    "l2.capacity_mib": ["l2.capacity_mib=200000"],
    "tensor.wgmma": ["tensor.tma=false"],
    "tensor.tma": ["tensor.wgmma=false", "tensor.cp_async=false"],
    "pcie.pinned_h2d_gb_per_s": ["pcie.generation=4"],
    "pcie.pinned_d2h_gb_per_s": ["pcie.pinned_d2h_gb_per_s=64"],
    "tensor.fp64_flops_per_clk_per_sm": ["tensor.fp8_flops_per_clk_per_sm=0.5"],
    "cuda_core.fp64_flops_per_clk_per_sm": ["cuda_core.fp32_flops_per_clk_per_sm=0.5"],
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.keys[0])
def test_an_impossible_combination_is_refused_by_name(rule):
    with pytest.raises(ConfigError, match="impossible combination") as refused:
        load_gpu("h200_sxm", BREAKERS[rule.keys[0]])
    assert rule.text in str(refused.value)
    assert all(f"{key} = " in str(refused.value) for key in rule.keys)


def test_what_if_questions_are_allowed():
    load_gpu("h200_sxm", ["sm.count=1", "hbm.bandwidth_gb_per_s=*10", "l2.capacity_mib=*8", "smem.bytes_per_clk=*2"])
    load_gpu("h200_sxm", ["pcie.generation=7", "pcie.pinned_h2d_gb_per_s=220", "tensor.fp16_flops_per_clk_per_sm=*1.1"])
    load_gpu("t4", ["hbm.technology=HBM3e", "clock.boost_mhz=3000", "smem.kib_per_sm=*4", "smem.max_kib_per_cta=*3"])


def test_building_one_in_python_checks_the_same():
    values = load_gpu("t4").model_dump()
    assert Gpu.model_validate(values) == load_gpu("t4").model_copy(update={"provenance": {}})
    for section, key, wrong in (("hbm", "latency_ns", math.nan), ("hbm", "latency", 3.0), ("sm", "count", True)):
        with pytest.raises(ValidationError):
            Gpu.model_validate(values | {section: values[section] | {key: wrong}})


KEYS = st.one_of(st.sampled_from(list(FIELDS)), st.sampled_from(list(SECTIONS)), st.text(max_size=30))
VALUES = st.one_of(
    st.text(max_size=20),
    st.floats().map(str),
    st.integers().map(str),
    st.floats().map(lambda factor: f"*{factor}"),
    st.sampled_from(["true", "false", "*", "**2", "*=2", "٣", "1_000", "0x10", "1e", "-0", "\ud800"]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.text(max_size=40), st.builds("{}={}".format, KEYS, VALUES)), max_size=4))
def test_random_overrides_load_or_are_refused(overrides):
    try:
        found = [row.value for row in rows(load_gpu("h200_sxm", overrides))]
    except ConfigError as refused:
        found = [str(refused)]
    assert all(math.isfinite(value) if isinstance(value, float) else str(value).isprintable() for value in found)


def test_carried_clocks_are_the_h200s_scaled():
    h200 = load_gpu("h200_sxm")
    for name in ("h100_pcie", "v100_pcie_32gb", "v100_sxm2_32gb"):
        gpu = load_gpu(name)
        share = gpu.clock.boost_mhz / h200.clock.boost_mhz
        for key in ("active_mhz", "tensor_mhz"):
            if "scaled by the boost clocks" in gpu.provenance[f"activity.{key}"].source:
                assert getattr(gpu.activity, key) == pytest.approx(getattr(h200.activity, key) * share, abs=0.6)


def test_no_gpu_has_more_gpcs_than_the_engine_holds():
    from hwmodels.rules import MOST_GPCS
    from sim.records import MAX_GPCS

    assert MOST_GPCS == MAX_GPCS
    with pytest.raises(ConfigError, match="GPCs"):
        load_gpu("h200_sxm", ["sm.count=4096"])
