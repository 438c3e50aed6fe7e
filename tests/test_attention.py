"""Attention: exact bytes and steps, the time of one block, the kernels that PyTorch was seen to launch, bad input."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels import load_gpu
from hwmodels.errors import ConfigError
from hwmodels.measured import measured_path
from hwmodels.spec import Gpu
from sim.attention import attention_kernels
from sim.call import Options
from sim.limiter import find_limiter
from sim.result import KernelResult, main_kernel
from sim.schedule.attention import (
    AttentionKernel,
    cudnn_forward,
    flash3_forward,
    flash_backward,
    flash_forward,
    n_splits,
)
from sim.schedule.attention_plan import (
    STEPS,
    beside_cycles,
    build_attention_plan,
    convert_cycles,
    mma_cycles,
    steps_seen,
)
from sim.validation.training import TrainingCase, steps_of
from workloads.attention import Attention
from workloads.stream import Stream

MAKERS = {"flash": flash_forward, "cudnn": cudnn_forward, "flash3": flash3_forward, "backward": flash_backward}
PREFILL = Attention(1, 4, 4, 128, 512, 512)
DECODE = Attention(4, 32, 8, 128, 1, 4096)
STILL = Options(clock_mhz=1755.0, full=True)
"""A held clock, and nothing skipped."""


@cache
def h200(*overrides: str) -> Gpu:
    return load_gpu("h200_sxm", list(overrides))


def main_of(work: Attention, gpu: Gpu | None = None, **given: Any) -> KernelResult:
    given.setdefault("options", STILL)
    return main_kernel(attention_kernels(work, gpu or h200(), **given))


def time_s(work: Attention, gpu: Gpu | None = None, **given: Any) -> float:
    given.setdefault("options", STILL)
    return sum(kernel.time_s for kernel in attention_kernels(work, gpu or h200(), **given))


def measured() -> Iterator[tuple[Attention, dict[str, str]]]:
    with measured_path("h200_sxm", "attention").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            sizes: dict[str, Any] = {
                name: int(row[name]) for name in ("batch", "heads", "kv_heads", "head_dim", "q_len", "kv_len")
            }
            yield Attention(**sizes, causal=row["causal"] == "True"), row


def grid_of(row: dict[str, str]) -> tuple[int, ...]:
    return tuple(int(part) for part in row["grid"].split("x"))


# What is launched, against what was.
def test_flash_grids_are_those_measured() -> None:
    checked = 0
    for work, row in measured():
        if row["backend"] != "flash" or "combine" in row["kernel"]:
            continue
        kernel = flash_forward(work, h200())
        blocks, heads = -(-kernel.rows // kernel.block_q), kernel.heads
        whole, split = (blocks, work.batch, heads), (blocks, kernel.splits, work.batch * heads)
        assert grid_of(row) == (split if kernel.splits > 1 else whole)
        assert ("splitkv" in row["kernel"]) == (kernel.splits > 1)
        assert int(row["smem"]) == kernel.smem_bytes
        assert int(row["regs"]) == kernel.registers
        checked += 1
    assert checked == 74


def test_cudnn_decode_grids_are_those_measured() -> None:
    for work, row in measured():
        if row["backend"] == "cudnn" and work.q_len == 1:
            kernel = cudnn_forward(work, h200())
            assert grid_of(row) == (kernel.splits, kernel.heads, work.batch)
            assert int(row["smem"]) == kernel.smem_bytes


def test_cudnn_prefill_fills_the_gpu_once() -> None:
    for work, row in measured():
        if row["backend"] == "cudnn" and work.q_len > 1:
            plan = build_attention_plan(cudnn_forward(work, h200()), work, h200())
            assert grid_of(row)[0] == plan.work.n_agents


def test_a_combine_follows_slices_and_a_memset_comes_before_persistent_kernels() -> None:
    assert [kernel.name for kernel in attention_kernels(DECODE, h200(), STILL)] == [
        "flash_fwd_splitkv_kernel",
        "combine",
    ]
    names = [kernel.name for kernel in attention_kernels(PREFILL, h200(), STILL, backend="cudnn")]
    assert names == ["memset", "cudnn_sm90_flash_fprop_wgmma"]


@pytest.mark.small
def test_no_slices_where_the_sms_are_almost_full_and_else_the_fewest_that_fill_them() -> None:
    assert n_splits(212, 264, 64) == 1
    assert n_splits(32, 264, 64) == 7  # 224 of 264, and no more with 8: as many blocks a slice as with 8
    assert n_splits(32, 264, 16) == 8
    assert n_splits(1, 264, 3) == 3


# Bytes and steps.
@pytest.mark.parametrize("backend", ["flash", "cudnn"])
@pytest.mark.parametrize(
    "work",
    [Attention(8, 4, 4, 128, 1024, 512), Attention(2, 16, 4, 64, 1024, 1024), Attention(128, 8, 2, 128, 1, 1024)],
)
def test_bytes_are_exact_without_a_mask(work: Attention, backend: str) -> None:
    kernel = MAKERS[backend](work, h200())
    found = main_of(work, backend=backend)
    blocks = -(-kernel.rows // kernel.block_q) * kernel.group(work)
    assert kernel.splits == 1
    assert found.bytes["hbm"]["read"] == work.q_bytes + work.kv_bytes
    assert found.bytes["sm"]["read"] == pytest.approx(
        work.batch * kernel.heads * -(-kernel.rows // kernel.block_q) * kernel.block_q * work.head_dim * 2
        + blocks * work.kv_bytes
    )
    assert found.bytes["l2"]["write"] == work.q_bytes


def seen_by_brute_force(kernel: AttentionKernel, work: Attention) -> list[int]:
    """Blocks of keys that hold at least one key that a row of each query block sees."""
    counts = []
    for start in range(0, work.q_len, kernel.block_q):
        rows = range(start, start + kernel.block_q)  # rows past the end are computed, too
        lasts = [min(row + work.kv_len - work.q_len, work.kv_len - 1) for row in rows]
        firsts = [max(0, row + work.kv_len - work.q_len + 1 - (work.window or work.kv_len)) for row in rows]
        counts.append(max(lasts) // kernel.block_kv - min(firsts) // kernel.block_kv + 1)
    return counts


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 700), st.integers(0, 700), st.none() | st.integers(1, 900), st.sampled_from([64, 128]))
@pytest.mark.small
def test_masked_blocks_are_skipped(q_len: int, cached: int, window: int | None, head_dim: int) -> None:
    work = Attention(9, 32, 8, head_dim, q_len, q_len + cached, causal=True, window=window)
    kernel = flash_forward(work, h200())
    plan = build_attention_plan(dataclasses.replace(kernel, splits=1), work, h200())
    assert (steps_seen(plan.work)[0] / STEPS).tolist() == seen_by_brute_force(kernel, work)


def test_slices_whose_first_waves_were_pushed_out_are_joined_from_memory() -> None:
    """33 slices of 4,097 tokens: of 32 heads in four waves that read 67 MB, of 8 in one (14.9 and 9.3 us)."""
    joined = [
        attention_kernels(Attention(1, 32, kv_heads, 128, 1, 4097), h200(), Options())[-1].time_s * 1e6
        for kv_heads in (32, 8)
    ]
    assert joined == pytest.approx([14.94, 9.31], rel=0.15)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 700), st.integers(0, 300), st.sampled_from([64, 128]))
@pytest.mark.small
def test_backward_sees_the_pairs_of_blocks_that_forward_does(q_len: int, cached: int, head_dim: int) -> None:
    work = Attention(1, 4, 4, head_dim, q_len, q_len + cached, causal=True, phase="backward")
    kernel = flash_backward(work, h200())
    plan = build_attention_plan(kernel, work, h200())
    pairs = {
        (i // kernel.block_q, j // kernel.block_kv)
        for i in range(q_len)
        for j in {*range(0, i + cached + 1, kernel.block_kv), i + cached}
    }
    assert steps_seen(plan.work).sum() == STEPS * len(pairs)


def test_the_engine_does_the_steps_that_are_seen() -> None:
    for work, backend in (
        (dataclasses.replace(PREFILL, causal=True), "flash"),
        (dataclasses.replace(PREFILL, causal=True, window=100), "cudnn"),
        (Attention(1, 32, 8, 128, 256, 256, causal=True), "flash"),  # two slices, of which half of the rows see one
    ):
        plan = build_attention_plan(MAKERS[backend](work, h200()), work, h200())
        found = main_of(work, backend=backend)
        assert found.requests["smem"]["read"] == steps_seen(plan.work).sum() * plan.work.batch
        assert found.flops_executed >= work.flops


@pytest.mark.parametrize("backend", ["flash", "cudnn", "backward"])
def test_what_l2_takes_in_it_gives_out(backend: str) -> None:
    work = Attention(4, 32, 8, 128, 1024, 1024, causal=True, phase="backward" if backend == "backward" else "forward")
    found = main_of(work, backend="cudnn" if backend == "cudnn" else "flash")
    seen = found.lookups
    assert seen["hits"] + seen["merged"] + seen["misses"] == seen["accesses"]
    assert seen["filled"] + seen["written"] == (
        seen["clean_evicted"] + seen["written_back"] + seen["overwritten"] + seen["resident"]
    )
    assert sum(found.waits.values()) == pytest.approx(1.0)
    assert all(0 <= busy <= 1 for busy in found.utilisation.values())


# Time.
def test_one_block_alone_takes_what_its_parts_take() -> None:
    """Start, Q and K from memory, two products with softmax beside, V meanwhile, and the end."""
    work, gpu = Attention(1, 1, 1, 128, 128, 64), h200("l2.jitter_cycles=0", "persistent.reorder_fraction=0")
    kernel = dataclasses.replace(flash_forward(work, gpu), splits=1)
    a, m = gpu.attention, gpu.multistage
    step = (mma_cycles(kernel, work, gpu) + beside_cycles(kernel, work, gpu)) / STEPS
    wait = m.barrier_cycles + m.drain_cycles + a.wait_cycles * 128 * 64 / STEPS
    start = m.cta_start_cycles + a.start_cycles
    epilogue = m.epilogue_cycles + 128 * 128 * 2 / gpu.l2.sm_store_bytes_per_clk
    port = (128 + 64) * 128 * 2 / gpu.l2.sm_port_bytes_per_clk
    loads = gpu.l2.latency_cycles + gpu.l2.far_latency_cycles + m.load_cycles + port
    memory_s = (gpu.hbm.latency_ns + 8 * gpu.hbm.spread_ns) * 1e-9
    cycles = start + loads + STEPS * (step + wait) + epilogue
    assert main_of(work, gpu).time_s == pytest.approx(
        gpu.kernel.floor_us * 1e-6 + memory_s + cycles / 1.755e9, rel=0.03
    )


@pytest.mark.parametrize("backend", ["flash", "cudnn", "flash3"])
@pytest.mark.parametrize("work", [dataclasses.replace(PREFILL, batch=8, causal=True), DECODE])
def test_more_of_anything_is_not_slower(work: Attention, backend: str) -> None:
    base = time_s(work, backend=backend)
    for override in ("hbm.bandwidth_gb_per_s=9600", "l2.bytes_per_clk=9010", "tensor.mma_sync_fraction=1.0"):
        assert time_s(work, h200(override), backend=backend) <= 1.01 * base


def test_what_is_resident_is_not_read_from_memory() -> None:
    work = Attention(1, 32, 8, 128, 1, 4096)
    cold, half, warm = (
        main_of(work, resident={"k": part, "v": part, "q": part}).bytes["hbm"]["read"] for part in (0.0, 0.5, 1.0)
    )
    assert cold == work.q_bytes + work.kv_bytes
    assert half == pytest.approx(cold / 2, rel=0.02)
    assert warm == 0


def test_a_slower_clock_slows_a_kernel_that_multiplies() -> None:
    work = dataclasses.replace(PREFILL, batch=8, kv_len=4096, q_len=4096)
    fast, slow = (main_of(work, options=Options(clock_mhz=mhz)) for mhz in (1755.0, 877.5))
    assert slow.time_s == pytest.approx(2 * fast.time_s, rel=0.05)
    assert (
        main_of(work, options=Options(sustained=True), backend="cudnn").sm_mhz
        <= main_of(work, options=Options(), backend="cudnn").sm_mhz
    )


def test_backward_takes_longer_than_forward_and_writes_its_gradients() -> None:
    forward = Attention(1, 32, 32, 128, 2048, 2048, causal=True)
    backward = dataclasses.replace(forward, phase="backward")
    assert 2.0 < time_s(backward) / time_s(forward) < 5.0
    names = [kernel.name for kernel in attention_kernels(backward, h200(), STILL)]
    assert names == ["dot_do_o", "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel", "convert_dq"]
    shared = dataclasses.replace(backward, kv_heads=8)
    assert len(attention_kernels(shared, h200(), STILL)) == 5


def test_gradients_of_shared_keys_are_added_up_once() -> None:
    """As training_kernels.csv shows it: two launches of reduce_kernel after a backward; the call's, not the step's."""
    shape = ("llama3-8b", 2, 1, 2048, False)
    columns = ("model", "layers", "batch", "seq", "checkpointing")
    with measured_path("h200_sxm_further", "training_kernels").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if [row[name] for name in columns] == list(map(str, shape))]
    seen_us = [float(row["us"]) for row in rows if "reduce_kernel" in row["kernel"]]
    operations = [each for each in steps_of(TrainingCase(*shape))["fwd_bwd_us"].operations if each.layer >= 0]
    backward = [each.work for each in operations if isinstance(each.work, Attention) and each.work.phase == "backward"]
    sums = [k for work in backward for k in attention_kernels(work, h200(), Options()) if k.name == "reduce"]
    assert len(sums) == len(seen_us) == 4
    assert not [each for each in operations if isinstance(each.work, Stream) and 1 < each.work.fan_in < 2048]
    assert 1e6 * sum(kernel.time_s for kernel in sums) == pytest.approx(sum(seen_us), rel=0.1)
    alone = dataclasses.replace(PREFILL, phase="backward")
    assert "reduce" not in [kernel.name for kernel in attention_kernels(alone, h200(), STILL)]


def test_what_follows_a_backward_takes_what_was_measured() -> None:
    """attention_backward.csv: the call less its main kernel."""
    checked = 0
    with measured_path("h200_sxm_further", "attention_backward").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["heads"] != row["kv_heads"] and int(row["q_len"]) <= 4096:
                names = ("batch", "heads", "kv_heads", "head_dim", "q_len", "kv_len")
                sizes: dict[str, Any] = {name: int(row[name]) for name in names}
                work = Attention(**sizes, causal=row["causal"] == "True", phase="backward")
                kernels = attention_kernels(work, h200(), Options())
                rest_us = 1e6 * (sum(k.time_s for k in kernels) - main_kernel(kernels).time_s)
                assert len(kernels) == int(row["n_kernels"])
                assert rest_us == pytest.approx(float(row["time_us"]) - float(row["kernel_us"]), rel=0.1)
                checked += 1
    assert checked == 4


def test_pages_cost_bytes_of_their_table_and_eight_bit_caches_halve_them() -> None:
    plain, paged, small = (
        main_of(dataclasses.replace(DECODE, **more)).bytes["hbm"]["read"]
        for more in ({}, {"page": 16}, {"kv_dtype": "fp8_e4m3"})
    )
    n_pages = DECODE.batch * DECODE.kv_heads * 2 * DECODE.kv_len // 16
    assert paged - plain == pytest.approx(4 * n_pages, rel=0.01)
    assert small == pytest.approx(plain / 2, rel=0.02)


def test_unfused_scores_go_through_memory() -> None:
    work = Attention(1, 32, 32, 128, 2048, 2048)
    kernels = attention_kernels(work, h200(), STILL, backend="unfused")
    scores = 32 * 2048 * 2048 * 2
    assert [k.name for k in kernels].count("softmax") == 1
    assert sum(k.bytes["hbm"]["read"] + k.bytes["hbm"]["write"] for k in kernels) > 2 * scores
    assert sum(k.time_s for k in kernels) > time_s(work)
    assert len(attention_kernels(work, h200(), STILL, backend="math")) == 14


@pytest.mark.parametrize(
    ("work", "backend"),
    [
        (Attention(64, 32, 8, 128, 1, 4096), "flash"),
        (Attention(16, 32, 8, 128, 1, 32768), "flash"),
        (Attention(16, 32, 32, 128, 1, 8192), "cudnn"),
        (Attention(32, 32, 8, 128, 1, 16384), "flash3"),
        (Attention(8, 32, 32, 64, 8192, 8192), "cudnn"),
        (Attention(24, 32, 32, 128, 4096, 4096, causal=True), "flash"),
    ],
)
def test_what_is_sampled_is_within_two_percent(work: Attention, backend: str) -> None:
    whole, some = (main_of(work, backend=backend, options=Options(full=full)) for full in (True, False))
    assert some.sampled
    assert not whole.sampled
    assert some.n_events < whole.n_events
    assert some.time_s == pytest.approx(whole.time_s, rel=0.02)
    assert some.bytes["hbm"]["read"] == pytest.approx(whole.bytes["hbm"]["read"], rel=0.01)
    assert some.bytes["sm"]["read"] == pytest.approx(whole.bytes["sm"]["read"], rel=0.01)
    assert some.bytes["l2"]["write"] == whole.bytes["l2"]["write"]
    assert some.flops_executed == whole.flops_executed
    assert sum(some.waits.values()) == pytest.approx(1.0)


HALF = Attention(2, 8, 8, 64, 512, 512, dtype="fp16")


@pytest.mark.parametrize("name", ["h200_sxm", "t4", "v100_sxm2_32gb", "v100_pcie_32gb"])
def test_the_backward_of_unfused_attention_is_four_products_and_a_softmax(name: str) -> None:
    """dV = P^T dO, dP = dO V^T, dS from P and dP, dQ = dS K, dK = dS^T Q: twice the forward's FLOPs, and no more bytes
    than these matrices have."""
    gpu, back = load_gpu(name), dataclasses.replace(HALF, phase="backward_kept")
    forward, backward = (attention_kernels(work, gpu, Options(), backend="unfused") for work in (HALF, back))
    products = [kernel for kernel in backward if kernel.flops_executed]
    assert len(products) == 4
    assert back.flops == back.model_flops == 2 * HALF.flops == 8 * 2 * 8 * 512 * 512 * 64
    assert sum(kernel.flops_executed for kernel in products) >= back.flops
    (softmax,) = [kernel for kernel in backward if kernel.name == "softmax backward"]
    scores = 2 * 8 * 512 * 512 * 2
    assert (softmax.bytes["l2"]["read"], softmax.bytes["l2"]["write"]) == (2 * scores, scores)
    assert sum(k.time_s for k in forward) < sum(k.time_s for k in backward) < 4 * sum(k.time_s for k in forward)


def test_what_else_its_backward_passes_over() -> None:
    """Sums where query heads share keys; "math" scales Q and K apart and converts what comes in and goes out."""

    def passes(work: Attention, backend: str) -> list[str]:
        back = dataclasses.replace(work, phase="backward_kept")
        kernels = attention_kernels(back, h200(), STILL, backend=backend)
        return [kernel.name for kernel in kernels if kernel.name.startswith(("sum", "scale", "convert"))]

    shared = dataclasses.replace(HALF, kv_heads=2)
    assert passes(HALF, "unfused") == []
    assert passes(shared, "unfused") == ["sum dk", "sum dv"]
    assert passes(dataclasses.replace(HALF, dtype="fp32"), "math") == ["scale dq", "scale dk"]
    ends = ["convert dq", "convert dk", "convert dv"]
    assert passes(shared, "math") == ["convert do", "scale dq", "scale dk", "sum dk", "sum dv", *ends]


def test_any_number_of_heads_is_sampled() -> None:
    """Some heads stand for all: as sequences of their own, however many."""
    many = Attention(8192, 32, 8, 128, 1, 1024)
    some, whole = (main_of(many, options=Options(full=full)) for full in (False, True))
    assert some.sampled
    assert some.time_s == pytest.approx(whole.time_s, rel=0.01)


WINDOWED = (
    (Attention(1, 32, 8, 128, 2048, 2048, causal=True, window=1024), 138.56),
    (Attention(1, 28, 4, 128, 8192, 8192, causal=True, window=4096), 1349.97),
    (Attention(1, 32, 32, 128, 16384, 16384, causal=True, window=1024), 1097.02),
    (Attention(8, 32, 8, 128, 1, 8192, window=4096), 231.09),
    (Attention(64, 28, 4, 128, 1, 16384, window=1024), 431.65),
    (Attention(64, 32, 32, 128, 1, 8192, window=4096), 1846.9),
)
"""Calls of PyTorch's FlashAttention-2 with a window, and the microseconds that they took on an H200."""


