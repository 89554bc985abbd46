"""Aggregates that take records back, and aggregates that are a changelog themselves.

Behind a changelog, each record has a weight: 1 for an insert, -1 for a delete. A sum is one of values times weights, a
count one of weights, a mean is kept as both. For `emit="changelog"` the row of each key that was emitted last is state:
it is deleted as it was, and inserted as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.gather import take_rows
from penstock.columnar.grouping import key_codes, key_columns
from penstock.columnar.plain import plain
from penstock.columnar.schemas.schema_guard import column_of
from penstock.errors import DataError
from penstock.model.aggregates import Aggregate, columns_of
from penstock.model.changelog import DELETE, INSERT, OP, UPDATE, changelog_of
from penstock.model.filtered import Masked
from penstock.model.triggers import Trigger
from penstock.operators.contract import Emit
from penstock.operators.keyed.pending import TriggeredOperator
from penstock.operators.masked_columns import MaskedColumns
from penstock.operators.named import NamedOperator
from penstock.state.rows.keyed_rows import KeyedRowsDescriptor

_WEIGHT = "penstock.weight"


class RetractingAggregateOperator(TriggeredOperator):
    """Aggregates of a changelog, or as a changelog, or both."""

    def __init__(
        self,
        aggregates: Sequence[Aggregate],
        *,
        takes_back: bool,
        emits_changelog: bool,
        trigger: Trigger | None,
        masks: Sequence[Masked] = (),
    ) -> None:
        super().__init__(trigger)
        self.aggregates = tuple(aggregates)
        self.takes_back = takes_back
        self.emits_changelog = emits_changelog
        self.masked = MaskedColumns(masks)

    def setup(self) -> None:
        keyed, key = self.context.keyed, self.context.key
        kept = [*self.aggregates, Aggregate("count", None, _WEIGHT)]
        if self.takes_back:
            columns = columns_of(self.aggregates)
            sums = [Aggregate("sum", _signed(name), _signed(name)) for name in self._summed]
            counts = [Aggregate("sum", _valid(name), _valid(name)) for name in columns]
            kept = [*sums, *counts, Aggregate("sum", _WEIGHT, _WEIGHT)]
        self._state = keyed.aggregate("aggregates", key, kept)
        self._emitted = keyed.register(KeyedRowsDescriptor("emitted", key)) if self.emits_changelog else None
        super().setup()

    @property
    def _summed(self) -> tuple[str, ...]:
        return columns_of([each for each in self.aggregates if each.function in ("sum", "mean")])

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> None:
        key_columns(batch, self.context.key, self.context.operator)
        batch = self.masked.added(batch, self._error)
        weighted = self._weighted(batch) if self.takes_back else batch
        try:
            current = self._state.update(weighted)
        except DataError as error:
            raise DataError(f"operator '{self.context.operator}': {error}") from error
        if self._pending is not None:
            self._pending.add(batch, emit)
            return
        self._emit(current, emit)

    def show(self, keys: pa.RecordBatch, emit: Emit) -> None:
        emit(self._results(self._state.of_keys(keys)))

    def _emit(self, current: pa.RecordBatch, emit: Emit) -> None:
        results = self._results(current)
        if self._emitted is None:
            emit(results)
            return
        slots = self._emitted.slots_of(results)
        held, _ = self._emitted.of_slots(slots)
        exists = np.asarray(pc.greater(current.column(_WEIGHT), 0))
        inserted = take_rows(results, np.flatnonzero(exists))
        deleted = self._emitted.take(held) if len(held) else results.slice(0, 0)
        self._emitted.replace(slots, held[:0], slots[exists], held, inserted)
        changes = changelog_of(deleted, inserted)
        if changes is not None:
            emit(changes)

    # --- weights ---

    def _error(self, text: str) -> DataError:
        return DataError(f"operator '{self.context.operator}': {text}")

    def _weighted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        ops = plain(column_of(batch, OP, self._error))
        is_insert, is_delete = pc.equal(ops, INSERT), pc.equal(ops, DELETE)
        if ops.null_count or not pc.all(pc.or_(is_insert, is_delete)).as_py():
            raise self._error(
                f"the column '{OP}' of a changelog has '{INSERT}' and '{DELETE}' here, and another value has come: "
                f"aggregate in front of to_upsert()"
            )
        weights = pc.if_else(is_insert, pa.scalar(1, pa.int64()), pa.scalar(-1, pa.int64()))
        names, arrays = list(self.context.key), [batch.column(name) for name in self.context.key]
        for name in columns_of(self.aggregates):
            column = plain(column_of(batch, name, self._error))
            names.append(_valid(name))
            arrays.append(pc.if_else(column.is_valid(), weights, pa.scalar(0, pa.int64())))
            if name in self._summed:
                names.append(_signed(name))
                arrays.append(self._times(name, column, weights))
        return pa.RecordBatch.from_arrays([*arrays, weights], names=[*names, _WEIGHT])

    def _times(self, name: str, column: pa.Array, weights: pa.Array) -> pa.Array:
        kind = pa.int64() if pa.types.is_integer(column.type) else column.type
        try:
            return pc.multiply_checked(column.cast(kind), weights.cast(kind) if kind != pa.int64() else weights)
        except (pa.ArrowException, NotImplementedError) as error:
            raise self._error(f"the values of '{name}' cannot be taken back: {error}. Cast the column") from error

    def _results(self, current: pa.RecordBatch) -> pa.RecordBatch:
        """The key and the outputs."""
        names = [*self.context.key, *(each.output for each in self.aggregates)]
        if not self.takes_back:
            return current.select(names)
        arrays = [current.column(name) for name in self.context.key]
        arrays += [_output(each, current) for each in self.aggregates]
        return pa.RecordBatch.from_arrays(arrays, names=names)


def _signed(column: str) -> str:
    return f"penstock.sum.{column}"


def _valid(column: str) -> str:
    return f"penstock.count.{column}"


def _output(aggregate: Aggregate, current: pa.RecordBatch) -> pa.Array:
    if aggregate.column is None:
        return current.column(_WEIGHT)
    count = current.column(_valid(aggregate.column))
    if aggregate.function == "count":
        return count
    total = current.column(_signed(aggregate.column))
    has_values = pc.greater(count, 0)
    if aggregate.function == "mean":
        total = pc.divide(total.cast(pa.float64()), pc.max_element_wise(count, 1).cast(pa.float64()))
    return pc.if_else(has_values, total, pa.scalar(None, total.type))


class UpsertOperator(NamedOperator):
    """Of the changes of a key in a batch, the one that they come to."""

    def __init__(self, key: Sequence[str]) -> None:
        self.key = tuple(key)

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> None:
        columns = key_columns(batch, self.key, self.context.operator)
        ops = plain(column_of(batch, OP, lambda text: DataError(f"operator '{self.context.operator}': {text}")))
        emit_batch = upserts(batch, columns, np.asarray(pc.equal(ops, INSERT)))
        if emit_batch.num_rows:
            emit(emit_batch)


def upserts(batch: pa.RecordBatch, key: Sequence[pa.Array], is_insert: npt.NDArray[np.bool_]) -> pa.RecordBatch:
    """The last change of each key, which is an update if the first one was a delete; nothing if it came and went."""
    codes = key_codes(key)
    order = np.argsort(codes, kind="stable")
    bounds = np.flatnonzero(np.diff(codes[order], prepend=-1, append=-1))
    first, last = order[bounds[:-1]], order[bounds[1:] - 1]
    is_kept = is_insert[last] | ~is_insert[first]
    first, last = first[is_kept], last[is_kept]
    ops = np.where(is_insert[last], np.where(is_insert[first], INSERT, UPDATE), DELETE)
    at = np.argsort(last)
    rows = take_rows(batch, last[at])
    position = rows.schema.get_field_index(OP)
    return rows.set_column(position, OP, pa.array(ops[at].tolist(), pa.string()))
