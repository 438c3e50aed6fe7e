"""The GEMM shapes that are measured: squares, those of language models, and random ones. C[m, n] = A[m, k] B[k, n]."""

from __future__ import annotations

import random

Shape = tuple[str, int, int, int]
"""Name, m, n, k."""

SQUARES = (128, 256, 384, 512, 768, 1024, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 8192, 10240, 12288, 16384)
LAYERS = {  # name: (n, k) of x @ W.T with W[n, k], as the models' published configurations give them
    "llama2-7b.qkv": (12288, 4096), "llama2-7b.o": (4096, 4096), "llama2-7b.gate_up": (22016, 4096),
    "llama2-7b.down": (4096, 11008), "llama2-7b.lm_head": (32000, 4096), "llama3-8b.qkv": (6144, 4096),
    "llama3-8b.gate_up": (28672, 4096), "llama3-8b.down": (4096, 14336), "llama3-8b.lm_head": (128256, 4096),
    "llama3-70b.qkv": (10240, 8192), "llama3-70b.o": (8192, 8192), "llama3-70b.gate_up": (57344, 8192),
    "llama3-70b.down": (8192, 28672), "llama3-70b.lm_head": (128256, 8192), "llama3-70b.tp8.qkv": (1280, 8192),
    "llama3-70b.tp8.o": (8192, 1024), "llama3-70b.tp8.gate_up": (7168, 8192), "llama3-70b.tp8.down": (8192, 3584),
    "seed.ffn_up": (16384, 4096), "seed.ffn_down": (4096, 16384), "gpt3-175b.fc1": (49152, 12288),
    "qwen2.5-7b.gate_up": (37888, 3584), "qwen2.5-7b.down": (3584, 18944), "gpt2.lm_head": (50257, 768),
}  # fmt: skip
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
MOST_FLOP = 4e13
MOST_OUTPUT_BYTES = 3e9


def flop(shape: Shape) -> int:
    """Multiplications and additions."""
    _, m, n, k = shape
    return 2 * m * n * k


def squares() -> list[Shape]:
    """m = n = k."""
    return [("square", size, size, size) for size in SQUARES]


def layers() -> list[Shape]:
    """Every layer at every number of tokens that takes no more than `MOST_FLOP`."""
    every = [(name, m, n, k) for name, (n, k) in LAYERS.items() for m in TOKENS]
    return [shape for shape in every if flop(shape) < MOST_FLOP and shape[1] * shape[2] * 2 < MOST_OUTPUT_BYTES]


def randoms(count: int = 160, seed: int = 20261129) -> list[Shape]:
    """Sizes from 1 to 18,000, log-uniform; n and k are multiples of the number after `q` in the name (odd if 1)."""
    draw, found = random.Random(seed), list[Shape]()
    while len(found) < count:
        m, n, k = (int(2 ** draw.uniform(low, 14.2)) for low in (0, 4, 4))
        step = draw.choice([1, 8, 8, 8, 64, 64, 128])
        if 2 * m * n * k < 1.2e13:
            n, k = (n | 1, k | 1) if step == 1 else (max(step, n // step * step), max(step, k // step * step))
            found.append((f"random.q{step}", max(1, m), n, k))
    return found
