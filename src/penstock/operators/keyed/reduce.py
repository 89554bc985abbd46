"""The operator behind `KeyedStream.reduce`: one row for each key, in a log of batches."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import TypeAlias

import pyarrow as pa

from penstock.columnar.gather import joined
from penstock.columnar.grouping import Groups, group, hashable, key_tuples
from penstock.columnar.values import rows_of
from penstock.errors import DataError
from penstock.model.triggers import Trigger
from penstock.operators.contract import Emit, Row
from penstock.operators.formats import RowsFormat
from penstock.operators.keyed.pending import TriggeredOperator
from penstock.operators.steps import Steps
from penstock.user_code import note_record, shortened

Key: TypeAlias = tuple[Hashable, ...]

_CONVERTED_ROWS = 1 << 12
"""Rows that become Python objects in one call."""
_OUTDATED_ROWS = 1024
"""Outdated rows of `reduce` that are kept in any case: to throw out a few would not be worth a call."""
_MERGED_ROWS = 1 << 16
"""Batches of `reduce` that are larger than this are left as they are: to copy them would take longer than a slice."""


class ReduceOperator(TriggeredOperator):
    """Keeps one row for each key, which a function makes from the row so far and the next one.

    The rows lie in the state as batches, newest last, like a log: a batch of changed rows is added after each call.
    When more than half of the log is outdated, each call cleans a little of its beginning, in proportion to what it
    adds: rows that are still current move to the end. So no call takes longer because the state is large. The
    dictionary is only an index to the log, with the number of each row in it.
    """

    def __init__(
        self,
        function: Callable[[Row, Row], Row],
        sequence: str | None = None,
        trigger: Trigger | None = None,
    ) -> None:
        super().__init__(trigger)
        self.function = function
        self.sequence = sequence

    def setup(self) -> None:
        super().setup()
        self._state = self.context.keyed.rows("reduced", self.context.key)
        self._rows: dict[Key, tuple[int, Row]] = {}
        self._first = self._next = 0
        """The numbers of the first row in the log, and of the next one that is added."""
        self._format = RowsFormat(self.output_guard())

    def on_restored(self, emit: Emit) -> Iterator[None]:
        is_over = self.context.begin_slice()
        for batch in self._state.get():
            self._format.guard.check(batch)
            for start in range(0, batch.num_rows, _CONVERTED_ROWS):
                for row in rows_of(batch.slice(start, _CONVERTED_ROWS)):
                    self._add(row)
                if is_over():
                    yield
                    is_over = self.context.begin_slice()
        super().on_restored(emit)

    def _add(self, row: Row) -> None:
        self._rows[self._key_of(row)] = self._next, row
        self._next += 1

    def _key_of(self, row: Row) -> Key:
        return tuple(hashable(row[name]) for name in self.context.key)

    works_in_steps = True

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> Steps:
        groups = group(batch, self.context.key, self.context.operator)
        self._format.guard.check(self._result_of(batch.slice(0, 0)))
        return Steps(groups.order, lambda steps: self._by_key(groups, steps, emit))

    def _by_key(self, groups: Groups, steps: Steps, emit: Emit) -> Iterator[None]:
        touched: dict[Key, Row] = {}
        is_over = self.context.begin_slice()
        for key, rows, done in self._parts(groups, steps):
            before = touched.get(key)
            if before is None and (kept := self._rows.get(key)) is not None:
                before = kept[1]
            try:
                touched[key] = self._reduced(before, rows)
            except Exception as error:
                note_record(error, f"key {shortened(repr(key))}")
                raise
            steps.calls += 1
            if is_over() and done < groups.batch.num_rows:
                # I1: rows that are done are in the state, and their output has left.
                self._keep(touched, groups.batch.slice(steps.rows_done, done - steps.rows_done), emit)
                touched, steps.rows_done = {}, done
                yield
                is_over = self.context.begin_slice()
        self._keep(touched, groups.batch.slice(steps.rows_done), emit)

    def _parts(self, groups: Groups, steps: Steps) -> Iterator[tuple[Key, list[Row], int]]:
        """Keys with rows of theirs, and the number of rows up to the last of them. Rows become objects in portions."""
        keys = self._keys_of(groups.keys)
        rows: list[Row] = []
        first = 0
        for key, begin, end in zip(keys, groups.starts, groups.ends, strict=True):
            start = begin
            while start < end:
                if start >= first + len(rows):
                    first, rows = start, rows_of(groups.batch.slice(start, _CONVERTED_ROWS))
                done = min(end, start + steps.call_rows_max, first + len(rows))
                yield key, rows[start - first : done - first], done
                start = done

    def _keys_of(self, keys: pa.RecordBatch) -> list[Key]:
        tuples = key_tuples(keys)
        if all(map(_is_plain, keys.schema.types)):
            return tuples
        return [tuple(map(hashable, key)) for key in tuples]

    def _keep(self, touched: Mapping[Key, Row], done: pa.RecordBatch, emit: Emit) -> None:
        if not touched:
            return
        changed = self._format.batch(list(touched.values()))
        assert changed is not None
        self._store(changed, touched)
        if self._pending is None:
            emit(changed)
        else:
            self._pending.add(done, emit)

    def show(self, keys: pa.RecordBatch, emit: Emit) -> None:
        rows = self._format.batch([self._rows[self._key_of(row)][1] for row in rows_of(keys)])
        assert rows is not None
        emit(rows)

    def _result_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.sequence is None:
            return batch
        if self.sequence in batch.schema.names:
            raise DataError(
                f"operator '{self.context.operator}': the records already have a column "
                f"'{self.sequence}': give the sequence another name"
            )
        return batch.append_column(self.sequence, pa.nulls(batch.num_rows, pa.int64()))

    def _reduced(self, row: Row | None, rows: list[Row]) -> Row:
        if self.sequence is None:
            return self._folded(row, rows)
        before = 0 if row is None else row[self.sequence]
        assert isinstance(before, int)
        # The function does not know of the sequence: it may compare the columns of both rows.
        bare = None if row is None else {name: value for name, value in row.items() if name != self.sequence}
        return {**self._folded(bare, rows), self.sequence: before + len(rows)}

    def _folded(self, row: Row | None, rows: list[Row]) -> Row:
        function = self.function
        for other in rows:
            row = other if row is None else function(row, other)
            if not isinstance(row, dict):
                raise DataError(
                    f"operator '{self.context.operator}': reduce needs a function that returns a dict, not {row!r}"
                )
        assert row is not None
        first = rows[0]
        for name in self.context.key:
            if row.get(name) is not first[name]:
                # A function that changes the key would change another key's state.
                return {**row, **{name: first[name] for name in self.context.key}}
        return row

    def _store(self, changed: pa.RecordBatch, rows: Mapping[Key, Row]) -> None:
        for key, row in rows.items():
            self._rows[key] = self._next, row
            self._next += 1
        log = merged(list(self._state.get()), changed)
        if self._next - self._first > 2 * len(self._rows) + _OUTDATED_ROWS:
            log = self._cleaned(log, 2 * changed.num_rows)
        self._state.put(log)

    def _cleaned(self, log: list[pa.RecordBatch], rows_max: int) -> list[pa.RecordBatch]:
        """The log without its first rows, about `rows_max` of them; those that are current are at its end."""
        first = log[0].slice(0, rows_max)
        log[0] = log[0].slice(first.num_rows)
        current = []
        for number, row in enumerate(rows_of(first.select(list(self.context.key))), self._first):
            key = self._key_of(row)
            newest, whole = self._rows[key]
            if newest == number:
                self._rows[key] = self._next, whole
                self._next += 1
                current.append(whole)
        self._first += first.num_rows
        moved = self._format.batch(current)
        rest = log if log[0].num_rows else log[1:]
        return rest if moved is None else merged(rest, moved)


def _is_plain(kind: pa.DataType) -> bool:
    """Whether values of this type are as dictionaries find them."""
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_boolean(kind))


def merged(log: list[pa.RecordBatch], added: pa.RecordBatch) -> list[pa.RecordBatch]:
    """The log with a batch added; neighbours at its end are merged while they are of like size, and not yet large."""
    log = [*log, added]
    while len(log) > 1 and log[-2].num_rows <= 2 * log[-1].num_rows and log[-2].num_rows < _MERGED_ROWS:
        whole = joined(log[-2:])
        if len(whole) > 1:
            break
        log[-2:] = whole
    return log
