"""A thread for user code that may block, and the bounded way from it to the mailbox.

The mailbox must not block for longer than a few milliseconds, and what a user wrote for Spark may block for as long as
it likes. So it runs in a separate thread. The thread cannot be interrupted: it ends the next time that the user's
code comes back to us, and until then it only holds what it has in hand.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from penstock.errors import PenstockError, PipelineError, UserCodeError
from penstock.user_code import user_code_error

T = TypeVar("T")

_JOIN_SECONDS = 0.1
"""How long closing waits for a thread: long enough for one that is not inside user code."""
_WAKE_SECONDS = 0.5
"""A lost wake-up call must not hang a thread."""


class Closed(BaseException):
    """Ends the thread, through the user's code if need be; not an Exception, so that it is seldom caught there."""


class Feed:
    """Entries from one thread to the mailbox, in order, at most `weight_max` of them waiting.

    One thread puts, the mailbox takes. An error of the thread is the last entry: see `failed`.
    """

    def __init__(self, name: str, work: Callable[[Feed], None], weight_max: int) -> None:
        self.entries: deque[Any] = deque()
        self.is_closed = False
        self.failed: BaseException | None = None
        """Why the thread has ended, if not by itself; it counts when all entries are taken."""
        self.on_wake: Callable[[], None] = lambda: None
        """Called in the thread whenever it has waited."""
        self._work = work
        self._weight_max = weight_max
        # Each is written by one thread only, so that neither needs a lock.
        self._put = 0
        self._taken = 0
        self._changed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_started(self) -> bool:
        return self._thread.ident is not None

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work(self)
        except Closed:
            pass
        except BaseException as error:  # a thread that dies in silence would be a pipeline that stands still
            self.failed = error

    # --- for the thread ---

    def put(self, entry: Any, weight: int = 1) -> None:
        """Add an entry when there is room. Raises `Closed`."""
        while self._put - self._taken >= self._weight_max:
            self.wait(_WAKE_SECONDS)
        if self.is_closed:
            raise Closed
        self.entries.append(entry)
        self._put += weight

    def wait(self, seconds: float) -> None:
        """Until the mailbox has done something, or `seconds` have passed. Raises `Closed`."""
        if not self.is_closed:
            self._changed.wait(seconds)
            self._changed.clear()
        self.on_wake()
        if self.is_closed:
            raise Closed

    # --- for the mailbox ---

    def take(self, weight: int = 1) -> Any:
        entry = self.entries.popleft()
        self._taken += weight
        return entry

    def wake(self) -> None:
        self._changed.set()

    def close(self) -> None:
        self.is_closed = True
        self.wake()
        if self.is_alive and threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_SECONDS)


def call_user(where: str, what: str, call: Callable[..., T], *arguments: Any) -> T:
    """Call user code; what it raises becomes a `UserCodeError` that says where."""
    try:
        return call(*arguments)
    except (PenstockError, StopIteration):
        raise
    except Exception as error:
        raise user_code_error(f"{where}: {what}", error) from error


def call_optional(where: str, method: str, cure: str, call: Callable[..., T], *arguments: Any) -> T:
    """Call a method of a data source that it need not implement. Raises `PipelineError` if it does not."""
    from pyspark.errors import PySparkNotImplementedError

    try:
        return call_user(where, method, call, *arguments)
    except UserCodeError as error:
        if isinstance(error.__cause__, PySparkNotImplementedError):
            raise PipelineError(f"{where} does not implement {method}: {cure}") from error
        raise


def close_quietly(closing: Any) -> None:
    """Close a generator, whatever it thinks of that."""
    with contextlib.suppress(Exception):
        closing.close()
