"""Quantities as people read them: three significant digits, decimal prefixes, a unit always."""

from __future__ import annotations

from collections.abc import Iterable

MULTIPLY = "×"


def _scaled(value: float, unit: str, prefixes: Iterable[tuple[float, str]]) -> str:
    for factor, prefix in prefixes:
        if abs(value) >= 0.9995 * factor:
            return f"{three_digits(value / factor)} {prefix}{unit}"
    return f"{three_digits(value)} {unit}"


def three_digits(value: float) -> str:
    """1234.5 -> "1,234"; 12.345 -> "12.3"; 0.01234 -> "0.0123"."""
    if value == 0:
        return "0"
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    if abs(value) >= 9.995:
        return f"{value:.1f}"
    if abs(value) >= 0.9995:
        return f"{value:.2f}"
    return f"{value:.3f}" if abs(value) >= 0.09995 else f"{value:.3g}"


def bytes_text(n_bytes: float) -> str:
    """Decimal bytes: 2147483648 -> "2.15 GB"."""
    return _scaled(n_bytes, "B", ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")))


def rate_text(bytes_per_s: float) -> str:
    """Decimal bytes a second: 4.8e12 -> "4.80 TB/s"."""
    return _scaled(bytes_per_s, "B/s", ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")))


def pair_text(used: float, peak: float) -> str:
    """Used and peak bytes a second, in the peak's unit unless far below: "0.864 of 4.80 TB/s"."""
    if used < 0.01 * peak:
        return f"{rate_text(used)} of {rate_text(peak)}"
    factor, prefix = (1e12, "T") if peak >= 1e12 else (1e9, "G")
    return f"{three_digits(used / factor)} of {three_digits(peak / factor)} {prefix}B/s"


def time_text(time_s: float) -> str:
    """Seconds with a prefix: 2.177e-4 -> "218 µs"."""
    return _scaled(time_s, "s", ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"), (1e-12, "p"), (1e-15, "f")))


def power_text(watts: float, held_w: float | None = None) -> str:
    """Watts; of a burst that takes more than the board holds for long (`held_w`), with these."""
    return f"{watts:,.0f} W" if held_w is None else f"{watts:,.0f} W in a burst (the board holds {held_w:,.0f} W)"


def energy_text(joules: float) -> str:
    """Joules with a prefix: 0.0123 -> "12.3 mJ"."""
    return _scaled(joules, "J", ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n")))


def flops_text(flops_per_s: float) -> str:
    """FLOP a second: 6.3e14 -> "630 TFLOP/s"."""
    return _scaled(flops_per_s, "FLOP/s", ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")))


def work_text(flops: float) -> str:
    """FLOPs: 1.35e11 -> "135 GFLOP"."""
    return _scaled(flops, "FLOP", ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")))


def count_text(count: float) -> str:
    """A large number: 8030261248 -> "8.03 billion"."""
    return _scaled(count, "", ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"), (1e3, "thousand"))).strip()


def percent_text(fraction: float) -> str:
    """A share: 0.6349 -> "63 %"; small ones keep two digits, down to "<0.1 %"."""
    percent = 100.0 * fraction
    if 0 < percent < 0.1:
        return "<0.1 %"
    if percent >= 9.95 or percent == 0:
        return f"{percent:.0f} %"
    return f"{percent:.1f} %" if percent >= 0.995 else f"{percent:.2f} %"


def plural(count: float, noun: str) -> str:
    """3, "wave" -> "3 waves"."""
    return f"{three_digits(count) if isinstance(count, float) else f'{count:,}'} {noun}{'' if count == 1 else 's'}"
