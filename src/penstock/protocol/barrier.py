"""The checkpoint barrier: what cuts a stream into before and after a checkpoint.

A barrier carries everything that a subtask must know to take part, so that all subtasks of a
checkpoint agree: its id and generation, what kind it is, and how long alignment may take. The
coordinator makes it once; on its way only two things change: `age_ms` grows, and `UNALIGNED` is set
when it starts to overtake records.

Clocks of hosts differ, so `triggered_at_ms` is for people only. Decisions use `age_ms`, to which every
hop adds the time that the barrier spent there by that host's own clock.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from penstock.ids import NO_CHECKPOINT, CheckpointId, Generation


class BarrierFlag(enum.IntFlag):
    """What is special about a checkpoint. Combined freely, except as `Barrier` refuses."""

    NONE = 0
    # 1 is free: an earlier version set it and nobody read it.
    DRAIN = 2
    """The last barrier: sources emit nothing after it."""
    CANCEL = 4
    """Not a checkpoint but the end of one: forget what was begun for this id."""
    UNALIGNED = 8
    """Overtakes records; what it overtakes is channel state."""
    SAVEPOINT = 16
    """Aligned, never turns unaligned, and owns all its files."""


def _has_any(flags: BarrierFlag, wanted: BarrierFlag) -> bool:
    # As integers: an operation on flags makes a member of the enumeration, and this is asked all the time.
    return int.__and__(flags, wanted) != 0


@dataclass(frozen=True, slots=True)
class Barrier:
    """One checkpoint's barrier. `alignment_timeout_ms` is None where it must never turn unaligned."""

    checkpoint: CheckpointId
    generation: Generation
    triggered_at_ms: int = 0
    flags: BarrierFlag = BarrierFlag.NONE
    alignment_timeout_ms: int | None = None
    age_ms: int = 0
    completed: CheckpointId = NO_CHECKPOINT
    """The newest checkpoint that was durable at the trigger: what it holds need not be handed over again."""

    def __post_init__(self) -> None:
        if self.is_savepoint and (self.is_unaligned or self.alignment_timeout_ms is not None):
            raise ValueError(f"savepoint {self.checkpoint} must stay aligned")

    @property
    def is_drain(self) -> bool:
        return _has_any(self.flags, BarrierFlag.DRAIN)

    @property
    def is_cancel(self) -> bool:
        return _has_any(self.flags, BarrierFlag.CANCEL)

    @property
    def is_unaligned(self) -> bool:
        return _has_any(self.flags, BarrierFlag.UNALIGNED)

    @property
    def is_savepoint(self) -> bool:
        return _has_any(self.flags, BarrierFlag.SAVEPOINT)

    @property
    def remaining_ms(self) -> int | None:
        """How long this barrier may still wait for records before it overtakes them; None if it never does."""
        if self.alignment_timeout_ms is None:
            return None
        return max(0, self.alignment_timeout_ms - self.age_ms)

    def aged(self, waited_ms: int) -> Barrier:
        """The same barrier after it has waited on this host."""
        return replace(self, age_ms=self.age_ms + waited_ms) if waited_ms > 0 else self

    def overtaking(self) -> Barrier:
        """The same barrier once it has begun to overtake records."""
        return self if self.is_unaligned else replace(self, flags=self.flags | BarrierFlag.UNALIGNED)

    def cancelled(self) -> Barrier:
        """The order to forget this checkpoint."""
        return replace(self, flags=BarrierFlag.CANCEL, alignment_timeout_ms=None)
