"""Arrow columns to and from the 64-bit words in which the columnar state keeps them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.fixed_width import FIXED_WIDTH
from penstock.columnar.hashing import word_values
from penstock.columnar.plain import plain_type
from penstock.errors import DataError

Mask = npt.NDArray[np.bool_]


def column_type(name: str, schema: pa.Schema, column: str) -> pa.DataType:
    """The plain type of a column that the state `name` needs. Raises `DataError` if it is not there."""
    position = schema.get_field_index(column)
    if position < 0:
        raise DataError(f"state '{name}' needs the column '{column}', which is not in {schema.names}")
    return plain_type(schema.field(position).type)


def fits_word(kind: pa.DataType) -> bool:
    """Whether a value of this type is one word."""
    return pa.types.is_null(kind) or word_values(pa.array([], kind)) is not None


def words_of(array: pa.Array) -> npt.NDArray[np.int64]:
    """The words of an array of a type that fits; arbitrary at nulls, and perhaps the array's own buffer."""
    if pa.types.is_null(array.type):
        return np.zeros(len(array), dtype=np.int64)
    words = word_values(array)
    assert words is not None
    return words


def array_of_words(words: npt.NDArray[np.int64], kind: pa.DataType, nulls: Mask | None) -> pa.Array:
    """The inverse of `words_of`, with nulls where the mask says so."""
    if pa.types.is_null(kind):
        return pa.nulls(len(words))
    if pa.types.is_boolean(kind):
        return pa.array(words.astype(np.bool_), mask=nulls)
    if pa.types.is_floating(kind):
        return array_of_values(words.view(np.float64), kind, nulls)
    return array_of_values(words, kind, nulls)


def array_of_values(values: npt.NDArray[Any], kind: pa.DataType, nulls: Mask | None) -> pa.Array:
    """An array of a fixed-width `kind` around numbers of its storage, cast to its width."""
    stored = np.ascontiguousarray(values.astype(FIXED_WIDTH[kind.id], copy=False))
    validity = None if nulls is None or not nulls.any() else pa.array(~nulls).buffers()[1]
    return pa.Array.from_buffers(kind, len(stored), [validity, pa.py_buffer(stored)])


def with_nulls(array: pa.Array, nulls: Mask | None) -> pa.Array:
    """The array with nulls where the mask says so, for any type."""
    if nulls is None or not nulls.any():
        return array
    return array.take(pa.array(np.arange(len(array)), mask=nulls))
