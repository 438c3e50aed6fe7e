"""Pictures: rendered, every text inside the figure and clear of the others, and saying what the result says."""

from __future__ import annotations

import math
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

from hwmodels.errors import ConfigError
from sim.result import SPAN_DTYPE, Result
from tests.sample_result import N_SMS, reduction_kernel, sample_kernel, sample_result, sample_spans
from viz import levels, palette, words
from viz.journey import journey
from viz.roofline import intensity, roofline
from viz.sheet import figure, save_figure
from viz.timeline import MAX_STEPS, _coarser, coverage, first_tile, steps, timeline, wave_starts_us, window_shares


def gemv_result() -> Result:
    """One token: hardly any FLOPs a byte, one short wave, no spans."""
    traffic = {"read": 33_562_624, "write": 8192}
    flops = 2 * 4096 * 4096
    kernel = replace(
        sample_kernel(traced=False),
        time_s=9.4e-6,
        bytes=dict.fromkeys(("hbm", "l2", "sm", "smem"), traffic),
        lookups={"accesses": 0},
    )
    work = sample_result().workload | {"m": 1, "flops": flops, "compulsory_bytes": 33_570_816}
    return sample_result(kernels=(kernel,), workload=work, time_s=9.4e-6, flops=flops, limiter="hbm")


RESULTS = {
    "plain": sample_result,
    "copied": lambda: sample_result(copied=True, limiter="sm_port"),
    "untraced": lambda: sample_result(traced=False, sampled=True, limiter="latency"),
    "split_k": lambda: sample_result(kernels=(sample_kernel(), reduction_kernel()), limiter="tensor"),
    "gemv": gemv_result,
}


FULL, SMALL = (13.0, 8.2), (6.0, 4.0)
SHEETS = [("copied", FULL), ("split_k", FULL), ("copied", SMALL), ("untraced", SMALL), ("gemv", SMALL)]


def drawn_texts(sheet: Figure) -> list[Text]:
    """Texts that a rendering of the figure really draws."""
    seen: list[Text] = []
    draw = Text.draw

    def record(self: Text, *args: Any, **kwargs: Any) -> None:
        if self.get_visible() and self.get_text().strip():
            seen.append(self)
        draw(self, *args, **kwargs)

    with patch.object(Text, "draw", record):
        sheet.draw_without_rendering()
    return list(dict.fromkeys(seen))


def text_boxes(sheet: Figure) -> dict[str, tuple[float, float, float, float]]:
    """{text: (left, bottom, right, top)} in pixels, a quarter of a pixel shaved off for rounding."""
    texts = drawn_texts(sheet)
    assert all(text.get_rotation() % 90 == 0 for text in texts), "slanted text needs another overlap test"
    return {f"{i}: {t.get_text()}": t.get_window_extent().padded(-0.25).extents for i, t in enumerate(texts)}


def overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def check_texts(sheet: Figure) -> None:
    boxes = text_boxes(sheet)
    width, height = sheet.bbox.width, sheet.bbox.height
    outside = [name for name, (x0, y0, x1, y1) in boxes.items() if x0 < 0 or y0 < 0 or x1 > width or y1 > height]
    crossing = [(a, b) for a, b in combinations(boxes, 2) if overlap(boxes[a], boxes[b])]
    assert not outside
    assert not crossing


@pytest.mark.parametrize(("name", "size"), SHEETS)
def test_no_text_overlaps_or_leaves_the_sheet(name: str, size: tuple[float, float]) -> None:
    check_texts(figure(RESULTS[name](), size))


def test_the_overlap_check_can_fail() -> None:
    sheet = Figure(figsize=(3, 2))
    sheet.text(0.1, 0.5, "one text")
    sheet.text(0.12, 0.52, "another")
    with pytest.raises(AssertionError):
        check_texts(sheet)


