"""A running pipeline, as its user holds it: the handle, and the thread behind it.

The thread is the driver's mailbox: it runs the supervisor, and with it coordinator and committer. The handle talks to
it by posting calls and waiting for their answers, from any thread.

Lease, orders and each attempt have their own background threads, so that a store or sink that hangs in one of them
holds up none of the others. All threads are daemonic.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING, Literal, TypeVar, overload

from penstock.connectors.sink import Committer
from penstock.driver.attempts.phases import HoldUp, Phase
from penstock.driver.control import Control
from penstock.driver.observation import kept_log
from penstock.driver.observation.job_metrics import job_samples
from penstock.driver.observation.listeners import JobListener, Listeners
from penstock.driver.observation.progress import JobProgress
from penstock.driver.reminders import Reminders
from penstock.driver.supervisor import Supervisor
from penstock.errors import JobFailed, OptionError, PenstockError
from penstock.exchange.zmq_transport import RealClock
from penstock.graph.explanation import explained
from penstock.graph.physical import PhysicalPlan
from penstock.ids import CheckpointId, Generation, OperatorName, WorkerId
from penstock.mailbox.threads import Mail, ThreadBackground
from penstock.metrics.samples import Metrics
from penstock.model.units import Duration, duration_s
from penstock.protocol.coordinator.events import RequestCompleted, RequestResult
from penstock.protocol.coordinator.state import RequestKind
from penstock.protocol.history import CheckpointRecord
from penstock.protocol.history import Status as RecordStatus
from penstock.spark.dataframes import output_of
from penstock.spark.interrupts import HANDLER, Stopping, ending_text
from penstock.spark.sessions import session_zone
from penstock.spark.settings import Settings
from penstock.spark.status import Status
from penstock.spark.watched import Inside, Watched
from penstock.spark.worker_group import SparkWorkerGroup, StoreAddress
from penstock.storage import open_store
from penstock.storage.copies import export_checkpoint
from penstock.storage.lease import BEAT_MS, Lease
from penstock.storage.port import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

_log = logging.getLogger("penstock")

_LOOK_S = 0.2
_SLOW_S = 5.0
"""A request that has no answer for this long is worth a word."""
_LAST_WORDS_S = 10.0
"""The end of a pipeline waits this long for the store: to remove the owner's note, and to answer orders."""

_LISTENERS_S = 2.0
"""The end of a pipeline waits this long for its listeners to hear of it."""


