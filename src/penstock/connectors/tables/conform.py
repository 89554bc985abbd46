"""A batch in the shape of a table: columns in its order and types, or an error that names those that do not fit."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.errors import DataError


def conformed(batch: pa.RecordBatch, schema: pa.Schema, table: str) -> pa.RecordBatch:
    """The rows of `batch` with exactly the columns of `schema`. A nullable column that the batch lacks is null.

    Raises `DataError`: a value that a type cannot hold is never cut, a column that the table lacks is never dropped.
    """
    if batch.schema.equals(schema):
        return batch
    wrong = _misfits(batch.schema, schema)
    columns: list[Any] = []
    for field in schema:
        place = batch.schema.get_field_index(field.name)
        if place < 0:
            columns.append(pa.nulls(batch.num_rows, field.type))
            continue
        column = batch.column(place)
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except pa.ArrowException as error:
            wrong.append(f"'{field.name}' is {column.type} and should be {field.type} ({_first_line(error)})")
            continue
        if not field.nullable and column.null_count:
            wrong.append(f"'{field.name}' is null in {column.null_count} rows, and the table does not take nulls")
    if wrong:
        raise DataError(
            f"the records do not fit the table {table}: {'; '.join(wrong)}. Rename, cast or drop columns in front of "
            f"the sink, or change the table"
        )
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _misfits(given: pa.Schema, schema: pa.Schema) -> list[str]:
    wrong = [f"the table has no column '{name}'" for name in given.names if name not in schema.names]
    wrong += [f"the column '{name}' comes twice" for name in set(given.names) if given.names.count(name) > 1]
    wrong += [
        f"'{field.name}' is missing, and the table does not take nulls"
        for field in schema
        if field.name not in given.names and not field.nullable
    ]
    return wrong


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
