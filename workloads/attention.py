"""Scaled dot-product attention, softmax(Q K^T / sqrt(d)) V: exact FLOPs and exact bytes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from hwmodels.errors import ConfigError
from workloads.checks import check_choice, check_integer
from workloads.dtypes import BYTES
from workloads.traffic import Traffic

WHERE = "workload attention"
MAX_BATCH = 65536
MAX_HEADS = 4096
MAX_HEAD_DIM = 1024
MAX_TOKENS = 2**24
DTYPES = ("fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2")
CACHE_DTYPES = (*DTYPES, "int8")
PASSES = ("forward", "backward", "backward_kept")
MATMULS = {"forward": 2, "backward": 5, "backward_kept": 4}
"""Products of q_len x kv_len x head_dim: Q K^T and P V; dV, dP, dQ and dK, before which a fused backward forms Q K^T
again."""
FORMED_AGAIN = {"forward": 0, "backward": 1, "backward_kept": 0}
"""Of these, products that were formed before: Q K^T in backward."""
LSE_BYTES = 4
"""The logarithm of each row's sum, fp32, which backward needs."""


@dataclass(frozen=True)
class Attention(Traffic):
    """Attention as asked for. Q and O are [batch, heads, q_len, head_dim], K and V [batch, kv_heads, kv_len, head_dim].

    `causal`: query i sees keys up to i + kv_len - q_len (the last query sees all). `window`: and only the last so many
    of those. `kv_dtype`: type of K and V in memory, where it is another. `page`: tokens of one block of a paged cache;
    None: one piece. `phase`: "forward"; "backward" (Q, K, V, O, dO and row sums in; dQ, dK and dV out); or
    "backward_kept", where forward was not fused and kept its probabilities (these in, instead of O and row sums).

    Raises `ConfigError` for a value outside its range.
    """

    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    q_len: int
    kv_len: int
    causal: bool = False
    window: int | None = None
    dtype: str = "bf16"
    kv_dtype: str | None = None
    page: int | None = None
    phase: str = "forward"

    def __post_init__(self) -> None:
        check_integer("batch", self.batch, 1, MAX_BATCH, WHERE)
        check_integer("heads", self.heads, 1, MAX_HEADS, WHERE)
        check_integer("kv_heads", self.kv_heads, 1, self.heads, WHERE)
        check_integer("head_dim", self.head_dim, 1, MAX_HEAD_DIM, WHERE)
        check_integer("kv_len", self.kv_len, 1, MAX_TOKENS, WHERE)
        check_integer("q_len", self.q_len, 1, self.kv_len if self.causal else MAX_TOKENS, WHERE)
        check_choice("dtype", self.dtype, DTYPES, WHERE)
        check_choice("phase", self.phase, PASSES, WHERE)
        if type(self.causal) is not bool:
            raise ConfigError(f"causal = {self.causal!r}: must be true or false ({WHERE})")
        if self.kv_dtype is not None:
            check_choice("kv_dtype", self.kv_dtype, CACHE_DTYPES, WHERE)
        for name in ("window", "page"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1, MAX_TOKENS, WHERE)
        if self.heads % self.kv_heads:
            raise ConfigError(f"heads = {self.heads}: must be a multiple of kv_heads = {self.kv_heads} ({WHERE})")

    @property
    def group(self) -> int:
        """Query heads that share one head of keys and values."""
        return self.heads // self.kv_heads

    @property
    def element_bytes(self) -> int:
        """Bytes of one element of Q and O."""
        return BYTES[self.dtype]

    @property
    def kv_element_bytes(self) -> int:
        """Bytes of one element of K and V."""
        return BYTES[self.kv_dtype or self.dtype]

    @property
    def pairs(self) -> int:
        """(query, key) pairs of one head that attend to each other."""
        window = self.window or self.kv_len
        if not self.causal:
            return self.q_len * min(window, self.kv_len)
        first, last = self.kv_len - self.q_len + 1, self.kv_len  # keys that the first and last query see
        growing = range(first, min(last, window) + 1)
        n_full = self.q_len - len(growing)
        return (growing[0] + growing[-1]) * len(growing) // 2 + n_full * window if growing else n_full * window

    @property
    def flops(self) -> int:
        """2 head_dim for each pair and product; the softmax's few are left out, as is usual."""
        return 2 * MATMULS[self.phase] * self.batch * self.heads * self.head_dim * self.pairs

    @property
    def model_flops(self) -> int:
        """`flops` without the products that are formed again, as a model's FLOPs are counted."""
        return self.flops * (MATMULS[self.phase] - FORMED_AGAIN[self.phase]) // MATMULS[self.phase]

    @property
    def q_bytes(self) -> int:
        """Bytes of Q, and of O."""
        return self.batch * self.heads * self.q_len * self.head_dim * self.element_bytes

    @property
    def keys_seen(self) -> int:
        """Keys of one head that any query sees: with a window, not those before the first query's."""
        return self.kv_len if self.window is None else min(self.kv_len, self.window + self.q_len - 1)

    @property
    def kv_bytes(self) -> int:
        """Bytes of K and V together, of the keys that are seen."""
        return self.keys_seen * self._bytes_per_key

    @property
    def all_kv_bytes(self) -> int:
        """Bytes of K and V together, seen or not."""
        return self.kv_len * self._bytes_per_key

    @property
    def _bytes_per_key(self) -> int:
        return 2 * self.batch * self.kv_heads * self.head_dim * self.kv_element_bytes

    @property
    def read_bytes(self) -> int:
        """Every input read once."""
        if self.phase == "forward":
            return self.q_bytes + self.kv_bytes
        rows = self.batch * self.heads * self.q_len
        if self.phase == "backward_kept":
            return 2 * self.q_bytes + self.kv_bytes + rows * self.kv_len * self.element_bytes
        return 3 * self.q_bytes + self.kv_bytes + rows * LSE_BYTES

    @property
    def write_bytes(self) -> int:
        """Every output written once; dK and dV of keys that are not seen are zeros, written too."""
        return self.q_bytes if self.phase == "forward" else self.q_bytes + self.all_kv_bytes

    def describe(self) -> dict[str, Any]:
        """All fields as resolved, with what follows from them."""
        derived = ("flops", "q_bytes", "kv_bytes", "compulsory_bytes", "arithmetic_intensity")
        resolved = {"kv_dtype": self.kv_dtype or self.dtype}
        return {
            "operation": "attention",
            **asdict(self),
            **resolved,
            **{name: getattr(self, name) for name in derived},
        }
