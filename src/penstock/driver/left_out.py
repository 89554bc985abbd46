"""Records that are left out by design: too late for their windows, or skipped because they cannot be read.

They are never left out in silence: each kind is warned of at most once a minute, and once more at the end.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Collection

from penstock.ids import WorkerId
from penstock.mailbox.frames import HeartbeatFrame
from penstock.mailbox.ports import Clock

_log = logging.getLogger("penstock")

_PAUSE_MS = 60_000


class LeftOut(ABC):
    """Warns of one kind of records that were left out."""

    def __init__(self, pipeline: str, clock: Clock) -> None:
        self._pipeline = pipeline
        self._clock = clock
        self._beats: dict[WorkerId, HeartbeatFrame] = {}
        """The last one of each worker of this attempt."""
        self._warned_at_ms: int | None = None
        self._told = 0

    @abstractmethod
    def count(self, beats: Collection[HeartbeatFrame]) -> int:
        """How many the workers have left out."""

    @abstractmethod
    def text(self, beats: Collection[HeartbeatFrame]) -> str:
        """What to say of them."""

    def begin_attempt(self) -> None:
        """Workers count from zero again."""
        self._beats = {}
        self._told = 0

    def heard(self, frame: HeartbeatFrame) -> None:
        self._beats[frame.worker] = frame
        now_ms = self._clock.now_ms()
        if self._warned_at_ms is None or now_ms - self._warned_at_ms >= _PAUSE_MS:
            self._warn(now_ms)

    def end(self) -> None:
        """The pipeline has ended: the last word is not held back."""
        self._warn(self._clock.now_ms())

    def _warn(self, now_ms: int) -> None:
        beats = self._beats.values()
        count = self.count(beats)
        if count > self._told:
            self._warned_at_ms, self._told = now_ms, count
            _log.warning("pipeline %s: %s", self._pipeline, self.text(beats))


class LateRows(LeftOut):
    """Records that windows have dropped as late."""

    def count(self, beats: Collection[HeartbeatFrame]) -> int:
        return sum(beat.rows_late for beat in beats)

    def text(self, beats: Collection[HeartbeatFrame]) -> str:
        late, read = self.count(beats), sum(beat.rows_in for beat in beats)
        return (
            f"{late} of {read} records ({100 * late / max(read, late):.2g} %) came after their windows had been "
            f"emitted, and were dropped. Allow a longer delay in with_watermark, or call it right behind the "
            f"source"
        )


class SkippedInput(LeftOut):
    """Records and files that sources have skipped."""

    def count(self, beats: Collection[HeartbeatFrame]) -> int:
        return sum(beat.rows_skipped + beat.files_skipped for beat in beats)

    def text(self, beats: Collection[HeartbeatFrame]) -> str:
        rows, files = sum(beat.rows_skipped for beat in beats), sum(beat.files_skipped for beat in beats)
        counts = [f"{count} {what}" for count, what in ((rows, "records"), (files, "files")) if count]
        example = next((beat.first_skipped for beat in beats if beat.first_skipped), "")
        return (
            f"{' and '.join(counts)} could not be read and were skipped. The first one: {example}. "
            f'To keep such input, say on_error="dead_letter" and give dead_letters() a sink'
        )
