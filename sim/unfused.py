"""Attention without a fused kernel: scores go through memory between its two products.

"unfused" is what a library did before fused kernels: the products in the operands' type, one softmax between them that
scales and masks. "math" is PyTorch's path of that name: all of it in fp32 on the CUDA cores, with a pass over memory
for every step (kernels of attention.csv, 14 a call). Which GEMM kernel runs is the best by a closed-form bound. Where
query heads share keys and values, both copy them for every query head first (`repeat_interleave` in PyTorch's
sdp math path, `repeat_kv` in Transformers' eager one), and the products read the copies; no table holds such a call.

Backward starts from the probabilities that forward kept: dV = P^T dO and dP = dO V^T, the softmax's own from P and dP
(with the scale and, since P is zero there, the mask), dQ = dS K and dK = dS^T Q; then, where query heads share keys,
the sums of their dK and dV. "math" converts and scales in passes of their own, as its forward does. No table holds it.
A window is part of the mask: all scores are formed, whoever sees them. Not modelled: pages, caches of another type,
dropout.
"""

from __future__ import annotations

from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.call import Options, run_call, small_kernel, with_energy
from sim.result import KernelResult
from sim.schedule.choose import candidates
from workloads.attention import Attention
from workloads.dtypes import BYTES
from workloads.gemm import MAX_BATCH, Gemm

FP32_BYTES = 4
TRUTH_BYTES = 1
Pass = tuple[str, int, int]
"""(name, bytes read, bytes written)."""


def unfused_kernels(work: Attention, gpu: Gpu, options: Options, backend: str) -> tuple[KernelResult, ...]:
    """The kernels of a call by "unfused" or "math".

    Raises ConfigError for pages, caches of another type, and for a type that the GPU does not take.
    """
    _check(work, backend)
    dtype = _dtype(work, backend)
    kernels: list[KernelResult] = []
    for each in _forward(work, backend) if work.phase == "forward" else _backward(work, backend):
        kernels += _product(each, gpu, options) if isinstance(each, Gemm) else (passed(gpu, *each),)
    return tuple(with_energy(gpu, kernel, dtype, options.data) for kernel in kernels)


def _dtype(work: Attention, backend: str) -> str:
    """Type of the products."""
    return "fp32" if backend == "math" else work.dtype


def _forward(work: Attention, backend: str) -> tuple[Gemm | Pass, ...]:
    """Q K^T and P V, with what is done before, between and after."""
    matrices, dtype = work.batch * work.heads, _dtype(work, backend)
    scores = Gemm(work.q_len, work.kv_len, work.head_dim, matrices, dtype)
    weighted = Gemm(work.q_len, work.head_dim, work.kv_len, matrices, dtype, layout="nn")
    before, between, after = _math_passes(work) if backend == "math" else _passes(work)
    return (*before, scores, *between, weighted, *after)


