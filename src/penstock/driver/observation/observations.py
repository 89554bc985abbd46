"""What can be seen of a pipeline: its metrics, its progress, and the events that listeners hear of.

Fed by the supervisor in the driver's mailbox; read from any thread. Nothing here decides anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from penstock.driver.attempts.phases import Phase
from penstock.driver.observation.checkpoint_history import CheckpointHistory
from penstock.driver.observation.left_out import LateRows, LeftOut, SkippedInput
from penstock.driver.observation.listeners import CheckpointEnded, JobEvent, JobFinished, JobRestarted, JobStarted
from penstock.driver.observation.log_ring import LogRing
from penstock.driver.observation.profiles import Profiles
from penstock.driver.observation.progress import JobProgress, Mark, mark_of, progress_of
from penstock.driver.observation.timeline import Timeline
from penstock.graph.physical import PhysicalPlan
from penstock.ids import CheckpointId, Generation, WorkerId
from penstock.mailbox.frames import (
    AcknowledgeFrame,
    FailedFrame,
    Frame,
    HeartbeatFrame,
    HelloFrame,
    ProfiledFrame,
)
from penstock.mailbox.notes import WorkerNotes
from penstock.mailbox.ports import Clock
from penstock.mailbox.recovery_stats import RecoveryStats, combined
from penstock.metrics.received import ReceivedMetrics
from penstock.metrics.standard import AHEAD, DEAD_LETTERS, FILES_SKIPPED, IS_BACK_PRESSURED, LATE, RECORDS_IN, SKIPPED
from penstock.protocol.history import CheckpointRecord
from penstock.protocol.manifest import Manifest
from penstock.protocol.redistribution import totals_of

RECENT_MAX = 100
"""Checkpoints whose progress is kept."""


@dataclass(frozen=True, slots=True)
class RowTotals:
    """Counts over all restarts: a restart goes back to those of the checkpoint that it restores."""

    rows_in: int = 0
    rows_out: int = 0
    late: int = 0
    skipped: int = 0
    files_skipped: int = 0
    dead_letters: int = 0
    ahead: int = 0


def dated(record: CheckpointRecord, clock: Clock) -> CheckpointRecord:
    """The record with the times that people know: inside, everything goes by the driver's monotonic clock."""
    since_1970_ms = clock.wall_ms() - clock.now_ms()
    return replace(
        record,
        triggered_at_ms=record.triggered_at_ms + since_1970_ms,
        ended_at_ms=record.ended_at_ms + since_1970_ms,
    )


