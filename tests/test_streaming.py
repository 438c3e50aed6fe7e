"""Weights that are streamed from host memory: overlap, memory held, pieces, refusals, and where the result goes."""

from __future__ import annotations

import dataclasses
from functools import lru_cache

import pytest

from hwmodels import load_gpu
from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim import simulate
from sim.launch import LEAST_PIECES, pieces_of
from sim.result import HostSpan, Result
from sim.schedule.config import KernelConfig
from workloads import Gemm

TILE = KernelConfig("multistage", 128, 128, 64, 3, 4, group=8)
SPLIT = dataclasses.replace(TILE, family="split_k", split_k=2)
TURING = KernelConfig("multistage", 16, 128, 64, 2, 4, loads="ldg", mma="mma_sync")


@lru_cache
def gpu(name: str = "h200_sxm", *overrides: str) -> Gpu:
    return load_gpu(name, overrides)


@lru_cache
def streamed(gemm: Gemm, config: KernelConfig = TILE, stream_weights: bool = True, launch: str = "stream") -> Result:
    return simulate(gemm, gpu(), config=config, stream_weights=stream_weights, launch=launch)


def lane(result: Result, name: str) -> list[HostSpan]:
    return [span for span in result.host_spans if span.lane == name]


def pieces(result: Result) -> list[HostSpan]:
    """Copies of pieces of B, in order."""
    return [span for span in lane(result, "copy h2d") if span.name.startswith("b ")]


WEIGHTS = Gemm(4096, 8192, 2048, weights="pinned")
"""2,048 is short: copying takes longer than computing; a B of 34 MB."""
HEAVY = Gemm(16384, 4096, 4096, weights="pinned")
"""Computing takes longer than copying."""


# Overlap.
@pytest.mark.parametrize("gemm", [WEIGHTS, HEAVY], ids=["copies longer", "kernels longer"])
def test_copies_and_kernels_overlap(gemm: Gemm) -> None:
    """The longer of the two sets the pace; of the other, about one piece stays visible."""
    result, whole = streamed(gemm), streamed(gemm, stream_weights=False)
    kernels_s = sum(span.end_s - span.start_s for span in lane(result, "stream"))
    copies_s = sum(span.end_s - span.start_s for span in pieces(result))
    longer, shorter = max(kernels_s, copies_s), min(kernels_s, copies_s)
    slack_s = 40e-6 + LEAST_PIECES * 6e-6
    assert longer < result.end_to_end_s < longer + 1.5 * shorter / LEAST_PIECES + slack_s
    assert result.end_to_end_s < whole.end_to_end_s


def test_a_piece_is_computed_after_its_copy() -> None:
    result = streamed(WEIGHTS)
    for copy, kernel in zip(pieces(result), lane(result, "stream"), strict=True):
        assert copy.end_s <= kernel.start_s


def test_pieces_cost_little_kernel_time() -> None:
    """Smaller GEMMs fill the GPU less well, and share more of what they read."""
    kernels_s = sum(span.end_s - span.start_s for span in lane(streamed(HEAVY), "stream"))
    assert 0.85 * streamed(HEAVY).time_s < kernels_s < 1.4 * streamed(HEAVY).time_s


# Memory.
@pytest.mark.parametrize("gemm", [WEIGHTS, HEAVY])
def test_two_pieces_at_most_are_held(gemm: Gemm) -> None:
    result = streamed(gemm)
    largest = max(span.bytes for span in pieces(result))
    assert result.options["hbm_peak_bytes"] == gemm.a_bytes + gemm.c_bytes + 2 * largest
    assert streamed(gemm, stream_weights=False).options["hbm_peak_bytes"] == gemm.a_bytes + gemm.b_bytes + gemm.c_bytes


def test_all_weights_travel_once() -> None:
    result = streamed(WEIGHTS)
    assert sum(span.bytes for span in pieces(result)) == WEIGHTS.b_bytes
    assert result.options["h2d_bytes"] == WEIGHTS.b_bytes
    assert len(pieces(result)) == LEAST_PIECES


def test_weights_six_times_the_memory() -> None:
    """103 GB of weights on a T4 of 16 GB: bounded by PCIe, two pieces at a time."""
    gemm = Gemm(16, 131072, 131072, batch=3, dtype="fp16", weights="pinned")
    t4 = gpu("t4")
    result = simulate(gemm, t4, config=TURING, stream_weights=True)
    assert gemm.b_bytes == 103_079_215_104
    assert result.options["hbm_peak_bytes"] < 16e9
    assert result.options["h2d_bytes"] == gemm.b_bytes
    copy_s = gemm.b_bytes / (t4.pcie.pinned_h2d_gb_per_s * 1e9)
    assert copy_s < result.end_to_end_s < 1.02 * copy_s
    assert any(sentence.startswith("From end to end PCIe bounds the") for sentence in result.evidence)


