"""The operator behind `KeyedStream.aggregate`: columnar aggregates by key, emitted at every change or by a trigger."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.columnar.grouping import key_columns
from penstock.errors import DataError
from penstock.model.aggregates import Aggregate
from penstock.model.filtered import Masked
from penstock.model.triggers import Trigger
from penstock.operators.contract import Emit
from penstock.operators.keyed.pending import TriggeredOperator
from penstock.operators.masked_columns import MaskedColumns


class AggregateOperator(TriggeredOperator):
    """Folds each batch into columnar aggregates, and emits the current values of the keys in it, or by a trigger."""

    def __init__(
        self, aggregates: Sequence[Aggregate], trigger: Trigger | None = None, masks: Sequence[Masked] = ()
    ) -> None:
        super().__init__(trigger)
        self.aggregates = tuple(aggregates)
        self.masked = MaskedColumns(masks)

    def setup(self) -> None:
        self._state = self.context.keyed.aggregate("aggregates", self.context.key, self.aggregates)
        super().setup()

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> None:
        key_columns(batch, self.context.key, self.context.operator)
        try:
            batch = self.masked.added(batch, DataError)
            if self._pending is None:
                emit(self._state.update(batch))
            else:
                self._state.fold(batch)
                self._pending.add(batch, emit)
        except DataError as error:
            raise DataError(f"operator '{self.context.operator}': {error}") from error

    def show(self, keys: pa.RecordBatch, emit: Emit) -> None:
        emit(self._state.of_keys(keys))
