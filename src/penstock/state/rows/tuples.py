"""Tuples of a schema: the values that row functions put into state and get back.

A value is checked, and brought into the form in which a checkpoint would give it back, when it is put in: what a
function reads does not depend on whether there was a failure in between, and a wrong type is an error in the call
that is wrong and not in a checkpoint later.
"""

from __future__ import annotations

import datetime
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.columnar.plain import plain, plain_type
from penstock.columnar.values import values_of
from penstock.errors import DataError

Convert: TypeAlias = Callable[[Any], Any]
Row: TypeAlias = tuple[Any, ...]
ColumnsLike: TypeAlias = pa.RecordBatch | pa.Table | Mapping[str, object]
"""The columns of a state: a batch, or arrays and sequences by name."""

_NAN = math.nan
_SIMPLE: dict[str, type] = {"int64": int, "double": float, "string": str, "large_string": str, "binary": bytes}
_SIMPLE |= {"bool": bool}


class Boxed:
    """A value as it is stored, if Python does not compare it as Arrow does: a list, a struct, a time with a zone.

    All NaNs in it are one, as in a plain field. Of the hour that comes twice when clocks go back, both are different.
    """

    __slots__ = ("scalar",)

    def __init__(self, scalar: pa.Scalar) -> None:
        self.scalar = scalar

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Boxed) and _found_by(self.scalar.as_py()) == _found_by(other.scalar.as_py())

    def __hash__(self) -> int:
        return hash(_found_by(self.scalar.as_py()))

    def __repr__(self) -> str:
        return repr(self.scalar.as_py())


def _found_by(value: Any) -> Any:
    if isinstance(value, float):
        return _NAN if value != value else value  # noqa: PLR0124
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        # Two times of one zone are compared by what its clocks show, and that comes twice.
        return value.astimezone(datetime.UTC)
    if isinstance(value, dict):
        return tuple((name, _found_by(item)) for name, item in value.items())
    return tuple(_found_by(item) for item in value) if isinstance(value, list | tuple) else value


class TupleType:
    """Checks and converts tuples of one schema, whose types are made plain. `what` names the state in errors."""

    def __init__(self, what: str, schema: pa.Schema) -> None:
        self.what = what
        self.schema = pa.schema([field.with_type(plain_type(field.type)) for field in schema])
        self._converts = [_converter(field) for field in self.schema]
        self._boxed = [_is_boxed(field.type) for field in self.schema]
        self.is_plain = not any(self._boxed)
        """Whether a stored tuple is the one that a function gets."""
        self.is_stored_as_seen = self.is_plain and not any(pa.types.is_floating(field.type) for field in self.schema)
        """Whether the values of a column are stored as they are. All NaNs are one, so floats may be other objects."""
        self.freeze: Callable[[object], Row] = self._freezer()
        """The tuple as it is stored: immutable through and through. Raises `DataError`."""

    def _freezer(self) -> Callable[[object], Row]:
        """`_frozen`, behind a check that is compiled for the schema: most tuples are what is stored already."""
        checks = [_stored_as_it_is(field, f"v{number}") for number, field in enumerate(self.schema)]
        if None in checks:
            return self._frozen
        names = "".join(f"v{number}, " for number in range(len(checks)))
        unpacked = f"        {names}= value\n" if names else ""
        source = (
            "def freeze(value):\n"
            f"    if type(value) is tuple and len(value) == {len(checks)}:\n{unpacked}"
            f"        if {' and '.join(f'({check})' for check in checks) or 'True'}:\n"
            "            return value\n"
            "    return frozen(value)\n"
        )
        made: dict[str, Any] = {"frozen": self._frozen, "date": datetime.date, "datetime": datetime.datetime}
        # With a name that is not taken for a line of the user's.
        exec(compile(source, "<penstock: tuples>", "exec"), made)
        freeze: Callable[[object], Row] = made["freeze"]
        return freeze

    def _frozen(self, value: object) -> Row:
        if not isinstance(value, tuple | list) or len(value) != len(self._converts):
            raise DataError(f"{self.what} takes a tuple of {len(self._converts)} for {self._fields()}, not {value!r}")
        try:
            return tuple([convert(item) for convert, item in zip(self._converts, value, strict=True)])
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise DataError(f"{self.what} takes {self._fields()}, not {value!r}: {error}") from error

    def thaw(self, row: Row) -> Row:
        """The tuple as a function gets it: lists and structs are fresh, so that changing them changes no state."""
        if self.is_plain:
            return row
        items = zip(self._boxed, row, strict=True)
        return tuple(item.scalar.as_py() if boxed and item is not None else item for boxed, item in items)

    def thawed(self, rows: Iterable[Row]) -> Iterator[Row]:
        """The tuples as a function gets them."""
        return iter(rows) if self.is_plain else map(self.thaw, rows)

    def array(self, rows: Sequence[Row]) -> pa.StructArray:
        """Stored tuples as one struct column."""
        # Column by column: `zip(*rows)` would make an iterator for each row, all of which the garbage collector visits.
        columns = [list(map(operator.itemgetter(place), rows)) for place in range(len(self.schema))]
        stored = zip(columns, self._boxed, self.schema, strict=True)
        arrays = [pa.array(_scalars_of(column) if boxed else column, field.type) for column, boxed, field in stored]
        if not arrays:
            return pa.array([{}] * len(rows), pa.struct([]))
        return pa.StructArray.from_arrays(arrays, fields=list(self.schema))

    def rows(self, column: pa.StructArray) -> list[Row]:
        """The inverse of `array`."""
        children = zip(column.flatten(), self._boxed, strict=True)
        columns = [_in_boxes(child) if boxed else _canonical(child) for child, boxed in children]
        return list(zip(*columns, strict=True)) if columns else [()] * len(column)

    def rows_of_columns(self, values: ColumnsLike, count: int) -> list[Row]:
        """Columns of a function as stored tuples, `count` of them. Raises `DataError`."""
        names = list(values) if isinstance(values, Mapping) else values.schema.names
        if sorted(names) != sorted(self.schema.names):
            raise DataError(
                f"{self.what} takes the columns {self._fields()}, not {', '.join(map(str, names)) or 'none'}"
            )
        arrays = [self._column(field, values[field.name], count) for field in self.schema]
        return self.rows(pa.StructArray.from_arrays(arrays, fields=list(self.schema))) if arrays else [()] * count

    def _column(self, field: pa.Field, values: object, count: int) -> pa.Array:
        try:
            column = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values, field.type)
            column = plain(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)
            column = column if column.type == field.type else column.cast(field.type)
        except (pa.ArrowException, NotImplementedError, TypeError, ValueError, OverflowError) as error:
            raise DataError(f"{self.what}: column '{field.name}' cannot become {field.type}: {error}") from error
        if len(column) != count:
            raise DataError(f"{self.what}: column '{field.name}' has {len(column)} values for {count} keys")
        if column.null_count and not field.nullable:
            raise DataError(f"{self.what}: '{field.name}' may not be null")
        return column

    def _fields(self) -> str:
        return fields_text(self.schema)