def _backward(work: Attention, backend: str) -> tuple[Gemm | Pass, ...]:
    """As automatic differentiation runs it, from the last operation to the first."""
    matrices, dtype, math = work.batch * work.heads, _dtype(work, backend), backend == "math"
    size = BYTES[dtype]
    queries, keys = work.q_bytes // work.element_bytes, work.group * work.all_kv_bytes // 2 // work.kv_element_bytes
    scores = matrices * work.q_len * work.kv_len * size
    before = (("convert do", work.q_bytes, queries * size),) if math and dtype != work.dtype else ()
    scaled = [(f"scale d{x}", n * size, n * size) for x, n in (("q", queries), ("k", keys))] if math else []
    sums = [(f"sum d{x}", keys * size, keys * size // work.group) for x in "kv"] if work.group > 1 else []
    after = [
        (f"convert d{x}", n * size, n * work.element_bytes)
        for x, n in (("q", queries), ("k", keys // work.group), ("v", keys // work.group))
    ]
    return (
        *before,
        Gemm(work.kv_len, work.head_dim, work.q_len, matrices, dtype, layout="nt"),
        Gemm(work.q_len, work.kv_len, work.head_dim, matrices, dtype),
        ("softmax backward", 2 * scores, scores),
        Gemm(work.q_len, work.head_dim, work.kv_len, matrices, dtype, layout="nn"),
        Gemm(work.kv_len, work.head_dim, work.q_len, matrices, dtype, layout="nt"),
        *scaled,
        *sums,
        *(after if math and dtype != work.dtype else ()),
    )


def _check(work: Attention, backend: str) -> None:
    where = f"with backend {backend!r} (attention)"
    if work.batch * work.heads > MAX_BATCH:
        most = MAX_BATCH // work.heads
        raise ConfigError(f"batch = {work.batch}: must be from 1 to {most} with {work.heads} heads and {where[5:]}")
    for name in ("page", "kv_dtype"):
        value = getattr(work, name)
        if value is not None:
            raise ConfigError(f"{name} = {value!r}: must be None {where}")


def _product(gemm: Gemm, gpu: Gpu, options: Options) -> tuple[KernelResult, ...]:
    configs, _ = candidates(gemm, gpu, None, "bound")
    refusal: ConfigError | None = None
    for config in configs:
        try:
            return run_call(gemm, config, gpu, options).kernels
        except ConfigError as error:
            refusal = error
    raise refusal or ConfigError(f"dtype = {gemm.dtype!r}: no kernel of {gpu.name} multiplies it (attention)")


def _expanded(work: Attention, size: int) -> tuple[Pass, ...]:
    """Copies of K and V for every query head, of elements of `size` bytes."""
    if work.group == 1:
        return ()
    n_bytes = work.kv_bytes // 2 // work.kv_element_bytes * size
    return tuple((f"expand {name}", n_bytes, work.group * n_bytes) for name in "kv")


def _passes(work: Attention) -> tuple[tuple[Pass, ...], ...]:
    """What a library does before, between and after the products."""
    n_bytes = work.batch * work.heads * work.q_len * work.kv_len * BYTES[work.dtype]
    return _expanded(work, BYTES[work.dtype]), (("softmax", n_bytes, n_bytes),), ()


def _math_passes(work: Attention) -> tuple[tuple[Pass, ...], ...]:
    """What PyTorch does there: convert, copy shared heads, scale, softmax, clear rows without keys."""
    queries, keys = work.q_bytes // work.element_bytes, work.all_kv_bytes // 2 // work.kv_element_bytes
    n = work.batch * work.heads * work.q_len * work.kv_len
    scores, truths = n * FP32_BYTES, n * TRUTH_BYTES
    rows = work.batch * work.heads * work.q_len
    mask = [("mask", scores, scores)] if work.causal else []
    before = (
        *_converted(work, queries, keys),
        *_expanded(work, FP32_BYTES),
        *((f"scale {x}", n * FP32_BYTES, n * FP32_BYTES) for x, n in (("q", queries), ("k", work.group * keys))),
    )
    between = (
        *mask,
        ("softmax", scores, scores),
        ("equal", scores, truths),
        ("all", truths, rows),
        ("not", rows, rows),
        ("fill", 0, scores),
        ("where", scores + rows, scores),
    )
    after = () if work.dtype == "fp32" else (("convert o", queries * FP32_BYTES, queries * work.element_bytes),)
    return before, between, after


def _converted(work: Attention, queries: int, keys: int) -> tuple[Pass, ...]:
    """To fp32, unless they are."""
    if work.dtype == "fp32":
        return ()
    return tuple(
        (f"convert {x}", n * work.element_bytes, n * FP32_BYTES)
        for x, n in zip("qkv", (queries, keys, keys), strict=True)
    )


def passed(gpu: Gpu, name: str, read: int, write: int) -> KernelResult:
    """A kernel that passes over its data once, taken as whole. What fits into half of L2 is still there."""
    in_l2 = read + write <= gpu.l2.capacity_mib * 2**20 / 2
    hbm = (0, 0) if in_l2 else (read, write)
    hbm_s = sum(hbm) / (gpu.hbm.bandwidth_gb_per_s * gpu.hbm.copy_fraction * 1e9)
    l2_s = (read + write) / (gpu.split_k.reduce_gb_per_s * 1e9)
    time_s = gpu.split_k.reduce_floor_us * 1e-6 + (l2_s if in_l2 else hbm_s)
    return small_kernel(name, time_s, gpu.activity.active_mhz, (read, write), hbm)
