"""Activations of a transformer's layer in bytes: what training keeps for backward, and what inference holds.

Counted as PyTorch's operations keep and free tensors, one by one, without the allocator's rounding. With dropout and
unfused attention, a GPT layer's sum is the formula of Korthikanti et al. 2022 ("Reducing Activation Recomputation in
Large Transformer Models", equation 2), s b h (34 + 5 a s / h) bytes, plus the statistics of norms, which it neglects.
K and V are counted as they are, not repeated for each query head.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from workloads.checks import check_choice, check_flag
from workloads.dtypes import BYTES
from workloads.models.counts import check_tokens
from workloads.models.model import Model

WHERE = "activations"
DTYPES = ("fp32", "fp16", "bf16")
ATTENTIONS = ("fused", "unfused")
CHECKPOINTING = ("none", "selective", "full")
MASK_BYTES = 1
"""Of one element of a dropout mask."""
STATISTIC_BYTES = 4
"""Mean, reciprocal deviation, logarithm of a row's sum: fp32."""


@dataclass(frozen=True)
class Activations:
    """How activations are kept. `dtype`: of all but statistics.

    `attention`: "fused" keeps one fp32 number a row (FlashAttention), "unfused" its matrices of q_len x kv_len.
    `checkpointing`: what training keeps of a layer: all ("none"), all but what lies between Q, K, V and the output of
    attention ("selective"), or its input only ("full"); the rest is computed again in backward. `dropout`: after
    attention's probabilities, attention and feed-forward. `fused_activation`: the activation and the product with
    `up` in one kernel, so that the activated gate is never stored. `fused_norms`: a norm keeps its input; if not, as
    PyTorch composes RMSNorm of several operations, an fp32 copy of the input and the fp32 normalised one.

    Raises `ConfigError` for a value outside its range.
    """

    dtype: str = "bf16"
    attention: str = "fused"
    checkpointing: str = "none"
    dropout: bool = False
    fused_activation: bool = False
    fused_norms: bool = True

    def __post_init__(self) -> None:
        check_choice("dtype", self.dtype, DTYPES, WHERE)
        check_choice("attention", self.attention, ATTENTIONS, WHERE)
        check_choice("checkpointing", self.checkpointing, CHECKPOINTING, WHERE)
        for name in ("dropout", "fused_activation", "fused_norms"):
            check_flag(name, getattr(self, name), WHERE)

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return BYTES[self.dtype]


class _Sizes(NamedTuple):
    """Bytes of the tensors that a layer works on: [tokens, d_model] and so on."""

    hidden: int
    q: int
    kv: int
    inner: int
    expert_hidden: int
    scores: int
    n_scores: int
    n_tokens: int


def _sizes(model: Model, batch: int, q_len: int, context: int, element_bytes: int) -> _Sizes:
    n_tokens = batch * q_len
    n_rows = n_tokens * (model.top_k + model.n_shared_experts if model.n_experts else 1)
    n_scores = batch * model.heads * q_len * (context + q_len)
    return _Sizes(
        hidden=n_tokens * model.d_model * element_bytes,
        q=n_tokens * model.q_width * element_bytes,
        kv=n_tokens * model.kv_width * element_bytes,
        inner=n_rows * model.d_ff * element_bytes,
        expert_hidden=n_tokens * model.top_k * model.d_model * element_bytes,
        scores=n_scores * element_bytes,
        n_scores=n_scores,
        n_tokens=n_tokens,
    )


# Training.
def saved_activations(model: Model, batch: int, seq: int, how: Activations) -> dict[str, int]:
    """Bytes that one layer's forward keeps for its backward, by tensor."""
    check_tokens(model, batch, seq)
    if how.checkpointing == "full":
        return {"layer.input": _sizes(model, batch, seq, 0, how.element_bytes).hidden}
    kept = _layer_saved(model, batch, seq, how)
    between = _ATTENTION_MATRICES if how.checkpointing == "selective" else ()
    return {name: n_bytes for name, n_bytes in kept.items() if name not in between}


def recomputed_activations(model: Model, batch: int, seq: int, how: Activations) -> int:
    """Bytes of one layer that backward computes again and holds while it passes the layer."""
    check_tokens(model, batch, seq)
    if how.checkpointing == "none":
        return 0
    return sum(_layer_saved(model, batch, seq, how).values()) - sum(saved_activations(model, batch, seq, how).values())


