"""Threads and store of one attempt: closed when it ends, so that the next one does not wait for a call that hangs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from penstock.driver.attempts.attempt_store import AttemptStore
from penstock.mailbox.ports import AttemptBackground, Background

T = TypeVar("T")


class Shared:
    """A background that attempts share: where nothing can hang, as in a simulator."""

    def __init__(self, background: Background) -> None:
        self._background = background

    def submit(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        self._background.submit(work, done)

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """What belongs to one attempt alone."""

    background: AttemptBackground
    store: AttemptStore
    started_at_ms: int

    def close(self) -> None:
        self.store.close()
        self.background.close()
