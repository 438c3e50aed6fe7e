"""Loading models: a built-in name, forgivingly spelt, or the path of a Hugging Face `config.json`."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Any

from hwmodels.errors import ConfigError
from workloads.models.huggingface import from_config as read_config
from workloads.models.huggingface import load_config
from workloads.models.json_file import shown
from workloads.models.model import Model

__all__ = ["list_models", "load_model", "published_parameters", "source_of"]

BUILT_IN = Path(__file__).parent / "built_in.toml"
_SUFFIX = re.compile(r"^(?P<name>.+)-(?P<layers>\d{1,9})-?layers?$", re.IGNORECASE | re.ASCII)


def load_model(name_or_path: str | os.PathLike[str]) -> Model:
    """The built-in model of that name, or the one that a `config.json` (or the directory that holds it) describes.

    Capitals, hyphens, underscores and blanks in a name do not matter, and names of Hugging Face repositories are
    known too: `Llama-3-8B` and `meta-llama/Meta-Llama-3-8B` are `llama3-8b`. A suffix `-Nlayers` keeps the first N
    layers only.

    Raises `ConfigError`, in one line, for an unknown name and whatever `load_config` refuses.
    """
    if not isinstance(name_or_path, (str, os.PathLike)) or not isinstance(text := os.fspath(name_or_path), str):
        raise ConfigError(f"model = {shown(name_or_path)}: must be text or a path")
    found = _SUFFIX.match(text)
    name = _known(found["name"]) if found else None
    if found and name is not None:
        return built_in(name).with_layers(int(found["layers"]))
    name = _known(text)
    if name is not None:
        return built_in(name)
    if _looks_like_a_path(text):
        return load_config(text)
    raise ConfigError(f"unknown model {shown(text)} (a built-in name or the path of a config.json){_nearest(text)}")


def list_models() -> tuple[str, ...]:
    """Names of the built-in models."""
    return tuple(_table())


@lru_cache(maxsize=64)
def built_in(name: str) -> Model:
    """The built-in model of exactly that name."""
    return read_config(_table()[name]["config"], name=name, origin=name)


def source_of(name: str) -> str:
    """Where the shapes of a built-in model come from."""
    return str(_table()[name]["source"])


def published_parameters(name: str) -> int | None:
    """The published number of parameters of a built-in model, where an exact one is known."""
    found = _table()[name].get("parameters")
    return None if found is None else int(found)


@lru_cache(maxsize=1)
def _table() -> dict[str, dict[str, Any]]:
    return tomllib.loads(BUILT_IN.read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def _spellings() -> dict[str, str]:
    """Every name under which a model is found, reduced -> its own name."""
    return {
        _reduced(spelling): name
        for name, entry in _table().items()
        for spelling in (name, *entry.get("aliases", ()), *_repository_names(entry))
    }


def _repository_names(entry: dict[str, Any]) -> tuple[str, ...]:
    repository = entry.get("repository")
    return () if repository is None else (repository, repository.rpartition("/")[2])


def _known(text: str) -> str | None:
    return _spellings().get(_reduced(text))


def _reduced(text: str) -> str:
    return re.sub(r"[-_\s]", "", text.lower())


def _looks_like_a_path(text: str) -> bool:
    if text.endswith(".json") or text.startswith((".", "~", os.sep)) or text.count("/") > 1:
        return True
    try:
        return os.path.exists(text)
    except ValueError:
        return False


def _nearest(text: str) -> str:
    """`; did you mean ...?` for the names most like the text, else the list of what there is."""
    reduced = _reduced(text)[:100]
    close = difflib.get_close_matches(reduced, _spellings(), n=3, cutoff=0.6)
    names = dict.fromkeys(_spellings()[item] for item in close)
    starts = [name for name in list_models() if reduced and _reduced(name).startswith(reduced)]
    names = dict.fromkeys(starts) or names
    if names:
        return f"; did you mean {' or '.join(list(names)[:4])}?"
    return f"; known: {', '.join(list_models())}"
