"""Which attention kernels a library launches, and how they cut the work: blocks of queries and of keys, slices of keys.

FlashAttention-2 as PyTorch 2.11 ships it: block sizes from Dao-AILab/flash-attention, csrc/flash_attn/src/
flash_fwd_launch_template.h and flash_bwd_launch_template.h; packing of heads and slices of keys from pytorch/pytorch,
aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp. cuDNN's Hopper kernels: names, grids and shared memory
in the H200's attention.csv. FlashAttention-3 (tile sizes: hopper/tile_size.h of the former) was not measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from workloads.attention import Attention

BACKENDS = ("flash", "cudnn", "flash3", "math", "unfused")
HALF_TYPES = ("fp16", "bf16")
FLASH_WIDTHS = (32, 64, 96, 128, 192, 256)
"""Head dimensions that FlashAttention-2 is compiled for; others take the next one (static_switch.h)."""
WIDEST = 256
SPLIT_ROWS = 64
MAX_SPLITS = 128
ALMOST_FULL, GOOD_ENOUGH = 0.8, 0.85
"""Slices of keys: none where heads and query blocks fill as much of two CTAs an SM; else the fewest with as much of the
best filling (num_splits_heuristic)."""
FEW_BLOCKS = 4
"""Blocks of keys that FlashAttention-3 does not slice."""
FLASH_REGISTERS, SPLIT_REGISTERS = 255, 246
CUDNN_ROWS, CUDNN_KEYS, CUDNN_REGISTERS = 128, 128, 168
CUDNN_STAGES = 4
"""Chunks of K or V on the way: what the 232,448 B of shared memory of head_dim 128 have room for beside two of Q and
the barriers is five, with 134,144 B of head_dim 64 six."""
ALTERNATING = 0.5
"""Part of the products' time in which softmax goes on where two warpgroups take turns: the other one's. As the times of
cuDNN's kernels say, they do not where heads share keys under a causal mask (`attention.unordered_fraction`)."""
DECODE_ROWS, DECODE_KEYS = 16, 128
SHORT_KEYS, FEW_ITEMS = 128, 32
"""Up to so many keys, or twice as many of so few heads, cuDNN decodes by a kernel of 64 x 64 blocks."""
LEAST_SPLIT_BLOCKS, LEAST_ROOM = 5, 4
"""cuDNN slices keys of as many blocks if there is room for as many slices; their number is a power of two (grids of
attention.csv and attention_more.csv)."""


@dataclass(frozen=True)
class AttentionKernel:
    """How one kernel is cut. Items are blocks of `block_q` rows of one of `heads` heads; backward, blocks of keys."""

    name: str
    family: str
    """"flash", "flash_split", "flash_backward", "cudnn", "cudnn_decode", "flash3"."""
    block_q: int
    block_kv: int
    width: int
    """Head dimension as compiled: columns beyond the real one are multiplied, not loaded."""
    warps: int
    registers: int
    smem_bytes: int
    rows: int
    """Query rows of a head, as the kernel sees it: heads of a group are rows where they are packed."""
    heads: int
    splits: int = 1
    """Slices of the keys."""
    mma: str = "mma_sync"
    persistent: bool = False
    """A CTA an SM, TMA loads, a producer warp and two groups of consumers; else a CTA an item."""
    stages: int = 2
    one_chunk: bool = False
    """Only one chunk of K or V is on its way at a time: the next is asked for when it is there."""
    overlap: float = 0.0
    """Of wgmma's time, what softmax runs beside."""
    measured: bool = True

    def group(self, work: Attention) -> int:
        """Heads, as the kernel sees them, that share one head of K and V."""
        return self.heads // work.kv_heads


def refused(what: str, allowed: str) -> ConfigError:
    """The error of a value that a backend does not take."""
    return ConfigError(f"{what}: must be {allowed} (attention)")


def check_backend(work: Attention, gpu: Gpu, backend: str) -> None:
    """Raise ConfigError where `backend` has no kernel for `work` on `gpu`."""
    if backend not in BACKENDS:
        raise refused(f"backend = {str(backend)[:40]!r}", f"one of {', '.join(BACKENDS)}")
    if backend in ("math", "unfused"):
        return
    if work.dtype not in HALF_TYPES:
        raise refused(
            f"dtype = {work.dtype!r} with backend {backend!r}",
            f"{' or '.join(HALF_TYPES)}; unfused and math take others",
        )
    if work.head_dim > WIDEST:
        raise refused(
            f"head_dim = {work.head_dim} with backend {backend!r}", f"at most {WIDEST}; unfused and math take more"
        )
    if backend == "flash" and not gpu.tensor.cp_async:
        raise refused(
            "backend = 'flash'", f"unfused or math on {gpu.name}: its kernels need cp.async (compute capability 8.0)"
        )
    of_others = "flash, unfused or math" if gpu.tensor.cp_async else "unfused or math"
    if backend in ("cudnn", "flash3") and not gpu.tensor.wgmma:
        raise refused(f"backend = {backend!r}", f"{of_others} on {gpu.name}: only its Hopper kernels are known")
    if work.phase == "backward" and backend != "flash":
        raise refused(f"backend = {backend!r} with phase 'backward'", "flash, unfused or math")
    if work.phase == "backward_kept":
        raise refused(f"backend = {backend!r} with phase 'backward_kept'", "unfused or math, which keep probabilities")
    if work.phase == "backward" and work.window is not None and not work.causal:
        raise refused(f"window = {work.window} with phase 'backward'", "None unless causal")


