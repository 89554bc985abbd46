"""Views of a pipeline that runs in this process, made from its readings and from what the driver has noted."""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TypeVar

import pyarrow as pa

from penstock.checkpoints import Checkpoint, CheckpointDirectory
from penstock.dashboard.sights import readings as names
from penstock.dashboard.sights import states
from penstock.dashboard.sights.checkpoint_views import detail_of, ended_view, under_way_view
from penstock.dashboard.sights.graphs import graph_view, mean, total_rate, vertex_detail
from penstock.dashboard.sights.latency import Latencies, quantile_ms
from penstock.dashboard.sights.readings import Reading, Readings
from penstock.dashboard.sights.series import Series
from penstock.dashboard.sights.sight import Sight
from penstock.dashboard.sights.watermarks import watermarks_view
from penstock.dashboard.views import (
    CheckpointCounts,
    CheckpointDetail,
    CheckpointsView,
    CheckpointView,
    CodeLine,
    ConfigurationView,
    FailureView,
    GenerationView,
    GraphView,
    HistoryView,
    LatenciesView,
    LogLineView,
    LogsView,
    Overview,
    Owner,
    PhaseDuration,
    ProfileView,
    RecoveriesView,
    SparkInfo,
    StackView,
    StateRows,
    StateView,
    Versions,
    VertexDetail,
    Warned,
    WatermarksView,
    WorkersView,
    WorkerView,
)
from penstock.driver.attempts.phases import Phase
from penstock.driver.control import Command
from penstock.driver.observation.job_metrics import job_samples
from penstock.driver.observation.timeline import AttemptRecord
from penstock.errors import PenstockError
from penstock.graph.explanation import explained
from penstock.ids import CheckpointId, WorkerId
from penstock.mailbox.notes import LogLine
from penstock.metrics.samples import Metrics
from penstock.metrics.standard import LATENCY
from penstock.protocol.history import CheckpointRecord
from penstock.spark.watched import Watched
from penstock.version import __version__

T = TypeVar("T")

_WARNINGS_SHOWN = 20
OWNERS: tuple[Owner, ...] = ("user", "library", "penstock")
"""By `user_code.strangeness`."""
_PROFILE_GRACE_S = 10.0
"""A worker whose mailbox is in a long call hears of a profile only after it."""


