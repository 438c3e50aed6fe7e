"""Pictures and trace of a language model: texts inside and clear of each other, and saying what the result says."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from hwmodels.errors import ConfigError
from sim.step import StepResult, peak_flops_per_s
from tests.sample_llm import ASKED, sample_llm
from tests.test_pictures import drawn_texts
from viz.llm import facts
from viz.llm.charts import _bars
from viz.llm.kernels import sections, shown_only
from viz.llm.layer import MAX_ROWS, _chosen, middle_layer, passages
from viz.llm.roofline import draw_roofline, edge, marks
from viz.llm.sheet import figure, save_figure
from viz.llm.trace import KERNELS, LAYERS, OPERATIONS, chosen, write_trace
from viz.trace import PID_STREAM

US = 1e6


@pytest.mark.parametrize("name", ASKED)
def test_no_text_overlaps_or_leaves_the_sheet(name: str) -> None:
    sheet = figure(sample_llm(name))
    texts = drawn_texts(sheet)
    boxes = {f"{i}: {t.get_text()}": t.get_window_extent().padded(-0.6).extents for i, t in enumerate(texts)}
    width, height = sheet.bbox.width, sheet.bbox.height
    outside = [name for name, (x0, y0, x1, y1) in boxes.items() if x0 < 0 or y0 < 0 or x1 > width or y1 > height]
    crossing = [
        (a, b)
        for (a, p), (b, q) in combinations(boxes.items(), 2)
        if p[0] < q[2] and q[0] < p[2] and p[1] < q[3] and q[1] < p[3]
    ]
    assert not outside
    assert not crossing
    assert min(float(text.get_fontsize()) for text in texts) >= 6.5


def test_bars_add_up_to_the_step() -> None:
    for name in ASKED:
        step = sample_llm(name).shown
        assert sum(sum(parts.values()) for _, parts in _bars(step)) == pytest.approx(step.wall_s)


def test_every_limiter_has_a_colour() -> None:
    assert set(facts.GROUPS.values()) <= set(facts.COLOURS)
    colours = list(facts.COLOURS.values())
    assert len(set(colours)) == len(colours)


def test_marks_lie_at_flops_over_bytes_and_under_the_roofs() -> None:
    step = sample_llm("decode").shown
    peak = peak_flops_per_s(step.gpu, step.step) / 1e12
    for mark in marks(step):
        rans = facts.by_name(step)[mark.name]
        kernels = [kernel for ran in rans for kernel in ran.kernels]
        flops, moved = sum(ran.operation.work.flops for ran in rans), facts.hbm_bytes(kernels)
        assert mark.intensity == (pytest.approx(flops / moved) if moved else float("inf"))
        assert mark.tflops == pytest.approx(flops / sum(kernel.time_s for kernel in kernels) / 1e12)
        assert mark.tflops <= min(peak, mark.intensity * step.gpu.hbm.bandwidth_gb_per_s / 1e3)


def test_every_operation_with_flops_is_on_the_roofline() -> None:
    step = sample_llm("decode").shown
    ax = Figure(figsize=(6, 5)).subplots()
    draw_roofline(ax, step)
    drawn = [line for line in ax.lines if line.get_marker() in ("o", ">")]
    assert len(drawn) == len(marks(step)) == len({m.name for m in marks(step)})
    assert max(float(np.asarray(line.get_xdata())[0]) for line in drawn) <= edge(step, marks(step))


def test_the_timeline_is_of_the_middle_layer() -> None:
    step = sample_llm("decode").shown
    (passage,) = passages(step)
    assert middle_layer(step) == 1
    assert {each.ran.operation.layer for each in passage.kernels} == {1}
    forward, backward = passages(sample_llm("training").shown)
    assert forward.end_s < backward.start_s
    assert len(backward.kernels) > len(forward.kernels)


@pytest.mark.parametrize("name", ASKED)
def test_leaders_cross_no_name(name: str) -> None:
    for passage in passages(sample_llm(name).shown):
        names = _chosen(Figure(figsize=(13, 3)).add_axes((0.05, 0.1, 0.9, 0.8)), passage, 7.6)
        assert max(each.row for each in names) < MAX_ROWS
        for a, b in combinations(names, 2):
            assert a.at_us < b.at_us
            assert a.end_us <= b.at_us or a.row > b.row


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_figure_files(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"sheet.{suffix}"
    save_figure(sample_llm("prefill"), path)
    assert path.read_bytes().startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix])
    assert list(tmp_path.iterdir()) == [path]


def test_another_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="suffix must be one of"):
        save_figure(sample_llm("prefill"), tmp_path / "sheet.bmp")


# The trace.
def written(name: str, path: Path, **options: Any) -> tuple[dict[str, Any], int]:
    dropped = write_trace(sample_llm(name), path, **options)
    return json.loads(path.read_text()), dropped


def slices(trace: dict[str, Any], pid: int, tid: int | None = None) -> list[dict[str, Any]]:
    events = [event for event in trace["traceEvents"] if event["ph"] == "X" and event["pid"] == pid]
    return [event for event in events if tid is None or event["tid"] == tid]


@pytest.mark.parametrize("name", ASKED)
def test_the_trace_holds_every_kernel_in_order(name: str, tmp_path: Path) -> None:
    trace, dropped = written(name, tmp_path / "t.json")
    placed = facts.placed(sample_llm(name).shown)
    kernels = slices(trace, 3, 1)
    assert dropped == 0
    assert [event["name"] for event in kernels] == [" + ".join(k.name for k in each.kernels) for each in placed]
    assert [event["ts"] for event in kernels] == pytest.approx([each.start_s * US for each in placed], abs=1e-5)
    tracks: dict[tuple[int, int], float] = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            track = (event["pid"], event["tid"])
            assert event["ts"] >= tracks.get(track, 0.0) - 2e-6
            tracks[track] = event["ts"] + event["dur"]


def test_counters_end_at_the_bytes_of_the_step(tmp_path: Path) -> None:
    trace, _ = written("decode", tmp_path / "t.json")
    step = sample_llm("decode").shown
    for way in ("read", "write"):
        last = [e for e in trace["traceEvents"] if e["ph"] == "C" and e["name"] == f"HBM {way} so far (MB)"][-1]
        moved = sum(kernel.bytes["hbm"][way] for ran in step.ran for kernel in ran.kernels)
        assert last["args"]["value"] == pytest.approx(moved / 1e6, abs=1e-3)


def test_one_kernel_of_each_kind_is_shown_from_inside(tmp_path: Path) -> None:
    result = sample_llm("decode")
    trace, _ = written("decode", tmp_path / "t.json")
    insides = chosen(result)
    assert [facts.kind_of(inside.placed.ran.operation.work) for inside in insides] == ["gemm", "attention"]
    threads = names(trace, "thread_name")
    for inside in insides:
        assert inside.kernel.time_s == inside.placed.main.time_s
        tids = {tid for (pid, tid), name in threads.items() if pid == PID_STREAM and name.startswith(inside.title)}
        spans = [event for event in slices(trace, PID_STREAM) if event["tid"] in tids]
        assert len(spans) == len(inside.kernel.spans if inside.kernel.spans is not None else ())
        assert min(event["ts"] for event in spans) >= inside.placed.start_s * US - 1e-5
        assert max(event["ts"] + event["dur"] for event in spans) <= inside.placed.end_s * US + 1e-5
    assert trace["otherData"]["without_inside"]


def names(trace: dict[str, Any], kind: str) -> dict[tuple[int, int], str]:
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in trace["traceEvents"] if e["name"] == kind}


def test_layers_hold_their_operations_and_operations_their_kernels(tmp_path: Path) -> None:
    trace, _ = written("decode", tmp_path / "t.json")
    layers, operations, kernels = (slices(trace, PID_STREAM, tid) for tid in (LAYERS, OPERATIONS, KERNELS))
    assert [each["name"] for each in layers] == ["embedding", *(f"layer {i}" for i in range(4)), "head"]
    for outer, inner in ((layers, operations), (operations, kernels)):
        assert sum(each["args"]["kernels"] for each in outer) == len(kernels)
        for each in inner:
            assert any(
                o["ts"] - 1e-5 <= each["ts"] and each["ts"] + each["dur"] <= o["ts"] + o["dur"] + 1e-5 for o in outer
            )
    reduced = [each for each in kernels if each["name"] == "split-K reduction"]
    assert all(each["args"]["operation"] in {o["name"] for o in operations} for each in reduced)


@pytest.mark.parametrize(("name", "linked"), [("decode", False), ("streamed", True)])
def test_processes_in_which_nothing_happens_are_left_out(name: str, linked: bool, tmp_path: Path) -> None:
    trace, _ = written(name, tmp_path / "t.json")
    assert ("PCIe" in names(trace, "process_name").values()) is linked
    used = {event["pid"] for event in trace["traceEvents"] if event["ph"] != "M"}
    assert {pid for pid, _ in names(trace, "process_name")} == used


@pytest.mark.parametrize("view", ["trace", "kernels"])
def test_the_last_layer_is_looked_for_once_a_step(view: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not once a kernel, which made long steps quadratic."""
    asked: list[object] = []
    ran_of = StepResult.__getattribute__

    def counted(step: StepResult, name: str) -> Any:
        if name == "ran":
            asked.append(step)
        return ran_of(step, name)

    result = sample_llm("decode")
    monkeypatch.setattr(StepResult, "__getattribute__", counted)
    write_trace(result, tmp_path / "t.json") if view == "trace" else sections(result.shown)
    assert 0 < len(asked) < 30 < result.shown.n_kernels