# FlashAttention-2.
def flash_width(head_dim: int) -> int:
    """The head dimension that a kernel is compiled for."""
    return next(width for width in FLASH_WIDTHS if width >= head_dim)


def _is_consumer(gpu: Gpu) -> bool:
    """Compute capability 8.6 or 8.9, which get smaller blocks."""
    return gpu.compute_capability.startswith("8.") and gpu.compute_capability != "8.0"


def _smem(block_q: int, block_kv: int, width: int) -> int:
    """Bytes of one block of Q, K and V each."""
    return 2 * width * (block_q + 2 * block_kv)


def flash_blocks(width: int, causal: bool, gpu: Gpu) -> tuple[int, int, int]:
    """(rows, keys, warps) of flash_fwd_kernel's blocks."""
    if width <= 64:
        return 128, 128, 4
    if width <= 128:
        if _is_consumer(gpu) and causal:
            return 64, 64, 4
        return 128, 32 if _is_consumer(gpu) and width == 128 else 64, 4
    if width == 192:
        return 128, 64, 8
    fits = gpu.smem.max_kib_per_cta * 1024 >= _smem(128, 64, width)
    return (128, 64, 8) if fits and gpu.smem.kib_per_sm * 1024 < 2 * _smem(64, 64, width) else (64, 64, 4)


def split_keys(width: int) -> int:
    """Keys of a block of flash_fwd_splitkv_kernel."""
    return 256 if width <= 64 else 128 if width <= 128 else 64


