"""training_steps.csv, training_more.csv: forward, backward and optimizer of a few decoder layers, eager in a stream."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sim.measure.stacks import MODELS, Sizes, board
from sim.measure.table import Case, Outcome, Row, Table

KEY = ("model", "layers", "batch", "seq", "checkpointing")
LAYERS = (("llama2-7b", 4),)
OTHER_LAYERS = (("llama3-8b", 2), ("qwen2.5-7b", 4))
STEPS = ((1, 512), (1, 2048), (4, 2048), (1, 8192))
N_WARM, N_TIMED = 2, 6


def cases(quick: bool) -> list[Case]:
    """Every step with all activations kept, and with those of one layer at a time (checkpointing)."""
    return _cases(LAYERS)[:2] if quick else _cases(LAYERS)


def other_cases(quick: bool) -> list[Case]:
    """The same of other models."""
    return _cases(OTHER_LAYERS)[::8] if quick else _cases(OTHER_LAYERS)


def _cases(models: Sequence[tuple[str, int]]) -> list[Case]:
    return [
        dict(zip(KEY, (model, layers, batch, tokens, checkpointing), strict=True))
        for model, layers in models
        for batch, tokens in STEPS
        for checkpointing in (False, True)
    ]


def measure(batch: Sequence[Case]) -> list[Outcome]:
    """Wall time of the parts of a step, by events, the median of `N_TIMED`; and the most memory it held."""
    return [[_measured(case)] for case in batch]


def _measured(case: Case) -> Row:
    """`peak_bytes` is the most that was allocated during forward, backward and optimizer, moments included, less what
    the process held before it built the layers."""
    import torch

    from sim.measure.timing import launches

    held_bytes = _cleared()
    training = _training(case)
    _train(training)
    torch.cuda.reset_peak_memory_stats()
    fwd_bwd_us = _median_us(training.forward_backward)
    watt, mhz = board()
    with torch.no_grad():
        fwd_us = _median_us(training.forward)
    optimizer_us = _median_us(training.optimizer_step)
    peak_bytes = torch.cuda.max_memory_allocated() - held_bytes
    (step,) = launches(lambda i: training.forward_backward(), 2)
    return {
        "fwd_us": fwd_us,
        "fwd_bwd_us": fwd_bwd_us,
        "optimizer_us": optimizer_us,
        "peak_bytes": peak_bytes,
        "launches": len(step),
        "sm_mhz": mhz,
        "watt": watt,
    }


def _cleared() -> int:
    """Bytes still allocated after what an earlier case left is gone, workspaces of cuBLAS included: those of this and
    of autograd's thread are made first if need be."""
    import torch

    linear = torch.nn.Linear(64, 64, device="cuda", dtype=torch.bfloat16)
    linear(torch.ones(64, 64, device="cuda", dtype=torch.bfloat16)).sum().backward()
    del linear
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return int(torch.cuda.memory_allocated())


@dataclass(frozen=True)
class _Training:
    """Parts of a training step: `forward_backward` drops the gradients of the step before, first."""

    forward: Callable[[], Any]
    forward_backward: Callable[[], Any]
    optimizer_step: Callable[[], Any]


def _train(training: _Training) -> None:
    """A whole step, after which the optimizer's moments exist."""
    training.forward_backward()
    training.optimizer_step()


def _median_us(call: Callable[[], Any]) -> float:
    from sim.measure.graphs import event_us

    times = [event_us(call) for _ in range(N_WARM + N_TIMED)]
    return round(statistics.median(times[N_WARM:]), 1)


def _training(case: Case) -> _Training:
    import torch
    from torch.utils.checkpoint import checkpoint

    sizes, shape = MODELS[case["model"]], (case["batch"], case["seq"], MODELS[case["model"]].width)
    layers = [_weights(sizes) for _ in range(case["layers"])]
    parameters = [parameter for layer in layers for parameter in layer.values()]
    optimizer = torch.optim.AdamW(parameters, fused=True)
    x = torch.randn(*shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    def forward() -> Any:
        y = x
        for layer in layers:
            if case["checkpointing"]:
                y = checkpoint(_layer, y, layer, sizes, use_reentrant=False)
            else:
                y = _layer(y, layer, sizes)
        return y

    def forward_backward() -> None:
        for parameter in parameters:
            parameter.grad = None
        forward().backward(torch.ones(*shape, device="cuda", dtype=torch.bfloat16))

    return _Training(forward, forward_backward, optimizer.step)


def _weights(sizes: Sizes) -> dict[str, Any]:
    """Parameters of one layer, at the usual scale of nn.Linear."""
    import torch

    def linear(n: int, k: int) -> Any:
        bound = k**-0.5
        return torch.nn.Parameter(torch.empty(n, k, device="cuda", dtype=torch.bfloat16).uniform_(-bound, bound))

    def ones() -> Any:
        return torch.nn.Parameter(torch.ones(sizes.width, device="cuda", dtype=torch.bfloat16))

    return {
        "qkv": linear(sizes.width + 2 * sizes.kv_width, sizes.width),
        "out": linear(sizes.width, sizes.width),
        "gate_up": linear(2 * sizes.ffn, sizes.width),
        "down": linear(sizes.width, sizes.ffn),
        "norm_attention": ones(),
        "norm_mlp": ones(),
    }


def _layer(x: Any, layer: dict[str, Any], sizes: Sizes) -> Any:
    """As a layer of decoder_stack, without a cache: causal flash attention over the sequence itself."""
    from torch.nn import functional
    from torch.nn.attention import SDPBackend, sdpa_kernel

    batch, tokens, width = x.shape
    packed = functional.linear(functional.rms_norm(x, (width,), layer["norm_attention"]), layer["qkv"])
    parts = packed.split([width, sizes.kv_width, sizes.kv_width], -1)
    q, k, v = (part.view(batch, tokens, -1, sizes.head_dim).transpose(1, 2) for part in parts)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        attended = functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=sizes.heads != sizes.kv_heads
        )
    x = x + functional.linear(attended.transpose(1, 2).reshape(batch, tokens, width), layer["out"])
    normed = functional.rms_norm(x, (width,), layer["norm_mlp"])
    gate, up = functional.linear(normed, layer["gate_up"]).chunk(2, -1)
    return x + functional.linear(functional.silu(gate) * up, layer["down"])


TABLE = Table(
    "training_steps",
    "decoder layers, bf16: forward, forward + backward, fused AdamW, eager in a stream; peak memory of the case alone",
    (*KEY, "fwd_us", "fwd_bwd_us", "optimizer_us", "peak_bytes", "launches", "sm_mhz", "watt"),
    (),
    cases,
    measure,
    batch=1,
    case_s=3.0,
)
OTHER_TABLE = replace(TABLE, name="training_more", about="as training_steps: layers of other models", cases=other_cases)
