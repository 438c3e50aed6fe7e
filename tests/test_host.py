"""The coarse world against closed forms: copies, streams, overlap, launch costs, HBM allocation, streamed weights."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwmodels import ConfigError, load_gpu, measured_path
from sim.host import HostOutcome, World, play
from sim.program import Launch, Part, Program, Tensor

US = 1e-6
MIB = 2**20
LATENCY_US, STREAM_US, GRAPH_US, SYNC_US = 2.0, 4.0, 0.5, 9.0


def gpu(**pcie: float) -> Any:
    """A GPU with round numbers: 1 GB of HBM, 50 and 40 GB/s pinned, 10 and 8 GB/s pageable."""
    rates = {"pinned_h2d": 50.0, "pinned_d2h": 40.0, "pageable_h2d": 10.0, "pageable_d2h": 8.0}
    link = {f"{name}_gb_per_s": rate for name, rate in rates.items()} | {"copy_latency_us": LATENCY_US} | pcie
    return SimpleNamespace(
        name="round",
        hbm=SimpleNamespace(capacity_gb=1.0),
        pcie=SimpleNamespace(**link),
        launch=SimpleNamespace(stream_us=STREAM_US, graph_us=GRAPH_US, sync_us=SYNC_US),
    )


def lasting(time_us: float) -> Callable[[float], float]:
    """A kernel that no copy slows down."""
    return lambda background_gb_per_s: time_us * US


def gemm(*, weights: str = "hbm", kernel_us: float = 100.0, **options: Any) -> Program:
    """C = A B with A in HBM and 100 MB of B wherever it is wanted."""
    tensors = (Tensor("a", 10**7), Tensor("b", 10**8, weights), Tensor("c", 2 * 10**7))
    return Program(tensors, (Launch("gemm", ("a", "b"), ("c",), (Part(lasting(kernel_us)),)),), **options)


def streamed(n_pieces: int, kernel_us: float, *, home: str = "pinned", **options: Any) -> Program:
    """The same with B streamed in equal pieces, `kernel_us` for each."""
    part = Part(lasting(kernel_us), 10**8 // n_pieces)
    launch = Launch("gemm", ("a",), ("c",), (part,) * n_pieces, weights="b")
    return Program((Tensor("a", 10**7), Tensor("b", 10**8, home), Tensor("c", 2 * 10**7)), (launch,), **options)


def lane(outcome: HostOutcome | World, name: str) -> list[Any]:
    return [span for span in outcome.spans if span.lane == name]


def run(world: World) -> float:
    """Let everything enqueued happen; the time at which it is done, in us."""
    world.env.run(until=world.idle())
    return world.env.now / US


# Copies


@pytest.mark.small
@pytest.mark.parametrize(
    ("direction", "home", "gb_per_s"),
    [("h2d", "pinned", 50), ("d2h", "pinned", 40), ("h2d", "pageable", 10), ("d2h", "pageable", 8)],
)
def test_a_copy_takes_its_latency_and_then_moves_at_peak(direction: str, home: str, gb_per_s: float) -> None:
    world = World(gpu())
    world.enqueue("any", world.copy("x", 10**8, direction, home))
    assert run(world) == pytest.approx(LATENCY_US + 1e5 / gb_per_s, rel=1e-12)


@pytest.mark.small
def test_copies_in_one_direction_take_turns_and_in_opposite_directions_overlap() -> None:
    same, opposite = World(gpu()), World(gpu())
    for world, second in ((same, "h2d"), (opposite, "d2h")):
        world.enqueue("one", world.copy("x", 10**8, "h2d", "pinned"))
        world.enqueue("two", world.copy("y", 10**8, second, "pinned"))
    assert run(same) == pytest.approx(2 * (LATENCY_US + 2000))
    assert run(opposite) == pytest.approx(LATENCY_US + 2500)


@given(
    st.integers(1, 2**33),
    st.integers(1, 2**33),
    st.sampled_from(["h2d", "d2h"]),
    st.sampled_from(["pinned", "pageable"]),
)
def test_more_bytes_never_copy_faster(n_bytes: int, more: int, direction: str, home: str) -> None:
    times_us = []
    for size in (n_bytes, n_bytes + more):
        world = World(gpu())
        world.enqueue("any", world.copy("x", size, direction, home))
        times_us.append(run(world))
    assert times_us[0] < times_us[1]


# Streams, launches


@pytest.mark.small
def test_a_stream_keeps_its_order_and_an_event_holds_another_stream() -> None:
    world = World(gpu())
    copied = world.enqueue("copies", world.copy("x", 10**8, "h2d", "pinned"))
    world.enqueue("compute", world.kernel("needs x", lasting(5)), [copied])
    world.enqueue("compute", world.kernel("behind it", lasting(1)))
    run(world)
    assert [span.name for span in world.spans] == ["x", "needs x", "behind it"]
    assert world.spans[1].start_s == world.spans[0].end_s


@pytest.mark.small
def test_one_kernel_at_a_time_across_streams() -> None:
    world = World(gpu())
    for stream in ("one", "two", "three"):
        world.enqueue(stream, world.kernel(stream, lasting(10)))
    assert run(world) == pytest.approx(3 * 10 + 2 * GRAPH_US)


@pytest.mark.small
def test_an_empty_kernel_costs_one_launch_and_wait() -> None:
    outcome = play(gemm(kernel_us=0.0), gpu())
    assert outcome.end_to_end_s == pytest.approx(SYNC_US * US)
    assert (outcome.h2d_bytes, outcome.d2h_bytes, outcome.copy_busy_s) == (0, 0, 0.0)


def chain(n_kernels: int, kernel_us: float, launch_mode: str) -> Program:
    tensors = tuple(Tensor(f"t{i}", 1000) for i in range(n_kernels + 1))
    launches = [Launch(f"k{i}", (f"t{i}",), (f"t{i + 1}",), (Part(lasting(kernel_us)),)) for i in range(n_kernels)]
    return Program(tensors, tuple(launches), launch_mode=launch_mode)


@pytest.mark.small
@pytest.mark.parametrize(
    ("mode", "kernel_us", "step_us"),
    [("stream", 0.0, STREAM_US), ("graph", 0.0, GRAPH_US), ("stream", 50.0, 50.0 + GRAPH_US), ("graph", 50.0, 50.5)],
)
def test_each_further_kernel_costs_the_host_or_the_gap(mode: str, kernel_us: float, step_us: float) -> None:
    """Short kernels wait for the host's next launch; long ones hide it, and graphs are launched once."""
    ten, eleven = (play(chain(n, kernel_us, mode), gpu()).end_to_end_s for n in (10, 11))
    assert eleven - ten == pytest.approx(step_us * US, rel=1e-9)


