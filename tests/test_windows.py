"""Windows of activity: equal widths, nothing lost, nothing over 100 % busy."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwmodels import load_gpu
from hwmodels.spec import Gpu
from sim.call import Options, run_call
from sim.machine import build_machine
from sim.records import Machine, Work
from sim.result import WINDOW_FIELDS, KernelResult
from sim.schedule.choose import complete
from sim.schedule.plan import build_plan
from sim.windows import even_windows
from workloads import Gemm

SUMS = WINDOW_FIELDS[:5]
N_SM = 132


@lru_cache
def machine_and_work(**changes: Any) -> tuple[Machine, Work]:
    gpu: Gpu = load_gpu("h200_sxm")
    gemm = Gemm(4096, 4096, 4096)
    work = build_plan(gemm, complete(gemm, gpu, "persistent"), gpu).work._replace(hbm_x256=256)
    machine = build_machine(gpu, None, ())._replace(hbm_read_fs_per_kib=1024, hbm_write_fs_per_kib=2048, n_sm=N_SM)
    return machine._replace(l2_fs_per_kib=1024, n_sides=2), work._replace(c_weight_x256=256, c_cost_x256=256)


def rows_of(ends: list[int], columns: dict[str, list[float]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Engine rows that end at `ends`, with these columns and nothing else."""
    rows = np.zeros((len(ends), len(WINDOW_FIELDS) + 2))
    rows[:, -1] = ends
    rows[1:, -2] = ends[:-1]
    for name, values in columns.items():
        rows[:, WINDOW_FIELDS.index(name)] = values
    return rows


def column(values: Any, name: str) -> list[float]:
    return [float(value) for value in values[:, WINDOW_FIELDS.index(name)]]


def test_uneven_rows_become_equal_windows() -> None:
    """Three rows of 10, 30 and 20 fs: the middle one is spread over the windows it covers."""
    rows = rows_of([10, 40, 60], {"hbm_read_bytes": [1, 3, 2], "active_ctas": [10, 20, 40], "clock_mhz": [9, 9, 9]})
    found = even_windows(rows, *machine_and_work())
    assert found.width_fs == 20
    assert column(found.values, "hbm_read_bytes") == pytest.approx([2, 2, 2])
    assert column(found.values, "active_ctas") == pytest.approx([15, 20, 40])
    assert column(found.values, "clock_mhz") == pytest.approx([9, 9, 9])


def test_a_backlog_moves_on_to_the_next_windows() -> None:
    """1 B takes 1 fs to read: of 25 B asked for at once, 10 fit a window of 10 fs."""
    found = even_windows(rows_of([10, 20, 30], {"hbm_read_bytes": [25, 0, 0]}), *machine_and_work())
    assert column(found.values, "hbm_read_bytes") == pytest.approx([10, 10, 5])


def test_reads_and_writes_share_a_server_in_order() -> None:
    """A byte written takes 2 fs. 10 B read and 5 written fill two windows of 10 fs, in proportion."""
    found = even_windows(rows_of([10, 20], {"hbm_read_bytes": [10, 0], "hbm_write_bytes": [5, 0]}), *machine_and_work())
    assert column(found.values, "hbm_read_bytes") == pytest.approx([5, 5])
    assert column(found.values, "hbm_write_bytes") == pytest.approx([2.5, 2.5])


def test_what_is_left_at_the_end_finds_room_before() -> None:
    found = even_windows(rows_of([10, 20, 30], {"hbm_read_bytes": [0, 0, 15]}), *machine_and_work())
    assert column(found.values, "hbm_read_bytes") == pytest.approx([0, 5, 10])


def test_tensor_time_is_that_of_all_sms() -> None:
    found = even_windows(rows_of([10, 20], {"tensor_busy_fs": [15 * N_SM, 0]}), *machine_and_work())
    assert column(found.values, "tensor_busy_fs") == pytest.approx([10 * N_SM, 5 * N_SM])


