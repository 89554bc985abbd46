"""Figures for people: short, and with their unit."""

from __future__ import annotations

_BYTES = ("B", "kB", "MB", "GB", "TB", "PB")
_COUNTS = ("", "k", "M", "G", "T")


def shown_bytes(count: int) -> str:
    """`1.2 MB`; powers of a thousand, as file systems and networks count."""
    value, unit = _scaled(count, _BYTES)
    return f"{value} {unit}"


def shown_count(count: float) -> str:
    """`310k`; exact below ten thousand."""
    if abs(count) < 10_000:
        return f"{round(count)}"
    value, unit = _scaled(count, _COUNTS)
    return f"{value}{unit}"


def shown_ms(ms: int) -> str:
    """`35ms`, `4.2s`, or `3m20s`."""
    if ms < 1_000:
        return f"{ms}ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f}s"
    return shown_seconds(ms / 1000)


def shown_seconds(seconds: float) -> str:
    """`12s`, `3m20s`, `2h05m`, or `3d04h`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02d}h"


def _scaled(count: float, units: tuple[str, ...]) -> tuple[str, str]:
    value, place = float(count), 0
    # 999.95 would be shown as 1000.0 of the unit below.
    while abs(value) >= 999.95 and place < len(units) - 1:
        value /= 1000
        place += 1
    if place == 0:
        return f"{round(value)}", units[0]
    return (f"{value:.1f}" if abs(value) < 99.95 else f"{value:.0f}"), units[place]
