"""Event time in a column: which types it may have, and the operator that makes watermarks from it.

A watermark says: no older record is expected. The operator reports the newest event time of each batch, less the delay
that the user allows; the subtask keeps a clock for each split that it reads, or each channel, and its watermark is the
slowest of them (`runtime/subtask_clock.py`). So a record that comes no later than the delay behind the newest one of
its own split is never late, and one that comes later may be.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.operator import IDLE_WATERMARK, MAX_WATERMARK, Emit
from penstock.api.operators import NamedOperator
from penstock.errors import DataError

_TICKS_PER_S = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_FORMER_STATE = "clock"
"""Checkpoints of version 0.1.0 hold the clock of a subtask here. Clocks of splits are with the splits now."""


@dataclass(frozen=True, slots=True)
class Ticks:
    """The unit of a column of event times. All arithmetic is on Python's integers, which do not overflow."""

    per_s: int

    def to_ms(self, ticks: int) -> int:
        """The last millisecond that is not later."""
        return ticks * 1000 // self.per_s

    def of_ms(self, ms: int) -> int:
        """The last tick that is not later."""
        return ms * self.per_s // 1000

    def exactly(self, ms: int) -> int | None:
        """So many milliseconds in ticks, or None if they are no whole number of them."""
        ticks, rest = divmod(ms * self.per_s, 1000)
        return None if rest else ticks


def ticks_of(kind: pa.DataType) -> Ticks | None:
    """The unit of event times of this type: milliseconds if they are just numbers; None if they are no times."""
    if pa.types.is_int64(kind):
        return Ticks(1000)
    return Ticks(_TICKS_PER_S[kind.unit]) if pa.types.is_timestamp(kind) else None


def event_time_type(schema: pa.Schema, column: str) -> pa.DataType:
    """The type of the column with the event time. Raises `DataError` if it is not there, or has no times."""
    position = schema.get_field_index(column)
    if position < 0:
        raise DataError(
            f"the column '{column}' of the event time is not, or not just once, among the columns: "
            f"{', '.join(schema.names)}; keep it, or name the one that has the event time here"
        )
    kind = schema.field(position).type
    if ticks_of(kind) is None:
        raise DataError(
            f"the event time '{column}' is of type {kind}: cast it to a timestamp, or to int64 (milliseconds)"
        )
    return kind


def event_times(batch: pa.RecordBatch, column: str) -> npt.NDArray[np.int64]:
    """The event times of all rows, in their own unit. Raises `DataError`, also for nulls."""
    event_time_type(batch.schema, column)
    array = batch.column(column)
    if array.null_count:
        raise DataError(
            f"the event time '{column}' is null in {array.null_count} of {batch.num_rows} rows: filter them out "
            f"before, or give them a time with with_column"
        )
    times: npt.NDArray[np.int64] = array.view(pa.int64()).to_numpy()
    return times


class EventTimeOperator(NamedOperator):
    """Lets all records pass, and reports their times. Watermarks from upstream end here, but for the last one."""

    def __init__(self, column: str, max_delay_ms: int, idle_after_ms: int | None = None) -> None:
        self.column = column
        self.max_delay_ms = max_delay_ms
        self.idle_after_ms = idle_after_ms

    def opened(self) -> None:
        self.context.former_state(_FORMER_STATE)
        self.context.follow_event_time(self.idle_after_ms)

    def work(self, batch: pa.RecordBatch, source: int, emit: Emit) -> None:
        try:
            times = event_times(batch, self.column)
        except DataError as error:
            raise DataError(f"operator '{self.context.operator}': {error}") from error
        emit(batch)
        if len(times):
            ticks = ticks_of(batch.column(self.column).type)
            assert ticks is not None
            reached_ms = ticks.to_ms(int(times.max())) - self.max_delay_ms
            self.context.saw_event_time(min(max(reached_ms, IDLE_WATERMARK + 1), MAX_WATERMARK - 1))

    def on_watermark(self, watermark: int, emit: Emit) -> bool | None:
        return watermark < MAX_WATERMARK
