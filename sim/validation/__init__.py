"""Validation: replay a table of measured kernels and report the error beside a fitted roofline.

`tables` reads, `replay` predicts from what a prediction may see, `groups` names the rows, `scores` compares,
`roofline` is the control, `report` says it, `run.validate` ties them together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.validation.report import Report, markdown
    from sim.validation.run import validate

__all__ = ["Report", "markdown", "validate"]


def __getattr__(name: str) -> Any:
    """Import on first use, so that the command line starts without loading this."""
    if name == "validate":
        from sim.validation.run import validate

        return validate
    if name in ("Report", "markdown"):
        from sim.validation import report

        return getattr(report, name)
    raise AttributeError(f"module 'sim.validation' has no attribute {name!r}")
