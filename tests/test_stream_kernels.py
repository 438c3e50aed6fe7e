"""Kernels bound by memory: closed forms, bytes by level, what L2 holds, bounds, order, all GPUs, bad input."""

from __future__ import annotations

import dataclasses
import itertools
import math
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmodels import list_gpus, load_gpu
from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.call import Options
from sim.result import KernelResult
from sim.schedule.streams import stream_launches
from sim.streaming import ALONE_AGAIN, ctas_per_sm, stays, stream_kernels
from sim.validation.elementwise import Repeated, predict, question
from sim.validation.extra_streams import predict_stream, stream_of
from workloads.stream import OPS, Stream

ALONE = sorted(set(OPS) - {"chain"})
"""Operations that are one by themselves."""

pytestmark = pytest.mark.small
BURST = Options()
WARM = {**ALONE_AGAIN, "x": 1.0}
SIZES = st.integers(1, 2**18)


@lru_cache
def gpu(name: str = "h200_sxm", *overrides: str) -> Gpu:
    return load_gpu(name, overrides)


def only(work: Stream, on: Gpu | None = None, options: Options = BURST, **resident: float) -> KernelResult:
    (kernel,) = stream_kernels(work, on or gpu(), options, resident=resident)
    return kernel


def alone(work: Stream, on: Gpu | None = None, **resident: float) -> KernelResult:
    return only(work, on, BURST, **{**ALONE_AGAIN, **resident})


def total_s(work: Stream, on: Gpu | None = None, options: Options = BURST) -> float:
    return math.fsum(kernel.time_s for kernel in stream_kernels(work, on or gpu(), options, resident=ALONE_AGAIN))


MEASURED = {
    "add": Stream("add", 8192, 4096),
    "copy": Stream("copy", 8192, 4096),
    "silu": Stream("silu", 8192, 4096),
    "gelu": Stream("gelu", 8192, 4096),
    "strided": Stream("mul", 8192, 4096, strided=True),
    "transpose": Stream("transpose", 8192, 4096),
    "layer_norm": Stream("layer_norm", 8192, 4096),
    "rms_norm": Stream("rms_norm", 8192, 4096),
    "rms_norm_backward": Stream("rms_norm_backward", 8192, 4096),
    "softmax, a warp a row": Stream("softmax", 8192, 1024),
    "log_softmax, a warp a row": Stream("log_softmax", 8192, 1024),
    "softmax, row in registers": Stream("softmax", 8192, 4096),
    "softmax, row in shared memory": Stream("softmax", 8192, 14336),
    "log_softmax, row read again": Stream("log_softmax", 100, 128256),
    "embedding": Stream("embedding", 8192, 4096),
    "adamw": Stream("adamw", 1, 2**26),
    "column sums": Stream("reduce", 1, 8192, fan_in=2048),
    "sums over a group": Stream("reduce", 8192, 1024, fan_in=4),
}
"""The operations that tables hold, those of several kernels once for each: names that stand in `FITTED`."""
OF_ROWS = tuple(name for name in MEASURED if "softmax" in name and "warp" not in name)
NORMS = ("rms_norm", "layer_norm", "rms_norm_backward")
WARP = ("softmax, a warp a row", "log_softmax, a warp a row")
LONG = ("strided", "transpose", "silu", "gelu", "sums over a group")
EVERY = tuple(MEASURED)
FITTED = {
    "trip_cycles": ("add", EVERY),
    "code_us": ("strided", EVERY),
    "short_code_fraction": ("add", tuple(name for name in EVERY if name not in LONG)),
    "stream_copy_fraction": ("copy", tuple(name for name in EVERY if name not in ("transpose", "column sums"))),
    "reread_fraction": ("log_softmax, row read again", ("log_softmax, row read again", "rms_norm_backward")),
    "reduction_cycles": ("rms_norm", (*NORMS, *OF_ROWS)),
    "silu_thread_cycles": ("silu", ("silu",)),
    "silu_issue_cycles": ("silu", ("silu",)),
    "gelu_thread_cycles": ("gelu", ("gelu",)),
    "gelu_issue_cycles": ("gelu", ("gelu",)),
    "strided_thread_cycles": ("transpose", ("strided", "transpose", "sums over a group")),
    "strided_issue_cycles": ("strided", ("strided", "transpose", "sums over a group")),
    "sector_request_bytes": ("transpose", ("transpose",)),
    "layer_norm_thread_cycles": ("layer_norm", ("layer_norm",)),
    "layer_norm_issue_cycles": ("layer_norm", ("layer_norm",)),
    "rms_norm_issue_cycles": ("rms_norm", ("rms_norm", "rms_norm_backward")),
    "special_cycles": ("softmax, row in registers", (*WARP, *OF_ROWS)),
    "softmax_scalar_cycles": ("softmax, row in registers", ("softmax, row in registers",)),
    "softmax_cycles": ("softmax, row in shared memory", tuple(n for n in (*WARP, *OF_ROWS) if "registers" not in n)),
    "softmax_thread_cycles": ("softmax, a warp a row", WARP),
    "softmax_trip_fraction": ("softmax, a warp a row", WARP),
    "softmax_exponential_fraction": ("log_softmax, a warp a row", ("log_softmax, a warp a row",)),
    "softmax_reread_fraction": ("log_softmax, row read again", ("log_softmax, row read again",)),
    "gather_weight": ("embedding", ("embedding",)),
    "adamw_issue_cycles": ("adamw", ("adamw",)),
    "column_issue_cycles": ("column sums", ("column sums",)),
}
"""Fitted constant -> (the operation it counts for, all whose times depend on it: those that share it)."""


