"""What is asked of a language model: a phase with its sizes, and how its program runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from hwmodels.errors import ConfigError
from workloads.activations import Activations
from workloads.attention import MAX_BATCH, MAX_TOKENS
from workloads.checks import check_choice, check_integer
from workloads.execution import Execution
from workloads.forward import decode, prefill
from workloads.gemm import MAX_DIMENSION
from workloads.memory import MemoryPlan, Point, inference_plan, training_plan
from workloads.models.counts import check_context
from workloads.models.model import Model
from workloads.operations import Step
from workloads.training import Training, check_optimizer, training_step
from workloads.weights import WeightFormat

WHERE = "language model"
PHASES = ("prefill", "decode", "generate", "training")
MAX_NEW_TOKENS = 2**20


@dataclass(frozen=True)
class Llm:
    """One phase of a model.

    "prefill": `tokens` of each of `batch` sequences into an empty cache. "decode": one step, one new token a sequence
    behind `context` cached ones. "generate": prefill of `tokens`, then `new_tokens` steps. "training": a step on
    sequences of `tokens`, as `training` says.

    Raises `ConfigError` for a value outside its range, a phase that the model does not have, or more tokens than its
    context.
    """

    model: Model
    phase: str = "prefill"
    batch: int = 1
    tokens: int = 2048
    context: int = 2048
    new_tokens: int = 128
    execution: Execution = field(default_factory=Execution)
    training: Training = field(default_factory=Training)

    def __post_init__(self) -> None:
        check_choice("phase", self.phase, PHASES, WHERE)
        check_integer("batch", self.batch, 1, MAX_BATCH, WHERE)
        check_integer("tokens", self.tokens, 1, MAX_TOKENS, WHERE)
        check_integer("context", self.context, 1, MAX_TOKENS, WHERE)
        check_integer("new_tokens", self.new_tokens, 1, MAX_NEW_TOKENS, WHERE)
        no_cache = self.model.encoder_only
        if no_cache and self.phase in ("decode", "generate"):
            name = self.model.name
            raise ConfigError(
                f"phase = {self.phase!r}: must be prefill or training for {name}, which has no cache ({WHERE})"
            )
        check_context(self.model, self.longest)
        self._check_rows()
        if self.phase == "training":
            check_optimizer(self.execution, self.training)
        if self.phase == "training" and self.execution.compressed:
            raise ConfigError(f"phase = 'training': not with compressed layers, which are for inference ({WHERE})")

    def _check_rows(self) -> None:
        """All tokens of a pass are rows of one product."""
        each = 1 if self.phase == "decode" else self.tokens
        if self.batch * each > MAX_DIMENSION:
            raise ConfigError(
                f"batch x tokens = {self.batch} x {each} = {self.batch * each}: must be at most {MAX_DIMENSION} in one "
                f"pass ({WHERE})"
            )

    @property
    def longest(self) -> int:
        """Tokens of a sequence at the end of the phase."""
        if self.phase == "decode":
            return self.context + 1
        return self.tokens + self.new_tokens - 1 if self.phase == "generate" else self.tokens

    @property
    def passes(self) -> int:
        """Passes of a training step before the optimizer's."""
        return self.training.accumulated if self.phase == "training" else 1

    def step(self, attention: str = "fused") -> Step:
        """The operations of a prefill, a decode step or a training step; of a generation, its prefill. `attention` as
        for `memory`: what its backward starts from."""
        if self.phase == "decode":
            return decode(self.model, self.execution, self.batch, self.context)
        if self.phase == "training":
            return training_step(self.model, self.execution, self.training, self.batch, self.tokens, attention)
        return prefill(self.model, self.execution, self.batch, self.tokens)

    def decode_step(self, context: int) -> Step:
        """One step of a generation."""
        return decode(self.model, self.execution, self.batch, context)

    def memory(self, attention: str = "fused") -> MemoryPlan:
        """What is alive at every point of the step; of a generation, of its prefill and then of its last step.

        `attention`: "fused", or "unfused" where its matrices go through memory.
        """
        how = Activations(
            dtype=self.execution.dtype,
            attention=attention,
            fused_activation=self.execution.fuses("epilogue"),
            checkpointing=self.training.checkpointing,
        )
        if self.phase == "training":
            return self._training_memory(how)
        if self.phase == "decode":
            return self._pass_memory(1, self.context, how)
        first = self._pass_memory(self.tokens, 0, how)
        if self.phase == "prefill":
            return first
        points = [Point(f"prefill {name}", parts) for name, parts in first.points]
        if self.new_tokens > 1:
            last = self._pass_memory(1, self.longest - 1, how)
            points += [Point(f"last step {name}", parts) for name, parts in last.points]
        return MemoryPlan(self.model.name, "generate", tuple(points))

    def _training_memory(self, how: Activations) -> MemoryPlan:
        unmixed = "fp32" if self.execution.dtype == "fp32" else "bf16"
        return training_plan(
            self.model,
            self.batch,
            self.tokens,
            recipe="mixed" if self.training.optimizer == "adamw_mixed" else unmixed,
            how=how,
            accumulated=self.passes > 1,
            layers_only=self.training.layers_only,
        )

    def _pass_memory(self, q_len: int, context: int, how: Activations) -> MemoryPlan:
        """Of one pass of inference."""
        return inference_plan(
            self.model,
            self.batch,
            q_len,
            context,
            weights=self.weight_format,
            kv_dtype=self.execution.cache_dtype if not self.model.encoder_only else None,
            how=how,
            last_only=not self.model.encoder_only,
            statistics=self.execution.fuses("full") and not (self.model.encoder_only or self.model.head_bias),
        )

    @property
    def weight_format(self) -> WeightFormat:
        """How weights are stored."""
        return self.execution.weight_format

    def but(self, **changes: Any) -> Llm:
        """The same with some fields changed; those of `execution` and `training` are reached by their names."""
        parts: dict[str, dict[str, Any]] = {"": {}, "execution": {}, "training": {}}
        for name, value in changes.items():
            owner = next((part for part in ("execution", "training") if hasattr(getattr(self, part), name)), "")
            parts["" if hasattr(self, name) else owner][name] = value
        inner = {part: replace(getattr(self, part), **parts[part]) for part in ("execution", "training") if parts[part]}
        return replace(self, **inner, **parts[""])

    def describe(self) -> dict[str, Any]:
        """All fields, the model by its own."""
        return {"operation": "llm", **asdict(self)}
