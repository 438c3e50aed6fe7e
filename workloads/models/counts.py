"""Exact counts of a model, in closed form: parameters, FLOPs of a forward pass, bytes of its KV cache.

FLOPs are 2 m n k for each matrix multiplication, and for attention 2 head_dim for each (query, key) pair and product
as `workloads.attention.Attention` counts them. Norms, activations, softmax, rope and biases are left out, as is usual
(below 1 %). Parameters are those that are trained: no rotary frequencies and no mask buffers, which some checkpoints
hold and published sizes then include.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, NamedTuple

from hwmodels.errors import ConfigError
from workloads.attention import CACHE_DTYPES, MAX_BATCH, MAX_TOKENS, Attention
from workloads.checks import check_choice, check_flag, check_integer
from workloads.dtypes import BYTES
from workloads.models.model import Model


class Parameters(NamedTuple):
    """Parameters by part. `embedding`: token and token-type tables, projection to d_model; `ffn`: all experts; `head`:
    what a tied head has of its own, pooler, the dense layer and norm of a masked head."""

    embedding: int
    positions: int
    attention: int
    ffn: int
    router: int
    norms: int
    head: int

    @property
    def total(self) -> int:
        """All parts together."""
        return sum(self)


class Flops(NamedTuple):
    """FLOPs of a pass by part. `attention`: scores and weighted values; `projections`: Q, K, V and output."""

    attention: int
    projections: int
    ffn: int
    router: int
    head: int

    @property
    def matmuls(self) -> int:
        """Products with weights: all but attention."""
        return self.total - self.attention

    @property
    def total(self) -> int:
        """All parts together."""
        return sum(self)


def parameters(model: Model) -> Parameters:
    """Parameters of the whole model by part; equals the sum over `tensors.tensors(model)`."""
    n_experts = model.n_experts + model.n_shared_experts if model.n_experts else 1
    return Parameters(
        embedding=_embedding_parameters(model),
        positions=model.position_rows * model.d_model,
        attention=model.n_layers * _attention_parameters(model),
        ffn=model.n_layers * n_experts * expert_parameters(model),
        router=model.n_layers * model.n_experts * model.d_model,
        norms=norm_count(model) * norm_parameters(model),
        head=_head_parameters(model),
    )


def active_parameters(model: Model) -> int:
    """Parameters that one token meets: of the routed experts only `top_k` (all of them in a dense model)."""
    idle = model.n_layers * (model.n_experts - model.top_k) * expert_parameters(model)
    return parameters(model).total - idle


def experts_used(model: Model, n_tokens: int) -> float:
    """Experts of a layer that a batch of tokens is expected to use, so that their weights are read: each token picks
    `top_k` different ones, all equally likely and whatever the others pick. 0 in a dense model."""
    check_integer("n_tokens", n_tokens, 1, MAX_TOKENS, model.name)
    if not model.n_experts:
        return 0.0
    return model.n_experts * (1 - (1 - model.top_k / model.n_experts) ** n_tokens)


def layer_parameters(model: Model) -> int:
    """Parameters of one layer, its norms among them."""
    total = parameters(model)
    norms = model.n_layers * model.norms_per_layer * norm_parameters(model)
    return (total.attention + total.ffn + total.router + norms) // model.n_layers


def expert_parameters(model: Model) -> int:
    """Parameters of one feed-forward: of a layer's only one, or of one expert."""
    biases = (model.n_ffn_matrices - 1) * model.d_ff + model.d_model if model.ffn_bias else 0
    return model.n_ffn_matrices * model.d_model * model.d_ff + biases


def norm_parameters(model: Model) -> int:
    """Parameters of one norm: weight, and bias if it has one."""
    return model.d_model * (2 if model.norm_bias else 1)


def norm_count(model: Model) -> int:
    """Norms of the whole model but that of a masked head, which counts as head."""
    return model.n_layers * model.norms_per_layer + model.final_norm + model.embedding_norm


def _attention_parameters(model: Model) -> int:
    biases = model.qkv_width * model.qkv_bias + model.d_model * model.out_bias
    return (model.qkv_width + model.q_width) * model.d_model + biases


def _embedding_parameters(model: Model) -> int:
    projection = model.embedding_dim * model.d_model if model.embedding_dim is not None else 0
    return model.vocabulary * model.table_width + projection + model.token_types * model.d_model


def _head_parameters(model: Model) -> int:
    dense = model.d_model * model.d_model + model.d_model
    own = dense * model.pooler
    if model.head == "masked_lm":
        own += dense + norm_parameters(model)
    if model.head != "none":
        own += model.embedding_dim * model.d_model if model.embedding_dim is not None else 0
        own += 0 if model.tied else model.vocabulary * model.table_width
        own += model.vocabulary * model.head_bias
    return own


