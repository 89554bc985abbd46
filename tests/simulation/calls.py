"""Calls that hang: background work on a thread of its own, of which only one runs at a time.

The scheduler hands the control over and waits until the work is over or hangs, so that a run stays the same run. Only
work that begins while a hang is planned gets a thread: all other work is called as it is.
"""

from __future__ import annotations

import _thread
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


class ProcessKilled(BaseException):
    """Raised inside a process at the moment it is killed. Not an Exception: no code may catch it by accident."""


class CallAbandoned(BaseException):
    """Raised inside a call that hangs when nobody waits for it any more. Not an Exception: no code may catch it."""


@dataclass(frozen=True, slots=True)
class Hang:
    """The next call at `place` takes `for_us` longer before it takes effect. None: it never returns."""

    place: str
    for_us: int | None


class Call:
    """Background work that may hang in the middle."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        # Bare locks, each released by the other side: the two sides take turns, and this is done for every call.
        self._go = _taken_lock()
        self._paused = _taken_lock()
        self._has_thread = False
        self._is_abandoned = False
        self.is_over = False
        self.hangs_us: int | None = 0
        self.pauses = 0
        self.resume: Callable[[], None] = lambda: None
        """Lets it go on where it hangs now, before its time."""

    def run(self) -> None:
        """Let it run until it is over or hangs; returns then."""
        if not self._has_thread:
            self._has_thread = True
            _thread.start_new_thread(self._run, ())
        self._go.release()
        self._paused.acquire()

    def hang(self, for_us: int | None) -> None:
        """Called from inside: stop here until `run` is called again."""
        self.hangs_us = for_us
        self.pauses += 1
        self._paused.release()
        self._go.acquire()
        if self._is_abandoned:
            raise CallAbandoned

    def abandon(self) -> None:
        """End the thread of a call that hangs; nothing more of it happens."""
        if not self.is_over:
            self._is_abandoned = True
            self.run()

    def _run(self) -> None:
        self._go.acquire()
        try:
            self._work()
        except CallAbandoned:
            pass
        finally:
            self.is_over = True
            self._paused.release()


def _taken_lock() -> _thread.LockType:
    lock = _thread.allocate_lock()
    lock.acquire()
    return lock


class Hangs:
    """The hangs that are planned, and the calls that hang."""

    def __init__(self) -> None:
        self._planned: deque[Hang] = deque()
        self._current: Call | None = None
        self._hanging: list[Call] = []
        self.for_ever = 0
        """How many calls have begun to hang and will never return."""

    @property
    def need_threads(self) -> bool:
        """Whether work that begins now may have to wait for something that happens later."""
        return bool(self._planned or self._hanging)

    @property
    def are_under_way(self) -> bool:
        return bool(self._hanging)

    def plan(self, *hangs: Hang) -> None:
        self._planned.extend(hangs)

    def forget(self) -> None:
        """Nothing hangs from now on that does not hang already."""
        self._planned.clear()
        self.for_ever = 0

    def here(self, place: str) -> None:
        """Hang, if that is planned for this place."""
        call = self._current
        if call is None or not self._planned or self._planned[0].place != place:
            return
        hang = self._planned.popleft()
        self.for_ever += hang.for_us is None
        call.hang(hang.for_us)

    @property
    def current(self) -> Call | None:
        """The call that runs now; None if it has no thread."""
        return self._current

    def run(self, call: Call) -> bool:
        """Run a call on: True if it is over, False if it hangs."""
        before, self._current = self._current, call
        if call in self._hanging:
            self._hanging.remove(call)
        call.run()
        self._current = before
        if not call.is_over:
            self._hanging.append(call)
        return call.is_over

    def abandon(self, call: Call) -> None:
        if call in self._hanging:
            self._hanging.remove(call)
            call.abandon()

    def close(self) -> None:
        """End all threads."""
        for call in list(self._hanging):
            self.abandon(call)
