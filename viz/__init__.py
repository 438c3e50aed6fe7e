"""What a person sees of a Result: pictures, the Perfetto trace, the terminal's screens, the command line. `viz.llm` has
the same of a language model's LlmResult: `viz.llm.sheet.save_figure`, `viz.llm.trace.write_trace`.

Everything is drawn from a Result alone. The single pictures are `viz.journey.journey`, `viz.timeline.timeline` (with
`steps`) and `viz.roofline.roofline`, each on Axes of the caller's; `figure` puts them on one sheet. matplotlib is
imported when a picture is drawn, rich when a screen is printed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from viz.sheet import figure, save_figure
    from viz.terminal import print_result, to_json
    from viz.trace import write_trace

__all__ = ["figure", "print_result", "save_figure", "to_json", "write_trace"]

_HOMES = {
    "figure": "sheet",
    "save_figure": "sheet",
    "print_result": "terminal",
    "to_json": "terminal",
    "write_trace": "trace",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that the command line starts without loading what it does not print."""
    if name not in _HOMES:
        raise AttributeError(f"module 'viz' has no attribute {name!r}")
    return getattr(import_module(f"viz.{_HOMES[name]}"), name)
