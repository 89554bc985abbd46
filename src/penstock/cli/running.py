"""Watching a job until it ends: progress, time limit, and what Ctrl-C means.

The first interrupt, or the time limit, stops the pipeline with a savepoint; the second one stops it at once. Either
way nothing is lost: it goes on from its newest checkpoint. Where a savepoint cannot be taken, because the pipeline
fails or restarts just then, it is stopped at once: somebody wants it to end.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from penstock.cli.displays import Display
from penstock.cli.readings import Readings, Running, last_completed
from penstock.protocol.barrier import BarrierFlag

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
        self._drain = drain
        self._monotonic = monotonic
        self._readings = Readings(job, monotonic())
        self._up_at: float | None = None
        self._interrupts = 0
        self._draining: threading.Thread | None = None
        self._refusal: Exception | None = None
        self._is_stopped = False

    def interrupt(self, number: int = 0, frame: FrameType | None = None) -> None:
        """Somebody wants it to end. May be called from a signal handler: it only counts."""
        self._interrupts += 1

    def run(self) -> str:
        """Watch until the job has ended; returns in words how. Raises what it failed with."""
        self._display.open()
        try:
            while not self._job.wait(_LOOK_S):
                self._react()
                self._display.show(self._readings.take(self._monotonic()))
        finally:
            self._display.close(self._readings.take(self._monotonic()))
        return self._ending()

    def _react(self) -> None:
        if self._is_stopped:
            return
        if (self._interrupts or self._is_over()) and self._draining is None:
            if self._drain:
                self._begin_drain()
            else:
                self._stop("stopping")
        elif self._interrupts >= 2:
            self._stop("stopping at once, without waiting for the savepoint")
        elif self._refusal is not None:
            self._stop(f"no savepoint could be taken ({self._refusal}): stopping at once")

    def _is_over(self) -> bool:
        """Whether the time limit has passed; it begins when the workers are up, which takes them seconds."""
        if self._up_at is None and self._job.worker_processes:
            self._up_at = self._monotonic()
        return (
            self._limit_s is not None and self._up_at is not None and self._monotonic() - self._up_at >= self._limit_s
        )

    def _begin_drain(self) -> None:
        self._display.say("stopping with a savepoint (Ctrl-C again: at once)")
        self._draining = threading.Thread(target=self._drained, name="penstock-drain", daemon=True)
        self._draining.start()

    def _drained(self) -> None:
        try:
            self._job.stop(drain=True)
        except Exception as error:
            self._refusal = error

    def _stop(self, text: str) -> None:
        self._is_stopped = True
        self._display.say(text)
        # In a thread of its own, because it waits for the driver, and the display must go on.
        threading.Thread(target=self._stopped, name="penstock-stop", daemon=True).start()

    def _stopped(self) -> None:
        # It may have ended by itself just now. How it ended, `wait` says.
        with contextlib.suppress(Exception):
            self._job.stop()

    def _ending(self) -> str:
        last = last_completed(self._job.checkpoints())
        if last is not None and BarrierFlag.DRAIN in last.flags:
            if BarrierFlag.SAVEPOINT in last.flags and self._is_stopped:
                # It was complete when it was no longer waited for, and it is what a new start goes on from.
                return (
                    f"stopped; savepoint {last.checkpoint} was completed: run the same command again to go on from it"
                )
            if BarrierFlag.SAVEPOINT in last.flags:
                return f"stopped with savepoint {last.checkpoint}: run the same command again to go on from there"
            return f"finished: all input is read, and everything is published with checkpoint {last.checkpoint}"
        where = f"from checkpoint {last.checkpoint}" if last is not None else "from where this run began"
        return f"stopped: run the same command again to go on {where}"


@contextlib.contextmanager
def signals_to(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Ctrl-C and SIGTERM go to `handler`. The trap: Spark sets a handler of its own when a session starts."""
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