def test_at_most_two_constants_an_operation_are_fitted() -> None:
    """Softmax and log_softmax have five kernels, which count apart and have eight constants."""
    provenance = gpu().provenance.items()
    fitted = {key.removeprefix("streaming.") for key, of in provenance if of.kind == "fitted" and "streaming." in key}
    assert set(FITTED) == fitted
    owners = [owner for owner, _ in FITTED.values()]
    assert {owner: owners.count(owner) for owner in owners if owners.count(owner) > 2} == {}
    assert all(owner in sharing for owner, sharing in FITTED.values())


@pytest.mark.parametrize("name", FITTED)
def test_a_fitted_constant_changes_the_operations_that_are_said_to_share_it(name: str) -> None:
    less = gpu("h200_sxm", f"streaming.{name}={0.8 * getattr(gpu().streaming, name)}")
    changed = {op for op, work in MEASURED.items() if cold_s(work, less) != cold_s(work, gpu())}
    assert changed == set(FITTED[name][1])


def cold_s(work: Stream, on: Gpu) -> float:
    return math.fsum(kernel.time_s for kernel in stream_kernels(work, on, BURST))


def trip_s(g: Gpu, mhz: float) -> float:
    """A round trip to L2, of which `trip_cycles` pass at the SM's clock."""
    beyond = g.l2.latency_cycles + g.l2.far_latency_cycles / 2 - g.streaming.trip_cycles
    return (g.streaming.trip_cycles / mhz + beyond / g.clock.boost_mhz) * 1e-6


# Closed forms.
def test_a_long_copy_runs_at_the_copy_bandwidth() -> None:
    work = Stream("copy", 2**16, 2**16)
    g = gpu()
    rate = work.compulsory_bytes / alone(work).time_s
    assert rate == pytest.approx(g.streaming.stream_copy_fraction * g.hbm.bandwidth_gb_per_s * 1e9, rel=0.01)


def test_a_long_fill_is_launched_cta_by_cta() -> None:
    work = Stream("fill", 2**14, 2**13)
    n_ctas = work.elements // 1024
    assert alone(work).time_s == pytest.approx(0.69e-6 + n_ctas * gpu().streaming.cta_ns * 1e-9, rel=0.01)


