"""Where the shipped data lies. Imports nothing heavy, so that names can be listed and completed at once."""

from __future__ import annotations

from pathlib import Path

GPUS = Path(__file__).parent / "gpus"
ARCHITECTURES = Path(__file__).parent / "architectures"


def list_gpus() -> list[str]:
    """Names of the shipped GPUs, sorted."""
    return sorted(path.stem for path in GPUS.glob("*.toml"))


def list_architectures() -> list[str]:
    """Names of the architectures whose shared values are shipped, sorted."""
    return sorted(path.stem for path in ARCHITECTURES.glob("*.toml"))
