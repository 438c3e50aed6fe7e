"""A step of a model as operations in launch order, each with the tensors that it reads and writes by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hwmodels.errors import ConfigError
from workloads.attention import Attention
from workloads.gemm import Gemm
from workloads.stream import Stream

Work = Gemm | Attention | Stream
"""What one operation computes."""

KINDS = ("weight", "activation", "cache", "gradient", "optimizer", "input", "view")
"""A "view" is another name of what other tensors hold."""


@dataclass(frozen=True)
class Tensor:
    """A tensor in memory. `kind`: one of `KINDS`; only activations come and go within a step."""

    name: str
    n_bytes: int
    kind: str


@dataclass(frozen=True)
class Operation:
    """One operation as a program asks for it.

    `reads` pairs the role in its work ("a", "b", "c", "bias" of a GEMM; "q", "k", "v" of attention; "x" and, for
    vectors, "w" of a stream) with a tensor's name; `writes` names tensors. `layer`: from 0; -1 before the first, as
    many as there are behind the last.
    """

    name: str
    work: Work
    reads: tuple[tuple[str, str], ...]
    writes: tuple[str, ...]
    layer: int = -1
    host: str = ""
    """What an eager program does before it, beyond asking for it: "checkpoint" (a layer that will be run again) or
    "recompute" (that layer's second run)."""
    again: bool = False
    """Whether checkpointing runs it a second time."""


@dataclass(frozen=True)
class Step:
    """Operations of one pass in launch order, and their tensors by name. `label` says what it is in words.

    Raises `ConfigError` where an operation names no tensor of the step.
    """

    label: str
    operations: tuple[Operation, ...]
    tensors: Mapping[str, Tensor] = field(repr=False)

    def __post_init__(self) -> None:
        for operation in self.operations:
            for name in (*(name for _, name in operation.reads), *operation.writes):
                if name not in self.tensors:
                    raise ConfigError(f"operation {operation.name}: tensor {name!r} is not among the step's")

    @property
    def flops(self) -> int:
        """FLOPs of all operations."""
        return sum(operation.work.flops for operation in self.operations)

    @property
    def model_flops(self) -> int:
        """FLOPs of matrix products and attention alone, as model FLOPs utilisation counts them: nothing that is
        computed a second time, by checkpointing or inside attention's backward."""
        works = (operation.work for operation in self.operations if not operation.again)
        return sum(_model_flops(work) for work in works if not isinstance(work, Stream))

    def bytes_of(self, kind: str) -> int:
        """Bytes of all tensors of one of `KINDS`."""
        return sum(tensor.n_bytes for tensor in self.tensors.values() if tensor.kind == kind)


def _model_flops(work: Gemm | Attention) -> int:
    return work.model_flops if isinstance(work, Attention) else work.flops
