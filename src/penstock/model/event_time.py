"""Event time as a value: the unit and the type of a column, and the watermarks with a special meaning."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import DataError

MIN_WATERMARK = -(2**63)
IDLE_WATERMARK = MIN_WATERMARK + 1
"""No time: a subtask says with it that its input is idle, and that nobody should wait for its watermark."""
MAX_WATERMARK = 2**63 - 1
"""The watermark at the end of all input: every window closes."""

Unit: TypeAlias = Literal["s", "ms", "us", "ns"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

TICKS_PER_S = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def timestamp_ms(at: SupportsIndex | datetime) -> int:
    """The milliseconds since 1970 of a time: a whole number of them, or a `datetime` with a time zone, rounded down."""
    if not isinstance(at, datetime):
        return operator.index(at)
    if at.tzinfo is None:
        raise DataError(
            f"the time {at} has no time zone, so it is a different instant on each host: pass a "
            "datetime with one, such as datetime.now(UTC), or milliseconds since 1970"
        )
    return (at - _EPOCH) // timedelta(milliseconds=1)


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
        """A number of milliseconds in ticks, or None if it is not a whole number of ticks."""
        ticks, rest = divmod(ms * self.per_s, 1000)
        return None if rest else ticks


def ticks_of(kind: pa.DataType) -> Ticks | None:
    """The unit of event times of this type: milliseconds if they are just numbers; None if they are no times."""
    if pa.types.is_int64(kind):
        return Ticks(1000)
    return Ticks(TICKS_PER_S[kind.unit]) if pa.types.is_timestamp(kind) else None


def event_time_type(schema: pa.Schema, column: str) -> pa.DataType:
    """The type of the column with the event time. Raises `DataError` if it is not there, or has no times."""
    position = schema.get_field_index(column)
    if position < 0:
        raise DataError(
            f"event-time column '{column}' not found, or ambiguous; the columns are {', '.join(schema.names)}. Keep "
            f"it, or name the one that has the event time here"
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
            f"the event time '{column}' is null in {array.null_count} of {batch.num_rows} rows: "
            "filter them out first, or give them a time with with_column"
        )
    times: npt.NDArray[np.int64] = array.view(pa.int64()).to_numpy()
    return times
