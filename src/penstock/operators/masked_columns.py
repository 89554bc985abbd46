"""Masked columns of filtered aggregates, made inside the operator that aggregates: they never travel."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.expressions import evaluated
from penstock.columnar.gather import null_unless
from penstock.columnar.plain import plain
from penstock.columnar.schemas.schema_guard import column_of
from penstock.errors import DataError
from penstock.model.filtered import Masked


class MaskedColumns:
    """Adds masked columns to batches. Each condition is evaluated once for a batch, all in one call of Arrow."""

    def __init__(self, masks: Sequence[Masked]) -> None:
        self._masks = tuple({mask.name: mask for mask in masks}.values())
        conditions: list[pc.Expression] = []
        self._condition_of: list[int] = []
        for mask in self._masks:
            known = [number for number, each in enumerate(conditions) if each.equals(mask.where)]
            self._condition_of.append(known[0] if known else len(conditions))
            conditions += [] if known else [mask.where]
        self._conditions = conditions

    def added(self, batch: pa.RecordBatch, error: Callable[[str], DataError]) -> pa.RecordBatch:
        """The batch with its masked columns. Raises the `error` for a condition that Arrow cannot evaluate."""
        if not self._masks:
            return batch
        holds = [self._checked(array, error) for array in evaluated(batch, self._conditions, error)]
        arrays, names = list(batch.columns), list(batch.schema.names)
        for mask, number in zip(self._masks, self._condition_of, strict=True):
            column = holds[number] if mask.column is None else plain(column_of(batch, mask.column, error))
            arrays.append(null_unless(holds[number], column))
            names.append(mask.name)
        return pa.RecordBatch.from_arrays(arrays, names=names)

    def _checked(self, array: pa.Array, error: Callable[[str], DataError]) -> pa.Array:
        if not pa.types.is_boolean(array.type):
            raise error(f"a condition of a filtered aggregate is {array.type}: where=… must be true or false")
        # A null would be a null of the result, which is what a condition that does not hold is too.
        return array.fill_null(False) if array.null_count else array