@pytest.mark.parametrize(("work", "us"), WINDOWED)
def test_windows_cost_what_was_measured(work: Attention, us: float) -> None:
    """Every score is compared with the window, and heads of a group are not packed."""
    assert time_s(work, options=Options()) * 1e6 == pytest.approx(us, rel=0.06)


CACHED = Attention(64, 32, 8, 128, 1, 2048)


def test_a_paged_cache_is_read_by_the_kernel_that_can() -> None:
    """Alone flash_fwd_splitkv_kernel takes a block table: 64 rows a block where the other pads to 128, which is faster
    where few of them are real."""
    paged = dataclasses.replace(CACHED, page=16)
    (one,), (other,) = attention_kernels(CACHED, h200(), STILL), attention_kernels(paged, h200(), STILL)
    assert (one.name, other.name) == ("flash_fwd_kernel", "flash_fwd_splitkv_kernel")
    assert other.time_s < 0.8 * one.time_s


@pytest.mark.small
@pytest.mark.parametrize(("backend", "n_copies"), [("flash", 4), ("cudnn", 1), ("flash3", 0)])
def test_a_cache_of_one_byte_is_converted_by_every_warp_that_multiplies_it(backend: str, n_copies: int) -> None:
    kernel, fp8 = MAKERS[backend](CACHED, h200()), dataclasses.replace(CACHED, kv_dtype="fp8_e4m3")
    assert convert_cycles(kernel, CACHED, h200()) == 0
    values = 2 * kernel.block_kv * 128
    assert convert_cycles(kernel, fp8, h200()) == pytest.approx(n_copies * values / 61.0, rel=0.01)  # microbench.csv


