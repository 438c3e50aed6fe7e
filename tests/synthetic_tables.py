"""Tables of kernels as a GPU would have measured them: shipped rows with predictions in their measured columns."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hwmodels import load_gpu
from hwmodels.measured import measured_path
from hwmodels.spec import Gpu
from sim.calibration.constants import CONSTANTS
from sim.calibration.predictions import Simulate, simulate_case
from sim.calibration.tables import Item, read
from sim.validation.replay import Case, Predicted, predicted

COLUMNS = {
    "gemm": {"time_us": "time_us"},
    "counters": {
        "l2_read_bytes_from_sm": "l2_read_bytes",
        **{
            name: name
            for name in (
                *("time_us", "sm_cycles", "sm_mhz", "dram_read_bytes", "dram_write_bytes", "sm_received_bytes"),
                *("l2_hit_pct", "tensor_active_pct"),
            )
        },
    },
}
"""Measured column -> what is predicted of it."""


SLOW = 20
"""Times as long as its cycles say a kernel of the closed form takes, so that its clock counts (20 us and more)."""


def closed_form(case: Case, gpu: Gpu, mhz: float | None) -> Any:
    """A stand-in for the simulator: start, then for each tile an epilogue and k-iterations, at a clock that falls with
    tensor activity. Smooth, and quick."""
    config, gemm, p = case.config, case.gemm, gpu.persistent
    assert config is not None
    tiles = -(-gemm.m // config.block_m) * -(-gemm.n // config.block_n)
    rounds = -(-tiles // gpu.sm.count)
    mma = config.block_m * config.block_n * config.block_k / 8192
    iterations = rounds * -(-gemm.k // (8 * config.block_k))  # few, so that what is fixed shows
    cycles = p.start_cycles + rounds * p.epilogue_cycles + iterations * (p.iteration_cycles + mma)
    busy = iterations * mma / cycles
    clock = mhz or gpu.activity.active_mhz - gpu.activity.tensor_mhz * busy
    level = {"read": gemm.compulsory_bytes, "write": gemm.c_bytes}
    main = SimpleNamespace(
        time_s=SLOW * cycles / clock / 1e6,
        sm_cycles=cycles,
        sm_mhz=clock,
        bytes={"hbm": level, "l2": level, "sm": level},
        lookups={"accesses": 0},
        utilisation={"tensor": busy},
    )
    return SimpleNamespace(main=main, time_s=main.time_s, kernels=(), limiter="tensor")


def gpu_file(path: Path, to_fit: Sequence[str], **overrides: float) -> Path:
    """A GPU like the H200 of which only `to_fit` may be fitted; `overrides` (dots as two underscores) are put in."""
    gpu = load_gpu("h200_sxm", [f"{key.replace('__', '.')}={value}" for key, value in overrides.items()])
    sections: dict[str, list[str]] = {}
    for constant in CONSTANTS:
        section, _, name = constant.key.partition(".")
        kind = "assumed" if constant.key in to_fit else "microbenchmark"
        value = getattr(getattr(gpu, section), name)
        sections.setdefault(section, []).append(f'{name} = {{ value = {value}, kind = "{kind}", source = "a test" }}')
    body = "".join(f"\n[{section}]\n" + "\n".join(lines) + "\n" for section, lines in sections.items())
    path.write_text(f'label = "a test GPU"\ninherits = "h200_sxm"\n{body}')
    return path


def write_tables(
    folder: Path,
    gpu: Gpu,
    simulate: Simulate = simulate_case,
    *,
    n: int = 40,
    takes: Callable[[Item], bool] = lambda item: item.family == "persistent",
) -> Path:
    """gemm.csv and counters.csv in `folder`, about `n` shipped rows of each, as `gpu` would have measured them."""
    folder.mkdir(exist_ok=True)
    for table, columns in COLUMNS.items():
        path = measured_path("h200_sxm", table)
        chosen = [item for item in read([path], gpu).items if takes(item)]
        chosen = chosen[:: max(1, len(chosen) // n)][:n]
        with path.open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        with (folder / path.name).open("w", newline="") as stream:
            writer = csv.DictWriter(stream, rows[0].keys())
            writer.writeheader()
            for item in chosen:
                found = predicted(item.case, simulate(item.case, gpu, None), gpu)
                writer.writerow(rows[item.row.line - 2] | _cells(found, columns))
    return folder


def _cells(found: Predicted, columns: dict[str, str]) -> dict[str, float]:
    return {column: getattr(found, quantity) for column, quantity in columns.items()}
