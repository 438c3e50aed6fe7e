"""The words of refused input: one line each, with what, value, allowed range and where."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from hwmodels.errors import ConfigError
from hwmodels.spec import FIELDS, SECTIONS
from hwmodels.units import meaning_of, with_right_unit

_LONGEST_SHOWN = 60
_LONGEST_PATH = 240
_TOML_NAMES = {"dict": "table"}


def refusal(where: str, text: str) -> ConfigError:
    """The error to raise: `where: text` in one printable line; of a long path the end is shown."""
    where = where if len(where) <= _LONGEST_PATH else "..." + where[3 - _LONGEST_PATH :]
    return ConfigError(printable(f"{where}: {text}" if where else text))


def printable(text: str) -> str:
    """The text with line ends, control characters and broken surrogates escaped."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def shown(value: Any) -> str:
    """A value as an error message shows it: short, and never failing on what a file may hold."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    if not isinstance(value, (str, int, float, bool)):
        return f"a {_TOML_NAMES.get(type(value).__name__, type(value).__name__)}"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "..."


def expected(key: str) -> str:
    """What the value under a known key has to be, with its allowed range and unit."""
    field = FIELDS[key]
    if field.type is bool:
        return "needs true or false"
    if field.low is None or field.high is None:
        return f"needs text: {field.text}"
    number = "a whole number" if field.type is int else "a number"
    unit = "" if field.unit == "count" else f" {meaning_of(field.unit)}"
    return f"needs {number} from {field.low:.10g} to {field.high:.10g}{unit}"


def nearest(name: str, known: Iterable[str], prefix: str = "", otherwise: str = "") -> str:
    """`; did you mean ...?` for the known name most like `name`, else `otherwise` or the list of what there is."""
    names = sorted(known)
    starts = [item for item in names if name and item.startswith(name.lower())]
    close = starts or difflib.get_close_matches(name.lower()[:200], names, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {' or '.join(prefix + item for item in close[:3])}?"
    return f"; {otherwise or 'known: ' + ', '.join(names)}"


def unknown_key(key: str) -> str:
    """Why a key is refused: its unit is wrong, or which known key is nearest."""
    section, dot, name = key.rpartition(".")
    if dot and section not in SECTIONS:
        return f"unknown section {shown(section)}{nearest(section, SECTIONS)}"
    siblings = [known.removeprefix(section + dot) for known in FIELDS if known.rpartition(".")[0] == section]
    right = with_right_unit(name, siblings)
    if right is not None:
        path = section + dot + right
        return f"unknown key {shown(key)}: the unit is {meaning_of(FIELDS[path].unit)}; did you mean {path}?"
    return f"unknown key {shown(key)}{nearest(name, siblings, section + dot) if section else _elsewhere(key)}"


def _elsewhere(name: str) -> str:
    """The keys whose last part, or the lever that turns them, is most like a name without section."""
    from hwmodels.levers import levers  # it refuses by this module

    keys = {each.name: list(each.keys) for each in levers().values()}
    for known in FIELDS:
        keys.setdefault(known.rpartition(".")[2], []).append(known)
    close = difflib.get_close_matches(name[:200], keys, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {' or '.join(keys[close[0]][:3])}?"
    return f"; keys are section.name, sections: {', '.join(SECTIONS)}"
