"""Records that are left out by design: too late for their windows, or skipped because they cannot be read.

They are never left out in silence: each kind is warned of at most once a minute, and once more at the end.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence

from penstock.ids import OperatorName
from penstock.mailbox.ports import Clock
from penstock.metrics.received import ReceivedMetrics
from penstock.metrics.standard import FILES_SKIPPED, LATE, RECORDS_IN, SKIPPED

_log = logging.getLogger("penstock")

_PAUSE_MS = 60_000


class LeftOut(ABC):
    """Warns of one kind of records that were left out."""

    def __init__(self, pipeline: str, clock: Clock, metrics: ReceivedMetrics) -> None:
        self._pipeline = pipeline
        self._clock = clock
        self._metrics = metrics
        self._warned_at_ms: int | None = None
        self._told = 0

    @abstractmethod
    def count(self) -> int:
        """Number of records that were left out, over all restarts."""

    @abstractmethod
    def text(self) -> str:
        """A sentence about them, with the way out."""

    def begin_attempt(self) -> None:
        """The pipeline goes on from a checkpoint: those that the checkpoint counts were told of."""
        self._told = self.count()

    def look(self) -> None:
        """Warn, if there are more than were told of, and the last warning is long enough ago."""
        now_ms = self._clock.now_ms()
        if self._warned_at_ms is None or now_ms - self._warned_at_ms >= _PAUSE_MS:
            self._warn(now_ms)

    def end(self) -> None:
        """The pipeline has ended: the last word is not held back."""
        self._warn(self._clock.now_ms())

    def _warn(self, now_ms: int) -> None:
        count = self.count()
        if count > self._told:
            self._warned_at_ms, self._told = now_ms, count
            _log.warning("pipeline %s: %s", self._pipeline, self.text())


class LateRows(LeftOut):
    """Records that windows have dropped as late."""

    def __init__(self, pipeline: str, clock: Clock, metrics: ReceivedMetrics, sources: Sequence[OperatorName]) -> None:
        super().__init__(pipeline, clock, metrics)
        self._sources = sources

    def count(self) -> int:
        return self._metrics.total(LATE)

    def text(self) -> str:
        late, read = self.count(), self._metrics.total(RECORDS_IN, self._sources)
        return (
            f"{late} of {read} records ({100 * late / max(read, late):.2g} %) arrived after their windows had been "
            f"emitted and were dropped. Allow a longer delay in with_watermark, or call with_watermark directly after "
            f"the source"
        )


class SkippedInput(LeftOut):
    """Records and files that sources have skipped."""

    first = ""
    """The first of them, with its place and the reason."""

    def count(self) -> int:
        return self._metrics.total(SKIPPED) + self._metrics.total(FILES_SKIPPED)

    def text(self) -> str:
        rows, files = self._metrics.total(SKIPPED), self._metrics.total(FILES_SKIPPED)
        counts = [f"{count} {what}{'s' * (count > 1)}" for count, what in ((rows, "record"), (files, "file")) if count]
        were = "was" if rows + files == 1 else "were"
        return (
            f"{' and '.join(counts)} could not be read and {were} skipped. The first one: {self.first}. "
            f'To keep such input, set on_error="dead_letter" (FileSource, KafkaSource) and give dead_letters() a sink'
        )
