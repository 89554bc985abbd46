"""The operator behind `KeyedStream.aggregate`: columnar aggregates by key, emitted at every change or at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from penstock.columnar.grouping import key_columns
from penstock.errors import DataError
from penstock.model.aggregates import Aggregate
from penstock.model.filtered import Masked
from penstock.operators.contract import Emit, OperatorContext
from penstock.operators.masked_columns import MaskedColumns
from penstock.operators.named import NamedOperator

_EMITTED_ROWS = 1 << 12
"""Rows of one batch at the end of an input."""


class Pending:
    """The keys that have had records since they were emitted, for operators that emit at the end of their input.

    They are state: after a failure the same keys are pending, and after the end none is.
    """

    def __init__(self, context: OperatorContext) -> None:
        self._state = context.keyed.aggregate("pending", context.key, [Aggregate("count", None, "")])
        self._key = list(context.key)

    def add(self, batch: pa.RecordBatch) -> None:
        self._state.fold(batch.select(self._key))

    def pop(self) -> Iterator[pa.RecordBatch]:
        """The keys, in batches; then none is pending."""
        taken = self._state.take_all()
        if taken is not None:
            keys = taken.select(self._key)
            for start in range(0, keys.num_rows, _EMITTED_ROWS):
                yield keys.slice(start, _EMITTED_ROWS)


class AggregateOperator(NamedOperator):
    """Folds each batch into columnar aggregates, and emits the current values of the keys in it, or all at the end."""

    def __init__(self, aggregates: Sequence[Aggregate], is_final: bool = False, masks: Sequence[Masked] = ()) -> None:
        self.aggregates = tuple(aggregates)
        self.is_final = is_final
        self.masked = MaskedColumns(masks)

    def setup(self) -> None:
        self._state = self.context.keyed.aggregate("aggregates", self.context.key, self.aggregates)
        self._pending = Pending(self.context) if self.is_final else None

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> None:
        key_columns(batch, self.context.key, self.context.operator)
        try:
            batch = self.masked.added(batch, DataError)
            if self._pending is None:
                emit(self._state.update(batch))
            else:
                self._state.fold(batch)
                self._pending.add(batch)
        except DataError as error:
            raise DataError(f"operator '{self.context.operator}': {error}") from error

    def on_end(self, emit: Emit) -> Iterator[None]:
        if self._pending is not None:
            for keys in self._pending.pop():
                emit(self._state.of_keys(keys))
                yield
