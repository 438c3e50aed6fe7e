"""What kernels leave in L2 for the next: tensors, least recently used first, with the bytes of each still there."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hwmodels.spec import Gpu
from workloads.operations import Operation, Tensor, Work
from workloads.stream import Stream

STEPS = 8
"""Fractions of a tensor are rounded down to this part, so that layers that differ little ask for the same kernel."""


def distinct_bytes(gpu: Gpu) -> float:
    """Bytes of distinct lines that L2 holds where a copy of half of them lies in the other partition too (40 of an
    H200's 60 MiB where there are two; handover.csv)."""
    return gpu.l2.capacity_mib * 2**20 * 2 / (1 + gpu.l2.partitions)


def kept_part(read_bytes: float, waves: float, capacity_bytes: float) -> float:
    """Of what a kernel wrote, the part that L2 holds at its end: each wave of CTAs writes when it ends, and what later
    ones read pushes that out where it is more than L2 takes. (Gate and up products of 8 rows in two waves: silu behind
    them takes 3.8 us, as on data from HBM, and 2.9 us behind one wave; decoder_stack_kernels.csv.)"""
    lost = max(0, math.ceil(waves * (1.0 - capacity_bytes / read_bytes)) - 1) if read_bytes else 0
    return 1.0 - min(1.0, lost / waves)


class L2Contents:
    """Tensors in L2 in order of last use.

    Modelled: a kernel touches what it reads, then what it writes; what does not fit pushes out what was used longest
    ago; of a tensor larger than L2 the last part stays; of a product in waves of CTAs what the first ones wrote is
    pushed out by what the others read. Not modelled: the order inside other kernels, lines in both partitions while
    there is room for them (`capacity` counts distinct lines), sets. handover.csv: 24 MiB read leave 4 MiB or less
    that were written before, of 40 MiB little is left after.
    """

    def __init__(self, gpu: Gpu) -> None:
        self.capacity_bytes = int(distinct_bytes(gpu))
        self._held: dict[str, int] = {}
        self._last: Work | None = None

    def before(self, operation: Operation, tensors: Mapping[str, Tensor]) -> dict[str, float]:
        """Role of each operand ("code": the kernel itself, there where the same ran just before) -> the part of it that
        is there; of all its tensors together, where a role has several, in `STEPS` steps, rounded down."""
        roles: dict[str, list[Tensor]] = {}
        for role, name in operation.reads:
            roles.setdefault(role, []).append(tensors[name])
        left = self._left(operation, tensors) if isinstance(operation.work, Stream) else 1.0
        found = {role: self._part(operation, held, left) for role, held in roles.items()}
        found["code"] = float(operation.work == self._last)
        return {role: part for role, part in found.items() if part}

    def _left(self, operation: Operation, tensors: Mapping[str, Tensor]) -> float:
        """Of what is there, the part still there when its turn comes: what a stream brings in meanwhile pushes out
        what was used longest ago, which is what it would read next."""
        wanted = {name: _read_bytes(operation, tensors[name]) for _, name in operation.reads}
        held = sum(min(self._held.get(name, 0), n_bytes) for name, n_bytes in wanted.items())
        written = sum(_written_bytes(operation, tensors[name]) for name in operation.writes if name not in wanted)
        brought = sum(wanted.values()) - held + written
        return min(1.0, max(0, self.capacity_bytes - held) / brought) if brought else 1.0

    def _part(self, operation: Operation, operands: list[Tensor], left: float) -> float:
        wanted = [_read_bytes(operation, tensor) for tensor in operands]
        held = sum(min(self._held.get(t.name, 0), n_bytes) for t, n_bytes in zip(operands, wanted, strict=True))
        return left * held * STEPS // max(1, sum(wanted)) / STEPS

    def after(self, operation: Operation, tensors: Mapping[str, Tensor], waves: float = 1.0) -> None:
        """What the operation touched moves to the front. `waves`: of CTAs, one after another."""
        self._last = operation.work
        read = {name: _read_bytes(operation, tensors[name]) for _, name in operation.reads}
        for name, n_bytes in read.items():
            self.touch(tensors[name], n_bytes)
        kept = kept_part(sum(read.values()), waves, self.capacity_bytes)
        for name in operation.writes:
            self.touch(tensors[name], int(kept * _written_bytes(operation, tensors[name])))

    def touch(self, tensor: Tensor, n_bytes: int) -> None:
        """Put `n_bytes` of the tensor in front, or as much as fits, and drop what that pushes out."""
        held = max(self._held.pop(tensor.name, 0), n_bytes)
        self._held[tensor.name] = min(held, self.capacity_bytes)
        excess = sum(self._held.values()) - self.capacity_bytes
        for name in list(self._held):
            if excess <= 0:
                break
            dropped = min(excess, self._held[name])
            excess -= dropped
            self._held[name] -= dropped
            if not self._held[name]:
                del self._held[name]


def _read_bytes(operation: Operation, tensor: Tensor) -> int:
    """Bytes of the tensor that the operation reads: all, unless it gathers rows or works on a slice."""
    work = operation.work
    return min(tensor.n_bytes, work.read_bytes) if isinstance(work, Stream) else tensor.n_bytes


def _written_bytes(operation: Operation, tensor: Tensor) -> int:
    """Bytes of the tensor that the operation writes: all, unless it adds to a cache."""
    work = operation.work
    return min(tensor.n_bytes, work.write_bytes) if isinstance(work, Stream) else tensor.n_bytes
