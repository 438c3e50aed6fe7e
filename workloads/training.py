"""A training step of a model as operations: forward, backward from the last operation to the first, optimizer.

Backward follows from forward as automatic differentiation does it: a product has two (to its weight and to its input),
attention a kernel of its own, a tensor that several operations read collects their gradients by adds, or by one
concatenation where they read slices of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hwmodels.errors import ConfigError
from workloads.activations import ATTENTIONS
from workloads.attention import MAX_BATCH, MAX_TOKENS, Attention
from workloads.checks import check_choice, check_integer
from workloads.dtypes import BYTES
from workloads.execution import Execution
from workloads.forward import Builder
from workloads.gemm import Gemm
from workloads.models.model import Model
from workloads.operations import Operation, Step, Tensor
from workloads.stream import Stream

WHERE = "training step"
CHECKPOINTING = ("none", "selective", "full")
OPTIMIZERS = ("adamw", "adamw_mixed")
MAX_ACCUMULATED = 4096
STATE_BYTES = {"adamw": 2, "adamw_mixed": 3}
"""Tensors of the optimizer for each parameter: two moments; and the fp32 weights."""
NORMS = ("rms_norm", "layer_norm")


@dataclass(frozen=True)
class Training:
    """How a model is trained.

    `checkpointing`: "none" keeps all activations; "full" keeps each layer's input and runs the layer again before its
    backward; "selective" runs attention again. `optimizer`: "adamw" on parameters and moments of the model's type;
    "adamw_mixed" on fp32 weights and moments, from gradients of the model's type. `accumulated`: passes before one
    optimizer step. `layers_only`: no embedding and no head, as training_steps.csv was measured.
    """

    checkpointing: str = "none"
    optimizer: str = "adamw_mixed"
    accumulated: int = 1
    layers_only: bool = False

    def __post_init__(self) -> None:
        check_choice("checkpointing", self.checkpointing, CHECKPOINTING, WHERE)
        check_choice("optimizer", self.optimizer, OPTIMIZERS, WHERE)
        check_integer("accumulated", self.accumulated, 1, MAX_ACCUMULATED, WHERE)


def check_optimizer(execution: Execution, training: Training) -> None:
    """Refuse fp32 weights beside those that are fp32 already."""
    if execution.dtype == "fp32" and training.optimizer == "adamw_mixed":
        raise ConfigError(f"optimizer = 'adamw_mixed': must be adamw with dtype = 'fp32' ({WHERE})")


def forward_step(model: Model, execution: Execution, training: Training, batch: int, tokens: int) -> Step:
    """The forward pass alone, over `batch` sequences of `tokens`."""
    builder = _forward(model, execution, training, batch, tokens)
    return builder.step(f"{model.name}, forward of {batch} x {tokens} tokens")


def backward_step(
    model: Model, execution: Execution, training: Training, batch: int, tokens: int, attention: str = "fused"
) -> Step:
    """Forward and backward of one pass; `attention` as in `training_step`."""
    builder = _forward(model, execution, training, batch, tokens)
    operations = (*builder.operations, *_backward(builder, training, attention))
    label = f"{model.name}, forward and backward of {batch} x {tokens} tokens"
    return Step(label, operations, builder.tensors)


def optimizer_step(model: Model, execution: Execution, training: Training) -> Step:
    """The optimizer's update of every parameter."""
    check_optimizer(execution, training)
    even = replace(execution, balance="even")
    builder = _forward(model, even, training, 1, max(1, model.n_experts))  # so that no expert goes without tokens
    operation = _optimizer(builder, training)
    names = {name for _, name in operation.reads} | set(operation.writes)
    tensors = {name: builder.tensors[name] for name in builder.tensors if name in names}
    return Step(f"{model.name}, optimizer", (operation,), tensors)