class Observations:
    """Metrics, progress and events of one pipeline. `tell` is called with each event, and must return at once."""

    def __init__(self, plan: PhysicalPlan, clock: Clock, tell: Callable[[JobEvent], None]) -> None:
        self._plan = plan
        self._clock = clock
        self._tell = tell
        self._sources, self._sinks = plan.sources, plan.sinks
        self.metrics = ReceivedMetrics()
        self._late = LateRows(plan.name, clock, self.metrics, self._sources)
        self._skipped = SkippedInput(plan.name, clock, self.metrics)
        self._left_out: tuple[LeftOut, ...] = self._late, self._skipped
        self._mark = Mark(clock.wall_ms(), 0, 0)
        self.completed = self.declined = 0
        """Checkpoints of this job."""
        self._recent: deque[JobProgress] = deque(maxlen=RECENT_MAX)
        self._recovery: dict[WorkerId, RecoveryStats] = {}
        self._has_started = self._has_ended = False
        self.checkpoints = CheckpointHistory()
        self.timeline = Timeline(clock)
        self.log = LogRing(plan.name)
        self.profiles = Profiles()
        self.workers: dict[WorkerId, HelloFrame] = {}
        """The workers of this attempt that have come up."""
        self.notes: dict[WorkerId, WorkerNotes] = {}
        """Of the last sign of life of each."""

    @property
    def totals(self) -> RowTotals:
        """For any thread."""
        total = self.metrics.total
        return RowTotals(
            total(RECORDS_IN, self._sources),
            total(RECORDS_IN, self._sinks),
            total(LATE),
            total(SKIPPED),
            total(FILES_SKIPPED),
            total(DEAD_LETTERS),
            total(AHEAD),
        )

    @property
    def recovery(self) -> RecoveryStats | None:
        """How far this attempt has come with what it restored; None if it began without a checkpoint."""
        return combined(list(self._recovery.values()))

    @property
    def backpressure_percent(self) -> int:
        """Share of the subtasks that a full output holds up."""
        return 100 * self.metrics.total(IS_BACK_PRESSURED) // max(1, len(self._plan.subtasks))

    @property
    def recent(self) -> tuple[JobProgress, ...]:
        """The progress at the last checkpoints, newest last. For any thread."""
        return tuple(self._recent)

    def attempt_starts(self) -> None:
        """An attempt begins: it takes over the directory."""
        self.timeline.begin()

    def in_phase(self, phase: Phase) -> None:
        """The workers of the attempt have come this far."""
        self.timeline.in_phase(phase)

    def part_done(self, checkpoint: CheckpointId, part: str, took_ms: int) -> None:
        """The driver has done its part of a checkpoint: `checkpoint_history` has the names."""
        self.checkpoints.took(checkpoint, part, took_ms)

    def begin_attempt(self, generation: Generation, manifest: Manifest | None) -> None:
        """The directory is taken over, and the workers are launched."""
        self.timeline.taken_over(generation, None if manifest is None else manifest.checkpoint)
        # Replaced as a whole: other threads read.
        self.workers, self.notes = {}, {}
        restored = {} if manifest is None else totals_of(manifest, self._plan.parallelism_of_operators)
        self.metrics.begin_attempt(restored)
        self._recovery = {}
        now_ms = self._clock.wall_ms()
        self._mark = mark_of(manifest, self._sources, now_ms)
        for left_out in self._left_out:
            left_out.begin_attempt()
        if not self._has_started:
            self._has_started = True
            checkpoint = None if manifest is None else manifest.checkpoint
            self._tell(JobStarted(self._plan.name, generation, now_ms, checkpoint))

    def heard(self, frame: Frame) -> None:
        """A frame of this attempt has come."""
        if isinstance(frame, HeartbeatFrame):
            self.metrics.heard(frame.worker, frame.metrics)
            if frame.recovery is not None:
                self._recovery[frame.worker] = frame.recovery
            self._skipped.first = self._skipped.first or frame.first_skipped
            self._take_notes(frame.worker, frame.notes)
            for left_out in self._left_out:
                left_out.look()
        elif isinstance(frame, AcknowledgeFrame):
            self.metrics.acknowledged(frame.report.subtask.index, frame.report.totals)
        elif isinstance(frame, HelloFrame):
            self.workers[frame.worker] = frame
        elif isinstance(frame, FailedFrame):
            self.timeline.blame(frame)
        elif isinstance(frame, ProfiledFrame):
            self.profiles.answered(frame)

    def _take_notes(self, worker: WorkerId, notes: WorkerNotes) -> None:
        self.notes[worker] = notes
        self.log.dropped_by(worker, notes.logs_dropped)
        for line in notes.logs:
            self.log.add(replace(line, worker=worker))

    def checkpoint_ended(self, record: CheckpointRecord, manifest: Manifest | None) -> None:
        """A checkpoint is durable, or was declined: then without a manifest."""
        progress = None
        self.completed += record.is_completed
        self.declined += not record.is_completed
        if record.is_completed and manifest is not None:
            progress = progress_of(
                manifest, record.duration_ms, self._sources, self._sinks, self._mark, self.metrics.told
            )
            self._mark = mark_of(manifest, self._sources, manifest.triggered_at_ms)
            self._recent.append(progress)
        shown = dated(record, self._clock)
        self.checkpoints.ended(shown)
        self._tell(CheckpointEnded(self._plan.name, self._clock.wall_ms(), shown, progress))

    def restarting(self, error: Exception, restarts: int, delay_ms: int) -> None:
        self._workers_gone(error)
        self._tell(JobRestarted(self._plan.name, self._clock.wall_ms(), restarts, error, delay_ms))

    def ended(self, error: Exception | None) -> None:
        """The pipeline has ended, with `error` if it has failed. The last word is not held back."""
        if self._has_ended:
            return
        self._has_ended = True
        self._workers_gone(error)
        for left_out in self._left_out:
            left_out.end()
        self._tell(JobFinished(self._plan.name, self._clock.wall_ms(), error))

    def _workers_gone(self, error: Exception | None) -> None:
        self.timeline.end(error)
        self.profiles.workers_lost()
