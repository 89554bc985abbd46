"""Signs of life of the workers of one attempt: who was heard of, and when.

A worker has `start_timeout_ms` for its first word, because its process has to come up, and from then on
`worker_silence_ms` for each further one.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.ids import WorkerId
from penstock.mailbox.ports import Clock


class SignsOfLife:
    """When each worker was heard of last."""

    def __init__(
        self, workers: Iterable[WorkerId], clock: Clock, start_timeout_ms: int, worker_silence_ms: int
    ) -> None:
        self._clock = clock
        self._start_timeout_ms = start_timeout_ms
        self._worker_silence_ms = worker_silence_ms
        self._heard_at_ms: dict[WorkerId, int] = {}
        self.await_first(workers)

    def await_first(self, workers: Iterable[WorkerId]) -> None:
        """The time for the first word of `workers` begins now."""
        first_word_by = self._clock.now_ms() + self._start_timeout_ms - self._worker_silence_ms
        self._heard_at_ms.update((worker, first_word_by) for worker in workers)

    def heard(self, worker: WorkerId) -> None:
        self._heard_at_ms[worker] = self._clock.now_ms()

    def excuse(self, late_ms: int) -> None:
        """The driver was busy, or asleep, for `late_ms`: signs of life may still be waiting."""
        self._heard_at_ms = {worker: at_ms + late_ms for worker, at_ms in self._heard_at_ms.items()}

    @property
    def silent(self) -> list[WorkerId]:
        silent_since = self._clock.now_ms() - self._worker_silence_ms
        return [worker for worker, at_ms in self._heard_at_ms.items() if at_ms < silent_since]
