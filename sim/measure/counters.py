"""counters.csv: hardware counters of library and Triton GEMMs through Nsight Compute."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from sim.measure import gemm, nsight, tiles
from sim.measure.table import Case, Outcome, Table

KEY = ("library", "m", "n", "k", "dtype", *tiles.TILE)
METRICS = {  # column: counter, factor
    "time_us": ("gpu__time_duration.sum", 1e-3),
    "sm_mhz": ("sm__cycles_elapsed.avg.per_second", 1e-6),
    "sm_cycles": ("sm__cycles_elapsed.max", 1),
    "dram_read_bytes": ("dram__bytes_read.sum", 1),
    "dram_write_bytes": ("dram__bytes_write.sum", 1),
    "l2_read_bytes_from_sm": ("lts__t_sectors_srcunit_tex_op_read.sum", 32),
    "l2_write_bytes_from_sm": ("lts__t_sectors_srcunit_tex_op_write.sum", 32),
    "l2_all_bytes": ("lts__t_sectors.sum", 32),
    "l2_hit_pct": ("lts__t_sector_hit_rate.pct", 1),
    "sm_received_bytes": ("l1tex__m_xbar2l1tex_read_bytes.sum", 1),
    "tensor_active_pct": ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed", 1),
    "l2_busy_pct": ("lts__throughput.avg.pct_of_peak_sustained_elapsed", 1),
    "l1_busy_pct": ("l1tex__throughput.avg.pct_of_peak_sustained_elapsed", 1),
    "warps_active": ("sm__warps_active.avg.per_cycle_active", 1),
    "instructions": ("smsp__inst_executed.sum", 1),
    "issue_active_pct": ("smsp__issue_active.avg.pct_of_peak_sustained_active", 1),
    "sm_cycles_active": ("sm__cycles_active.avg", 1),
    "smem_wavefronts_lsu": ("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum", 1),
    "regs": ("launch__registers_per_thread", 1),
}
COLUMNS = (
    *KEY, "kernel", "grid", "block", "time_us", "sm_mhz", "sm_cycles", "dram_read_bytes", "dram_write_bytes",
    "l2_read_bytes_from_sm", "l2_write_bytes_from_sm", "l2_all_bytes", "l2_hit_pct", "sm_received_bytes",
    "smem_wavefronts", "smem_wavefronts_ideal", "tensor_active_pct", "l2_busy_pct", "l1_busy_pct", "warps_active",
    "instructions", "issue_active_pct", "reduce_us", "sm_cycles_active", "smem_wavefronts_lsu", "regs",
)  # fmt: skip
WHOLE = 1e4
"""Larger values are written as integers."""
N_LIBRARY, N_TRITON = {"bf16": 240, "fp8": 60}, 240


def cases(quick: bool) -> list[Case]:
    """Samples of gemm.csv's shapes and of tile_sweep.csv's tiles."""
    draw, found = random.Random(11), list[Case]()
    for dtype, count in N_LIBRARY.items():
        possible = [c for c in gemm.cases(False) if _plain(c, dtype) and 2 * c["m"] * c["n"] * c["k"] < 5e12]
        shapes = dict.fromkeys((c["m"], c["n"], c["k"]) for c in possible)
        found += [case("cublas", *shape, dtype) for shape in draw.sample(list(shapes), min(count, len(shapes)))]
    sweep = draw.sample(tiles.cases(False), N_TRITON)
    found += [case("triton", c["m"], c["n"], c["k"], "bf16", {name: c[name] for name in tiles.TILE}) for c in sweep]
    return found if not quick else [case("cublas", 4096, 4096, 4096, "bf16"), *found[:: len(found) // 11]]


def measure(batch: Sequence[Case], metrics: Mapping[str, tuple[str, float]] = METRICS) -> list[Outcome]:
    """One launch of each under ncu; `metrics` as `METRICS`."""
    jobs = [{name: value for name, value in case.items() if value != ""} for case in batch]
    found = nsight.counters(jobs, [counter for counter, _ in metrics.values()])
    return [[_row(kernels, metrics)] for kernels in found]


def _plain(case: Case, dtype: str) -> bool:
    wanted = {"op": "mm", "layout": "tn", "l2": "cold", "dtype": dtype}
    return all(case[column] == value for column, value in wanted.items())


def case(library: str, m: int, n: int, k: int, dtype: str, tile: dict[str, int] | None = None) -> Case:
    """One kernel of a library, or Triton's with `tile`."""
    shape: Case = {"library": library, "m": m, "n": n, "k": k, "dtype": dtype}
    return shape | {name: tile[name] if tile else "" for name in tiles.TILE}


def _row(kernels: list[dict[str, str]], metrics: Mapping[str, tuple[str, float]]) -> dict[str, Any]:
    """Of the longest kernel; what others of the call took goes to `reduce_us`."""
    times = [_number(kernel["gpu__time_duration.sum"]) / 1e3 for kernel in kernels]
    main = kernels[times.index(max(times))]
    row = {column: _value(main[counter], factor) for column, (counter, factor) in metrics.items()}
    row |= {"grid": _launch(main["Grid Size"]), "block": _launch(main["Block Size"])}
    row["kernel"] = main["Kernel Name"][:90].replace(",", ";")
    return row | {"reduce_us": round(sum(times) - max(times), 3) if len(kernels) > 1 else ""}


def _launch(text: str) -> str:
    return text.replace(" ", "")


def _number(text: str) -> float:
    """A figure as ncu writes it, with commas between thousands."""
    return float(text.replace(",", ""))


def _value(text: str, factor: float) -> float | int | str:
    try:
        value = _number(text) * factor
    except ValueError:  # this GPU lacks the counter
        return ""
    return round(value) if value >= WHOLE or value == int(value) else round(value, 3)


TABLE = Table(
    "counters",
    "Nsight Compute on one launch each: time, cycles, clock, bytes at each level, tensor activity; sm_received_bytes "
    "is what reached the SMs, l2_read_bytes_from_sm what L2 was read for",
    COLUMNS,
    ("ncu", "triton"),
    cases,
    measure,
    batch=40,
    case_s=0.9,
)
