"""What is computed: operations with their tensors, in FLOPs and bytes; transformer models as data. No GPU is known."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workloads.gemm import Gemm
    from workloads.models.catalog import list_models, load_model
    from workloads.models.model import Model

__all__ = ["Gemm", "Model", "list_models", "load_model"]

_HOMES = {
    "Gemm": "workloads.gemm",
    "Model": "workloads.models.model",
    "list_models": "workloads.models.catalog",
    "load_model": "workloads.models.catalog",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that the command line starts without loading every operation."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'workloads' has no attribute {name!r}")
