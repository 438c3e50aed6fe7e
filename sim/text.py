"""Figures in the sentences of a result."""

from __future__ import annotations

PREFIXES = (
    (1e15, "P"),
    (1e12, "T"),
    (1e9, "G"),
    (1e6, "M"),
    (1e3, "k"),
    (1.0, ""),
    (1e-3, "m"),
    (1e-6, "µ"),
    (1e-9, "n"),
    (1e-12, "p"),
    (1e-15, "f"),
)


def quantity(value: float, unit: str) -> str:
    """Three digits, decimal prefix, unit: 1.782e-4, "s" -> "178 µs". `value` is 0 or more."""
    scale, prefix = next((entry for entry in PREFIXES if value >= 0.9995 * entry[0]), (1.0, ""))
    scaled = value / scale
    digits = 0 if scaled >= 99.95 or value == 0 else 1 if scaled >= 9.995 else 2
    return f"{scaled:,.{digits}f} {prefix}{unit}"


def percent(fraction: float) -> str:
    """0.634 -> "63 %"; below one, a digit more: 0.0034 -> "0.3 %", 0.0001 -> "<0.1 %"."""
    value = 100 * fraction
    if value >= 0.95 or value == 0:
        return f"{value:.0f} %"
    return f"{value:.1f} %" if value >= 0.1 else "<0.1 %"
