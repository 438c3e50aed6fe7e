"""GPU files: where they are, reading one, and following what it inherits. Data only; nothing in them is executed."""

from __future__ import annotations

import os
import re
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from hwmodels.folders import ARCHITECTURES, GPUS, list_architectures, list_gpus
from hwmodels.refusals import nearest, refusal, shown, unknown_key
from hwmodels.spec import FIELDS, KINDS, SECTIONS

_LARGEST_FILE_BYTES = 1_000_000
_LONGEST_CHAIN = 16
_GPU_NAMES = ("label", "vendor", "architecture", "inherits")
_ARCHITECTURE_NAMES = ("carried_from",)
"""Keys that name things and so carry no unit or source. `carried_from` names the GPU whose model constants stand in
for those that a GPU of this architecture does not state."""


class Entry(NamedTuple):
    """One value as stated, with the file or override that states it."""

    value: Any
    kind: str
    source: str
    origin: str


class Document(NamedTuple):
    """A GPU or architecture file, or several merged: names, and {key: entry}."""

    identity: dict[str, str]
    entries: dict[str, Entry]
    origin: str


def find_document(name_or_path: str | os.PathLike[str]) -> Document:
    """The named GPU, or a user's file, with all it inherits, but without overrides and carried constants.

    Raises ConfigError for an unknown name, a file that cannot be read or is no TOML, unknown keys and circles.
    """
    if not isinstance(name_or_path, (str, os.PathLike)) or not isinstance(text := os.fspath(name_or_path), str):
        raise refusal("", f"GPU = {shown(name_or_path)}: must be text or a path, a shipped name or a TOML file's")
    if text in list_gpus():
        return shipped(text)
    if text.endswith(".toml") or "/" in text or os.sep in text or _is_file(text):
        return _user_document(Path(text), ())
    raise refusal(
        "", f"unknown GPU {shown(text)} (a shipped name or the path of a TOML file){nearest(text, list_gpus())}"
    )


@lru_cache(maxsize=32)
def shipped(name: str) -> Document:
    """A shipped GPU merged over its architecture. Callers must not change what it holds."""
    document = read_document(GPUS / f"{name}.toml", f"{name}.toml", _GPU_NAMES)
    return _over(architecture(document.identity["architecture"], document.origin), document)


@lru_cache(maxsize=32)
def architecture(name: str, asker: str) -> Document:
    """Values shared by the GPUs of an architecture. ConfigError if there is none of that name."""
    if name not in list_architectures():
        raise refusal(asker, f"unknown architecture {shown(name)}{nearest(name, list_architectures())}")
    return read_document(ARCHITECTURES / f"{name}.toml", f"{name}.toml", _ARCHITECTURE_NAMES)


def read_document(path: Path, origin: str, names: tuple[str, ...]) -> Document:
    """One file by itself. `origin` names it in messages, `names` are the keys that name things in such a file."""
    return _parse(_toml(_text(path, origin), origin), origin, names)


def _user_document(path: Path, asked_by: tuple[str, ...]) -> Document:
    origin = str(path)
    here = os.path.realpath(path) if "\0" not in origin else origin
    if here in asked_by:
        chain = " -> ".join(os.path.basename(step) for step in (*asked_by, here))
        raise refusal(origin, f"inherits in a circle: {chain}")
    if len(asked_by) >= _LONGEST_CHAIN:
        raise refusal(origin, f"inherits through more than {_LONGEST_CHAIN} files")
    document = read_document(path, origin, _GPU_NAMES)
    parent = document.identity.get("inherits")
    if parent is None:
        name = document.identity.get("architecture")
        return _over(architecture(name, origin), document) if name is not None else document
    base = shipped(parent) if parent in list_gpus() else _parent(path, parent, (*asked_by, here))
    return _over(base, document)


def _parent(path: Path, parent: str, asked_by: tuple[str, ...]) -> Document:
    if not (parent.endswith(".toml") or "/" in parent):
        raise refusal(str(path), f"inherits from unknown GPU {shown(parent)}{nearest(parent, list_gpus())}")
    return _user_document(path.parent / parent, asked_by)


def _over(base: Document, document: Document) -> Document:
    theirs, ours = base.identity.get("architecture"), document.identity.get("architecture")
    if theirs is not None and ours is not None and theirs != ours:
        raise refusal(
            document.origin, f"architecture {ours!r} differs from {theirs!r} of {base.origin}, which it inherits"
        )
    return Document(base.identity | document.identity, base.entries | document.entries, document.origin)


def _is_file(text: str) -> bool:
    try:
        return os.path.isfile(text)
    except ValueError:
        return False


def _text(path: Path, origin: str) -> str:
    try:
        if not path.exists():
            raise refusal(origin, f"no such file; shipped GPUs: {', '.join(list_gpus())}")
        if not path.is_file():
            raise refusal(origin, "is a directory or device, not a file")
        with path.open("rb") as file:
            raw = file.read(_LARGEST_FILE_BYTES + 1)
    except OSError as error:
        raise refusal(origin, f"cannot be read: {error.strerror or error}") from None
    if len(raw) > _LARGEST_FILE_BYTES:
        raise refusal(origin, f"is larger than {_LARGEST_FILE_BYTES:,} bytes, the most a GPU file may have")
    return _decoded(raw, origin)


def _decoded(raw: bytes, origin: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise refusal(origin, f"line {line}: not UTF-8 text (byte 0x{error.object[error.start]:02x})") from None


def _toml(text: str, origin: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise refusal(origin, "broken TOML: nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"at line (\d+), column \d+\)$", str(error))
        line = int(found[1]) if found else text.count("\n") + 1
        reason = re.sub(r" \(at [^()]*\)$", "", str(error))
        raise refusal(origin, f"line {line}: broken TOML: {reason[:120]}") from None
    except ValueError as error:
        raise refusal(origin, f"broken TOML: {str(error).partition(';')[0][:120]}") from None


def _parse(table: dict[str, Any], origin: str, names: tuple[str, ...]) -> Document:
    identity: dict[str, str] = {}
    entries: dict[str, Entry] = {}
    for key, item in table.items():
        if key in names:
            if not isinstance(item, str):
                raise refusal(origin, f"{key} = {shown(item)}: needs text")
            identity[key] = item
        elif key in SECTIONS:
            if not isinstance(item, dict):
                raise refusal(origin, f"{key} = {shown(item)}: needs a table, [{key}]")
            entries |= {f"{key}.{name}": _entry(f"{key}.{name}", value, origin) for name, value in item.items()}
        else:
            entries[key] = _entry(key, item, origin)
    return Document(identity, entries, origin)


def _entry(key: str, item: Any, origin: str) -> Entry:
    if key not in FIELDS:
        raise refusal(origin, unknown_key(key))
    if not isinstance(item, dict):
        return Entry(item, "user", origin, origin)
    extra = next((name for name in item if name not in ("value", "kind", "source")), None)
    if extra is not None or "value" not in item:
        wrong = f"unknown part {shown(extra)}" if extra is not None else "has no value"
        raise refusal(
            origin, f"{key}: {wrong}; write {{ value = ..., kind = ..., source = ... }}, the unit is in the key"
        )
    kind, source = item.get("kind", "user"), item.get("source", origin)
    if not isinstance(kind, str) or kind not in KINDS:
        raise refusal(
            origin, f"{key}: kind {shown(kind)} is none{nearest(kind if isinstance(kind, str) else '', KINDS)}"
        )
    if not isinstance(source, str) or not source.strip():
        raise refusal(origin, f"{key}: source {shown(source)}: needs text")
    return Entry(item["value"], kind, source, origin)