# One GEMM with operands on the host


@pytest.mark.small
def test_without_streaming_the_copy_comes_first_and_the_result_goes_back_last() -> None:
    outcome = play(gemm(weights="pinned", result_home="pinned"), gpu())
    copy_in_us, copy_out_us = LATENCY_US + 2000, LATENCY_US + 500
    assert outcome.end_to_end_s / US == pytest.approx(copy_in_us + 100 + copy_out_us + SYNC_US - STREAM_US)
    assert (outcome.h2d_bytes, outcome.d2h_bytes) == (10**8, 2 * 10**7)
    assert outcome.copy_busy_s / US == pytest.approx(copy_in_us + copy_out_us)
    assert outcome.compute_idle_s == pytest.approx(outcome.end_to_end_s - 100 * US)


@pytest.mark.small
def test_a_pageable_copy_holds_the_host_and_a_pinned_one_does_not() -> None:
    launched_us = {}
    for home in ("pinned", "pageable"):
        outcome = play(gemm(weights=home), gpu())
        launched_us[home] = next(span.start_s for span in lane(outcome, "host") if span.name == "launch gemm") / US
    assert launched_us["pinned"] == 0.0
    assert launched_us["pageable"] == pytest.approx(LATENCY_US + 10_000)


@pytest.mark.small
def test_order_of_what_happens() -> None:
    outcome = play(gemm(weights="pageable", result_home="pageable"), gpu())
    assert [(span.lane, span.name) for span in sorted(outcome.spans, key=lambda span: (span.end_s, span.lane))] == [
        ("copy h2d", "b"),
        ("host", "stage b"),
        ("host", "launch gemm"),
        ("stream", "gemm"),
        ("copy d2h", "c"),
        ("host", "stage c"),
        ("host", "synchronise"),
    ]


# Streamed weights


