"""decoder_stack.csv, stacks_more.csv: whole decoder stacks, random weights, eager PyTorch in one CUDA graph."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from sim.measure.table import Case, Outcome, Row, Table

KEY = ("model", "layers", "phase", "batch", "seq", "ctx")
PREFILL = ((1, 128), (1, 512), (1, 2048), (1, 8192), (8, 512))
DECODE = ((1, 512), (1, 4096), (8, 512), (8, 4096), (64, 512), (64, 4096), (256, 1024), (1, 32768))
OTHER_PREFILL = ((1, 128), (1, 1024), (1, 4096), (4, 512))
OTHER_DECODE = ((1, 512), (1, 8192), (16, 2048), (64, 1024))
MOST_CACHE_BYTES = 60e9
N_REPLAYS = 8


@dataclass(frozen=True)
class Sizes:
    """A model's published sizes."""

    width: int
    heads: int
    kv_heads: int
    ffn: int
    layers: int
    vocabulary: int

    @property
    def head_dim(self) -> int:
        """Elements of one head."""
        return self.width // self.heads

    @property
    def kv_width(self) -> int:
        """Elements of a token's keys, and of its values."""
        return self.kv_heads * self.head_dim


MODELS = {
    "llama2-7b": Sizes(4096, 32, 32, 11008, 32, 32000),
    "llama3-8b": Sizes(4096, 32, 8, 14336, 32, 128256),
    "llama2-13b": Sizes(5120, 40, 40, 13824, 40, 32000),
    "qwen2.5-7b": Sizes(3584, 28, 4, 18944, 28, 152064),
    "mistral-7b": Sizes(4096, 32, 8, 14336, 32, 32000),
    "llama3-70b-8layers": Sizes(8192, 64, 8, 28672, 8, 128256),
}
"""A name ends in -Nlayers where the published model has more than the N that are run."""
LLAMAS = ("llama2-7b", "llama3-8b")
OTHERS = tuple(model for model in MODELS if model not in LLAMAS)


def cases(quick: bool) -> list[Case]:
    """Prefill of empty caches, and one decode step with `ctx` tokens cached."""
    found = _cases(LLAMAS, PREFILL, DECODE)
    return found if not quick else [case for case in found if case["model"] == "llama3-8b"][1::4][:2]


def other_cases(quick: bool) -> list[Case]:
    """The same of other models, at other lengths."""
    found = _cases(OTHERS, OTHER_PREFILL, OTHER_DECODE)
    return found if not quick else [case for case in found if case["model"] == "mistral-7b"][::4]


def _cases(models: Sequence[str], prefill: Sequence[tuple[int, int]], decode: Sequence[tuple[int, int]]) -> list[Case]:
    steps = [("prefill", batch, tokens, 0) for batch, tokens in prefill]
    steps += [("decode", batch, 1, cached) for batch, cached in decode]
    return [
        dict(zip(KEY, (model, MODELS[model].layers, *step), strict=True))
        for model in models
        for step in steps
        if _cache_bytes(MODELS[model], *step[1:]) <= MOST_CACHE_BYTES
    ]


def _cache_bytes(sizes: Sizes, batch: int, tokens: int, cached: int) -> int:
    return sizes.layers * 4 * batch * (tokens + cached) * sizes.kv_width


def measure(batch: Sequence[Case]) -> list[Outcome]:
    """Wall time of graph replays, and launches and their sum from a profiled run without the graph."""
    return [[_measured(case)] for case in batch]


def _measured(case: Case) -> Row:
    import torch

    from sim.measure.graphs import captured, replays_us
    from sim.measure.timing import time_calls

    with torch.no_grad():
        run = step(case)
        times = replays_us(captured(run), N_REPLAYS)
        watt, mhz = board()
        profiled = time_calls([lambda i: run()], 3, drop=1)[0]
    torch.cuda.empty_cache()
    return {
        "time_us": round(statistics.median(times), 2),
        "time_us_min": round(min(times), 2),
        "time_us_max": round(max(times), 2),
        "launches": profiled.n_kernels,
        "kernel_sum_us": profiled.time_us,
        "sm_mhz": mhz,
        "board_w": watt,
    }