def layer_activation_bytes(model: Model, batch: int, seq: int, how: Activations | None = None) -> int:
    """Bytes that one layer keeps for its backward: the sum of `saved_activations`."""
    return sum(saved_activations(model, batch, seq, how or Activations()).values())


def backward_transient_bytes(model: Model, batch: int, seq: int, how: Activations) -> int:
    """Bytes of the gradients of activations that are alive at once in a layer's backward, at most.

    The residual stream's and the block's, and inside the feed-forward those of its inner tensors, or inside attention
    those of Q, K, V, the output and, if unfused, of scores and probabilities.
    """
    sizes = _sizes(model, batch, seq, 0, how.element_bytes)
    attention = 2 * sizes.q + 2 * sizes.kv + (2 * sizes.scores if how.attention == "unfused" else 0)
    return 2 * sizes.hidden + max(attention, model.n_ffn_matrices * sizes.inner)


_ATTENTION_MATRICES = ("attention.capped", "attention.probabilities", "attention.mask", "attention.dropped")


def _layer_saved(model: Model, batch: int, seq: int, how: Activations) -> dict[str, int]:
    sizes = _sizes(model, batch, seq, 0, how.element_bytes)
    groups = (_norms_saved(model, sizes, how), _attention_saved(model, sizes, how), _ffn_saved(model, sizes, how))
    return {name: n_bytes for group in groups for name, n_bytes in group.items() if n_bytes}


def _norms_saved(model: Model, sizes: _Sizes, how: Activations) -> dict[str, int]:
    """Two norms of a parallel layer read the same input."""
    n_inputs = 1 if model.parallel else model.norms_per_layer
    per_row = STATISTIC_BYTES * (1 if model.norm == "rms_norm" else 2)
    statistics = model.norms_per_layer * sizes.n_tokens * per_row
    if how.fused_norms:
        return {"norms.input": n_inputs * sizes.hidden, "norms.statistics": statistics}
    fp32 = sizes.n_tokens * model.d_model * 4
    return {
        "norms.input": n_inputs * fp32,
        "norms.result": model.norms_per_layer * fp32,
        "norms.statistics": statistics,
    }


def _attention_saved(model: Model, sizes: _Sizes, how: Activations) -> dict[str, int]:
    is_fused = how.attention == "fused"
    matrix = 0 if is_fused else sizes.scores
    return {
        "qkv.input": sizes.hidden,
        "attention.q": sizes.q,
        "attention.k": sizes.kv,
        "attention.v": sizes.kv,
        "attention.row_sums": sizes.n_tokens * model.heads * STATISTIC_BYTES * is_fused,
        "attention.capped": matrix * model.attention_softcap,
        "attention.probabilities": matrix,
        "attention.mask": 0 if is_fused else sizes.n_scores * MASK_BYTES * how.dropout,
        "attention.dropped": matrix * how.dropout,
        "out.input": sizes.q,
        "out.mask": _mask(model, sizes, how),
    }


def _ffn_saved(model: Model, sizes: _Sizes, how: Activations) -> dict[str, int]:
    """ReLU's backward needs its output only, which `down` keeps."""
    shares_input = model.parallel and model.norms_per_layer == 1
    routed = {
        "router.probabilities": sizes.n_tokens * model.n_experts * 4,
        "experts.input": sizes.expert_hidden,
        "experts.output": sizes.expert_hidden,
    }
    before = {"gate.output": sizes.inner, "up.output": sizes.inner} if model.gated else {"up.output": sizes.inner}
    if model.activation == "relu":
        before.pop("gate.output" if model.gated else "up.output")
    return {
        "ffn.input": 0 if shares_input else sizes.hidden,
        **(routed if model.n_experts else {}),
        **before,
        "activation.output": sizes.inner if model.gated and not how.fused_activation else 0,
        "down.input": sizes.inner,
        "down.mask": _mask(model, sizes, how),
    }


def _mask(model: Model, sizes: _Sizes, how: Activations) -> int:
    return sizes.n_tokens * model.d_model * MASK_BYTES * how.dropout


# Inference.
class Step(NamedTuple):
    """One operation: the bytes it allocates by tensor, and the tensors that are freed behind it."""

    operation: str
    allocates: dict[str, int]
    frees: tuple[str, ...]


