"""Units of the keys in a GPU file: the suffix of a key is its unit, in one table."""

from __future__ import annotations

import re

UNITS = {
    "flops_per_clk_per_sm": "FLOP/clk/SM",
    "bytes_per_clk": "B/clk",
    "gb_per_s": "GB/s",
    "pj_per_byte": "pJ/B",
    "pj_per_flop": "pJ/FLOP",
    "w_per_sm": "W/SM",
    "kib_per_sm": "KiB/SM",
    "kib_per_cta": "KiB/CTA",
    "bytes_per_cta": "B/CTA",
    "bytes": "B",
    "kib": "KiB",
    "mib": "MiB",
    "gb": "GB",
    "ns": "ns",
    "us": "us",
    "ms": "ms",
    "mhz": "MHz",
    "w": "W",
    "cycles": "cycles",
    "instructions": "instructions",
    "fraction": "fraction",
    "weight": "ratio",
    "per_sm": "count/SM",
    "per_tpc": "count/TPC",
    "per_gpc": "count/GPC",
    "per_cta": "count/CTA",
    "per_thread": "count/thread",
    "per_warp": "count/warp",
}
"""{suffix of a key: unit}, longest suffix first where one ends another. FLOP is an operation for int8."""

_PLAIN_UNITS: dict[type, str] = {bool: "yes/no", int: "count", str: "text"}

_MEANINGS = {
    "GB/s": "10^9 bytes a second",
    "GB": "10^9 bytes",
    "MiB": "2^20 bytes",
    "KiB/SM": "2^10 bytes",
    "KiB/CTA": "2^10 bytes",
    "B/clk": "bytes in one SM clock cycle",
    "cycles": "SM clock cycles",
    "fraction": "of 1",
}

_UNIT_WORD = re.compile(
    r"[kmgt]?i?(b|bytes?|bits?|bps|hz|flops?|ops)|[munp]?s|sec|clocks?|clks?|cycles?|[km]?w|watts?"
    r"|per|sm|cta|fraction|percent|pct|ratio|weight"
)
"""A word that a mistaken unit suffix may be made of."""


def suffix_of(name: str) -> str:
    """The unit suffix of a key's last part, "" if it carries none."""
    return next((suffix for suffix in UNITS if name == suffix or name.endswith("_" + suffix)), "")


def stem_of(name: str) -> str:
    """The quantity that a key's last part names: `bandwidth` of `bandwidth_gb_per_s`."""
    return name.removesuffix(suffix_of(name)).removesuffix("_")


def unit_of(name: str, value_type: type) -> str:
    """Unit of the value under this key: from its suffix, else from its type. KeyError for a float without a suffix."""
    return UNITS.get(suffix_of(name)) or _PLAIN_UNITS[value_type]


def meaning_of(unit: str) -> str:
    """The unit with its definition, where the name alone could mislead."""
    return f"{unit} ({_MEANINGS[unit]})" if unit in _MEANINGS else unit


def with_right_unit(name: str, known: list[str]) -> str | None:
    """The known key that names the same quantity as `name`, which differs only in its unit suffix; else None."""
    same = [key for key in known if stem_of(key) and _differs_in_unit(name, stem_of(key))]
    return max(same, key=lambda key: len(stem_of(key)), default=None)


def _differs_in_unit(name: str, stem: str) -> bool:
    if name == stem:
        return True
    words = name.removeprefix(stem + "_").split("_") if name.startswith(stem + "_") else [""]
    return all(_UNIT_WORD.fullmatch(word) for word in words)
