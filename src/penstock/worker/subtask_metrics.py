"""Metrics of a subtask as a whole: its time, its queues, its slices. They have the name of the first operator.

The time of a subtask is divided into three: busy while it works, back-pressured while a full output keeps it from
working, idle else. The three add up to the time since it was made, but for rounding.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.exchange.input_channel import InputChannel
from penstock.exchange.output_channel import OutputChannel
from penstock.ids import ChannelId
from penstock.mailbox.ports import Clock
from penstock.metrics.metric import Over, counter, gauge, histogram
from penstock.metrics.registry import SubtaskMetrics
from penstock.metrics.standard import IS_BACK_PRESSURED
from penstock.model.event_time import MAX_WATERMARK, MIN_WATERMARK

BYTES_IN = counter(
    "num_bytes_in",
    "bytes",
    "bytes of the batches that the subtask has taken from its channels or splits",
    is_total=True,
)
BYTES_OUT = counter(
    "num_bytes_out", "bytes", "bytes of the batches that the subtask has put on its channels", is_total=True
)
_BUSY = counter("busy_time_ms", "ms", "time that the subtask has worked, since its worker started")
_BACK_PRESSURED = counter("back_pressured_time_ms", "ms", "time that a full output has held the subtask up, likewise")
_IDLE = counter(
    "idle_time_ms", "ms", "the rest of the time: nothing to do, or another subtask of the worker had its turn"
)
_SLICES = histogram("slice_time_s", "durations of the subtask's slices of work")
_QUEUED_IN = gauge("input_queue_size", "bytes", "bytes that wait in the input channels of the subtask")
_QUEUED_OUT = gauge("output_queue_size", "bytes", "bytes that wait for credit in the output channels of the subtask")
OUTPUT_WATERMARK = gauge(
    "current_output_watermark",
    "ms",
    "event time that the subtask has passed on, in milliseconds since 1970; least over subtasks",
    Over.LEAST,
)


class SubtaskTimes:
    """Divides the time of a subtask. `begin` and `end` enclose a slice of work."""

    __slots__ = ("_back_pressured_us", "_busy_us", "_clock", "_full_since_us", "_made_us", "_slices", "_started_us")

    def __init__(self, clock: Clock, metrics: SubtaskMetrics) -> None:
        self._clock = clock
        self._made_us = clock.now_us()
        self._busy_us = self._back_pressured_us = 0
        self._started_us: int | None = None
        """When the slice began that is under way."""
        self._full_since_us: int | None = None
        self._slices = metrics.histogram(_SLICES)
        metrics.observe(_BUSY, lambda: self._busy_us // 1000)
        metrics.observe(_BACK_PRESSURED, lambda: self._held_up_us() // 1000)
        metrics.observe(_IDLE, self._idle_ms)
        metrics.observe(IS_BACK_PRESSURED, lambda: int(self._full_since_us is not None))

    def begin(self) -> None:
        self._started_us = self._clock.now_us()

    def end(self) -> None:
        now_us = self._clock.now_us()
        assert self._started_us is not None
        took_us = now_us - self._started_us
        self._started_us = None
        self._busy_us += took_us
        self._slices.observe(took_us / 1e6)
        if self._full_since_us is not None:
            # Full since some time in this slice, which was work.
            self._full_since_us = now_us

    def full_changed(self, is_full: bool) -> None:
        """An output has become full, or none is full any more."""
        if is_full:
            self._full_since_us = self._clock.now_us()
        else:
            self._back_pressured_us = self._held_up_us()
            self._full_since_us = None

    def _held_up_us(self) -> int:
        if self._full_since_us is None or self._started_us is not None:
            return self._back_pressured_us
        return self._back_pressured_us + self._clock.now_us() - self._full_since_us

    def _idle_ms(self) -> int:
        return (self._clock.now_us() - self._made_us - self._busy_us - self._held_up_us()) // 1000


def reached(watermark: int) -> int | None:
    """A watermark as a metric: None as long as it is no time."""
    return watermark if MIN_WATERMARK < watermark < MAX_WATERMARK else None


def observe_queues(
    metrics: SubtaskMetrics, inputs: Mapping[ChannelId, InputChannel], outputs: Mapping[ChannelId, OutputChannel]
) -> None:
    """Report the bytes that wait in the channels of a subtask."""
    metrics.observe(_QUEUED_IN, lambda: sum(each.queued_bytes for each in inputs.values()))
    metrics.observe(_QUEUED_OUT, lambda: sum(each.queued_bytes for each in outputs.values()))
