"""Event time by the parts of a subtask's input: the splits that it reads, or its channels.

Each part is in the order of its own time, give or take the delay that the user allows; together they are not, since
one may be hours ahead of another. So a part has a clock of its own, and the slowest one is the subtask's watermark. A
part that has shown no record yet holds the watermark where it is: nobody knows where the part begins.

A part that had nothing for `idle_after_ms` holds nobody up, until it has records again. If all are idle, the one that
came furthest has the word: nobody is left to wait for.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from penstock.api.operator import IDLE_WATERMARK, MIN_WATERMARK

Part = TypeVar("Part", bound=Hashable)


class EventClocks(Generic[Part]):
    """The clocks of the parts that are open."""

    __slots__ = ("_active_at_ms", "_idle_after_ms", "_never_idle", "_reached", "_resting", "newest")

    def __init__(self, idle_after_ms: int | None) -> None:
        self._idle_after_ms = idle_after_ms
        self._reached: dict[Part, int] = {}
        self._active_at_ms: dict[Part, int] = {}
        self._never_idle: set[Part] = set()
        self._resting: set[Part] = set()
        self.newest = MIN_WATERMARK
        """The clock of the part that came furthest, ended ones included."""

    def open(self, part: Part, now_ms: int, reached: int | None = None, *, may_idle: bool = True) -> None:
        """A part begins, or goes on from the time it had `reached` at the last checkpoint."""
        self._reached[part] = MIN_WATERMARK if reached is None else reached
        # It may have come furthest before a restart, and have nothing to read ever since.
        self.newest = max(self.newest, self._reached[part])
        self._active_at_ms[part] = now_ms
        if not may_idle:
            self._never_idle.add(part)

    def close(self, part: Part) -> None:
        """A part has ended: it holds nothing back any more."""
        self._reached.pop(part, None)
        self._active_at_ms.pop(part, None)
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
        if part in self._reached:
            self._active_at_ms[part] = now_ms
            self._resting.discard(part)
            self._reached[part] = max(self._reached[part], reached)

    def reached(self, part: Part) -> int:
        """The clock of a part that is open."""
        return self._reached[part]

    def watermark(self, now_ms: int) -> int:
        """The clock of the slowest part; `IDLE_WATERMARK` if none is open, or all are idle."""
        if self._idle_after_ms is None and not self._resting:
            return min(self._reached.values(), default=IDLE_WATERMARK)
        return min(
            (clock for part, clock in self._reached.items() if not self._is_idle(part, now_ms)),
            default=IDLE_WATERMARK,
        )

    def _is_idle(self, part: Part, now_ms: int) -> bool:
        if part in self._resting:
            return True
        if self._idle_after_ms is None or part in self._never_idle:
            return False
        return now_ms - self._active_at_ms[part] >= self._idle_after_ms