# Pieces.
def test_pieces_are_whole_tiles_and_make_up_b() -> None:
    gemm = Gemm(512, 5000, 1024, weights="pinned")
    found = pieces_of(gemm, TILE, gpu(), 10**9)
    assert sum(piece.n for piece in found) == 5000
    assert sum(piece.b_bytes for piece in found) == gemm.b_bytes
    assert all(piece.n % 128 == 0 for piece in found[:-1])
    assert {(piece.m, piece.k, piece.batch) for piece in found} == {(512, 1024, 1)}


def test_c_stays_in_place_and_b_is_packed() -> None:
    gemm = Gemm(512, 4096, 1024, layout="nn", ldb=5000, l2="warm", weights="pinned")
    piece = pieces_of(gemm, TILE, gpu(), 10**9)[0]
    assert (piece.leading("b"), piece.leading("c")) == (piece.n, 4096)
    assert piece.l2 == "cold"


def test_many_small_matrices_are_cut_by_batch() -> None:
    found = pieces_of(Gemm(64, 64, 64, batch=100, weights="pinned"), TILE, gpu(), 10**9)
    assert sum(piece.batch for piece in found) == 100
    assert {piece.n for piece in found} == {64}
    assert len(found) >= LEAST_PIECES


def test_pieces_shrink_with_the_room_for_them() -> None:
    gemm = Gemm(128, 65536, 1024, weights="pinned")
    for room_bytes in (10**9, 5 * 10**6, 10**6):
        found = pieces_of(gemm, TILE, gpu(), room_bytes)
        assert 2 * max(piece.b_bytes for piece in found) <= room_bytes


def test_a_configuration_serves_every_piece() -> None:
    """Split-K and the last, narrow piece included."""
    gemm = Gemm(256, 2176, 4096, weights="pinned", epilogue="residual", result="host")
    result = streamed(gemm, SPLIT)
    assert len(pieces(result)) == 17
    assert result.options["d2h_bytes"] == gemm.c_bytes
    partial = 2 * 256 * 128 * 4
    assert result.options["hbm_peak_bytes"] == 2 * gemm.c_bytes + gemm.a_bytes + 2 * 128 * 4096 * 2 + partial


# Without streaming, through the same code.
def test_partial_sums_are_held_and_freed() -> None:
    gemm = Gemm(256, 2048, 4096, result="host")
    result = streamed(gemm, SPLIT, stream_weights=False)
    assert [span.name for span in lane(result, "stream")][1] == "split-K reduction"
    partial = 2 * 256 * 2048 * 4
    assert result.options["hbm_peak_bytes"] == gemm.a_bytes + gemm.b_bytes + gemm.c_bytes + partial
    assert result.options["d2h_bytes"] == gemm.c_bytes


def test_gaps_between_rows_take_memory() -> None:
    gemm = Gemm(1024, 1024, 1024, lda=2048, ldb=4096, ldc=8192)
    assert streamed(gemm, stream_weights=False).options["hbm_peak_bytes"] == 2 * 1024 * (2048 + 4096 + 8192)


@pytest.mark.parametrize(("inputs", "weights"), [("pinned", "pinned"), ("hbm", "pageable")])
def test_the_result_goes_to_the_kind_of_memory_that_operands_came_from(inputs: str, weights: str) -> None:
    gemm = dataclasses.replace(WEIGHTS, inputs=inputs, weights=weights, result="host")
    result = streamed(gemm)
    back = lane(result, "copy d2h")
    rate = getattr(gpu().pcie, f"{weights}_d2h_gb_per_s") * 1e9
    assert [span.bytes for span in back] == [gemm.c_bytes]
    latency_s = gpu().pcie.copy_latency_us * 1e-6
    assert back[0].end_s - back[0].start_s == pytest.approx(latency_s + gemm.c_bytes / rate, rel=1e-6)


def test_a_graph_is_launched_once() -> None:
    launches = [span for span in lane(streamed(WEIGHTS, launch="graph"), "host") if span.name.startswith("launch")]
    assert len(launches) == 1
    assert len(pieces(streamed(WEIGHTS, launch="graph"))) == LEAST_PIECES


