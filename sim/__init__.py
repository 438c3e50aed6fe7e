"""What happens: schedules, the engine, the host, results. `from sim import simulate` is the way in."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.result import Result
    from sim.run import simulate
    from sim.saved import load, save

__all__ = ["Result", "load", "save", "simulate"]

_HOMES = {"Result": "result", "load": "saved", "save": "saved", "simulate": "run"}


def __getattr__(name: str) -> Any:
    """Import on first use, so that `tilewalk --help` loads neither numba nor SimPy."""
    if name in _HOMES:
        return getattr(import_module(f"sim.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'sim' has no attribute {name!r}")
