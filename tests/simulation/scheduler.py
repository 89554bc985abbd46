"""Virtual time: a heap of things to do, in the order of their time and then of their making."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from tests.simulation.calls import Hangs

_LOOK_EVERY = 16


class Scheduler:
    """Runs callbacks at virtual microseconds. The only source of time and order in the simulator."""

    def __init__(self) -> None:
        self.now_us = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self.spend: Callable[[int], None] = lambda us: None
        """Takes time in the process that runs now."""
        self.hangs = Hangs()

    def at(self, at_us: int, call: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (at_us if at_us > self.now_us else self.now_us, self._count, call))

    def after(self, delay_us: int, call: Callable[[], None]) -> None:
        self.at(self.now_us + delay_us, call)

    @property
    def executed(self) -> int:
        return self._count - len(self._heap)

    def run(self, until: Callable[[], bool], limit_us: int, events_max: int) -> bool:
        """Run until the condition holds: True. False if time, events or things to do run out first.

        The condition is looked at every few events only.
        """
        heap, pop = self._heap, heapq.heappop
        for _ in range(events_max // _LOOK_EVERY):
            if until():
                return True
            for _ in range(_LOOK_EVERY):
                if not heap or heap[0][0] > limit_us:
                    return until()
                self.now_us, _, call = pop(heap)
                call()
        return until()
