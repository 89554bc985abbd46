"""Waiting for records: with `batch_time`, those of a function wait for others, until there are `batch_rows` of them.

They wait in their channels, where a checkpoint finds them as data in flight (I1). Waiting ends early where nothing more
can come to them: a barrier, a watermark or an end is behind them, or their sender has used most of its credit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.exchange.input_channel import InputChannel
from penstock.exchange.items import BatchItem
from penstock.operators.contract import BatchLimits
from penstock.worker.services import Services


class Gathering:
    """Decides whether the records of one subtask wait. `to_read` puts a channel on the list of those to read."""

    def __init__(
        self,
        limits: BatchLimits,
        inputs: Iterable[InputChannel],
        services: Services,
        to_read: Callable[[InputChannel], None],
    ) -> None:
        self._limits = limits
        self._inputs = list(inputs)
        self._services = services
        self._to_read = to_read
        self._looks_at_us: int | None = None
        """When the next look at the channels is due."""

    def waits(self, reading: InputChannel) -> bool:
        """Whether the records in front of a channel wait for more; if not, those of the others do not wait either."""
        front = reading.queue[0] if reading.queue else None
        if not self._limits.time_ms or reading.recovered is not None or not isinstance(front, BatchItem):
            return False
        now_us, until_us = self._services.clock.now_us(), front.since_us + 1000 * self._limits.time_ms
        if until_us > now_us and not self._is_full(reading):
            self._look_again(now_us, until_us)
            return True
        for channel in self._inputs:
            self._to_read(channel)
        return False

    def _is_full(self, reading: InputChannel) -> bool:
        """Whether nothing is gained by waiting."""
        if any(not isinstance(item, BatchItem) for item in reading.queue):
            return True
        waiting = [c for c in self._inputs if c.channel.edge.input == reading.channel.edge.input and c.is_readable]
        if any(2 * channel.queued_bytes >= channel.credit.credit_limit_bytes for channel in waiting):
            return True
        if self._limits.rows is None:
            return False
        batches = (item.batch for channel in waiting for item in channel.queue if isinstance(item, BatchItem))
        rows: int = sum(batch.num_rows for batch in batches)
        return rows >= self._limits.rows

    def _look_again(self, now_us: int, until_us: int) -> None:
        if self._looks_at_us is not None and now_us < self._looks_at_us <= until_us:
            return
        self._looks_at_us = until_us

        def look() -> None:
            self._looks_at_us = None
            for channel in self._inputs:
                self._to_read(channel)

        self._services.timers.after(max(1, -(-(until_us - now_us) // 1000)), look)
