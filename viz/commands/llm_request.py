"""From the words of a command line to what `sim.llm.simulate_llm` takes; contradicting options are refused by name."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hwmodels.errors import ConfigError
from sim.program import LAUNCH_MODES
from viz.commands.llm_options import BACKENDS, PHASES, PHASES_OF, StepOptions
from viz.commands.llm_words import in_options
from viz.commands.values import choice, integer, mhz, number, optional_integer, refused
from workloads.attention import MAX_BATCH, MAX_TOKENS
from workloads.execution import BALANCES, Execution
from workloads.gemm import MAX_DIMENSION
from workloads.models.model import PRUNED_TO

if TYPE_CHECKING:
    from hwmodels.spec import Gpu
    from sim.call import Options
    from sim.llm import How
    from workloads.llm import Llm
    from workloads.models.model import Model
    from workloads.training import Training

USUAL_DTYPE, USUAL_ATTENTION = "bf16", "flash"
WIDEST = 256
"""Head dimension that FlashAttention takes, as in `sim.schedule.attention`."""
MOST_PRUNED = 0.99
TOKENS, NEW_TOKENS = 2048, 128
"""Where nothing else is said, and the model's context holds them."""


@dataclass(frozen=True)
class Request:
    """The arguments of `simulate_llm`."""

    llm: Llm
    gpu: Gpu
    options: Options
    how: How
    notes: tuple[str, ...] = ()
    """What was chosen for the GPU where nothing was said, if it is not the usual; what is left of a pruned model."""
    pruned: dict[str, float] = field(default_factory=dict)
    """Of a pruned model: fractions left out, and what its layers have left, as JSON tells them."""


def request(options: StepOptions) -> Request:
    """Everything that is to be simulated. Raises `ConfigError` for the first thing that is wrong."""
    refuse_contradictions(options)
    sizes, training, clock_mhz = _sizes(options), _training(options), mhz("--clock", options.clock)
    choice("--launch", options.launch, LAUNCH_MODES)
    choice("--attention", options.attention, BACKENDS)
    with in_options(options):
        _execution(options, options.dtype or USUAL_DTYPE)
    from hwmodels.catalog import load_gpu
    from sim.call import Options
    from workloads.models.catalog import load_model

    model = load_model(options.model)
    _refuse_what_the_model_lacks(options, model)
    gpu = load_gpu(options.gpu, options.sets or ())
    whole, (model, fractions) = model, _pruned(options, model)
    dtype, attention, notes = _suited(options, model, gpu)
    notes = (*_pruning(whole, model), *notes)
    with in_options(options):
        llm = _llm(options, model, sizes, _execution(options, dtype), training)
    pruned = (
        {**fractions, **{name: getattr(model, name) for name in ("d_ff", "heads", "kv_heads")}} if fractions else {}
    )
    how = _how(options, attention)
    return Request(llm, gpu, Options(clock_mhz=clock_mhz, sustained=options.sustained), how, notes, pruned)


def _sizes(options: StepOptions) -> tuple[int, int | None, int | None, int]:
    """Batch, tokens, context, new tokens."""
    return (
        integer("--batch", options.batch, MAX_BATCH),
        optional_integer("--tokens", options.tokens, MAX_TOKENS),
        optional_integer("--context", options.context, MAX_TOKENS),
        optional_integer("--new-tokens", options.new_tokens, MAX_TOKENS) or NEW_TOKENS,
    )


def _llm(
    options: StepOptions,
    model: Model,
    sizes: tuple[int, int | None, int | None, int],
    execution: Execution,
    training: Training,
) -> Llm:
    from workloads.llm import Llm

    batch, tokens, context, new_tokens = sizes
    behind = new_tokens - 1 if options.phase == "generate" else 0
    return Llm(
        model,
        options.phase,
        batch,
        tokens or max(1, min(TOKENS, model.max_context - behind)),
        context or max(1, min(TOKENS, model.max_context - 1)),
        new_tokens,
        execution,
        training,
    )


def _pruned(options: StepOptions, model: Model) -> tuple[Model, dict[str, float]]:
    """The model without what is left out, and the fractions that were asked for, by option. Raises `ConfigError` for
    one of which nothing is left when it is rounded."""
    given = {name: number(_flag(name), getattr(options, name), 0, MOST_PRUNED) or 0.0 for name in LEFT_OUT}
    pruned = model.pruned(given["prune_ffn"], given["prune_heads"])
    for name, of in LEFT_OUT.items():
        if given[name] and getattr(pruned, of) == getattr(model, of):
            raise refused(_flag(name), getattr(options, name), _least_pruned(name, model))
    return pruned, {name: fraction for name, fraction in given.items() if fraction}


LEFT_OUT = {"prune_ffn": "d_ff", "prune_heads": "kv_heads"}
"""Options that prune -> what of the model gets smaller."""


