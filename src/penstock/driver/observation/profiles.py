"""Profiles of workers: asked for from any thread, answered by the worker itself, one at a time for each worker."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future

from penstock.errors import PenstockError
from penstock.ids import Generation, WorkerId
from penstock.mailbox.frames import Frame, ProfiledFrame, ProfileFrame


class Profiles:
    """The requests that have no answer yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._open: dict[WorkerId, tuple[int, Future[ProfiledFrame]]] = {}

    def ask(
        self, worker: WorkerId, seconds: float, generation: Generation, send: Callable[[WorkerId, Frame], None]
    ) -> Future[ProfiledFrame]:
        """Ask a worker. `send` hands a frame to the mailbox. Raises `PenstockError` if one is under way there."""
        with self._lock:
            if worker in self._open:
                raise PenstockError(f"worker {worker} is being profiled already: wait until that is done")
            number, answer = next(self._numbers), Future[ProfiledFrame]()
            self._open[worker] = number, answer
        send(worker, ProfileFrame(generation, number, seconds))
        return answer

    def answered(self, frame: ProfiledFrame) -> None:
        with self._lock:
            number, answer = self._open.get(frame.worker, (None, None))
            if number != frame.number or answer is None:
                # Whoever asked has left.
                return
            del self._open[frame.worker]
        answer.set_result(frame)

    def give_up(self, worker: WorkerId) -> None:
        """Whoever asked waits no longer."""
        with self._lock:
            self._open.pop(worker, None)

    def workers_lost(self) -> None:
        """The attempt is over, and its workers answer nothing any more."""
        with self._lock:
            lost, self._open = list(self._open.items()), {}
        for worker, (_, answer) in lost:
            answer.set_exception(PenstockError(f"worker {worker} has ended before its profile was complete"))