def test_a_converted_cache_helps_only_where_bytes_are_what_a_kernel_waits_for() -> None:
    """FlashAttention-2 with 128 rows a block, 4 of them real, waits for its warps; cuDNN's 16 rows for HBM. Of
    FlashInfer's kernels, which have other tiles, users report 1.2 to 1.4 times as long (its issues 1753 and 3484)."""
    fp8 = dataclasses.replace(CACHED, kv_dtype="fp8_e4m3")
    slower = time_s(fp8) / time_s(CACHED)
    assert 1.3 < slower < 1.5
    assert find_limiter(main_of(CACHED))[0] == "tensor"
    limiter, evidence = find_limiter(main_of(fp8))
    assert limiter == "conversion"
    assert "converting keys and values" in evidence[0]
    free = h200("cuda_core.convert_fp8_instructions=0")
    assert time_s(fp8, free) == pytest.approx(time_s(CACHED), rel=0.03)
    assert time_s(fp8, backend="cudnn") < 0.6 * time_s(CACHED, backend="cudnn")


UNFUSED_REFUSES: dict[str, Any] = {"page": 16, "kv_dtype": "fp8_e4m3"}


def test_a_window_is_part_of_the_mask_where_all_scores_are_formed() -> None:
    causal = dataclasses.replace(PREFILL, causal=True, dtype="fp16")
    windowed = dataclasses.replace(causal, window=128)
    for backend in ("unfused", "math"):
        times = [time_s(work, load_gpu("t4"), options=Options(), backend=backend) for work in (causal, windowed)]
        assert times[0] == times[1]


