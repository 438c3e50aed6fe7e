"""Many simulations at once: workloads x kernel configurations x hardware, as one table.

    from sim.sweep import Hardware, Product, Sweep, run_sweep

`points` says what is simulated, `digest` by what a result is known again, `journal` and `cache` where results are kept,
`executors` who computes them, `run` how it goes, `table` what comes of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.sweep.cache import Cache
    from sim.sweep.points import Grid, Hardware, Product, Sweep
    from sim.sweep.run import run_sweep
    from sim.sweep.table import Table

__all__ = ["Cache", "Grid", "Hardware", "Product", "Sweep", "Table", "run_sweep"]

_HOMES = {
    "Cache": "cache",
    "Grid": "points",
    "Hardware": "points",
    "Product": "points",
    "Sweep": "points",
    "Table": "table",
    "run_sweep": "run",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that a study file is read without the engine."""
    if name in _HOMES:
        return getattr(import_module(f"sim.sweep.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'sim.sweep' has no attribute {name!r}")