def n_splits(n_items: int, n_sms: int, n_blocks: int) -> int:
    """Slices of the keys for `n_items` query blocks of all heads and `n_blocks` blocks of keys (num_splits_heuristic).

    `n_sms` counts every SM twice, as kernels of four warps have two CTAs there.
    """
    if n_items >= ALMOST_FULL * n_sms:
        return 1
    filling = {}
    for splits in range(1, min(MAX_SPLITS, n_sms, n_blocks) + 1):
        if splits == 1 or -(-n_blocks // splits) != -(-n_blocks // (splits - 1)):
            waves = n_items * splits / n_sms
            filling[splits] = waves / math.ceil(waves)
    best = max(filling.values())
    return next(splits for splits, share in filling.items() if share >= GOOD_ENOUGH * best)


def n_splits3(n_items: int, n_sms: int, n_blocks: int) -> int:
    """FlashAttention-3's slices of the keys (hopper/heuristics.h): one CTA an SM, none for few blocks."""
    if n_items >= ALMOST_FULL * n_sms or n_blocks <= FEW_BLOCKS:
        return 1
    waves = [n_items * splits / n_sms for splits in range(1, min(MAX_SPLITS, n_sms, n_blocks) + 1)]
    filling = [each / math.ceil(each) for each in waves]
    return 1 + next(i for i, share in enumerate(filling) if share >= GOOD_ENOUGH * max(filling))


def packed(work: Attention) -> bool:
    """Whether the query heads of a group become the rows of one head (seqlenq_ngroups_swapped)."""
    return work.q_len == 1 and work.group > 1 and work.window is None


def flash_forward(work: Attention, gpu: Gpu) -> AttentionKernel:
    """The kernel of a forward call."""
    width, swap = flash_width(work.head_dim), packed(work)
    rows, heads = (work.group, work.kv_heads) if swap else (work.q_len, work.heads)
    items = work.batch * heads * -(-rows // SPLIT_ROWS)
    keys = split_keys(width)
    splits = n_splits(items, 2 * gpu.sm.count, -(-work.kv_len // keys))
    if splits > 1 or work.page is not None:  # no other kernel looks keys up in pages (force_split_kernel)
        smem = _smem(SPLIT_ROWS, keys, width)
        return AttentionKernel(
            "flash_fwd_splitkv_kernel",
            "flash_split",
            *(SPLIT_ROWS, keys, width, 4, SPLIT_REGISTERS, smem, rows, heads),
            splits=splits,
            one_chunk=True,
        )
    block_q, block_kv, warps = flash_blocks(width, work.causal and work.q_len > 1, gpu)
    smem = _smem(block_q, block_kv, width)
    cut = (block_q, block_kv, width, warps, FLASH_REGISTERS, smem, rows, heads)
    return AttentionKernel("flash_fwd_kernel", "flash", *cut, one_chunk=True)


def flash_backward(work: Attention, gpu: Gpu) -> AttentionKernel:
    """The kernel that works out dQ, dK and dV: a CTA a block of keys, with 8 warps."""
    width = flash_width(work.head_dim)
    large = gpu.smem.max_kib_per_cta >= 144
    block_q, block_kv = 64, 64
    if width <= 64:
        block_q, block_kv = 128 if large or width == 32 else 64, 128
    elif width <= 128 and (large or width == 96):
        block_kv = 128
    elif width == 256 and not large:
        block_kv = 32
    smem = 2 * (3 * block_q * width + 2 * block_kv * width + 2 * block_q * block_kv)
    smem = min(smem, int(gpu.smem.max_kib_per_cta * 1024))  # what does not fit shares buffers or stays in registers
    cut = (block_q, block_kv, width, 8, FLASH_REGISTERS, smem, work.q_len, work.heads)
    return AttentionKernel("flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel", "flash_backward", *cut)


# cuDNN's kernels, and FlashAttention-3.
def cudnn_width(head_dim: int) -> int:
    """The head dimension that cuDNN's kernels are compiled for."""
    return 64 if head_dim <= 64 else 128 if head_dim <= 128 else WIDEST


def cudnn_forward(work: Attention, gpu: Gpu) -> AttentionKernel:
    """cuDNN's kernel: of 384 threads and wgmma, or for one query of 128 threads and mma.sync."""
    if work.q_len == 1:
        return _cudnn_decode(work, gpu)
    width = cudnn_width(work.head_dim)
    rows, keys = (CUDNN_ROWS, CUDNN_KEYS) if width <= 128 else (CUDNN_ROWS, 64)
    smem = 2 * width * (2 * rows + (5 if width > 64 else 6) * keys)
    return AttentionKernel(
        "cudnn_sm90_flash_fprop_wgmma",
        "cudnn",
        *(rows, keys, width, 12, CUDNN_REGISTERS, smem, work.q_len, work.heads),
        mma="wgmma",
        persistent=True,
        stages=CUDNN_STAGES,
        overlap=gpu.attention.unordered_fraction if work.causal and work.group > 1 else ALTERNATING,
    )


def _cudnn_decode(work: Attention, gpu: Gpu) -> AttentionKernel:
    width, items = cudnn_width(work.head_dim), work.batch * work.kv_heads
    if work.kv_len <= SHORT_KEYS or (work.kv_len <= 2 * SHORT_KEYS and items <= FEW_ITEMS):
        registers, smem = (140, 24576) if width <= 64 else (205, 40960 * width // 128)
        cut = (64, 64, width, 4, registers, smem, work.group, work.kv_heads)
        return AttentionKernel("cudnn_sm80_flash_fprop_64x64", "cudnn_decode", *cut)
    blocks, items = -(-work.kv_len // DECODE_KEYS), items * -(-work.group // DECODE_ROWS)
    room = 2 * gpu.sm.count // items
    splits = 1
    if blocks >= LEAST_SPLIT_BLOCKS and room >= LEAST_ROOM:
        splits = 1 << (min(room, blocks).bit_length() - 1)
    registers, smem = (120, 45376) if width <= 64 else (183, 86336 * width // 128)
    cut = (DECODE_ROWS, DECODE_KEYS, width, 4, registers, smem, work.group, work.kv_heads)
    return AttentionKernel("cudnn_sm80_flash_fprop_16x128", "cudnn_decode", *cut, splits=splits)


def flash3_forward(work: Attention, gpu: Gpu) -> AttentionKernel:
    """FlashAttention-3: rows of 128 (192 for narrow heads) by two or three consumer warpgroups. Not measured."""
    width = max(64, flash_width(work.head_dim))
    keys = {64: 128, 96: 128, 128: 128 if work.causal else 176, 192: 112, 256: 80}[width]
    smem = min(2 * width * (CUDNN_ROWS + 4 * keys), int(gpu.smem.max_kib_per_cta * 1024))
    swap = packed(work)
    rows, heads = (work.group, work.kv_heads) if swap else (work.q_len, work.heads)
    masked = work.q_len > 1 and (work.causal or work.window is not None)
    items = work.batch * heads * -(-rows // CUDNN_ROWS)
    splits = 1 if masked else n_splits3(items, gpu.sm.count, -(-work.kv_len // keys))  # slices all masked: not modelled
    return AttentionKernel(
        "flash3_fwd",
        "flash3",
        *(CUDNN_ROWS, keys, width, 12, CUDNN_REGISTERS, smem, rows, heads),
        splits=splits,
        mma="wgmma",
        persistent=True,
        stages=4,
        overlap=ALTERNATING,
        measured=False,
    )
