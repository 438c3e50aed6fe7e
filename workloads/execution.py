"""How a program launches a model's operations: what is fused, how tensors are stored, which attention."""

from __future__ import annotations

from dataclasses import dataclass

from hwmodels.errors import ConfigError
from workloads.attention import CACHE_DTYPES, MAX_BATCH, MAX_TOKENS
from workloads.checks import check_choice, check_flag, check_integer
from workloads.gemm import MAX_DIMENSION
from workloads.packing import FORMATS, GROUP_VALUES, OPERANDS, WEIGHT_BITS
from workloads.weights import WeightFormat

WHERE = "execution"
PROGRAMS = ("eager", "measured")
FUSIONS = ("none", "epilogue", "full")
BALANCES = ("random", "even")
DTYPES = ("bf16", "fp16", "fp32")
MATMUL_DTYPES = ("fp8_e4m3", "fp8_e5m2", "int8")
INT4_GROUP = 128
"""Inputs of an int4 weight that share scale and zero point, unless told otherwise."""


@dataclass(frozen=True)
class Execution:
    """A program for a model.

    `program`: "eager" launches what PyTorch's model code does, one kernel an operation: projections as the model's
    weights are packed, rotary positions from five elementwise kernels each for Q and K, log-softmax and a pick of the
    next token. "measured" is the program of decoder_stack.csv: packed projections, no positions, no biases, no pick.

    `fusion`: "none"; "epilogue": biases, activations and residual adds go into GEMMs, rotary positions are one kernel,
    and so is each chain of elementwise operations that is left (`workloads.fusion`);
    "full": also packed projections, residual add with the norm behind it, gate with activation, rotary positions with
    the write of keys and values, and one product for all experts.

    `dtype` of weights and activations; `kv_dtype` of the cache, if another; `page`: tokens of a cache block.

    What compresses the linear layers of attention and feed-forward (routers and embeddings never; the head with
    `compress_head`): `weights`, how they lie in memory (`workloads.packing`), in groups of `weight_group` inputs (None:
    128 for int4, all for int8); `matmul_dtype`, the type of both operands of their products; `low_rank`, two factors
    instead of each. `lora_rank`: each has unmerged adapters of this rank, `lora_adapters` over the rows (a merged one
    costs nothing: ask for none).

    `balance`: how many experts of a mixture get any of a step's tokens, "even" (as many as can) or "random" (as many as
    are expected where each token picks at random); these share them evenly.

    Raises `ConfigError` for a value outside its range and for what does not go together.
    """

    program: str = "eager"
    fusion: str = "none"
    dtype: str = "bf16"
    kv_dtype: str | None = None
    page: int | None = None
    weights: str = "dense"
    weight_group: int | None = None
    compress_head: bool = False
    matmul_dtype: str | None = None
    lora_rank: int | None = None
    lora_adapters: int = 1
    low_rank: int | None = None
    balance: str = "random"

    def __post_init__(self) -> None:
        check_choice("program", self.program, PROGRAMS, WHERE)
        check_choice("fusion", self.fusion, FUSIONS, WHERE)
        check_choice("dtype", self.dtype, DTYPES, WHERE)
        check_choice("balance", self.balance, BALANCES, WHERE)
        if self.kv_dtype is not None:
            check_choice("kv_dtype", self.kv_dtype, CACHE_DTYPES, WHERE)
        if self.page is not None:
            check_integer("page", self.page, 1, MAX_TOKENS, WHERE)
        if self.program == "measured" and self.fusion != "none":
            raise ConfigError(f"fusion = {self.fusion!r}: must be none with program = 'measured' ({WHERE})")
        self._check_weights()
        self._check_products()

    def _check_weights(self) -> None:
        check_choice("weights", self.weights, FORMATS, WHERE)
        if self.weights != "dense":
            check_choice("dtype", self.dtype, OPERANDS[self.weights], f"with weights {self.weights}, {WHERE}")
        if self.weight_group is not None:
            if self.weights not in GROUP_VALUES:
                raise ConfigError(f"weight_group = {self.weight_group!r}: only for int8 and int4 weights ({WHERE})")
            check_integer("weight_group", self.weight_group, 1, MAX_DIMENSION, WHERE)
        check_flag("compress_head", self.compress_head, WHERE)
        if self.compress_head and self.weights == "dense" and not self.matmul_dtype:
            raise ConfigError(f"compress_head = True: needs weights that are not dense, or a matmul_dtype ({WHERE})")

    def _check_products(self) -> None:
        converted = self.weights in WEIGHT_BITS
        if self.matmul_dtype is not None:
            check_choice("matmul_dtype", self.matmul_dtype, MATMUL_DTYPES, WHERE)
            check_choice("dtype", self.dtype, ("bf16", "fp16"), f"with matmul_dtype, {WHERE}")
            if converted:
                raise ConfigError(f"matmul_dtype = {self.matmul_dtype!r}: not with {self.weights} weights ({WHERE})")
        check_integer("lora_adapters", self.lora_adapters, 1, MAX_BATCH, WHERE)
        if self.lora_rank is not None:
            check_integer("lora_rank", self.lora_rank, 1, MAX_DIMENSION, WHERE)
        elif self.lora_adapters > 1:
            raise ConfigError(f"lora_adapters = {self.lora_adapters}: needs lora_rank ({WHERE})")
        if self.low_rank is not None:
            check_integer("low_rank", self.low_rank, 1, MAX_DIMENSION, WHERE)
            if self.lora_rank or self.matmul_dtype or self.weights != "dense":
                raise ConfigError(f"low_rank = {self.low_rank}: alone, without other compression ({WHERE})")
        if self.measured and self.compressed:
            raise ConfigError(f"program = 'measured': must be eager with compressed layers ({WHERE})")

    @property
    def compressed(self) -> bool:
        """Whether linear layers are other than one product of dense weights."""
        changed = (self.matmul_dtype, self.lora_rank, self.low_rank)
        return self.weights != "dense" or any(each is not None for each in changed)

    @property
    def group(self) -> int | None:
        """Inputs that share a scale; None: all."""
        return self.weight_group or (INT4_GROUP if self.weights == "int4" else None)

    @property
    def weight_format(self) -> WeightFormat:
        """How weights are stored: scales of the activations' type, of `matmul_dtype` fp32 ones."""
        bits, own = WEIGHT_BITS.get(self.weights), {"bf16": "bf16", "fp16": "fp16"}.get(self.dtype, "fp32")
        return WeightFormat(
            dtype=self.dtype,
            bits=8 if self.matmul_dtype else bits,
            group=self.group if bits else None,
            scale_dtype="fp32" if self.matmul_dtype else own,
            zero_bits=16 if self.weights == "int4" else 0,
            head=self.compress_head,
            sparse_24=self.weights == "2:4",
            low_rank=self.low_rank,
            lora_rank=self.lora_rank,
            lora_adapters=self.lora_adapters,
        )

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
