"""Directories such as `dt=2026-01-01/country=NL`: columns whose values are in the path, as Spark has them."""

from __future__ import annotations

import datetime
import urllib.parse
from collections.abc import Iterable, Mapping

import pyarrow as pa

from penstock.errors import DataError

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_INT32_MAX = 2**31 - 1


def partition_values(name: str) -> dict[str, str | None]:
    """The columns in the path of a file, with their values as text; None for null."""
    values: dict[str, str | None] = {}
    for part in name.split("/")[:-1]:
        column, is_partition, value = part.partition("=")
        if is_partition and column:
            text = urllib.parse.unquote(value)
            values[urllib.parse.unquote(column)] = None if text == HIVE_NULL else text
    return values


def partition_types(names: Iterable[str]) -> dict[str, pa.DataType]:
    """The type of each column, by all of its values: a number or a date if all of them are, else a string."""
    found: dict[str, set[str]] = {}
    for name in names:
        for column, value in partition_values(name).items():
            known = found.setdefault(column, set())
            if value is not None:
                known.add(value)
    return {column: _type_of(values) for column, values in found.items()}


def partition_column(column: str, value: str | None, kind: pa.DataType, rows: int, where: str) -> pa.Array:
    """The value of a file's path as a column. Raises `DataError` if it does not fit the type."""
    try:
        scalar = pa.scalar(None, kind) if value is None else pa.scalar(value).cast(kind)
    except pa.ArrowException as error:
        raise DataError(
            f"{where}: the value {value!r} of the partition column '{column}' is no {kind}: declare the column in the "
            f"schema, for instance as a string"
        ) from error
    return pa.repeat(scalar, rows)


def without(schema: pa.Schema, columns: Mapping[str, object]) -> pa.Schema:
    """The schema of what is in the files themselves."""
    return pa.schema([field for field in schema if field.name not in columns], schema.metadata)


def _type_of(values: set[str]) -> pa.DataType:
    if values and all(_is_integer(value) for value in values):
        return pa.int32() if all(abs(int(value)) <= _INT32_MAX for value in values) else pa.int64()
    if values and all(_is_float(value) for value in values):
        return pa.float64()
    if values and all(_is_date(value) for value in values):
        return pa.date32()
    return pa.string()


def _is_integer(value: str) -> bool:
    return value.removeprefix("-").isdecimal() and abs(int(value)) < 2**63


def _is_float(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return value.strip() == value and "_" not in value


def _is_date(value: str) -> bool:
    try:
        return len(value) == 10 and datetime.date.fromisoformat(value) is not None
    except ValueError:
        return False
