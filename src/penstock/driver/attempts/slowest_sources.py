"""How far the slowest source of each group is, for sources that wait for each other (`max_drift`).

Each worker tells of its own sources, and is told of those of all others. Nobody is told anything before every worker is
ready: until then one of them may be anywhere. Belongs to one attempt, and says nothing after its end.
"""

from __future__ import annotations

from penstock.ids import Generation, OperatorName, WorkerId
from penstock.mailbox.frames import ClocksFrame, Frame, ReadyFrame, SlowestFrame
from penstock.mailbox.ports import Transport
from penstock.mailbox.timers import Timers

_Clocks = dict[OperatorName, int | None]


class SlowestSources:
    """Hears of the clocks of all workers, and answers at most every `interval_ms`."""

    def __init__(self, workers: int, interval_ms: int, timers: Timers, transport: Transport) -> None:
        self._workers = workers
        self._interval_ms = interval_ms
        self._timers = timers
        self._transport = transport
        self._ready: set[WorkerId] = set()
        self._clocks: dict[WorkerId, _Clocks] = {}
        self._told: dict[WorkerId, _Clocks] = {}
        self._is_due = self._is_over = False

    def heard(self, frame: Frame) -> None:
        """Take one frame of the attempt."""
        if isinstance(frame, ClocksFrame):
            self._clocks[frame.worker] = frame.slowest
        elif isinstance(frame, ReadyFrame):
            self._ready.add(frame.worker)
        else:
            return
        if self._clocks and len(self._ready) == self._workers and not self._is_due:
            self._is_due = True
            self._timers.after(self._interval_ms, lambda: self._answer(frame.generation))

    def close(self) -> None:
        self._is_over = True

    def _answer(self, generation: Generation) -> None:
        self._is_due = False
        if self._is_over:
            return
        for worker, slowest in self._of_others().items():
            if slowest != self._told.get(worker):
                self._told[worker] = slowest
                self._transport.send(worker, SlowestFrame(generation, slowest))

    def _of_others(self) -> dict[WorkerId, _Clocks]:
        """For each worker, the slowest clock that any other one has told of."""
        told: dict[OperatorName, list[tuple[int, WorkerId]]] = {}
        for worker, clocks in self._clocks.items():
            for group, clock in clocks.items():
                told.setdefault(group, []).extend(() if clock is None else ((clock, worker),))
        two_slowest = {group: sorted(clocks)[:2] for group, clocks in told.items()}
        return {
            worker: {
                group: next((clock for clock, other in two_slowest[group] if other != worker), None) for group in clocks
            }
            for worker, clocks in self._clocks.items()
        }
