"""Listeners: code of users that hears of a pipeline's life.

    class Alerts(JobListener):
        def on_restart(self, event: JobRestarted) -> None:
            page(f"{event.name}: {event.error}")

    pipeline.start(spark, "/data/checkpoints/totals", listeners=[Alerts()])

Each listener has a thread. It is called in the order of the events, one call at a time, and never by the driver's
mailbox: a listener that raises or hangs holds up neither the pipeline nor another listener.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from penstock.driver.observation.progress import JobProgress
from penstock.ids import CheckpointId, Generation
from penstock.protocol.history import CheckpointRecord

_log = logging.getLogger("penstock")

EVENTS_MAX = 1_000
"""Events that wait for a listener. With more, the oldest ones are dropped."""
HANGING_S = 10.0
"""A call that takes longer than this is said to hang."""


@dataclass(frozen=True, slots=True)
class JobStarted:
    """A pipeline has taken over its checkpoint directory and launches its workers. Once for each job."""

    name: str
    generation: Generation
    timestamp_ms: int
    """In milliseconds since 1970, here as in the other events."""
    checkpoint: CheckpointId | None
    """The checkpoint from which it goes on; None if it begins without one."""


@dataclass(frozen=True, slots=True)
class CheckpointEnded:
    """A checkpoint is durable, or was declined."""

    name: str
    timestamp_ms: int
    record: CheckpointRecord
    """Its numbers, as `Job.checkpoints` has them; `is_completed` tells the two cases apart."""
    progress: JobProgress | None
    """None if it was declined."""


@dataclass(frozen=True, slots=True)
class JobRestarted:
    """An attempt has failed, and the next one begins after `delay_ms`."""

    name: str
    timestamp_ms: int
    restarts: int
    """Restarts of this job, this one included."""
    error: Exception
    delay_ms: int


@dataclass(frozen=True, slots=True)
class JobFinished:
    """A pipeline has finished, was stopped, or has failed. The last event of a job."""

    name: str
    timestamp_ms: int
    error: Exception | None
    """None unless it has failed."""


JobEvent: TypeAlias = JobStarted | CheckpointEnded | JobRestarted | JobFinished


class JobListener:
    """Base class of listeners. Override the methods of the events of interest.

    Example on Spark:

        class Told(JobListener):
            def __init__(self):
                self.events = []

            def on_started(self, event):
                self.events.append(f"{event.name} begins")

            def on_checkpoint(self, event):
                self.events.append(f"checkpoint {event.record.checkpoint}")

            def on_restart(self, event):
                self.events.append(f"restart {event.restarts}: {event.error}")

            def on_finished(self, event):
                self.events.append(f"{event.name} ends")

        told = Told()
        orders.sink(output, name="output")
        job = pipeline.start(spark, "/tmp/penstock/listened", workers=1, parallelism=1, listeners=[told])
        assert job.wait(timeout=120)
        while len(told.events) < 3:
            time.sleep(0.01)
        assert told.events[0] == "example begins" and told.events[-1] == "example ends"
    """

    def on_started(self, event: JobStarted) -> None:
        """The pipeline has started. Called once."""

    def on_checkpoint(self, event: CheckpointEnded) -> None:
        """A checkpoint is durable, or was declined."""

    def on_restart(self, event: JobRestarted) -> None:
        """The pipeline has failed and restarts."""

    def on_finished(self, event: JobFinished) -> None:
        """The pipeline has ended. The last call."""


class Listeners:
    """The listeners of one job. `add` and `tell` are for any thread."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._listeners: list[_Listening] = []

    def add(self, listener: JobListener) -> None:
        """Call `listener` for the events from now on."""
        self._listeners.append(_Listening(self._pipeline, listener))

    def tell(self, event: JobEvent) -> None:
        """Pass an event on. Returns at once."""
        for listening in tuple(self._listeners):
            listening.tell(event)

    def close(self, timeout_s: float) -> None:
        """Nothing follows. Wait until all events are handed over, but not for listeners that hang."""
        until = time.monotonic() + timeout_s
        for listening in tuple(self._listeners):
            listening.close(max(0.0, until - time.monotonic()))


class _Listening:
    """One listener, its queue and its thread."""

    def __init__(self, pipeline: str, listener: JobListener) -> None:
        self._pipeline = pipeline
        self._listener = listener
        self._events: deque[JobEvent] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._called_at: float | None = None
        """When the call began that is under way."""
        self._said: set[str] = set()
        name = f"penstock-listener-{pipeline}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def tell(self, event: JobEvent) -> None:
        with self._changed:
            if len(self._events) >= EVENTS_MAX:
                self._events.popleft()
                self._say_once("dropped", f"has {EVENTS_MAX} events to hear of, and the oldest ones are dropped")
            self._events.append(event)
            self._changed.notify()
        if self._is_hanging:
            self._say_once("hangs", f"has been in one call for {HANGING_S:g} s; the pipeline goes on without it")

    @property
    def _is_hanging(self) -> bool:
        called_at = self._called_at
        return called_at is not None and time.monotonic() - called_at >= HANGING_S

    def close(self, timeout_s: float) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if not self._is_hanging and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._events or self._is_closed)
                if not self._events:
                    return
                event = self._events.popleft()
            self._called_at = time.monotonic()
            try:
                _call(self._listener, event)
            except Exception as error:
                self._say_once("raised", f"has raised {type(error).__name__}: {error}; it goes on to hear of events")
            finally:
                self._called_at = None

    def _say_once(self, what: str, text: str) -> None:
        if what not in self._said:
            self._said.add(what)
            _log.warning("pipeline %s: listener %s %s", self._pipeline, type(self._listener).__name__, text)


def _call(listener: JobListener, event: JobEvent) -> None:
    match event:
        case JobStarted():
            listener.on_started(event)
        case CheckpointEnded():
            listener.on_checkpoint(event)
        case JobRestarted():
            listener.on_restart(event)
        case JobFinished():
            listener.on_finished(event)
        case _:
            assert_never(event)