# FLOPs.
def forward_flops(model: Model, batch: int, q_len: int, context: int = 0, *, last_only: bool = False) -> Flops:
    """One forward pass of `q_len` new tokens in each of `batch` sequences, behind `context` tokens in the KV cache.

    `last_only`: the head works on the last token of each sequence only, as in generation. A decode step is q_len = 1.
    Raises `ConfigError` for sizes out of range, and for a context in an encoder.
    """
    check_tokens(model, batch, q_len, context)
    check_flag("last_only", last_only, model.name)
    tokens = batch * q_len
    n_experts = model.top_k + model.n_shared_experts if model.n_experts else 1
    per_layer = 2 * tokens * model.n_layers * model.d_model
    return Flops(
        attention=_attention_flops(model, batch, q_len, context),
        projections=per_layer * (model.qkv_width + model.q_width),
        ffn=per_layer * n_experts * model.n_ffn_matrices * model.d_ff,
        router=per_layer * model.n_experts,
        head=_head_flops(model, batch, batch if last_only else tokens) + _embedding_flops(model, tokens),
    )


def training_flops(model: Model, batch: int, seq: int) -> int:
    """FLOPs of forward and backward as a model's FLOPs utilisation counts them: 3 x forward, nothing recomputed."""
    return 3 * forward_flops(model, batch, seq).total


def attention_of(model: Model, layer: int, batch: int, q_len: int, context: int = 0) -> Attention:
    """The attention of one layer, with its window; types are the defaults."""
    return Attention(
        batch=batch,
        heads=model.heads,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        q_len=q_len,
        kv_len=context + q_len,
        causal=not model.encoder_only,
        window=model.window_of(layer),
    )


def _attention_flops(model: Model, batch: int, q_len: int, context: int) -> int:
    windowed, full = split_layers(model)
    return sum(
        len(layers) * attention_of(model, layers[0], batch, q_len, context).flops
        for layers in (windowed, full)
        if layers
    )


def split_layers(model: Model) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Indices of the layers with a sliding window, and of those without."""
    windowed = tuple(i for i in range(model.n_layers) if model.window_of(i) is not None)
    return windowed, tuple(sorted(set(range(model.n_layers)) - set(windowed)))


def _head_flops(model: Model, batch: int, rows: int) -> int:
    products = batch * model.d_model * model.d_model if model.pooler else 0
    if model.head == "masked_lm":
        products += rows * model.d_model * model.d_model
    if model.head != "none":
        products += rows * model.table_width * model.vocabulary
        products += rows * model.d_model * model.embedding_dim if model.embedding_dim is not None else 0
    return 2 * products


def _embedding_flops(model: Model, tokens: int) -> int:
    return 2 * tokens * model.d_model * model.embedding_dim if model.embedding_dim is not None else 0


# KV cache.
def kv_bytes_per_token(model: Model, dtype: str = "bf16", *, scale_bytes: int = 0) -> int:
    """Bytes that one more token adds to the KV cache in all layers, as long as no window is full; 0 in an encoder.

    `scale_bytes`: of the scale that a quantised cache keeps for each token and head, of K and of V apart.
    """
    return 0 if model.encoder_only else model.n_layers * _kv_bytes(model, dtype, scale_bytes)


def kv_cache_bytes(
    model: Model, batch: int, context: int, dtype: str = "bf16", *, scale_bytes: int = 0, rolling: bool = True
) -> int:
    """Bytes of the KV cache of `batch` sequences of `context` tokens each; 0 in an encoder.

    `rolling`: layers with a sliding window keep its tokens only; else every layer keeps all.
    """
    check_integer("batch", batch, 1, MAX_BATCH, model.name)
    check_integer("context", context, 0, MAX_TOKENS, model.name)
    check_flag("rolling", rolling, model.name)
    if model.encoder_only:
        return 0
    windowed, full = split_layers(model) if rolling else ((), tuple(range(model.n_layers)))
    n_tokens = len(full) * context + len(windowed) * min(context, model.window or context)
    return batch * n_tokens * _kv_bytes(model, dtype, scale_bytes)


def _kv_bytes(model: Model, dtype: str, scale_bytes: int) -> int:
    check_choice("kv_dtype", dtype, CACHE_DTYPES, model.name)
    check_integer("scale_bytes", scale_bytes, 0, 16, model.name)
    return 2 * (model.kv_width * BYTES[dtype] + model.kv_heads * scale_bytes)


# What a model can be asked for.
def check_tokens(model: Model, batch: int, q_len: int, context: int = 0) -> None:
    """Refuse sizes out of range, a KV cache in an encoder, and more tokens than a table of positions has rows."""
    check_integer("batch", batch, 1, MAX_BATCH, model.name)
    check_integer("q_len", q_len, 1, MAX_TOKENS, model.name)
    check_integer("context", context, 0, MAX_TOKENS - q_len, model.name)
    if model.encoder_only and context:
        raise ConfigError(f"context = {context}: must be 0 in an encoder, which has no KV cache ({model.name})")
    if model.positions == "learned":
        check_context(model, q_len + context)


def check_context(model: Model, n_tokens: int) -> None:
    """Refuse more tokens than the model was made for."""
    if n_tokens > model.max_context:
        raise ConfigError(
            f"{n_tokens} tokens (cached and new ones): must be at most {model.max_context}, the context of {model.name}"
        )


def describe(model: Model) -> dict[str, Any]:
    """All fields, with what follows from them; JSON can hold it."""
    return {
        **asdict(model),
        "parameters": parameters(model).total,
        "parameters_by_part": parameters(model)._asdict(),
        "active_parameters": active_parameters(model),
        "kv_bytes_per_token": kv_bytes_per_token(model),
    }
