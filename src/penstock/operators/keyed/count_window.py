"""The operator behind `KeyedStream.count_window`: aggregates of a fixed number of records of a key."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.columnar.grouping import key_columns
from penstock.errors import DataError
from penstock.model.aggregates import Aggregate
from penstock.model.filtered import Masked
from penstock.model.windows import CountWindows
from penstock.operators.contract import Emit
from penstock.operators.masked_columns import MaskedColumns
from penstock.operators.named import NamedOperator
from penstock.state.windows.counts import CountWindowDescriptor


class CountWindowOperator(NamedOperator):
    """Folds each batch into the open window of each key, and emits those that are complete."""

    def __init__(self, kind: CountWindows, aggregates: Sequence[Aggregate], masks: Sequence[Masked] = ()) -> None:
        self.kind = kind
        self.aggregates = tuple(aggregates)
        self.masked = MaskedColumns(masks)

    def setup(self) -> None:
        described = CountWindowDescriptor("count_windows", self.context.key, self.aggregates, self.kind)
        self._state = self.context.keyed.register(described)

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> None:
        key_columns(batch, self.context.key, self.context.operator)
        try:
            for result in self._state.add(self.masked.added(batch, DataError)):
                emit(result)
        except DataError as error:
            raise DataError(f"operator '{self.context.operator}': {error}") from error