def test_a_named_operation_is_shown_from_inside(tmp_path: Path) -> None:
    trace, _ = written("decode", tmp_path / "t.json", inside="out")
    assert [text.partition(":")[0] for text in trace["otherData"]["inside"]] == ["out of layer 1"]
    (head,) = chosen(sample_llm("decode"), "head")
    assert head.title == "head"
    with pytest.raises(ConfigError, match=r"--inside 'attention norm': must be one of .*down"):
        chosen(sample_llm("decode"), "attention norm")


def test_a_generation_says_which_step_is_shown(tmp_path: Path) -> None:
    trace, _ = written("generate", tmp_path / "t.json")
    assert re.fullmatch(r"a decode step behind \d+ tokens", trace["otherData"]["shown"])
    assert "--phase prefill" in shown_only(sample_llm("generate"))
    assert shown_only(sample_llm("decode")) == ""


def test_a_kernel_under_a_cap_is_replayed_at_it() -> None:
    result = sample_llm("capped")
    assert result.shown.clock_cap_mhz is not None
    for inside in chosen(result):
        assert inside.kernel.time_s == inside.placed.main.time_s
        assert inside.kernel.sm_mhz <= result.shown.clock_cap_mhz


def test_the_trace_keeps_to_its_size(tmp_path: Path) -> None:
    whole, _ = written("decode", tmp_path / "whole.json")
    size = (tmp_path / "whole.json").stat().st_size - 20_000
    trace, dropped = written("decode", tmp_path / "part.json", max_bytes=size)
    assert dropped > 0
    assert trace["otherData"]["spans_dropped_by_size_bound"] == dropped
    assert (tmp_path / "part.json").stat().st_size <= size
    for tid in (KERNELS, OPERATIONS, LAYERS):
        assert len(slices(trace, PID_STREAM, tid)) == len(slices(whole, PID_STREAM, tid))
