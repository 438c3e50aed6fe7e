"""Rows at odd places: what TMA boxes read and write beyond the bytes asked for, in closed form and as counted."""

from __future__ import annotations

import csv

import pytest

from hwmodels import load_gpu, measured_path
from sim.schedule import boxes
from sim.schedule.names import parse_kernel_name
from tests.kernel_runs import persistent
from workloads import Gemm

GPU = load_gpu("h200_sxm")
EXTRA = GPU.persistent.off_pair_bytes


@pytest.mark.small
@pytest.mark.parametrize(
    ("pitch", "mean"),
    [
        (8192, 128),
        (8192 + 64, 128),
        (8192 + 32, 128 + EXTRA / 2),  # every other row starts at the second sector of a pair
        (8192 + 16, 128 + (32 + EXTRA + EXTRA + 32 + EXTRA) / 4),  # two of four in the middle of a sector
    ],
)
def test_a_row_brings_the_sectors_it_touches_and_more_off_a_pair(pitch: int, mean: float) -> None:
    assert boxes.loaded_row_bytes(128, pitch, GPU) == mean


@pytest.mark.small
@pytest.mark.parametrize(("pitch", "split"), [(8192, 0), (8192 + 64, 1 / 2), (8192 + 32, 3 / 4), (8192 + 16, 7 / 8)])
def test_rows_in_two_lines(pitch: int, split: float) -> None:
    assert boxes.split_rows(128, pitch, GPU) == split
    assert boxes.split_rows(32, pitch, GPU) == (1 / 8 if pitch % 32 else 0)


@pytest.mark.small
def test_whole_sectors_cost_what_they_hold() -> None:
    stored = boxes.stored_row(Gemm(2048, 8192, 64), persistent(128, 128, 64, 4), GPU, 2)
    assert (stored.sector_bytes, stored.cost_bytes) == (256, 256)


@pytest.mark.small
def test_tiles_that_end_inside_a_sector() -> None:
    """168 columns, 336 B: boxes of 128, 128 and 80 B. A tile that starts at a sector touches 11 and shares one; the
    next starts 16 B later, touches 5, 5 and 3, and shares two of each box and one of the last."""
    stored = boxes.stored_row(Gemm(2048, 8192, 64), persistent(128, 168, 64, 4, mma_m_along="m"), GPU, 2)
    assert (stored.sector_bytes, stored.cost_bytes) == (32 * (11 + 13) / 2, 32 * (11 + 1 + 13 + 5) / 2)


@pytest.mark.small
def test_consumers_that_halve_the_columns_start_boxes_of_their_own() -> None:
    """176 x 192, 192 rows for two consumers of 64-row instructions: each has 88 columns, 176 B."""
    stored = boxes.stored_row(Gemm(8192, 2096, 64), persistent(192, 176, 64, 4, mma_m_along="m"), GPU, 2)
    assert (stored.sector_bytes, stored.cost_bytes) == (32 * (4 + 2 + 5 + 2), 32 * (13 + 4))


def test_writes_are_those_counted() -> None:
    """Sectors written for each that C fills, of 14 nvjet kernels of k = 64 with n = 2048 or 8192 and up to 96 more."""
    with measured_path("h200_sxm_further", "counters_more").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["k"] == "64"]
    for row in rows:
        gemm = Gemm(int(row["m"]), int(row["n"]), 64)
        config = parse_kernel_name(row["kernel"], gemm, row["grid"])
        counted = int(row["l2_write_bytes_from_sm"]) / gemm.c_bytes
        assert boxes.stored_row(gemm, config, GPU, 2).sector_bytes / (2 * config.block_n) == pytest.approx(
            counted, rel=0.02
        )
    assert len(rows) == 14
