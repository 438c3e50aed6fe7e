"""Operations that move data and compute little: elementwise, normalisation, softmax, copies, gathers, optimizer.

Each works on [rows, width] elements; `OPS` says what it reads and writes of that shape, and what beside it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from workloads.checks import check_choice, check_integer
from workloads.dtypes import BYTES
from workloads.traffic import Traffic

WHERE = "workload stream"
MAX_ELEMENTS = 2**40
DTYPES = ("fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8", "int32")
INDEX_BYTES = 8


class Op(NamedTuple):
    """What one operation touches. `inputs`, `outputs`: tensors of [rows, width] read and written; `vectors`: of
    [width] read; `row_bytes`: beside them, of each row; `flops`: of each element (`Stream.flops`); `fixed_dtype`: type
    of all it touches, where it does not follow the data's."""

    inputs: int
    outputs: int
    flops: int
    vectors: int = 0
    row_bytes: int = 0
    fixed_dtype: str | None = None


OPS = {
    "add": Op(2, 1, 1),
    "mul": Op(2, 1, 1),
    "bias": Op(1, 1, 1, vectors=1),
    "gelu": Op(1, 1, 9),
    "silu": Op(1, 1, 3),
    "relu": Op(1, 1, 1),
    "scale": Op(1, 1, 1),
    "tanh": Op(1, 1, 1),
    "softcap": Op(1, 1, 3),
    "silu_mul": Op(2, 1, 4),
    "gelu_mul": Op(2, 1, 10),
    "relu_mul": Op(2, 1, 2),
    "softmax": Op(1, 1, 4),
    "log_softmax": Op(1, 1, 4),
    "layer_norm": Op(1, 1, 8, vectors=2),
    "rms_norm": Op(1, 1, 4, vectors=1),
    "add_layer_norm": Op(2, 2, 9, vectors=2),
    "add_rms_norm": Op(2, 2, 5, vectors=1),
    "rope": Op(1, 1, 3),
    "copy": Op(1, 1, 0),
    "transpose": Op(1, 1, 0),
    "cast": Op(1, 1, 0),
    "quantize": Op(1, 1, 2, row_bytes=4),
    "rescale": Op(1, 1, 2, vectors=1, row_bytes=4),
    "neg": Op(1, 1, 1),
    "concat": Op(1, 1, 0),
    "argmax": Op(1, 0, 1, row_bytes=INDEX_BYTES),
    "fill": Op(0, 1, 0),
    "embedding": Op(1, 1, 0, row_bytes=INDEX_BYTES),
    "reduce": Op(1, 1, 1),
    "silu_backward": Op(2, 1, 6),
    "gelu_backward": Op(2, 1, 18),
    "relu_backward": Op(2, 1, 2),
    "tanh_backward": Op(2, 1, 3),
    "softcap_backward": Op(2, 1, 4),
    "softmax_backward": Op(2, 1, 4),
    "log_softmax_backward": Op(2, 1, 4),
    "rms_norm_backward": Op(2, 1, 8, vectors=1),
    "layer_norm_backward": Op(2, 1, 12, vectors=1),
    "embedding_backward": Op(1, 1, 1, row_bytes=INDEX_BYTES),
    "chain": Op(1, 1, 0),
    "adamw": Op(4, 3, 12),
    "adamw_mixed": Op(7, 7, 12),
}
"""An add, multiply, divide or transcendental counts 1, as in `workloads.gemm.EPILOGUES`. "adamw": parameter, gradient
and two moments in, all but the gradient out; "adamw_mixed": a 2-byte gradient and fp32 weight and moments in, these and
the 2-byte weight out, counted in tensors of 2 bytes. "rescale": an integer product times a scale of its row and one of
its column. "scale": times one number; "softcap": scale, tanh and scale in one kernel. "embedding": the rows gathered,
and their indices. "chain": as `Stream.chain` says."""
LINKS = (
    *("add", "mul", "bias", "gelu", "silu", "relu", "scale", "tanh"),
    *("silu_mul", "gelu_mul", "relu_mul", "neg", "cast", "rescale"),
)
"""Operations on one element after another, of which a compiler makes one kernel."""
MAX_LINKS = 64


