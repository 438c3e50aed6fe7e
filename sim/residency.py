"""What kernels leave in L2 for the next: tensors, least recently used first, with the bytes of each still there."""

from __future__ import annotations

from collections.abc import Mapping

from hwmodels.spec import Gpu
from workloads.operations import Operation, Tensor

STEPS = 8
"""Fractions of a tensor are rounded down to this part, so that layers that differ little ask for the same kernel."""


class L2Contents:
    """Tensors in L2 in order of last use.

    Modelled: a kernel touches what it reads, then what it writes, each whole; what does not fit pushes out what was
    used longest ago; of a tensor larger than L2 the last part stays. Not modelled: the order inside a kernel, lines in
    both partitions while there is room for them (`capacity` counts distinct lines), sets.
    """

    def __init__(self, gpu: Gpu) -> None:
        self.capacity_bytes = int(gpu.l2.capacity_mib * 2**20 / gpu.l2.partitions)
        self._held: dict[str, int] = {}

    def fraction(self, tensor: Tensor) -> float:
        """Part of the tensor that is there, in `STEPS` steps, rounded down."""
        return self._held.get(tensor.name, 0) * STEPS // max(1, tensor.n_bytes) / STEPS

    def before(self, operation: Operation, tensors: Mapping[str, Tensor]) -> dict[str, float]:
        """Role of each operand -> the fraction of it that is there; the least, where a role has several."""
        found: dict[str, float] = {}
        for role, name in operation.reads:
            found[role] = min(found.get(role, 1.0), self.fraction(tensors[name]))
        return {role: part for role, part in found.items() if part}

    def after(self, operation: Operation, tensors: Mapping[str, Tensor]) -> None:
        """What the operation touched moves to the front."""
        for name in (*(name for _, name in operation.reads), *operation.writes):
            self.touch(tensors[name])

    def touch(self, tensor: Tensor) -> None:
        """Put the tensor in front, whole or as much as fits, and drop what that pushes out."""
        self._held.pop(tensor.name, None)
        self._held[tensor.name] = min(tensor.n_bytes, self.capacity_bytes)
        excess = sum(self._held.values()) - self.capacity_bytes
        for name in list(self._held):
            if excess <= 0:
                break
            dropped = min(excess, self._held[name])
            excess -= dropped
            self._held[name] -= dropped
            if not self._held[name]:
                del self._held[name]
