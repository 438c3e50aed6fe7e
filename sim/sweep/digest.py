"""By what a result is known again: a digest of everything that it depends on.

That is the workload with its options, the kernel configuration, every value of the GPU, and the code: all source and
data files of `hwmodels`, `workloads` and `sim`, with the versions of what computes.
"""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from hwmodels.errors import ConfigError
from hwmodels.rules import value_at
from hwmodels.spec import FIELDS, Gpu
from sim.sweep.points import Config, Workload

PACKAGES = ("hwmodels", "workloads", "sim")
SUFFIXES = (".py", ".toml", ".csv", ".json")
COMPUTING = ("numpy", "numba", "scipy", "simpy")
PARTS_KEPT = 256


def digest_of(workload: Workload, config: Config, gpu: str) -> str:
    """The digest of a point, hexadecimal. `gpu`: `gpu_digest` of its GPU."""
    chosen = None if config is None else _kept(config)
    return _sha256(_CANONICAL.encode([source_digest(), gpu, chosen, _tree(workload)]))


def gpu_digest(gpu: Gpu) -> str:
    """Of every value and the names, but not of sources and labels."""
    values = {key: value_at(gpu, key) for key in FIELDS}
    return _sha256(json.dumps([gpu.name, gpu.vendor, gpu.architecture, values], sort_keys=True))


def error_digest(error: ConfigError) -> str:
    """In place of a GPU's, of the reason why it cannot be."""
    return _sha256(str(error))


@cache
def source_digest() -> str:
    """Of this process's code and data, and the versions of the libraries that compute."""
    found = hashlib.sha256()
    root = Path(__file__).parent.parent.parent
    for package in PACKAGES:
        for path in sorted(path for path in (root / package).rglob("*") if path.suffix in SUFFIXES):
            content = path.read_bytes()
            found.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode())
            found.update(content)
    versions = [f"{name} {metadata.version(name)}" for name in COMPUTING]
    found.update(" ".join([*versions, platform.machine(), platform.python_version()]).encode())
    return found.hexdigest()


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _tree(value: Any) -> list[Any]:
    """A dataclass as nested lists, by name and fields."""
    kind: Any = type(value)
    parts = (getattr(value, name) for name in _names(kind))
    return [kind.__name__, *(_kept(part) if _has_fields(part.__class__) else part for part in parts)]


_kept = lru_cache(maxsize=PARTS_KEPT)(_tree)
"""Of models and options, which are those of many points."""


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))


_has_fields = cache(is_dataclass)
_CANONICAL = json.JSONEncoder(default=sorted)
"""Of what dataclasses are made of; sets of names are sorted."""