@pytest.mark.parametrize(("name", "size"), [("copied", (6.0, 4.0)), ("gemv", (6.0, 4.0)), ("split_k", (3.0, 4.0))])
def test_single_pictures_have_clear_texts(name: str, size: tuple[float, float]) -> None:
    result = RESULTS[name]()
    sheet = Figure(figsize=size)
    journey(result, sheet.add_axes((0.02, 0.02, 0.96, 0.96)))
    check_texts(sheet)
    sheet = Figure(figsize=size, layout="constrained")
    roofline(result, sheet.subplots())
    check_texts(sheet)
    sheet = Figure(figsize=size, layout="constrained")
    timeline(result, sheet.subplots(3, 1, sharex=True))
    check_texts(sheet)


def journey_texts(result: Result) -> list[str]:
    sheet = Figure(figsize=(6.4, 7.2))
    journey(result, sheet.add_axes((0, 0, 1, 1)))
    return [text.get_text() for text in drawn_texts(sheet)]


def test_journey_names_bytes_rates_hits_and_limiter() -> None:
    texts = journey_texts(sample_result(copied=True))
    joined = "\n".join(texts)
    assert {"188 MB", "28.2 MB", "2.15 GB", "3.22 GB"} <= set(texts)
    assert "0.864 of 4.80 TB/s" in texts
    assert "55.0 of 55.0 GB/s" in texts
    assert "limiter · 90 % hits" in joined
    assert "2.15 × compulsory" in joined
    assert "square root of bytes" in joined
    assert texts.count("33.6 MB") == 4  # PCIe both ways, C from registers and from the SMs


def test_journey_gives_the_shared_memory_that_a_cta_takes() -> None:
    occupancy = {**sample_kernel().occupancy, "smem_bytes_per_cta": 65536}
    joined = "\n".join(journey_texts(sample_result(kernels=(replace(sample_kernel(), occupancy=occupancy),))))
    assert "2 of 3 stages kept, 64 KiB a CTA" in joined


def test_cuda_cores_are_placed_and_named() -> None:
    fma = replace(sample_kernel(), config={**sample_kernel().config, "mma": "fma"})
    work = sample_result().workload | {"dtype": "fp32"}
    result = sample_result(kernels=(fma,), limiter="cuda_cores", workload=work)
    assert levels.limiter_place(result) == "tensor"
    assert not any("ensor" in text.get_text() for text in drawn_texts(figure(result)))


def test_axis_of_a_sampled_run_ends_with_what_was_replayed() -> None:
    kernel = sample_kernel(sampled=True)
    windows = replace(kernel.windows, values=kernel.windows.values[:40])
    axes = Figure().subplots(3, 1)
    timeline(sample_result(kernels=(replace(kernel, windows=windows),)), axes)
    assert axes[0].get_xlim() == (0, 80)
    assert axes[2].get_xlabel().endswith("first 80.0 of 218 µs replayed; the rest repeats it")


def test_journey_without_copies_says_so() -> None:
    assert "no copies" in journey_texts(sample_result())


def arrow_widths(result: Result) -> dict[tuple[float, ...], float]:
    from matplotlib.patches import Polygon

    sheet = Figure(figsize=(6.4, 7.2))
    ax = sheet.add_axes((0, 0, 1, 1))
    journey(result, ax)
    arrows = [patch.get_xy() for patch in ax.patches if type(patch) is Polygon]
    return {tuple(map(float, xy[0])): float(xy[1][0] - xy[0][0]) for xy in arrows}


def test_arrow_width_is_the_square_root_of_bytes() -> None:
    hbm_read, sm_read, smem_read = sorted(arrow_widths(sample_result()).values())[-3:]
    assert smem_read / hbm_read == pytest.approx(math.sqrt(3_221_225_472 / 188e6), rel=1e-6)
    assert smem_read / sm_read == pytest.approx(math.sqrt(1.5), rel=1e-6)


