"""Arrow columns as the CSV that `COPY … FROM STDIN (FORMAT csv)` takes: encoded by Arrow, never row by row.

An unquoted empty field is a null, a quoted one an empty text, which is how Arrow writes them.
"""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from penstock.errors import DataError


def csv_of(batch: pa.RecordBatch, table: str) -> bytes:
    """Raises `DataError` for a column whose type has no text that PostgreSQL reads."""
    columns = [_readable(field, column, table) for field, column in zip(batch.schema, batch.columns, strict=True)]
    stream = io.BytesIO()
    options = pyarrow.csv.WriteOptions(include_header=False)
    pyarrow.csv.write_csv(pa.RecordBatch.from_arrays(columns, names=batch.schema.names), stream, options)
    return stream.getvalue()


def _readable(field: pa.Field, column: pa.Array, table: str) -> pa.Array:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _readable(field, column.dictionary_decode(), table)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return _hexadecimal(column.cast(pa.large_binary()))
    if pa.types.is_nested(kind):
        raise DataError(
            f"the column '{field.name}' for {table} is {kind}: write it as a text of JSON in front of the sink, into a "
            f"column of type jsonb"
        )
    return column


def _hexadecimal(column: pa.Array) -> pa.Array:
    """Bytes as PostgreSQL's `\\x0a1b`: the whole buffer is encoded at once, and each value has twice its offsets."""
    # Without an offset of its own the buffers begin with the first value.
    column = pa.concat_arrays([column]) if column.offset == 0 else pa.concat_arrays([column, column.slice(0, 0)])
    validity, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    digits = pa.py_buffer(data.to_pybytes().hex().encode()) if data is not None else pa.py_buffer(b"")
    if column.offset:
        validity = pc.is_valid(column).buffers()[1]
    texts = pa.LargeStringArray.from_buffers(len(column), pa.py_buffer(2 * bounds), digits, validity)
    return pc.binary_join_element_wise(pa.scalar("\\x", pa.large_string()), texts, pa.scalar("", pa.large_string()))
