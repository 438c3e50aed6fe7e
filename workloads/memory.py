"""The memory plan of a phase: exact bytes alive by part, at every point of a step. No hardware is known here.

Tensors only: an allocator's rounding, fragmentation, library workspaces (but what `workspace_bytes` states) and the
CUDA context come on top.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from workloads.activations import (
    STATISTIC_BYTES,
    Activations,
    backward_transient_bytes,
    layer_activation_bytes,
    layer_steps,
    live_bytes,
    recomputed_activations,
)
from workloads.attention import MAX_TOKENS
from workloads.checks import check_choice, check_flag, check_integer
from workloads.dtypes import BYTES
from workloads.gemm import Gemm
from workloads.models.counts import (
    check_context,
    check_tokens,
    kv_cache_bytes,
    layer_parameters,
    norm_parameters,
    parameters,
)
from workloads.models.model import Model
from workloads.weights import WeightFormat, weight_bytes

WHERE = "memory plan"
MAX_WORKSPACE_BYTES = 2**50
LOGIT_BYTES = 4
"""Log-probabilities are fp32."""


class Point(NamedTuple):
    """What is alive while one operation runs: bytes by part."""

    operation: str
    parts: dict[str, int]

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class MemoryPlan:
    """Points of a step in order. Parts of inference: weights, kv_cache, activations, logits, workspace; of training:
    weights, gradients, optimizer, activations, recomputed, transient, logits, workspace."""

    model: str
    phase: str
    points: tuple[Point, ...] = field(repr=False)

    @property
    def peak(self) -> Point:
        """The first of the points with most bytes."""
        return max(self.points, key=lambda point: point.total)

    @property
    def peak_bytes(self) -> int:
        """Bytes alive at the peak."""
        return self.peak.total

    def largest(self, part: str) -> int:
        """Most bytes that one part takes at any point."""
        return max(point.parts.get(part, 0) for point in self.points)


# Inference.
def inference_plan(
    model: Model,
    batch: int,
    q_len: int,
    context: int = 0,
    *,
    weights: str | WeightFormat = "bf16",
    kv_dtype: str | None = None,
    cache_tokens: int | None = None,
    how: Activations | None = None,
    last_only: bool = True,
    statistics: bool = False,
    workspace_bytes: int = 0,
    beyond_context: bool = False,
) -> MemoryPlan:
    """One pass of `q_len` new tokens a sequence behind `context` cached ones: prefill, or a decode step (q_len = 1).

    The KV cache is there from the start with room for `cache_tokens` a sequence (None: context + q_len), in `kv_dtype`
    (None: that of the activations); layers with a window keep its tokens only. The head works on the last token of
    each sequence, unless `last_only` is False; logits and their fp32 log-probabilities are alive together, or there
    are `statistics` of logits alone (epilogue "row_stats" of `workloads.gemm`).
    `beyond_context`: allow more tokens than the model was made for.

    Raises `ConfigError` for sizes out of range and contexts beyond the model's.
    """
    how = how or Activations()
    check_tokens(model, batch, q_len, context)
    check_flag("last_only", last_only, WHERE)
    check_flag("statistics", statistics, WHERE)
    check_integer("workspace_bytes", workspace_bytes, 0, MAX_WORKSPACE_BYTES, WHERE)
    n_tokens = _cache_tokens(context + q_len, cache_tokens)
    if not beyond_context:
        check_context(model, n_tokens)
    always = {
        "weights": sum(weight_bytes(model, weights).values()),
        "kv_cache": kv_cache_bytes(model, batch, n_tokens, kv_dtype or how.dtype),
        "workspace": workspace_bytes,
    }
    n_rows = batch * (1 if last_only else q_len)
    logits = _inference_logits(model, n_rows, how, statistics)
    alive = _inference_points(model, batch, q_len, context, how, n_rows, logits)
    points = (Point(name, {**always, "activations": n_bytes, "logits": rest}) for name, n_bytes, rest in alive)
    return MemoryPlan(model.name, "decode" if context and q_len == 1 else "prefill", tuple(points))


def _cache_tokens(needed: int, given: int | None) -> int:
    if given is not None:
        check_integer("cache_tokens", given, needed, MAX_TOKENS, WHERE)
    return given or needed


def _inference_points(
    model: Model, batch: int, q_len: int, context: int, how: Activations, n_rows: int, logits: int
) -> Iterator[tuple[str, int, int]]:
    """(operation, bytes of activations, bytes of logits): all layers are alike; the head sees `n_rows` tokens."""
    hidden = batch * q_len * model.d_model * how.element_bytes
    table = batch * q_len * model.table_width * how.element_bytes if model.embedding_dim is not None else 0
    yield "embedding", hidden + table, 0
    layer = tuple(live_bytes(layer_steps(model, batch, q_len, context, how), {"input": hidden}))
    for i in range(model.n_layers):
        for operation, n_bytes in layer:
            yield f"layer {i} {operation}", n_bytes, 0
    normed = n_rows * model.d_model * how.element_bytes * model.final_norm
    yield "head", hidden + normed, logits


def _inference_logits(model: Model, n_rows: int, how: Activations, statistics: bool) -> int:
    if statistics:
        return Gemm(n_rows, model.vocabulary, 1, epilogue="row_stats").c_bytes if model.head != "none" else 0
    return 0 if model.head == "none" else n_rows * model.vocabulary * (how.element_bytes + LOGIT_BYTES)


# Training.
@dataclass(frozen=True)
class Recipe:
    """Types of what training keeps for each parameter: weights, gradients, a master copy if there is one, and the
    optimizer's `n_moments` moments (Adam: two; momentum: one; plain descent: none)."""

    weights: str = "bf16"
    gradients: str = "bf16"
    master: str | None = "fp32"
    moments: str = "fp32"
    n_moments: int = 2

    def __post_init__(self) -> None:
        for name in ("weights", "gradients", "moments"):
            check_choice(name, getattr(self, name), ("fp32", "fp16", "bf16"), WHERE)
        if self.master is not None:
            check_choice("master", self.master, ("fp32",), WHERE)
        check_integer("n_moments", self.n_moments, 0, 2, WHERE)

    @property
    def optimizer_bytes(self) -> int:
        """Bytes of master copy and moments for each parameter."""
        return (BYTES[self.master] if self.master else 0) + self.n_moments * BYTES[self.moments]

    @property
    def bytes_per_parameter(self) -> int:
        """Bytes of everything for each parameter."""
        return BYTES[self.weights] + BYTES[self.gradients] + self.optimizer_bytes


