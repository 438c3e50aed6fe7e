"""A feed-forward of several experts, of which each token takes a few, as operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workloads.stream import Stream

if TYPE_CHECKING:
    from workloads.forward import Builder


def experts(b: Builder, source: str, out: str) -> None:
    """Router, and the feed-forward of every expert that gets tokens, all the same number (the most even balance).

    Eager: for each expert, its tokens are gathered, pass its feed-forward, are weighted and added. Fused: one gather,
    one product of all experts for each matrix, one sum.
    """
    model = b.model
    picks = b.rows * model.top_k
    active = min(model.n_experts, picks)
    rows = -(-picks // active)
    b.linear("router", model.n_experts, model.d_model, source, "routes")
    b.stream("router softmax", "softmax", model.n_experts, ("routes",), "routes", out_dtype="fp32")
    gathered = b.activation("gathered", model.d_model, rows * active)
    if b.execution.fuses("full"):
        b.stream("gather", "embedding", model.d_model, (source,), gathered, rows=rows * active)
        b.ffn(gathered, "expert.out", rows, "experts.", active)
        total = Stream("reduce", b.rows, model.d_model, b.execution.dtype, fan_in=model.top_k)
        b.add("combine", total, (("x", "expert.out"),), b.activation(out, model.d_model))
    else:
        for i in range(active):
            b.stream(f"expert {i}: gather", "embedding", model.d_model, (source,), gathered, rows=rows)
            b.ffn(gathered, "expert.out", rows, f"expert{i}.")
            b.stream(f"expert {i}: weight", "mul", model.d_model, ("expert.out", "routes"), "expert.out", rows=rows)
            b.stream(f"expert {i}: add", "add", model.d_model, ("expert.out", out), b.activation(out, model.d_model),
                     rows=rows)  # fmt: skip
    for i in range(model.n_shared_experts):
        b.ffn(source, "shared.out", b.rows, f"shared{i}.")
        b.stream(f"shared {i}: add", "add", model.d_model, ("shared.out", out), out)
