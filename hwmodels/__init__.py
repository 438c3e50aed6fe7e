"""GPUs as data: one TOML file each, every value with unit, kind and source. Nothing here knows a workload."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hwmodels.catalog import load_gpu, resolved, rows
    from hwmodels.errors import ConfigError
    from hwmodels.folders import list_gpus
    from hwmodels.measured import measured_path
    from hwmodels.spec import Gpu

__all__ = ["ConfigError", "Gpu", "list_gpus", "load_gpu", "measured_path", "resolved", "rows"]

_HOMES = {
    "ConfigError": "errors",
    "Gpu": "spec",
    "list_gpus": "folders",
    "load_gpu": "catalog",
    "measured_path": "measured",
    "resolved": "catalog",
    "rows": "catalog",
}


def __getattr__(name: str) -> Any:
    """Import on first use: `tilewalk --help` must not load pydantic."""
    if name not in _HOMES:
        raise AttributeError(f"module 'hwmodels' has no attribute {name!r}")
    return getattr(import_module(f"hwmodels.{_HOMES[name]}"), name)
