"""Durations and sizes as users write them, everywhere: in calls, in settings and on the command line.

One parser each. A duration is a text with a unit (`"10 s"`), a `timedelta`, or a number of seconds. A size is a text
with a unit (`"256 MiB"`), or a number of bytes. A text without a unit is a number.

All arithmetic is exact: `0.1` is a hundred milliseconds, and nothing that is a little less.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Mapping
from datetime import timedelta
from fractions import Fraction
from typing import TypeAlias

from penstock.errors import PenstockError, PipelineError

Duration: TypeAlias = str | timedelta | int | float
"""A span of time: `"250 ms"`, `"10 s"`, `"1 min"`, `"2 hours"`, `"1 day"`, a `timedelta`, or a number of seconds."""
Size: TypeAlias = str | int
"""An amount of memory or storage: `"64 KiB"`, `"256 MiB"`, `"1 GB"`, or a number of bytes."""

DURATION_FORMS = "a number of seconds, a timedelta, or a text such as '250 ms', '10 s', '1 min', '2 hours' or '1 day'"
SIZE_FORMS = "a number of bytes, or a text such as '64 KiB', '256 MiB' or '1 GB'"

_UNITS_MS = {
    "": 1_000,
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1_000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
}
# No "k", "m" and "g": to Spark they are powers of 1024, to others of 1000.
_UNITS_BYTES = {"": 1, "b": 1, "byte": 1, "bytes": 1}
_UNITS_BYTES |= {f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", 1)}
_UNITS_BYTES |= {f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)}

_TEXT = re.compile(r"\s*(\d[\d_]*(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE | re.ASCII)
_MS_MAX = 1000 * 365 * 86_400_000
"""A thousand years."""
_BYTES_MAX = 2**60


def duration_ms(
    what: str,
    value: Duration,
    *,
    at_least_ms: int = 0,
    exactly: bool = False,
    error: type[PenstockError] = PipelineError,
) -> int:
    """The milliseconds that are meant, rounded unless they must be whole (`exactly`). Raises `error`, naming `what`.

    A duration that is not zero is never rounded to zero: often zero has a meaning of its own.
    """
    ms = _exact_ms(value)
    if ms is None:
        raise error(f"{what} is {value!r}: it must be {DURATION_FORMS}")
    if ms > _MS_MAX or ms < at_least_ms or (exactly and ms != int(ms)):
        whole = "whole milliseconds, " if exactly else ""
        raise error(f"{what} is {value!r}: it must be {whole}at least {at_least_ms} ms, and at most a thousand years")
    return max(round(ms), 1) if ms else 0


def duration_s(what: str, value: Duration, *, error: type[PenstockError] = PipelineError) -> float:
    """The seconds that are meant, for calls of Python that take them."""
    return duration_ms(what, value, error=error) / 1000


def size_bytes(what: str, value: Size, *, at_least: int = 1, error: type[PenstockError] = PipelineError) -> int:
    """The bytes that are meant. Raises `error`, naming `what`."""
    size = _exact(value, _UNITS_BYTES) if isinstance(value, str) else _number(value)
    if size is None or size != int(size):
        raise error(f"{what} is {value!r}: it must be {SIZE_FORMS}")
    if not at_least <= size <= _BYTES_MAX:
        raise error(f"{what} is {value!r}: it must be at least {at_least} bytes, and at most an exbibyte")
    return int(size)


def shown_duration(ms: int) -> str:
    """A duration in the largest unit in which it is a whole number, as `duration_ms` reads it."""
    for unit in ("day", "hour", "min", "s"):
        if ms and ms % _UNITS_MS[unit] == 0:
            count = ms // _UNITS_MS[unit]
            return f"{count} {unit}{'s' if count != 1 and unit in ('day', 'hour') else ''}"
    return f"{ms} ms" if ms else "0 s"


def _exact_ms(value: object) -> Fraction | None:
    if isinstance(value, timedelta):
        return Fraction(value // timedelta(microseconds=1), 1000)
    if isinstance(value, str):
        return _exact(value, _UNITS_MS)
    seconds = _number(value)
    return None if seconds is None else seconds * 1000


def _exact(text: str, units: Mapping[str, int]) -> Fraction | None:
    match = _TEXT.fullmatch(text)
    unit = units.get(match[2].lower()) if match else None
    return None if match is None or unit is None else Fraction(match[1].replace("_", "")) * unit


def _number(value: object) -> Fraction | None:
    """An exact number; a float is the number that it is written as."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        return None
    return Fraction(int(value)) if isinstance(value, numbers.Integral) else Fraction(repr(float(value)))
