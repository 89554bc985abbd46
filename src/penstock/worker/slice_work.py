"""The work on one slice of records, which may take several turns of the mailbox. Measured as a whole."""

from __future__ import annotations

import pyarrow as pa

from penstock.ids import ChannelId
from penstock.mailbox.ports import Clock
from penstock.worker.chain import OperatorChain
from penstock.worker.event_time.subtask_clock import SubtaskClock
from penstock.worker.scheduling.slices import SlicePolicy


class SliceWork:
    """Runs slices through a chain, and goes on with those that were interrupted in it."""

    def __init__(self, chain: OperatorChain, event_time: SubtaskClock, slices: SlicePolicy, clock: Clock) -> None:
        self._chain = chain
        self._event_time = event_time
        self._slices = slices
        self._clock = clock
        self._unmeasured: tuple[int, int] | None = None
        """The rows of the slice, and how long they have taken so far."""
        self.channel: ChannelId | None = None
        """The channel whose records are processed."""

    def begin(self, batch: pa.RecordBatch, input_index: int, started_us: int) -> None:
        """Run a slice through the chain; where it is interrupted, the chain is suspended."""
        steps = self._chain.process(batch, input_index)
        if steps is not None:
            self._chain.suspend(steps)
        self._unmeasured = batch.num_rows, self._clock.own_us() - started_us
        if not self._chain.suspended:
            self._measure()

    def go_on(self) -> None:
        """Take one step of the work that was interrupted in the chain."""
        started_us = self._clock.own_us()
        self._event_time.reading(self.channel)
        self._chain.go_on()
        self._event_time.reading(None)
        if self._unmeasured is not None:
            rows, took_us = self._unmeasured
            self._unmeasured = rows, took_us + self._clock.own_us() - started_us
        if self._chain.suspended:
            return
        self._measure()
        if self._chain.source is None:
            self._event_time.after_channel()
        else:
            self._event_time.after_source()

    def _measure(self) -> None:
        if self._unmeasured is not None:
            self._slices.measured(*self._unmeasured)
            self._unmeasured = None
