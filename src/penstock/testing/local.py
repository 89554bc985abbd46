"""Running a pipeline in this process, for tests: no Spark, no threads, milliseconds.

    from penstock.testing import CollectSink, ListSource, run

    def test_totals():
        output = CollectSink()
        pipeline = Pipeline("totals")
        pipeline.source(ListSource(ROWS)).key_by("user").sum("amount").sink(output)
        result = run(pipeline, parallelism=2, crash_after_checkpoints=1)
        assert result.restarts == 1
        assert output.rows() == …

It is the same worker, coordinator and supervisor as on Spark, on simple ports: a real clock, a network of queues, and
background work that is done in between. Checkpoints are taken every few milliseconds. What differs: functions are not
pickled (though it is checked that they can be), and all workers share this process.

With `schedule=Schedule(7)` the turns and the time come from a seed, and the same seed is the same run. A test that runs
its pipeline with a hundred of them sees a hundred interleavings, and names the one that went wrong.
"""

from __future__ import annotations

import os
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from penstock.api.stream import Stream
from penstock.connectors.collect import CollectSink
from penstock.connectors.memory import ABORT, CHECKPOINT, PAUSE, ListSource
from penstock.connectors.sink import Committer
from penstock.driver.attempts.phases import Phase
from penstock.driver.observation.job_metrics import job_samples
from penstock.driver.observation.progress import JobProgress
from penstock.driver.settings import SupervisorSettings
from penstock.driver.supervisor import Supervisor
from penstock.errors import PenstockError
from penstock.exchange.zmq_transport import RealClock
from penstock.graph.logical import Graph
from penstock.graph.physical import PhysicalPlan, plan
from penstock.ids import COORDINATOR, CheckpointId, Generation, OperatorName, WorkerId
from penstock.mailbox.frames import FailedFrame, Frame
from penstock.mailbox.threads import outcome_of
from penstock.metrics.samples import Metrics
from penstock.model.units import Duration, duration_s
from penstock.pipeline import Pipeline
from penstock.protocol.coordinator.events import RequestResult
from penstock.protocol.coordinator.state import Policy, RequestKind
from penstock.protocol.manifest import Manifest
from penstock.protocol.ownership import Reservation
from penstock.protocol.restart import RestartPolicy
from penstock.storage import MemoryStore, open_store
from penstock.storage.port import Store
from penstock.worker.settings import WorkerSettings
from penstock.worker.worker import Worker

__all__ = [
    # running
    "run",
    "collect",
    "Result",
    "Schedule",
    # input and output in memory
    "ListSource",
    "ABORT",
    "CHECKPOINT",
    "PAUSE",
    "CollectSink",
]

T = TypeVar("T")

_NEVER_SILENT_MS = 3_600_000
_SLEEP_MS_MAX = 5
_BACKGROUND_THREADS = 4
"""Background calls that are under way at a time on Spark; they may end in any order."""
_WALL_MS = 1_700_000_000_000


@dataclass(slots=True)
class Result:
    """How a run went."""

    store: Store
    """The checkpoints: pass them to another `run` to resume."""
    checkpoints: int = 0
    """How many were completed."""
    restarts: int = 0
    failures: list[BaseException] = field(default_factory=list)
    """What the restarts were for."""
    rows_in: int = 0
    """Rows that the sources have read, over all restarts, earlier runs on the same `store` included."""
    rows_out: int = 0
    """Rows that the sinks have taken, counted likewise, as all below."""
    rows_late: int = 0
    """Rows that were dropped because their windows had been emitted when they came."""
    rows_skipped: int = 0
    """Rows that sources left out because they could not be read."""
    files_skipped: int = 0
    dead_letters: int = 0
    rows_ahead: int = 0
    """Rows whose event time was further ahead of the clock than `max_ahead`."""
    metrics: Metrics = field(default_factory=lambda: Metrics(()))
    """As `Job.metrics` has them, at the end of the run."""
    progress: tuple[JobProgress, ...] = ()
    """As `Job.recent_progress`."""