def training_step(
    model: Model, execution: Execution, training: Training, batch: int, tokens: int, attention: str = "fused"
) -> Step:
    """All of one optimizer step: passes of `batch` sequences each, gradients added up, and the update. `attention`:
    "fused", whose backward forms its scores again, or "unfused", whose forward kept its probabilities."""
    check_choice("attention", attention, ATTENTIONS, WHERE)
    check_optimizer(execution, training)
    builder = _forward(model, execution, training, batch, tokens)
    forward = tuple(builder.operations)
    one = (*forward, *_backward(builder, training, attention))
    adds = tuple(_accumulations(builder))
    later = (*one, *adds) * (training.accumulated - 1)
    operations = (*one, *later, _optimizer(builder, training))
    label = f"{model.name}, training step of {training.accumulated} x {batch} x {tokens} tokens"
    return Step(label, operations, builder.tensors)


def _forward(model: Model, execution: Execution, training: Training, batch: int, tokens: int) -> Builder:
    check_integer("batch", batch, 1, MAX_BATCH, WHERE)
    check_integer("tokens", tokens, 1, MAX_TOKENS, WHERE)
    if execution.kv_dtype or execution.page:
        raise ConfigError(f"kv_dtype, page: must not be given, training has no cache ({WHERE})")
    if execution.compressed:
        raise ConfigError(f"weights, matmul_dtype, lora_rank, low_rank: must not be given in training ({WHERE})")
    builder = Builder(model, execution, batch, tokens, 0, cache=False)
    if training.layers_only:
        builder.activation("x", model.d_model)
    else:
        builder.embed()
    for layer in range(model.n_layers):
        builder.layer = layer
        builder.decoder_layer()
    builder.layer = model.n_layers
    if not training.layers_only:
        builder.finish(all_logits=True, loss=True)
    if training.checkpointing == "full":
        builder.operations = _entered(builder.operations, model.n_layers, "checkpoint")
    return builder


def _entered(operations: list[Operation], n_layers: int, host: str) -> list[Operation]:
    """The same, with what the host does as it enters each layer."""
    before = [-1, *(operation.layer for operation in operations)]
    return [
        replace(operation, host=host) if operation.layer != last and 0 <= operation.layer < n_layers else operation
        for operation, last in zip(operations, before, strict=False)
    ]


# Backward.
def _backward(builder: Builder, training: Training, attention: str) -> list[Operation]:
    """Operations of the backward pass, with what checkpointing runs again before each layer's."""
    forward = list(builder.operations)
    tape = _Tape(builder, forward, attention)
    done: list[Operation] = [tape.seed()]
    for i in reversed(range(len(forward))):
        last_of_layer = i + 1 == len(forward) or forward[i + 1].layer != forward[i].layer
        if last_of_layer and 0 <= forward[i].layer < builder.model.n_layers:
            done += _again(forward, forward[i].layer, training.checkpointing)
        done += tape.backward(i)
    return done


def _again(forward: list[Operation], layer: int, checkpointing: str) -> list[Operation]:
    """What is run a second time before the backward of `layer`."""
    if checkpointing == "none":
        return []
    own = [operation for operation in forward if operation.layer == layer]
    if checkpointing == "selective":
        return [replace(operation, again=True) for operation in own if isinstance(operation.work, Attention)]
    first, *others = (replace(operation, host="", again=True) for operation in own)
    return [replace(first, host="recompute"), *others]


