"""The workers on Spark: each attempt is one job of one barrier stage, watched from a separate thread.

A failed barrier stage is not tried again by Spark, so its end, whatever it is, is reported to the supervisor, which
decides. The transport of the driver is made anew for each attempt, with new secrets.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.driver.attempts.phases import HoldUp
from penstock.errors import PenstockError, SessionStopped
from penstock.exchange.wire import BrokenLink, WireError
from penstock.exchange.zmq_transport import RealClock, ZmqTransport, make_secrets
from penstock.graph.physical import PhysicalPlan
from penstock.ids import COORDINATOR, Generation, WorkerId
from penstock.mailbox.frames import Endpoint, Frame, HelloFrame, WelcomeFrame
from penstock.protocol.manifest import Manifest
from penstock.protocol.ownership import Reservation
from penstock.spark.cancellation import PREFIX, cancel_jobs, tag_jobs
from penstock.spark.environment import workers_python
from penstock.spark.failures import workers_lost
from penstock.spark.labels import label_jobs
from penstock.spark.sessions import context_of, is_stopped
from penstock.spark.slots import Slots, hold_up_of, holding_text, slots_of, tasks_of
from penstock.spark.task import WorkerLaunch, task
from penstock.worker.pulse import DriverBeat, Pulse
from penstock.worker.settings import WorkerSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("penstock")

EXCLUSIVE = "spark.penstock.exclusive"
"""Property of a session in which nobody runs any query but one pipeline: `penstock run` sets it."""

_LOOK_S = 0.25
_LEAVING_S = 1.0
"""An attempt that waits for slots says so after this."""
_SUBMITTED_S = 5.0
"""Tasks that were submitted and have not been heard of for this long may not have started."""
_STATUS_S = 15.0
"""The same where Spark can be asked: its figures may be ten seconds old."""
_STOPPED = (
    "the Spark session was stopped while the pipeline ran. Nothing is lost: start the pipeline again on a new session, "
    "and it goes on from its newest checkpoint. To end it properly, call job.stop(drain=True) before spark.stop()"
)
_HELD_UP_MS_MAX = 600_000
"""A driver whose mailbox is held up for longer gives no more signs of life."""
_LEAVE_S = 3.0
"""How long workers that were told to stop may take, before Spark ends them."""


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """How a worker opens the store."""

    url: str
    options: dict[str, object]


class SparkWorkerGroup:
    """Starts and ends workers on Spark, and carries frames between them and the driver."""

    def __init__(
        self,
        spark: SparkSession,
        name: str,
        settings: WorkerSettings,
        store: StoreAddress,
        address: str | None,
        failed: Callable[[Generation, Exception], None],
        held_up: Callable[[Generation, HoldUp | None], None],
        *,
        start_timeout_ms: int,
    ) -> None:
        self._spark = spark
        self._name = name
        self._tag = f"{PREFIX}{uuid.uuid4().hex}"
        """Other pipelines of the application may have our name: what is cancelled must be ours alone."""
        self._settings = settings
        self._store = store
        self._address = address
        self._failed = failed
        self._held_up = held_up
        self._start_timeout_ms = start_timeout_ms
        """A worker that has come up waits for the others as long as the driver does."""
        self._transport: ZmqTransport | None = None
        self._beat: DriverBeat | None = None
        self._pulse: Pulse | None = None
        self._lock = threading.Lock()
        self._jobs: dict[Generation, threading.Thread] = {}
        self._settled: dict[Generation, threading.Event] = {}
        """Set when all workers of an attempt have come, or it is over: nobody waits for slots any more."""
        self._endpoints: dict[WorkerId, Endpoint] = {}
        self._generation: Generation | None = None
        self._workers = 0
        self.processes: dict[WorkerId, int] = {}
        """Process ids of the current workers."""
        self._slots: Slots | None = None
        """As they were seen before the job was submitted: the mailbox must not wait for Spark."""
        self._is_shared = True
        self.slots_total: int | None = None
        """Of the session; None before the workers are up, and with Spark Connect."""

    # --- the worker group's port ---

    def launch(
        self, generation: Generation, plan: PhysicalPlan, manifest: Manifest | None, reservation: Reservation
    ) -> None:
        self._close_transport()
        secrets = make_secrets()
        transport = ZmqTransport(COORDINATOR, secrets, self._address)
        with self._lock:
            self._transport = transport
        self._endpoints, self.processes = {}, {}
        self._generation, self._workers = generation, plan.workers
        launch = WorkerLaunch(
            generation,
            plan,
            self._settings,
            secrets,
            transport.endpoint,
            self._store.url,
            None if manifest is None else manifest.checkpoint,
            self._address is None,
            self._store.options,
            welcome_ms_max=self._start_timeout_ms,
            reservation=reservation,
        )
        self._settled[generation] = threading.Event()
        name = f"penstock-job-{generation}"
        self._jobs[generation] = job = threading.Thread(target=self._run_job, args=(launch,), name=name, daemon=True)
        job.start()

    def cancel(self, generation: Generation) -> None:
        self.processes = {}
        if generation in self._settled:
            self._settled[generation].set()
        # Workers that live have been told to stop; this is for those that do not listen any more.
        threading.Thread(target=self._interrupt, args=(generation,), daemon=True).start()

    def _tag_of(self, generation: Generation) -> str:
        return f"{self._tag}-{generation}"

    def _run_job(self, launch: WorkerLaunch) -> None:
        try:
            if is_stopped(self._spark):
                raise SessionStopped(_STOPPED)
            tag_jobs(self._spark, self._tag_of(launch.generation))
            label_jobs(self._spark, self._name, launch.generation)
            if not self._await_room(launch):
                return
            self._submit(launch)
            error: Exception = PenstockError("all workers have left before the pipeline was finished")
        except Exception as failure:
            _log.debug("the job of generation %d failed", launch.generation, exc_info=failure)
            if is_stopped(self._spark, failure):
                error = SessionStopped(_STOPPED)
                error.__cause__ = failure
            else:
                error = workers_lost(failure, self._spark.conf.get("spark.master", "") or "")
        self._failed(launch.generation, error)

    def _submit(self, launch: WorkerLaunch) -> None:
        """Run the job of an attempt; returns when it has ended."""
        workers = launch.plan.workers
        with workers_python(self._spark):
            running = self._spark.range(0, workers, 1, workers).mapInArrow(task(launch), "worker long", barrier=True)
        name = f"penstock-start-{launch.generation}"
        threading.Thread(target=self._watch_start, args=(launch,), name=name, daemon=True).start()
        # There are no rows. A write to nowhere would end a tenth of a second sooner, and when it is cancelled Spark
        # prints a stack trace for each task. PySpark's own `collect` would give the stage the name of this line.
        getattr(running, "_jdf", running).collect()

    def _await_room(self, launch: WorkerLaunch) -> bool:
        """Wait until there are slots for all workers, and report while there are none; False if the attempt is over.

        Asked before Spark is: it would not say that it waits, and looks for executors only every 15 seconds.
        """
        self._is_shared = self._spark.conf.get(EXCLUSIVE, "false") != "true"
        settled, since = self._settled[launch.generation], time.monotonic()
        while not settled.is_set():
            self._slots = slots = slots_of(self._spark, self._tag)
            hold_up = None if slots is None else hold_up_of(slots, launch.plan.workers)
            if hold_up is None:
                self._held_up(launch.generation, None)
                return True
            # Workers of the attempt before may still be leaving.
            if time.monotonic() - since >= _LEAVING_S:
                self._held_up(launch.generation, hold_up)
            settled.wait(_LOOK_S)
        return False

    def _watch_start(self, launch: WorkerLaunch) -> None:
        """Report if the job was submitted and its tasks do not start: somebody else was faster, or nobody knows."""
        settled, generation = self._settled[launch.generation], launch.generation
        patience_s = _SUBMITTED_S if context_of(self._spark) is None else _STATUS_S
        while not settled.wait(patience_s) and not self._endpoints:
            # Spark that does not answer is found by the thread of the job.
            with contextlib.suppress(Exception):
                if not tasks_of(self._spark, self._tag_of(generation)):
                    slots = slots_of(self._spark, self._tag)
                    # On a busy host the status of jobs lags behind the scheduler: tasks of no other job are ours.
                    is_ours = slots is not None and slots.running >= launch.plan.workers and not slots.holders
                    self._held_up(generation, None if is_ours else hold_up_of(slots, launch.plan.workers))

    def _interrupt(self, generation: Generation) -> None:
        job = self._jobs.get(generation)
        if job is None:
            return
        # Workers that listen leave by themselves, which is faster, and leaves no errors in the logs.
        job.join(_LEAVE_S)
        try:
            while job.is_alive():
                # More than once: what Spark has not begun yet it cannot cancel.
                cancel_jobs(self._spark, self._tag_of(generation))
                job.join(_LEAVE_S)
        except Exception as error:
            self._failed(generation, error)

    # --- the transport port of the driver ---

    def send(self, to: WorkerId, frame: Frame) -> None:
        if self._transport is not None:
            self._transport.send(to, frame)
        if self._beat is not None:
            self._beat.on_sent(frame)

    def receive(self) -> Iterator[Frame]:
        """What has arrived for the supervisor; the group's own frames are dealt with here."""
        transport = self._transport
        if transport is None:
            return
        try:
            for frame in transport.receive():
                if isinstance(frame, HelloFrame):
                    self._on_hello(transport, frame)
                yield frame
        except (BrokenLink, WireError) as error:
            if self._generation is not None:
                self._failed(self._generation, error)

    def _on_hello(self, transport: ZmqTransport, hello: HelloFrame) -> None:
        if hello.generation != self._generation or hello.worker in self._endpoints:
            return
        self._endpoints[hello.worker] = hello.endpoint
        self.processes[hello.worker] = hello.process
        transport.connect(hello.worker, hello.endpoint)
        if len(self._endpoints) == self._workers:
            self._settled[hello.generation].set()
            self._say_slots()
            endpoints = tuple(self._endpoints[WorkerId(number)] for number in range(self._workers))
            for number in range(self._workers):
                transport.send(WorkerId(number), WelcomeFrame(hello.generation, endpoints))
            self._start_pulse(transport, hello.generation, endpoints)

    def _say_slots(self) -> None:
        """Once: how many slots are held, and what is left for other queries."""
        if self.slots_total is not None or self._slots is None:
            return
        self.slots_total = total = self._slots.total
        level = logging.WARNING if self._is_shared and self._workers >= total else logging.INFO
        _log.log(level, "pipeline %s %s", self._name, holding_text(self._workers, total))

    def _start_pulse(self, transport: ZmqTransport, generation: Generation, endpoints: Sequence[Endpoint]) -> None:
        """Workers must hear of the driver even if its mailbox is held up: they would end themselves."""
        silence_ms = self._settings.driver_silence_ms
        connect = [functools.partial(transport.pulse, endpoint) for endpoint in endpoints]
        self._beat = DriverBeat(generation, RealClock(), silence_ms // 6, _HELD_UP_MS_MAX, connect)
        self._pulse = Pulse(self._beat, max(1, silence_ms // 12))
        self._pulse.start()

    def wait(self, timeout_ms: int) -> bool:
        """Sleep until something arrives; False if there is nothing to wait on yet."""
        if self._transport is None:
            return False
        self._transport.wait(timeout_ms)
        return True

    def wake(self) -> None:
        with self._lock:
            if self._transport is not None:
                self._transport.wake()

    def _close_transport(self) -> None:
        with self._lock:
            transport, self._transport = self._transport, None
        self._beat = None
        if self._pulse is not None:
            # Its sockets are the transport's too.
            self._pulse.close()
            self._pulse = None
        if transport is not None:
            transport.flush()
            transport.close()

    def close(self) -> None:
        """Let the workers leave, then close the way to them."""
        for job in list(self._jobs.values()):
            job.join(_LEAVE_S)
        self._close_transport()