def test_a_tiny_kernel_takes_its_floor_and_one_round_trip() -> None:
    g, found = gpu(), alone(Stream("add", 1, 1), x=1.0)
    assert found.time_s == pytest.approx(g.kernel.floor_us * 1e-6 + trip_s(g, found.sm_mhz), rel=1e-3)
    cold = alone(Stream("add", 1, 1))
    assert cold.time_s - found.time_s == pytest.approx(g.hbm.latency_ns * 1e-9, rel=0.05)


def test_code_that_was_driven_out_is_fetched_once() -> None:
    for work, share in ((Stream("silu", 8, 4096), 1.0), (Stream("add", 8, 4096), gpu().streaming.short_code_fraction)):
        later = only(work, x=1.0, w=1.0).time_s - only(work, x=1.0, w=1.0, code=1.0).time_s
        assert later == pytest.approx(share * gpu().streaming.code_us * 1e-6)


def test_a_role_that_is_absent_lies_elsewhere() -> None:
    work = Stream("rms_norm", 1, 4096)
    assert only(work) == only(work, x=0.0, w=0.0, code=0.0)
    assert only(work, x=1.0) == only(work, x=1.0, w=0.0)
    assert only(work, x=1.0).bytes["hbm"]["read"] == 2 * 4096


def test_a_row_of_a_norm_costs_round_trips_for_each_512_elements() -> None:
    g = gpu()
    narrow, wide = (alone(Stream("rms_norm", 1, width), x=1.0) for width in (4096, 8192))
    one_s = trip_s(g, wide.sm_mhz)
    assert wide.time_s - narrow.time_s >= 16 * one_s
    assert wide.time_s - narrow.time_s <= 17 * one_s


def test_a_row_read_three_times_comes_from_l1_while_that_has_room() -> None:
    """Rounds of 8,192 elements: a trip to L2 and two to L1; where L1 takes 96 KiB, a row of 192 goes to L2 thrice."""
    small, g = gpu("h200_sxm", "smem.kib_per_sm=96", "smem.max_kib_per_cta=95"), gpu()
    narrow, wide = (alone(Stream("log_softmax", 1, 8192 * n), x=1.0) for n in (8, 12))
    issue = 4 * 8192 * (g.streaming.special_cycles + g.streaming.softmax_reread_fraction * g.streaming.softmax_cycles)
    l1_s = g.streaming.trip_cycles / (wide.sm_mhz * 1e6)
    expected_s = 4 * (trip_s(g, wide.sm_mhz) + 2 * l1_s) + issue / (wide.sm_mhz * 1e6)
    assert wide.time_s - narrow.time_s == pytest.approx(expected_s, rel=0.05)
    lost_s = 12 * 2 * (trip_s(g, wide.sm_mhz) - l1_s)
    assert alone(Stream("log_softmax", 1, 8192 * 12), small, x=1.0).time_s - wide.time_s == pytest.approx(
        lost_s, rel=0.05
    )


def test_what_fills_no_round_is_read_one_by_one() -> None:
    """40,952 elements: 4 rounds of 8 a thread and 8 of one; 40,960 are 5 rounds (tails.csv: 8.53 against 6.86 us)."""
    ragged, even = (alone(Stream("log_softmax", 1, width), x=1.0).time_s * 1e6 for width in (40952, 40960))
    assert (ragged, even) == pytest.approx((8.53, 6.86), rel=0.08)
    assert ragged - even == pytest.approx(1.67, rel=0.2)


