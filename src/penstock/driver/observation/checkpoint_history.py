"""The checkpoints of a job, for those who look at it: many more than the coordinator needs, and no more than a bound.

Figures of single subtasks are kept of the newest checkpoints only: with many subtasks they are what takes memory.
Written by the driver's mailbox, read from any thread. Nothing here decides anything.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.ids import CheckpointId
from penstock.protocol.barrier import BarrierFlag
from penstock.protocol.history import CheckpointRecord, SubtaskStats

CHECKPOINTS_MAX = 10_000
SUBTASKS_MAX = 50_000
"""Figures of single subtasks that are kept: of all checkpoints together."""

MANIFEST, COMMIT = "manifest", "commit"
"""The parts of a checkpoint that the driver does itself."""


@dataclass(frozen=True, slots=True)
class EndedCheckpoint:
    """A checkpoint that has completed or was declined. Times are in milliseconds since 1970."""

    checkpoint: CheckpointId
    is_completed: bool
    is_savepoint: bool
    is_unaligned: bool
    triggered_at_ms: int
    duration_ms: int
    state_bytes: int
    inflight_bytes: int
    acknowledged: int
    start_delay_ms: int | None
    """None, as the next three, if no subtask has acknowledged."""
    alignment_ms: int | None
    synchronous_ms: int | None
    asynchronous_ms: int | None
    reason: str | None
    """Name of the reason for which it was declined."""
    detail: str
    manifest_ms: int | None = None
    """Until the manifest was durable; None if it was never asked for."""
    commit_ms: int | None = None
    """Until its output was published; None while it is not."""


def ended_checkpoint(record: CheckpointRecord) -> EndedCheckpoint:
    """The figures of a record, without its subtasks."""
    heard = bool(record.subtasks)
    return EndedCheckpoint(
        record.checkpoint,
        record.is_completed,
        bool(record.flags & BarrierFlag.SAVEPOINT),
        record.is_unaligned,
        record.triggered_at_ms,
        record.duration_ms,
        record.state_bytes,
        record.inflight_bytes,
        len(record.subtasks),
        record.start_delay_ms if heard else None,
        record.alignment_ms if heard else None,
        record.synchronous_ms if heard else None,
        record.asynchronous_ms if heard else None,
        None if record.reason is None else record.reason.name,
        record.detail,
    )


class CheckpointHistory:
    """The last checkpoints of all attempts of a job."""

    def __init__(self, checkpoints_max: int = CHECKPOINTS_MAX, subtasks_max: int = SUBTASKS_MAX) -> None:
        self._checkpoints_max = checkpoints_max
        self._subtasks_max = subtasks_max
        self._ended: dict[CheckpointId, EndedCheckpoint] = {}
        self._subtasks: dict[CheckpointId, tuple[SubtaskStats, ...]] = {}
        self._subtasks_kept = 0
        self._manifest_ms: tuple[CheckpointId, int] | None = None
        """Of the checkpoint whose manifest was written last: its end is told right after that."""

    def took(self, checkpoint: CheckpointId, part: str, ms: int) -> None:
        """The driver has done its part of a checkpoint."""
        known = self._ended.get(checkpoint)
        if part == MANIFEST:
            self._manifest_ms = checkpoint, ms
        elif known is not None:
            self._ended[checkpoint] = replace(known, commit_ms=ms)

    def ended(self, record: CheckpointRecord) -> None:
        """A checkpoint has ended; `record` has the times that people know."""
        written = self._manifest_ms
        figures = ended_checkpoint(record)
        if written is not None and written[0] == record.checkpoint:
            figures = replace(figures, manifest_ms=written[1])
        self._ended[record.checkpoint] = figures
        self._subtasks[record.checkpoint] = record.subtasks
        self._subtasks_kept += len(record.subtasks)
        while len(self._ended) > self._checkpoints_max:
            del self._ended[next(iter(self._ended))]
        # The newest one is kept, however large it is.
        while len(self._subtasks) > 1 and (
            self._subtasks_kept > self._subtasks_max or len(self._subtasks) > self._checkpoints_max
        ):
            self._subtasks_kept -= len(self._subtasks.pop(next(iter(self._subtasks))))

    def newest_first(self) -> list[EndedCheckpoint]:
        return list(self._ended.values())[::-1]

    def get(self, checkpoint: CheckpointId) -> EndedCheckpoint | None:
        return self._ended.get(checkpoint)

    def subtasks_of(self, checkpoint: CheckpointId) -> tuple[SubtaskStats, ...]:
        """Figures of its subtasks; empty if none has acknowledged, or if they are not kept any more."""
        return self._subtasks.get(checkpoint, ())
