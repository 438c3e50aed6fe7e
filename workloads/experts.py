"""A feed-forward of several experts, of which each token takes a few, as operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workloads.attention import MAX_TOKENS
from workloads.models.counts import experts_used
from workloads.models.model import Model
from workloads.stream import Stream

if TYPE_CHECKING:
    from workloads.forward import Builder


def experts(b: Builder, source: str, out: str) -> None:
    """Router, and the feed-forward of every expert that gets tokens (`active`), which share them as evenly as can be.

    Eager: for each expert, its tokens are gathered, pass its feed-forward, are weighted and added. Fused: one gather,
    one product of all experts for each matrix, one sum; experts are filled up to the fullest one's tokens.
    """
    model = b.model
    picks, n_active = b.rows * model.top_k, active(model, b.execution.balance, b.rows, b.layer)
    rows = -(-picks // n_active)
    b.linear("router", model.n_experts, model.d_model, source, "routes")
    b.stream("router softmax", "softmax", model.n_experts, ("routes",), "routes", out_dtype="fp32")
    gathered = b.activation("gathered", model.d_model, rows * n_active)
    if b.execution.fuses("full"):
        b.stream("gather", "embedding", model.d_model, (source,), gathered, rows=rows * n_active)
        b.ffn(gathered, "expert.out", rows, "experts.", n_active)
        total = Stream("reduce", b.rows, model.d_model, b.execution.dtype, fan_in=model.top_k)
        b.add("combine", total, (("x", "expert.out"),), b.activation(out, model.d_model))
    else:
        for i in range(n_active):
            own = picks // n_active + (i < picks % n_active)
            b.stream(f"expert {i}: gather", "embedding", model.d_model, (source,), gathered, rows=own)
            b.ffn(gathered, "expert.out", own, f"expert{i}.")
            b.stream(f"expert {i}: weight", "mul", model.d_model, ("expert.out", "routes"), "expert.out", rows=own)
            b.stream(f"expert {i}: add", "add", model.d_model, ("expert.out", out), b.activation(out, model.d_model),
                     rows=own)  # fmt: skip
    for i in range(model.n_shared_experts):
        b.ffn(source, "shared.out", b.rows, f"shared{i}.")
        b.stream(f"shared {i}: add", "add", model.d_model, ("shared.out", out), out)


def active(model: Model, balance: str, n_tokens: int, layer: int) -> int:
    """Experts of a layer that get any of `n_tokens` tokens.

    "even": as many as there are picks. "random": as many as are expected where every token picks at random; as that is
    no whole number, layers take turns, and their mean is it.
    """
    most = min(model.n_experts, n_tokens * model.top_k)
    if balance == "even":
        return most
    expected = experts_used(model, min(n_tokens, MAX_TOKENS))
    layer = max(0, layer)
    return min(most, max(model.top_k, round((layer + 1) * expected) - round(layer * expected)))