@pytest.mark.small
@pytest.mark.parametrize("home", ["pinned", "pageable"])
@pytest.mark.parametrize("kernel_us", [3.0, 2000.0])
def test_streaming_takes_the_longer_of_copy_and_compute_plus_the_first_piece(home: str, kernel_us: float) -> None:
    """The host pays for launches between pageable copies; beside pinned ones and behind kernels they are hidden."""
    n_pieces = 10
    outcome = play(streamed(n_pieces, kernel_us, home=home), gpu())
    launch_us = STREAM_US if home == "pageable" else 0.0
    piece_us = LATENCY_US + 1e4 / (50 if home == "pinned" else 10) + launch_us
    if kernel_us < piece_us:
        expected_us = n_pieces * piece_us + kernel_us
    else:
        expected_us = piece_us + n_pieces * kernel_us + (n_pieces - 1) * GRAPH_US
    assert outcome.end_to_end_s / US == pytest.approx(expected_us + SYNC_US - STREAM_US, rel=1e-9)
    assert outcome.h2d_bytes == 10**8


def held_pieces(outcome: HostOutcome) -> Iterable[int]:
    """Pieces in HBM at the start of each copy: from a copy's start to the end of the kernel of the same number."""
    copies, kernels = lane(outcome, "copy h2d"), lane(outcome, "stream")
    ends = [kernel.end_s for kernel in kernels]
    return [sum(c.start_s <= now.start_s < end for c, end in zip(copies, ends, strict=True)) for now in copies]


@pytest.mark.small
@pytest.mark.parametrize("kernel_us", [1.0, 202.0, 5000.0])
def test_two_pieces_at_most_are_in_hbm(kernel_us: float) -> None:
    outcome = play(streamed(10, kernel_us), gpu())
    assert max(held_pieces(outcome)) <= 2
    assert outcome.hbm_peak_bytes == 3 * 10**7 + 2 * 10**7  # A, C and two pieces of 10 MB


@pytest.mark.small
def test_pieces_are_buffered_across_launches() -> None:
    one = streamed(4, 300.0)
    launches = (one.launches[0], replace(one.launches[0], name="again", writes=("d",)))
    outcome = play(replace(one, tensors=(*one.tensors, Tensor("d", 10**7)), launches=launches), gpu())
    assert max(held_pieces(outcome)) == 2
    assert outcome.hbm_peak_bytes == 4 * 10**7 + 2 * 25 * 10**6


@pytest.mark.small
def test_streaming_fits_what_does_not_fit_whole() -> None:
    small = gpu()
    small.hbm.capacity_gb = 0.06
    with pytest.raises(ConfigError, match=r"b \(0\.100 GB\), with 0\.010 GB .* 0\.110 GB; .*0\.06 is 0\.05 GB too"):
        play(gemm(weights="pinned"), small)
    assert play(streamed(10, 100.0), small).hbm_peak_bytes == 5 * 10**7


# What copies take from HBM


@pytest.mark.small
def test_a_kernel_slows_down_exactly_while_a_copy_is_in_flight() -> None:
    """100 us alone, 200 us beside a copy of 50 us that begins 2 us in: 2 + 25 us of work are done after 52 us."""
    world = World(gpu())
    asked: list[float] = []

    def kernel_s(background_gb_per_s: float) -> float:
        asked.append(background_gb_per_s)
        return (200 if background_gb_per_s else 100) * US

    world.enqueue("compute", world.kernel("k", kernel_s))
    world.enqueue("copies", world.copy("x", 2_500_000, "h2d", "pinned"))
    assert run(world) == pytest.approx(2 + 50 + (100 - 2 - 25))
    assert asked == [0.0, 50.0, 0.0]


@pytest.mark.small
def test_copies_both_ways_add_up() -> None:
    world = World(gpu())
    asked: list[float] = []

    def kernel_s(background_gb_per_s: float) -> float:
        asked.append(background_gb_per_s)
        return 100 * US

    for direction in ("h2d", "d2h"):
        world.enqueue(direction, world.copy("x", 10**8, direction, "pinned"))
    world.enqueue("compute", world.kernel("k", kernel_s))
    assert run(world) == pytest.approx(LATENCY_US + 2500)
    assert max(asked) == 90.0


# HBM


@pytest.mark.small
def test_results_and_residents_stay_and_the_rest_is_freed_after_its_last_use() -> None:
    """Four 1 kB tensors in a chain: the first is resident, the last the result; at most three are held at once."""
    assert play(chain(3, 10.0, "stream"), gpu()).hbm_peak_bytes == 3000


@pytest.mark.small
def test_what_fills_hbm_to_the_last_byte_fits_and_one_more_does_not() -> None:
    def program(extra_bytes: int) -> Program:
        tensors = (Tensor("a", 600_000_000), Tensor("c", 400_000_000 + extra_bytes))
        return Program(tensors, (Launch("k", ("a",), ("c",), (Part(lasting(1)),)),))

    assert play(program(0), gpu()).hbm_peak_bytes == 10**9
    with pytest.raises(ConfigError, match=r"HBM of round: c .* 1e-09 GB too small"):
        play(program(1), gpu())


