"""attention_more.csv, attention_backward.csv: other heads and lengths, chunks of a prefill, and the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sim.measure import attention
from sim.measure.table import Case, Outcome

BACKENDS = ("flash", "cudnn")
CUDNN_MOST_HEAD_DIM = 128
PREFILL = (  # batch, heads, kv_heads, head_dim
    (1, 32, 32, 64), (1, 32, 32, 96), (2, 32, 8, 128), (1, 28, 4, 128), (1, 64, 8, 128), (8, 16, 16, 128),
    (1, 71, 1, 64), (2, 16, 16, 256),
)  # fmt: skip
TOKENS = (192, 384, 768, 1536, 3072, 6144)
DECODE = (  # heads, kv_heads, head_dim
    (32, 32, 64), (32, 32, 128), (32, 8, 96), (28, 4, 128), (64, 8, 128), (16, 16, 256), (71, 1, 64)
)  # fmt: skip
BATCHES = (1, 2, 8, 32, 128)
CACHED = (256, 768, 3000, 6144, 16384)
MOST_CACHE_BYTES = 6e9
CHUNK, CHUNK_CACHED = 512, 4096
CHUNKED = ((1, 32, 32, 128), (1, 32, 8, 128), (2, 28, 4, 128), (1, 64, 8, 128), (8, 16, 16, 64))
BACKWARD = ((1, 32, 32, 128), (1, 32, 8, 128), (2, 16, 16, 64))
BACKWARD_TOKENS = {True: (512, 1024, 2048, 4096, 8192), False: (512, 2048, 8192)}
"""By whether causal."""


def cases(quick: bool) -> list[Case]:
    """Prefill, decode, and chunks of queries after cached tokens (not causal: flash takes no causal mask for fewer
    queries than keys). The two backends take turns, so that what one lacks is not taken for a broken table."""
    found = [
        attention.case(backend, *shape)
        for shape in (*_prefill(), *_decode(), *_chunked())
        for backend in BACKENDS
        if backend != "cudnn" or shape[3] <= CUDNN_MOST_HEAD_DIM
    ]
    return found[::20] if quick else found


def _prefill() -> list[tuple[Any, ...]]:
    """Causal at every other length, of every other shape at the others."""
    return [
        (*shape, tokens, tokens, (i + j) % 2 == 0) for i, shape in enumerate(PREFILL) for j, tokens in enumerate(TOKENS)
    ]


def _decode() -> list[tuple[Any, ...]]:
    """Of each shape every batch at one length, and every length once."""
    n = len(CACHED)
    placed = [
        (batch, *shape, 1, CACHED[(i + 2 * j) % n], False)
        for i, shape in enumerate(DECODE)
        for j, batch in enumerate(BATCHES)
    ]
    return [case for case in placed if _cache_bytes(case) <= MOST_CACHE_BYTES]


def _cache_bytes(case: tuple[Any, ...]) -> int:
    batch, _, kv_heads, head_dim, _, cached, _ = case
    return int(4 * batch * kv_heads * head_dim * cached)


def _chunked() -> list[tuple[Any, ...]]:
    return [(*shape, CHUNK, CHUNK_CACHED, False) for shape in CHUNKED]


def backward_cases(quick: bool) -> list[Case]:
    """Causal and not, with and without shared heads."""
    found = [
        attention.case("flash", *shape, tokens, tokens, causal)
        for shape in BACKWARD
        for causal, lengths in BACKWARD_TOKENS.items()
        for tokens in lengths
        if causal or shape[1] == shape[2]
    ]
    return found[::8] if quick else found


def measure_backward(batch: Sequence[Case]) -> list[Outcome]:
    """Time each backward pass by its own burst; the forward passes run before."""
    import torch

    from sim.measure.timing import time_calls

    timed = time_calls([_backward_call(case) for case in batch], attention.N_CALLS)
    torch.cuda.empty_cache()
    return [[vars(each) | {"sm_mhz": each.sm_mhz_after}] for each in timed]


def _backward_call(case: Case) -> Callable[[int], Any]:
    """Gradients of Q, K and V; all lie [batch, tokens, heads, head_dim], as the linear layers of a model leave them."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    from sim.measure.timing import pool

    batch, heads, kv_heads = case["batch"], case["heads"], case["kv_heads"]
    tokens, width, source = case["q_len"], case["head_dim"], pool("bf16")
    n_sets = source.sets_of(2 * batch * (heads + kv_heads) * tokens * width, attention.N_CALLS)

    def taken(n_heads: int) -> Any:
        return source.take(batch, tokens, n_heads, width).transpose(1, 2)

    def attended() -> tuple[Any, list[Any], Any]:
        inputs = [taken(n).detach().requires_grad_() for n in (heads, kv_heads, kv_heads)]
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            out = scaled_dot_product_attention(*inputs, is_causal=case["causal"], enable_gqa=heads != kv_heads)
        return out, inputs, taken(heads)

    sets = [attended() for _ in range(n_sets)]

    def call(i: int) -> Any:
        out, inputs, gradient = sets[i % n_sets]
        return torch.autograd.grad(out, inputs, gradient, retain_graph=True)

    return call


TABLE = replace(
    attention.TABLE,
    name="attention_more",
    about="as attention: other heads and lengths, chunks of a prefill (q_len 512, kv_len 4096)",
    cases=cases,
)
BACKWARD_TABLE = replace(
    attention.TABLE,
    name="attention_backward",
    about="kernels of FlashAttention-2's backward pass alone; columns as attention",
    cases=backward_cases,
    measure=measure_backward,
    batch=8,
    case_s=0.6,
)