def _least_pruned(name: str, model: Model) -> str:
    """What a fraction that is rounded away must be, in words: 0, or the smallest that is not."""
    n, size, of = (model.kv_heads, 1, "heads of keys") if name == "prune_heads" else (model.d_ff, PRUNED_TO, "wide")
    left = (math.ceil(n / size) - 1) * size
    if not left:
        return f"0, {model.name} has no more than {n} {of}"
    least = 1 - (left + size / 2) / n
    return f"0 or {math.ceil(least * 1e6) / 1e6:g} at least, which leaves {left:,} of {n:,} {of}"


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _pruning(whole: Model, model: Model) -> tuple[str, ...]:
    """What is left of a pruned model, as a note."""
    left = []
    if model.d_ff != whole.d_ff:
        left.append(f"{model.d_ff:,} of {whole.d_ff:,} wide in the feed-forward")
    if model.heads != whole.heads:
        left.append(f"{model.heads} of {whole.heads} heads")
        left += [f"{model.kv_heads} of {whole.kv_heads} heads of keys"] if whole.kv_heads != whole.heads else []
    return (f"Pruned: {', '.join(left)}.",) if left else ()


def _suited(options: StepOptions, model: Model, gpu: Gpu) -> tuple[str, str, tuple[str, ...]]:
    """Type and attention, the usual ones or, where none were asked for and the GPU has no such, what it has; and what
    is to be said of that."""
    dtype, attention, notes = options.dtype or USUAL_DTYPE, options.attention or USUAL_ATTENTION, []
    if options.dtype is None and not gpu.tensor.bf16_flops_per_clk_per_sm:
        dtype = "fp16"
        notes.append(f"In fp16, as {gpu.name} has no bf16.")
    why = f"no FlashAttention is known for {gpu.name}, which lacks cp.async" if not gpu.tensor.cp_async else ""
    why = why or (f"FlashAttention takes no {dtype}" if dtype == "fp32" else "")
    why = why or (f"FlashAttention takes heads of {WIDEST} at most" if model.head_dim > WIDEST else "")
    if options.attention is None and why:
        attention = "unfused"
        notes.append(f"Attention is not fused, as {why}.")
    return dtype, attention, tuple(notes)


def refuse_contradictions(options: StepOptions) -> None:
    """Raise `ConfigError` where one option leaves another no say."""
    phase = choice("--phase", options.phase, PHASES)
    for name, phases in PHASES_OF.items():
        if getattr(options, name) and phase not in phases:
            option = _flag(name)
            those = f"{', '.join(phases[:-1])} and {phases[-1]}" if len(phases) > 1 else phases[0]
            raise ConfigError(f"{option} with --phase {phase}: must not be given, it is for {those} (command line)")
    if options.clock is not None and options.sustained:
        raise ConfigError(
            "--clock with --sustained: must be one or the other, a held clock is not what power leaves (command line)"
        )


def _refuse_what_the_model_lacks(options: StepOptions, model: Model) -> None:
    given = next((name for name in ("kv_dtype", "page") if getattr(options, name) is not None), None)
    if given and model.encoder_only:
        raise ConfigError(
            f"{_flag(given)} with {model.name}: must not be given, an encoder has no cache (command line)"
        )
    if options.balance is not None and not model.n_experts:
        raise ConfigError(f"--balance with {model.name}: must not be given, it has no experts (command line)")


def _execution(options: StepOptions, dtype: str) -> Execution:
    return Execution(
        options.program,
        options.fusion,
        dtype,
        options.kv_dtype,
        optional_integer("--page", options.page, MAX_TOKENS),
        weights=options.weights,
        weight_group=optional_integer("--weight-group", options.weight_group, MAX_DIMENSION),
        compress_head=options.compress_head,
        matmul_dtype=options.matmul_dtype,
        low_rank=optional_integer("--low-rank", options.low_rank, MAX_DIMENSION),
        lora_rank=optional_integer("--lora-rank", options.lora_rank, MAX_DIMENSION),
        lora_adapters=optional_integer("--lora-adapters", options.lora_adapters, MAX_BATCH) or 1,
        balance=options.balance or BALANCES[0],
    )


def _training(options: StepOptions) -> Training:
    from workloads.training import MAX_ACCUMULATED, Training

    accumulated = optional_integer("--accumulated", options.accumulated, MAX_ACCUMULATED) or 1
    usual = Training()
    return Training(options.checkpointing or usual.checkpointing, options.optimizer or usual.optimizer, accumulated)


def _how(options: StepOptions, attention: str) -> How:
    from sim.llm import How

    return How(
        launch=options.launch,
        attention=attention,
        cold=options.cold,
        stream_weights=options.stream_weights,
    )