@given(
    spans=st.lists(st.integers(1, 1000), min_size=1, max_size=40),
    data=st.data(),
)
def test_sums_are_kept_and_no_server_is_over_busy(spans: list[int], data: st.DataObject) -> None:
    machine, work = machine_and_work()
    ends = list(np.cumsum(spans))
    amounts = st.lists(st.floats(0, 2000), min_size=len(ends), max_size=len(ends))
    rows = rows_of([int(end) for end in ends], {name: data.draw(amounts) for name in SUMS})
    found = even_windows(rows, machine, work)
    values = found.values
    assert values.min() >= -1e-6
    for name in SUMS:
        assert sum(column(values, name)) == pytest.approx(sum(column(rows, name)), abs=1e-6)
    read, write = np.array(column(values, "hbm_read_bytes")), np.array(column(values, "hbm_write_bytes"))
    busy = (read + 2 * write) / found.width_fs
    if (rows[:, 0] + 2 * rows[:, 1]).sum() <= ends[-1]:
        assert busy.max() <= 1 + 1e-9
    assert found.width_fs * len(values) >= ends[-1]


# Of real runs.
@lru_cache
def kernel(family: str, m: int, n: int, k: int) -> KernelResult:
    gemm, gpu = Gemm(m, n, k), load_gpu("h200_sxm")
    return run_call(gemm, complete(gemm, gpu, family), gpu, Options()).kernels[-1]


CASES = [("persistent", 1024, 1024, 1024), ("multistage", 512, 512, 512), ("persistent", 2048, 8192, 64)]


@pytest.mark.parametrize("case", CASES)
def test_windows_of_a_run_hold_its_bytes(case: tuple[str, int, int, int]) -> None:
    found = kernel(*case)
    for level in ("hbm", "l2"):
        for way in ("read", "write"):
            total = sum(column(found.windows.values, f"{level}_{way}_bytes"))
            assert total == pytest.approx(found.bytes[level][way], abs=1)


@pytest.mark.parametrize("case", CASES)
def test_shares_of_a_run_stay_within_100_percent(case: tuple[str, int, int, int]) -> None:
    gpu, found = load_gpu("h200_sxm"), kernel(*case)
    width_s = found.windows.width_fs * 1e-15
    values = found.windows.values
    assert (values[:, 0] + values[:, 1]).max() / width_s <= gpu.hbm.bandwidth_gb_per_s * 1e9
    l2_rate = gpu.l2.bytes_per_clk * gpu.clock.boost_mhz * 1e6
    assert (values[:, 2] + values[:, 3]).max() / width_s <= l2_rate * 1.001
    assert values[:, 4].max() / found.windows.width_fs <= gpu.sm.count * 1.001
    assert all(0 <= share <= 1 for share in found.utilisation.values())


@pytest.mark.parametrize("case", CASES)
def test_waits_of_a_run_make_up_its_time(case: tuple[str, int, int, int]) -> None:
    found = kernel(*case)
    assert sum(found.waits.values()) == pytest.approx(1)
    assert min(found.waits.values()) >= 0
    floor_s = load_gpu("h200_sxm").kernel.floor_us * 1e-6
    assert found.waits["start"] >= min(1.0, found.waves) * floor_s / found.time_s


@pytest.mark.parametrize("case", CASES)
def test_running_ctas_always_wait_for_something(case: tuple[str, int, int, int]) -> None:
    """CTA time by the windows is that of all waits but start and idle, to what integer steps leave."""
    gpu, found = load_gpu("h200_sxm"), kernel(*case)
    running = sum(column(found.windows.values, "active_ctas")) * found.windows.width_fs * 1e-15
    slots = found.config["n_ctas"] / min(1.0, found.waves)
    if found.config["family"] == "multistage":
        slots = gpu.sm.count * found.occupancy["ctas_per_sm"]
    waited = sum(share for name, share in found.waits.items() if name not in ("start", "idle"))
    assert waited * slots * found.time_s == pytest.approx(running, rel=0.01)


@pytest.mark.parametrize("case", CASES)
def test_shared_memory_gives_operands_and_stages_results(case: tuple[str, int, int, int]) -> None:
    """Fills are what arrives at the SMs, so they are not bytes away from the tensor cores."""
    found = kernel(*case)
    assert found.bytes["smem"]["write"] == found.bytes["sm"]["write"] == 2 * case[1] * case[2]
    assert found.bytes["smem"]["read"] >= found.bytes["sm"]["read"]