RECIPES = {
    "mixed": Recipe(),
    "mixed_fp32_gradients": Recipe(gradients="fp32"),
    "bf16": Recipe(master=None, moments="bf16"),
    "fp32": Recipe(weights="fp32", gradients="fp32", master=None),
}
"""AdamW: mixed precision with fp32 master weights (16 bytes a parameter; Rajbhandari et al. 2020, "ZeRO", section
3.1), the same with gradients accumulated in fp32 (18), all in bf16 (8), all in fp32 (16)."""


def training_plan(
    model: Model,
    batch: int,
    seq: int,
    *,
    recipe: str | Recipe = "mixed",
    how: Activations | None = None,
    accumulated: bool = False,
    loss_rows: int | None = None,
    layers_only: bool = False,
    workspace_bytes: int = 0,
    beyond_context: bool = False,
) -> MemoryPlan:
    """One step: forward, loss, backward, optimizer, of a micro-batch of `batch` sequences of `seq` tokens.

    Gradients come to life layer by layer in backward; `accumulated`: those of earlier micro-batches are there from the
    start. The loss keeps fp32 log-probabilities of `loss_rows` tokens at a time (None: of all). `layers_only`: no
    embedding, last norm or head, as in the measured steps. `beyond_context`: allow more tokens than the model was made
    for.

    Raises `ConfigError` for sizes out of range, an unknown recipe and more tokens than the model's context.
    """
    how, recipe = how or Activations(), _recipe(recipe)
    check_tokens(model, batch, seq)
    if not beyond_context:
        check_context(model, seq)
    check_flag("accumulated", accumulated, WHERE)
    check_flag("layers_only", layers_only, WHERE)
    check_integer("workspace_bytes", workspace_bytes, 0, MAX_WORKSPACE_BYTES, WHERE)
    if loss_rows is not None:
        check_integer("loss_rows", loss_rows, 1, MAX_TOKENS, WHERE)
    step = _TrainingStep(model, batch, seq, how, recipe, accumulated, loss_rows, layers_only, workspace_bytes)
    return MemoryPlan(model.name, "training", tuple(step.points()))


