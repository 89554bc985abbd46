"""Late records: dropped by design, and never in silence."""

from __future__ import annotations

import logging

from penstock.ids import WorkerId
from penstock.runtime.frames import HeartbeatFrame
from penstock.runtime.ports import Clock

_log = logging.getLogger("penstock")

_PAUSE_MS = 60_000


class LateRows:
    """Warns when windows have dropped records as late, at most once a minute, with their share."""

    def __init__(self, pipeline: str, clock: Clock) -> None:
        self._pipeline = pipeline
        self._clock = clock
        self._counts: dict[WorkerId, tuple[int, int]] = {}
        """Records read and dropped by each worker of this attempt."""
        self._warned_at_ms: int | None = None
        self._told = 0

    def begin_attempt(self) -> None:
        """Workers count from zero again."""
        self._counts = {}
        self._told = 0

    def heard(self, frame: HeartbeatFrame) -> None:
        self._counts[frame.worker] = frame.rows_in, frame.rows_late
        now_ms = self._clock.now_ms()
        if self._warned_at_ms is None or now_ms - self._warned_at_ms >= _PAUSE_MS:
            self._warn(now_ms)

    def end(self) -> None:
        """The pipeline has ended: the last word is not held back."""
        self._warn(self._clock.now_ms())

    def _warn(self, now_ms: int) -> None:
        read = sum(rows for rows, _ in self._counts.values())
        late = sum(rows for _, rows in self._counts.values())
        if late <= self._told:
            return
        self._warned_at_ms, self._told = now_ms, late
        share = f"{late} of {read} records ({100 * late / max(read, late):.2g} %)"
        _log.warning(
            "pipeline %s: %s came after their windows had been emitted, and were dropped. Allow a longer max_delay in "
            "with_event_time, or call it right behind the source",
            self._pipeline,
            share,
        )