class _Tape:
    """Forward operations with every write a tensor of its own, and the gradients collected so far."""

    def __init__(self, builder: Builder, forward: list[Operation], attention: str) -> None:
        self.builder = builder
        self.attention = attention
        self.rows = builder.rows
        self.forward = forward
        self.element_bytes = builder.element_bytes
        self.versions: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
        self.contributions: dict[str, int] = {}
        self.sliced: dict[str, bool] = {}
        latest: dict[str, int] = {}
        for operation in forward:
            reads = tuple(f"{name}#{latest.get(name, 0)}" for _, name in operation.reads)
            for name in operation.writes:
                latest[name] = latest.get(name, 0) + 1
            self.versions.append((reads, tuple(f"{name}#{latest[name]}" for name in operation.writes)))
            for version, (_, name) in zip(reads, operation.reads, strict=True):
                packed = _reads_slice(operation, builder.tensors[name])
                self.sliced[version] = self.sliced.get(version, False) or packed

    def seed(self) -> Operation:
        """The gradient of the last result: of log-probabilities, in fp32; or ones."""
        last = self.forward[-1]
        is_loss = isinstance(last.work, Stream) and last.work.op == "log_softmax"
        dtype = "fp32" if is_loss else self.dtype
        elements = self.builder.tensors[last.writes[0]].n_bytes // BYTES[dtype]
        name = self.gradient(last.writes[0], last.writes[0]) if is_loss else self.gradient("last")
        self.contributions.update(dict.fromkeys(self.versions[-1][1], 1))
        return self.operation("gradient of the loss", Stream("fill", 1, elements, dtype), (), name, -1)

    @property
    def dtype(self) -> str:
        """Type of activations and gradients."""
        return self.builder.execution.dtype

    def gradient(self, name: str, like: str | None = None) -> str:
        """A gradient as large as a tensor."""
        n_bytes = self.builder.tensors[like].n_bytes if like else self.element_bytes
        return self.builder.tensor(f"d {name}", n_bytes, "activation")

    def weight_gradient(self, weight: str) -> str:
        """The gradient of a weight, as large as it."""
        return self.builder.tensor(f"{weight} gradient", self.builder.tensors[weight].n_bytes, "gradient")

    def operation(
        self, name: str, work: Gemm | Attention | Stream, reads: tuple[tuple[str, str], ...], to: str, layer: int
    ) -> Operation:
        """One operation of the backward pass."""
        return Operation(name, work, reads, (to,), layer)

    def backward(self, i: int) -> list[Operation]:
        """The backward of forward operation `i`, after the gradients of its results are brought together."""
        operation = self.forward[i]
        reads, writes = self.versions[i]
        found = [
            each
            for version, name in zip(writes, operation.writes, strict=True)
            for each in self.joined(version, name, operation)
        ]
        for version in dict.fromkeys(reads):
            self.contributions[version] = self.contributions.get(version, 0) + 1
        return found + _derivative(self, operation)

    def joined(self, version: str, name: str, operation: Operation) -> list[Operation]:
        """Adds, or a concatenation, that make one gradient of those of a tensor's readers."""
        n = self.contributions.get(version, 0)
        tensor = self.builder.tensors[name]
        if n == 0 or tensor.kind != "activation":
            return []
        elements = tensor.n_bytes // self.element_bytes
        to, layer = self.gradient(name, name), operation.layer
        if self.sliced.get(version):
            work = Stream("concat", self.rows, max(1, elements // self.rows), self.dtype)
            return [self.operation(f"concatenate d {name}", work, (("x", to),), to, layer)]
        add = Stream("add", 1, elements, self.dtype)
        return [self.operation(f"add d {name}", add, (("x", to), ("x", to)), to, layer) for _ in range(n - 1)]


def _reads_slice(operation: Operation, tensor: Tensor) -> bool:
    """Whether the operation reads a part of a packed tensor."""
    work, names = operation.work, [name for _, name in operation.reads]
    if isinstance(work, Stream):
        return work.strided and tensor.n_bytes > work.elements * work.element_bytes
    return isinstance(work, Attention) and names.count(tensor.name) > 1


def _derivative(tape: _Tape, operation: Operation) -> list[Operation]:
    work = operation.work
    if isinstance(work, Gemm):
        return _of_product(tape, operation, work)
    if isinstance(work, Attention):
        return _of_attention(tape, operation, work)
    return _of_stream(tape, operation, work)


def _of_product(tape: _Tape, operation: Operation, work: Gemm) -> list[Operation]:
    """To the weight, dW = dC^T A, and to the input, dA = dC W; a bias's is the sum of dC's rows."""
    (_, source), (_, weight), *_ = operation.reads
    out, layer = f"d {operation.writes[0]}", operation.layer
    tape.gradient(operation.writes[0], operation.writes[0])
    found: list[Operation] = []
    if work.epilogue in ("bias_gelu", "bias_silu", "bias_relu"):
        op = work.epilogue.removeprefix("bias_") + "_backward"
        elements = Stream(op, work.batch * work.m, work.n, work.dtype)
        found.append(
            tape.operation(f"{operation.name}: d activation", elements, (("x", out), ("x", source)), out, layer)
        )
    bias = dict(operation.reads).get("bias")
    if bias:
        total = Stream("reduce", 1, work.batch * work.n, work.dtype, fan_in=work.m)
        to = tape.weight_gradient(bias)
        found.append(tape.operation(f"{operation.name}: d bias", total, (("x", out),), to, layer))
    stored_outputs_first = work.layout == "tn"
    to_weight = (
        Gemm(work.n, work.k, work.m, work.batch, work.dtype, layout="nt")
        if stored_outputs_first
        else Gemm(work.k, work.n, work.m, work.batch, work.dtype, layout="nt")
    )
    to_input = Gemm(work.m, work.k, work.n, work.batch, work.dtype, layout="nn" if stored_outputs_first else "tn")
    gradient = tape.weight_gradient(weight)
    found.append(tape.operation(f"{operation.name}: d weight", to_weight, (("a", out), ("b", source)), gradient, layer))
    to = tape.gradient(source, source)
    found.append(tape.operation(f"{operation.name}: d input", to_input, (("a", out), ("b", weight)), to, layer))
    return found


def _of_attention(tape: _Tape, operation: Operation, work: Attention) -> list[Operation]:
    """Its backward call. It also adds up what query heads that share keys give for them, last of all it touches."""
    out, layer = tape.gradient(operation.writes[0], operation.writes[0]), operation.layer
    roles = dict(operation.reads)
    kept = tape.attention == "unfused"  # then its probabilities are there, which lie in no tensor of the forward pass
    reads = (*operation.reads, *(() if kept else (("o", operation.writes[0]),)), ("do", out))
    backward = replace(work, phase="backward_kept" if kept else "backward")
    found = tape.operation("attention: backward", backward, reads, tape.gradient(roles["q"], roles["q"]), layer)
    if work.group == 1:
        return [found]
    n_bytes = work.group * work.batch * work.kv_heads * work.kv_len * work.head_dim * work.element_bytes
    each = (tape.builder.tensor(f"d {name} of query heads", n_bytes, "activation") for name in "kv")
    return [replace(found, writes=(*found.writes, *each))]


ALIKE = ("rope", "neg", "transpose", "cast", "scale")
"""Streams whose backward is as they are."""
PASSED_ON = ("add", "fill", "copy", "concat")
"""Streams whose gradient is handed on as it is."""


def _of_stream(tape: _Tape, operation: Operation, work: Stream) -> list[Operation]:
    if work.op in PASSED_ON:
        return []
    out, layer = f"d {operation.writes[-1]}", operation.layer
    tape.gradient(operation.writes[-1], operation.writes[-1])
    reads = (("x", out), *operation.reads)
    to = tape.gradient(operation.writes[-1], operation.writes[-1])
    if work.op == "mul":
        plain = replace(work, strided=False)
        return [tape.operation(f"{operation.name}: backward", each, reads, to, layer) for each in (plain, work)]
    if work.op == "log_softmax":
        return [_of_log_softmax(tape, operation, work)]
    if work.op == "embedding" and tape.builder.tensors[operation.reads[0][1]].kind == "weight":
        return _of_table(tape, operation, work)
    if work.op == "reduce":  # each of its inputs gets a copy
        each = replace(work, op="copy", rows=work.rows * work.fan_in, fan_in=1)
        return [tape.operation(f"{operation.name}: backward", each, (("x", out),), to, layer)]
    norm = next((norm for norm in NORMS if work.op.endswith(norm)), None)
    if norm:
        total = Stream("reduce", 1, 2 * work.width, work.dtype, fan_in=work.rows)  # over gradients and inputs
        weight = tape.weight_gradient(operation.reads[-1][1])
        return [
            tape.operation(f"{operation.name}: backward", replace(work, op=f"{norm}_backward"), reads, to, layer),
            tape.operation(f"{operation.name}: d weight", total, reads, weight, layer),
        ]
    names = _backward_ops(work.op)
    works = [replace(work, op=name, out_dtype=None) for name in names]
    return [tape.operation(f"{operation.name}: backward", each, reads, to, layer) for each in works]


def _of_log_softmax(tape: _Tape, operation: Operation, work: Stream) -> Operation:
    """From the gradient of log-probabilities and these, that of the logits."""
    (_, source), result = operation.reads[0], operation.writes[0]
    dtype = work.out_dtype or work.dtype
    backward = replace(work, op="log_softmax_backward", dtype=dtype, out_dtype=work.dtype)
    reads, to = (("x", f"d {result}"), ("x", result)), tape.gradient(source, source)
    return tape.operation(f"{operation.name}: backward", backward, reads, to, operation.layer)


def _of_table(tape: _Tape, operation: Operation, work: Stream) -> list[Operation]:
    """A gradient of the whole table, cleared, with the rows added that were gathered; added to the head's where both
    share the table."""
    table, layer = operation.reads[0][1], operation.layer
    elements = tape.builder.tensors[table].n_bytes // tape.element_bytes
    shared = f"{table} gradient" in tape.builder.tensors
    to = tape.gradient(table, table) if shared else tape.weight_gradient(table)
    add = replace(work, op="embedding_backward")
    reads = (("x", f"d {operation.writes[0]}"),)
    found = [
        tape.operation(f"{operation.name}: clear", Stream("fill", 1, elements, work.dtype), (), to, layer),
        tape.operation(f"{operation.name}: backward", add, reads, to, layer),
    ]
    if shared:
        both = (("x", to), ("x", tape.weight_gradient(table)))
        found.append(
            tape.operation(f"{operation.name}: add", Stream("add", 1, elements, work.dtype), both, both[1][1], layer)
        )
    return found


def _backward_ops(op: str) -> tuple[str, ...]:
    """Operations that the backward of one of a tensor by itself takes."""
    if op in ALIKE:
        return (op,)
    if op in ("silu_mul", "gelu_mul", "relu_mul"):
        return ("mul", op.removesuffix("_mul") + "_backward")
    return (f"{op}_backward",)


# The optimizer.
def _parameters(builder: Builder) -> list[Tensor]:
    return [tensor for tensor in builder.tensors.values() if tensor.kind == "weight"]


def _optimizer(builder: Builder, training: Training) -> Operation:
    """One fused update of all parameters."""
    n = sum(tensor.n_bytes for tensor in _parameters(builder)) // builder.element_bytes
    wide = BYTES["fp32"] if training.optimizer == "adamw_mixed" else builder.element_bytes
    builder.tensor("parameters", n * builder.element_bytes, "view")
    builder.tensor("gradients", n * builder.element_bytes, "view")
    builder.tensor("optimizer state", n * wide * STATE_BYTES[training.optimizer], "optimizer")
    reads = (("x", "parameters"), ("x", "gradients"), ("x", "optimizer state"))
    work = Stream(training.optimizer, 1, n, builder.execution.dtype)
    return Operation("optimizer", work, reads, ("parameters", "optimizer state"), builder.model.n_layers)


def _accumulations(builder: Builder) -> list[Operation]:
    """Each weight's gradient added to those of the passes before."""
    found = []
    for tensor in _parameters(builder):
        gradient = f"{tensor.name} gradient"
        if gradient in builder.tensors:
            work = Stream("add", 1, tensor.n_bytes // builder.element_bytes, builder.execution.dtype)
            found.append(Operation(f"accumulate {gradient}", work, (("x", gradient),), (gradient,)))
    return found
