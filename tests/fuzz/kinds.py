"""Types of columns, values for them, and the plain form in which rows are compared.

A plain row is a dictionary of Python values. Times, timestamps, dates and durations are their integers, so that nothing
depends on how they are shown; dictionaries are decoded. `frozen` makes a value comparable: all NaNs are one value, and
-0.0 is not 0.0, unless it is part of a key.
"""

from __future__ import annotations

import datetime
import decimal
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

Plain = dict[str, Any]

NAN = ("nan",)


@dataclass(frozen=True)
class Kind:
    """A type of column: its Arrow type, how it is written in Python, and how a value is drawn from a small number."""

    text: str
    type: pa.DataType
    value: Callable[[int], Any]
    """For 0, 1, 2 …: different values, as far as the type has so many."""
    is_safe: bool = False
    """Whether pandas gives its values back as they were."""


def _string(n: int) -> str:
    # Empty, short, longer than what a view holds inline, and not of one byte each.
    words = ["", "a", "b", "a string that is longer than twelve bytes", "ä", "\0", "ab"]
    return words[n] if n < len(words) else f"{words[n % len(words)]}{n}"


_FLOATS = [0.0, -0.0, math.nan, 1.5, -2.25, math.inf, -math.inf, 3.0]
_DAY = datetime.date(2024, 2, 27)
_MOMENT = datetime.datetime(2024, 2, 27, 23, 59, 59)
_UTC = datetime.UTC


def _float(n: int) -> float:
    return _FLOATS[n] if n < len(_FLOATS) else float(n)


def _decimal(n: int) -> decimal.Decimal:
    return decimal.Decimal(n - 3) / 4


def _signed(bits: int) -> Callable[[int], int]:
    return lambda n: [0, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)), 1][n] if n < 5 else n


def _unsigned(bits: int) -> Callable[[int], int]:
    return lambda n: [0, 2**bits - 1, 2 ** (bits - 1), 1][n] if n < 4 else n


_INTEGERS = [
    *(Kind(f"int{bits}()", getattr(pa, f"int{bits}")(), _signed(bits), True) for bits in (8, 16, 32, 64)),
    *(Kind(f"uint{bits}()", getattr(pa, f"uint{bits}")(), _unsigned(bits), True) for bits in (8, 16, 32, 64)),
]
_OTHERS = [
    Kind("bool_()", pa.bool_(), lambda n: n % 2 == 1, True),
    Kind("string()", pa.string(), _string, True),
    Kind("large_string()", pa.large_string(), _string),
    Kind("string_view()", pa.string_view(), _string),
    Kind("binary()", pa.binary(), lambda n: _string(n).encode() + b"\xff"),
    Kind("large_binary()", pa.large_binary(), lambda n: _string(n).encode() + b"\xff"),
    Kind("binary_view()", pa.binary_view(), lambda n: _string(n).encode() + b"\xff"),
    Kind("binary(4)", pa.binary(4), lambda n: n.to_bytes(4, "little")),
    Kind("date32()", pa.date32(), lambda n: _DAY + datetime.timedelta(days=n), True),
    Kind("date64()", pa.date64(), lambda n: _DAY + datetime.timedelta(days=n)),
    Kind('time32("s")', pa.time32("s"), lambda n: datetime.time(n % 24, 7)),
    Kind('time64("us")', pa.time64("us"), lambda n: datetime.time(n % 24, 7, 1, n)),
    Kind('timestamp("s")', pa.timestamp("s"), lambda n: _MOMENT + datetime.timedelta(seconds=n)),
    Kind('timestamp("ms")', pa.timestamp("ms"), lambda n: _MOMENT + datetime.timedelta(milliseconds=n)),
    Kind('timestamp("us")', pa.timestamp("us"), lambda n: _MOMENT + datetime.timedelta(microseconds=n), True),
    Kind('timestamp("ns")', pa.timestamp("ns"), lambda n: _MOMENT + datetime.timedelta(microseconds=n)),
    Kind(
        'timestamp("us", "UTC")',
        pa.timestamp("us", "UTC"),
        lambda n: (_MOMENT + datetime.timedelta(seconds=n)).replace(tzinfo=_UTC),
    ),
    Kind(
        'timestamp("ms", "Europe/Paris")',
        pa.timestamp("ms", "Europe/Paris"),
        # Around the hour that comes twice.
        lambda n: datetime.datetime(2024, 10, 26, 23, 30, tzinfo=_UTC) + datetime.timedelta(minutes=15 * n),
    ),
    Kind('duration("us")', pa.duration("us"), lambda n: datetime.timedelta(microseconds=n - 2)),
    Kind("decimal32(5, 2)", pa.decimal32(5, 2), _decimal),
    Kind("decimal64(15, 2)", pa.decimal64(15, 2), _decimal),
    Kind("decimal128(20, 2)", pa.decimal128(20, 2), _decimal),
    Kind("decimal256(50, 2)", pa.decimal256(50, 2), _decimal),
    Kind("float16()", pa.float16(), _float),
    Kind("float32()", pa.float32(), _float),
    Kind("float64()", pa.float64(), _float),
    Kind("dictionary(int8(), string())", pa.dictionary(pa.int8(), pa.string()), _string),
    Kind("dictionary(int32(), int64())", pa.dictionary(pa.int32(), pa.int64()), _signed(64)),
    Kind("dictionary(int16(), float64())", pa.dictionary(pa.int16(), pa.float64()), _float),
    Kind("null()", pa.null(), lambda n: None),
]
_STRUCT = pa.struct([("a", pa.int32()), ("b", pa.string())])
_FLOAT_STRUCT = pa.struct([("a", pa.float64()), ("b", pa.bool_())])
_STRUCTS = [
    Kind('struct([("a", int32()), ("b", string())])', _STRUCT, lambda n: {"a": n % 3 or None, "b": _string(n)}),
    Kind('struct([("a", float64()), ("b", bool_())])', _FLOAT_STRUCT, lambda n: {"a": _float(n), "b": n % 2 == 0}),
]