def _recipe(which: str | Recipe) -> Recipe:
    if isinstance(which, Recipe):
        return which
    check_choice("recipe", which, tuple(RECIPES), WHERE)
    return RECIPES[which]


class _TrainingStep(NamedTuple):
    """A step with all its options, walked from start to end."""

    model: Model
    batch: int
    seq: int
    how: Activations
    recipe: Recipe
    accumulated: bool
    loss_rows: int | None
    layers_only: bool
    workspace_bytes: int

    def points(self) -> Iterator[Point]:
        """Every point of the step."""
        n_layers, kept = self.model.n_layers, layer_activation_bytes(self.model, self.batch, self.seq, self.how)
        outer = 0 if self.layers_only else self.hidden_bytes * self.how.dropout // self.how.element_bytes
        working = self.forward_working_bytes(kept)
        for i in range(n_layers):
            yield self.point(f"forward layer {i}", 0, activations=outer + i * kept + max(kept, working))
        yield from self.loss_points(outer + n_layers * kept)
        again = recomputed_activations(self.model, self.batch, self.seq, self.how)
        transient = backward_transient_bytes(self.model, self.batch, self.seq, self.how)
        for i in reversed(range(n_layers)):
            n_ready = self.head_parameters + (n_layers - i) * layer_parameters(self.model)
            alive = {"activations": outer + (i + 1) * kept, "recomputed": again, "transient": transient}
            yield self.point(f"backward layer {i}", n_ready, **alive)
        yield self.point("optimizer", self.n_parameters)

    def point(self, operation: str, n_ready: int, **alive: int) -> Point:
        """`n_ready`: parameters whose gradient is there, unless all are."""
        recipe, n_gradients = self.recipe, self.n_parameters if self.accumulated else n_ready
        always = {
            "weights": self.n_parameters * BYTES[recipe.weights],
            "gradients": n_gradients * BYTES[recipe.gradients],
            "optimizer": self.n_parameters * recipe.optimizer_bytes,
            "workspace": self.workspace_bytes,
        }
        return Point(operation, {**always, **alive})

    def loss_points(self, kept: int) -> Iterator[Point]:
        """The last norm, the head, and the loss with the gradient of its logits. A chunked loss forms each chunk's
        gradient at once, so that of the head is there from the first chunk on."""
        if self.layers_only:
            return
        n_tokens, model = self.batch * self.seq, self.model
        statistics = n_tokens * STATISTIC_BYTES * (1 if model.norm == "rms_norm" else 2)
        alive = kept + (2 * self.hidden_bytes + statistics if model.final_norm else self.hidden_bytes)
        if model.head == "none":
            yield self.point("head", 0, activations=alive)
            return
        elements = min(self.loss_rows or n_tokens, n_tokens) * model.vocabulary
        logits = elements * (self.how.element_bytes + LOGIT_BYTES)
        is_chunked = elements < n_tokens * model.vocabulary
        n_ready = self.head_parameters
        yield self.point("loss", n_ready if is_chunked else 0, activations=alive, logits=logits)
        gradient = elements * self.how.element_bytes
        transient = {"transient": self.hidden_bytes, "logits": logits + gradient}
        yield self.point("loss backward", n_ready, activations=alive, **transient)

    @property
    def n_parameters(self) -> int:
        """Parameters that are trained."""
        n_all = parameters(self.model).total
        return self.model.n_layers * layer_parameters(self.model) if self.layers_only else n_all

    @property
    def hidden_bytes(self) -> int:
        """Bytes of [tokens, d_model]."""
        return self.batch * self.seq * self.model.d_model * self.how.element_bytes

    @property
    def head_parameters(self) -> int:
        """Parameters whose gradients are there before backward enters the layers: of the last norm and the head, and
        of the embedding if the head shares its table."""
        if self.layers_only:
            return 0
        counted = parameters(self.model)
        norm = self.model.final_norm * norm_parameters(self.model)
        return counted.head + norm + (counted.embedding if self.model.tied else 0)

    def forward_working_bytes(self, kept: int) -> int:
        """Most bytes alive inside a layer's forward: under full checkpointing nothing else of it is kept."""
        if self.how.checkpointing != "full":
            return kept + self.hidden_bytes
        steps = layer_steps(self.model, self.batch, self.seq, 0, self.how)
        return max(n_bytes for _, n_bytes in live_bytes(steps, {"input": self.hidden_bytes}))
