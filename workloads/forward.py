"""A forward pass of a model as operations: prefill, one decode step, or an encoder's pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hwmodels.errors import ConfigError
from workloads.attention import MAX_BATCH, MAX_TOKENS, Attention
from workloads.checks import check_integer
from workloads.dtypes import BYTES
from workloads.execution import Execution
from workloads.experts import experts
from workloads.fusion import with_chains
from workloads.gemm import MAX_DIMENSION, STATISTIC_BYTES, Gemm
from workloads.linear import add_linear, check_model
from workloads.models.model import Model
from workloads.operations import Operation, Step, Tensor, Work
from workloads.stream import Stream

PACKED = ("gpt2", "phi3")
"""Families whose weights hold Q, K and V as one matrix (and gate and up, where there are such)."""
INPUTS_FIRST = ("gpt2",)
"""Families that store weights [inputs, outputs]."""
INDEX_BYTES = 8
ROPE_KERNELS = (("mul", False), ("neg", True), ("concat", True), ("mul", False), ("add", False))
"""x * cos, -x of one half, the halves swapped together, * sin, and the sum: (operation, on slices)."""


def prefill(
    model: Model, execution: Execution, batch: int, tokens: int, *, all_logits: bool = False, cache: bool = True
) -> Step:
    """`tokens` of each of `batch` sequences at once, into an empty cache; logits of the last position, or of all.

    Raises ConfigError for what the model or an operation does not take.
    """
    label = f"prefill of {batch} x {tokens} tokens"
    return _forward(model, execution, label, batch, tokens, 0, all_logits or model.encoder_only, cache)


def decode(model: Model, execution: Execution, batch: int, context: int, tokens: int = 1) -> Step:
    """`tokens` new tokens of each sequence, with `context` in the cache."""
    if model.encoder_only:
        raise ConfigError(f"phase = 'decode': must be prefill or training for {model.name}, which has no cache")
    check_integer("context", context, 0, MAX_TOKENS, "decode step")
    label = f"decode of {batch} x {tokens} tokens behind {context}"
    return _forward(model, execution, label, batch, tokens, context, tokens == 1, True)


def _forward(
    model: Model,
    execution: Execution,
    label: str,
    batch: int,
    tokens: int,
    context: int,
    all_logits: bool,
    cache: bool,
) -> Step:
    check_integer("batch", batch, 1, MAX_BATCH, label)
    check_integer("tokens", tokens, 1, MAX_TOKENS, label)
    if context + tokens > model.max_context:
        raise ConfigError(
            f"context + tokens = {context + tokens}: must be at most {model.max_context}, the context of {model.name}"
        )
    builder = Builder(model, execution, batch, tokens, context, cache and not model.encoder_only)
    builder.embed()
    for layer in range(model.n_layers):
        builder.layer = layer
        builder.decoder_layer()
    builder.layer = model.n_layers
    builder.finish(all_logits)
    step = builder.step(f"{model.name}, {label}")
    return with_chains(step) if execution.fuses("epilogue") else step


class Builder:
    """Operations of a pass as they are asked for. Activations keep one name in all layers, as their memory is used
    again; `x` is what runs through the layers."""

    def __init__(self, model: Model, execution: Execution, batch: int, tokens: int, context: int, cache: bool) -> None:
        check_model(model, execution)
        self.model, self.execution, self.cache = model, execution, cache
        self.batch, self.tokens, self.context = batch, tokens, context
        self.layer = -1
        self.operations: list[Operation] = []
        self.tensors: dict[str, Tensor] = {}
        self.quantised: dict[str, int] = {}
        """Tensors that are there in one byte an element, too -> the operation that wrote them so."""
        self.element_bytes = BYTES[execution.dtype]
        self.pending: str | None = None
        """What the next norm is to add to x first, where adds are fused with norms."""

    @property
    def rows(self) -> int:
        """Rows of activations: tokens of all sequences."""
        return self.batch * self.tokens

    def step(self, label: str) -> Step:
        """What was built."""
        return Step(label, tuple(self.operations), self.tensors)

    # Tensors and single operations.
    def tensor(self, name: str, n_bytes: int, kind: str = "activation") -> str:
        """Have a tensor of this name; returns it."""
        self.tensors.setdefault(name, Tensor(name, n_bytes, kind))
        return name

    def activation(self, name: str, width: int, rows: int | None = None) -> str:
        """An activation of `width` elements a row."""
        return self.tensor(name, (rows or self.rows) * width * self.element_bytes)

    def weight(self, name: str, elements: int = 0, n_bytes: int | None = None) -> str:
        """A weight of this layer."""
        where = f"{self.layer}." if 0 <= self.layer < self.model.n_layers else ""
        return self.tensor(where + name, elements * self.element_bytes if n_bytes is None else n_bytes, "weight")

    def add(self, name: str, work: Work, reads: tuple[tuple[str, str], ...], *writes: str) -> None:
        """One more operation."""
        self.operations.append(Operation(name, work, reads, writes, self.layer))

    def stream(self, name: str, op: str, width: int, reads: tuple[str, ...], *writes: str, strided: bool = False,
               rows: int | None = None, out_dtype: str | None = None) -> None:  # fmt: skip
        """One more streaming operation on all rows."""
        work = Stream(op, rows or self.rows, width, self.execution.dtype, out_dtype, strided)
        weights = [self.tensors[read].kind == "weight" and op != "embedding" for read in reads]
        roles = ["w" if weight else "x" for weight in weights]
        self.add(name, work, tuple(zip(roles, reads, strict=True)), *writes)

    def linear(self, name: str, n: int, k: int, source: str, to: str, *, bias: bool = False, rows: int | None = None,
               epilogue: str | None = None, batch: int = 1) -> str:  # fmt: skip
        """`to` = `source` times a weight [n, k], with its bias; returns `to`."""
        m = rows or self.rows
        if n > MAX_DIMENSION:
            raise ConfigError(f"{name} of {self.model.name}, packed = {n} outputs: must be at most {MAX_DIMENSION}")
        has_bias = bias and not self.execution.measured
        work = Gemm(
            m,
            n,
            k,
            batch=batch,
            dtype=self.execution.dtype,
            layout="nn" if self.model.family in INPUTS_FIRST else "tn",
            epilogue=epilogue or ("bias" if has_bias else "none"),
        )
        add_linear(self, name, work, source, to, f"{name}.weight", f"{name}.bias" if has_bias else None)
        return to

    # The pass.
    def embed(self) -> None:
        """Rows of the embedding, with positions and norms where the model has them."""
        model = self.model
        self.tensor("tokens", self.rows * INDEX_BYTES, "input")
        x = self.activation("x", model.d_model)
        rows = self.activation("rows", model.table_width) if model.embedding_dim is not None else x
        self.stream("embedding", "embedding", model.table_width, (self._table(),), rows)
        if model.embedding_dim is not None:
            self.linear("project_in", model.d_model, model.embedding_dim, rows, x)
        if model.position_rows and not self.execution.measured:
            self.weight("positions", model.position_rows * model.d_model)
            self.stream("positions", "embedding", model.d_model, ("positions",), self.activation("p", model.d_model))
            self.stream("add positions", "add", model.d_model, (x, "p"), x)
        if model.token_types and not self.execution.measured:
            self.weight("token types", model.token_types * model.d_model)
            self.stream(
                "token types", "embedding", model.d_model, ("token types",), self.activation("p", model.d_model)
            )
            self.stream("add token types", "add", model.d_model, (x, "p"), x)
        if model.embedding_norm:
            self._norm("embedding norm", x, x)

    def _table(self) -> str:
        return self.weight("embedding", self.model.vocabulary * self.model.table_width)

    def decoder_layer(self) -> None:
        """One layer, whatever its order of norms."""
        model = self.model
        if model.parallel:
            self._norm("norm", "x", "y")
            self.attention("y", "attention.out")
            self.feed_forward("y", "ffn.out")
            self.stream("add", "add", model.d_model, ("attention.out", "ffn.out"), "ffn.out")
            self.stream("residual", "add", model.d_model, ("x", "ffn.out"), "x")
            return
        self._block("attention", self.attention)
        self._block("ffn", self.feed_forward)

    def _block(self, name: str, inside: Callable[[str, str], None]) -> None:
        """Norm, what is inside, norm and residual add, as the model orders them."""
        model = self.model
        source, out = "x", f"{name}.out"
        if model.norm_first:
            self._norm(f"{name} norm", "x", self.activation("y", model.d_model))
            source = "y"
        inside(source, out)
        if model.norms_per_layer == 4:
            self._norm(f"{name} post norm", out, out)
        self._residual(out)
        if not model.norm_first:
            self._norm(f"{name} norm", "x", "x")

    def _residual(self, out: str) -> None:
        """x += out: by the GEMM that made it, by the norm that follows, or by a kernel of its own."""
        last = self.operations[-1]
        if self.execution.fuses("full"):
            self.pending = out
        elif self.execution.fuses("epilogue") and _takes_residual(last, out):
            self.operations[-1] = _with_residual(last)
        else:
            self.stream("residual", "add", self.model.d_model, ("x", out), "x")

    def _norm(self, name: str, source: str, to: str) -> None:
        """A norm; where an add waits for it, both."""
        model = self.model
        self.activation(to, model.d_model)
        weight = self.weight(f"{name}.weight", model.d_model * (2 if model.norm_bias else 1))
        if self.pending and source == "x":
            self.stream(f"add + {name}", f"add_{model.norm}", model.d_model, ("x", self.pending, weight), "x", to)
            self.pending = None
        else:
            self.stream(name, model.norm, model.d_model, (source, weight), to)

    def attention(self, source: str, out: str) -> None:
        """Projections, positions, cache, attention and the projection behind it, from `source` to `out`."""
        model, width = self.model, self.model.d_model
        queries = self._projections(source)
        if model.positions == "rope" and not self.execution.measured:
            self._rope(queries)
        keys, values = self._store(queries) if self.cache else (queries["k"], queries["v"])
        self._attend(queries["q"], keys, values)
        self.linear("out", width, model.q_width, "attended", out, bias=model.out_bias)

    def _projections(self, source: str) -> dict[str, str]:
        """Q, K and V from one product or three; returns the tensor that each lies in."""
        model = self.model
        if self.execution.measured or self.execution.fuses("full") or model.family in PACKED:
            self.linear("qkv", model.qkv_width, model.d_model, source, "qkv", bias=model.qkv_bias)
            return dict.fromkeys("qkv", "qkv")
        widths = {"q": model.q_width, "k": model.kv_width, "v": model.kv_width}
        return {
            name: self.linear(name, n, model.d_model, source, name, bias=model.qkv_bias) for name, n in widths.items()
        }

    def _rope(self, tensors: dict[str, str]) -> None:
        """Rotary positions of Q and K, in place; fused with the cache's write in `_store` at the highest level."""
        widths = {"q": self.model.q_width, "k": self.model.kv_width}
        if self.execution.fuses("full") and self.cache:
            return
        if self.execution.fuses("epilogue"):
            self.stream("rope", "rope", sum(widths.values()), tuple(dict.fromkeys(tensors[n] for n in widths)),
                        *dict.fromkeys(tensors[n] for n in widths), strided=True)  # fmt: skip
            return
        for name, width in widths.items():
            for op, sliced in ROPE_KERNELS:
                self.stream(f"rope {name}: {op}", op, width // 2 if op == "neg" else width, (tensors[name],),
                            self.activation(f"{name}.rotated", width), strided=sliced)  # fmt: skip
            tensors[name] = f"{name}.rotated"

    def _store(self, tensors: dict[str, str]) -> tuple[str, str]:
        """Write the new keys and values into the layer's cache, which keeps no more tokens than a window lets the new
        ones see; returns its two tensors."""
        model, execution = self.model, self.execution
        n_tokens, window = self.context + self.tokens, model.window_of(self.layer)
        kept = n_tokens if window is None else min(n_tokens, window + self.tokens - 1)
        elements = self.batch * kept * model.kv_width
        n_bytes = elements * BYTES[execution.cache_dtype]
        names = tuple(self.tensor(f"{self.layer}.{name}", n_bytes, "cache") for name in ("keys", "values"))
        out_dtype = execution.kv_dtype
        if execution.fuses("full") and model.positions == "rope":
            width = model.qkv_width
            written = 2 * model.kv_width if out_dtype else None
            work = Stream("rope", self.rows, width, execution.dtype, out_dtype, True, out_columns=written)
            self.add("rope + cache", work, (("x", tensors["q"]),), tensors["q"], *names)
            return names[0], names[1]
        for name, tensor in zip("kv", names, strict=True):
            self.stream(f"cache {name}", "copy", model.kv_width, (tensors[name],), tensor, strided=True,
                        out_dtype=out_dtype)  # fmt: skip
        return names[0], names[1]

    def _attend(self, q: str, k: str, v: str) -> None:
        """Attention of the new tokens to all that are there; a single new one sees all keys of a cache that `_store`
        keeps down to its window, and needs no mask."""
        model, execution = self.model, self.execution
        window, n_keys = model.window_of(self.layer), self.context + self.tokens
        if self.cache and self.tokens == 1 and window is not None:
            n_keys = min(n_keys, window)
        work = Attention(
            self.batch,
            model.heads,
            model.kv_heads,
            model.head_dim,
            self.tokens,
            n_keys,
            causal=self.tokens > 1 and not model.encoder_only,
            window=window if window is not None and window < n_keys else None,
            dtype=execution.dtype,
            kv_dtype=execution.kv_dtype if self.cache else None,
            page=execution.page if self.cache else None,
        )
        self.add("attention", work, (("q", q), ("k", k), ("v", v)), self.activation("attended", model.q_width))

    # Feed-forward.
    def feed_forward(self, source: str, out: str) -> None:
        """The dense feed-forward, or the experts."""
        if self.model.n_experts:
            experts(self, source, out)
        else:
            self.ffn(source, out, self.rows)

    def ffn(self, source: str, out: str, rows: int, prefix: str = "", batch: int = 1) -> None:
        """down(activation(up)) or down(activation(gate) * up) on `rows` rows of each of `batch` experts."""
        model, execution = self.model, self.execution
        width, n_all = model.d_ff, rows * batch
        if model.gated:
            self._gated(source, rows, prefix, batch)
        else:
            fused, name = execution.fuses("epilogue"), activation(model)
            epilogue = f"bias_{name}" if fused else None
            self.linear(f"{prefix}up", width, model.d_model, source, "h", bias=model.ffn_bias, rows=rows,
                        epilogue=epilogue, batch=batch)  # fmt: skip
            if not fused:
                self.stream(f"{prefix}{name}", name, width, ("h",), "h", rows=n_all)
        self.linear(f"{prefix}down", model.d_model, width, "h", out, bias=model.ffn_bias, rows=rows, batch=batch)

    def _gated(self, source: str, rows: int, prefix: str, batch: int) -> None:
        model, execution = self.model, self.execution
        width, n_all = model.d_ff, rows * batch
        name = activation(model)
        packed = execution.measured or execution.fuses("full") or model.family in PACKED
        if packed:
            self.linear(f"{prefix}gate_up", 2 * width, model.d_model, source, "gate_up", bias=model.ffn_bias,
                        rows=rows, batch=batch)  # fmt: skip
            gate = up = "gate_up"
        else:
            for part in ("gate", "up"):
                self.linear(f"{prefix}{part}", width, model.d_model, source, part, bias=model.ffn_bias, rows=rows,
                            batch=batch)  # fmt: skip
            gate, up = "gate", "up"
        hidden = self.activation("h", width, n_all)
        if execution.fuses("epilogue"):
            reads = tuple(dict.fromkeys((gate, up)))
            self.stream(f"{prefix}{name} x up", f"{name}_mul", width, reads, hidden, rows=n_all, strided=packed)
            return
        self.stream(f"{prefix}{name}", name, width, (gate,), hidden, rows=n_all, strided=packed)
        self.stream(f"{prefix}multiply", "mul", width, (hidden, up), hidden, rows=n_all, strided=packed)

    # Behind the last layer.
    def finish(self, all_logits: bool, *, loss: bool = False) -> None:
        """Final norm, head, and the pick of the next token, or the loss."""
        model = self.model
        rows = self.rows if all_logits else self.batch
        if self.pending and not model.final_norm:
            self.stream("residual", "add", model.d_model, ("x", self.pending), "x")
            self.pending = None
        if model.final_norm:
            self._final_norm(rows)
        if model.head == "masked_lm":
            self.linear("transform", model.d_model, model.d_model, "x", "y", bias=True, rows=rows)
            self.stream("gelu", "gelu", model.d_model, ("y",), "y", rows=rows)
            norm = self.weight("head norm.weight", model.d_model * (2 if model.norm_bias else 1))
            self.stream("head norm", model.norm, model.d_model, ("y", norm), "y", rows=rows)
        if model.pooler:
            self.linear("pooler", model.d_model, model.d_model, "x", "pooled", bias=True, rows=self.batch)
        if model.head != "none":
            self._head(rows, loss)

    def _final_norm(self, rows: int) -> None:
        model = self.model
        to = self.activation("last", model.d_model, rows)
        weight = self.weight("final norm.weight", model.d_model * (2 if model.norm_bias else 1))
        if self.pending:
            self.stream("residual", "add", model.d_model, ("x", self.pending), "x")
            self.pending = None
        source = "x"
        if rows < self.rows and self.tokens > 1 and self.batch > 1:  # the last of each sequence lie apart
            source = self.activation("last rows", model.d_model, rows)
            self.stream("take last positions", "copy", model.d_model, ("x",), source, rows=rows, strided=True)
        self.stream("final norm", model.norm, model.d_model, (source, weight), to, rows=rows)

    def _head(self, rows: int, loss: bool) -> None:
        model = self.model
        source, width = ("last" if model.final_norm else "y" if model.head == "masked_lm" else "x"), model.d_model
        if model.embedding_dim is not None:
            self.linear("project_out", model.embedding_dim, width, source, "last.out", rows=rows)
            source, width = "last.out", model.embedding_dim
        has_bias = model.head_bias and not self.execution.measured
        epilogue = "bias" if has_bias else "none"
        work = Gemm(rows, model.vocabulary, width, dtype=self.execution.dtype, epilogue=epilogue)
        fused = self.execution.fuses("full") and self.cache and not has_bias
        work = replace(work, epilogue="row_stats") if fused else work
        logits = "statistics" if fused else "logits"
        add_linear(self, "head", work, source, logits, "embedding" if model.tied else "head",
                   "head.bias" if has_bias else None)  # fmt: skip
        if fused:
            pick = Stream("argmax", rows, work.c_bytes // rows // STATISTIC_BYTES, "fp32")
            self.add("pick", pick, (("x", logits),), self.tensor("picked", rows * INDEX_BYTES))
        if fused or self.execution.measured:
            return
        if model.logits_softcap:
            self._cap(logits, rows)
        if model.encoder_only and not loss:
            return
        self.stream("log_softmax", "log_softmax", model.vocabulary, (logits,),
                    self.tensor("probabilities", rows * model.vocabulary * 4), rows=rows, out_dtype="fp32")  # fmt: skip
        if loss:
            return
        pick = Stream("argmax", rows, model.vocabulary, "fp32")
        self.add("pick", pick, (("x", "probabilities"),), self.tensor("picked", rows * INDEX_BYTES))

    def _cap(self, logits: str, rows: int) -> None:
        """Logits over their bound, tanh, and times it, in place; part of the product where statistics are."""
        for op in ("softcap",) if self.execution.fuses("epilogue") else ("scale", "tanh", "scale"):
            self.stream(f"logits: {op}", op, self.model.vocabulary, (logits,), logits, rows=rows)


def activation(model: Model) -> str:
    """The stream that its activation is."""
    return model.activation.removesuffix("_tanh")


def _takes_residual(operation: Operation, out: str) -> bool:
    """Whether the operation is a plain product that made `out`, to which x can be added where it is stored."""
    work = operation.work
    return isinstance(work, Gemm) and work.epilogue == "none" and work.batch == 1 and operation.writes == (out,)


def _with_residual(operation: Operation) -> Operation:
    """The same product with x added to it."""
    assert isinstance(operation.work, Gemm)
    work = replace(operation.work, epilogue="residual")
    return replace(operation, work=work, reads=(*operation.reads, ("c", "x")), writes=("x",))
