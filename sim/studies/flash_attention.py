"""FlashAttention against attention whose scores go through memory, over sequence length: time and HBM bytes.

Heads are Llama-3-8B's, one sequence, as in a prefill. "unfused" is two products in the operands' type with one softmax
between them, which work out masked scores, too; "math" is PyTorch's path of that name, in fp32, up to 2,048 tokens (its
products on CUDA cores take long to simulate). Papers claim two to
four times the speed (Dao et al. 2022: up to 3 of GPT-2's attention against PyTorch's; Dao 2023: 2 to 4 over standard
attention).
"""

from __future__ import annotations

from hwmodels.spec import Gpu
from sim.studies import runs
from sim.studies.study import Cell, Chart, Finding, Study, attempt, first_where, ratio, table
from workloads.attention import Attention

LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384)
MATH_LENGTHS = 2048
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
CLAIM = "2 to 4, papers"


def attention(length: int, causal: bool, dtype: str) -> Attention:
    """A prefill's."""
    return Attention(1, HEADS, KV_HEADS, HEAD_DIM, length, length, causal=causal, dtype=dtype)


def study(gpu: Gpu) -> Study:
    """Raises `ConfigError` where FlashAttention does not run."""
    times = table(
        "Time of one layer's attention",
        {
            "tokens": "count",
            "flash, causal": "s",
            "flash, all pairs": "s",
            "unfused": "s",
            "math": "s",
            "speed-up, all pairs": "ratio",
            "speed-up, causal": "ratio",
        },
        [_times(gpu, length) for length in LENGTHS],
    )
    moved = table(
        "HBM bytes",
        {"tokens": "count", "flash": "B", "unfused": "B", "times less": "ratio", "scores alone": "B"},
        [_bytes(gpu, length) for length in LENGTHS],
    )
    gains = [gain for gain in times.column("speed-up, all pairs") if isinstance(gain, float)]
    twice = first_where(times, lambda gain: gain >= 2, "speed-up, all pairs")
    return Study(
        "flash-attention",
        f"What fusing attention saves ({HEADS} heads of {HEAD_DIM}, {KV_HEADS} of keys and values)",
        gpu.label,
        (times, moved),
        (
            Finding("Least speed-up, all pairs", min(gains, default=None), "ratio", CLAIM),
            Finding("Largest", max(gains, default=None), "ratio", CLAIM),
            Finding("with causal skipping", times.column("speed-up, causal")[-1], "ratio"),
            Finding("Tokens from which it is twice as fast, all pairs", twice, "count"),
            Finding(f"HBM bytes at {LENGTHS[-1]:,} tokens, times less", moved.column("times less")[-1], "ratio"),
        ),
        Chart(("flash, causal", "flash, all pairs", "unfused", "math")),
    )


def _times(gpu: Gpu, length: int) -> tuple[Cell, ...]:
    dtype = runs.dtype_of(gpu)
    causal, full = (runs.time_s(gpu, attention(length, skips, dtype)) for skips in (True, False))
    unfused = attempt(lambda: runs.time_s(gpu, attention(length, False, dtype), "unfused"))
    math = (
        attempt(lambda: runs.time_s(gpu, attention(length, False, dtype), "math")) if length <= MATH_LENGTHS else None
    )
    return length, causal, full, unfused, math, ratio(unfused, full), ratio(unfused, causal)


def _bytes(gpu: Gpu, length: int) -> tuple[Cell, ...]:
    work = attention(length, False, runs.dtype_of(gpu))
    flash = runs.hbm_bytes(gpu, work)
    unfused = attempt(lambda: runs.hbm_bytes(gpu, work, "unfused"))
    return length, flash, unfused, ratio(unfused, flash), HEADS * length**2 * work.element_bytes
