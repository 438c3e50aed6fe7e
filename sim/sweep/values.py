"""What keys of a study file may hold: one value or several, each checked by itself before anything is simulated."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hwmodels.errors import ConfigError
from hwmodels.refusals import nearest, refusal, shown

MOST_VALUES = 100_000
"""Of one key."""


@dataclass(frozen=True)
class Kind:
    """Values of one key: in words, and whether one is such."""

    allowed: str
    holds: Callable[[Any], bool]
    counts: bool = False
    """Whether they are whole numbers, of which "low:high:step" is a list."""


def whole(low: int, high: int) -> Kind:
    """Whole numbers of a range."""
    return Kind(f"a whole number from {low} to {high}", lambda value: type(value) is int and low <= value <= high, True)


def number(low: float, high: float, unit: str = "") -> Kind:
    """Numbers of a range."""
    return Kind(
        f"a number from {low:g} to {high:g}{unit}",
        lambda value: isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high,
    )


def one_of(choices: Iterable[str]) -> Kind:
    """Some words."""
    known = tuple(choices)
    return Kind(f"one of {', '.join(known)}", lambda value: isinstance(value, str) and value in known)


FLAG = Kind("true or false", lambda value: type(value) is bool)
TEXT = Kind("text", lambda value: isinstance(value, str) and bool(value))


def check_keys(where: str, table: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise ConfigError for the first key that is none of `known`."""
    names = tuple(known)
    for key in table:
        if key not in names:
            raise refusal(where, f"unknown key {shown(key)}{nearest(key, names)}")


def values_of(where: str, key: str, given: Any, kind: Kind) -> tuple[Any, ...]:
    """The values of a key: one, a list of them, or a range of whole numbers. Raises ConfigError for the first that is
    not allowed, for none, and for one that comes twice."""
    several = _range(where, key, given) if kind.counts and isinstance(given, str) else given
    found = tuple(several) if isinstance(several, list | range) else (several,)
    if not 1 <= len(found) <= MOST_VALUES:
        raise refusal(where, f"{key}: {len(found):,} values, must be 1 to {MOST_VALUES:,}")
    for value in found:
        if not kind.holds(value):
            also = ', or "low:high:step"' if kind.counts else ""
            raise refusal(where, f"{key} = {shown(value)}: must be {kind.allowed}, or a list of such{also}")
    twice = [value for value, times in Counter(found).items() if times > 1]
    if twice:
        raise refusal(where, f"{key} = {shown(twice[0])}: given twice")
    return found


def value_of(where: str, key: str, given: Any, kind: Kind) -> Any:
    """The one value of a key. Raises ConfigError for another."""
    if not kind.holds(given):
        raise refusal(where, f"{key} = {shown(given)}: must be {kind.allowed}")
    return given


def tables_of(where: str, key: str, given: Any) -> list[dict[str, Any]]:
    """[[key]] or [key] of a file. Raises ConfigError for what is neither."""
    found = [given] if isinstance(given, dict) else given
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise refusal(where, f"{key}: must be a table, [[{key}]]")
    return found


def _range(where: str, key: str, text: str) -> range:
    parts = text.split(":")
    try:
        low, high, step = (int(part) for part in parts)
    except ValueError:
        low, high, step = 1, 0, 0
    count = math.floor((high - low) / step) + 1 if step > 0 else 0
    if not 1 <= count <= MOST_VALUES:
        raise refusal(where, f'{key} = {shown(text)}: must be "low:high:step", 1 to {MOST_VALUES:,} whole numbers')
    return range(low, high + 1, step)


def placed(where: str, error: ConfigError) -> ConfigError:
    """An error with the place in front, once."""
    return error if str(error).startswith(where) else refusal(where, str(error))
