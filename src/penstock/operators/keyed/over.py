"""The operators behind `KeyedStream.over`: each record, with aggregates over the records of its key before it.

`over(rows=N)` works on records as they come, and keeps the last N-1 of each key. `over(range=…)` works in event time:
records wait until the watermark has passed them, so that they are emitted in the order of event time, and stay until no
frame can reach back to them. Only the columns that are aggregated are kept, but for records that wait.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.frames import over_frames
from penstock.columnar.gather import take_rows
from penstock.columnar.grouping import key_codes, key_columns
from penstock.columnar.hashing import hash_rows, key_groups
from penstock.columnar.ranking import places_in_groups
from penstock.columnar.schema_guard import column_of
from penstock.errors import DataError
from penstock.ids import LATE
from penstock.metrics import standard as metrics
from penstock.model.aggregates import Aggregate, columns_of
from penstock.model.event_time import MAX_WATERMARK, Ticks, event_time_type, event_times, ticks_of
from penstock.model.over import RangeFrame
from penstock.model.windows import Late
from penstock.operators.contract import Emit
from penstock.operators.named import NamedOperator
from penstock.state.rows.keyed_rows import KeyedRowsDescriptor
from penstock.state.windows.clock import ClockDescriptor

_INT64 = np.iinfo(np.int64)


class OverOperator(NamedOperator):
    """What both have in common: the columns that they read and add."""

    def __init__(self, aggregates: Sequence[Aggregate]) -> None:
        self.aggregates = tuple(aggregates)

    def check(self, batch: pa.RecordBatch) -> None:
        key_columns(batch, self.context.key, self.context.operator)
        for column in columns_of(self.aggregates):
            column_of(batch, column, self.error)
        taken = [each.output for each in self.aggregates if each.output in batch.schema.names]
        if taken:
            raise self.error(f"the input has a column '{taken[0]}' already: give the output another name")

    def error(self, text: str) -> DataError:
        return DataError(f"operator '{self.context.operator}': {text}")

    def with_outputs(
        self, rows: pa.RecordBatch, frames: pa.RecordBatch, first: npt.NDArray[np.int64], end: npt.NDArray[np.int64]
    ) -> pa.RecordBatch:
        """The rows with the aggregates of their frames, which are ranges of rows of `frames`."""
        for each in self.aggregates:
            column = None if each.column is None else frames.column(each.column)
            try:
                rows = rows.append_column(each.output, over_frames(each.function, column, first, end))
            except DataError as error:
                raise self.error(f"{each.output}: {error}") from error
        return rows


class OverRowsOperator(OverOperator):
    """Frames of the last `rows` records of a key, in the order in which they come."""

    def __init__(self, aggregates: Sequence[Aggregate], rows: int) -> None:
        super().__init__(aggregates)
        self.rows = rows

    def setup(self) -> None:
        self._state = self.context.keyed.register(KeyedRowsDescriptor("over", self.context.key))
        self._kept = list(dict.fromkeys([*self.context.key, *columns_of(self.aggregates)]))

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> None:
        self.check(batch)
        new = batch.select(self._kept)
        slots = self._state.slots_of(new)
        touched, places = np.unique(slots, return_inverse=True)
        held, held_places = self._state.of_slots(touched)
        both = pa.concat_batches([self._state.take(held), new]) if len(held) else new
        keys = np.concatenate([held_places, places])
        # Ids are in the order of arrival, and those of the batch come behind all others.
        arrival = np.concatenate([held, np.arange(len(places)) + (held.max(initial=0) + 1)])
        order = np.lexsort((arrival, keys))
        behind = places_in_groups(keys[order])
        ends = np.arange(1, len(order) + 1)
        firsts = ends - np.minimum(behind + 1, self.rows)
        position = np.empty(len(order), np.int64)
        position[order] = np.arange(len(order))
        mine = position[len(held) :]
        emit(self.with_outputs(batch, take_rows(both, order), firsts[mine], ends[mine]))
        self._keep(touched, held, slots, keys, order, new)

    def _keep(
        self,
        touched: npt.NDArray[np.intp],
        held: npt.NDArray[np.int64],
        slots: npt.NDArray[np.intp],
        keys: npt.NDArray[np.intp],
        order: npt.NDArray[np.intp],
        new: pa.RecordBatch,
    ) -> None:
        """Keep the last `rows` - 1 records of each key: no later frame reaches further back."""
        from_end = np.empty(len(order), np.intp)
        from_end[order] = places_in_groups(keys[order][::-1])[::-1]
        stays = from_end < self.rows - 1
        old, added = stays[: len(held)], np.flatnonzero(stays[len(held) :])
        owners = np.concatenate([touched[keys[: len(held)][old]], slots[added]])
        self._state.replace(touched, held[old], owners, held[~old], take_rows(new, added))


class OverRangeOperator(OverOperator):
    """Frames of a stretch of event time, which ends with the time of the record."""

    emits_later = True

    def __init__(self, aggregates: Sequence[Aggregate], frame: RangeFrame, on: str, late: Late) -> None:
        super().__init__(aggregates)
        self.frame = frame
        self.on = on
        self.late: Late = late

    def setup(self) -> None:
        self._late_rows = self.context.metrics.counter(metrics.LATE)
        self._clock = self.context.keyed.register(ClockDescriptor("over.clock", self.frame))
        self._state = self.context.keyed.rows("over", self.context.key)

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> None:
        self.check(batch)
        late = np.flatnonzero(event_times(batch, self.on) < self._emitted_up_to(batch))
        if len(late):
            self._on_late(take_rows(batch, late))
            batch = take_rows(batch, np.delete(np.arange(batch.num_rows), late))
        self._state.append(batch)

    def _on_late(self, rows: pa.RecordBatch) -> None:
        if self.late == "error":
            raise self.error(
                f"{rows.num_rows} rows came after later ones had been emitted: allow a longer delay in with_watermark, "
                f'or set late="drop" to count them and go on'
            )
        if self.late == "stream":
            self.context.emit_to(LATE, rows)
        else:
            self._late_rows.add(rows.num_rows)

    def _ticks(self, rows: pa.RecordBatch) -> Ticks:
        ticks = ticks_of(event_time_type(rows.schema, self.on))
        assert ticks is not None
        return ticks

    def _emitted_up_to(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """For the key of each row, the first time that was not emitted: a rescale brings keys of other subtasks."""
        ticks = self._ticks(rows)
        groups = key_groups(rows, self.context.key, self.context.max_parallelism)
        return self._clock.of(groups, lambda ms: min(max(ticks.of_ms(ms), _INT64.min), _INT64.max))

    def on_watermark(self, watermark: int, emit: Emit) -> bool | None:
        batches = self._state.get()
        if batches:
            self._emit_due(pa.concat_batches(batches), watermark, emit)
        if watermark < MAX_WATERMARK:
            self._clock.advance(watermark)
        return None

    def on_end(self, emit: Emit) -> None:
        self.on_watermark(MAX_WATERMARK, emit)
        # What was emitted must be gone: after a restore the end comes again.
        self._state.put([])

    def _emit_due(self, rows: pa.RecordBatch, watermark: int, emit: Emit) -> None:
        """Emit the records before the watermark: at the watermark itself others may follow."""
        times, limit = event_times(rows, self.on), self._ticks(rows).of_ms(watermark)
        is_due = times < limit if limit <= _INT64.max and watermark < MAX_WATERMARK else np.ones(len(times), np.bool_)
        is_new = is_due & (times >= self._emitted_up_to(rows))
        if not is_new.any():
            return
        # The frames of these need the records of their keys alone; that other keys may have an equal hash does no harm.
        hashes = hash_rows(rows, self.context.key)
        chosen = np.flatnonzero(np.isin(hashes, hashes[is_new]) & is_due)
        self._emit_frames(take_rows(rows, chosen), times[chosen], is_new[chosen], emit)
        span = self._ticks(rows).of_ms(self.frame.range_ms)
        kept = np.flatnonzero(times >= max(limit - span, _INT64.min)) if limit <= _INT64.max else np.zeros(0, np.intp)
        self._state.put([take_rows(rows, kept)])

    def _emit_frames(
        self, rows: pa.RecordBatch, times: npt.NDArray[np.int64], is_new: npt.NDArray[np.bool_], emit: Emit
    ) -> None:
        keys = key_codes([rows.column(name) for name in self.context.key])
        order = np.lexsort((times, keys))
        rows, keys, times, is_new = take_rows(rows, order), keys[order], times[order], is_new[order]
        span = self._ticks(rows).of_ms(self.frame.range_ms)
        since = np.where(times < _INT64.min + span, _INT64.min, times - span)
        new = np.flatnonzero(is_new)
        firsts, ends = _rows_before(keys, times, since[new], keys[new]), _rows_up_to(keys, times)[new]
        # In the order of event time, and of arrival at equal times.
        at = np.lexsort((order[new], times[new]))
        emit(self.with_outputs(take_rows(rows, new[at]), rows, firsts[at], ends[at]))


def _rows_before(
    keys: npt.NDArray[np.int64],
    times: npt.NDArray[np.int64],
    since: npt.NDArray[np.int64],
    of: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """For keys `of` and times `since`, the number of the first row of the key that is not earlier; rows are sorted."""
    is_row = np.concatenate([np.zeros(len(since), np.bool_), np.ones(len(keys), np.bool_)])
    order = np.lexsort((is_row, np.concatenate([since, times]), np.concatenate([of, keys])))
    before = np.empty(len(order), np.int64)
    before[order] = np.cumsum(is_row[order])
    return before[: len(since)]


def _rows_up_to(keys: npt.NDArray[np.int64], times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """For each row, the number of the first row behind those of its key and time."""
    rows = np.arange(1, len(keys) + 1)
    is_last = np.append((keys[1:] != keys[:-1]) | (times[1:] != times[:-1]), True)[: len(keys)]
    return np.minimum.accumulate(np.where(is_last, rows, len(keys))[::-1])[::-1]