def layer_steps(model: Model, batch: int, q_len: int, context: int, how: Activations) -> tuple[Step, ...]:
    """The operations of one layer in inference, in order, from the residual stream "input" to its successor.

    Q, K and V are one tensor, gate and up another; rope works in place and K and V are copied into the cache.
    """
    check_tokens(model, batch, q_len, context)
    sizes = _sizes(model, batch, q_len, context, how.element_bytes)
    if model.parallel:
        return _parallel_steps(model, sizes, how)
    steps, stream = _block(model, sizes, "attention", "input", _attention_steps(sizes, how, _source(model)))
    more, _ = _block(model, sizes, "ffn", stream, _ffn_steps(model, sizes, how, _source(model)))
    return (*steps, *more)


def live_bytes(steps: Iterable[Step], alive: dict[str, int]) -> Iterator[tuple[str, int]]:
    """(operation, bytes of tensors alive while it runs), one by one; `alive`: those alive before the first."""
    alive = dict(alive)
    for step in steps:
        alive |= step.allocates
        yield step.operation, sum(alive.values())
        for name in step.frees:
            del alive[name]


def _source(model: Model) -> tuple[str, ...]:
    """What a block frees behind its first product: the normed copy of the residual stream, if it reads one."""
    return ("normed",) if model.norm_first else ()


def _block(
    model: Model, sizes: _Sizes, name: str, stream: str, inner: tuple[Step, ...]
) -> tuple[tuple[Step, ...], str]:
    """Attention or feed-forward with its norms and the residual add; and the name of the new residual stream."""
    hidden, out, total = sizes.hidden, f"{name}_out", f"{name}_sum"
    steps = [Step(f"{name}_norm", {"normed": hidden}, ()), *inner] if model.norm_first else list(inner)
    if model.norms_per_layer == 4:
        steps.append(Step(f"{name}_post_norm", {f"{name}_normed": hidden}, (out,)))
        out = f"{name}_normed"
    steps.append(Step(f"{name}_add", {total: hidden}, (out, stream)))
    if model.norm_first:
        return tuple(steps), total
    steps.append(Step(f"{name}_norm", {f"{total}_normed": hidden}, (total,)))
    return tuple(steps), f"{total}_normed"


def _parallel_steps(model: Model, sizes: _Sizes, how: Activations) -> tuple[Step, ...]:
    """Both blocks read the residual stream, through one norm or through one each."""
    norm = Step("norm", {"normed": sizes.hidden}, ())
    add = Step("add", {"sum": sizes.hidden}, ("attention_out", "ffn_out", "input"))
    if model.norms_per_layer == 1:
        return (norm, *_attention_steps(sizes, how, ()), *_ffn_steps(model, sizes, how, ("normed",)), add)
    first = _attention_steps(sizes, how, ("normed",))
    return (norm, *first, norm, *_ffn_steps(model, sizes, how, ("normed",)), add)


def _attention_steps(sizes: _Sizes, how: Activations, source: tuple[str, ...]) -> tuple[Step, ...]:
    qkv = Step("qkv", {"qkv": sizes.q + 2 * sizes.kv}, source)
    out = Step("out", {"attention_out": sizes.hidden}, ("attended",))
    if how.attention == "fused":
        return qkv, Step("attention", {"attended": sizes.q}, ("qkv",)), out
    return (
        qkv,
        Step("scores", {"scores": sizes.scores}, ()),
        Step("softmax", {"probabilities": sizes.scores}, ("scores",)),
        Step("values", {"attended": sizes.q}, ("probabilities", "qkv")),
        out,
    )


def _ffn_steps(model: Model, sizes: _Sizes, how: Activations, source: tuple[str, ...]) -> tuple[Step, ...]:
    width = (model.n_ffn_matrices - 1) * sizes.inner
    name = "gate_up" if model.gated else "up"
    activated = Step("activation", {"activated": sizes.inner}, ("inner",))
    if model.gated and not how.fused_activation:
        product = Step("multiply", {"product": sizes.inner}, ("activated", "inner"))
        middle, last = [activated._replace(frees=()), product], "product"
    else:
        middle, last = [activated], "activated"
    if not model.n_experts:
        return Step(name, {"inner": width}, source), *middle, Step("down", {"ffn_out": sizes.hidden}, (last,))
    experts_out = sizes.expert_hidden + (sizes.hidden if model.n_shared_experts else 0)
    return (
        Step("router", {"router": sizes.n_tokens * model.n_experts * STATISTIC_BYTES}, ()),
        Step("dispatch", {"dispatched": sizes.expert_hidden}, ()),
        Step(name, {"inner": width}, ("dispatched", *source)),
        *middle,
        Step("down", {"experts_out": experts_out}, (last,)),
        Step("combine", {"ffn_out": sizes.hidden}, ("experts_out", "router")),
    )
