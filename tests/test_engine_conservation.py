"""What goes in comes out: bytes at every level, lookups, FLOPs, busy time and waits add up, whatever the kernel.

A deterministic sweep of small shapes over families, configurations, types, layouts and GPUs with too little L2, one
partition, few SMs or slow memories. All laws are exact in bytes except two, which say how far they may be off.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hwmodels import load_gpu
from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.call import Options, run_call
from sim.kernel import run_kernel
from sim.machine import MECHANISMS, build_machine
from sim.records import Machine
from sim.result import KernelResult
from sim.schedule.config import KernelConfig
from sim.schedule.menu import loads_for
from sim.schedule.plan import Plan, build_plan
from tests.kernel_runs import multistage, persistent, resident, run, warm, whole_gpu
from workloads import Gemm
from workloads.dtypes import BYTES

GPUS = {
    "whole": (),
    "little L2": ("l2.capacity_mib=0.125",),
    "one partition": ("l2.partitions=1", "l2.capacity_mib=0.0625"),
    "few SMs": ("sm.count=6", "sm.singleton_tpcs=0"),
    "odd SMs": ("sm.count=5",),
    "slow HBM": ("hbm.bandwidth_gb_per_s=100",),
    "slow L2": ("l2.bytes_per_clk=200", "l2.gpc_port_bytes_per_clk=64"),
}
ROUNDING_BYTES = 2
"""A chunk's HBM bytes are cut to whole bytes in each of two partitions."""


@cache
def gpu(name: str) -> Gpu:
    return load_gpu("h200_sxm", GPUS[name])


@dataclass(frozen=True)
class Run:
    """One kernel with all that went into it."""

    gemm: Gemm
    config: KernelConfig
    machine: Machine
    plan: Plan
    kernel: KernelResult


def execute(gemm: Gemm, config: KernelConfig, on: Gpu, without: tuple[str, ...] = ()) -> Run:
    machine = build_machine(on, None, without)
    plan = build_plan(gemm, config, on, full=True, without=without)
    return Run(gemm, config, machine, plan, run_kernel(machine, plan, resident=resident(gemm)))


