"""Background work on threads, and the mailbox into which its results fall."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


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
    """The background port on a few threads."""

    def __init__(self, mail: Mail, threads: int = 4, name: str = "penstock-background") -> None:
        self._mail = mail
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def submit(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        def run() -> None:
            try:
                outcome: T | Exception = work()
            except Exception as error:
                outcome = error
            self._mail.post(lambda: done(outcome))

        self._pool.submit(run)

    def close(self) -> None:
        """Stop without waiting: what is still running finishes on its own and is told to nobody."""
        self._pool.shutdown(wait=False, cancel_futures=True)
