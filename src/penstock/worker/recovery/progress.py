"""How far a subtask has come with a recovery: when its state was back, and when its recovered channels were drained."""

from __future__ import annotations

from penstock.mailbox.ports import Clock
from penstock.mailbox.recovery_stats import RecoveryStats
from penstock.worker.recovery.channel_reader import RecoveredChannelReader
from penstock.worker.recovery.restore import Reading


class RecoveryProgress:
    """Notes the milestones, in milliseconds since the subtask was made."""

    def __init__(self, clock: Clock, recovered_channels: RecoveredChannelReader) -> None:
        self._clock = clock
        self._channels = recovered_channels
        self.reading = Reading()
        self._began_ms = clock.now_ms()
        self._read_ms: int | None = None
        self._first_record_ms: int | None = None
        self._drained_ms: int | None = None

    def _elapsed_ms(self) -> int:
        return self._clock.now_ms() - self._began_ms

    def note_read(self) -> None:
        """The state is back."""
        self._read_ms = self._elapsed_ms()

    def note_record(self) -> None:
        """A record is about to be processed: only the first one counts."""
        if self._first_record_ms is None:
            self._first_record_ms = self._elapsed_ms()

    def note_if_drained(self) -> bool:
        """Whether all recovered records are done now, and were not before."""
        if self._drained_ms is not None or not self._channels.is_done:
            return False
        self._drained_ms = self._elapsed_ms()
        return True

    def stats(self) -> RecoveryStats:
        return RecoveryStats(
            self._read_ms,
            self._channels.filter_us // 1000,
            self._first_record_ms,
            self._drained_ms,
            self._channels.bytes_left,
            self.reading.bytes_total,
            self.reading.bytes_read,
        )
