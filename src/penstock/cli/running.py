"""Watching a job until it ends: progress, time limit, and Ctrl-C, which `spark.interrupts` explains.

The time limit counts as the first Ctrl-C.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType

from penstock.cli.progress.displays import Display
from penstock.cli.progress.readings import Readings, Running
from penstock.spark.interrupts import Stopping, ending_text

_LOOK_S = 0.25
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Watch:
    """Watches one job. `monotonic` is the clock, for tests."""

    def __init__(
        self,
        job: Running,
        display: Display,
        *,
        limit_s: float | None = None,
        drain: bool = True,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job = job
        self._display = display
        self._limit_s = limit_s
        self._stopping = Stopping(job, display.say, drain=drain)
        self._monotonic = monotonic
        self._readings = Readings(job, monotonic())
        self._up_at: float | None = None
        self._has_said_slots = False
        self.interrupt = self._stopping.interrupt

    def run(self) -> str:
        """Watch until the job has ended; returns in words how. Raises what it failed with."""
        self._display.open()
        try:
            while not self._job.wait(_LOOK_S):
                if self._is_over() and not self._stopping.has_begun:
                    self._stopping.interrupt()
                self._stopping.react()
                self._show()
        finally:
            self._display.close(self._readings.take(self._monotonic()))
        return ending_text(
            self._job.checkpoints(), "run the same command again", is_cut_short=self._stopping.is_cut_short
        )

    def _show(self) -> None:
        reading = self._readings.take(self._monotonic())
        total = reading.status.slots_total
        if total is not None and not self._has_said_slots:
            self._has_said_slots = True
            self._display.note(f"holds {reading.status.workers} of the {total} slots of Spark")
        self._display.show(reading)

    def _is_over(self) -> bool:
        """Whether the time limit has passed; it begins when the workers are up, which takes them seconds."""
        if self._up_at is None and self._job.worker_processes:
            self._up_at = self._monotonic()
        return (
            self._limit_s is not None and self._up_at is not None and self._monotonic() - self._up_at >= self._limit_s
        )


@contextlib.contextmanager
def signals_to(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Ctrl-C and SIGTERM go to `handler`. The trap: Spark installs its own handler when a session starts."""
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