# The laws.
def check_lookups(r: Run) -> None:
    """Every chunk asked for is found, on its way, missing, or had from a neighbour's request."""
    lookups, work = r.kernel.lookups, r.plan.work
    assert lookups["hits"] + lookups["merged"] + lookups["misses"] == lookups["accesses"]
    rows, columns = -(-r.gemm.m // r.config.block_m), -(-r.gemm.n // r.config.block_n)
    asked = (rows * work.grid_n + columns * work.grid_m) * work.n_k * r.gemm.batch
    assert lookups["accesses"] + lookups["coalesced"] == asked


def check_l2(r: Run) -> None:
    """What was filled or written into L2 was dropped, written back, overwritten or is still there."""
    lookups = r.kernel.lookups
    gone = lookups["clean_evicted"] + lookups["written_back"] + lookups["overwritten"]
    assert lookups["filled"] + lookups["written"] == gone + lookups["resident"]
    assert 0 <= lookups["resident"] <= r.machine.l2_side_bytes * r.machine.n_sides


def check_hbm(r: Run) -> None:
    """HBM reads fill L2's home lines (copies come from the other side) and feed residuals; writes are write-backs."""
    lookups, moved = r.kernel.lookups, r.kernel.bytes
    assert moved["hbm"]["write"] == lookups["written_back"]
    if r.gemm.l2 == "warm":
        return
    residual = r.gemm.epilogue_bytes if r.gemm.epilogue == "residual" else 0
    assert moved["hbm"]["read"] == lookups["filled"] - moved["l2_fabric"]["read"] + residual
    least = r.gemm.a_bytes + r.gemm.b_bytes + residual
    rounding = ROUNDING_BYTES * r.plan.work.first_c + least / 512 / 16
    assert moved["hbm"]["read"] >= least - rounding


def check_sm(r: Run) -> None:
    """SMs receive whole chunks, each multicast to its cluster, and what TMA reads beside rows that start between two
    pairs of sectors, boxes of 128 B along the operand's memory being whole then; C leaves once, in sectors. Spilled
    registers go and come back in every k-iteration."""
    moved, work = r.kernel.bytes, r.plan.work
    ctas = r.plan.work.n_items // work.splits * work.cluster_size
    spilled, read_back = (ctas * work.n_k * n_bytes for n_bytes in (work.spill_bytes, work.spill_read_bytes))
    assert moved["sm"]["read"] == ctas * work.n_k * (work.a_sm_bytes + work.b_sm_bytes) + read_back
    for operand, rows, received in (("a", r.config.block_m, work.a_sm_bytes), ("b", r.config.block_n, work.b_sm_bytes)):
        size, along_k = r.gemm.element_bytes(operand), r.gemm.k_is_contiguous(operand)
        plain, pitch = rows * r.config.block_k * size, r.gemm.leading(operand) * size
        boxed = plain if along_k else -(-rows * size // 128) * 128 * r.config.block_k
        whole = r.config.loads != "tma" or pitch % 64 == 0
        assert received == plain if whole else plain <= received <= 2 * boxed + rows * (32 + 16)
    assert moved["sm"]["write"] == moved["l2"]["write"] == moved["smem"]["write"] + spilled
    element = r.gemm.accumulator_bytes if work.splits > 1 else r.gemm.c_element_bytes
    c_bytes = r.gemm.m * r.gemm.n * r.gemm.batch * element * work.splits
    tiles = ctas * work.splits
    stored = moved["sm"]["write"] - spilled
    assert stored >= c_bytes - tiles
    in_sectors = r.config.block_n * element + 2 * 32
    assert stored <= c_bytes * in_sectors / (r.config.block_n * element)


def check_l2_serves_what_sms_receive(r: Run) -> None:
    """L2 reads and coalesced bytes are what was asked for: at least all valid bytes; no more than whole chunks, every
    row piece of which may begin and end inside a sector."""
    c, work, size = r.config, r.plan.work, r.gemm.a_element_bytes
    spilled = (
        r.plan.work.spill_read_bytes
        * r.kernel.flops_executed
        // (2 * r.config.block_m * r.config.block_n * r.config.block_k)
    )
    served = r.kernel.bytes["l2"]["read"] + r.kernel.lookups["coalesced_bytes"] - spilled
    valid = (r.gemm.m * work.grid_n + r.gemm.n * work.grid_m) * r.gemm.k * size * r.gemm.batch
    rows, columns = -(-r.gemm.m // c.block_m) * work.grid_n, -(-r.gemm.n // c.block_n) * work.grid_m
    chunks = work.n_k * r.gemm.batch
    assert served >= valid * (1 - 1 / 256) - (rows + columns) * chunks
    if r.gemm.m >= c.block_m and r.gemm.n >= c.block_n and r.gemm.k >= c.block_k:
        a, b = (block * c.block_k * size + max(block, c.block_k) * 2 * 32 for block in (c.block_m, c.block_n))
        assert served <= (rows * a + columns * b) * chunks


def check_flops(r: Run) -> None:
    """The operation's FLOPs and the padding to whole tiles of whole clusters, nothing else."""
    c, work = r.config, r.plan.work
    padded_m = -(-r.gemm.m // (c.block_m * c.cluster_m)) * c.block_m * c.cluster_m
    padded_n = -(-r.gemm.n // (c.block_n * c.cluster_n)) * c.block_n * c.cluster_n
    padded_k = -(-r.gemm.k // c.block_k) * c.block_k
    assert r.kernel.flops_executed == 2 * padded_m * padded_n * padded_k * r.gemm.batch >= r.gemm.flops
    mmas = padded_m // c.block_m * (padded_n // c.block_n) * work.n_k * r.gemm.batch
    assert r.kernel.bytes["smem"]["read"] == mmas * work.smem_bytes_per_mma


def check_time(r: Run) -> None:
    """No resource is over 100 % busy; CTA slots spend all their time on something, once."""
    kernel = r.kernel
    assert kernel.time_s > 0
    assert all(0 <= busy <= 1 for busy in kernel.utilisation.values()), kernel.utilisation
    assert all(share >= 0 for share in kernel.waits.values()), kernel.waits
    assert sum(kernel.waits.values()) == pytest.approx(1, abs=1e-9)


def check_windows(r: Run) -> None:
    """Windows add up to the kernel."""
    sums = r.kernel.windows.values.sum(axis=0)
    moved = r.kernel.bytes
    expected = [moved["hbm"]["read"], moved["hbm"]["write"], moved["l2"]["read"], moved["l2"]["write"]]
    assert sums[:4] == pytest.approx(expected, rel=1e-6, abs=1e-3)


LAWS = (
    check_lookups,
    check_l2,
    check_hbm,
    check_sm,
    check_l2_serves_what_sms_receive,
    check_flops,
    check_time,
    check_windows,
)


# The sweep.
DTYPES = ("bf16", "fp16", "fp8_e4m3", "int8", "tf32", "fp32", "fp64")


@st.composite
def multistage_configs(draw: st.DrawFn, dtype: str) -> dict[str, Any]:
    on_cuda_cores = dtype == "fp32"
    block_m = draw(st.sampled_from((16, 32, 64, 128)))
    wgmma = block_m >= 64 and dtype not in ("fp32", "fp64")
    return {
        "family": "multistage",
        "block_m": block_m,
        "block_n": draw(st.sampled_from((8, 16, 24, 64, 128))),
        "block_k": draw(st.sampled_from((32, 64, 128))) // BYTES[dtype],
        "stages": draw(st.integers(1, 5)),
        "warps": 4 if wgmma else draw(st.sampled_from((1, 2, 4))),
        "mma": "fma" if on_cuda_cores else "wgmma" if wgmma else "mma_sync",
    }


@st.composite
def persistent_configs(draw: st.DrawFn, dtype: str) -> dict[str, Any]:
    tiles = ((64, 64), (128, 64), (64, 128), (128, 128), (256, 64), (192, 64), (64, 24))
    block_m, block_n = draw(st.sampled_from(tiles))
    cluster_m, cluster_n = draw(st.sampled_from(((1, 1), (2, 1), (1, 2), (2, 2), (4, 1))))
    return {
        "family": "persistent",
        "block_m": block_m,
        "block_n": block_n,
        "block_k": 128 // BYTES[dtype],
        "stages": draw(st.integers(1, 5)),
        "warps": 12,
        "loads": "tma",
        "cluster_m": cluster_m,
        "cluster_n": cluster_n,
        "pingpong": block_m == 64 or draw(st.booleans()),
        "n_ctas": draw(st.sampled_from((None, None, 1, 4))),
    }


@st.composite
def cases(draw: st.DrawFn, largest: int) -> tuple[Gemm, KernelConfig, str, tuple[str, ...]]:
    """(GEMM, configuration, GPU, mechanisms switched off), all of which fit each other."""
    dtype = draw(st.sampled_from(DTYPES))
    tma = dtype not in ("fp32", "fp64") and draw(st.booleans())
    step = 16 // BYTES[dtype] if tma else 1
    m, n, k = (draw(st.integers(1, largest // step)) * step for _ in range(3))
    gemm = Gemm(
        m, n, k,
        batch=draw(st.sampled_from((1, 1, 2, 3))),
        dtype=dtype,
        layout=draw(st.sampled_from(("tn", "nn", "nt", "tt"))) if BYTES[dtype] == 2 else "tn",
        epilogue=draw(st.sampled_from(("none", "bias_gelu", "residual"))),
        l2=draw(st.sampled_from(("cold", "cold", "warm"))),
    )  # fmt: skip
    fields = draw(persistent_configs(dtype) if tma else multistage_configs(dtype))
    fields |= {"raster": draw(st.sampled_from("mn")), "group": draw(st.integers(1, 4))}
    split = draw(st.sampled_from((1, 1, 1, 2, 3)))
    if split > 1 and gemm.epilogue != "residual":
        fields |= {"family": "split_k", "split_k": split}
    config = KernelConfig(**{"loads": loads_for(gemm, gpu("whole")), **fields})
    off = tuple(name for name in MECHANISMS if draw(st.integers(0, 9)) == 0)
    return gemm, config, draw(st.sampled_from(tuple(GPUS))), off


def check(case: tuple[Gemm, KernelConfig, str, tuple[str, ...]]) -> None:
    gemm, config, name, without = case
    try:
        r = execute(gemm, config, gpu(name), without)
    except ConfigError:
        assume(False)
    for law in LAWS:
        law(r)


@settings(max_examples=250)
@given(cases(largest=400))
def test_every_law_holds(case):
    check(case)


@pytest.mark.small
@settings(max_examples=25)
@given(cases(largest=90))
def test_every_law_holds_for_small_kernels(case):
    check(case)


@pytest.mark.small
@pytest.mark.parametrize("name", ["little L2", "one partition"])
def test_every_law_holds_where_c_is_written_back(name):
    case = Gemm(256, 320, 32), multistage(64, 64, 32, 3), name, ()
    check(case)
    assert execute(*case[:2], gpu(name)).kernel.bytes["hbm"]["write"] > 0


# Laws that need a kernel made for them.
@pytest.mark.parametrize("coalescing", [True, False])
@pytest.mark.parametrize(
    "config",
    [
        multistage(),
        multistage(64, 64, 32, group=4),
        multistage(32, 128, 64),
        persistent(cluster_m=2),
        persistent(64, 128, cluster_n=2, pingpong=True),
        persistent(128, 64, cluster_m=2, cluster_n=2),
    ],
)
def test_whole_tiles_receive_exactly_what_l2_serves(config, coalescing):
    """Whole tiles of aligned rows: bytes SMs receive = (bytes L2 reads + merged requests), each times its receivers."""
    gemm = Gemm(512, 768, 256)
    kernel = run(gemm, config, whole_gpu(), without=() if coalescing else ("coalescing",))
    a_received = gemm.a_bytes * 768 // config.block_n
    b_received = gemm.b_bytes * 512 // config.block_m
    assert kernel.bytes["sm"]["read"] == a_received + b_received
    served = kernel.bytes["l2"]["read"] + kernel.lookups["coalesced_bytes"]
    assert served == a_received // config.cluster_n + b_received // config.cluster_m
    shared = coalescing and config.cluster_m * config.cluster_n < 4  # twelve clusters of 4 lie too far apart
    assert (kernel.lookups["coalesced_bytes"] > 0) == shared


@pytest.mark.parametrize("partitions", [1, 2])
def test_cold_operands_that_fit_are_read_once(partitions):
    gemm = Gemm(512, 768, 256)
    kernel = run(gemm, multistage(64, 64), whole_gpu(f"l2.partitions={partitions}"))
    assert kernel.bytes["hbm"] == {"read": gemm.a_bytes + gemm.b_bytes, "write": 0}
    assert kernel.lookups["misses"] >= (8 + 12) * 4  # each chunk once, or from either side at once
    copied = kernel.bytes["l2_fabric"]["read"]
    assert kernel.lookups["filled"] == gemm.a_bytes + gemm.b_bytes + copied
    if partitions == 1:
        assert copied == 0
    else:  # tiles lie on both sides, though not every row and column of them
        assert 0.5 < copied / (gemm.a_bytes + gemm.b_bytes) <= 1


def test_warm_operands_that_fit_are_not_read():
    kernel = run(warm(Gemm(512, 768, 256)), multistage(64, 64), whole_gpu())
    assert kernel.bytes["hbm"] == {"read": 0, "write": 0}
    assert (kernel.lookups["misses"], kernel.bytes["l2_fabric"]["read"]) == (0, 0)


def test_an_l2_too_small_reads_again_and_writes_back():
    gemm = Gemm(1024, 1024, 512)
    kernel = run(gemm, multistage(64, 64), whole_gpu("l2.capacity_mib=0.5"))
    assert kernel.bytes["hbm"]["read"] > 1.5 * (gemm.a_bytes + gemm.b_bytes)
    assert gemm.c_bytes - 2**19 <= kernel.bytes["hbm"]["write"] <= gemm.c_bytes


@pytest.mark.small
def test_dirty_bytes_never_exceed_c():
    """Tiles that reach over the edge write their valid part only."""
    gemm = Gemm(1, 640, 64)
    kernel = run(gemm, multistage(64, 128), whole_gpu())
    assert kernel.lookups["written"] <= gemm.c_bytes + 5 * 64  # and the sectors at the ends of rows


@pytest.mark.small
@pytest.mark.parametrize("split", [2, 4])
def test_slices_share_one_residual(split):
    """A residual is added once, by the reduction."""
    gemm = replace(Gemm(128, 128, 512), epilogue="residual")
    config = multistage(split_k=split)
    plain, residual = (
        run_call(replace(gemm, epilogue=e), config, whole_gpu(), Options()) for e in ("none", "residual")
    )
    assert residual.main == plain.main
    before, after = plain.kernels[-1], residual.kernels[-1]
    for level in ("hbm", "l2", "sm"):
        assert after.bytes[level]["read"] - before.bytes[level]["read"] == gemm.epilogue_bytes == gemm.c_bytes
        assert after.bytes[level]["write"] == before.bytes[level]["write"]
    rate = whole_gpu().split_k.reduce_gb_per_s * 1e9
    assert after.time_s - before.time_s == pytest.approx(gemm.c_bytes / rate)


@pytest.mark.small
def test_partial_sums_beyond_l2_come_back_from_hbm():
    """What the slices write back is what the reduction reads of HBM, no faster than HBM; else it touches L2 alone."""
    fast = "hbm.bandwidth_gb_per_s=9000"
    gemm, config = Gemm(512, 512, 512), multistage(split_k=4)
    partial_bytes = 4 * 4 * 512 * 512
    fits, spills, slow = (
        run_call(gemm, config, whole_gpu(*sets), Options())
        for sets in ((fast,), (fast, "l2.capacity_mib=2"), ("hbm.bandwidth_gb_per_s=10", "l2.capacity_mib=2"))
    )
    assert (fits.main.bytes["hbm"]["write"], fits.kernels[-1].bytes["hbm"]) == (0, {"read": 0, "write": 0})
    reduction = spills.kernels[-1]
    assert reduction.bytes["hbm"]["read"] == spills.main.bytes["hbm"]["write"]
    assert reduction.bytes["hbm"]["read"] == pytest.approx(partial_bytes - 2 * 2**20, rel=0.1)
    assert 0.7 * gemm.c_bytes < reduction.bytes["hbm"]["write"] <= gemm.c_bytes
    assert reduction.bytes["l2"] == fits.kernels[-1].bytes["l2"] == {"read": partial_bytes, "write": gemm.c_bytes}
    assert reduction.time_s == fits.kernels[-1].time_s  # HBM keeps up
    assert slow.kernels[-1].time_s > sum(slow.kernels[-1].bytes["hbm"].values()) / 10e9


@pytest.mark.parametrize("cluster_m", [1, 2])
def test_every_cta_of_a_cluster_spills(cluster_m: int) -> None:
    """The engine's law alone: kernels in clusters load by TMA, whose consumers do not spill, so spills are put into the
    integers of one here. Each CTA writes them in every iteration, and C as without them."""
    gemm, spill_bytes = Gemm(512, 512, 512), 4096
    machine, plan = (
        build_machine(gpu("whole"), None, ()),
        build_plan(gemm, persistent(cluster_m=cluster_m), gpu("whole")),
    )
    assert plan.work.spill_bytes == 0
    spilling = replace(plan, work=plan.work._replace(spill_bytes=spill_bytes))
    whole, spilled = (run_kernel(machine, each).bytes for each in (plan, spilling))
    ctas, iterations = 4 * 4, 512 // 64
    assert spilled["l2"]["write"] - whole["l2"]["write"] == ctas * iterations * spill_bytes
    assert spilled["smem"]["write"] == whole["smem"]["write"] == gemm.c_bytes