KEYS: Sequence[Kind] = [*_INTEGERS, *_OTHERS, *_STRUCTS]
"""All that can be part of a key."""

_UNION = pa.sparse_union([pa.field("i", pa.int32()), pa.field("s", pa.string())])
PAYLOADS: Sequence[Kind] = [
    *KEYS,
    Kind("list_(int32())", pa.list_(pa.int32()), lambda n: [*range(n % 4), None]),
    Kind("large_list(string())", pa.large_list(pa.string()), lambda n: [_string(n)] * (n % 3)),
    Kind("map_(string(), int64())", pa.map_(pa.string(), pa.int64()), lambda n: [("k", n), ("l", None)][: n % 3]),
    Kind('sparse_union([("i", int32()), ("s", string())])', _UNION, lambda n: n if n % 2 else _string(n)),
]
"""All that records may carry beside their keys."""

NUMBERS: Sequence[Kind] = [kind for kind in KEYS if pa.types.is_integer(kind.type) or pa.types.is_floating(kind.type)]
WORDS: Sequence[Kind] = [
    *NUMBERS,
    *(kind for kind in KEYS if pa.types.is_temporal(kind.type) or kind.type in (pa.bool_(), pa.decimal64(15, 2))),
]
"""Of which an aggregate takes the least, the greatest, the first and the last."""

_BY_TEXT = {kind.text: kind for kind in PAYLOADS}


def kind_of(text: str) -> Kind:
    return _BY_TEXT[text]


def array_of(kind: Kind, numbers: Iterable[int | None]) -> pa.Array:
    """The values of these numbers; null for None."""
    values = [None if number is None else kind.value(number) for number in numbers]
    if pa.types.is_union(kind.type):
        return _union_of(values)
    return pa.array(values, kind.type)


def _union_of(values: list[Any]) -> pa.Array:
    is_string = [isinstance(value, str) for value in values]
    integers = pa.array([None if is_it else value for value, is_it in zip(values, is_string, strict=True)], pa.int32())
    strings = pa.array([value if is_it else None for value, is_it in zip(values, is_string, strict=True)], pa.string())
    return pa.UnionArray.from_sparse(pa.array(map(int, is_string), pa.int8()), [integers, strings], ["i", "s"])


def number_in(chooser: random.Random, distinct: int, nulls: float) -> int | None:
    return None if chooser.random() < nulls else chooser.randrange(distinct)


# --- the plain form ---

_AS_INTEGERS = (pa.types.is_timestamp, pa.types.is_duration, pa.types.is_time, pa.types.is_date)


def plain_values(array: pa.Array) -> list[Any]:
    kind = array.type
    if pa.types.is_dictionary(kind):
        values = plain_values(array.dictionary)
        return [None if index is None else values[index] for index in array.indices.to_pylist()]
    if pa.types.is_struct(kind):
        # Field by field, since fields may need it too; a null struct has null fields.
        columns = [plain_values(column) for column in array.flatten()]
        names = [field.name for field in kind]
        rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        return [row if is_valid else None for row, is_valid in zip(rows, array.is_valid().to_pylist(), strict=True)]
    if any(is_one(kind) for is_one in _AS_INTEGERS):
        return array.view(pa.int32() if kind.bit_width == 32 else pa.int64()).to_pylist()
    return [value.item() if hasattr(value, "item") else value for value in array.to_pylist()]


def plain_rows(batch: pa.RecordBatch) -> list[Plain]:
    columns = [plain_values(column) for column in batch.columns]
    return [dict(zip(batch.schema.names, values, strict=True)) for values in zip(*columns, strict=True)]


def one_zero(value: Any) -> Any:
    """The value, or 0.0 for -0.0: a key of zero is handed to functions as either of them. Fields included."""
    if isinstance(value, float):
        return value + 0.0
    if isinstance(value, dict):
        return {name: one_zero(item) for name, item in value.items()}
    return [one_zero(item) for item in value] if isinstance(value, list) else value


def frozen(value: Any, is_key: bool = False) -> Any:
    """A value that can be compared and looked up. In a key, the two zeros are one."""
    if isinstance(value, float):
        if math.isnan(value):
            return NAN
        return value.hex() if value or not is_key else (0.0).hex()
    if isinstance(value, dict):
        return tuple((name, frozen(item, is_key)) for name, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(frozen(item, is_key) for item in value)
    # 1 is 1.0 and True for Python, and not here.
    return (type(value).__name__, value) if isinstance(value, bool) else value


def key_of(row: Plain, columns: Iterable[str]) -> tuple[Any, ...]:
    return tuple(frozen(row[column], is_key=True) for column in columns)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type in which keyed state gives back a key of this one: without its encoding, views as large types."""
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_string_view(kind):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary_view(kind) else kind
