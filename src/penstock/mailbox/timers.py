"""Timers of a worker: called back in the mailbox, in the order of their time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from penstock.mailbox.ports import Clock


class Timers:
    """A heap of callbacks. They cannot be withdrawn: whoever set one looks whether it still matters."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def after(self, delay_ms: int, call: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self._clock.now_ms() + delay_ms, next(self._order), call))

    @property
    def next_at_ms(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    @property
    def is_due(self) -> bool:
        return bool(self._heap) and self._heap[0][0] <= self._clock.now_ms()

    def fire(self) -> None:
        """Call what is due now; what these callbacks set for now waits for the next time."""
        now = self._clock.now_ms()
        due = []
        while self._heap and self._heap[0][0] <= now:
            due.append(heapq.heappop(self._heap)[2])
        for call in due:
            call()
