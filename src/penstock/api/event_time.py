"""Event time in a column: which types it may have, and the operator that makes watermarks from it.

A watermark says: no older record is expected. The one that is made here is the newest event time that this subtask
has seen, less the delay that the user allows. So a record that comes no later than the delay behind the newest one of
its subtask is never late, and one that comes later may be.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.operator import MAX_WATERMARK, MIN_WATERMARK, Emit
from penstock.api.operators import NamedOperator
from penstock.errors import DataError

_TICKS_PER_S = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_STATE = "clock"
_COLUMNS = ["watermark", "subtask", "parallelism"]


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
    """Lets all records pass, and follows them with watermarks. Those from upstream end here, but for the last one."""

    def __init__(self, column: str, max_delay_ms: int) -> None:
        self.column = column
        self.max_delay_ms = max_delay_ms

    def opened(self) -> None:
        self._state = self.context.list_state(_STATE)
        self._watermark = MIN_WATERMARK
        place = (self.context.subtask, self.context.parallelism)
        self._place = [pa.array([number], pa.int32()) for number in place]

    def on_restored(self, emit: Emit) -> None:
        """Go on with the watermark of this subtask, if it reads what it read before.

        After a rescale it does not: then records of a slower subtask may come, and the clock starts from them.
        """
        place = {"subtask": self.context.subtask, "parallelism": self.context.parallelism}
        for row in [row for batch in self._state.get() for row in batch.to_pylist()]:
            if place.items() <= row.items():
                self._watermark = row["watermark"]

    def work(self, batch: pa.RecordBatch, source: int, emit: Emit) -> None:
        try:
            times = event_times(batch, self.column)
        except DataError as error:
            raise DataError(f"operator '{self.context.operator}': {error}") from error
        emit(batch)
        if len(times):
            ticks = ticks_of(batch.column(self.column).type)
            assert ticks is not None
            self._advance(ticks.to_ms(int(times.max())) - self.max_delay_ms)

    def on_watermark(self, watermark: int, emit: Emit) -> bool | None:
        return watermark < MAX_WATERMARK

    def _advance(self, reached: int) -> None:
        reached = min(max(reached, MIN_WATERMARK), MAX_WATERMARK - 1)
        if reached <= self._watermark:
            return
        self._watermark = reached
        # By names: with a schema it takes several times as long, and this is done for nearly every batch.
        row = [pa.array([reached], pa.int64()), *self._place]
        self._state.put([pa.RecordBatch.from_arrays(row, names=_COLUMNS)])
        self.context.release_watermark(reached)
