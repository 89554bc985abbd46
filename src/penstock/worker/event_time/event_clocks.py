"""Event time by the parts of a subtask's input: the splits that it reads, or its channels.

Each part is in the order of its own time, give or take the delay that the user allows; together they are not, since
one may be hours ahead of another. So each part has its own clock, and the slowest one is the subtask's watermark. A
part that has shown no record yet holds the watermark where it is: nobody knows where the part begins.

A part that was asked and had nothing for `idle_after_ms` holds nobody up, until it has records again. Time in which
nobody asked does not count: under backpressure records wait where they are, and their part is not idle. If all are
idle, the one that came furthest has the word: nobody is left to wait for.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from penstock.model.event_time import IDLE_WATERMARK, MIN_WATERMARK

Part = TypeVar("Part", bound=Hashable)


class EventClocks(Generic[Part]):
    """The clocks of the parts that are open."""

    __slots__ = ("_asked_at_ms", "_empty_ms", "_idle_after_ms", "_never_idle", "_reached", "_resting", "newest")

    def __init__(self, idle_after_ms: int | None) -> None:
        self._idle_after_ms = idle_after_ms
        self._reached: dict[Part, int] = {}
        self._asked_at_ms: dict[Part, int] = {}
        self._empty_ms: dict[Part, int] = {}
        """For how long a part has had nothing, time after time that it was asked."""
        self._never_idle: set[Part] = set()
        self._resting: set[Part] = set()
        self.newest = MIN_WATERMARK
        """The clock of the part that came furthest, ended ones included."""

    def open(self, part: Part, now_ms: int, reached: int | None = None, *, may_idle: bool = True) -> None:
        """A part begins, or goes on from the time it had `reached` at the last checkpoint."""
        self._reached[part] = MIN_WATERMARK if reached is None else reached
        # It may have come furthest before a restart, and have nothing to read ever since.
        self.newest = max(self.newest, self._reached[part])
        self._asked_at_ms[part] = now_ms
        self._empty_ms[part] = 0
        if not may_idle:
            self._never_idle.add(part)

    def close(self, part: Part) -> None:
        """A part has ended: it holds nothing back any more."""
        self._reached.pop(part, None)
        self._asked_at_ms.pop(part, None)
        self._empty_ms.pop(part, None)
        self._never_idle.discard(part)
        self._resting.discard(part)

    def rest(self, part: Part) -> None:
        """A part is said to be idle: it holds nobody up until it has records, or is said to be awake."""
        self._resting.add(part)

    def wake(self, part: Part) -> None:
        self._resting.discard(part)

    def saw(self, part: Part, reached: int, now_ms: int) -> None:
        """Records of a part have come, and no older one than `reached` is expected of it."""
        self.newest = max(self.newest, reached)
        self.has_more(part, now_ms)
        if part in self._reached:
            self._resting.discard(part)
            self._reached[part] = max(self._reached[part], reached)

    def has_more(self, part: Part, now_ms: int) -> None:
        """A part was asked, and has records or is about to."""
        if part in self._reached:
            self._asked_at_ms[part] = now_ms
            self._empty_ms[part] = 0

    def had_nothing(self, part: Part, now_ms: int) -> None:
        """A part was asked, and has nothing. A long time since it was asked last counts for a quarter at most."""
        if self._idle_after_ms is not None and part in self._reached:
            asked_ms = now_ms - self._asked_at_ms[part]
            self._asked_at_ms[part] = now_ms
            self._empty_ms[part] += min(asked_ms, max(1, self._idle_after_ms // 4))

    def reached(self, part: Part) -> int:
        """The clock of a part that is open."""
        return self._reached[part]

    def watermark(self) -> int:
        """The clock of the slowest part; `IDLE_WATERMARK` if none is open, or all are idle."""
        if self._idle_after_ms is None and not self._resting:
            return min(self._reached.values(), default=IDLE_WATERMARK)
        return min(
            (clock for part, clock in self._reached.items() if not self.is_idle(part)),
            default=IDLE_WATERMARK,
        )

    def is_idle(self, part: Part) -> bool:
        """Whether a part that is open holds nobody up."""
        if part in self._resting:
            return True
        if self._idle_after_ms is None or part in self._never_idle:
            return False
        return self._empty_ms[part] >= self._idle_after_ms
