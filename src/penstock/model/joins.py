"""Which rows of two streams may meet, as values: the bounds of interval, window and regular joins.

Bounds decide four things, and the operator knows nothing else of a kind of join:

- `partners`: the event times that a row's partners may have;
- `needed_from_ms`: rows of one side that are older cannot meet any row that is still to come;
- `late_before_ms`: rows that are older came too late, since rows that they might have met may be gone;
- `passes_on_ms`: no row that is still to be emitted holds an event time before this one.

All of them follow from one clock: the watermark, or processing time for a regular join without event time. Arithmetic
on event times saturates, so that times near the limits of int64 are right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.model.event_time import MIN_WATERMARK, Ticks
from penstock.model.units import shown_duration

How: TypeAlias = Literal["inner", "left", "right", "full"]
Times: TypeAlias = npt.NDArray[np.int64]

LEFT, RIGHT = 0, 1
SIDES = ("left", "right")
OP = "op"
"""The column of a changelog: `"insert"` or `"delete"`."""

_MIN, _MAX = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)


def is_outer(how: How, side: int) -> bool:
    """Whether rows of this side come out without a partner."""
    return how == "full" or how == SIDES[side]


class JoinBounds(Protocol):
    """One kind of join with its parameters. `str()` of it is recorded in checkpoints."""

    @property
    def parameters(self) -> Mapping[str, int]:
        """The numbers that a checkpoint records, by name. Others mean another join."""
        ...

    @property
    def has_clock(self) -> bool:
        """Whether rows become unnecessary as time goes on."""
        ...

    @property
    def closes(self) -> bool:
        """Whether it is certain at some time that a row has no partner. Otherwise an outer result is a changelog."""
        ...

    def partners(self, side: int, times: Times, per_ms: int, now_ms: int) -> tuple[Times, Times]:
        """The first and the last time of the other side that each row of `side` meets, in the unit of `times`."""
        ...

    def needed_from_ms(self, side: int, now_ms: int) -> int: ...

    def late_before_ms(self, now_ms: int) -> int: ...

    def passes_on_ms(self, watermark_ms: int) -> int: ...


@dataclass(frozen=True, slots=True)
class IntervalBounds:
    """A row of the right side is from `lower_ms` to `upper_ms` later than that of the left one, both included."""

    lower_ms: int
    upper_ms: int

    has_clock = True
    closes = True

    def __str__(self) -> str:
        return f"between {_signed(self.lower_ms)} and {_signed(self.upper_ms)}"

    @property
    def parameters(self) -> Mapping[str, int]:
        return {"lower_ms": self.lower_ms, "upper_ms": self.upper_ms}

    def partners(self, side: int, times: Times, per_ms: int, now_ms: int) -> tuple[Times, Times]:
        lower, upper = (self.lower_ms, self.upper_ms) if side == LEFT else (-self.upper_ms, -self.lower_ms)
        first, last = shifted(times, lower * per_ms), shifted(times, upper * per_ms)
        # Where the whole interval is out of range, not even the row at the limit is in it.
        is_beyond = _leaves(times, lower * per_ms, _MAX) | _leaves(times, upper * per_ms, _MIN)
        return np.where(is_beyond, _MAX, first), np.where(is_beyond, _MIN, last)

    def needed_from_ms(self, side: int, now_ms: int) -> int:
        # A row that is still to come has at least the time of the watermark.
        return now_ms - self.upper_ms if side == LEFT else now_ms + self.lower_ms

    def late_before_ms(self, now_ms: int) -> int:
        return now_ms

    def passes_on_ms(self, watermark_ms: int) -> int:
        return watermark_ms - max(0, self.upper_ms, -self.lower_ms)


@dataclass(frozen=True, slots=True)
class WindowBounds:
    """Both rows are in the same window of `size_ms`. Windows do not overlap, and are aligned to 1970."""

    size_ms: int

    has_clock = True
    closes = True

    def __str__(self) -> str:
        return f"in windows of {shown_duration(self.size_ms)}"

    @property
    def parameters(self) -> Mapping[str, int]:
        return {"size_ms": self.size_ms}

    def partners(self, side: int, times: Times, per_ms: int, now_ms: int) -> tuple[Times, Times]:
        size = self.size_ms * per_ms
        if size > _MAX:
            return np.full(len(times), _MIN), np.full(len(times), _MAX)
        past = np.mod(times, size)
        starts = np.where(times < _MIN + past, _MIN, times - past)
        return starts, np.where(times > _MAX - (size - 1 - past), _MAX, times + (size - 1 - past))

    def starts_ms(self, times: Times, ticks: Ticks) -> Times:
        """The start of the window of each time. The trap: one before the first millisecond of int64 is wrong."""
        in_ms = scaled(times, 1000 // ticks.per_s) if ticks.per_s < 1000 else times // (ticks.per_s // 1000)
        return in_ms - np.mod(in_ms, self.size_ms)

    def needed_from_ms(self, side: int, now_ms: int) -> int:
        return self._start_ms(now_ms)

    def late_before_ms(self, now_ms: int) -> int:
        return self._start_ms(now_ms)

    def passes_on_ms(self, watermark_ms: int) -> int:
        return self._start_ms(watermark_ms)

    def _start_ms(self, at_ms: int) -> int:
        return at_ms // self.size_ms * self.size_ms


@dataclass(frozen=True, slots=True)
class RegularBounds:
    """Any two rows with equal keys meet. With `ttl_ms`, a row is kept until its clock has passed it by that much."""

    ttl_ms: int | None
    in_event_time: bool

    closes = False

    def __str__(self) -> str:
        if self.ttl_ms is None:
            return "regular, kept without end"
        time = "event time" if self.in_event_time else "processing time"
        return f"regular, kept for {shown_duration(self.ttl_ms)} of {time}"

    @property
    def parameters(self) -> Mapping[str, int]:
        return {} if self.ttl_ms is None else {"ttl_ms": self.ttl_ms}

    @property
    def has_clock(self) -> bool:
        return self.ttl_ms is not None

    def partners(self, side: int, times: Times, per_ms: int, now_ms: int) -> tuple[Times, Times]:
        # Rows that have expired may lie there for a while: no result depends on that.
        first = clipped(self.needed_from_ms(side, now_ms) * per_ms)
        return np.full(len(times), first), np.full(len(times), _MAX)

    def needed_from_ms(self, side: int, now_ms: int) -> int:
        return MIN_WATERMARK if self.ttl_ms is None else now_ms - self.ttl_ms

    def late_before_ms(self, now_ms: int) -> int:
        return self.needed_from_ms(LEFT, now_ms)

    def passes_on_ms(self, watermark_ms: int) -> int:
        return watermark_ms if self.ttl_ms is None else watermark_ms - self.ttl_ms


def _signed(ms: int) -> str:
    return f"-{shown_duration(-ms)}" if ms < 0 else shown_duration(ms)


# --- arithmetic that saturates ---


def clipped(tick: int) -> int:
    return min(max(tick, _MIN), _MAX)


def shifted(times: Times, by: int) -> Times:
    """The times later by `by` ticks, which may be negative and need not fit into 64 bits."""
    while by > _MAX or by < _MIN:
        part = _MAX if by > 0 else _MIN
        times, by = shifted(times, part), by - part
    if by >= 0:
        return np.where(times > _MAX - by, _MAX, times + np.int64(by))
    return np.where(times < _MIN - by, _MIN, times + np.int64(by))


def _leaves(times: Times, by: int, limit: int) -> npt.NDArray[np.bool_]:
    """Whether a time that is shifted by `by` ticks is beyond a limit of int64: the last one, or the first one."""
    if (by <= 0) if limit == _MAX else (by >= 0):
        return np.zeros(len(times), dtype=np.bool_)
    if not _MIN <= limit - by <= _MAX:
        return np.ones(len(times), dtype=np.bool_)
    return times > limit - by if limit == _MAX else times < limit - by


def scaled(times: Times, factor: int) -> Times:
    """The times in a unit that is finer by `factor`."""
    if factor == 1:
        return times
    low, high = -(-_MIN // factor), _MAX // factor
    return np.where(times > high, _MAX, np.where(times < low, _MIN, times * np.int64(factor)))


def first_tick_at(ticks: Ticks, ms: int) -> int:
    """The first tick that is not before a time in milliseconds."""
    return clipped(-(-ms * ticks.per_s // 1000))


def partner_ticks(
    bounds: JoinBounds, side: int, times: Times, own: Ticks, other: Ticks, now_ms: int
) -> tuple[Times, Times]:
    """The bounds of the partners of rows at `times`, which are in the unit `own`, as ticks of the unit `other`."""
    # In the finer unit: the last tick of a window in a coarser one holds more of them.
    per_s = max(own.per_s, other.per_s, 1000)
    finer = scaled(times, per_s // own.per_s)
    first, last = bounds.partners(side, finer, per_s // 1000, now_ms)
    if bounds.closes and per_s > own.per_s:
        # A time that the finer unit cannot express is not near any that it can.
        is_beyond = finer // (per_s // own.per_s) != times
        first, last = np.where(is_beyond, _MAX, first), np.where(is_beyond, _MIN, last)
    if other.per_s == per_s:
        return first, last
    coarser = per_s // other.per_s
    # Rounded into the interval. A bound at the limit of int64 is no bound.
    rounded_up = np.where(first == _MIN, _MIN, -(-first // coarser))
    return rounded_up, np.where(last == _MAX, _MAX, last // coarser)
