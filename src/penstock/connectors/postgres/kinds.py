"""Types of PostgreSQL as types of Arrow, and columns of its texts as typed columns: never row by row.

Values come as the texts of PostgreSQL's own output, from a COPY and from the write-ahead log alike, so that a row of
the snapshot and the same row in a change are equal. A type without a counterpart stays the text: `json`, `uuid`, enums,
arrays, and `numeric` without a precision.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DataError

_KINDS: dict[int, pa.DataType] = {
    16: pa.bool_(),
    17: pa.binary(),
    20: pa.int64(),
    21: pa.int16(),
    23: pa.int32(),
    26: pa.int64(),
    700: pa.float32(),
    701: pa.float64(),
    1082: pa.date32(),
    1083: pa.time64("us"),
    1114: pa.timestamp("us"),
    1184: pa.timestamp("us", "UTC"),
}
_NUMERIC = 1700
_HEADER = 4
"""PostgreSQL counts these bytes among the modifier of a type."""

SORTED_KINDS = frozenset({20, 21, 23, 25, 1043, 1082, 1114, 1184, 2950})
"""Types whose order is the same in PostgreSQL (texts by their bytes) and in Arrow."""
TEXTS = frozenset({25, 1043})

SETTINGS = (
    "-c TimeZone=UTC -c DateStyle=ISO -c IntervalStyle=postgres -c bytea_output=hex -c extra_float_digits=3 "
    "-c standard_conforming_strings=on"
)
"""Of a session whose texts are read here."""


def arrow_type(oid: int, modifier: int) -> pa.DataType:
    """The type of a column, by the number and the modifier of its type in `pg_attribute`."""
    if oid == _NUMERIC and modifier >= _HEADER:
        precision, scale = (modifier - _HEADER) >> 16, (modifier - _HEADER) & 0x7FF
        if scale <= precision <= 76:
            return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
    return _KINDS.get(oid, pa.string())


def typed(texts: pa.Array, kind: pa.DataType, where: str) -> pa.Array:
    """A column of texts in its type. Raises `DataError` for a value that the type cannot hold, such as "infinity"."""
    if pa.types.is_string(kind):
        return texts
    if pa.types.is_boolean(kind):
        return pc.equal(texts, "t")
    if pa.types.is_binary(kind):
        return _bytes_of(texts)
    try:
        if pa.types.is_time(kind):
            # Arrow reads no time of a day by itself.
            return pc.binary_join_element_wise("1970-01-01", texts, " ").cast(pa.timestamp("us")).cast(kind)
        return texts.cast(kind)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"{where}: a value is not of type {kind}: {str(error).partition(chr(10))[0]}. Correct the "
            "value in the table, or give the column another type there"
        ) from error


def _bytes_of(texts: pa.Array) -> pa.Array:
    """Bytes from the digits of `\\x0a1b`: all values at once, each has half of its offsets."""
    digits = pc.utf8_slice_codeunits(texts, 2)
    # Nulls have no digits, so that all offsets are even.
    digits = pc.fill_null(digits, "")
    _, offsets, data = digits.buffers()
    bounds = pa.Array.from_buffers(pa.int32(), len(digits) + 1, [None, offsets])
    end = bounds[-1].as_py()
    decoded = bytes.fromhex(data.to_pybytes()[:end].decode()) if end else b""
    halves = pc.divide(bounds, pa.scalar(2, pa.int32()))
    valid = texts.is_valid().buffers()[1] if texts.null_count else None
    return pa.Array.from_buffers(pa.binary(), len(texts), [valid, halves.buffers()[1], pa.py_buffer(decoded)])