@dataclass(frozen=True)
class Stream(Traffic):
    """One operation on [rows, width]. `out_dtype`: type of what is written (of several, the last), if not that of what
    is read. `strided`: its inputs (of a copy into a cache, its output) are slices of wider rows, so that kernels of
    eager PyTorch take elements one by one. `out_columns`: how many of the columns are written in `out_dtype` (None:
    all), the others in `dtype`. `fan_in`: of "reduce", elements that each one written is the sum of. `chain`: of
    "chain", the operations of `LINKS` that one kernel runs on each element, with `inputs` tensors read and `outputs`
    written in all.

    Raises `ConfigError` for a value outside its range.
    """

    op: str
    rows: int
    width: int
    dtype: str = "bf16"
    out_dtype: str | None = None
    strided: bool = False
    out_columns: int | None = None
    fan_in: int = 1
    chain: tuple[str, ...] = ()
    inputs: int = 1
    outputs: int = 1

    def __post_init__(self) -> None:
        check_choice("op", self.op, tuple(OPS), WHERE)
        check_integer("width", self.width, 1, MAX_ELEMENTS, WHERE)
        check_integer("rows", self.rows, 1, MAX_ELEMENTS // self.width, WHERE)
        check_choice("dtype", self.dtype, DTYPES, WHERE)
        check_integer("fan_in", self.fan_in, 1, MAX_ELEMENTS if self.op == "reduce" else 1, WHERE)
        if self.out_dtype is not None:
            check_choice("out_dtype", self.out_dtype, DTYPES, WHERE)
        if self.out_columns is not None:
            check_integer("out_columns", self.out_columns, 1, self.width, WHERE)
        self._check_chain()

    def _check_chain(self) -> None:
        most = MAX_LINKS if self.op == "chain" else 1
        check_integer("inputs", self.inputs, 1, most, WHERE)
        check_integer("outputs", self.outputs, 1, most, WHERE)
        check_integer("links of a chain", len(self.chain), *((1, MAX_LINKS) if self.op == "chain" else (0, 0)), WHERE)
        for link in self.chain:
            check_choice("chain", link, LINKS, WHERE)

    @property
    def n_inputs(self) -> int:
        """Tensors of [rows, width] that are read."""
        return self.inputs if self.op == "chain" else OPS[self.op].inputs

    @property
    def elements(self) -> int:
        """rows x width."""
        return self.rows * self.width

    @property
    def element_bytes(self) -> int:
        """Bytes of one element read."""
        return BYTES[OPS[self.op].fixed_dtype or self.dtype]

    @property
    def out_element_bytes(self) -> int:
        """Bytes of one element written."""
        return BYTES[OPS[self.op].fixed_dtype or self.out_dtype or self.dtype]

    @property
    def flops(self) -> int:
        """Counted as `OPS` says; they run on the CUDA cores."""
        flops = sum(OPS[link].flops for link in self.chain) if self.op == "chain" else OPS[self.op].flops
        return flops * self.fan_in * self.elements

    @property
    def read_bytes(self) -> int:
        """Every input read once."""
        op = OPS[self.op]
        data = self.n_inputs * self.fan_in * self.elements + op.vectors * self.width
        return data * self.element_bytes + op.row_bytes * self.rows

    @property
    def write_bytes(self) -> int:
        """Every output written once."""
        n = self.outputs if self.op == "chain" else OPS[self.op].outputs
        if not n:
            return 0
        as_read = self.width - (self.out_columns or self.width)
        row = ((n - 1) * self.width + as_read) * self.element_bytes + (self.width - as_read) * self.out_element_bytes
        return self.rows * row

    def describe(self) -> dict[str, Any]:
        """All fields as resolved, with what follows from them."""
        derived = ("flops", "read_bytes", "write_bytes", "compulsory_bytes", "arithmetic_intensity")
        resolved = {"out_dtype": self.out_dtype or self.dtype}
        return {"operation": self.op, **asdict(self), **resolved, **{name: getattr(self, name) for name in derived}}
