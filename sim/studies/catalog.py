"""The case studies by name; each module has `study(gpu) -> Study`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from hwmodels.errors import ConfigError

if TYPE_CHECKING:  # so that a command can list the studies at once
    from hwmodels.spec import Gpu
    from sim.studies.study import Study

STUDIES = {
    "lm-head": "the head of Llama-3-8B at decode: fused log-softmax, int4 weights, batching",
    "flash-attention": "FlashAttention against attention whose scores go through memory, over sequence length",
    "prefill-decode": "Llama-3-8B's prefill and decode on the roofline",
    "batched-projections": "32 projections one by one against one batched product",
    "kv-cache": "a cache of keys and values against computing them again for every token",
    "chunked-matmul": "10,000 x 10,000 elements of 8 bytes in 100 x 100 blocks against sensible tiles",
    "launch-bound": "small kernels launched one by one against a graph",
    "misaligned-vocabulary": "GPT-2's head with 50,257 tokens against 50,264 and 50,304",
    "layouts": "row- against column-major operands, a .contiguous() copy, a conversion",
    "quantization": "Llama-3-8B decode from bf16 to int4 at several batch sizes",
    "lora": "what unmerged adapters cost",
    "sparsity": "2:4 sparse weights against dense ones, and where unstructured sparsity breaks even",
    "strassen": "one level of Strassen's algorithm against the classical product",
    "engine-build": "Llama-3-8B from eager PyTorch to a tuned engine, step by step",
}


def run_study(name: str, gpu: Gpu) -> Study:
    """Simulate a study. Raises `ConfigError` for an unknown name, and for what the GPU has not the memory for."""
    if name not in STUDIES:
        raise ConfigError(f"study = {name!r}: must be one of {', '.join(STUDIES)}")
    study: Study = import_module(f"sim.studies.{name.replace('-', '_')}").study(gpu)
    return study
