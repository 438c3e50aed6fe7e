"""How a program launches a model's operations: what is fused, how tensors are stored, which attention."""

from __future__ import annotations

from dataclasses import dataclass

from hwmodels.errors import ConfigError
from workloads.attention import CACHE_DTYPES, MAX_TOKENS
from workloads.checks import check_choice, check_integer

WHERE = "execution"
PROGRAMS = ("eager", "measured")
FUSIONS = ("none", "epilogue", "full")
DTYPES = ("bf16", "fp16", "fp32")


@dataclass(frozen=True)
class Execution:
    """A program for a model.

    `program`: "eager" launches what PyTorch's model code does, one kernel an operation: projections as the model's
    weights are packed, rotary positions from five elementwise kernels each for Q and K, log-softmax and a pick of the
    next token. "measured" is the program of decoder_stack.csv: packed projections, no positions, no biases, no pick.

    `fusion`: "none"; "epilogue": biases, activations and residual adds go into GEMMs, rotary positions are one kernel;
    "full": also packed projections, residual add with the norm behind it, gate with activation, rotary positions with
    the write of keys and values, and one product for all experts.

    `dtype` of weights and activations; `kv_dtype` of the cache, if another; `page`: tokens of a cache block.
    """

    program: str = "eager"
    fusion: str = "none"
    dtype: str = "bf16"
    kv_dtype: str | None = None
    page: int | None = None

    def __post_init__(self) -> None:
        check_choice("program", self.program, PROGRAMS, WHERE)
        check_choice("fusion", self.fusion, FUSIONS, WHERE)
        check_choice("dtype", self.dtype, DTYPES, WHERE)
        if self.kv_dtype is not None:
            check_choice("kv_dtype", self.kv_dtype, CACHE_DTYPES, WHERE)
        if self.page is not None:
            check_integer("page", self.page, 1, MAX_TOKENS, WHERE)
        if self.program == "measured" and self.fusion != "none":
            raise ConfigError(f"fusion = {self.fusion!r}: must be none with program = 'measured' ({WHERE})")

    @property
    def cache_dtype(self) -> str:
        """Type of keys and values in the cache."""
        return self.kv_dtype or self.dtype

    @property
    def measured(self) -> bool:
        """Whether it is the measured program."""
        return self.program == "measured"

    def fuses(self, level: str) -> bool:
        """Whether what `level` ("epilogue" or "full") fuses is fused."""
        return FUSIONS.index(self.fusion) >= FUSIONS.index(level)