def test_a_wave_waits_for_memory_if_any_of_its_data_lies_there() -> None:
    """One wave: as long as if nothing were in L2, but for its bytes; many: as many waves as hold what lacks."""
    g, one = gpu(), Stream("silu", 8, 14336, strided=True)
    cold, some, hot = (only(one, x=x, w=1.0, code=1.0).time_s for x in (0.0, 0.875, 1.0))
    assert some - hot >= 4 * g.hbm.latency_ns * 1e-9
    assert cold - some < 0.5 * (some - hot)
    many = Stream("silu", 512, 14336, strided=True)
    cold, some, hot = (only(many, x=x, w=1.0, code=1.0).time_s for x in (0.0, 0.875, 1.0))
    assert some - hot < 0.4 * (cold - hot)


def test_time_of_one_and_of_many_parties() -> None:
    assert stays(1, 3.0, 2.0, 1.0) == (2.0, 1.0, 3.0)
    assert stays(8, 5.0, 0.0, 0.0).total == 5.0
    assert stays(100, 3.0, 2.0, 0.0).total == pytest.approx(200.0, rel=0.05)
    assert stays(100, 3.0, 0.5, 2.0).total == pytest.approx(200.0, rel=0.05)
    totals = [stays(n, 3.0, 2.0, 1.0).total for n in range(1, 40)]
    assert totals == sorted(totals)
    assert all(total >= 2.0 * n for n, total in enumerate(totals, 1))


def test_two_alike_servers_take_turns_exactly() -> None:
    """With no delay and two alike servers, n customers take (n + 1) services a turn."""
    for n in (1, 2, 7, 64):
        assert stays(n, 0.0, 1.0, 1.0).total == pytest.approx(n + 1)


# Bytes.
@pytest.mark.parametrize("op", ["add", "silu", "silu_mul", "layer_norm", "softmax", "copy", "bias", "embedding"])
def test_bytes_of_a_cold_kernel_are_the_compulsory_ones(op: str) -> None:
    work = Stream(op, 512, 4096)
    found = only(work)
    assert found.bytes["hbm"] == {"read": work.read_bytes, "write": 0}
    assert found.bytes["l2"] == {"read": work.read_bytes, "write": work.write_bytes}
    assert found.bytes["sm"] == found.bytes["l2"]


def test_what_l2_cannot_hold_back_is_written_to_hbm() -> None:
    g, work = gpu(), Stream("copy", 8192, 4096)
    kept = g.streaming.dirty_fraction * g.l2.capacity_mib * 2**20
    assert only(work).bytes["hbm"]["write"] == round(work.write_bytes - kept)


def test_rows_too_many_for_l2_are_read_again_from_hbm() -> None:
    few, many = (Stream("log_softmax", rows, 128256) for rows in (32, 512))
    assert only(few).bytes["hbm"]["read"] == few.read_bytes
    assert many.read_bytes * 1.5 < only(many).bytes["hbm"]["read"] <= many.read_bytes * 3


def test_a_transpose_asks_for_a_sector_an_element() -> None:
    work = Stream("transpose", 4096, 1024)
    assert alone(work).bytes["l2"]["read"] == 32 * work.elements
    assert alone(work).bytes["hbm"]["read"] == work.read_bytes


def test_other_types_count_by_bytes() -> None:
    half, full = (alone(Stream("copy", 16384, 8192, dtype)) for dtype in ("bf16", "fp32"))
    assert full.bytes["hbm"]["read"] == 2 * half.bytes["hbm"]["read"]
    assert full.time_s == pytest.approx(2 * half.time_s, rel=0.05)
    assert alone(Stream("add", 8192, 4096, "int8")).time_s < alone(Stream("add", 8192, 4096)).time_s


def test_adamw_moves_seven_words_an_element_in_launches_of_320_chunks() -> None:
    work = Stream("adamw", 1, 2**26, "bf16")
    kernels = stream_kernels(work, gpu(), BURST)
    assert sum(kernel.bytes["l2"][way] for kernel in kernels for way in ("read", "write")) == 7 * 2 * work.elements
    assert [kernel.config["n_ctas"] for kernel in kernels] == [1, 320, 320, 320, 64]
    assert sum(kernel.flops_executed for kernel in kernels) == work.flops


