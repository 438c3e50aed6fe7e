"""attention.csv: PyTorch's scaled_dot_product_attention; one query token is a decode step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sim.measure.table import Case, Outcome, Table

KEY = ("backend", "batch", "heads", "kv_heads", "head_dim", "q_len", "kv_len", "causal")
PREFILL = ((1, 32, 32, 128), (1, 32, 8, 128), (1, 64, 8, 128), (4, 16, 16, 64))
DECODE = ((32, 32, 128), (32, 8, 128), (64, 8, 128))
MOST_SCORES, MOST_CACHE_BYTES = 3e10, 10e9
N_CALLS = 10


def cases(quick: bool) -> list[Case]:
    """FlashAttention and cuDNN for prefill and decode, the unfused kernels for a few."""
    found = [each for backend in ("flash", "cudnn") for each in (*_prefill(backend), *_decode(backend))]
    found += [case("math", 1, 32, 32, 128, tokens, tokens, False) for tokens in (256, 512, 1024, 2048)]
    return found if not quick else found[:: len(found) // 8]


def measure(batch: Sequence[Case]) -> list[Outcome]:
    """Time each by its own burst of launches."""
    from sim.measure.timing import time_calls

    timed = time_calls([_call(case) for case in batch], N_CALLS)
    return [[vars(each) | {"sm_mhz": each.sm_mhz_after}] for each in timed]


def _prefill(backend: str) -> list[Case]:
    return [
        case(backend, batch, heads, kv_heads, head_dim, tokens, tokens, causal)
        for batch, heads, kv_heads, head_dim in PREFILL
        for tokens in (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
        for causal in (True, False)
        if batch * heads * tokens**2 <= MOST_SCORES and (causal or heads == kv_heads)
    ]


def _decode(backend: str) -> list[Case]:
    return [
        case(backend, batch, heads, kv_heads, head_dim, 1, tokens, False)
        for heads, kv_heads, head_dim in DECODE
        for batch in (1, 4, 16, 64, 256)
        for tokens in (128, 512, 1024, 2048, 4096, 8192, 32768)
        if batch * tokens * kv_heads * head_dim * 4 <= MOST_CACHE_BYTES
    ]


def case(*values: Any) -> Case:
    """Values of the columns `KEY`."""
    return dict(zip(KEY, values, strict=True))


def _call(case: Case) -> Callable[[int], Any]:
    from torch.nn import attention
    from torch.nn.functional import scaled_dot_product_attention

    from sim.measure.timing import pool

    batch, heads, kv_heads, width = case["batch"], case["heads"], case["kv_heads"], case["head_dim"]
    source, kv_shape = pool("bf16"), (batch, kv_heads, case["kv_len"], width)
    n_sets = source.sets_of(2 * batch * kv_heads * case["kv_len"] * width, N_CALLS)
    queries = [source.take(batch, heads, case["q_len"], width) for _ in range(n_sets)]
    caches = [(source.take(*kv_shape), source.take(*kv_shape)) for _ in range(n_sets)]
    backend = {
        "flash": attention.SDPBackend.FLASH_ATTENTION,
        "cudnn": attention.SDPBackend.CUDNN_ATTENTION,
        "math": attention.SDPBackend.MATH,
    }[case["backend"]]

    def call(i: int) -> Any:
        q, (k, v) = queries[i % n_sets], caches[i % n_sets]
        with attention.sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=case["causal"], enable_gqa=heads != kv_heads)

    return call


TABLE = Table(
    "attention",
    "scaled_dot_product_attention: flash (FlashAttention-2), cudnn, math (unfused); q_len 1 is a decode step",
    (
        *KEY,
        *("time_us", "time_us_min", "time_us_max", "n_kernels", "kernel", "kernel_us", "other_kernels"),
        *("grid", "block", "regs", "smem", "sm_mhz"),
    ),
    (),
    cases,
    measure,
    batch=16,
    case_s=0.4,
)
