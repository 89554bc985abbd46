"""Spans of time as users write them: `"10 s"`, a `timedelta`, or a number of milliseconds."""

from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction
from typing import Any, TypeAlias

from penstock.errors import PipelineError

Duration: TypeAlias = str | timedelta | int

_UNITS_MS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1_000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.IGNORECASE)
_MS_MAX = 1000 * 365 * 86_400_000
"""A thousand years."""


def duration_ms(what: str, value: Any, *, at_least_ms: int) -> int:
    """The milliseconds that are meant. Raises `PipelineError`, with `what` in it."""
    ms = exact_ms(value)
    if ms is None:
        raise PipelineError(
            f"{what} is {value!r}: write a text such as '500 ms', '10 s', '5 minutes', '1 hour' or '1 day', "
            f"a timedelta, or a number of milliseconds"
        )
    if ms != int(ms) or not at_least_ms <= ms <= _MS_MAX:
        raise PipelineError(f"{what} is {value!r}: it must be whole milliseconds, at least {at_least_ms}")
    return int(ms)


def exact_ms(value: Any) -> Fraction | int | None:
    """The milliseconds of a text, a timedelta, or a number of them; None for anything else."""
    if isinstance(value, timedelta):
        return Fraction(value // timedelta(microseconds=1), 1000)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _TEXT.fullmatch(value) if isinstance(value, str) else None
    unit = _UNITS_MS.get(match[2].lower()) if match else None
    return None if match is None or unit is None else Fraction(match[1]) * unit
