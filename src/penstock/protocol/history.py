"""What became, or becomes, of each attempt at a checkpoint, with the figures that users look for.

A record holds figures, never the reports themselves: those may carry state. Sums are over bytes; of times the longest
counts, because subtasks work side by side.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.ids import CheckpointId, SubtaskId
from penstock.protocol.barrier import BarrierFlag
from penstock.protocol.declines import DeclineReason
from penstock.protocol.manifest import CheckpointStats, SnapshotKind, SubtaskReport


class Status(enum.Enum):
    IN_PROGRESS = "in progress"
    """Triggered, and not ended: see the detail for what it waits for."""
    COMPLETED = "completed"
    DECLINED = "declined"
    """By a subtask, by expiry, by a failed write or by the user: see the reason."""


@dataclass(frozen=True, slots=True)
class SubtaskStats:
    """One subtask's share of an attempt."""

    subtask: SubtaskId
    cut: SnapshotKind
    figures: CheckpointStats


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """One attempt. `subtasks` are those that have acknowledged."""

    checkpoint: CheckpointId
    flags: BarrierFlag
    status: Status
    triggered_at_ms: int
    """In milliseconds since 1970, where a job shows it to its user; inside, by the monotonic clock of the driver."""
    ended_at_ms: int
    """Likewise; now, while the attempt is in progress."""
    subtasks: tuple[SubtaskStats, ...] = ()
    reason: DeclineReason | None = None
    detail: str = ""

    @property
    def is_completed(self) -> bool:
        """Whether it is durable: neither in progress nor declined."""
        return self.status is Status.COMPLETED

    @property
    def duration_ms(self) -> int:
        """End to end: from the trigger until the manifest was durable, or the attempt was given up, or until now."""
        return self.ended_at_ms - self.triggered_at_ms

    @property
    def start_delay_ms(self) -> int:
        return self._longest(lambda figures: figures.start_delay_ms)

    @property
    def alignment_ms(self) -> int:
        return self._longest(lambda figures: figures.alignment_ms)

    @property
    def synchronous_ms(self) -> int:
        return self._longest(lambda figures: figures.synchronous_ms)

    @property
    def asynchronous_ms(self) -> int:
        return self._longest(lambda figures: figures.asynchronous_ms)

    @property
    def state_bytes(self) -> int:
        return sum(each.figures.state_bytes for each in self.subtasks)

    @property
    def inflight_bytes(self) -> int:
        return sum(each.figures.inflight_bytes for each in self.subtasks)

    @property
    def is_unaligned(self) -> bool:
        """Whether any subtask cut its input unaligned, for whatever cause."""
        return any(each.cut is not SnapshotKind.ALIGNED for each in self.subtasks)

    def _longest(self, time_ms: Callable[[CheckpointStats], int]) -> int:
        return max((time_ms(each.figures) for each in self.subtasks), default=0)


def stats_of(reports: tuple[SubtaskReport, ...]) -> tuple[SubtaskStats, ...]:
    """The figures of the reports, in the order of the subtasks."""
    figures = (SubtaskStats(report.subtask, report.cut, report.figures) for report in reports)
    return tuple(sorted(figures, key=lambda each: each.subtask))


def ends_with_savepoint(records: Sequence[CheckpointRecord]) -> bool:
    """Whether the last checkpoint is the savepoint of a stop; without one, a drain is the end of all input."""
    last = next((record for record in reversed(records) if record.is_completed), None)
    return last is not None and BarrierFlag.DRAIN in last.flags and BarrierFlag.SAVEPOINT in last.flags