class LiveSight(Sight):
    """A pipeline of this process."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self.pipeline = watched.plan.name
        self._readings = Readings(watched)
        self._started_at_ms = watched.clock.wall_ms()
        self._series = Series()
        self._latencies = Latencies()
        self._lock = threading.Lock()
        self._cached: dict[str, tuple[Reading, object]] = {}
        self._newest_state: tuple[int | None, Checkpoint | None] = (None, None)
        self._state_view: tuple[Checkpoint | None, StateView | None] = (None, None)
        """Made once for each checkpoint, because it reads the state."""
        self._num_subtasks = len(watched.plan.subtasks)

    @property
    def moment(self) -> int:
        return self._readings.newest().at_ms

    @property
    def readings_made(self) -> int:
        """For tests: how often counters were read."""
        return self._readings.made

    def _once(self, name: str, make: Callable[[Reading], T]) -> T:
        """A view is made once of each reading, whoever asks for it."""
        reading = self._readings.newest()
        with self._lock:
            cached = self._cached.get(name)
            if cached is None or cached[0] is not reading:
                cached = self._cached[name] = reading, make(reading)
        return cached[1]  # type: ignore[return-value]

    # --- at a glance ---

    def overview(self) -> Overview:
        return self._once("overview", self._overview)

    def _overview(self, reading: Reading) -> Overview:
        watched, supervisor = self._watched, self._watched.supervisor
        seen, progress = supervisor.observations, supervisor.progress
        totals = seen.totals
        newest = next((each for each in seen.checkpoints.newest_first() if each.is_completed), None)
        latest = next(iter(seen.timeline.newest_first()), None)
        return Overview(
            pipeline=self.pipeline,
            phase=progress.phase.value,
            phase_text=str(progress),
            is_live=True,
            started_at_ms=self._started_at_ms,
            ended_at_ms=latest.ended_at_ms if latest is not None and supervisor.has_ended else None,
            generation=reading.generation,
            restarts=supervisor.restarts,
            rows_in=totals.rows_in,
            rows_out=totals.rows_out,
            rows_in_per_second=self._rate(reading, watched.plan.sources),
            rows_out_per_second=self._rate(reading, watched.plan.sinks),
            rows_late=totals.late,
            checkpoint_interval_ms=watched.checkpoint_interval_ms,
            last_checkpoint=None if newest is None else newest.checkpoint,
            last_checkpoint_at_ms=None if newest is None else newest.triggered_at_ms + newest.duration_ms,
            failure=str(supervisor.error) if progress.phase is Phase.FAILED else None,
            warnings=tuple(Warned(at_ms=line.at_ms, text=line.text) for line in seen.log.lines[-_WARNINGS_SHOWN:]),
            spark=SparkInfo(app_id=watched.spark_app_id, ui_url=watched.spark_ui_url),
            versions=versions(watched.spark_version),
        )

    def _rate(self, reading: Reading, operators: tuple[str, ...]) -> float | None:
        """Sources and sinks alike count what they have taken."""
        places = [place for place in reading.of(names.ROWS_IN) if place[0] in operators]
        return total_rate([reading.per_second(names.ROWS_IN, place) for place in places])

    def graph(self) -> GraphView:
        watched = self._watched
        return self._once("graph", lambda reading: graph_view(watched.plan, reading, watched.channel_bytes_max))

    def vertex(self, name: str) -> VertexDetail | None:
        watched = self._watched
        return vertex_detail(watched.plan, name, self._readings.newest(), watched.channel_bytes_max)

    def watermarks(self) -> WatermarksView:
        notes = list(self._watched.supervisor.observations.notes.values())
        splits = [split for note in notes for split in note.splits]
        return self._once("watermarks", lambda reading: watermarks_view(self._watched.plan, reading, splits))

    # --- checkpoints and state ---

    def checkpoints(self, limit: int, before: int | None) -> CheckpointsView:
        seen = self._watched.supervisor.observations
        under_way = [under_way_view(each, self._num_subtasks) for each in self._under_way()]
        ended = seen.checkpoints.newest_first()
        if before is not None:
            under_way = [each for each in under_way if each.id < before]
            ended = [each for each in ended if each.checkpoint < before]
        shown = [*under_way, *(ended_view(each, self._num_subtasks) for each in ended[:limit])]
        return CheckpointsView(
            counts=CheckpointCounts(
                completed=seen.completed,
                failed=seen.declined,
                in_progress=len(self._under_way()),
                restored=seen.timeline.restored,
            ),
            history=tuple(shown[:limit]),
            has_more=len(under_way) + len(ended) > limit,
        )

    def _under_way(self) -> list[CheckpointRecord]:
        """Those in progress, the newest first."""
        checkpoints = self._watched.supervisor.checkpoints_under_way
        return sorted(checkpoints, key=lambda record: -record.checkpoint)

    def checkpoint(self, checkpoint: int) -> CheckpointDetail | None:
        wanted, seen = CheckpointId(checkpoint), self._watched.supervisor.observations.checkpoints
        for record in self._under_way():
            if record.checkpoint == wanted:
                return detail_of(under_way_view(record, self._num_subtasks), record.subtasks, self._watched.plan)
        found = seen.get(wanted)
        if found is None:
            return None
        view: CheckpointView = ended_view(found, self._num_subtasks)
        return detail_of(view, seen.subtasks_of(wanted), self._watched.plan)

    def _newest_checkpoint(self) -> Checkpoint | None:
        """Read once for each checkpoint."""
        last = self.overview().last_checkpoint
        known, checkpoint = self._newest_state
        if checkpoint is None or known != last:
            checkpoint = states.newest(CheckpointDirectory(self._watched.store, self._watched.place))
            self._newest_state = last, checkpoint
        return checkpoint

    def state(self) -> StateView:
        checkpoint = self._newest_checkpoint()
        known, view = self._state_view
        if view is None or known is not checkpoint:
            view = states.state_view(checkpoint)
            self._state_view = checkpoint, view
        return view

    def state_rows(self, operator: str, limit: int) -> StateRows | None:
        checkpoint = self._newest_checkpoint()
        return None if checkpoint is None else states.state_rows(checkpoint, operator, limit)

    # --- over time ---

    def recoveries(self) -> RecoveriesView:
        attempts = self._watched.supervisor.observations.timeline.newest_first()
        return RecoveriesView(generations=tuple(map(generation_view, attempts)))

    def history(self, seconds: int) -> HistoryView:
        return self._series.view(seconds, self._watched.clock.wall_ms())

    def latency(self) -> LatenciesView:
        metrics = self._watched.supervisor.observations.metrics
        return self._once("latency", lambda now: self._latencies.view(now.generation, metrics.samples_of(LATENCY)))

    def sample(self) -> None:
        reading, overview, graph = self._readings.newest(), self.overview(), self.graph()
        metrics, sinks = self._watched.supervisor.observations.metrics, self._watched.plan.sinks
        latencies = self._latencies.note(reading.at_ms, reading.generation, metrics.samples_of(LATENCY))
        notes = list(self._watched.supervisor.observations.notes.values())
        newest = next(iter(self._watched.supervisor.observations.checkpoints.newest_first()), None)
        lags = [each.watermark_lag_ms for each in graph.vertices if each.watermark_lag_ms is not None]
        sizes = [each.state_bytes for each in graph.vertices if each.state_bytes is not None]
        memory = sum(note.memory_bytes for note in notes)
        self._series.add(
            reading.wall_ms,
            {
                "rows_in_per_second": overview.rows_in_per_second,
                "rows_out_per_second": overview.rows_out_per_second,
                "busy": mean([each.busy for each in graph.vertices]),
                "backpressured": mean([each.backpressured for each in graph.vertices]),
                "worker_memory_bytes": memory or None,
                "state_bytes": sum(sizes) if sizes else None,
                "checkpoint_duration": None if newest is None else newest.duration_ms,
                "watermark_lag_ms": max(lags, default=None),
                "latency_p50_ms": quantile_ms(latencies, sinks, 0.5),
                "latency_p99_ms": quantile_ms(latencies, sinks, 0.99),
            },
        )

    # --- the rest ---

    def workers(self) -> WorkersView:
        seen = self._watched.supervisor.observations
        notes, found = dict(seen.notes), []
        for worker, hello in sorted(seen.workers.items()):
            memory = notes[worker].memory_bytes if worker in notes else 0
            # Its own name comes first, then what tells containers of one host apart.
            host, process = hello.endpoint.host.partition("/")[0], hello.process
            found.append(WorkerView(index=worker, host=host, pid=process, memory_bytes=memory or None, slots=1))
        return WorkersView(workers=tuple(found))

    def configuration(self) -> ConfigurationView:
        plan = self._watched.plan
        return ConfigurationView(settings=dict(self._watched.settings), plan=explained(plan, plan.parallelism))

    def logs(self, limit: int) -> LogsView:
        log = self._watched.supervisor.observations.log
        return LogsView(lines=tuple(map(log_line_view, log.lines[-limit:])), dropped=log.dropped)

    def metrics(self) -> Metrics:
        supervisor = self._watched.supervisor
        return self._once("metrics", lambda _: supervisor.observations.metrics.sample(job_samples(supervisor)))

    def profile(self, worker: int, seconds: float) -> ProfileView:
        number, profiles = WorkerId(worker), self._watched.supervisor.observations.profiles
        answer = self._watched.profile(number, seconds)
        try:
            found = answer.result(seconds + _PROFILE_GRACE_S)
        except FutureTimeout:
            profiles.give_up(number)
            raise PenstockError(
                f"worker {worker} did not answer: its mailbox thread is in one long call, which the log names"
            ) from None
        stacks = tuple(
            StackView(
                operator=stack.operator,
                frames=tuple(
                    CodeLine(function=name, file=file, line=line, owner=OWNERS[whose])
                    for name, file, line, whose in stack.calls
                ),
                samples=stack.samples,
            )
            for stack in found.stacks
        )
        # A worker keeps a bounded number of different stacks, and sends the most frequent ones.
        left_out = max(0, found.samples - sum(stack.samples for stack in found.stacks))
        return ProfileView(samples=found.samples, seconds=found.seconds, stacks=stacks, left_out=left_out)

    def order(self, command: Command) -> None:
        if self._watched.supervisor.has_ended:
            raise PenstockError(f"pipeline '{self.pipeline}' has ended: there is nothing to {command.value}")
        self._watched.order(command)


def versions(spark: str | None = None) -> Versions:
    return Versions(penstock=__version__, python=platform.python_version(), spark=spark, pyarrow=pa.__version__)


def log_line_view(line: LogLine) -> LogLineView:
    return LogLineView(at_ms=line.at_ms, level=line.level, worker=line.worker, operator=line.operator, text=line.text)


def generation_view(attempt: AttemptRecord) -> GenerationView:
    failure = attempt.failure
    return GenerationView(
        generation=attempt.generation,
        started_at_ms=attempt.started_at_ms,
        ended_at_ms=attempt.ended_at_ms,
        restored_checkpoint=attempt.restored,
        phases=tuple(PhaseDuration(name=phase.value, ms=ms) for phase, ms in attempt.phases),
        failure=None
        if failure is None
        else FailureView(
            summary=failure.summary,
            error=failure.error,
            operator=failure.operator,
            subtask=failure.subtask,
            worker=failure.worker,
        ),
    )
