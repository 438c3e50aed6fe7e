"""What the host is asked to do: tensors with their homes, and launches that read and write them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hwmodels.errors import ConfigError

HOMES = ("hbm", "pinned", "pageable")
"""Where a tensor starts, or a result ends: GPU memory, page-locked or ordinary host memory."""

LAUNCH_MODES = ("stream", "graph", "eager")
"""How kernels are launched: one by one into a stream, all at once as a graph, or one by one by an eager program, which
spends time of its own on each operation."""

KernelTime = Callable[[float], float]
"""Background HBM rate (GB/s, from copies in flight) -> duration of one kernel (s). Pure; memoised by its owner."""


@dataclass(frozen=True)
class Tensor:
    """`bytes` of data that start in `home`. One that a launch writes comes into being there, in HBM."""

    name: str
    bytes: int
    home: str = "hbm"


@dataclass(frozen=True)
class Part:
    """One kernel of a launch, and the bytes of the launch's streamed weights that it needs (0: none are streamed)."""

    kernel_s: KernelTime
    weight_bytes: int = 0


@dataclass(frozen=True)
class Launch:
    """An operation: reads and writes tensors by name. It has one part, unless its weights are streamed.

    `weights` names a tensor in host memory (not among `reads`) that is brought in piece by piece: part i + 1 is copied
    while part i computes, at most two pieces are in HBM, and each is freed after use.
    """

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    parts: tuple[Part, ...]
    weights: str = ""
    first: bool = True
    """Whether it is its operation's first: the one on which an eager program spends its time."""


@dataclass(frozen=True)
class Program:
    """Launches in order. Tensors from the host are copied in before the launch that first reads them; tensors that are
    written and read no more are the results, and end in `result_home`. Raises ConfigError where it contradicts itself.
    """

    tensors: tuple[Tensor, ...]
    launches: tuple[Launch, ...]
    result_home: str = "hbm"
    launch_mode: str = "stream"

    def __post_init__(self) -> None:
        _one_of("result_home", self.result_home, HOMES)
        _one_of("launch_mode", self.launch_mode, LAUNCH_MODES)
        tensors = self.by_name()
        if len(tensors) != len(self.tensors):
            raise ConfigError(f"program: tensor names must differ, got {[tensor.name for tensor in self.tensors]}")
        for tensor in self.tensors:
            _check_tensor(tensor)
        for launch in self.launches:
            _check_launch(launch, tensors)

    def by_name(self) -> dict[str, Tensor]:
        """The tensors, by name."""
        return {tensor.name: tensor for tensor in self.tensors}

    def written(self) -> tuple[str, ...]:
        """Names of tensors that launches write, in order of the first write."""
        return tuple(dict.fromkeys(name for launch in self.launches for name in launch.writes))

    def last_reader(self) -> dict[str, int]:
        """For each tensor that is read, the index of the launch that reads it last."""
        return {name: i for i, launch in enumerate(self.launches) for name in launch.reads}

    def residents(self) -> tuple[str, ...]:
        """Names of tensors that are in HBM from the start: at home there, and not brought into being by a launch."""
        read: set[str] = set()
        created: set[str] = set()
        for launch in self.launches:
            read.update(launch.reads)
            created.update(name for name in launch.writes if name not in read)
        return tuple(tensor.name for tensor in self.tensors if tensor.home == "hbm" and tensor.name not in created)

    def results(self) -> tuple[str, ...]:
        """Names of tensors that no launch reads after they are last written."""
        last_read = self.last_reader()
        last_write = {name: i for i, launch in enumerate(self.launches) for name in launch.writes}
        return tuple(name for name in self.written() if last_read.get(name, -1) <= last_write[name])

    def freed_after(self) -> list[tuple[str, ...]]:
        """For each launch, the tensors it is the last to read, except results and residents."""
        kept = {*self.residents(), *self.results()}
        freed: list[list[str]] = [[] for _ in self.launches]
        for name, last in self.last_reader().items():
            if name not in kept:
                freed[last].append(name)
        return [tuple(names) for names in freed]


def _one_of(what: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ConfigError(f"program: {what} must be one of {', '.join(allowed)}, got {value!r}")


def _check_tensor(tensor: Tensor) -> None:
    _one_of(f"home of tensor {tensor.name}", tensor.home, HOMES)
    if tensor.bytes < 1:
        raise ConfigError(f"program: bytes of tensor {tensor.name} must be at least 1, got {tensor.bytes}")


def _check_launch(launch: Launch, tensors: dict[str, Tensor]) -> None:
    for name in (*launch.reads, *launch.writes, *([launch.weights] if launch.weights else [])):
        _one_of(f"tensor used by launch {launch.name}", name, tuple(tensors))
    if not launch.parts or (len(launch.parts) > 1 and not launch.weights):
        raise ConfigError(
            f"program: launch {launch.name} without streamed weights has one part, got {len(launch.parts)}"
        )
    if launch.weights:
        _check_pieces(launch, tensors[launch.weights])


def _check_pieces(launch: Launch, weights: Tensor) -> None:
    _one_of(f"home of streamed weights {weights.name}", weights.home, ("pinned", "pageable"))
    pieces = [part.weight_bytes for part in launch.parts]
    if min(pieces) < 1 or sum(pieces) != weights.bytes:
        raise ConfigError(
            f"program: weight_bytes of launch {launch.name} must be positive and sum to the {weights.bytes} bytes "
            f"of {weights.name}, got {pieces}"
        )
