"""Processing-time timers of keyed functions.

A timer is keyed state: an entry of a map under its key, so that it survives a failure and moves with its key when
the pipeline is rescaled. The heap beside it is only an index, built again after a restore. A timer that was due
while the pipeline was down is called as soon as it is up.

However many timers are due, they are called in portions, and the mailbox gets control in between.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from penstock.api.operator import OperatorContext

STATE = "penstock.timers"
_FIRED_AT_ONCE = 256
"""The most timers that are called before the mailbox gets control again; fewer if they take longer than a slice."""


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
        self._armed_at_ms: list[int] = []
        """The callbacks that wait, the next one last. Each was made for a timer that came before all the others."""
        self._has_ended = False

    def restored(self) -> Iterator[None]:
        """Take up the timers of the state again."""
        is_over = self._context.begin_slice()
        for key_group, key in self._state.keys_held():
            self._context.keyed.set_key(key_group, key)
            for at_ms in self.times():
                self._push(at_ms, key_group, key)
            if is_over():
                yield
                is_over = self._context.begin_slice()
        self._arm()

    def set(self, at_ms: int, key_group: int, key: tuple[Any, ...]) -> None:
        """Set a timer for the key that the states are at; the same time once more changes nothing.

        Nor does one that is set after the end of the input: no time is left for it.
        """
        if not self._has_ended and not self._state.contains_key((at_ms,)):
            self._state.update_value((at_ms,), ())
            self._push(at_ms, key_group, key)
            self._arm()

    def delete(self, at_ms: int) -> None:
        """Remove a timer of the key that the states are at, if it is set."""
        self._state.remove_key((at_ms,))

    def times(self) -> list[int]:
        """The timers of the key that the states are at."""
        return sorted(at_ms for (at_ms,), _ in self._state.iterator())

    def end(self, fire: bool) -> Iterator[None]:
        """The input has ended. With `fire`, call all timers that are set now, in the order of their times.

        After each step the state holds the timers that have not been called yet (I1).
        """
        self._has_ended = True
        while self._heap:
            self._settle_some(until_ms=None, call=fire)
            yield

    def _push(self, at_ms: int, key_group: int, key: tuple[Any, ...]) -> None:
        heapq.heappush(self._heap, (at_ms, next(self._order), key_group, key))

    def _arm(self) -> None:
        """See to it that a callback comes no later than the earliest timer."""
        if self._heap and not (self._armed_at_ms and self._armed_at_ms[-1] <= self._heap[0][0]):
            at_ms = self._heap[0][0]
            self._armed_at_ms.append(at_ms)
            self._context.call_at(at_ms, functools.partial(self._wake, at_ms))

    def _wake(self, at_ms: int) -> None:
        while self._armed_at_ms and self._armed_at_ms[-1] <= at_ms:
            self._armed_at_ms.pop()
        if not self._has_ended:
            self._settle_some(until_ms=self._context.now_ms(), call=True)
            self._arm()

    def _settle_some(self, until_ms: int | None, call: bool) -> None:
        """Deal with timers of up to `until_ms`, or with any, for a slice at most; then pass on what they emitted."""
        is_over, settled = self._context.begin_slice(), 0
        while self._heap and (until_ms is None or self._heap[0][0] <= until_ms):
            self._settle(*heapq.heappop(self._heap), call=call)
            settled += 1
            if settled == _FIRED_AT_ONCE or is_over():
                break
        if settled:
            self._fired()

    def _settle(self, at_ms: int, order: int, key_group: int, key: tuple[Any, ...], *, call: bool) -> None:
        self._context.keyed.set_key(key_group, key)
        if self._state.contains_key((at_ms,)):
            # Removed first, so that the function may set the same time again.
            self._state.remove_key((at_ms,))
            if call:
                self._due(key_group, key, at_ms)
