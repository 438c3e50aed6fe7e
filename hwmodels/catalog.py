"""Loading GPUs: a shipped name or a user's file, with overrides, checked as a whole; and where its values come from.

Each layer overrides those before it: constants carried over from the GPU on which they were fitted, the
architecture's file, files that are inherited, the GPU's own file, overrides.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from hwmodels.documents import Document, Entry, architecture, find_document, shipped
from hwmodels.errors import ConfigError
from hwmodels.folders import list_gpus
from hwmodels.refusals import expected, refusal, shown, unknown_key
from hwmodels.rules import value_at
from hwmodels.spec import FIELDS, SECTIONS, Gpu, Provenance

__all__ = ["Difference", "Row", "changed", "differences", "list_gpus", "load_gpu", "resolved", "rows"]

NAMES = ("label", "vendor", "architecture")
"""What a GPU is called, which only a file says."""
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


class Row(NamedTuple):
    """One value of a GPU for display."""

    key: str
    value: Any
    unit: str
    kind: str
    source: str


def load_gpu(name_or_path: str | os.PathLike[str], overrides: Iterable[str] = ()) -> Gpu:
    """The GPU of that shipped name or in that TOML file, with `key=value` or `key=*factor` overrides applied in order.

    Raises ConfigError, in one line, for an unknown name, an unreadable or broken file, unknown keys, wrong types,
    values out of range, missing values and impossible combinations.
    """
    document = find_document(name_or_path)
    entries = _carried(document) | document.entries
    for override in _texts(overrides):
        key, entry = _override(override, entries)
        entries[key] = entry
    return _built(Path(name_or_path).name.removesuffix(".toml"), document, entries)


def changed(gpu: Gpu, overrides: Iterable[str]) -> Gpu:
    """`gpu` with `key=value` or `key=*factor` overrides applied in order. Raises ConfigError as `load_gpu`."""
    names = {name: str(getattr(gpu, name)) for name in NAMES}
    entries = {row.key: Entry(row.value, row.kind, row.source, gpu.name) for row in rows(gpu)}
    for override in _texts(overrides):
        key, entry = _override(override, entries)
        entries[key] = entry
    return _built(gpu.name, Document(names, entries, gpu.name), entries)


def rows(gpu: Gpu) -> Iterator[Row]:
    """Every value of the GPU with unit, kind and source, in the order of `spec.FIELDS`."""
    for key, field in FIELDS.items():
        origin = gpu.provenance.get(key, Provenance(field.unit, "user", "built in Python"))
        yield Row(key, value_at(gpu, key), *origin)


class Difference(NamedTuple):
    """One value in which two GPUs differ."""

    key: str
    values: tuple[Any, Any]
    unit: str
    ratio: float | None
    """The second over the first, where both are numbers and neither is 0."""
    kinds: tuple[str, str]
    sources: tuple[str, str]


def differences(first: Gpu, second: Gpu) -> list[Difference]:
    """Every value in which the GPUs differ, in the order of `spec.FIELDS`."""
    found = []
    for one, other in zip(rows(first), rows(second), strict=True):
        if one.value != other.value:
            pair = one.value, other.value
            sources = one.source, other.source
            found.append(Difference(one.key, pair, one.unit, _ratio(*pair), (one.kind, other.kind), sources))
    return found


def _ratio(first: Any, second: Any) -> float | None:
    if any(isinstance(value, (bool, str)) or not value for value in (first, second)):
        return None
    return float(second / first)


def resolved(gpu: Gpu) -> dict[str, Any]:
    """The GPU as `Result.gpu` documents it: names, and {key: {value, unit, kind, source}}; JSON can hold it."""
    values = {
        row.key: {"value": row.value, "unit": row.unit, "kind": row.kind, "source": row.source} for row in rows(gpu)
    }
    return {"name": gpu.name, "label": gpu.label, "values": values}


def _carried(document: Document) -> dict[str, Entry]:
    """Model constants of the GPU they were fitted on, for those that this one does not state."""
    name = document.identity.get("architecture")
    source = architecture(name, document.origin).identity.get("carried_from") if name is not None else None
    return _constants(source) if source is not None else {}


@lru_cache(maxsize=8)
def _constants(gpu_name: str) -> dict[str, Entry]:
    found = {key: entry for key, entry in shipped(gpu_name).entries.items() if FIELDS[key].is_constant}
    return {
        key: entry._replace(
            kind="assumed", source=f"carried over from {gpu_name}, not checked on this GPU; there: {entry.source}"
        )
        for key, entry in found.items()
    }


def _texts(overrides: Iterable[str]) -> list[str]:
    """The overrides. Raises ConfigError for one text instead of several, and for what is no text."""
    if isinstance(overrides, (str, bytes)) or not isinstance(overrides, Iterable):
        raise refusal("", f"overrides = {shown(overrides)}: must be a list of texts, key=value or key=*factor")
    found = list(overrides)
    for number, item in enumerate(found):
        if not isinstance(item, str):
            raise refusal("", f"overrides[{number}] = {shown(item)}: must be text, key=value or key=*factor")
    return found


def _override(text: str, entries: dict[str, Entry]) -> tuple[str, Entry]:
    where = f"override {shown(text)}"
    key, equals, right = (part.strip() for part in text.partition("="))
    if not equals or not key or not right:
        raise refusal(where, "needs the form key=value or key=*factor")
    if key in NAMES:
        raise refusal(where, f"{key} names the GPU; only a file sets it")
    if key not in FIELDS:
        raise refusal(where, unknown_key(key))
    if right.startswith("*"):
        return key, _scaled(key, right[1:].strip(), entries, where)
    return key, Entry(_literal(key, right, where), "user", f"override {key}={right}", where)


def _literal(key: str, text: str, where: str) -> Any:
    """The text as the type of its key; a number without fraction stays whole."""
    wanted = FIELDS[key].type
    if wanted is str:
        return text
    if wanted is bool:
        if text not in ("true", "false"):
            raise refusal(where, expected(key))
        return text == "true"
    number = _number(text)
    if number is None:
        raise refusal(where, expected(key))
    return number


def _number(text: str) -> int | float | None:
    if len(text) > 40 or not _NUMBER.fullmatch(text):
        return None
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _scaled(key: str, factor_text: str, entries: dict[str, Entry], where: str) -> Entry:
    factor, base = _number(factor_text), entries.get(key)
    if factor is None or factor <= 0:
        raise refusal(where, f"factor {shown(factor_text)}: needs a number above 0")
    if base is None or isinstance(base.value, bool) or not isinstance(base.value, (int, float)):
        raise refusal(where, f"{key} has no number to multiply")
    source = f"override {key}=*{factor_text} of {shown(base.value)} ({base.kind}: {base.source})"
    return Entry(_product(base.value, factor, where), "user", source, where)


def _product(value: int | float, factor: int | float, where: str) -> int | float:
    try:
        product = value * factor
    except OverflowError:
        raise refusal(where, f"{shown(value)} times {factor:g} is too large") from None
    whole = isinstance(value, int) and isinstance(product, float) and product.is_integer()
    return int(product) if whole else product


def _built(name: str, document: Document, entries: dict[str, Entry]) -> Gpu:
    _refuse_missing(document, entries)
    identity = {"name": name} | {key: document.identity[key] for key in NAMES}
    values: dict[str, Any] = {section: {} for section in SECTIONS}
    for key, entry in entries.items():
        section, _, part = key.rpartition(".")
        (values[section] if section else values)[part] = entry.value
    origins = {key: Provenance(FIELDS[key].unit, entries[key].kind, entries[key].source) for key in FIELDS}
    values |= {**identity, "provenance": origins}
    try:
        return Gpu.model_validate(values)
    except ValidationError as error:
        raise _explained(error, document, entries) from None


def _refuse_missing(document: Document, entries: dict[str, Entry]) -> None:
    names = [key for key in NAMES if key not in document.identity]
    if names:
        raise refusal(
            document.origin, f'{" and ".join(names)} missing; state it or inherit from a GPU (inherits = "h200_sxm")'
        )
    absent = [key for key in FIELDS if key not in entries]
    if absent:
        more = f"; {len(absent) - 1} more are missing, next {absent[1]}" if len(absent) > 1 else ""
        raise refusal(document.origin, f"{absent[0]} is missing: {expected(absent[0])}{more}")


def _explained(error: ValidationError, document: Document, entries: dict[str, Entry]) -> ConfigError:
    """The first complaint as one line that names file or override, key, value and allowed range."""
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    if key in entries:
        return refusal(entries[key].origin, f"{key} = {shown(entries[key].value)}: {expected(key)}")
    bound = [entries[name].origin for name in first.get("ctx", {}).get("keys", ()) if name in entries]
    if bound:
        where = next((origin for origin in bound if origin.startswith("override")), document.origin)
        return refusal(where, first["msg"])
    return refusal(document.origin, f"{key} = {shown(first['input'])}: needs a short text in one line")
