"""Rows of extra_ops tables that are bound by memory: log-softmax, fused AdamW, embedding gather."""

from __future__ import annotations

from hwmodels.errors import ConfigError
from hwmodels.spec import Gpu
from sim.validation.elementwise import Repeated, predict
from workloads.stream import Stream

OPS = ("log_softmax", "log_softmax_fp32", "adamw_fused", "embedding")
"""What `stream_of` knows, as the tables spell it."""


def stream_of(op: str, m: int, n: int, k: int) -> Stream:
    """The operation of a row: [m, n] logits, n parameters, m rows of k out of n; ConfigError for another."""
    if op == "log_softmax":
        return Stream("log_softmax", m, n)
    if op == "log_softmax_fp32":
        return Stream("log_softmax", m, n, out_dtype="fp32")
    if op == "adamw_fused":
        return Stream("adamw", m, n, "fp32")
    if op == "embedding":
        return Stream("embedding", m, k)
    raise ConfigError(f"op = {op[:60]!r}: must be one of {', '.join(OPS)}")


def predict_stream(work: Stream, gpu: Gpu) -> dict[str, float]:
    """Microseconds of all its launches in a burst, without gaps."""
    return predict(Repeated(work), gpu)
