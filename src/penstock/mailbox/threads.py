"""Background work on threads, and the mailbox into which its results fall."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from penstock.errors import PenstockError

T = TypeVar("T")

_IDLE_S = 10.0
"""A thread without work ends after this time: a background that nobody uses any more leaves nothing behind."""


class Mail:
    """Calls that wait for the mailbox thread; anybody may post."""

    def __init__(self, wake: Callable[[], None]) -> None:
        # Appending to a deque and taking from it are atomic, so that no lock is needed.
        self._calls: deque[Callable[[], None]] = deque()
        self._wake = wake

    def post(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
        self._wake()

    def deliver(self) -> None:
        """Make the calls that wait now; for the mailbox thread."""
        for _ in range(len(self._calls)):
            self._calls.popleft()()

    def __len__(self) -> int:
        return len(self._calls)


class ThreadBackground:
    """The background port on at most `threads` threads.

    They are daemonic: a call that never returns keeps neither the process from ending nor another background from
    working. The trap: it keeps one thread of this background, so that whatever may hang for longer than the rest can
    wait has its own background.
    """

    def __init__(self, mail: Mail, threads: int = 4, name: str = "penstock-background") -> None:
        self._mail = mail
        self._threads_max = threads
        self._name = name
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._jobs: deque[Callable[[], None]] = deque()
        self._threads = 0
        self._idle = 0
        self._is_closed = False

    def submit(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        def run() -> None:
            outcome = outcome_of(work)
            if not self._is_closed:
                self._mail.post(lambda: done(outcome))

        with self._changed:
            if self._is_closed:
                return
            self._jobs.append(run)
            # Not just "is one idle": an idle thread that has not woken up yet is promised to an earlier job.
            if len(self._jobs) > self._idle and self._threads < self._threads_max:
                self._threads += 1
                name = f"{self._name}_{next(self._numbers)}"
                threading.Thread(target=self._serve, name=name, daemon=True).start()
            else:
                self._changed.notify()

    def close(self) -> None:
        """Stop without waiting: what is still running finishes on its own and is told to nobody."""
        with self._changed:
            self._is_closed = True
            self._jobs.clear()
            self._changed.notify_all()

    def _serve(self) -> None:
        while (job := self._next()) is not None:
            job()

    def _next(self) -> Callable[[], None] | None:
        """The next job; None if this thread is to end."""
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._jobs or self._is_closed, _IDLE_S)
            self._idle -= 1
            if self._jobs:
                return self._jobs.popleft()
            self._threads -= 1
            return None


def outcome_of(work: Callable[[], T]) -> T | Exception:
    """The result of `work`, or an exception in its place: whoever waits for the outcome gets one in any case."""
    try:
        return work()
    except Exception as error:
        return error
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise
        # `SystemExit`, or the cancellation of an asyncio task: in a thread it would end that thread and nothing else.
        failure = PenstockError(f"background work was ended by {type(error).__name__}: {error}")
        failure.__cause__ = error
        return failure
