"""Calibration: fit the model's constants to tables of measured kernels, and say how far they can be told apart.

`tables` gathers and draws the rows, `readings` takes what microbenchmarks say, `constants` names what may be fitted,
`predictions` simulates and remembers, `fit` moves the constants stage by stage, `judge` says how well and how surely,
`run.calibrate` ties them together, `files` writes the GPU file and the page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.calibration.outcome import Outcome
    from sim.calibration.run import Calibration

__all__ = ["Calibration", "Outcome"]


def __getattr__(name: str) -> Any:
    """Import on first use, so that the command line starts without loading this."""
    if name == "Calibration":
        from sim.calibration.run import Calibration

        return Calibration
    if name == "Outcome":
        from sim.calibration.outcome import Outcome

        return Outcome
    raise AttributeError(f"module 'sim.calibration' has no attribute {name!r}")
