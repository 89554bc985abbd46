"""The operator behind `KeyedStream.join_as_of`: rows of the left side with the version at their time.

A row of the left side waits until the watermark of both sides has passed its time: no version can come any more that is
valid at it. Then it finds the last version that is not later. Of the versions that the watermark has passed, only the
last one of each key can be seen by a row that is still to come, so just that one is kept: the *current* one. Versions
that the watermark has not passed wait as well.

The state is two lists of immutable batches, rows that wait and versions, so that a snapshot is the two lists. The index
of the keys, and where the current version of each lies, are made from the versions: after a restore all of them wait
once more, and become current at the next watermark.

The watermark is held while the rows that it completes are emitted, in slices. A checkpoint between two slices has the
rows that are left, and all versions (I1).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.fixed_width import null_mask
from penstock.columnar.gather import joined, take_rows
from penstock.columnar.grouping import key_columns
from penstock.columnar.plain import plain_type
from penstock.errors import DataError
from penstock.metrics import standard as metrics
from penstock.model.event_time import MAX_WATERMARK, MIN_WATERMARK, Ticks, event_time_type, event_times, ticks_of
from penstock.operators.contract import Emit
from penstock.operators.joined_columns import JoinedColumns
from penstock.operators.named import NamedOperator
from penstock.state.aggregates.columns import plain_key
from penstock.state.columns import with_nulls
from penstock.state.index.versions import References, Versions

_log = logging.getLogger("penstock")

_EMITTED_ROWS = 1 << 13
_INT64 = np.iinfo(np.int64)
LEFT, RIGHT = 0, 1


class _Waiting:
    """Batches that wait for the watermark, in the order in which they came, each with its earliest time."""

    def __init__(self, on: str) -> None:
        self.on = on
        self.batches: list[pa.RecordBatch] = []
        self._earliest: list[int] = []

    def add(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self.batches.append(batch)
            self._earliest.append(int(event_times(batch, self.on).min()))

    def clear(self) -> None:
        self.batches, self._earliest = [], []

    def are_due(self, last: int) -> bool:
        return any(earliest <= last for earliest in self._earliest)

    def pop_due(self, last: int) -> list[pa.RecordBatch]:
        """Remove the rows up to the time `last`, and return them. Batches that are later are not looked at."""
        due, batches = [], list(zip(self.batches, self._earliest, strict=True))
        self.batches, self._earliest = [], []
        for batch, earliest in batches:
            if earliest > last:
                self.batches.append(batch)
                self._earliest.append(earliest)
                continue
            is_due = event_times(batch, self.on) <= last
            due.append(take_rows(batch, np.flatnonzero(is_due)))
            self.add(take_rows(batch, np.flatnonzero(~is_due)))
        return joined(due)


class JoinAsOfOperator(NamedOperator):
    """`keys` and `times` are the columns of the key and of the event time, of the left and of the right side."""

    emits_later = True

    def __init__(
        self,
        keys: tuple[tuple[str, ...], tuple[str, ...]],
        times: tuple[str, str],
        *,
        keeps_unmatched: bool,
        suffix: str,
        right_schema: pa.Schema | None,
    ) -> None:
        self.keys = keys
        self.times = times
        self.keeps_unmatched = keeps_unmatched
        self.suffix = suffix
        self.right_schema = right_schema

    def setup(self) -> None:
        keyed = self.context.keyed
        self._late = self.context.metrics.counter(metrics.LATE)
        self._rows_state = keyed.rows("left", self.keys[LEFT])
        self._versions_state = keyed.rows("right", self.keys[RIGHT])
        self._rows, self._pending = _Waiting(self.times[LEFT]), _Waiting(self.times[RIGHT])
        self._versions: Versions | None = None
        self._schemas: dict[int, pa.Schema] = {} if self.right_schema is None else {RIGHT: self.right_schema}
        self._ticks: Ticks | None = None
        self._columns: JoinedColumns | None = None
        self._held: int | None = None
        """The watermark that waits until the rows that it completes are emitted."""
        self._is_working = False
        self._has_warned = False

    @property
    def is_idle(self) -> bool:  # type: ignore[override]
        return not self._is_working

    def on_restored(self, emit: Emit) -> None:
        self._emit = emit
        for side, state, waiting in (
            (LEFT, self._rows_state, self._rows),
            (RIGHT, self._versions_state, self._pending),
        ):
            for batch in state.get():
                self._check(batch, side)
                waiting.add(batch)

    # --- records ---

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> None:
        self._check(batch, input_index)
        rows = self._rows_of_use(batch, input_index)
        if len(rows) < batch.num_rows:
            batch = take_rows(batch, rows)
        is_left = input_index == LEFT
        (self._rows_state if is_left else self._versions_state).append(batch)
        (self._rows if is_left else self._pending).add(batch)
        if self._held is not None and not is_left:
            # Rows of the left side have waited for the columns of the right side.
            self._work_off()

    def _check(self, batch: pa.RecordBatch, side: int) -> None:
        """Both sides have keys and times of the same types. Raises `DataError`."""
        known = self._schemas.get(side)
        if self._ticks is not None and known is not None and batch.schema.equals(known):
            return
        kinds = [self._kinds(batch.schema, side)]
        self._ticks = ticks_of(kinds[0][-1])
        self._schemas[side] = batch.schema
        if 1 - side in self._schemas:
            kinds.append(self._kinds(self._schemas[1 - side], 1 - side))
            (*keys, time), (*their_keys, their_time) = kinds
            if keys != their_keys or ticks_of(time) != ticks_of(their_time):
                raise DataError(
                    f"operator '{self.context.operator}': the sides of join_as_of have different "
                    f"types: the keys are {', '.join(map(str, keys))} and "
                    f"{', '.join(map(str, their_keys))}, the event times {time} and {their_time}: "
                    "cast one side before the join"
                )

    def _kinds(self, schema: pa.Schema, side: int) -> list[pa.DataType]:
        empty = pa.RecordBatch.from_pylist([], schema=schema)
        keys = [plain_type(key.type) for key in key_columns(empty, self.keys[side], self.context.operator)]
        try:
            return [*keys, event_time_type(schema, self.times[side])]
        except DataError as error:
            raise DataError(f"operator '{self.context.operator}': {error}") from error

    def _rows_of_use(self, batch: pa.RecordBatch, side: int) -> npt.NDArray[np.intp]:
        """Without late rows of the left side, whose version may be gone, and without keys that never match."""
        try:
            times = event_times(batch, self.times[side])
        except DataError as error:
            raise DataError(f"operator '{self.context.operator}': {error}") from error
        is_of_use = np.ones(batch.num_rows, dtype=np.bool_)
        if side == LEFT:
            is_of_use = times > self._last(self.context.watermark)
            self._late.add(batch.num_rows - int(np.count_nonzero(is_of_use)))
        if side == RIGHT or not self.keeps_unmatched:
            for name in self.keys[side]:
                if batch.column(name).null_count:
                    is_of_use &= ~null_mask(batch.column(name))
        return np.flatnonzero(is_of_use)

    def _last(self, watermark: int) -> int:
        """The last time that a watermark completes: a record of the watermark's own time may still come."""
        if self._ticks is None or watermark == MIN_WATERMARK:
            return int(_INT64.min) - 1
        if watermark == MAX_WATERMARK:
            return int(_INT64.max)
        return min(max(self._ticks.of_ms(watermark), int(_INT64.min)), int(_INT64.max)) - 1

    def _keys_of(self, batch: pa.RecordBatch, side: int) -> list[pa.Array]:
        keys = key_columns(batch, self.keys[side], self.context.operator)
        return [plain_key(key, plain_type(key.type)) for key in keys]

    # --- watermarks ---

    def on_watermark(self, watermark: int, emit: Emit) -> bool | None:
        if watermark == MAX_WATERMARK:
            return None
        last = self._last(watermark)
        if self._held is None and not self._rows.are_due(last) and not self._pending.are_due(last):
            return None
        self._held = watermark
        self._work_off()
        return True

    def on_end(self, emit: Emit) -> Iterator[None]:
        """Emit the rows that wait. The end is no time: more input may follow in a later run, so versions stay."""
        yield from self._emit_due(MAX_WATERMARK)

    def _work_off(self) -> None:
        if not self._is_working:
            self._is_working = True
            self.context.work_off(self._round())

    def _round(self) -> Iterator[None]:
        released = None
        while self._held is not None and self._held != released and self._knows_columns():
            released = self._held
            yield from self._emit_due(released)
        self._is_working = False
        if released is not None:
            self._held = None
            self.context.release_watermark(released)

    def _knows_columns(self) -> bool:
        """Whether rows without a version can be emitted: they have the columns of the right side too."""
        if RIGHT in self._schemas or not self.keeps_unmatched:
            return True
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "operator '%s', subtask %d: rows of the left side wait, and event time with them: no row of the right "
                "side has come yet, so its columns are unknown. Set right_schema=… in join_as_of",
                self.context.operator,
                self.context.subtask,
            )
        return False

    def _emit_due(self, watermark: int) -> Iterator[None]:
        last = self._last(watermark)
        due, rows = self._pending.pop_due(last), self._rows.pop_due(last)
        if not due and not rows:
            return
        versions = self._staged(due)
        while rows:
            first = rows.pop(0)
            matches = versions.match(self._keys_of(first, LEFT), event_times(first, self.times[LEFT]))
            for start in range(0, first.num_rows, _EMITTED_ROWS):
                end = start + _EMITTED_ROWS
                self._emit_rows(versions, first.slice(start, _EMITTED_ROWS), matches[start:end])
                # I1: a row is in the state until it is emitted, and no longer.
                self._rows_state.put([first.slice(end), *rows, *self._rows.batches])
                yield
        if watermark == MAX_WATERMARK:
            versions.unstage()
            later = self._pending.batches
            self._pending.clear()
            for batch in [*due, *later]:
                self._pending.add(batch)
        elif due:
            versions.settle()
            self._versions_state.put([*versions.batches, *self._pending.batches])

    def _staged(self, due: list[pa.RecordBatch]) -> Versions:
        if self._versions is None:
            side = RIGHT if RIGHT in self._schemas else LEFT
            self._versions = Versions(self._kinds(self._schemas[side], side)[:-1])
        self._versions.stage([(rows, self._keys_of(rows, RIGHT), event_times(rows, self.times[RIGHT])) for rows in due])
        return self._versions

    def _emit_rows(self, versions: Versions, rows: pa.RecordBatch, matches: References) -> None:
        is_match = matches != 0
        if not self.keeps_unmatched:
            rows, matches = take_rows(rows, np.flatnonzero(is_match)), matches[is_match]
            is_match = is_match[is_match]
        if rows.num_rows == 0:
            return
        if self._columns is None:
            right = self._schemas.get(RIGHT, pa.schema([]))
            self._columns = JoinedColumns(self.context.operator, rows.schema, right, self.keys[RIGHT], self.suffix)
        self._emit(self._columns.batch(rows, self._right_columns(versions, self._columns, matches, is_match)))

    def _right_columns(
        self, versions: Versions, columns: JoinedColumns, matches: References, is_match: npt.NDArray[np.bool_]
    ) -> list[pa.Array]:
        if not is_match.any():
            return [pa.nulls(len(matches), kind) for kind in columns.types]
        if is_match.all():
            return versions.gather(matches, columns.taken)
        # A row without a version gathers that of another one, and is made null.
        filled = np.where(is_match, matches, matches[np.argmax(is_match)])
        return [with_nulls(array, ~is_match) for array in versions.gather(filled, columns.taken)]
