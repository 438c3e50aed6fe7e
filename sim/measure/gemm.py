"""gemm.csv: library GEMMs as PyTorch calls them, by shape, data type, layout, epilogue and L2 state."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from sim.measure import shapes
from sim.measure.table import Case, Outcome, Table

KEY = ("name", "op", "dtype", "m", "n", "k", "layout", "l2")
TIMED = (
    "time_us", "time_us_min", "time_us_max", "kernel", "kernel_us", "n_kernels", "other_kernels", "grid", "block",
    "regs", "smem", "sm_mhz_after",
)  # fmt: skip
OTHER_TYPES = {"fp8": 110, "fp16": 40, "int8": 40, "tf32": 50, "fp32": 25}
N_CALLS = 14
LONG_FLOP, N_LONG_CALLS = 3e12, 8
QUICK = 24


def cases(quick: bool) -> list[Case]:
    """bf16 over all shapes; samples of other types, layouts, epilogues, and warm L2 where it fits."""
    every = shapes.squares() + shapes.layers() + shapes.randoms()
    found = [case(shape) for shape in every]
    draw = random.Random(7)
    for dtype, count in OTHER_TYPES.items():
        possible = [shape for shape in draw.sample(every, len(every)) if _possible(dtype, shape)]
        found += [case(shape, dtype=dtype) for shape in possible[:count]]
    short = [shape for shape in every if shapes.flop(shape) < 5e12]
    for layout in ("nn", "nt", "tt"):
        found += [case(shape, layout=layout) for shape in draw.sample(short, 25)]
    for op in ("addmm", "addmm_gelu"):
        found += [case(shape, op=op) for shape in draw.sample(short, 25)]
    small = [shape for shape in every if _bytes(shape) < 30e6]
    found += [case(shape, l2="warm") for shape in draw.sample(small, min(60, len(small)))]
    return found if not quick else _spread(found, QUICK)


def measure(batch: Sequence[Case]) -> list[Outcome]:
    """Time each case by its own burst of launches."""
    from sim.measure.timing import time_calls

    calls = [call(case) for case in batch]
    counts = [N_LONG_CALLS if 2 * case["m"] * case["n"] * case["k"] > LONG_FLOP else N_CALLS for case in batch]
    return [[vars(timed)] for timed in time_calls(calls, counts)]


def case(shape: shapes.Shape, **other: str) -> Case:
    """A bf16 product, cold, layout tn; `other` replaces columns."""
    name, m, n, k = shape
    plain = {"name": name, "op": "mm", "dtype": "bf16", "m": m, "n": n, "k": k, "layout": "tn", "l2": "cold"}
    return plain | other


def _spread(found: list[Case], count: int) -> list[Case]:
    """`count` of them, evenly spaced, so that all kinds occur."""
    return [found[i * len(found) // count] for i in range(count)]


def _bytes(shape: shapes.Shape) -> int:
    _, m, n, k = shape
    return 2 * (m * k + n * k + m * n)


def _possible(dtype: str, shape: shapes.Shape) -> bool:
    _, m, n, k = shape
    if dtype in ("fp8", "int8") and (n % 16 or k % 16 or (dtype == "int8" and m <= 16)):
        return False
    return shapes.flop(shape) < (6e11 if dtype == "fp32" else 8e12)


def call(case: Case) -> Callable[[int], Any]:
    """The call with the i-th operands. TF32 is a switch of the process, so it is set at each call."""
    import torch

    from sim.measure.timing import pool

    m, n, k, layout, dtype = case["m"], case["n"], case["k"], case["layout"], case["dtype"]
    source = pool(dtype)
    sets = 1 if case["l2"] == "warm" else source.sets_of(m * k + n * k, N_CALLS)
    lefts = [source.take(m, k) if layout in ("tn", "nn") else source.take(k, m).t() for _ in range(sets)]
    rights = [source.take(n, k).t() if layout in ("tn", "tt") else source.take(k, n) for _ in range(sets)]
    product = _product(case["op"], dtype, torch.randn(n, device="cuda").to(lefts[0].dtype))

    def call(i: int) -> Any:
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        return product(lefts[i % sets], rights[i % sets])

    return call


def _product(op: str, dtype: str, bias: Any) -> Any:
    """The function of both operands."""
    import torch

    if op == "addmm":
        return partial(torch.addmm, bias)
    if op == "addmm_gelu":
        return lambda a, b: torch._addmm_activation(bias, a, b, use_gelu=True)
    if dtype == "int8":
        return torch._int_mm
    if dtype == "fp8":
        one = torch.ones((), device="cuda")
        return lambda a, b: torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)
    return torch.mm


TABLE = Table(
    "gemm",
    "library GEMMs as PyTorch calls them; layout tn: A [m, k], B stored [n, k]; nn: B stored [k, n]; nt, tt: A stored "
    "[k, m]; n_kernels counts launches, kernel_us is the longest",
    (*KEY, *TIMED),
    (),
    cases,
    measure,
    batch=24,
    case_s=0.35,
)
