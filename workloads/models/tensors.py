"""Every weight tensor of a model with its shape, one by one: what the closed forms of `counts` are tested against."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from workloads.models.model import Model


class Tensor(NamedTuple):
    """A weight: where it is, its shape (a matrix is [outputs, inputs], as a linear layer stores it), and its part.

    Parts are those of `counts.Parameters`: embedding, positions, attention, ffn, router, norms, head.
    """

    name: str
    shape: tuple[int, ...]
    part: str

    @property
    def size(self) -> int:
        """Elements."""
        return prod(self.shape)


def tensors(model: Model) -> tuple[Tensor, ...]:
    """Every tensor of the model, in the order of computation; a tied head appears once, as the embedding.

    Q, K, V, gate and up are listed apart, and biases of projections the same way, however a library packs them.
    """
    layers = (tensor for layer in range(model.n_layers) for tensor in layer_tensors(model, layer))
    return (*_embedding(model), *layers, *_head(model))


def outer_tensors(model: Model) -> tuple[Tensor, ...]:
    """The tensors that belong to no layer: embedding, positions, last norm, head."""
    return (*_embedding(model), *_head(model))


def layer_tensors(model: Model, layer: int = 0) -> tuple[Tensor, ...]:
    """The tensors of one layer; all layers are alike."""
    prefix = f"layers.{layer}"
    return (*_attention(model, prefix), *_feed_forward(model, prefix), *_layer_norms(model, prefix))


def _linear(name: str, n_out: int, n_in: int, bias: bool, part: str) -> Iterator[Tensor]:
    yield Tensor(f"{name}.weight", (n_out, n_in), part)
    if bias:
        yield Tensor(f"{name}.bias", (n_out,), part)


def _norm(model: Model, name: str, part: str = "norms") -> Iterator[Tensor]:
    yield Tensor(f"{name}.weight", (model.d_model,), part)
    if model.norm_bias:
        yield Tensor(f"{name}.bias", (model.d_model,), part)


def _embedding(model: Model) -> Iterator[Tensor]:
    yield Tensor("embedding.weight", (model.vocabulary, model.table_width), "embedding")
    if model.embedding_dim is not None:
        yield Tensor("embedding.project_in.weight", (model.d_model, model.embedding_dim), "embedding")
    if model.token_types:
        yield Tensor("token_types.weight", (model.token_types, model.d_model), "embedding")
    if model.position_rows:
        yield Tensor("positions.weight", (model.position_rows, model.d_model), "positions")
    if model.embedding_norm:
        yield from _norm(model, "embedding_norm")


def _attention(model: Model, prefix: str) -> Iterator[Tensor]:
    widths = {"q": model.q_width, "k": model.kv_width, "v": model.kv_width}
    for name, width in widths.items():
        yield from _linear(f"{prefix}.attention.{name}", width, model.d_model, model.qkv_bias, "attention")
    yield from _linear(f"{prefix}.attention.out", model.d_model, model.q_width, model.out_bias, "attention")


def _feed_forward(model: Model, prefix: str) -> Iterator[Tensor]:
    if not model.n_experts:
        yield from _expert(model, f"{prefix}.ffn")
        return
    yield Tensor(f"{prefix}.router.weight", (model.n_experts, model.d_model), "router")
    for i in range(model.n_experts):
        yield from _expert(model, f"{prefix}.experts.{i}")
    for i in range(model.n_shared_experts):
        yield from _expert(model, f"{prefix}.shared_experts.{i}")


def _expert(model: Model, prefix: str) -> Iterator[Tensor]:
    for name in ("gate", "up") if model.gated else ("up",):
        yield from _linear(f"{prefix}.{name}", model.d_ff, model.d_model, model.ffn_bias, "ffn")
    yield from _linear(f"{prefix}.down", model.d_model, model.d_ff, model.ffn_bias, "ffn")


def _layer_norms(model: Model, prefix: str) -> Iterator[Tensor]:
    for i in range(model.norms_per_layer):
        yield from _norm(model, f"{prefix}.norms.{i}")


def _head(model: Model) -> Iterator[Tensor]:
    if model.final_norm:
        yield from _norm(model, "final_norm")
    if model.pooler:
        yield from _linear("pooler", model.d_model, model.d_model, True, "head")
    if model.head == "masked_lm":
        yield from _linear("head.transform", model.d_model, model.d_model, True, "head")
        yield from _norm(model, "head.norm", "head")
    if model.head != "none":
        yield from _table(model)


def _table(model: Model) -> Iterator[Tensor]:
    if model.embedding_dim is not None:
        yield Tensor("head.project_out.weight", (model.embedding_dim, model.d_model), "head")
    if not model.tied:
        yield Tensor("head.weight", (model.vocabulary, model.table_width), "head")
    if model.head_bias:
        yield Tensor("head.bias", (model.vocabulary,), "head")