def test_log_softmax_in_another_type_converts_first() -> None:
    work = Stream("log_softmax", 16, 128256, out_dtype="fp32")
    cast, softmax = stream_kernels(work, gpu(), BURST)
    assert cast.bytes["l2"] == {"read": 2 * work.elements, "write": 4 * work.elements}
    assert softmax.bytes["l2"]["write"] == 4 * work.elements
    assert softmax.bytes["hbm"]["read"] == 0


# What L2 holds.
@pytest.mark.parametrize("op", sorted(set(OPS) - {"fill", "adamw", "chain"}))
def test_data_in_l2_is_faster_and_reads_no_hbm(op: str) -> None:
    work = Stream(op, 128, 4096)
    cold, warm = alone(work), alone(work, x=1.0)
    assert warm.time_s < cold.time_s
    assert warm.bytes["hbm"]["read"] == 0
    assert warm.bytes["l2"] == cold.bytes["l2"]


def test_vectors_count_apart_from_rows() -> None:
    work = Stream("rms_norm", 1, 4096)
    cold, warm = only(work, x=1.0, w=0.0, code=1.0), only(work, x=1.0, w=1.0, code=1.0)
    assert cold.bytes["hbm"]["read"] == 2 * 4096
    assert cold.time_s - warm.time_s == pytest.approx(8 * gpu().hbm.latency_ns * 1e-9 + _bytes_s(2 * 4096), rel=1e-3)


def _bytes_s(n_bytes: float) -> float:
    """At the bandwidth of long reads."""
    return n_bytes / (gpu().hbm.bandwidth_gb_per_s * 1e9 * gpu().hbm.read_fraction)


def test_more_in_l2_is_never_slower() -> None:
    times = [alone(Stream("add", 2048, 4096), x=step / 16).time_s for step in range(17)]
    assert times == sorted(times, reverse=True)


# Bounds, order.
@pytest.mark.parametrize("op", ALONE)
def test_more_rows_are_never_faster(op: str) -> None:
    rows = [1, 2, 7, 8, 17, 64, 131, 132, 133, 264, 265, 1024, 2112, 2113, 4224, 4225, 10_000, 32_768]
    if op == "embedding":  # up to 16 rows another kernel, which takes them in turn
        rows = [n for n in rows if n > 16]
    if op == "reduce":  # into one row by another kernel
        rows = rows[1:]
    times = [total_s(Stream(op, n, 4096)) for n in rows]
    assert all(more >= 0.995 * less for less, more in itertools.pairwise(times))


@pytest.mark.parametrize("op", ALONE)
def test_no_resource_is_busier_than_all_the_time(op: str) -> None:
    for rows in (1, 132, 5000, 40_000):
        for found in stream_kernels(Stream(op, rows, 1536), gpu(), BURST):
            assert all(0 <= busy <= 1 for busy in found.utilisation.values())
            assert all(share >= 0 for share in found.waits.values())
            assert math.fsum(found.waits.values()) == pytest.approx(1)
            assert found.time_s >= gpu().kernel.floor_us * 1e-6


@pytest.mark.parametrize("op", ALONE)
def test_more_bandwidth_is_never_slower(op: str) -> None:
    faster = gpu("h200_sxm", "hbm.bandwidth_gb_per_s=9600")
    assert total_s(Stream(op, 16384, 4096), faster) <= total_s(Stream(op, 16384, 4096))


def test_half_the_bandwidth_doubles_a_long_copy() -> None:
    slower = gpu("h200_sxm", "hbm.bandwidth_gb_per_s=2400")
    work = Stream("copy", 2**16, 2**15)
    assert total_s(work, slower) / total_s(work) == pytest.approx(2, rel=0.01)


