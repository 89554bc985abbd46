"""Rows of PySpark's Python data sources to Arrow batches and back, with Spark's own converters.

What becomes of a value is thereby what Spark makes of it. PySpark is imported where it is used, so that only those who
run a data source pay for it; those of its names that are not public are all in this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from penstock.columnar.schemas.schema_ddl import as_schema
from penstock.columnar.schemas.schema_diff import differences
from penstock.errors import DataError, PipelineError

StructType: TypeAlias = Any
Row: TypeAlias = Any


def make_data_source(kind: type, options: Mapping[str, Any]) -> Any:
    """The user's data source, with options as Spark hands them over: strings, by names without case."""
    from pyspark.sql.datasource import CaseInsensitiveDict

    return kind(CaseInsensitiveDict({name: _text(value) for name, value in options.items() if value is not None}))


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def require_data_source(where: str, kind: Any) -> None:
    from pyspark.sql.datasource import DataSource

    if not (isinstance(kind, type) and issubclass(kind, DataSource)):
        raise PipelineError(f"{where} takes a class derived from pyspark.sql.datasource.DataSource, not {kind!r}")


def struct_of(schema: Any) -> StructType:
    """The `StructType` of what a user wrote for a schema. Raises `PipelineError`."""
    from pyspark.sql.types import StructType as Struct

    return schema if isinstance(schema, Struct) else spark_schema(as_schema(schema), PipelineError)


def spark_schema(schema: pa.Schema, error: type[Exception] = DataError) -> StructType:
    """The `StructType` of an Arrow schema. Raises `error` if Spark has no such types."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_schema

    for field in schema:
        try:
            from_arrow_schema(pa.schema([field.remove_metadata()]))
        except PySparkException as cause:
            raise error(
                f"column '{field.name}' is {field.type}, for which Spark has no type: cast it to another type in front"
            ) from cause
    return from_arrow_schema(schema.remove_metadata())


def arrow_schema(struct: StructType) -> pa.Schema:
    """How Spark sends records of this schema to Python and back."""
    from pyspark.sql.pandas.types import to_arrow_schema

    schema: pa.Schema = to_arrow_schema(struct, timezone="UTC")
    return schema


class RowsToArrow:
    """Makes batches of what a data source yields. `where` names the data source in errors."""

    def __init__(self, struct: StructType, where: str) -> None:
        from pyspark.sql import Row as SparkRow
        from pyspark.sql.conversion import LocalDataToArrowConversion

        # The first conversion of a process imports pandas: here, where no rate of a chain is measured.
        pa.array([0])
        self.schema = arrow_schema(struct)
        self.where = where
        self._names: list[str] = list(struct.names)
        self._named: type = SparkRow
        self._converters: list[Callable[[Any], Any]] = [
            LocalDataToArrowConversion._create_converter(field.dataType) for field in struct.fields
        ]

    def batch_of(self, rows: Sequence[Row], first: int, place: str = "") -> pa.RecordBatch:
        """Rows as one batch. `first` is the number of the first one, for the message of a `DataError`."""
        try:
            return self._convert(rows)
        except Exception as error:
            raise self._error(rows, first, place, error) from error

    def _convert(self, rows: Sequence[Row]) -> pa.RecordBatch:
        columns: list[list[Any]] = [[] for _ in self._names]
        for row in rows:
            for column, convert, value in zip(columns, self._converters, self._values(row), strict=True):
                column.append(convert(value))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _values(self, row: Row) -> Sequence[Any]:
        """The values of one row in the order of the schema: a named Row says itself which is which."""
        if not isinstance(row, list | tuple):
            raise DataError(f"it is {_kind(row)}: yield tuples, lists, Rows or pyarrow.RecordBatches")
        if len(row) != len(self._names):
            raise DataError(f"it has {len(row)} values and the schema {len(self._names)}: {', '.join(self._names)}")
        if isinstance(row, self._named) and hasattr(row, "__fields__"):
            if sorted(row.__fields__) != sorted(self._names):
                raise DataError(f"it has the fields {', '.join(row.__fields__)}; the schema has {self._names}")
            named: Row = row
            return [named[name] for name in self._names]
        return row

    def _error(self, rows: Sequence[Row], first: int, place: str, error: Exception) -> DataError:
        """Convert one by one, to say which row it is and, if it is one value, which column."""
        for number, row in enumerate(rows):
            said = f"{self.where}: row {first + number}{place}"
            try:
                self._convert([row])
            except DataError as wrong:
                return DataError(f"{said} does not fit the schema: {wrong}")
            except Exception as wrong:
                return DataError(f"{said} does not fit the schema: {self._column_of(row)}{wrong}. It is {_short(row)}")
        return DataError(f"{self.where}: rows {first} to {first + len(rows) - 1}{place} do not fit: {error}")

    def _column_of(self, row: Row) -> str:
        for name, convert, value in zip(self._names, self._converters, self._values(row), strict=True):
            field = self.schema.field(name)
            try:
                pa.array([convert(value)], field.type)
            except Exception:
                return f"column '{name}' is {field.type}, and {_short(value)} is not: "
        return ""

    def adapted(self, batch: pa.RecordBatch, place: str = "") -> pa.RecordBatch:
        """A batch that the data source made itself, in the schema: columns by name, cast where nothing is lost."""
        if batch.schema.equals(self.schema):
            return batch
        if sorted(batch.schema.names) != sorted(self._names):
            said = differences(self.schema, batch.schema)
            raise DataError(f"{self.where}: a batch{place} does not have the columns of the schema: {said}")
        columns = []
        for field in self.schema:
            column = batch.column(field.name)
            try:
                columns.append(column if column.type == field.type else column.cast(field.type))
            except (pa.ArrowException, NotImplementedError) as error:
                raise DataError(
                    f"{self.where}: column '{field.name}' of a batch{place} is {column.type} and cannot become "
                    f"{field.type}, which the schema says: {error}"
                ) from error
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def rows_of(batch: pa.RecordBatch, struct: StructType) -> Iterator[Row]:
    """The rows of a batch as Spark would hand them to a writer."""
    from pyspark.sql.conversion import ArrowTableToRowsConversion
    from pyspark.sql.types import _create_row

    converters = [ArrowTableToRowsConversion._create_converter(field.dataType) for field in struct.fields]
    columns = [column.to_pylist() for column in batch.columns]
    for values in zip(*columns, strict=True):
        yield _create_row(struct.names, [convert(value) for convert, value in zip(converters, values, strict=True)])


def _kind(value: Any) -> str:
    return f"a {type(value).__name__} ({_short(value)})"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
