"""Processing-time timers of keyed functions.

A timer is keyed state: an entry of a map under its key, so that it survives a failure and moves with its key when
the pipeline is rescaled. The heap beside it is only an index, built again after a restore. A timer that was due
while the pipeline was down is called as soon as it is up.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from penstock.api.operator import OperatorContext

STATE = "penstock.timers"
_FIRED_AT_ONCE = 256
"""So many timers are called before the mailbox gets control again."""


class KeyedTimers:
    """The timers of one subtask. `due` is called at their time, with the states at their key."""

    def __init__(
        self,
        context: OperatorContext,
        due: Callable[[int, tuple[Any, ...], int], None],
        fired: Callable[[], None],
    ) -> None:
        self._context = context
        self._due = due
        self._fired = fired
        self._state: Any = context.keyed.map(STATE, pa.schema([("at_ms", pa.int64())]), pa.schema([]))
        self._heap: list[tuple[int, int, int, tuple[Any, ...]]] = []
        self._order = itertools.count()
        self._armed_at_ms: int | None = None
        self._is_over = False

    def restored(self) -> None:
        """Take up the timers of the state again."""
        for key_group, key in self._state.keys_held():
            self._context.keyed.set_key(key_group, key)
            for at_ms in self.times():
                self._push(at_ms, key_group, key)
        self._arm()

    def set(self, at_ms: int, key_group: int, key: tuple[Any, ...]) -> None:
        """Set a timer for the key that the states are at; the same time once more changes nothing."""
        if not self._state.contains_key((at_ms,)):
            self._state.update_value((at_ms,), ())
            self._push(at_ms, key_group, key)
            self._arm()

    def delete(self, at_ms: int) -> None:
        """Remove a timer of the key that the states are at, if it is set."""
        self._state.remove_key((at_ms,))

    def times(self) -> list[int]:
        """The timers of the key that the states are at."""
        return sorted(at_ms for (at_ms,), _ in self._state.iterator())

    def end(self, fire: bool) -> None:
        """The input has ended. With `fire`, call all timers that are set now, in the order of their times."""
        waiting = len(self._heap)
        for _ in range(waiting):
            entry = heapq.heappop(self._heap)
            self._settle(*entry, call=fire)
        self._fired()
        # What these calls have set has no time left.
        while self._heap:
            self._settle(*heapq.heappop(self._heap), call=False)
        self._is_over = True

    def _push(self, at_ms: int, key_group: int, key: tuple[Any, ...]) -> None:
        heapq.heappush(self._heap, (at_ms, next(self._order), key_group, key))

    def _arm(self) -> None:
        """Be called at the earliest timer."""
        if self._heap and (self._armed_at_ms is None or self._heap[0][0] < self._armed_at_ms):
            self._armed_at_ms = self._heap[0][0]
            self._context.call_at(self._armed_at_ms, self._wake)

    def _wake(self) -> None:
        if self._is_over:
            return
        self._armed_at_ms = None
        now_ms, fired = self._context.now_ms(), 0
        while self._heap and self._heap[0][0] <= now_ms and fired < _FIRED_AT_ONCE:
            self._settle(*heapq.heappop(self._heap), call=True)
            fired += 1
        if fired:
            self._fired()
        self._arm()

    def _settle(self, at_ms: int, order: int, key_group: int, key: tuple[Any, ...], *, call: bool) -> None:
        self._context.keyed.set_key(key_group, key)
        if self._state.contains_key((at_ms,)):
            # Removed first, so that the function may set the same time again.
            self._state.remove_key((at_ms,))
            if call:
                self._due(key_group, key, at_ms)
