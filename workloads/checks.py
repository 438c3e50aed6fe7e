"""Checks of what a workload is given: each refusal names the field, the value and the allowed range."""

from __future__ import annotations

from hwmodels.errors import ConfigError


def check_integer(name: str, value: object, low: int, high: int, where: str) -> None:
    """Refuse what is no integer from `low` to `high`."""
    if type(value) is not int or not low <= value <= high:
        raise ConfigError(f"{name} = {value!r}: must be an integer from {low} to {high} ({where})")


def check_choice(name: str, value: object, choices: tuple[str, ...], where: str) -> None:
    """Refuse what is none of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise ConfigError(f"{name} = {value!r}: must be one of {', '.join(choices)} ({where})")


def check_flag(name: str, value: object, where: str) -> None:
    """Refuse what is neither True nor False."""
    if type(value) is not bool:
        raise ConfigError(f"{name} = {value!r}: must be true or false ({where})")