# Everything at once, and bad input.
@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["flash", "cudnn", "flash3"]),
    st.integers(1, 3),
    st.sampled_from([(1, 1), (4, 2), (8, 1), (6, 6)]),
    st.sampled_from([16, 64, 80, 96, 128, 192, 256]),
    st.integers(1, 400),
    st.integers(0, 900),
    st.booleans(),
    st.none() | st.integers(1, 500),
    st.sampled_from(["forward", "backward"]),
)
def test_any_shape_runs(
    backend: str,
    batch: int,
    heads: tuple[int, int],
    head_dim: int,
    q_len: int,
    cached: int,
    causal: bool,
    window: int | None,
    phase: str,
) -> None:
    work = Attention(batch, *heads, head_dim, q_len, q_len + cached, causal, window, phase=phase)
    try:
        kernels = attention_kernels(work, h200(), Options(), backend=backend)
    except ConfigError:
        assert phase == "backward"
        return
    assert all(kernel.time_s > 0 for kernel in kernels)
    assert main_kernel(kernels).flops_executed >= work.flops


@pytest.mark.parametrize(
    ("gpu", "work", "backend", "says"),
    [
        ("h200_sxm", PREFILL, "flash2", "backend = 'flash2'"),
        ("h200_sxm", dataclasses.replace(PREFILL, dtype="fp32"), "flash", "dtype = 'fp32'"),
        ("h200_sxm", dataclasses.replace(PREFILL, head_dim=512), "flash", "head_dim = 512"),
        ("a100_sxm_80gb", PREFILL, "cudnn", "only its Hopper kernels are known"),
        ("v100_sxm2_32gb", PREFILL, "flash", "compute capability 8.0"),
        ("h200_sxm", dataclasses.replace(PREFILL, phase="backward"), "cudnn", "phase 'backward'"),
        (
            "h200_sxm",
            dataclasses.replace(PREFILL, phase="backward_kept"),
            "flash",
            "'backward_kept': must be unfused or",
        ),
        *(
            ("h200_sxm", dataclasses.replace(PREFILL, **{name: value}), backend, f"{name} = '?{value}'?: must be None")
            for name, value in UNFUSED_REFUSES.items()
            for backend in ("math", "unfused")
        ),
    ],
)
def test_what_no_kernel_takes_is_refused(gpu: str, work: Attention, backend: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        attention_kernels(work, load_gpu(gpu), Options(), backend=backend)


@pytest.mark.parametrize(
    ("gpu", "dtype"), [("t4", "fp16"), ("v100_sxm2_32gb", "fp16"), ("h200_sxm", "fp32"), ("t4", "fp32")]
)
def test_what_flash_does_not_take_others_do(gpu: str, dtype: str) -> None:
    """And the refusal names them."""
    work = dataclasses.replace(PREFILL, dtype=dtype)
    with pytest.raises(ConfigError, match=r"unfused (or|and) math"):
        attention_kernels(work, load_gpu(gpu), Options())
    for backend in ("unfused", "math"):
        assert attention_kernels(work, load_gpu(gpu), Options(), backend=backend)


def test_shared_keys_are_copied_for_every_query_head() -> None:
    shared, own = Attention(2, 8, 2, 128, 512, 512), Attention(2, 8, 8, 128, 512, 512)
    for backend in ("math", "unfused"):
        with_copies, without = (
            {kernel.name for kernel in attention_kernels(work, h200(), STILL, backend=backend)}
            for work in (shared, own)
        )
        assert with_copies - without == {"expand k", "expand v"}
    copies = [k for k in attention_kernels(shared, h200(), STILL, backend="math") if k.name.startswith("expand")]
    keys = 2 * 2 * 512 * 128 * 4
    assert [k.bytes["l2"] for k in copies] == [{"read": keys, "write": 4 * keys}] * 2


@pytest.mark.parametrize("resident", [{"w": 0.5}, {"k": 1.5}, {"q": -0.1}, {"v": float("nan")}])
def test_bad_residents_are_refused(resident: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="resident"):
        attention_kernels(PREFILL, h200(), Options(), resident=resident)
