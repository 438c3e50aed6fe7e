"""A `config.json` as a user gives it: found, read and parsed strictly. Data only; nothing in it is evaluated."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from hwmodels.errors import ConfigError
from workloads.models.model import MAX_NAME_LENGTH

LARGEST_FILE_BYTES = 1_000_000
CONFIG_FILE = "config.json"
LONGEST_PATH_SHOWN = 300


def read_json(path: str | os.PathLike[str]) -> tuple[dict[str, Any], str, str]:
    """The object in that file or in the `config.json` of that directory, a name, and the path as messages show it.

    A `config.json` is named after its directory, a file of another name after itself.

    Raises `ConfigError`, in one line, for what cannot be read, is over 1 MB, is no UTF-8 or no strict JSON (NaN,
    infinities, keys that stand twice, nesting too deep), or is no object.
    """
    if not isinstance(path, (str, os.PathLike)) or not isinstance(text := os.fspath(path), str):
        raise ConfigError(f"model = {shown(path)}: must be text or a path")
    origin = text if text.isprintable() and 0 < len(text) <= LONGEST_PATH_SHOWN else shown(text)
    file = _config_file(text, origin)
    return _parsed(_read(file, origin), origin), _name_of(file), origin


def _config_file(text: str, origin: str) -> Path:
    try:
        path = Path(text) / CONFIG_FILE if os.path.isdir(text) else Path(text)
        if not path.exists():
            raise ConfigError(f"{origin}: no such file" + (f" ({CONFIG_FILE})" if path.name == CONFIG_FILE else ""))
        if not path.is_file():
            raise ConfigError(f"{origin}: is a directory or device, not a file")
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{origin}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return path


def _read(path: Path, origin: str) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{origin}: cannot be read: {error.strerror or error}") from None
    if len(raw) > LARGEST_FILE_BYTES:
        raise ConfigError(f"{origin}: is larger than {LARGEST_FILE_BYTES:,} bytes, the most a configuration may have")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{origin}: line {line}: not UTF-8 text (byte 0x{raw[error.start]:02x})") from None


def _parsed(text: str, origin: str) -> dict[str, Any]:
    try:
        found = json.loads(
            text, object_pairs_hook=_without_repeats, parse_constant=_no_constant, parse_float=_finite_number
        )
    except RecursionError:
        raise ConfigError(f"{origin}: broken JSON: nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{origin}: line {error.lineno}: broken JSON: {error.msg}") from None
    except ValueError as error:
        raise ConfigError(f"{origin}: broken JSON: {str(error).partition(';')[0][:120]}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{origin}: must hold one JSON object, not {shown(found)}")
    return found


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {shown(twice)} stands twice")
    return found


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no number")


def _finite_number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is too large a number")
    return number


def _name_of(file: Path) -> str:
    stem = file.resolve().parent.name if file.name == CONFIG_FILE else file.name.removesuffix(".json")
    name = "".join(letter if letter.isprintable() else "_" for letter in stem)
    return name[:MAX_NAME_LENGTH] or "model"


def shown(value: object) -> str:
    """The value as a message shows it, cut short."""
    text = repr(value) if not isinstance(value, int) or isinstance(value, bool) or abs(value) < 10**40 else "an integer"
    return text if len(text) <= 80 else f"{text[:77]}..."
