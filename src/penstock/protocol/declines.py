"""Why a checkpoint did not complete: a closed list, because people alert on these names.

A reason is *counted* when it says something about the health of the pipeline; only counted ones use
up the tolerable failures. An uncounted one is normal life: the checkpoint came at a bad moment.
"""

from __future__ import annotations

import enum


class DeclineReason(enum.Enum):
    """Closed: a new reason is a change of the protocol, with its own test."""

    SUBTASK_NOT_READY = "subtask not ready"
    """The subtask still restores its own state."""
    SUPERSEDED = "superseded by a newer checkpoint"
    CANCELLED = "cancelled"
    """By the user, or because the attempt ends."""
    DRAINED = "the pipeline is stopping"
    EXPIRED = "expired"
    """Not every subtask acknowledged in time."""
    CAPTURE_OVERFLOW = "in-flight data beyond the bound"
    LATE_BARRIER_TIMEOUT = "a late barrier did not arrive in time"
    SNAPSHOT_FAILED = "snapshot failed"
    """User code or an operator raised while its state was taken."""
    STORAGE_FAILED = "state could not be written"
    MANIFEST_FAILED = "manifest could not be written"

    @property
    def is_counted(self) -> bool:
        """Whether it uses up one of the tolerable failures."""
        return self not in _UNCOUNTED


_UNCOUNTED = frozenset(
    {
        DeclineReason.SUBTASK_NOT_READY,
        DeclineReason.SUPERSEDED,
        DeclineReason.CANCELLED,
        DeclineReason.DRAINED,
    }
)