def test_roofline_marks_lie_at_flops_over_bytes_and_under_their_roofs() -> None:
    result = sample_result()
    ax = Figure().subplots()
    roofline(result, ax)
    marks = [line for line in ax.lines if line.get_marker() in ("o", "s", "D")]
    for line, key in zip(marks, ("hbm", "l2", "smem"), strict=True):
        level = levels.kernel_level(result, key)
        x, y = np.asarray(line.get_xydata(), dtype=float)[0]
        assert x == pytest.approx(result.flops / level.n_bytes)
        assert y == pytest.approx(result.flops / result.time_s / 1e12)
        assert y <= intensity(result, level) * (level.read.peak_bytes_per_s or 0.0) / 1e12
    assert levels.peak_flops_per_s(result) == pytest.approx(4096 * 132 * 1612e6)


def brute_coverage(start: list[float], end: list[float], edges: list[float]) -> list[float]:
    pairs = list(zip(start, end, strict=True))
    return [
        sum(max(0.0, min(b, right) - max(a, left)) for a, b in pairs) / (right - left)
        for left, right in pairwise(edges)
    ]


def test_coverage_equals_plain_loops() -> None:
    rng = np.random.default_rng(7)
    start = rng.uniform(0, 10, 40)
    end, edges = start + rng.uniform(0, 3, 40), np.linspace(-1, 14, 38)
    assert coverage(start, end, edges) == pytest.approx(brute_coverage(list(start), list(end), list(edges)), abs=1e-9)


def test_timeline_shows_waves_and_units() -> None:
    result = sample_result()
    starts = wave_starts_us(sample_spans())
    assert len(starts) == 4
    assert starts[0] == 0
    axes = Figure(figsize=(8, 5)).subplots(3, 1)
    timeline(result, axes)
    labels = {axes[0].texts[i].get_text() for i in range(4)}
    assert labels == {"wave 1", "wave 2", "wave 3", "wave 4"}
    assert "µs" in axes[2].get_xlabel()
    assert "MHz" in axes[2].get_ylabel()
    assert "%" in axes[1].get_ylabel()


def test_window_shares_average_to_the_bytes_of_the_run() -> None:
    result = sample_result()
    width_s = np.full(len(result.main.windows.values), result.main.windows.width_fs * 1e-15)
    width_s[-1] = result.time_s - width_s[:-1].sum()
    hbm_bytes = (window_shares(result, result.main)["hbm"] * width_s).sum() * 4.8e12
    assert hbm_bytes == pytest.approx(188e6 + 28e6, rel=1e-9)


def test_coarser_steps_keep_the_area_and_are_few() -> None:
    rng = np.random.default_rng(3)
    edges = np.concatenate(([0.0], np.cumsum(rng.uniform(0.5, 1.5, 733))))
    share = rng.uniform(0, 1.4, 733)
    wide, shares = _coarser(edges, {"hbm": share})
    assert len(wide) - 1 <= MAX_STEPS
    assert wide[-1] == edges[-1]
    assert (shares["hbm"] * np.diff(wide)).sum() == pytest.approx((share * np.diff(edges)).sum())


def test_slots_numbered_over_the_whole_gpu_get_their_own_lanes() -> None:
    spans = sample_spans().copy()
    spans["slot"] = spans["slot"] * N_SMS + spans["sm"]
    kernel = replace(sample_kernel(), spans=spans)
    axes = Figure().subplots(3, 1)
    timeline(sample_result(kernels=(kernel,)), axes)
    labels = [label.get_text() for label in axes[0].get_yticklabels()]
    assert len(labels) == 4
    assert labels[0] == "SM 0"
    assert labels[-1] == f"SM {N_SMS - 1}"


def test_lanes_hold_what_overlaps_on_one_slot() -> None:
    rows = [(3, 0, 0, 1, 0, 0, 900_000_000), (4, 0, 0, 0, 0, 100_000_000, 600_000_000)]
    kernel = replace(sample_kernel(traced=False), time_s=1e-6, spans=np.array(rows, dtype=SPAN_DTYPE))
    axes = Figure().subplots(3, 1)
    timeline(sample_result(kernels=(kernel,)), axes)
    tops = [path.vertices[:, 1].min() for area in axes[0].collections for path in area.get_paths()]
    assert min(tops) >= 0.36


