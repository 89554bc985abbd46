"""Ctrl-C: the first one stops a pipeline with a savepoint, the second one at once.

Either way nothing is lost: the pipeline goes on from its newest checkpoint. Where a savepoint cannot be taken, because
the pipeline fails or restarts just then, it is stopped at once: somebody wants it to end.

PySpark sets a handler for Ctrl-C when a session starts, which cancels all jobs of Spark, those of pipelines too. So a
pipeline that is started from the main thread puts its own handler in the place of that one. Outside of `wait` a Ctrl-C
then ends whatever the main thread does, and the other jobs of Spark, and the pipeline goes on. A handler that the user
has set is left alone.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from penstock.driver.attempts.phases import Phase
from penstock.ids import CheckpointId
from penstock.protocol.barrier import BarrierFlag
from penstock.protocol.history import CheckpointRecord, ends_with_savepoint
from penstock.spark.cancellation import cancel_other_jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.status import Status

_NOTHING_RUNS = (Phase.CLAIMING, Phase.WAITING_FOR_SLOTS, Phase.STARTING)


class Stoppable(Protocol):
    """The part of a job that is needed to stop it."""

    @property
    def status(self) -> Status: ...

    def checkpoints(self) -> tuple[CheckpointRecord, ...]: ...

    def stop(self, drain: bool = False, timeout: float | None = None) -> CheckpointId | None: ...


class Stopping:
    """Stops one job as somebody who interrupts it wants it. `say` is told what happens."""

    def __init__(self, job: Stoppable, say: Callable[[str], None], *, drain: bool = True) -> None:
        self._job = job
        self._say = say
        self._drain = drain
        self._interrupts = 0
        self._draining: threading.Thread | None = None
        self._refusal: Exception | None = None
        self._is_stopped = False

    @property
    def has_begun(self) -> bool:
        return self._interrupts > 0

    @property
    def is_cut_short(self) -> bool:
        """Whether a savepoint was begun that nobody waited for any more."""
        return self._draining is not None and self._is_stopped

    def interrupt(self, number: int = 0, frame: FrameType | None = None) -> None:
        """Somebody wants it to end. May be called from a signal handler: it only counts."""
        self._interrupts += 1

    def react(self) -> None:
        """Do what the interrupts so far ask for. Returns at once."""
        if self._is_stopped or not self._interrupts:
            return
        if self._draining is None:
            if not self._drain:
                self._stop("stopping")
            elif self._job.status.phase in _NOTHING_RUNS:
                self._stop("stopping: no worker has begun yet, so there is nothing to save")
            else:
                self._begin_drain()
        elif self._interrupts >= 2:
            self._stop("stopping at once, without waiting for the savepoint")
        elif self._refusal is not None:
            self._stop(f"no savepoint could be taken ({self._refusal}): stopping at once")

    def _begin_drain(self) -> None:
        self._say("stopping with a savepoint (Ctrl-C again: at once)")
        self._draining = threading.Thread(target=self._drained, name="penstock-drain", daemon=True)
        self._draining.start()

    def _drained(self) -> None:
        try:
            self._job.stop(drain=True)
        except Exception as error:
            self._refusal = error

    def _stop(self, text: str) -> None:
        self._is_stopped = True
        self._say(text)
        # In a separate thread, because it waits for the driver, and whoever watches must go on.
        threading.Thread(target=self._stopped, name="penstock-stop", daemon=True).start()

    def _stopped(self) -> None:
        # It may have ended by itself just now. How it ended, `wait` says.
        with contextlib.suppress(Exception):
            self._job.stop()


def ending_text(records: tuple[CheckpointRecord, ...], again: str, *, is_cut_short: bool = False) -> str:
    """How a job that did not fail has ended, in words. `again` says how to go on: `run the same command again`."""
    last = next((record for record in reversed(records) if record.is_completed), None)
    if last is not None and BarrierFlag.DRAIN in last.flags:
        if ends_with_savepoint(records) and is_cut_short:
            # It was complete when it was no longer waited for, and it is what a new start goes on from.
            return f"stopped; savepoint {last.checkpoint} was completed: {again} to go on from it"
        if ends_with_savepoint(records):
            return f"stopped with savepoint {last.checkpoint}: {again} to go on from there"
        return f"finished: all input is read, and everything is published with checkpoint {last.checkpoint}"
    where = f"from checkpoint {last.checkpoint}" if last is not None else "from where this run began"
    return f"stopped: {again} to go on {where}"


class _Handler:
    """Takes the place of PySpark's handler. There is one for the process: signals belong to it."""

    def __init__(self) -> None:
        self._former: Any = None
        self._sessions: dict[int, SparkSession] = {}
        """Sessions with pipelines that run, by the pipeline."""
        self._waiting: list[Stopping] = []

    @property
    def is_waiting(self) -> bool:
        """Whether the main thread waits for a pipeline, and Ctrl-C is for that one."""
        return bool(self._waiting)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._waiting:
            for stopping in self._waiting:
                stopping.interrupt()
            return
        for spark in list(self._sessions.values()):
            with contextlib.suppress(Exception):
                cancel_other_jobs(spark)
        if self._sessions or not callable(self._former):
            raise KeyboardInterrupt
        self._former(number, frame)

    def install(self) -> bool:
        """Whether Ctrl-C comes here now: not outside of the main thread, nor where the user has a handler."""
        if threading.current_thread() is not threading.main_thread():
            return False
        current = signal.getsignal(signal.SIGINT)
        if current is self:
            return True
        if not _is_replaceable(current):
            return False
        self._former = current
        signal.signal(signal.SIGINT, self)
        return True

    def add(self, key: int, spark: SparkSession) -> None:
        self._sessions[key] = spark

    def remove(self, key: int) -> None:
        self._sessions.pop(key, None)

    @contextlib.contextmanager
    def waiting(self, stopping: Stopping) -> Iterator[bool]:
        """In here, Ctrl-C goes to `stopping`, if it comes here at all, which is what is yielded."""
        before = signal.getsignal(signal.SIGINT)
        if not self.install():
            yield False
            return
        self._waiting.append(stopping)
        try:
            yield True
        finally:
            self._waiting.remove(stopping)
            if before is not self and before is signal.default_int_handler:
                # That of a notebook, which sets it anew for each cell.
                signal.signal(signal.SIGINT, before)


def _is_replaceable(handler: Any) -> bool:
    is_pyspark_s = getattr(handler, "__module__", "").startswith("pyspark.")
    return handler is signal.default_int_handler or is_pyspark_s


HANDLER = _Handler()
