"""What is computed: operations with their tensors, in FLOPs and bytes. Nothing here knows a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workloads.gemm import Gemm

__all__ = ["Gemm"]


def __getattr__(name: str) -> Any:
    """Import on first use, so that the command line starts without loading every operation."""
    if name == "Gemm":
        from workloads.gemm import Gemm

        return Gemm
    raise AttributeError(f"module 'workloads' has no attribute {name!r}")
