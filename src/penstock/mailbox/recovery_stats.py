"""How long a recovery takes: the figures that a subtask notes, and those of many put together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RecoveryStats:
    """How far a recovery has come. Times are counted from when the worker began to restore."""

    read_ms: int | None = None
    """Until the state was back; None while it is not."""
    filter_ms: int = 0
    """Spent on decoding in-flight data and on finding the rows that belong here, beside other work."""
    first_record_ms: int | None = None
    """Until the first record was processed, recovered or new."""
    drained_ms: int | None = None
    """Until the last recovered record was processed."""
    bytes_left: int = 0
    """In-flight data that are still to be read or processed."""
    state_bytes: int = 0
    """State that is to be read before the subtasks can work."""
    state_bytes_read: int = 0

    @property
    def share_read(self) -> float:
        """The share of the state that was read, from 0 to 1; 0 while it is not known how much there is."""
        if self.read_ms is not None:
            return 1.0
        return self.state_bytes_read / self.state_bytes if self.state_bytes else 0.0


def combined(parts: Iterable[RecoveryStats]) -> RecoveryStats | None:
    """Of several subtasks or workers: done when the last is done, the first record is that of the first."""
    found = list(parts)
    if not found:
        return None
    return RecoveryStats(
        _last(each.read_ms for each in found),
        max(each.filter_ms for each in found),
        min((each.first_record_ms for each in found if each.first_record_ms is not None), default=None),
        _last(each.drained_ms for each in found),
        sum(each.bytes_left for each in found),
        sum(each.state_bytes for each in found),
        sum(each.state_bytes_read for each in found),
    )


def _last(times: Iterable[int | None]) -> int | None:
    found = list(times)
    return None if None in found else max(time for time in found if time is not None)
