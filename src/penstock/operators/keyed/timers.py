"""Timers of keyed functions, in processing time or in event time.

A timer is keyed state: an entry of a map under its key, so that it survives a failure and moves with its key when
the pipeline is rescaled. The heap beside it is only an index, built again after a restore. A processing-time timer that
was due while the pipeline was down is called as soon as it is up.

An event-time timer is due when the watermark has reached its time. The watermark waits until all timers that it makes
due have been called, so that no record which they emit is late downstream; and no record is read before. A timer that
is set for a time which the watermark has reached already is due at once, after the records in hand; if it is not later
than the timer whose call sets it, it is due with the next watermark.

However many timers are due, they are called in portions, and the mailbox gets control in between.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from penstock.errors import DataError, IncompatibleCheckpoint
from penstock.model.event_time import MAX_WATERMARK, MIN_WATERMARK
from penstock.operators.contract import Key, OperatorContext

_log = logging.getLogger("penstock")

TimeMode: TypeAlias = Literal["event", "processing", "none"]

STATES: dict[TimeMode, str] = {"processing": "penstock.timers", "event": "penstock.event_timers"}
"""The name of the state that holds the timers of each kind."""
_FIRED_AT_ONCE = 256
"""The most timers that are called before the mailbox gets control again; fewer if they take longer than a slice."""
_TIMES = range(-(2**63), 2**63)

Due: TypeAlias = Callable[[int, Key, int], None]


def timers_of(
    mode: TimeMode, context: OperatorContext, due: Due, fired: Callable[[], None], keeps_own: bool = True
) -> KeyedTimers:
    """The timers of one subtask. `due` is called at their time, with the states at their key; `fired` after some.

    `keeps_own`: a timer that sets its own time again in its call is due again. PySpark deletes it after the call.
    """
    kinds: dict[TimeMode, type[KeyedTimers]] = {"processing": ProcessingTimers, "event": EventTimers, "none": NoTimers}
    return kinds[mode](context, due, fired, keeps_own)


class KeyedTimers(ABC):
    """What the timers of both kinds have in common: the state, the index, and the call."""

    mode: TimeMode
    is_calling = False
    """Whether timers are due that have not been called: no watermark may overtake the records that they emit."""

    def __init__(self, context: OperatorContext, due: Due, fired: Callable[[], None], keeps_own: bool) -> None:
        self._context = context
        self._due = due
        self._fired = fired
        self._keeps_own = keeps_own
        states = {
            kind: context.keyed.map(name, pa.schema([("at_ms", pa.int64())]), pa.schema([]))
            for kind, name in STATES.items()
        }
        self._state: Any = states.pop(self.mode, None)
        self._others: dict[TimeMode, Any] = states
        self._heap: list[tuple[int, int, int, Key]] = []
        self._order = itertools.count()
        self._called: int | None = None
        """The time of the timer that is being called."""
        self._called_for: Key = ()
        self._is_set_again = False
        self._has_ended = False
        self._set_too_late = 0
        """Timers that were set after the end of the input."""

    def load_state(self) -> Iterator[None]:
        """Take up the timers of the state again."""
        for kind, state in self._others.items():
            if next(state.keys_held(), None) is not None:
                raise IncompatibleCheckpoint(
                    f"operator '{self._context.operator}': the checkpoint has timers in {kind} time, and the operator "
                    f'has time_mode="{self.mode}" now: set time_mode="{kind}" in process(), or give the operator '
                    f"another name and allow_dropped_state to go on without its state"
                )
        is_over = self._context.begin_slice()
        for key_group, key in self._state.keys_held():
            self._context.keyed.set_key(key_group, key)
            for at_ms in self.times():
                self._push(at_ms, key_group, key)
            if is_over():
                yield
                is_over = self._context.begin_slice()
        self._look()

    def set(self, at_ms: int, key_group: int, key: Key) -> None:
        """Set a timer for the key that the states are at; the same time once more changes nothing.

        Nor does one that is set after the end of the input: no time is left for it.
        """
        if self._has_ended:
            self._set_too_late += 1
            return
        if at_ms not in _TIMES:
            raise DataError(f"operator '{self._context.operator}': a timer at {at_ms} ms is out of range")
        if at_ms == self._called and key == self._called_for:
            self._is_set_again = self._keeps_own
        elif not self._state.contains_key((at_ms,)):
            self._state.update_value((at_ms,), ())
            self._push(at_ms, key_group, key)
            self._look()

    def delete(self, at_ms: int) -> None:
        """Remove a timer of the key that the states are at, if it is set."""
        if at_ms == self._called:
            self._is_set_again = False
        self._state.remove_key((at_ms,))

    def times(self) -> list[int]:
        """The timers of the key that the states are at, the one that is being called included."""
        return sorted(at_ms for (at_ms,), _ in self._state.iterator())

    def on_watermark(self, watermark: int) -> bool:
        """Event time has come to `watermark`. True if the timers hold it back, and release it later."""
        return False

    def end(self, fire: bool) -> Iterator[None]:
        """The input has ended. With `fire`, call all timers that are set now, in the order of their times.

        After each step the state holds the timers that have not been called yet (I1).
        """
        self._has_ended = True
        while self._heap:
            self._fire_some(until_ms=None, call=fire)
            yield
        if self._set_too_late:
            _log.warning(
                "operator '%s', subtask %d: %d timers that were set after the input had ended are "
                'not called. With at_end="drop" no timer is called at the end',
                self._context.operator,
                self._context.subtask,
                self._set_too_late,
            )

    @abstractmethod
    def _look(self) -> None:
        """There are timers that may come before those that were there: see to it that they are called."""

    def _push(self, at_ms: int, key_group: int, key: Key) -> None:
        heapq.heappush(self._heap, (at_ms, next(self._order), key_group, key))

    def _fire_some(self, until_ms: int | None, call: bool) -> None:
        """Deal with timers of up to `until_ms`, or with any, for a slice at most; then pass on what they emitted."""
        is_over, fired = self._context.begin_slice(), 0
        while self._heap and (until_ms is None or self._heap[0][0] <= until_ms):
            self._fire(*heapq.heappop(self._heap), call=call)
            fired += 1
            if fired == _FIRED_AT_ONCE or is_over():
                break
        if fired:
            self._fired()

    def _fire(self, at_ms: int, order: int, key_group: int, key: Key, *, call: bool) -> None:
        self._context.keyed.set_key(key_group, key)
        if not self._state.contains_key((at_ms,)):
            return
        if call:
            self._called, self._called_for, self._is_set_again = at_ms, key, False
            self._due(key_group, key, at_ms)
            if self._is_set_again:
                self._push(at_ms, key_group, key)
            self._called = None
            # The function may have worked on other keys.
            self._context.keyed.set_key(key_group, key)
        if not (call and self._is_set_again):
            self._state.remove_key((at_ms,))


class NoTimers(KeyedTimers):
    """`time_mode="none"`: no timer can be set."""

    mode = "none"

    def load_state(self) -> Iterator[None]:
        self._state = next(iter(self._others.values()))
        return super().load_state()

    def set(self, at_ms: int, key_group: int, key: Key) -> None:
        raise self._refused("set a timer")

    def delete(self, at_ms: int) -> None:
        raise self._refused("delete a timer")

    def times(self) -> list[int]:
        raise self._refused("list its timers")

    def _refused(self, what: str) -> DataError:
        return DataError(
            f"operator '{self._context.operator}': the function cannot {what} with time_mode=\"none\": "
            'set time_mode="event" or time_mode="processing" in process()'
        )

    def _look(self) -> None:
        pass


class ProcessingTimers(KeyedTimers):
    """Timers by the clock of the worker."""

    mode = "processing"

    def __init__(self, context: OperatorContext, due: Due, fired: Callable[[], None], keeps_own: bool) -> None:
        super().__init__(context, due, fired, keeps_own)
        self._armed_at_ms: list[int] = []
        """The callbacks that wait, the next one last. Each was made for a timer that came before all the others."""

    def _look(self) -> None:
        """See to it that a callback comes no later than the earliest timer."""
        if self._heap and not (self._armed_at_ms and self._armed_at_ms[-1] <= self._heap[0][0]):
            at_ms = self._heap[0][0]
            self._armed_at_ms.append(at_ms)
            self._context.call_at(at_ms, functools.partial(self._wake, at_ms))

    def _wake(self, at_ms: int) -> None:
        while self._armed_at_ms and self._armed_at_ms[-1] <= at_ms:
            self._armed_at_ms.pop()
        if not self._has_ended:
            self._fire_some(until_ms=self._context.now_ms(), call=True)
            self._look()


class EventTimers(KeyedTimers):
    """Timers by the watermark of the operator."""

    mode = "event"

    def __init__(self, context: OperatorContext, due: Due, fired: Callable[[], None], keeps_own: bool) -> None:
        super().__init__(context, due, fired, keeps_own)
        self._held: int | None = None
        """The watermark that waits for the timers."""
        self._later: list[tuple[int, int, Key]] = []
        """Timers that wait for the next watermark."""

    def on_watermark(self, watermark: int) -> bool:
        # The end of the input is no time: what is left is called by `end`.
        if watermark == MAX_WATERMARK:
            return False
        self._take_up_later()
        self._look()
        if self.is_calling:
            self._held = watermark
        return self.is_calling

    def end(self, fire: bool) -> Iterator[None]:
        self._take_up_later()
        return super().end(fire)

    def _take_up_later(self) -> None:
        later, self._later = self._later, []
        for timer in later:
            self._push(*timer)

    def _push(self, at_ms: int, key_group: int, key: Key) -> None:
        if self._called is not None and at_ms <= self._called:
            # At one watermark, timers of ever later times are called, so that there is an end to them.
            self._later.append((at_ms, key_group, key))
        else:
            super()._push(at_ms, key_group, key)

    def _look(self) -> None:
        if not self.is_calling and self._is_due:
            self.is_calling = True
            self._context.work_off(self._round())

    @property
    def _is_due(self) -> bool:
        watermark = self._context.watermark
        return bool(self._heap) and self._heap[0][0] <= watermark and watermark > MIN_WATERMARK

    def _round(self) -> Iterator[None]:
        while self._is_due:
            self._fire_some(until_ms=self._context.watermark, call=True)
            yield
        self.is_calling = False
        held, self._held = self._held, None
        if held is not None:
            self._context.release_watermark(held)