class Job:
    """A pipeline that was started. Its methods may be called from any thread.

    Example on Spark:

        numbers = GeneratorSource(pa.schema({"n": pa.int64()}), rows_per_second=1_000)
        pipeline = Pipeline("numbers")
        pipeline.source(numbers, name="numbers").sink(CallableSink(len), name="nowhere")
        job = pipeline.start(spark, "/tmp/penstock/numbers", workers=1, parallelism=1)

        first = job.checkpoint(timeout=60)
        saved = job.savepoint("/tmp/penstock/saved", timeout=60)
        assert first < saved == job.status.last_checkpoint
        assert job.checkpoints()[-1].is_completed and job.last_error is None
        assert len(job.worker_processes) == 1 and not job.wait(timeout=0)
        job.add_listener(JobListener())
        assert job.is_active and job.metrics().value("num_records_in", "numbers") is not None
        assert job.last_progress == job.recent_progress[-1]
        assert "numbers" in job.explain(to_string=True)
        assert job.stop(drain=True, timeout=60) > saved
    """

    def __init__(
        self,
        spark: SparkSession,
        name: str,
        plan: PhysicalPlan,
        settings: Settings,
        committers: Mapping[OperatorName, Committer],
        store: Store,
        address: StoreAddress,
        network: str | None,
        listeners: Sequence[JobListener] = (),
    ) -> None:
        self.name = name
        self._listeners = Listeners(name)
        for listener in listeners:
            self._listeners.add(listener)
        self.plan = plan
        self._store = store
        self._clock = RealClock()
        self._bell = threading.Event()
        self._mail = Mail(self._ring)
        self._lease_background = ThreadBackground(self._mail, 1, f"penstock-{name}-lease")
        self._control_background = ThreadBackground(self._mail, name=f"penstock-{name}-orders")
        self._spark = spark
        self._settings = settings
        self._place = address.url
        self._at_end: list[Callable[[], None]] = []
        worker = settings.worker(session_zone(spark))
        self._worker_group = SparkWorkerGroup(
            spark,
            name,
            worker,
            address,
            network,
            self._on_workers_lost,
            self._on_workers_held_up,
            start_timeout_ms=settings.supervisor().start_timeout_ms,
        )
        self._supervisor = Supervisor(
            plan,
            settings.supervisor(),
            committers,
            self._worker_group,
            self._clock,
            self._worker_group,
            self._control_background,
            store,
            attempt_background=lambda: ThreadBackground(self._mail, name=f"penstock-{name}"),
            tell=self._listeners.tell,
        )
        self._lease = Lease(store, name)
        self._control = Control(store, self._supervisor, self._control_background, self._clock)
        self._ended = threading.Event()
        self._crash: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"penstock-driver-{name}", daemon=True)

    def __repr__(self) -> str:
        status = self.status
        last = "no checkpoint yet" if status.last_checkpoint is None else f"checkpoint {status.last_checkpoint}"
        return f"<Job '{self.name}': {status.phase.value}, {last}, {status.rows_in} rows in, {status.rows_out} out>"

    def _start(self) -> Job:
        self._lease.beat()
        HANDLER.install()
        HANDLER.add(id(self), self._spark)
        self._at_end.append(kept_log.keep(_log, self._supervisor.observations.log, self._store, self._clock.wall_ms()))
        self._thread.start()
        return self

    # --- the thread ---

    def _run(self) -> None:
        supervisor = self._supervisor
        try:
            self._keep_lease()
            supervisor.start()
            self._control.start()
            while not supervisor.has_ended:
                self._turn()
            self._turn()
        except Exception as error:
            self._crash = error
            supervisor.stop(error)
        finally:
            self._lease_background.close()
            self._control_background.close()
            self._worker_group.close()
            self._say_last_words()
            HANDLER.remove(id(self))
            self._listeners.close(_LISTENERS_S)
            self._close_attached()
            self._ended.set()

    def _turn(self) -> None:
        supervisor = self._supervisor
        for frame in self._worker_group.receive():
            supervisor.deliver(frame)
        self._bell.clear()
        self._mail.deliver()
        supervisor.timers.fire()
        if supervisor.has_ended or self._mail:
            return
        at_ms = supervisor.timers.next_at_ms
        sleep_ms = 1000 if at_ms is None else max(0, min(1000, at_ms - self._clock.now_ms()))
        if not self._worker_group.wait(sleep_ms):
            self._bell.wait(sleep_ms / 1000)

    def _ring(self) -> None:
        self._bell.set()
        self._worker_group.wake()

    def _on_workers_lost(self, generation: Generation, error: Exception) -> None:
        self._mail.post(lambda: self._supervisor.on_workers_lost(generation, error))

    def _on_workers_held_up(self, generation: Generation, hold_up: HoldUp | None) -> None:
        self._mail.post(lambda: self._supervisor.on_workers_held_up(generation, hold_up))

    def _keep_lease(self) -> None:
        def renewed(outcome: object) -> None:
            # A directory that cannot be written shows itself soon enough, in the checkpoints.
            self._supervisor.timers.after(BEAT_MS, self._keep_lease)

        self._lease_background.submit(self._lease.beat, renewed)

    def _say_last_words(self) -> None:
        """In a thread: the store may never answer, and the pipeline has ended all the same."""
        words = threading.Thread(target=self._release_and_answer, name=f"penstock-end-{self.name}", daemon=True)
        words.start()
        words.join(_LAST_WORDS_S)
        if words.is_alive():
            _log.warning(
                "pipeline %s: the store does not answer, so owner.json could not be "
                "released: a driver on another host can start a few seconds later",
                self.name,
            )

    def _release_and_answer(self) -> None:
        try:
            self._lease.release()
        except PenstockError as error:
            # The note goes stale anyway: not a reason to fail a pipeline that has ended.
            _log.warning(
                "pipeline %s: owner.json could not be released: a driver on another host "
                "can start a few seconds later: %s",
                self.name,
                error,
            )
        self._control.close(self._failure)

    # --- the page ---

    def _watched(self) -> Watched:
        inside = Inside(self.name, self._supervisor, self._mail, self._worker_group, self._store, self._clock)
        return inside.watched(self._spark, self._settings, self._place)

    def _attach(self, close: Callable[[], None], page: str | None = None) -> None:
        """Call `close` when the pipeline has ended, and note the address of its page beside the owner's note."""
        self._at_end.append(close)
        if page is not None:
            self._lease.note_page(page)

    def _close_attached(self) -> None:
        for close in reversed(self._at_end):
            close()

    # --- what a user asks ---

    def wait(self, timeout: Duration | None = None) -> bool:
        """Wait until the pipeline has ended: True, or False if it has not within `timeout`.

        Raises what it failed with. In the main thread, Ctrl-C stops the pipeline with a savepoint, a second one at
        once; then this returns True as well, when the pipeline has ended, however long that takes.
        """
        limit_s = _seconds(timeout)
        stopping = Stopping(self, _say)
        with HANDLER.waiting(stopping) as can_be_interrupted:
            if not (self._wait_interruptibly(stopping, limit_s) if can_be_interrupted else self._ended.wait(limit_s)):
                return False
        self._raise_failure()
        if stopping.has_begun:
            _say(f"pipeline '{self.name}' {ending_text(self.checkpoints(), 'start it again')}")
        return True

    def _wait_interruptibly(self, stopping: Stopping, timeout: float | None) -> bool:
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _LOOK_S if until is None or stopping.has_begun else min(_LOOK_S, until - time.monotonic())
            if self._ended.wait(max(0.0, left)):
                return True
            stopping.react()
            if left <= 0:
                return False

    @property
    def _failure(self) -> Exception | None:
        """What the pipeline ended with, if it failed."""
        return self._crash or (self._supervisor.error if self._supervisor.phase is Phase.FAILED else None)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def stop(self, drain: bool = False, timeout: Duration | None = None) -> CheckpointId | None:
        """End the pipeline: at once, or with `drain` after a last savepoint, whose id is returned.

        Either way it resumes where its newest checkpoint is, if it is started again. To stop a pipeline at once that
        has ended already does no harm; if it has failed, that is raised.
        """
        if drain:
            checkpoint = self._request(RequestKind.DRAIN, timeout)
            self.wait(timeout)
            return checkpoint
        self._mail.post(self._supervisor.stop)
        limit_s = _seconds(timeout)
        if not self._ended.wait(limit_s):
            raise TimeoutError(f"pipeline '{self.name}' did not end within {limit_s:g} s")
        self._raise_failure()
        return None

    def checkpoint(self, timeout: Duration | None = None) -> CheckpointId:
        """Take a checkpoint now, and wait until it is durable and its output published."""
        return self._request(RequestKind.CHECKPOINT, timeout)

    def savepoint(self, path: str | None = None, timeout: Duration | None = None) -> CheckpointId:
        """Take a savepoint: aligned, self-contained, and never removed by retention.

        With a `path` it is copied there as well, to start other pipelines from.
        """
        checkpoint = self._request(RequestKind.SAVEPOINT, timeout)
        if path is not None:
            export_checkpoint(self._store, checkpoint, open_store(path))
        return checkpoint

    @property
    def status(self) -> Status:
        supervisor, coordinator = self._supervisor, self._supervisor.coordinator
        progress = supervisor.progress
        seen = supervisor.observations
        totals = seen.totals
        completed = [record.checkpoint for record in supervisor.history if record.is_completed]
        error = self._crash or supervisor.error
        return Status(
            self.name,
            progress.phase,
            coordinator.generation if coordinator is not None else None,
            supervisor.restarts,
            totals.rows_in,
            totals.rows_out,
            seen.backpressure_percent,
            completed[-1] if completed else None,
            str(error) if error is not None else None,
            seen.recovery,
            totals.late,
            progress.detail,
            self.plan.workers,
            self._worker_group.slots_total,
            totals.skipped,
            totals.files_skipped,
            totals.dead_letters,
            totals.ahead,
        )

    @overload
    def explain(self, *, to_string: Literal[False] = ...) -> None: ...

    @overload
    def explain(self, *, to_string: Literal[True]) -> str: ...

    def explain(self, *, to_string: bool = False) -> str | None:
        """Print the plan that runs, or return it as a text: see `Pipeline.explain`."""
        text = explained(self.plan, self.plan.parallelism)
        if to_string:
            return text
        print(text)
        return None

    def checkpoints(self) -> tuple[CheckpointRecord, ...]:
        """The last checkpoints, completed, declined or in progress, with their durations and sizes; newest last.

        Times are in milliseconds since 1970. The detail of one in progress says what it waits for.
        """
        return self._supervisor.checkpoints

    def to_dataframe(self, sink: str | None = None) -> DataFrame:
        """The committed output of a file sink, as a DataFrame of the session: whole checkpoints, up to the newest one
        when a query on it is planned. `sink` is the name of the sink; it may be left out if there is only one.

        `spark.readStream.format("penstock")` has the same as a stream: see `PenstockDataSource`.

        Example on Spark:

            pipeline = Pipeline("numbers")
            numbers = GeneratorSource(pa.schema({"n": pa.int64()}), rows=100)
            pipeline.source(numbers, name="numbers").sink(ParquetSink("/tmp/penstock/frame"), name="output")
            job = pipeline.start(spark, "/tmp/penstock/frame-checkpoints", workers=1, parallelism=1)
            assert job.wait(timeout=120) and job.to_dataframe("output").count() == 100
        """
        return output_of(self._spark, self.plan, sink)

    def metrics(self) -> Metrics:
        """Counters, gauges and histograms by operator and subtask, as the workers have reported them last.

            job.metrics().by_operator("num_records_in")
            job.metrics().value("current_output_watermark", "totals")

        Workers report once a second, and with each checkpoint. docs/monitoring.md has all names.
        """
        return self._supervisor.observations.metrics.sample(job_samples(self._supervisor))

    @property
    def is_active(self) -> bool:
        """Whether the pipeline has not ended: it runs, starts, restarts or stops."""
        return not self._ended.is_set()

    @property
    def last_progress(self) -> JobProgress | None:
        """The progress at the newest checkpoint that this job has completed; None before the first."""
        recent = self.recent_progress
        return recent[-1] if recent else None

    @property
    def recent_progress(self) -> tuple[JobProgress, ...]:
        """The progress at the last 100 checkpoints of this job, newest last."""
        return self._supervisor.observations.recent

    def add_listener(self, listener: JobListener) -> None:
        """Call `listener` for all events from now on, on a separate thread.

        To receive the start too, pass it to `Pipeline.start(…, listeners=[…])`.
        """
        if not isinstance(listener, JobListener):
            raise OptionError(f"add_listener needs a penstock.JobListener, not {listener!r}")
        self._listeners.add(listener)

    @property
    def last_error(self) -> Exception | None:
        """What the last failure was, even if the pipeline has recovered from it."""
        return self._crash or self._supervisor.error

    @property
    def worker_processes(self) -> dict[WorkerId, int]:
        """Process ids of the current workers, for those who want to look at them, or kill them."""
        return dict(self._worker_group.processes)

    def _request(self, kind: RequestKind, timeout: Duration | None) -> CheckpointId:
        limit_s = _seconds(timeout)
        answer: Future[RequestResult] = Future()
        self._mail.post(lambda: self._supervisor.request(kind, answer.set_result))
        result = self._await(answer, limit_s, f"the {kind.value}")
        if isinstance(result, RequestCompleted):
            return result.checkpoint
        detail = f" ({result.detail})" if result.detail else ""
        raise PenstockError(f"the {kind.value} of pipeline '{self.name}' was declined: {result.reason.value}{detail}")

    def _await(self, answer: Future[T], limit_s: float | None, what: str) -> T:
        waited, reminders = 0.0, Reminders()
        while True:
            try:
                return answer.result(0.1)
            except FutureTimeout:
                waited += 0.1
                if waited >= _SLOW_S and reminders.is_due(what, round(1000 * waited)):
                    _log.warning("pipeline %s: %s is taking long: %s", self.name, what, self._waits_for())
                if self._ended.is_set() and not answer.done():
                    self._raise_failure()
                    raise JobFailed(f"pipeline '{self.name}' has ended ({self._supervisor.phase.value})") from None
                if limit_s is not None and waited >= limit_s:
                    told = f"{what} of pipeline '{self.name}' did not come within {limit_s:g} s: {self._waits_for()}"
                    raise TimeoutError(told) from None

    def _waits_for(self) -> str:
        """What a request waits for, as far as it is known."""
        progress = self._supervisor.progress
        under_way = [record for record in self.checkpoints() if record.status is RecordStatus.IN_PROGRESS]
        parts = [f"checkpoint {each.checkpoint} is in progress: {each.detail}" for each in under_way]
        return "; ".join([f"the pipeline is {progress}", *parts])


def _seconds(timeout: Duration | None) -> float | None:
    return None if timeout is None else duration_s("timeout", timeout, error=OptionError)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
