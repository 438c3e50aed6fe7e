"""extra_ops.csv, extra_more.csv: weight-only int4, 2:4 sparsity, log_softmax, fused AdamW, embedding, batched products.

Operands rotate, so that a large one is not in L2: int4 weights over 2 to 8, sparse weights over 3, logits and indices
over 6, optimizers over 2, batched operands over 4. Of `N_CALLS` calls the later ones find small operands in L2 again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sim.measure.table import Case, Outcome, Table

KEY = ("op", "m", "n", "k", "arg")
N_CALLS = 10
LAYERS = ((4096, 4096), (14336, 4096), (4096, 14336), (8192, 8192), (28672, 8192), (128256, 4096))
OTHER_LAYERS = ((6144, 4096), (4096, 11008), (5120, 5120))
GROUPS = (32, 128)
VOCABULARY, WIDTH = 128256, 4096
MOST_WEIGHTS = 3e9
INNER_K_TILES = 8


def cases(quick: bool) -> list[Case]:
    """n, k: weights [n, k]; a row of n logits; n parameters; n rows of k elements; per product of a batch [m, k] by
    [k, n]. arg: group of int4 weights, products in a batch."""
    found = _int4(LAYERS, (1, 4, 8, 16, 32, 64)) + _sparse(LAYERS[:5], (16, 64, 256, 1024, 4096, 8192))
    found += _log_softmax((1, 8, 64, 512), (32000, 128256))
    found += _adamw(4096 * 4096, 14336 * 4096, VOCABULARY * WIDTH) + _embedding(1, 64, 2048)
    found += _bmm((1, 32, 256), (1, 32, 128, 512))
    return found[::16] if quick else found


def other_cases(quick: bool) -> list[Case]:
    """The same operations at other shapes."""
    found = _int4(OTHER_LAYERS, (2, 24, 128)) + _sparse(OTHER_LAYERS, (32, 128, 512, 2048))
    found += _log_softmax((4, 32), (50257, 151936)) + _adamw(4096 * 11008) + _embedding(8, 512)
    found += _bmm((8, 64), (1, 64, 256))
    return found[::8] if quick else found


def measure(batch: Sequence[Case]) -> list[Outcome]:
    """Time each by its own burst of launches."""
    import torch

    from sim.measure.timing import time_calls

    timed = time_calls([_call(**case) for case in batch], N_CALLS)
    torch.cuda.empty_cache()
    return [[vars(each)] for each in timed]


def _int4(layers: Sequence[tuple[int, int]], tokens: Sequence[int]) -> list[Case]:
    return [_case("int4_weight_only", m, n, k, group) for n, k in layers for m in tokens for group in GROUPS]


def _sparse(layers: Sequence[tuple[int, int]], tokens: Sequence[int]) -> list[Case]:
    return [_case("sparse_2_4", m, n, k, 0) for n, k in layers for m in tokens]


def _log_softmax(rows: Sequence[int], vocabularies: Sequence[int]) -> list[Case]:
    ops = ("log_softmax", "log_softmax_fp32")
    return [_case(op, m, n, 0, 0) for m in rows for n in vocabularies for op in ops]


def _adamw(*parameters: int) -> list[Case]:
    return [_case("adamw_fused", 1, n, 0, 0) for n in parameters]


def _embedding(*tokens: int) -> list[Case]:
    return [_case("embedding", m, VOCABULARY, WIDTH, 0) for m in tokens]


def _bmm(batches: Sequence[int], rows: Sequence[int]) -> list[Case]:
    return [_case("bmm", m, 128, 128 if m > 1 else 2048, batch) for batch in batches for m in rows]


def _case(*values: Any) -> Case:
    return dict(zip(KEY, values, strict=True))


def _call(op: str, m: int, n: int, k: int, arg: int) -> Callable[[int], Any]:
    return {
        "int4_weight_only": lambda: _int4_call(m, n, k, arg),
        "sparse_2_4": lambda: _sparse_call(m, n, k),
        "log_softmax": lambda: _log_softmax_call(m, n, None),
        "log_softmax_fp32": lambda: _log_softmax_call(m, n, "float32"),
        "adamw_fused": lambda: _adamw_call(n),
        "embedding": lambda: _embedding_call(m, n, k),
        "bmm": lambda: _bmm_call(m, n, k, arg),
    }[op]()


def _int4_call(m: int, n: int, k: int, group: int) -> Callable[[int], Any]:
    import torch

    from sim.measure.timing import pool

    n_sets = max(2, min(8, int(MOST_WEIGHTS // (n * k))))

    def packed() -> Any:
        pairs = torch.randint(0, 255, (n, k // 2), device="cuda", dtype=torch.uint8)
        return torch._convert_weight_to_int4pack(pairs, INNER_K_TILES)

    weights = [packed() for _ in range(n_sets)]
    scales = torch.randn(k // group, n, 2, device="cuda", dtype=torch.bfloat16)
    inputs = [pool("bf16").take(m, k) for _ in range(n_sets)]
    return lambda i: torch._weight_int4pack_mm(inputs[i % n_sets], weights[i % n_sets], group, scales)


def _sparse_call(m: int, n: int, k: int) -> Callable[[int], Any]:
    import torch
    from torch.nn import functional
    from torch.sparse import to_sparse_semi_structured

    from sim.measure.timing import pool

    def weight() -> Any:
        fours = torch.randn(n, k, device="cuda", dtype=torch.bfloat16).view(n, k // 4, 4)
        fours[:, :, 2:] = 0
        return to_sparse_semi_structured(fours.view(n, k))

    weights = [weight() for _ in range(3)]
    inputs = [pool("bf16").take(m, k) for _ in range(3)]
    return lambda i: functional.linear(inputs[i % 3], weights[i % 3])


def _log_softmax_call(m: int, n: int, dtype: str | None) -> Callable[[int], Any]:
    import torch
    from torch.nn import functional

    from sim.measure.timing import pool

    inputs = [pool("bf16").take(m, n) for _ in range(6)]
    out = getattr(torch, dtype) if dtype else None
    return lambda i: functional.log_softmax(inputs[i % 6], -1, dtype=out)


def _adamw_call(n: int) -> Callable[[int], Any]:
    import torch

    def optimizer() -> Any:
        parameter = torch.nn.Parameter(torch.randn(n, device="cuda", dtype=torch.float32))
        parameter.grad = torch.randn_like(parameter)
        return torch.optim.AdamW([parameter], fused=True, capturable=True)

    optimizers = [optimizer() for _ in range(2)]
    for each in optimizers:  # makes the moments
        each.step()
    return lambda i: optimizers[i % 2].step()


def _embedding_call(m: int, n: int, k: int) -> Callable[[int], Any]:
    import torch
    from torch.nn import functional

    from sim.measure.timing import pool

    rows = pool("bf16").take(n, k)
    words = [torch.randint(0, n, (m,), device="cuda") for _ in range(6)]
    return lambda i: functional.embedding(words[i % 6], rows)


def _bmm_call(m: int, n: int, k: int, batch: int) -> Callable[[int], Any]:
    import torch

    from sim.measure.timing import pool

    left = [pool("bf16").take(batch, m, k) for _ in range(4)]
    right = [pool("bf16").take(batch, k, n) for _ in range(4)]
    return lambda i: torch.bmm(left[i % 4], right[i % 4])


TABLE = Table(
    "extra_ops",
    "weight-only int4 (arg: group), 2:4 sparse linear, log_softmax, fused AdamW on fp32, embedding, bmm (arg: batch)",
    (
        *KEY,
        *("time_us", "time_us_min", "time_us_max", "n_kernels", "kernel", "kernel_us", "other_kernels"),
        *("grid", "block", "regs", "smem", "sm_mhz_after"),
    ),
    (),
    cases,
    measure,
    batch=12,
    case_s=0.4,
)
OTHER_TABLE = replace(TABLE, name="extra_more", about="as extra_ops: other shapes", cases=other_cases)