def fields_text(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema) or "no fields"


def _is_boxed(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind) or (pa.types.is_timestamp(kind) and kind.tz is not None))


def _scalars_of(column: Sequence[Any]) -> list[Any]:
    return [None if item is None else item.scalar for item in column]


def _in_boxes(array: pa.Array) -> list[Any]:
    return [Boxed(scalar) if scalar.is_valid else None for scalar in array]


def _canonical(array: pa.Array) -> list[Any]:
    values = values_of(array)
    if not pa.types.is_floating(array.type):
        return values
    return [_NAN if value is not None and value != value else value for value in values]  # noqa: PLR0124


def _stored_as_it_is(field: pa.Field, name: str) -> str | None:
    """The condition, as code, under which a value is stored as the very object it is; None if it never is for sure.

    A bool is no integer here, NaN is another object, and a time has no zone and no fold: those are converted.
    """
    kind = field.type
    checks = {pa.bool_(): "bool", pa.binary(): "bytes", pa.large_binary(): "bytes", pa.date32(): "date"}
    checks |= {pa.string(): "str", pa.large_string(): "str", pa.float64(): "float", pa.timestamp("us"): "datetime"}
    if pa.types.is_integer(kind):
        signed = pa.types.is_signed_integer(kind)
        least, end = (-(1 << (kind.bit_width - 1)), 1 << (kind.bit_width - 1)) if signed else (0, 1 << kind.bit_width)
        check = f"type({name}) is int and {least} <= {name} < {end}"
    elif kind in checks:
        check = f"type({name}) is {checks[kind]}"
    else:
        return None
    if pa.types.is_floating(kind):
        check += f" and {name} == {name}"
    elif pa.types.is_timestamp(kind):
        check += f" and {name}.tzinfo is None and not {name}.fold"
    return f"{name} is None or {check}" if field.nullable else check


def _converter(field: pa.Field) -> Convert:
    kind, nullable = field.type, field.nullable
    simple: Any = _SIMPLE.get(str(kind))
    is_integer = pa.types.is_integer(kind)
    check = _check_of(kind)
    is_boxed = _is_boxed(kind)
    is_float = pa.types.is_floating(kind)

    def convert(value: Any) -> Any:
        if value is None:
            if not nullable:
                raise ValueError(f"'{field.name}' may not be null")
            return None
        if type(value) is simple and (not is_integer or -(2**63) <= value < 2**63):
            # One NaN for all: Python finds a NaN in a dictionary only if it is the same object.
            return _NAN if is_float and value != value else value  # noqa: PLR0124
        if check is not None and (not isinstance(value, check) or (isinstance(value, bool) and check is not _BOOL)):
            raise TypeError(f"'{field.name}' is {kind}, not {type(value).__name__}")
        scalar = pa.scalar(value, kind)
        if is_boxed:
            return Boxed(scalar)
        plain = scalar.as_py()
        return _NAN if is_float and plain != plain else plain  # noqa: PLR0124

    return convert


_BOOL = (bool, np.bool_)
_INTEGER = (int, np.integer)
_REAL = (int, float, np.integer, np.floating)


def _check_of(kind: pa.DataType) -> tuple[type, ...] | None:
    """The Python types that Arrow may convert; it would itself cut 1.5 down to an integer."""
    if pa.types.is_boolean(kind):
        return _BOOL
    if pa.types.is_integer(kind):
        return _INTEGER
    if pa.types.is_floating(kind):
        return _REAL
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return (str,)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return (bytes, bytearray, memoryview)
    return None
