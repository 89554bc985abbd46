"""The stateless operators behind `map`, `filter`, `flat_map`, `select`, `with_column` and `key_by`.

An operator is made once for every subtask, from a factory that travels to the workers in Spark's closure.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.expressions import evaluated
from penstock.columnar.gather import filter_rows
from penstock.columnar.grouping import key_columns
from penstock.errors import DataError
from penstock.operators.contract import Emit, UserFunction
from penstock.operators.formats import As, Format, format_of
from penstock.operators.named import NamedOperator
from penstock.user_code import called_with


class FunctionOperator(NamedOperator):
    """Calls a function with each batch, in the form that its user chose."""

    def __init__(self, function: UserFunction | pc.Expression, as_: As, schema: pa.Schema | None = None) -> None:
        self.function = function
        self.as_ = as_
        self.schema = schema

    def setup(self) -> None:
        self.format: Format = format_of(self.as_, self.output_guard(self.schema))


class MapOperator(FunctionOperator):
    """One output for each input: a batch for a batch, or a row for a row."""

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> None:
        given = self.format.of(batch)
        outputs = called_with(self.function, given) if self.as_ == "rows" else [self.function(given)]
        result = self.format.batch(outputs)
        if result is not None:
            emit(result)


class FlatMapOperator(FunctionOperator):
    """No, one or several outputs for each batch or row."""

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> None:
        format, given = self.format, self.format.of(batch)
        if self.as_ == "rows":
            made = called_with(lambda row: format.outputs(self.function(row)), given)
            result = format.batch(list(itertools.chain.from_iterable(made)))
            if result is not None:
                emit(result)
            return
        for output in format.outputs(self.function(given)):
            result = format.batch([output])
            if result is not None:
                emit(result)


class FilterOperator(FunctionOperator):
    """Keeps the rows that the function, or an Arrow expression, chooses."""

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> None:
        if isinstance(self.function, pc.Expression):
            chosen: object = self.function
        elif self.as_ == "rows":
            chosen = np.fromiter(map(bool, called_with(self.function, self.format.of(batch))), np.bool_, batch.num_rows)
        else:
            chosen = self.function(self.format.of(batch))
        kept = self._kept(batch, chosen)
        if kept is not None and kept.num_rows:
            emit(kept)

    def _error(self, text: str) -> DataError:
        return DataError(f"operator '{self.context.operator}': {text}")

    def _kept(self, batch: pa.RecordBatch, chosen: object) -> pa.RecordBatch | None:
        if isinstance(chosen, pc.Expression):
            (chosen,) = evaluated(batch, [chosen], self._error)
        if self.format.is_one(chosen):
            return self.format.batch([chosen])
        if isinstance(chosen, pa.ChunkedArray):
            chosen = chosen.combine_chunks()
        elif hasattr(chosen, "to_arrow"):
            chosen = chosen.to_arrow()
        mask = chosen if isinstance(chosen, pa.Array) else pa.array(chosen, from_pandas=True)
        if not pa.types.is_boolean(mask.type) or len(mask) != batch.num_rows:
            raise DataError(
                f"operator '{self.context.operator}': filter needs a boolean for each of {batch.num_rows} rows, an "
                f"Arrow expression or the filtered batch, and the function returned {len(mask)} of type {mask.type}"
            )
        return filter_rows(batch, mask)


class KeyCheckOperator(NamedOperator):
    """Lets records pass whose key has no null, and fails at the first one that has."""

    def __init__(self, key: Sequence[str]) -> None:
        self.key = tuple(key)

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> None:
        for name, column in zip(self.key, key_columns(batch, self.key, self.context.operator), strict=True):
            if column.null_count:
                raise DataError(
                    f"operator '{self.context.operator}': the key column '{name}' is null in {column.null_count} of "
                    f'{batch.num_rows} rows: filter them out, or say key_by(…, nulls="group")'
                )
        emit(batch)
