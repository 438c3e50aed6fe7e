"""One transformer model as data: the shapes and variants from which parameters, FLOPs and bytes follow exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from hwmodels.errors import ConfigError
from workloads.attention import MAX_HEAD_DIM, MAX_HEADS, MAX_TOKENS
from workloads.checks import check_choice, check_flag, check_integer
from workloads.gemm import MAX_DIMENSION

MAX_LAYERS = 1024
MAX_EXPERTS = 1024
MAX_NAME_LENGTH = 200
PRUNED_TO = 64
"""What tiles of a product take whole: widths of pruned feed-forwards are multiples of it."""

ACTIVATIONS = ("gelu", "gelu_tanh", "silu", "relu")
NORMS = ("layer_norm", "rms_norm")
POSITIONS = ("learned", "rope", "alibi", "none")
HEADS = ("lm", "masked_lm", "none")


@dataclass(frozen=True)
class Model:
    """A stack of equal layers (attention, then feed-forward) between an embedding and a head.

    Not modelled: cross-attention and encoder-decoder models, layers that differ in shape, state-space layers, dropout
    (an option of `workloads.activations`), how weights are stored (`workloads.memory`).

    Shapes: Q is heads x head_dim wide, which need not be d_model; K and V kv_heads x head_dim; `d_ff` is the width
    inside the feed-forward, of one expert where there are several; `embedding_dim` the width of the embedding's and
    the head's tables where a projection leads to d_model (None: d_model). `max_context`: tokens the model was made for.

    Feed-forward: down(activation(up(x))), or if `gated` down(activation(gate(x)) * up(x)). With `n_experts`, a router
    picks `top_k` of them for each token; `n_shared_experts` run for every token beside them.

    Norms: `norms_per_layer` 2 (before attention and before feed-forward, or after each if not `norm_first`), 4 (before
    and after each, Gemma-2), or 1 (`parallel` only: attention and feed-forward read one norm's output and are added
    together). `final_norm`: one more before the head. `embedding_norm`: one after the embedding (BERT). `norm_bias`:
    layer_norm with a bias.

    Positions: "learned" is a table of max_context + `extra_positions` rows (OPT has 2 unused ones); others have no
    parameters. `window`: each token attends to so many of the latest tokens, itself among them, in the layers with the
    indices `window_layers` (None: all). The softcap flags say that attention scores or logits pass through a scaled
    tanh.

    Head: "lm" logits for every token; "masked_lm" the same after one more dense layer, activation and norm (BERT);
    "none". `tied`: its weight is the embedding's. `encoder_only`: attention in both directions, no KV cache; only then
    `token_types` (rows of a second table) and a `pooler` (dense layer on the first token).

    Raises `ConfigError` for a value outside its range and for combinations that no model has.
    """

    name: str
    family: str
    n_layers: int
    d_model: int
    heads: int
    kv_heads: int
    head_dim: int
    d_ff: int
    vocabulary: int
    max_context: int
    gated: bool
    activation: str
    norm: str
    norm_bias: bool = False
    norms_per_layer: int = 2
    norm_first: bool = True
    final_norm: bool = True
    parallel: bool = False
    positions: str = "rope"
    extra_positions: int = 0
    embedding_dim: int | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    ffn_bias: bool = False
    head_bias: bool = False
    tied: bool = False
    window: int | None = None
    window_layers: tuple[int, ...] | None = None
    attention_softcap: bool = False
    logits_softcap: bool = False
    n_experts: int = 0
    top_k: int = 0
    n_shared_experts: int = 0
    encoder_only: bool = False
    token_types: int = 0
    embedding_norm: bool = False
    pooler: bool = False
    head: str = "lm"

    def __post_init__(self) -> None:
        for name in ("name", "family"):
            _check_text(name, getattr(self, name))
        self._check_shapes()
        self._check_variants()
        self._check_window()
        self._check_experts()
        self._check_encoder()

    def _check_shapes(self) -> None:
        for name, high in (
            ("n_layers", MAX_LAYERS),
            ("d_model", MAX_DIMENSION),
            ("heads", MAX_HEADS),
            ("kv_heads", self.heads),
            ("head_dim", MAX_HEAD_DIM),
            ("d_ff", MAX_DIMENSION),
            ("vocabulary", MAX_DIMENSION),
            ("max_context", MAX_TOKENS),
        ):
            check_integer(name, getattr(self, name), 1, high, self._where)
        if self.heads % self.kv_heads:
            raise self._refusal(f"heads = {self.heads}: must be a multiple of kv_heads = {self.kv_heads}")
        if self.q_width > MAX_DIMENSION:
            raise self._refusal(f"heads x head_dim = {self.q_width}: must be at most {MAX_DIMENSION}")
        if self.embedding_dim is not None:
            check_integer("embedding_dim", self.embedding_dim, 1, MAX_DIMENSION, self._where)

    def _check_variants(self) -> None:
        check_choice("activation", self.activation, ACTIVATIONS, self._where)
        check_choice("norm", self.norm, NORMS, self._where)
        check_choice("positions", self.positions, POSITIONS, self._where)
        check_choice("head", self.head, HEADS, self._where)
        for name in FLAGS:
            check_flag(name, getattr(self, name), self._where)
        check_integer("extra_positions", self.extra_positions, 0, 1024, self._where)
        if self.extra_positions and self.positions != "learned":
            raise self._refusal(f"extra_positions = {self.extra_positions}: must be 0 without learned positions")
        allowed = (1, 2) if self.parallel else (2, 4)
        if type(self.norms_per_layer) is not int or self.norms_per_layer not in allowed:
            raise self._refusal(
                f"norms_per_layer = {self.norms_per_layer!r}: must be {allowed[0]} or {allowed[1]} "
                f"with parallel = {self.parallel}"
            )
        if self.norm_bias and self.norm == "rms_norm":
            raise self._refusal("norm_bias = True: must be False with norm = rms_norm")

    def _check_window(self) -> None:
        if self.window is not None:
            check_integer("window", self.window, 1, MAX_TOKENS, self._where)
        if self.window_layers is None:
            return
        layers = self.window_layers
        if self.window is None or type(layers) is not tuple:
            raise self._refusal(f"window_layers = {layers!r}: must be a tuple of layer indices, and needs a window")
        for layer in layers:
            check_integer("window_layers", layer, 0, self.n_layers - 1, self._where)
        if list(layers) != sorted(set(layers)):
            raise self._refusal(f"window_layers = {layers!r}: must rise, each layer once")

    def _check_experts(self) -> None:
        check_integer("n_experts", self.n_experts, 0, MAX_EXPERTS, self._where)
        low = 1 if self.n_experts else 0
        check_integer("top_k", self.top_k, low, self.n_experts, self._where)
        check_integer("n_shared_experts", self.n_shared_experts, 0, MAX_EXPERTS if low else 0, self._where)

    def _check_encoder(self) -> None:
        check_integer("token_types", self.token_types, 0, 1024 if self.encoder_only else 0, self._where)
        allowed = ("masked_lm", "none") if self.encoder_only else ("lm", "none")
        check_choice("head", self.head, allowed, f"with encoder_only = {self.encoder_only}, {self._where}")
        if self.pooler and not self.encoder_only:
            raise self._refusal("pooler = True: must be False in a decoder")
        if self.embedding_dim is not None and self.head == "masked_lm":
            raise self._refusal(f"embedding_dim = {self.embedding_dim}: must be None with head = masked_lm")
        if (self.tied or self.head_bias) and self.head == "none":
            raise self._refusal("tied or head_bias = True: must be False with head = none")

    @property
    def _where(self) -> str:
        return f"model {self.name}"

    def _refusal(self, text: str) -> ConfigError:
        return ConfigError(f"{text} ({self._where})")

    # Widths that follow.
    @property
    def q_width(self) -> int:
        """Elements of one token's queries: heads x head_dim."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Elements of one token's keys, and of its values: kv_heads x head_dim."""
        return self.kv_heads * self.head_dim

    @property
    def qkv_width(self) -> int:
        """Elements of one token's queries, keys and values together."""
        return self.q_width + 2 * self.kv_width

    @property
    def table_width(self) -> int:
        """Width of the embedding's rows."""
        return self.embedding_dim or self.d_model

    @property
    def position_rows(self) -> int:
        """Rows of the position table; 0 where positions are not learned."""
        return self.max_context + self.extra_positions if self.positions == "learned" else 0

    @property
    def n_ffn_matrices(self) -> int:
        """Matrices of one feed-forward: gate, up and down, or up and down."""
        return 3 if self.gated else 2

    def window_of(self, layer: int) -> int | None:
        """Tokens that attention of this layer (0 to n_layers - 1) looks back on; None: all."""
        check_integer("layer", layer, 0, self.n_layers - 1, self._where)
        return self.window if self.window_layers is None or layer in self.window_layers else None

    def with_layers(self, n_layers: int) -> Model:
        """The same model with its first `n_layers` only. Raises `ConfigError` for more than there are."""
        check_integer("n_layers", n_layers, 1, self.n_layers, self._where)
        kept = None if self.window_layers is None else tuple(i for i in self.window_layers if i < n_layers)
        return replace(self, name=f"{self.name}-{n_layers}layers", n_layers=n_layers, window_layers=kept)

    def pruned(self, ffn: float = 0.0, heads: float = 0.0) -> Model:
        """The model with a fraction of every feed-forward's width and of every layer's heads left out, in smaller dense
        shapes: widths to the nearest multiple of `PRUNED_TO`, heads by whole groups that share keys, the smaller of two
        as near, at least one of each. Raises `ConfigError` for a fraction outside 0 to below 1."""
        for name, fraction in (("ffn", ffn), ("heads", heads)):
            if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction < 1:
                raise ConfigError(f"{name} = {fraction!r}: must be a fraction from 0 to below 1 (pruning)")
        width = max(PRUNED_TO, _nearest(self.d_ff * (1 - ffn) / PRUNED_TO) * PRUNED_TO) if ffn else self.d_ff
        groups = max(1, _nearest(self.kv_heads * (1 - heads)))
        return replace(self, d_ff=min(width, self.d_ff), kv_heads=groups, heads=groups * (self.heads // self.kv_heads))


def _nearest(value: float) -> int:
    """The nearest integer, of two as near always the smaller."""
    return math.ceil(value - 0.5)


FLAGS = tuple(field.name for field in fields(Model) if field.type == "bool")


def _check_text(name: str, value: object) -> None:
    if type(value) is not str or not 0 < len(value) <= MAX_NAME_LENGTH or not value.isprintable():
        raise ConfigError(f"{name} = {str(value)[:80]!r}: must be printable text of 1 to {MAX_NAME_LENGTH} characters")
