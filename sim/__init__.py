"""What happens: schedules, the engine, the host, results. `from sim import simulate` is the way in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.run import simulate

__all__ = ["simulate"]


def __getattr__(name: str) -> Any:
    """Import on first use, so that `tilewalk --help` loads neither numba nor SimPy."""
    if name == "simulate":
        from sim.run import simulate

        return simulate
    raise AttributeError(f"module 'sim' has no attribute {name!r}")