@pytest.mark.small
def test_a_tensor_updated_in_place_is_held_once() -> None:
    program = Program((Tensor("x", 1000),), (Launch("k", ("x",), ("x",), (Part(lasting(1)),)),), result_home="pinned")
    outcome = play(program, gpu())
    assert (outcome.hbm_peak_bytes, outcome.d2h_bytes) == (1000, 1000)


# Refusals, determinism


@pytest.mark.small
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"result_home": "disk"}, "result_home must be one of hbm, pinned, pageable, got 'disk'"),
        ({"launch_mode": "batch"}, "launch_mode must be one of stream, graph, eager, got 'batch'"),
        ({"tensors": (Tensor("b", 5),)}, "tensor used by launch gemm must be one of b, got 'a'"),
        ({"tensors": (Tensor("a", 0),)}, "bytes of tensor a must be at least 1, got 0"),
        ({"tensors": (Tensor("a", 1, "vram"),)}, "home of tensor a must be one of .* got 'vram'"),
        ({"tensors": (Tensor("a", 1), Tensor("a", 2))}, "names must differ"),
        ({"launches": (Launch("k", ("a",), ("c",), ()),)}, "launch k without streamed weights has one part, got 0"),
        (
            {"launches": (Launch("k", (), ("c",), (Part(lasting(1), 7),), "b"),)},
            "home of streamed weights b .* got 'hbm'",
        ),
    ],
)
def test_contradictions_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(gemm(), **change)


@pytest.mark.small
def test_pieces_must_add_up_to_the_weights() -> None:
    launch = Launch("gemm", ("a",), ("c",), (Part(lasting(1), 10**7),) * 9, weights="b")
    with pytest.raises(ConfigError, match="sum to the 100000000 bytes of b"):
        replace(gemm(weights="pinned"), launches=(launch,))


@pytest.mark.small
def test_a_wait_shorter_than_a_launch_is_refused() -> None:
    odd = gpu()
    odd.launch.sync_us = 1.0
    with pytest.raises(ConfigError, match=r"launch\.sync_us = 1 .* launch\.stream_us = 4"):
        play(gemm(), odd)


@pytest.mark.small
def test_the_same_program_gives_the_same_outcome() -> None:
    program = streamed(16, 77.7, result_home="pageable")
    assert play(program, gpu()) == play(program, gpu())


# Measured copies of one H200: back to back in a stream, 4 KiB to 1 GiB


def copy_errors(home: str) -> dict[tuple[str, int], float]:
    """{(direction, bytes): simulated / measured - 1} of microbench.csv's copies."""
    h200 = load_gpu("h200_sxm")
    errors = {}
    with open(measured_path("h200_sxm", "microbench"), newline="") as file:
        for row in csv.DictReader(file):
            direction, _, row_home = row["bench"].partition("_")
            if direction in ("h2d", "d2h") and row_home == home:
                n_bytes, measured_us = int(row["param1"].split("=")[1]), float(row["param2"].split("=")[1])
                world = World(h200)
                for _ in range(4):
                    world.enqueue("copies", world.copy("x", n_bytes, direction, home))
                errors[direction, n_bytes] = run(world) / 4 / measured_us - 1
    return errors


def test_pinned_copies_agree_with_measured_ones() -> None:
    errors = copy_errors("pinned")
    judged = {key: error for key, error in errors.items() if key[1] >= MIB or key == ("h2d", 64 * 1024)}
    assert len(judged) == 9
    assert max(map(abs, judged.values())) < 0.10, judged


def test_pageable_copies_agree_with_measured_ones_where_they_are_long() -> None:
    judged = {key: error for key, error in copy_errors("pageable").items() if key[1] >= 256 * MIB}
    assert len(judged) == 4
    assert max(map(abs, judged.values())) < 0.20, judged


@pytest.mark.parametrize(
    ("home", "direction", "n_bytes", "at_least"),
    [
        ("pinned", "d2h", 64 * 1024, 0.25),  # one latency serves both directions; posted writes need 1.1 us less
        ("pageable", "h2d", MIB, 1.0),  # the host's caches hold it: 17 GB/s, where 1 GiB moves at 7
    ],
)
def test_known_gaps_are_still_there(home: str, direction: str, n_bytes: int, at_least: float) -> None:
    """Accepted deviations. When one closes, this fails, and the tests above should judge those rows too."""
    assert copy_errors(home)[direction, n_bytes] > at_least
