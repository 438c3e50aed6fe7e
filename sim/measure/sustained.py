"""sustained_load.csv: clock and board power over time, for the same GEMM again and again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from sim.measure.table import Case, Outcome, Row, Table

DURATION_S, REST_S, WINDOW_S = 2.5, 1.0, 0.04
FLOP_PER_S = 6e14
"""Only to choose how many calls make a window."""
CASES = (
    ("random", 8192, 8192, 8192), ("zeros", 8192, 8192, 8192), ("random", 4096, 4096, 4096),
    ("random", 16384, 16384, 16384), ("randint", 8192, 8192, 8192), ("random", 16, 28672, 8192),
    ("random", 2048, 2048, 2048),
)  # fmt: skip


def cases(quick: bool) -> list[Case]:
    """Random numbers, zeros, and {-1, 0, 1}."""
    found = [dict(zip(("case", "m", "n", "k"), each, strict=True)) for each in CASES]
    return found if not quick else found[1:3]


def measure(batch: Sequence[Case]) -> list[Outcome]:
    """Each case for `DURATION_S` after a rest."""
    return [_windows(case) for case in batch]


def _windows(case: Case) -> list[Row]:
    import torch

    m, n, k = case["m"], case["n"], case["k"]
    a, b = _operand(case["case"], m, k), _operand(case["case"], n, k)
    c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    torch.mm(a, b.t(), out=c)
    torch.cuda.synchronize()
    time.sleep(REST_S)
    n_calls = max(1, int(WINDOW_S / (2 * m * n * k / FLOP_PER_S + 5e-6)))
    rows, started = [], time.perf_counter()
    while time.perf_counter() - started < DURATION_S:
        began = time.perf_counter()
        us = _burst_us(a, b, c, n_calls)
        rows.append(
            {
                "seconds": round(time.perf_counter() - began, 4),
                "t_mid": round((time.perf_counter() + began) / 2 - started, 3),
                "us_per_call": round(us, 2),
                "tflops": round(2 * m * n * k / us / 1e6, 1),
                "sm_mhz": float(torch.cuda.clock_rate()),
                "watt": torch.cuda.power_draw() / 1e3,
            }
        )
    return rows


def _burst_us(a: Any, b: Any, c: Any, n_calls: int) -> float:
    """Time of a call, by events around `n_calls`."""
    import torch

    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    for _ in range(n_calls):
        torch.mm(a, b.t(), out=c)
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last)) * 1e3 / n_calls


def _operand(kind: str, rows: int, columns: int) -> Any:
    import torch

    if kind == "zeros":
        return torch.zeros(rows, columns, device="cuda", dtype=torch.bfloat16)
    if kind == "randint":
        return torch.randint(-1, 2, (rows, columns), device="cuda").to(torch.bfloat16)
    return torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)


TABLE = Table(
    "sustained_load",
    "the same GEMM repeated for 2.5 s: time a call, rate, clock and board power (which lag) in windows",
    ("case", "m", "n", "k", "seconds", "t_mid", "us_per_call", "tflops", "sm_mhz", "watt"),
    ("nvml",),
    cases,
    measure,
    batch=1,
    case_s=4.0,
)
