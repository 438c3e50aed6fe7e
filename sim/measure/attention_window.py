"""attention_window.csv: FlashAttention-2 with a sliding window, against the same without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sim.measure import attention
from sim.measure.table import Case, Outcome

HEADS = ((32, 8), (32, 32), (28, 4))
"""Heads, and heads of keys."""
HEAD_DIM = 128
DECODE = tuple((batch, 1, kv_len) for batch in (1, 8, 64) for kv_len in (4096, 8192, 16384))
PREFILL = tuple((1, tokens, tokens) for tokens in (2048, 4096, 8192, 16384))
WINDOWS = (0, 1024, 4096)
"""Tokens that a query sees, itself among them; 0: all before it."""


def cases(quick: bool) -> list[Case]:
    """Decode steps, not causal without a window; prefills, causal."""
    found = [
        attention.case("flash", batch, heads, kv_heads, HEAD_DIM, q_len, kv_len, q_len > 1) | {"window": window}
        for heads, kv_heads in HEADS
        for batch, q_len, kv_len in (*DECODE, *PREFILL)
        for window in WINDOWS
        if window < kv_len
    ]
    return found[::12] if quick else found


def measure(batch: Sequence[Case]) -> list[Outcome]:
    """Time each by its own burst of launches."""
    import torch

    from sim.measure.timing import time_calls

    timed = time_calls([_call(case) for case in batch], attention.N_CALLS)
    torch.cuda.empty_cache()
    return [[vars(each) | {"sm_mhz": each.sm_mhz_after}] for each in timed]


def _call(case: Case) -> Callable[[int], Any]:
    """[batch, tokens, heads, head_dim], as the library's own interface takes them."""
    import torch

    from sim.measure.timing import pool

    batch, q_len, kv_len, width = case["batch"], case["q_len"], case["kv_len"], case["head_dim"]
    source, kv_shape = pool("bf16"), (batch, kv_len, case["kv_heads"], width)
    n_sets = source.sets_of(2 * batch * kv_len * case["kv_heads"] * width, attention.N_CALLS)
    queries = [source.take(batch, q_len, case["heads"], width) for _ in range(n_sets)]
    caches = [(source.take(*kv_shape), source.take(*kv_shape)) for _ in range(n_sets)]
    window = {"window_size_left": case["window"] - 1, "window_size_right": 0} if case["window"] else {}

    def call(i: int) -> Any:
        k, v = caches[i % n_sets]
        return torch.ops.aten._flash_attention_forward(
            queries[i % n_sets], k, v, None, None, q_len, kv_len, 0.0, case["causal"], False, **window
        )

    return call


TABLE = replace(
    attention.TABLE,
    name="attention_window",
    about="flash attention called directly, with a sliding window of so many tokens and without (0)",
    columns=("window", *attention.TABLE.columns),
    cases=cases,
    measure=measure,
)
