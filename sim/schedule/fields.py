"""What each field of a kernel configuration may hold, whatever GPU and workload."""

from __future__ import annotations

from typing import Any

from hwmodels.errors import ConfigError
from hwmodels.refusals import shown
from sim.schedule.config import FAMILIES, KernelConfig
from workloads.gemm import MAX_DIMENSION

MAX_CLUSTER = 16
"""CTAs of a cluster, non-portable size included (CUDA C++ Programming Guide, thread block clusters)."""

_CHOICES = {
    "family": FAMILIES,
    "raster": ("m", "n"),
    "mma_m_along": ("m", "n"),
    "loads": ("cp_async", "tma", "ldg", "direct"),
    "loop": ("triton", "cutlass", "library"),
    "mma": ("tcgen05", "wgmma", "mma_sync", "fma"),
}
_COUNTS = {
    "block_m": 4096,
    "block_n": 4096,
    "block_k": 4096,
    "stages": 32,
    "warps": 32,
    "cluster_m": MAX_CLUSTER,
    "cluster_n": MAX_CLUSTER,
    "group": MAX_DIMENSION,
    "split_k": MAX_DIMENSION,
}
_GIVEN = {"n_ctas": (1, 2**31 - 1), "registers_per_thread": (1, 2**16), "smem_bytes": (0, 2**31 - 1)}
"""{field that may be None: its range}."""
LOAD_BYTES = (1, 2, 4, 8, 16)
MMA_K_BYTES = (8, 16, 32)
MOST_SPILL_BYTES = 2**20


def check_fields(config: KernelConfig) -> None:
    """Raise `ConfigError` for the first field of a wrong type or out of range, and a split not the family's."""
    for name, choices in _CHOICES.items():
        value = getattr(config, name)
        if not isinstance(value, str) or value not in choices:
            raise refused(f"{name} = {_shown(value)}", f"one of {', '.join(choices)}")
    for name, most in _COUNTS.items():
        value = getattr(config, name)
        if not _is_integer(value, 1, most):
            raise refused(f"{name} = {_shown(value)}", f"an integer from 1 to {most}")
    _check_given(config)
    if (config.family == "split_k") != (config.split_k > 1):
        allowed = "2 or more" if config.family == "split_k" else "1"
        raise refused(f"split_k = {config.split_k}", f"{allowed} with family = {config.family!r}")
    if config.family == "persistent" and config.loads != "tma":
        raise refused(f"loads = {config.loads!r}", "tma for the persistent family")
    for name, value in (("family", config.family != "persistent" and config.family), ("pingpong", config.pingpong)):
        if config.stream_k and value:
            raise refused("stream_k = True", f"False with {name} = {value!r}")


def _check_given(config: KernelConfig) -> None:
    """What a compiler's report or a launch may have stated, and the fields of other types."""
    for name, (least, most) in _GIVEN.items():
        value = getattr(config, name)
        if value is not None and not _is_integer(value, least, most):
            raise refused(f"{name} = {_shown(value)}", f"an integer from {least} to {most}, or None")
    if not _is_integer(config.spill_bytes_per_thread, 0, MOST_SPILL_BYTES):
        raise refused(
            f"spill_bytes_per_thread = {_shown(config.spill_bytes_per_thread)}",
            f"an integer from 0 to {MOST_SPILL_BYTES}",
        )
    for name, choices in (("load_bytes", LOAD_BYTES), ("mma_k_bytes", MMA_K_BYTES)):
        value = getattr(config, name)
        if type(value) is not int or value not in choices:
            raise refused(f"{name} = {_shown(value)}", f"one of {', '.join(map(str, choices))}")
    for name in ("stream_k", "pingpong", "pair", "split_in_place", "clamped"):
        if type(getattr(config, name)) is not bool:
            raise refused(f"{name} = {_shown(getattr(config, name))}", "True or False")
    if not isinstance(config.name, str):
        raise refused(f"name = {_shown(config.name)}", "text")


def _is_integer(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _shown(value: Any) -> str:
    return repr(value) if value is None or isinstance(value, bool) else shown(value)


def refused(what: str, allowed: str) -> ConfigError:
    """The error to raise for a part of a kernel configuration."""
    return ConfigError(f"{what}: must be {allowed} (kernel configuration)")
