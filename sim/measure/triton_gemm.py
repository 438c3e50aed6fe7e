"""The Triton GEMM that is measured: pointer loads in a cp.async ring, one CTA per output tile, grouped rasterisation.

A is [m, k] row-major, B stored [n, k] (a linear layer's weight), C [m, n] row-major; fp32 accumulation.
"""

from typing import Any

import triton
import triton.language as tl

LOGGED = ("sm", "start", "loop_end", "end")
"""What a CTA leaves in the log: its SM, and nanoseconds of the GPU's timer."""


@triton.jit
def _now():
    return tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)


@triton.jit
def gemm_kernel(
    a_ptr, b_ptr, c_ptr, log_ptr, m, n, k, stride_a, stride_b, stride_c,
    block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr, group_m: tl.constexpr, even_k: tl.constexpr,
):  # fmt: skip
    """One output tile; `group_m` tiles along m are walked before the next along n. `even_k`: block_k divides k.
    `log_ptr`: None, or where every CTA leaves its `LOGGED`."""
    pid = tl.program_id(0)
    if log_ptr is not None:
        start = _now()
    tiles_m = tl.cdiv(m, block_m)
    per_group = group_m * tl.cdiv(n, block_n)
    first_m = pid // per_group * group_m
    rows_of_group = min(tiles_m - first_m, group_m)
    tile_m = first_m + (pid % per_group) % rows_of_group
    tile_n = (pid % per_group) // rows_of_group
    rows = (tile_m * block_m + tl.arange(0, block_m)) % m
    cols = (tile_n * block_n + tl.arange(0, block_n)) % n
    ks = tl.arange(0, block_k)
    a = a_ptr + rows[:, None] * stride_a + ks[None, :]
    b = b_ptr + cols[None, :] * stride_b + ks[:, None]
    acc = tl.zeros((block_m, block_n), dtype=tl.float32)
    for i in range(tl.cdiv(k, block_k)):
        if even_k:
            x = tl.load(a)
            y = tl.load(b)
        else:
            x = tl.load(a, mask=ks[None, :] < k - i * block_k, other=0.0)
            y = tl.load(b, mask=ks[:, None] < k - i * block_k, other=0.0)
        acc = tl.dot(x, y, acc)
        a += block_k
        b += block_k
    if log_ptr is not None:
        loop_end = _now()
    out_m = tile_m * block_m + tl.arange(0, block_m)
    out_n = tile_n * block_n + tl.arange(0, block_n)
    inside = (out_m[:, None] < m) & (out_n[None, :] < n)
    tl.store(c_ptr + out_m[:, None] * stride_c + out_n[None, :], acc.to(c_ptr.dtype.element_ty), mask=inside)
    if log_ptr is not None:
        sm = tl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
        tl.store(log_ptr + pid * 4, sm.to(tl.int64))
        tl.store(log_ptr + pid * 4 + 1, start)
        tl.store(log_ptr + pid * 4 + 2, loop_end)
        tl.store(log_ptr + pid * 4 + 3, _now())


def launch(tile: dict[str, int], a: Any, b: Any, c: Any, log: Any = None) -> Any:
    """C = A B^T with the `tile` (block_m, block_n, block_k, stages, warps, group_m); returns the compiled kernel.
    `log`: int64 tensor of (CTAs, 4), for what they log."""
    (m, k), n = a.shape, b.shape[0]
    grid = (triton.cdiv(m, tile["block_m"]) * triton.cdiv(n, tile["block_n"]),)
    blocks = {name: tile[name] for name in ("block_m", "block_n", "block_k", "group_m")}
    options = {"num_warps": tile["warps"], "num_stages": tile["stages"], "even_k": k % tile["block_k"] == 0}
    return gemm_kernel[grid](a, b, c, log, m, n, k, k, k, n, **blocks, **options)


def compile_only(tile: dict[str, int], shape: tuple[int, int, int]) -> None:
    """Put the kernel for (m, n, k) into Triton's cache without launching it. Raises what Triton raises."""
    from torch import bfloat16

    m, n, k = shape
    blocks = {name: tile[name] for name in ("block_m", "block_n", "block_k", "group_m")}
    options = {"num_warps": tile["warps"], "num_stages": tile["stages"], "even_k": k % tile["block_k"] == 0}
    gemm_kernel.warmup(bfloat16, bfloat16, bfloat16, None, m, n, k, k, k, n, **blocks, **options, grid=(1,))