def test_a_held_clock_slows_what_is_bound_by_instructions() -> None:
    slow, fast = (Options(clock_mhz=mhz) for mhz in (900.0, 1800.0))
    gelu, copy = Stream("gelu", 32768, 4096), Stream("copy", 32768, 4096)
    assert total_s(gelu, options=slow) / total_s(gelu, options=fast) == pytest.approx(2, rel=0.05)
    assert total_s(copy, options=slow) / total_s(copy, options=fast) == pytest.approx(1, rel=0.02)


def test_sustained_load_keeps_to_the_boards_power() -> None:
    small = gpu("h200_sxm", "power.board_w=400")
    work = Stream("gelu", 32768, 4096)
    burst, settled = (only(work, small, Options(sustained=sustained)) for sustained in (False, True))
    assert settled.sm_mhz < burst.sm_mhz
    assert settled.time_s > burst.time_s
    assert only(work, small, Options(sustained=True, clock_mhz=1500.0)).sm_mhz == 1500.0


def test_energy_is_that_of_bytes_and_time() -> None:
    found = alone(Stream("copy", 32768, 4096))
    watts = sum(found.energy_j.values()) / found.time_s
    assert gpu().power.idle_w < watts < gpu().power.board_w * 1.1
    assert found.energy_j["hbm"] > found.energy_j["l2"] > 0


# Grids, as tables show them.
@pytest.mark.parametrize(
    ("work", "name", "n_ctas", "threads"),
    [
        (Stream("add", 512, 4096), "vectorized_elementwise", 2048, 128),
        (Stream("silu", 8, 11008, strided=True), "elementwise", 172, 128),
        (Stream("silu", 1, 11008, strided=True), "vectorized_elementwise", 11, 128),
        (Stream("copy", 1, 1024, strided=True), "elementwise", 2, 128),
        (Stream("transpose", 512, 1024), "elementwise", 1024, 128),
        (Stream("softmax", 512, 1024), "softmax_warp", 128, 128),
        (Stream("softmax", 8, 4096), "softmax_registers", 8, 1024),
        (Stream("softmax", 8, 14336), "softmax_smem", 8, 1024),
        (Stream("log_softmax", 8, 128256), "softmax_block", 8, 1024),
        (Stream("layer_norm", 64, 14336), "layer_norm", 64, 128),
        (Stream("add_rms_norm", 8, 4096), "rms_norm", 8, 512),
        (Stream("add_layer_norm", 64, 768), "layer_norm", 64, 96),
        (Stream("silu_mul", 64, 4096, strided=True), "vectorized_elementwise", 256, 128),
        (Stream("silu_mul", 64, 4095, strided=True), "elementwise", 512, 128),
        (Stream("mul", 64, 4096, strided=True), "elementwise", 512, 128),
        (Stream("embedding", 8, 4096), "index_select_small", 32, 128),
        (Stream("embedding", 64, 4096), "vectorized_gather", 128, 256),
    ],
)
def test_grids(work: Stream, name: str, n_ctas: int, threads: int) -> None:
    (kernel,) = stream_launches(work, gpu())
    assert (kernel.name, kernel.n_ctas, kernel.threads) == (name, n_ctas, threads)


def test_occupancy_is_bound_by_threads_or_registers() -> None:
    (vectorised,) = stream_launches(Stream("add", 512, 4096), gpu())
    (crowded,) = stream_launches(Stream("softmax", 512, 8192), gpu())
    assert ctas_per_sm(vectorised, gpu()) == (16, "threads")
    assert ctas_per_sm(crowded, gpu()) == (1, "registers")


# All GPUs, any shape, bad input.
@pytest.mark.parametrize("name", list_gpus())
@pytest.mark.parametrize("op", ALONE)
def test_every_gpu_gives_a_finite_time(name: str, op: str) -> None:
    kernels = stream_kernels(Stream(op, 777, 1000), gpu(name), BURST)
    assert all(math.isfinite(kernel.time_s) and kernel.time_s > 0 for kernel in kernels)


