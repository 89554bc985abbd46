"""Schemas: what users may write for one, and the guard that no operator's output changes its shape on the way.

A schema is a `pyarrow.Schema`, a DDL string (`"name string, total bigint"`) or anything with PySpark's `jsonValue`
(a `StructType`); neither Spark nor a JVM is asked.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from penstock.columnar.schemas.schema_ddl import SchemaLike, as_schema
from penstock.columnar.schemas.schema_diff import differences
from penstock.errors import DataError

__all__ = ["SchemaGuard", "SchemaLike", "as_schema", "column_of"]


class SchemaGuard:
    """Keeps what passes one point of a pipeline to one schema: the declared one, or that of the first batch.

    A batch with a declared schema is cast to it, where no value is lost. Without one, only a column that has no
    type yet because it is all null is brought into line. Whether a field may be null is not looked at.
    """

    def __init__(self, where: str, declared: pa.Schema | None = None) -> None:
        self.schema = declared
        self.where = where
        self.is_declared = declared is not None

    def check(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch in the one schema. Raises `DataError`."""
        known = self.schema
        if known is None:
            self.schema = batch.schema.remove_metadata()
            return batch
        if batch.schema.equals(known):
            return batch
        return self._adapted(batch, known)

    def _adapted(self, batch: pa.RecordBatch, known: pa.Schema) -> pa.RecordBatch:
        if sorted(batch.schema.names) != sorted(known.names) or (
            not self.is_declared and batch.schema.names != known.names
        ):
            raise self._error(known, batch.schema)
        columns = []
        for field in known:
            column = batch.column(field.name)
            if column.type != field.type:
                if not (self.is_declared or pa.types.is_null(column.type)):
                    raise self._error(known, batch.schema)
                column = self._cast(column, field)
            columns.append(column)
        try:
            return pa.RecordBatch.from_arrays(columns, schema=known)
        except (pa.ArrowException, ValueError) as error:
            raise DataError(f"{self.where}: {error}") from error

    def _cast(self, column: pa.Array, field: pa.Field) -> pa.Array:
        try:
            return column.cast(field.type)
        except (pa.ArrowException, NotImplementedError) as error:
            raise DataError(
                f"{self.where}: column '{field.name}' is {column.type} and cannot become {field.type}: {error}"
            ) from error

    def _error(self, known: pa.Schema, found: pa.Schema) -> DataError:
        if self.is_declared:
            return DataError(
                f"{self.where}: the batch does not have the columns of the declared schema: "
                f"{differences(known, found)}. It has {', '.join(found.names) or 'none'}"
            )
        return DataError(
            f"{self.where}: the schema changed from one batch to the next: {differences(known, found)}. "
            f"Cast to one type in the function, or declare the output with schema=…"
        )


def column_of(batch: pa.RecordBatch, name: str, error: Callable[[str], Exception]) -> pa.Array:
    """The one column of this name."""
    if batch.schema.names.count(name) != 1:
        known = ", ".join(batch.schema.names) or "none"
        raise error(f"column '{name}' not found, or ambiguous; the columns are: {known}")
    return batch.column(name)
