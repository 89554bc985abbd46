"""Columns without their encoding: equal values look alike, whichever way they came."""

from __future__ import annotations

import pyarrow as pa

from penstock.columnar.fixed_width import FIXED_WIDTH
from penstock.columnar.gather import run_numbers, take


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type without its encoding: of a dictionary or of run ends the values, of an extension the storage.

    Views become the large types, because Arrow cannot yet take rows of them.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(plain_type(field.type)) for field in kind])
    if pa.types.is_string_view(kind):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary_view(kind) else kind


def plain(array: pa.Array) -> pa.Array:
    """The values without their encoding. Children of a struct are left as they are."""
    if array.type.id in FIXED_WIDTH:  # most are: one question instead of five
        return array
    if isinstance(array, pa.ExtensionArray):
        return plain(array.storage)
    if pa.types.is_dictionary(array.type):
        return _decoded(array)
    if pa.types.is_run_end_encoded(array.type):
        return take(plain(array.values), run_numbers(array))
    if pa.types.is_string_view(array.type) or pa.types.is_binary_view(array.type):
        return array.cast(plain_type(array.type))
    return array


def _decoded(array: pa.DictionaryArray) -> pa.Array:
    values = plain(array.dictionary)
    if pa.types.is_struct(values.type):
        # Arrow cannot take rows of a struct with views in it.
        values = values.cast(plain_type(values.type))
    # By the numbers as Arrow has them: a null among them is a null of the result.
    return values.take(array.indices)