class Schedule:
    """Who has a turn when, and what time it is, by a seed: the same seed is the same run.

    Time passes with the turns, and while nobody has anything to do it jumps to the next timer. Pass one schedule to
    several runs in a row, and time goes on from one to the next.

    The trap: code with its own clock is not under its control, nor are the threads of `map_async`. A source
    with a rate, a `PAUSE` and slow threads still work, but with them a seed is not always the same run.

    Example:

        def totals(seed):
            output = CollectSink()
            pipeline = Pipeline("totals")
            source = pipeline.source(ListSource([{"k": n % 2} for n in range(100)], splits=2, batch_rows=10))
            source.key_by("k").count().sink(output)
            run(pipeline, parallelism=2, schedule=Schedule(seed))
            return output.rows()

        assert totals(7) == totals(7)
    """

    def __init__(self, seed: int | str) -> None:
        self.random = random.Random(seed)
        """Draw from it whatever else is to be the same for the same seed."""
        self._now_us = 0

    def now_ms(self) -> int:
        return self._now_us // 1000

    def now_us(self) -> int:
        return self._now_us

    def own_us(self) -> int:
        # Calls into operators are measured with this: they seem to take some time, and not always the same.
        self._now_us += self.random.randrange(100)
        return self._now_us

    def wall_ms(self) -> int:
        return _WALL_MS + self.now_ms()

    def turns(self, actors: Sequence[Callable[[], bool]]) -> Sequence[Callable[[], bool]]:
        """Who has the next turns: most of them, in any order."""
        self._now_us += self.random.randrange(1000)
        return [actor for actor in self.random.sample(actors, len(actors)) if self.random.random() < 0.8]

    def frames_of(self, waiting: int) -> int:
        """How many of the waiting frames have arrived."""
        return waiting if self.random.random() < 0.7 else self.random.randint(0, waiting)

    def background_of(self, waiting: int) -> int | None:
        """Which of the waiting pieces of background work is done next, if any."""
        return None if self.random.random() < 0.3 else self.random.randrange(min(waiting, _BACKGROUND_THREADS))

    def sleep(self, ms: int) -> None:
        self._now_us += max(1, 1000 * ms)


def run(
    pipeline: Pipeline | Graph,
    *,
    parallelism: int = 1,
    workers: int | None = 1,
    store: Store | str | os.PathLike[str] | None = None,
    policy: Policy | None = None,
    restarts: int = 3,
    crash_after_checkpoints: int | Iterable[int] = (),
    until: Callable[[], bool] | None = None,
    timeout: Duration = "1 min",
    worker_settings: WorkerSettings | None = None,
    schedule: Schedule | None = None,
    time_zone: str = "UTC",
) -> Result:
    """Run a pipeline to its end, and raise its error if it does not come there.

    `crash_after_checkpoints` kills all workers, as if with `kill -9`, when this many checkpoints are complete: one
    number, or several. A failure is followed by a restart from the newest checkpoint, `restarts` times; planned
    crashes do not count. `until` stops an unbounded pipeline with a savepoint as soon as it returns True. `store`
    keeps the checkpoints, in memory unless told otherwise; with that of an earlier run, this one resumes it.
    `timeout` is always in real time. `schedule` makes a run that can be repeated. `time_zone` stands for the session's
    zone, in which processors of PySpark see times.

    To see a driver die, raise a `BaseException` of your own in `until`, and call `run` again with the same `store`.

    Example:

        orders.key_by("customer").sum("amount").sink(output)
        result = run(pipeline, parallelism=2, crash_after_checkpoints=1)
        assert result.restarts == 1
        assert max(row["amount"] for row in output.rows() if row["customer"] == "ann") == 40
    """
    graph = pipeline.graph() if isinstance(pipeline, Pipeline) else pipeline
    crashes = [crash_after_checkpoints] if isinstance(crash_after_checkpoints, int) else list(crash_after_checkpoints)
    local = _Local(
        graph,
        plan(graph, parallelism, workers),
        SupervisorSettings(
            policy=policy or Policy(interval_ms=10, backoff_ms=5, alignment_timeout_ms=100),
            restart=RestartPolicy(restarts + len(crashes), delay_ms=1, delay_ms_max=50, repeats_max=None),
            worker_silence_ms=_NEVER_SILENT_MS,
        ),
        replace(worker_settings or WorkerSettings(driver_silence_ms=_NEVER_SILENT_MS), time_zone=time_zone),
        _opened(store),
        sorted(crashes),
        schedule or _AsItComes(),
    )
    return local.run(until, duration_s("timeout", timeout))


def collect(
    stream: Stream, *, by: str | None = None, parallelism: int = 1, timeout: Duration = "1 min"
) -> list[dict[str, Any]]:
    """Run what a stream of a bounded pipeline stands on, and return its records, sorted by the column `by` if given.

    Example:

        >>> from penstock import Pipeline
        >>> numbers = Pipeline("numbers").source(ListSource([{"n": 1}, {"n": 2}]))
        >>> collect(numbers.map(lambda row: {"n": 10 * row["n"]}, format="rows"))
        [{'n': 10}, {'n': 20}]

    Other sinks of the pipeline are left out, and the pipeline stays as it is. The trap: nothing is known about the
    order of records of different keys, or from different subtasks.
    """
    output = CollectSink()
    part = stream.pipeline._only(stream._ports)
    Stream(part, stream._ports).sink(output, name="collected")
    run(part.graph(), parallelism=parallelism, timeout=timeout)
    rows = output.rows()
    return rows if by is None else sorted(rows, key=lambda row: (row[by] is not None, row[by]))