# Refusals.
def refused(gemm: Gemm, name: str = "t4", stream_weights: bool = False) -> str:
    with pytest.raises(ConfigError) as caught:
        simulate(gemm, gpu(name), stream_weights=stream_weights)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("weights", ["hbm", "pinned"])
def test_weights_that_do_not_fit_are_refused_with_what_helps(weights: str) -> None:
    message = refused(Gemm(16, 131072, 131072, dtype="fp16", weights=weights))
    assert "HBM of t4: 34.37 GB needed" in message
    assert "hbm.capacity_gb = 16" in message
    assert "--weights pinned --stream-weights" in message


def test_streaming_is_not_advised_where_it_does_not_help() -> None:
    message = refused(Gemm(131072, 131072, 1024, dtype="fp16", weights="pinned"))
    assert "HBM of t4" in message
    assert "--stream-weights" not in message
    message = refused(Gemm(131072, 131072, 1024, dtype="fp16", weights="pinned"), stream_weights=True)
    assert "b in pieces" in message


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is simulated fails."""

    def run_call(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("sim.run.run_call", run_call)
    monkeypatch.setattr("sim.launch.run_call", run_call)


@pytest.mark.parametrize(
    ("sizes", "split", "words"),
    [
        ((65536, 65536), 16, ("285.6 GB needed (a 1.07 GB, b 1.07 GB, c 8.59 GB, partial sums 275 GB)", "2 to 7")),
        ((131072, 65536), 128, ("4418 GB needed", "partial sums 4398 GB", "must be 2 to 3")),
        ((180224, 180224), 2, ("partial sums 260 GB", "must be 1, as not even two slices fit")),
    ],
)  # fmt: skip
def test_partial_sums_that_do_not_fit_are_refused_before_all(
    sizes: tuple[int, int], split: int, words: tuple[str, ...], no_engine: None
) -> None:
    config = dataclasses.replace(SPLIT, split_k=split)
    pattern = f"HBM of h200_sxm: .* at most hbm.capacity_gb = 141; split_k = {split}: "
    with pytest.raises(ConfigError, match=pattern) as caught:
        simulate(Gemm(*sizes, 8192), gpu(), config=config)
    assert [text for text in words if text not in str(caught.value)] == []


def test_the_menu_passes_over_partial_sums_that_do_not_fit() -> None:
    """HBM holds the tensors and one slice's partial sums, of which there are two at least."""
    gemm, room_gb = Gemm(512, 512, 16384), (2 * 512 * 16384 * 2 + 512 * 512 * 2 + 512 * 512 * 4) / 1e9
    assert simulate(gemm, gpu()).main.config["split_k"] > 1
    assert (
        simulate(gemm, gpu("h200_sxm", f"hbm.capacity_gb={room_gb}", "l2.capacity_mib=1")).main.config["split_k"] == 1
    )


def test_pieces_leave_room_for_partial_sums(no_engine: None) -> None:
    """Half of the room for two pieces, half for the partial sums of one."""
    gemm, split = Gemm(512, 65536, 1024, weights="pinned"), dataclasses.replace(SPLIT, split_k=2)
    for room_bytes in (10**9, 5 * 10**6, 2 * 10**6):
        piece = pieces_of(gemm, split, gpu(), room_bytes)[0]
        assert 2 * piece.b_bytes + 2 * piece.m * piece.n * 4 <= room_bytes
    with pytest.raises(ConfigError, match=r"two in HBM at a time beside 0.0005243 GB of partial sums: .* fewer slices"):
        pieces_of(gemm, split, gpu(), 10**6)
    small = gpu("h200_sxm", "hbm.capacity_gb=0.07")
    with pytest.raises(ConfigError, match="partial sums"):
        simulate(gemm, small, config=dataclasses.replace(SPLIT, split_k=16), stream_weights=True)


def test_weights_in_hbm_cannot_be_streamed() -> None:
    assert "weights = 'hbm'" in refused(Gemm(64, 64, 64), stream_weights=True)


def test_a_piece_that_does_not_fit_is_refused() -> None:
    """One column of tiles over the whole batch is more than half of the room."""
    with pytest.raises(ConfigError, match="two in HBM at a time") as caught:
        pieces_of(Gemm(16, 4096, 131072, weights="pinned"), TILE, gpu(), 60 * 10**6)
    assert "\n" not in str(caught.value)
