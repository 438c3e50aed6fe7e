"""Words of the command line into numbers and sizes; each refusal names the option, the value and what is allowed."""

from __future__ import annotations

import math
import re
from collections.abc import Collection

from hwmodels.errors import ConfigError
from workloads.gemm import MAX_DIMENSION

SIZES = f"an integer from 1 to {MAX_DIMENSION}"
MIN_MHZ, MAX_MHZ = 100, 10_000
"""As `sim.simulate` allows."""
_LONGEST_SHOWN = 60
_LONGEST_NUMBER = 18


def integer(name: str, text: str, high: int) -> int:
    """A whole number from 1 to `high`, in plain digits."""
    if re.fullmatch(r"\d+", text, re.ASCII) and len(text) <= _LONGEST_NUMBER and 1 <= int(text) <= high:
        return int(text)
    raise refused(name, text, f"an integer from 1 to {high}")


def optional_integer(name: str, text: str | None, high: int) -> int | None:
    """As `integer`; None where the option was not given."""
    return None if text is None else integer(name, text, high)


def mhz(name: str, text: str | None) -> float | None:
    """A clock in MHz; None where the option was not given."""
    return number(name, text, MIN_MHZ, MAX_MHZ, " MHz")


def number(name: str, text: str | None, low: float, high: float, unit: str = "") -> float | None:
    """A number from `low` to `high`; None where the option was not given."""
    if text is None:
        return None
    try:
        value = float(text) if len(text) <= _LONGEST_NUMBER and "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise refused(name, text, f"a number from {low} to {high}{unit}")
    return value


def choice(name: str, text: str | None, choices: Collection[str]) -> str | None:
    """One of `choices`; None where the option was not given."""
    if text is None or text in choices:
        return text
    raise refused(name, text, f"one of {', '.join(choices)}")


def extents(name: str, text: str | None, form: str, high: int) -> tuple[int, ...] | None:
    """Whole numbers joined by x as in `form` (such as "BMxBNxBK"); None where the option was not given."""
    if text is None:
        return None
    parts = text.split("x")
    if len(parts) != form.count("x") + 1 or not all(re.fullmatch(r"[1-9]\d{0,5}", part, re.ASCII) for part in parts):
        raise refused(name, text, f"{form}, integers from 1 to {high}")
    values = tuple(int(part) for part in parts)
    if max(values) > high:
        raise refused(name, text, f"{form}, integers from 1 to {high}")
    return values


def refused(name: str, text: str, allowed: str) -> ConfigError:
    """The error for a word of the command line."""
    shown = repr(text) if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]!r}..."
    return ConfigError(f"{name} = {shown}: must be {allowed} (command line)")
