"""The machine that is measured: whether it can be, what it has, and what goes into the protocol."""

from __future__ import annotations

import platform
import shutil
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from hwmodels.errors import ConfigError
from sim.measure.table import Table

MODULES = {"triton": "triton", "nvml": "pynvml"}
"""Tools that are Python modules."""
HOPPER = (9, 0)


def require_gpu() -> None:
    """Raise ConfigError unless PyTorch is here and sees an NVIDIA GPU."""
    if find_spec("torch") is None:
        raise ConfigError("measure: needs PyTorch, which is not installed; run it on a machine with an NVIDIA GPU")
    import torch

    if not torch.cuda.is_available() or torch.version.cuda is None:
        raise ConfigError("measure: needs an NVIDIA GPU; PyTorch finds none")


@cache
def has(tool: str) -> bool:
    """Whether one of `table.TOOLS`, or "hopper", is here."""
    if tool == "hopper":
        return capability() == HOPPER
    return find_spec(MODULES[tool]) is not None if tool in MODULES else shutil.which(tool) is not None


def lacking(table: Table) -> str:
    """What `table` needs and is not here, as a sentence; "" if nothing."""
    names = ["a GPU of compute capability 9.0" if tool == "hopper" else tool for tool in table.needs if not has(tool)]
    return f"needs {' and '.join(names)}" if names else ""


def capability() -> tuple[int, int]:
    """Compute capability of the GPU."""
    import torch

    major, minor = torch.cuda.get_device_capability(0)
    return major, minor


def facts(command: str) -> dict[str, str]:
    """GPU, driver, versions, clocks and the command, for the protocol."""
    import torch

    properties: Any = torch.cuda.get_device_properties(0)
    known = {
        "gpu": properties.name,
        "compute_capability": ".".join(map(str, capability())),
        "sms": str(properties.multi_processor_count),
        "memory_bytes": str(properties.total_memory),
        "cuda": str(torch.version.cuda),
        "torch": torch.__version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in ("triton", "tilewalk")},
        "ncu": _last_word_line("ncu", "--version"),
        "nvcc": _last_word_line("nvcc", "--version"),
        **_smi(),
        "command": command,
    }
    return {name: text for name, text in known.items() if text}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _last_word_line(*command: str) -> str:
    """The last line that a tool says about its version; "" without the tool."""
    if not shutil.which(command[0]):
        return ""
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout.strip()
    return said.splitlines()[-1] if said else ""


def _smi() -> dict[str, str]:
    """Driver, clocks, power limit and temperature as nvidia-smi says."""
    fields = {
        "driver": "driver_version",
        "sm_clock": "clocks.sm",
        "memory_clock": "clocks.mem",
        "max_sm_clock": "clocks.max.sm",
        "power_limit": "power.limit",
        "temperature_celsius": "temperature.gpu",
    }
    if not shutil.which("nvidia-smi"):
        return {}
    query = ["nvidia-smi", f"--query-gpu={','.join(fields.values())}", "--format=csv,noheader", "-i", "0"]
    said = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False).stdout.strip()
    return dict(zip(fields, (part.strip() for part in said.split(",")), strict=False))
