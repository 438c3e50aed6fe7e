"""The Perfetto trace: rules of the trace-event format, content, size bound, and no half-written file."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hwmodels.errors import ConfigError
from sim.result import SPAN_DTYPE, Result
from tests.sample_result import N_SMS, reduction_kernel, sample_kernel, sample_result, sample_spans
from viz import files
from viz.trace import COUNTERS, PID_COPIES, PID_HOST, PID_SMS, PID_STREAM, PROCESSES, write_trace

KNOWN_PHASES = {"X", "C", "M"}


def ps(us: float) -> int:
    return round(us * 1e6)


def written(result: Result, path: Path, **kwargs: Any) -> tuple[dict[str, Any], int]:
    dropped = write_trace(result, path, **kwargs)
    return json.loads(path.read_text(encoding="utf-8")), dropped


def check_format(trace: dict[str, Any]) -> None:
    """Fields of each event by phase, order of time, durations, and nesting on each thread."""
    events = trace["traceEvents"]
    for event in events:
        assert event["ph"] in KNOWN_PHASES
        assert isinstance(event["ts"], int | float)
        assert event["ts"] >= 0
        assert type(event["pid"]) is int
        assert type(event["tid"]) is int
        assert isinstance(event["name"], str)
        if event["ph"] == "X":
            assert event["dur"] >= 0
        if event["ph"] == "C":
            assert all(isinstance(value, int | float) and np.isfinite(value) for value in event["args"].values())
        if event["ph"] == "M":
            assert set(event["args"]) in ({"name"}, {"sort_index"})
    timed = [event["ts"] for event in events if event["ph"] != "M"]
    assert timed == sorted(timed)
    check_nesting(events)


def check_nesting(events: list[dict[str, Any]]) -> None:
    threads: dict[tuple[int, int], list[int]] = defaultdict(list)
    for event in (event for event in events if event["ph"] == "X"):
        open_ends = threads[event["pid"], event["tid"]]
        start, end = ps(event["ts"]), ps(event["ts"]) + ps(event["dur"])
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1], f"{event} overlaps its neighbour"
        open_ends.append(end)


def slices(trace: dict[str, Any], pid: int) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X" and event["pid"] == pid]


def thread_names(trace: dict[str, Any], pid: int) -> dict[int, str]:
    labels = [e for e in trace["traceEvents"] if e["ph"] == "M" and e["name"] == "thread_name" and e["pid"] == pid]
    return {label["tid"]: label["args"]["name"] for label in labels}


def with_spans(rows: Sequence[tuple[int, ...]], **changes: Any) -> Result:
    kernel = replace(sample_kernel(traced=False), spans=np.array(rows, dtype=SPAN_DTYPE), **changes)
    return sample_result(kernels=(kernel,))


@pytest.mark.parametrize("copied", [False, True])
def test_trace_obeys_the_format_and_holds_every_span(tmp_path: Path, copied: bool) -> None:
    result = sample_result(copied=copied)
    trace, dropped = written(result, tmp_path / "trace.json")
    check_format(trace)
    assert dropped == 0
    assert len(slices(trace, PID_SMS)) == len(sample_spans())
    named = {e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    assert named == set(PROCESSES.values())
    assert len(slices(trace, PID_COPIES)) == (2 if copied else 0)
    assert len(slices(trace, PID_HOST)) == 1


def test_spans_start_with_their_kernel(tmp_path: Path) -> None:
    trace, _ = written(sample_result(copied=True), tmp_path / "trace.json")
    (kernel,) = slices(trace, PID_STREAM)
    spans = slices(trace, PID_SMS)
    assert min(span["ts"] for span in spans) == pytest.approx(kernel["ts"], abs=1e-5)
    assert max(span["ts"] + span["dur"] for span in spans) <= kernel["ts"] + kernel["dur"] + 1e-5


def test_overlapping_loads_get_tracks_of_their_own(tmp_path: Path) -> None:
    rows = [(1, 3, 0, 0, k, 100_000 * k, 100_000 * k + 250_000) for k in range(6)]
    trace, _ = written(with_spans(rows), tmp_path / "trace.json")
    check_format(trace)
    names = thread_names(trace, PID_SMS)
    assert sorted(names.values()) == ["SM 3 slot 0 load 1", "SM 3 slot 0 load 2", "SM 3 slot 0 load 3"]


def test_two_consumers_of_one_slot_do_not_cross(tmp_path: Path) -> None:
    rows = [(4, 0, 0, 0, 9, 0, 900_000), (3, 0, 0, 1, 0, 500_000, 1_200_000), (3, 0, 0, 1, 1, 1_200_000, 1_500_000)]
    trace, _ = written(with_spans(rows), tmp_path / "trace.json")
    check_format(trace)
    assert sorted(thread_names(trace, PID_SMS).values()) == ["SM 0 slot 0 consumer", "SM 0 slot 0 consumer 2"]


def test_the_format_check_can_fail() -> None:
    common = {"ph": "X", "pid": 1, "tid": 1, "name": "mma"}
    crossing = [{**common, "ts": 0, "dur": 5}, {**common, "ts": 3, "dur": 5}]
    with pytest.raises(AssertionError, match="overlaps"):
        check_format({"traceEvents": crossing})
    with pytest.raises(AssertionError):
        check_format({"traceEvents": list(reversed(crossing))})


def test_counters_repeat_the_windows(tmp_path: Path) -> None:
    result = sample_result()
    trace, _ = written(result, tmp_path / "trace.json")
    counted = [event for event in trace["traceEvents"] if event["ph"] == "C"]
    assert {event["name"] for event in counted} == set(COUNTERS)
    hbm = [event["args"]["value"] for event in counted if event["name"] == COUNTERS[0]]
    first = result.main.windows.values[0]
    assert hbm[0] == pytest.approx(100 * (first[0] + first[1]) / (2e-6 * 4.8e12), abs=0.01)
    assert len(hbm) == len(result.main.windows.values) + 1
    assert hbm[-1] == 0


def test_counters_name_cuda_cores_and_end_with_what_was_replayed(tmp_path: Path) -> None:
    kernel = sample_kernel(traced=False, sampled=True)
    windows = replace(kernel.windows, values=kernel.windows.values[:40])
    fma = replace(kernel, config={**kernel.config, "mma": "fma"}, windows=windows)
    trace, _ = written(sample_result(kernels=(fma,)), tmp_path / "trace.json")
    counted = [event for event in trace["traceEvents"] if event["ph"] == "C"]
    assert "CUDA cores (% busy)" in {event["name"] for event in counted}
    assert max(event["ts"] for event in counted) == pytest.approx(3.8 + 80)


def test_size_bound_drops_the_latest_spans_and_says_so(tmp_path: Path) -> None:
    result, path = sample_result(), tmp_path / "trace.json"
    trace, dropped = written(result, path, max_bytes=300_000)
    check_format(trace)
    kept = slices(trace, PID_SMS)
    assert path.stat().st_size <= 300_000
    assert path.stat().st_size > 250_000
    assert dropped == len(sample_spans()) - len(kept) > 0
    assert trace["otherData"]["spans_dropped_by_size_bound"] == dropped
    starts = np.sort(sample_spans()["start_fs"])
    launch_us = 3.8
    assert max(span["ts"] for span in kept) <= launch_us + starts[len(kept)] / 1e9 + 1e-6
    assert set(thread_names(trace, PID_SMS)) == {span["tid"] for span in kept}


def test_a_bound_below_the_counters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"max_bytes = 1000: must be at least \d+") as refused:
        write_trace(sample_result(), tmp_path / "trace.json", max_bytes=1000)
    assert not list(tmp_path.iterdir())
    least = int(str(refused.value).split("at least ")[1].split()[0])
    assert write_trace(sample_result(), tmp_path / "trace.json", max_bytes=least) == len(sample_spans())


def test_untraced_and_split_k_runs_have_kernels_and_counters(tmp_path: Path) -> None:
    result = sample_result(kernels=(sample_kernel(traced=False), reduction_kernel()), host_spans=())
    trace, dropped = written(result, tmp_path / "trace.json")
    check_format(trace)
    first, second = slices(trace, PID_STREAM)
    assert dropped == 0
    assert not slices(trace, PID_SMS)
    assert ps(second["ts"]) == ps(first["ts"] + first["dur"])


def test_dropped_by_the_engine_is_told(tmp_path: Path) -> None:
    trace, _ = written(with_spans([(3, N_SMS - 1, 0, 0, 0, 0, 10)], spans_dropped=77), tmp_path / "trace.json")
    assert trace["otherData"]["spans_dropped_by_engine"] == 77


def test_same_result_same_file(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        write_trace(sample_result(), tmp_path / name)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_unwritable_paths_are_refused_in_one_line(tmp_path: Path) -> None:
    for path in (tmp_path / "missing" / "trace.json", tmp_path):
        with pytest.raises(ConfigError) as refused:
            write_trace(sample_result(traced=False), path)
        assert str(path) in str(refused.value)
        assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


def write_half(path: Path) -> None:
    with files.replacing(path) as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt


def test_interrupted_writing_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt):
        write_half(path)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]