def board() -> tuple[float | str, float | str]:
    """Watts and MHz just now, where NVML can be asked."""
    import torch

    from sim.measure.machine import has

    return (torch.cuda.power_draw() / 1e3, float(torch.cuda.clock_rate())) if has("nvml") else ("", "")


@lru_cache(maxsize=1)
def _weights(model: str) -> dict[str, Any]:
    import torch

    sizes = MODELS[model]

    def random(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 0.02

    def layer() -> dict[str, Any]:
        return {
            "qkv": random(sizes.width + 2 * sizes.kv_width, sizes.width),
            "out": random(sizes.width, sizes.width),
            "gate_up": random(2 * sizes.ffn, sizes.width),
            "down": random(sizes.width, sizes.ffn),
        }

    return {
        "embedding": random(sizes.vocabulary, sizes.width),
        "head": random(sizes.vocabulary, sizes.width),
        "norm": torch.ones(sizes.width, device="cuda", dtype=torch.bfloat16),
        "layers": [layer() for _ in range(sizes.layers)],
    }


def step(case: Case) -> Callable[[], Any]:
    """One pass over all layers. In order: embedding; per layer rms_norm, packed QKV, K and V into the cache, flash
    attention, output, add, rms_norm, packed gate and up, silu x up, down, add; rms_norm and head on the last token."""
    import torch
    from torch.nn import functional

    sizes, batch, tokens, cached = MODELS[case["model"]], case["batch"], case["seq"], case["ctx"]
    weights = _weights(case["model"])
    shape = (batch, sizes.kv_heads, tokens + cached, sizes.head_dim)
    caches = [
        tuple(torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2)) for _ in range(sizes.layers)
    ]
    words = torch.randint(0, sizes.vocabulary, (batch, tokens), device="cuda")

    def norm(x: Any) -> Any:
        return functional.rms_norm(x, (sizes.width,), weights["norm"], 1e-5)

    def run() -> Any:
        x = functional.embedding(words, weights["embedding"])
        for layer, (keys, values) in zip(weights["layers"], caches, strict=True):
            packed = functional.linear(norm(x), layer["qkv"])
            x = x + functional.linear(_attend(packed, keys, values, sizes, cached, case["phase"]), layer["out"])
            gate, up = functional.linear(norm(x), layer["gate_up"]).chunk(2, -1)
            x = x + functional.linear(functional.silu(gate) * up, layer["down"])
        return functional.linear(norm(x[:, -1:]), weights["head"])

    return run


def _attend(packed: Any, keys: Any, values: Any, sizes: Sizes, cached: int, phase: str) -> Any:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    batch, tokens, _ = packed.shape
    parts = packed.split([sizes.width, sizes.kv_width, sizes.kv_width], -1)
    q, k, v = (part.view(batch, tokens, -1, sizes.head_dim).transpose(1, 2) for part in parts)
    keys[:, :, cached : cached + tokens].copy_(k)
    values[:, :, cached : cached + tokens].copy_(v)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        attended = scaled_dot_product_attention(
            q, keys, values, is_causal=phase == "prefill", enable_gqa=sizes.heads != sizes.kv_heads
        )
    return attended.transpose(1, 2).reshape(batch, tokens, sizes.width)


TABLE = Table(
    "decoder_stack",
    "whole Llama stacks, random weights, in one CUDA graph: wall time of a replay; kernel_sum_us from a profiled run",
    (*KEY, "time_us", "time_us_min", "time_us_max", "launches", "kernel_sum_us", "sm_mhz", "board_w"),
    (),
    cases,
    measure,
    batch=1,
    case_s=5.0,
)
OTHER_TABLE = replace(
    TABLE,
    name="stacks_more",
    about="as decoder_stack: other models and lengths",
    cases=other_cases,
    case_s=3.0,
)