def _opened(store: Store | str | os.PathLike[str] | None) -> Store:
    if store is None:
        return MemoryStore()
    return open_store(store) if isinstance(store, str | os.PathLike) else store


class _AsItComes(Schedule):
    """Real time; everybody has a turn, one after the other, and takes all that there is."""

    def __init__(self) -> None:
        super().__init__(0)
        clock = RealClock()
        self.now_ms, self.now_us = clock.now_ms, clock.now_us  # type: ignore[method-assign]
        self.own_us, self.wall_ms = clock.own_us, clock.wall_ms  # type: ignore[method-assign]

    def turns(self, actors: Sequence[Callable[[], bool]]) -> Sequence[Callable[[], bool]]:
        return actors

    def frames_of(self, waiting: int) -> int:
        return waiting

    def background_of(self, waiting: int) -> int | None:
        return 0

    def sleep(self, ms: int) -> None:
        time.sleep(ms / 1000)


class _Background:
    """Does its work when everybody else has had a turn, so that state may have changed by then."""

    def __init__(self, schedule: Schedule, post: Callable[[Callable[[], None]], None]) -> None:
        self._schedule = schedule
        self._post = post
        self._waiting: list[Callable[[], None]] = []

    def submit(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        def do() -> None:
            outcome = outcome_of(work)
            self._post(lambda: done(outcome))

        self._waiting.append(do)

    def work(self) -> bool:
        if not self._waiting:
            return False
        chosen = self._schedule.background_of(len(self._waiting))
        if chosen is not None:
            self._waiting.pop(chosen)()
        return True


class _Seat:
    """A worker with its inbox."""

    def __init__(self, schedule: Schedule) -> None:
        self.inbox: deque[Frame | Callable[[], None]] = deque()
        self.background = _Background(schedule, self.inbox.append)
        self.worker: Worker
        self._schedule = schedule

    def turn(self) -> bool:
        moved = self.deliver(self._schedule.frames_of(len(self.inbox)))
        self.worker.fire_timers()
        moved = self.worker.work() or moved
        return self.background.work() or moved

    def deliver(self, count: int) -> bool:
        for _ in range(count):
            message = self.inbox.popleft()
            message() if callable(message) else self.worker.deliver(message)
        return count > 0


class _Local:
    """The driver and its workers; implements the worker group's and the transport's port."""

    def __init__(
        self,
        graph: Graph,
        physical: PhysicalPlan,
        settings: SupervisorSettings,
        worker_settings: WorkerSettings,
        store: Store,
        crashes: list[int],
        schedule: Schedule,
    ) -> None:
        self.schedule = schedule
        self.inbox: deque[Frame | Callable[[], None]] = deque()
        self.background = _Background(schedule, self.inbox.append)
        self.seats: dict[WorkerId, _Seat] = {}
        self.generation = Generation(0)
        self.result = Result(store)
        self._worker_settings = worker_settings
        self._crashes = crashes
        self._completed: set[CheckpointId] = set()
        self._to_close: list[Worker] = []
        self._workers: list[Worker] = []
        self._is_draining = False
        committers: dict[OperatorName, Committer] = {}
        for node in graph.nodes:
            if node.source is not None:
                node.source.on_start()
            committer = node.sink.committer() if node.sink is not None else None
            if committer is not None:
                committers[node.name] = committer
        self.supervisor = Supervisor(physical, settings, committers, self, schedule, self, self.background, store)

    # --- ports ---

    def send(self, to: WorkerId, frame: Frame) -> None:
        if to == COORDINATOR:
            self.inbox.append(frame)
        elif to in self.seats:
            self.seats[to].inbox.append(frame)

    def launch(
        self, generation: Generation, plan: PhysicalPlan, manifest: Manifest | None, reservation: Reservation
    ) -> None:
        self.generation = generation
        self.seats = {WorkerId(number): _Seat(self.schedule) for number in range(plan.workers)}
        for number, seat in self.seats.items():
            seat.worker = Worker(
                number,
                plan,
                generation,
                self._worker_settings,
                clock=self.schedule,
                transport=self,
                background=seat.background,
                store=self.result.store,
                manifest=manifest,
            )
        self._workers = [seat.worker for seat in self.seats.values()]
        for worker in self._workers:
            worker.start()

    def cancel(self, generation: Generation) -> None:
        for seat in self.seats.values():
            # What the driver said before it ended the attempt is heard, as on Spark: the last checkpoint is durable.
            seat.deliver(len(seat.inbox))
            seat.worker.stop()
        self.seats = {}

    # --- the loop ---

    def run(self, until: Callable[[], bool] | None, seconds: float) -> Result:
        deadline = time.monotonic() + seconds
        self.supervisor.start()
        try:
            while not self.supervisor.has_ended:
                moved = False
                for turn in self.schedule.turns([self._driver_turn, *(seat.turn for seat in self.seats.values())]):
                    moved = turn() or moved
                self._count_and_crash()
                if until is not None and until():
                    self._drain()
                if time.monotonic() > deadline:
                    raise TimeoutError(self._where(seconds))
                if not moved:
                    self._sleep()
        finally:
            self.supervisor.stop()
            for worker in self._to_close:
                worker.stop()
        self.result.restarts = self.supervisor.restarts
        if self.supervisor.phase is Phase.FAILED:
            # First: workers of an attempt that has failed may tell of numbers that nobody has been told the names of.
            self._raise()
        self._look_at_metrics()
        return self.result

    def _look_at_metrics(self) -> None:
        seen = self.supervisor.observations
        for worker in self._workers:
            # A run may be over before the workers have given a second sign of life.
            seen.heard(worker.heartbeat())
        totals = seen.totals
        self.result.rows_in, self.result.rows_out = totals.rows_in, totals.rows_out
        self.result.rows_late, self.result.rows_ahead = totals.late, totals.ahead
        self.result.rows_skipped, self.result.files_skipped = totals.skipped, totals.files_skipped
        self.result.dead_letters = totals.dead_letters
        self.result.metrics = seen.metrics.sample(job_samples(self.supervisor))
        self.result.progress = seen.recent

    def _driver_turn(self) -> bool:
        count = self.schedule.frames_of(len(self.inbox))
        for _ in range(count):
            message = self.inbox.popleft()
            if callable(message):
                message()
                continue
            if isinstance(message, FailedFrame) and message.worker in self.seats:
                failure = self.seats[message.worker].worker.failure
                if failure is not None and message.generation == self.generation:
                    self.result.failures.append(failure)
            self.supervisor.deliver(message)
        self.supervisor.timers.fire()
        return self.background.work() or count > 0

    def _count_and_crash(self) -> None:
        coordinator = self.supervisor.coordinator
        if coordinator is None:
            return
        newest = coordinator.state.newest
        if newest > coordinator.state.restored and newest not in self._completed:
            self._completed.add(newest)
            self.result.checkpoints += 1
        if self._crashes and self.result.checkpoints >= self._crashes[0] and self.seats:
            self._crashes.pop(0)
            self._kill()

    def _kill(self) -> None:
        """Nothing of the workers happens any more; what they have staged lies where it is."""
        for seat in self.seats.values():
            self._to_close.append(seat.worker)
            for subtask in seat.worker.subtasks.values():
                if subtask.chain.source is not None:
                    subtask.chain.source.close()
        self.seats = {}
        error = PenstockError("all workers were killed, as planned")
        self.result.failures.append(error)
        self.supervisor.on_workers_lost(self.generation, error)

    def _drain(self) -> None:
        def answered(result: RequestResult) -> None:
            self._is_draining = False

        if not self._is_draining and self.supervisor.coordinator is not None:
            self._is_draining = True
            self.supervisor.request(RequestKind.DRAIN, answered)

    def _sleep(self) -> None:
        timers = [self.supervisor.timers.next_at_ms, *(seat.worker.next_timer_at_ms for seat in self.seats.values())]
        soonest = min((at_ms for at_ms in timers if at_ms is not None), default=self.schedule.now_ms() + _SLEEP_MS_MAX)
        self.schedule.sleep(max(0, min(soonest - self.schedule.now_ms(), _SLEEP_MS_MAX)))

    def _where(self, seconds: float) -> str:
        return (
            f"the pipeline has not come to its end within {seconds:g} s: it is {self.supervisor.phase.value}, with "
            f"{self.result.checkpoints} checkpoints and {self.supervisor.restarts} restarts. "
            f"Its last error: {self.supervisor.error}. An unbounded pipeline needs until=…"
        )

    def _raise(self) -> None:
        error = self.supervisor.error
        assert error is not None
        failures = self.result.failures
        if failures and str(failures[-1]) in str(error):
            # The worker is in this process, so its own exception is at hand, with all that it carries.
            raise failures[-1]
        raise error
