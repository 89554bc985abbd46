"""The operators behind `select`, `with_column`, `drop`, `rename` and `cast`: whole columns, and no rows.

An expression is evaluated by Arrow for a whole batch. Whatever it cannot do with the columns that there are, or with
their values, is a `DataError` that names the operator and the columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.expressions import evaluated
from penstock.columnar.schemas.schema_guard import column_of
from penstock.errors import DataError
from penstock.operators.contract import Emit
from penstock.operators.named import NamedOperator

ONE_GROUP = "penstock.group"
"""The key of `key_by()` without columns: it is 0 in every record, and no result has it."""


class ColumnOperator(NamedOperator):
    """Knows how to say that a column is not there, or an expression cannot be evaluated."""

    def error(self, text: str) -> DataError:
        return DataError(f"operator '{self.context.operator}': {text}")

    def position(self, batch: pa.RecordBatch, column: str) -> int:
        column_of(batch, column, self.error)
        return int(batch.schema.get_field_index(column))

    def evaluated(self, batch: pa.RecordBatch, expressions: Sequence[pc.Expression]) -> list[pa.Array]:
        return evaluated(batch, expressions, self.error)


class SelectOperator(ColumnOperator):
    """Columns by name, in this order, and then expressions."""

    def __init__(self, columns: Sequence[str], expressions: Mapping[str, pc.Expression] | None = None) -> None:
        self.columns = list(columns)
        self.expressions = dict(expressions or {})

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> None:
        chosen = [column_of(batch, name, self.error) for name in self.columns]
        if self.expressions:
            chosen += self.evaluated(batch, list(self.expressions.values()))
        emit(pa.RecordBatch.from_arrays(chosen, names=[*self.columns, *self.expressions]))


class WithColumnOperator(ColumnOperator):
    """Adds or replaces one column, which an expression or a function makes from each batch."""

    def __init__(self, column: str, value: pc.Expression | Callable[[pa.RecordBatch], Any]) -> None:
        self.column = column
        self.value = value

    def setup(self) -> None:
        self.guard = self.output_guard()

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> None:
        array = self._made(batch)
        if len(array) != batch.num_rows:
            raise self.error(
                f"column '{self.column}' needs {batch.num_rows} values, and the function returned {len(array)}"
            )
        position = batch.schema.get_field_index(self.column)
        if position < 0:
            emit(self.guard.check(batch.append_column(self.column, array)))
        else:
            emit(self.guard.check(batch.set_column(position, self.column, array)))

    def _made(self, batch: pa.RecordBatch) -> pa.Array:
        if isinstance(self.value, pc.Expression):
            return self.evaluated(batch, [self.value])[0]
        made = self.value(batch)
        if isinstance(made, pa.ChunkedArray):
            return made.combine_chunks()
        if isinstance(made, pa.Scalar):
            return pa.repeat(made, batch.num_rows)
        return made if isinstance(made, pa.Array) else pa.array(made)


class DropOperator(ColumnOperator):
    """All columns but some."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> None:
        dropped = {self.position(batch, column) for column in self.columns}
        kept = [position for position in range(batch.num_columns) if position not in dropped]
        if not kept:
            # Without a column, a batch has no rows either: every record would be lost.
            raise self.error(f"no column would be left: drop names all of them ({', '.join(self.columns)})")
        emit(batch.select(kept))


class RenameOperator(ColumnOperator):
    """The same columns under other names."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = dict(names)

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> None:
        for column in self.names:
            self.position(batch, column)
        renamed = [self.names.get(column, column) for column in batch.schema.names]
        twice = sorted({column for column in self.names.values() if renamed.count(column) > 1})
        if twice:
            raise self.error(
                f"rename would make two columns '{twice[0]}'; the columns are: {', '.join(batch.schema.names)}"
            )
        emit(batch.rename_columns(renamed))


class CastOperator(ColumnOperator):
    """Columns in other types, where no value is lost."""

    def __init__(self, types: Mapping[str, pa.DataType]) -> None:
        self.types = dict(types)

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> None:
        for column, kind in self.types.items():
            position = self.position(batch, column)
            array = batch.column(position)
            if array.type == kind:
                continue
            try:
                batch = batch.set_column(position, column, array.cast(kind))
            except (pa.ArrowException, NotImplementedError) as error:
                raise self.error(
                    f"column '{column}' is {array.type} and cannot become {kind}: {error}. Filter such rows out in "
                    f"front, or convert them with with_column"
                ) from error
        emit(batch)


class OneGroupOperator(NamedOperator):
    """Adds the key that all records have."""

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> None:
        emit(batch.append_column(ONE_GROUP, pa.array(np.zeros(batch.num_rows, dtype=np.int8))))


class WithoutGroupOperator(NamedOperator):
    """Removes the key that all records have."""

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> None:
        kept = [name for name in batch.schema.names if name != ONE_GROUP]
        emit(batch.select(kept))
