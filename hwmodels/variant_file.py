"""A variant of a GPU as a file that inherits from it and states only what differs."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path

from hwmodels.catalog import rows
from hwmodels.errors import ConfigError
from hwmodels.folders import list_gpus
from hwmodels.refusals import shown
from hwmodels.spec import Gpu

LONGEST_LABEL, LONGEST_NAME = 80, 200


def write_variant(path: Path, base_name: str, base: Gpu, varied: Gpu) -> None:
    """Write a GPU file, whole or not at all, that `load_gpu` reads as `varied`. `base_name`: the shipped name or file
    of `base`. Raises ConfigError where it cannot be written, or would overwrite the file it inherits."""
    check_path("path", path, base_name)
    parent = base_name
    if base_name not in list_gpus():
        parent = os.path.relpath(base_name, path.parent)
        parent = parent if parent.endswith(".toml") or "/" in parent else f"./{parent}"
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text("\n".join(_lines(parent, base, varied)) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise ConfigError(f"path = {str(path)!r}: cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def check_path(what: str, path: Path, base_name: str) -> None:
    """Raise ConfigError, naming `what` was given, where a variant of `base_name` cannot be in that file."""
    if path.suffix != ".toml":
        raise ConfigError(f"{what} = {str(path)!r}: must end in .toml to be a GPU file")
    if len(path.stem) > LONGEST_NAME or not path.stem.isprintable():
        allowed = f"1 to {LONGEST_NAME} printable characters and .toml"
        raise ConfigError(f"{what} = {shown(path.name)}: must be {allowed} to be a GPU's name")
    if base_name not in list_gpus() and os.path.realpath(path) in map(os.path.realpath, _inherited(Path(base_name))):
        raise ConfigError(f"{what} = {str(path)!r}: must be another file than those of the GPUs it inherits")


def _inherited(path: Path) -> Iterator[Path]:
    """A GPU file, and those that it inherits in turn."""
    while True:
        yield path
        parent = tomllib.loads(path.read_text("utf-8-sig")).get("inherits")
        if parent is None or parent in list_gpus():
            return
        path = path.parent / parent


def _lines(parent: str, base: Gpu, varied: Gpu) -> Iterator[str]:
    yield f"inherits = {json.dumps(parent)}"
    yield f"label = {json.dumps(f'{base.label}, varied'[:LONGEST_LABEL])}"
    section = ""
    for old, new in zip(rows(base), rows(varied), strict=True):
        if new.value == old.value:
            continue
        where, _, name = new.key.rpartition(".")
        if where != section:
            section = where
            yield f"\n[{section}]"
        value = json.dumps(new.value)
        yield f'{name} = {{ value = {value}, kind = "user", source = {json.dumps(new.source)} }}'
