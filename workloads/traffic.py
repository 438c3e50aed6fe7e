"""What follows from the bytes that an operation reads and writes, whatever the operation is."""

from __future__ import annotations

from abc import ABC, abstractmethod


class Traffic(ABC):
    """An operation whose FLOPs and compulsory reads and writes, in bytes, are known."""

    @property
    @abstractmethod
    def flops(self) -> int:
        """Floating-point operations, as the operation counts them."""

    @property
    @abstractmethod
    def read_bytes(self) -> int:
        """Every input read once."""

    @property
    @abstractmethod
    def write_bytes(self) -> int:
        """Every output written once."""

    @property
    def compulsory_bytes(self) -> int:
        """Every input read once and every output written once."""
        return self.read_bytes + self.write_bytes

    @property
    def arithmetic_intensity(self) -> float:
        """FLOPs for each compulsory byte."""
        return self.flops / self.compulsory_bytes