def test_roofline_marks_are_not_under_the_key() -> None:
    for make in RESULTS.values():
        sheet = Figure(figsize=(4, 3), layout="constrained")
        ax = sheet.subplots()
        roofline(make(), ax)
        sheet.draw_without_rendering()
        key = ax.get_legend()
        assert key is not None
        box = key.get_window_extent()
        for line in ax.lines:
            if line.get_marker() in ("o", "s", "D"):
                assert not box.contains(*ax.transData.transform(np.asarray(line.get_xydata()))[0])


def test_mma_sync_kernels_show_their_lower_roof() -> None:
    config = {**sample_kernel().config, "mma": "mma_sync"}
    ax = Figure().subplots()
    roofline(sample_result(kernels=(replace(sample_kernel(), config=config),)), ax)
    heights = [np.asarray(line.get_ydata(), dtype=float) for line in ax.lines]
    level = [float(y[0]) for y in heights if len(y) == 2 and y[0] == y[1]]
    peak = 4096 * 132 * 1612e6 / 1e12
    assert level == pytest.approx([peak, 0.65 * peak])


def test_untraced_timeline_shows_active_ctas_and_steps_refuses() -> None:
    result = sample_result(traced=False)
    axes = Figure().subplots(3, 1)
    timeline(result, axes)
    assert axes[0].get_ylabel() == "active CTAs"
    with pytest.raises(ValueError, match="trace"):
        steps(result, Figure().subplots())


def test_steps_show_the_first_tile_only() -> None:
    spans = first_tile(sample_spans())
    assert set(spans["tile"]) == {0}
    assert set(spans["sm"]) == {0}
    sheet = Figure(figsize=(6, 4), layout="constrained")
    steps(sample_result(), sheet.subplots())
    check_texts(sheet)


def luminance(colour: str) -> float:
    parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


@pytest.mark.parametrize("colour", [palette.INK, palette.MUTED])
def test_text_contrast_on_white(colour: str) -> None:
    assert 1.05 / (luminance(colour) + 0.05) >= 4.5


def test_limiter_colour_means_nothing_else() -> None:
    assert palette.LIMITER not in (*palette.LEVELS.values(), *palette.KINDS.values())


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_figure_files(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"sheet.{suffix}"
    save_figure(sample_result(traced=False), path, (6, 4))
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix]
    assert path.read_bytes().startswith(start)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    if suffix == "svg":
        ElementTree.parse(path)


@pytest.mark.parametrize("name", ["sheet.bmp", "sheet", "missing/sheet.png"])
def test_figure_refusals_leave_nothing(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        save_figure(sample_result(traced=False), tmp_path / name)
    assert name in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_an_interrupt_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "sheet.png"
    path.write_text("old")
    with patch.object(Figure, "savefig", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        save_figure(sample_result(traced=False), path)
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def heavy_modules() -> Iterator[str]:
    code = "import sys, viz, viz.sheet, viz.trace, viz.terminal, viz.explain; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    yield from (name for name in loaded if name.split(".")[0] in ("matplotlib", "pandas", "scipy", "numba", "simpy"))


def test_importing_pictures_loads_nothing_heavy() -> None:
    assert not list(heavy_modules())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (words.bytes_text(2_147_483_648), "2.15 GB"),
        (words.bytes_text(999_600), "1.00 MB"),
        (words.rate_text(4.8e12), "4.80 TB/s"),
        (words.time_text(2.177e-4), "218 µs"),
        (words.time_text(0), "0 s"),
        (words.time_text(8.33e-13), "833 fs"),
        (words.flops_text(958_869), "959 kFLOP/s"),
        (words.flops_text(6.313e14), "631 TFLOP/s"),
        (words.percent_text(0.0057), "0.57 %"),
        (words.percent_text(0.0004), "<0.1 %"),
        (words.pair_text(0.9e9, 4.8e12), "900 MB/s of 4.80 TB/s"),
        (words.percent_text(0.635), "64 %"),
        (words.pair_text(0.864e12, 4.8e12), "0.864 of 4.80 TB/s"),
    ],
)
def test_words(text: str, expected: str) -> None:
    assert text == expected