@settings(max_examples=150, deadline=None)
@given(
    op=st.sampled_from(ALONE),
    rows=SIZES,
    width=SIZES,
    dtype=st.sampled_from(["bf16", "fp32", "fp8_e4m3", "int8"]),
    strided=st.booleans(),
    held=st.floats(0, 1),
)
def test_any_shape_gives_a_sound_result(op: str, rows: int, width: int, dtype: str, strided: bool, held: float) -> None:
    work = Stream(op, rows, width, dtype, strided=strided)
    for found in stream_kernels(work, gpu(), BURST, resident={"x": held}):
        assert found.time_s >= gpu().kernel.floor_us * 1e-6
        assert found.sm_cycles == pytest.approx(found.time_s * found.sm_mhz * 1e6)
        moved = sum(found.bytes["hbm"].values()) / (gpu().hbm.bandwidth_gb_per_s * 1e9)
        assert found.time_s >= moved
        assert math.fsum(found.waits.values()) == pytest.approx(1)
        assert all(0 <= busy <= 1 for busy in found.utilisation.values())


@pytest.mark.parametrize(
    ("resident", "said"),
    [({"x": 1.5}, "x = 1.5"), ({"x": -0.1}, "from 0 to 1"), ({"w": math.nan}, "nan"), ({"q": 0.5}, "'q'")],
)
def test_bad_residency_is_refused(resident: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        stream_kernels(Stream("add", 8, 8), gpu(), BURST, resident=resident)


def test_another_workload_is_refused() -> None:
    wrong: Any = "add"
    with pytest.raises(ConfigError, match="Stream"):
        stream_kernels(wrong, gpu(), BURST)


# Tables.
def test_rows_of_tables_become_operations() -> None:
    assert question({"op": "add", "rows": 8, "width": 64}) == Repeated(Stream("add", 8, 64))
    warm = question({"op": "silu_strided", "rows": 8, "width": 64, "l2": "warm", "dtype": "fp32"})
    assert warm == Repeated(Stream("silu", 8, 64, "fp32", strided=True), "warm")
    assert predict(warm, gpu())["time_us"] < predict(warm._replace(l2="cold"), gpu())["time_us"]
    assert stream_of("embedding", 64, 128256, 4096) == Stream("embedding", 64, 4096)
    assert predict_stream(stream_of("adamw_fused", 1, 2**24, 0), gpu())["time_us"] > 0
    with pytest.raises(ConfigError, match="bmm"):
        stream_of("bmm", 1, 1, 1)


def test_results_are_the_same_each_time() -> None:
    work = Stream("rms_norm", 64, 4096)
    stream = stream_kernels(work, gpu(), BURST)
    assert stream_kernels(work, gpu(), dataclasses.replace(BURST)) == stream


def test_a_chain_takes_what_its_longest_link_and_its_bytes_take():
    whole = Stream("chain", 4096, 4096, chain=("mul", "silu", "add"), inputs=3)
    alone = [Stream("mul", 4096, 4096), Stream("silu", 4096, 4096), Stream("add", 4096, 4096)]
    gpu = load_gpu("h200_sxm")

    def time_s(work: Stream) -> float:
        return sum(kernel.time_s for kernel in stream_kernels(work, gpu, Options()))

    assert max(map(time_s, alone)) < time_s(whole) < sum(map(time_s, alone))
    assert whole.compulsory_bytes == 4 * 2 * 4096**2


def test_a_fused_kernel_reads_aligned_slices_as_it_reads_whole_rows():
    for op in ("silu_mul", "gelu_mul", "rope"):
        whole, sliced = (only(Stream(op, 4096, 4096, strided=strided)).time_s for strided in (False, True))
        assert sliced == whole
    odd = [only(Stream("silu_mul", 4096, 4095, strided=strided)).time_s for strided in (False, True)]
    assert odd[0] < odd[1]
