"""Columns as lists of Python values: the values of `pyarrow.Array.to_pylist`, by the fastest exact path of each type.

`to_pylist` makes an Arrow scalar for each value of most types, which costs microseconds where numpy takes nanoseconds.
A type whose values numpy would change (nanoseconds, extensions, views of lists) is left to `to_pylist`. The property
tests compare both for every type, with nulls, slices and nested types.
"""

from __future__ import annotations

import datetime
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.fixed_width import buffer_values, fixed_width_values, null_mask
from penstock.errors import DataError

Values: TypeAlias = list[object]
Rows: TypeAlias = list[dict[str, object]]

_SECONDS_MIN: Final = -62_135_596_800
_SECONDS_MAX: Final = 253_402_300_799
"""The years 1 to 9999, which Python's dates and times have."""
_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000}


def values_of(column: pa.Array) -> Values:
    """The values of a column, as `to_pylist` gives them. Each list and dictionary among them is a fresh object."""
    read = _READERS.get(column.type.id)
    return column.to_pylist() if read is None else read(column)


def rows_of(batch: pa.RecordBatch) -> Rows:
    """The rows of a batch as dictionaries, as its `to_pylist` gives them."""
    return _dictionaries(tuple(batch.schema.names))([values_of(column) for column in batch.columns], batch.num_rows)


def tuples_of(columns: Sequence[pa.Array], rows: int) -> list[tuple[object, ...]]:
    """The rows of some columns as tuples."""
    return list(zip(*map(values_of, columns), strict=True)) if columns else [()] * rows


@functools.lru_cache(maxsize=1024)
def _dictionaries(names: tuple[str, ...]) -> Callable[[list[Values], int], Rows]:
    """Makes dictionaries of columns, by one comprehension that is compiled for these names.

    A literal with its names costs a fourth of `dict(zip(…))`. Names enter the code by their `repr` only.
    """
    require_distinct(names)
    if not names:
        return lambda columns, rows: [{} for _ in range(rows)]
    variables = [f"v{number}" for number in range(len(names))]
    entries = ", ".join(f"{name!r}: {variable}" for name, variable in zip(names, variables, strict=True))
    return _compiled(f"lambda columns, rows: [{{{entries}}} for {', '.join(variables)}, in zip(*columns)]")


def require_distinct(names: tuple[str, ...]) -> None:
    """Raise `DataError` for two columns of one name: a dictionary would hold the last one alone."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(
            f"two columns have the name '{twice}', and a row can have one; the columns are: {', '.join(names)}. Give "
            f"each a name of its own where they are made"
        )


def _compiled(source: str) -> Callable[[list[Values], int], Rows]:
    made: Callable[[list[Values], int], Rows] = eval(source, {"zip": zip})
    return made


# --- one function for each family of types ---


def _with_nulls(values: npt.NDArray[np.generic], column: pa.Array) -> Values:
    if not column.null_count:
        return values.tolist()  # type: ignore[no-any-return]
    objects = values.astype(object)
    objects[null_mask(column)] = None
    return objects.tolist()  # type: ignore[no-any-return]


def _numbers(column: pa.Array) -> Values:
    return _with_nulls(fixed_width_values(column, column.type.to_pandas_dtype()), column)


def _objects(column: pa.Array) -> Values:
    """Types that Arrow itself turns into arrays of Python objects, None among them."""
    return column.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]


def _dates(column: pa.Array) -> Values:
    days = fixed_width_values(column, np.int32)
    if not _fits(days, column, 86_400, 1):
        return column.to_pylist()  # type: ignore[no-any-return]
    return _with_nulls(days.astype("datetime64[D]"), column)


def _timestamps(column: pa.Array) -> Values:
    unit, zone = column.type.unit, column.type.tz
    ticks = fixed_width_values(column, np.int64)
    # A time of any zone is a valid one in every other: a day is left at both ends.
    if unit == "ns" or not _fits(ticks, column, 1, _PER_SECOND[unit], margin=0 if zone is None else 86_400):
        return column.to_pylist()  # type: ignore[no-any-return]
    if column.null_count:
        # Any ticks may stand at a null, and those that are no time of Python are not objects of `datetime`.
        ticks = np.where(null_mask(column), 0, ticks)
    naive = ticks.astype(f"datetime64[{unit}]").astype("datetime64[us]")
    if zone is None:
        return _with_nulls(naive, column)
    found = _zone_of(zone)
    # A zone whose clocks never change: all of its times are moved at once.
    offset = datetime.timedelta(0) if zone == "UTC" else found.utcoffset(None)
    if offset is None:
        return _in_zone(_with_nulls(naive, column), found)
    local = _with_nulls(naive + np.timedelta64(offset), column)
    return [None if at is None else at.replace(tzinfo=found) for at in local]  # type: ignore[attr-defined]


def _in_zone(naive: Values, zone: datetime.tzinfo) -> Values:
    utc = datetime.UTC
    return [None if at is None else at.replace(tzinfo=utc).astimezone(zone) for at in naive]  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=64)
def _zone_of(name: str) -> datetime.tzinfo:
    """The zone as Arrow gives it to Python."""
    zone: datetime.tzinfo = pa.lib.string_to_tzinfo(name)
    return zone


def _fits(
    ticks: npt.NDArray[np.signedinteger[npt.NBitBase]],
    column: pa.Array,
    seconds_per_tick: int,
    ticks_per_second: int,
    margin: int = 0,
) -> bool:
    """Whether all values are in the years of Python: numpy would give numbers for those that are not."""
    if column.null_count:
        ticks = ticks[~null_mask(column)]
    if not len(ticks):
        return True
    first, last = int(ticks.min()), int(ticks.max())
    least, most = _SECONDS_MIN + margin, _SECONDS_MAX - margin
    return first * seconds_per_tick // ticks_per_second >= least and last * seconds_per_tick // ticks_per_second <= most


def _durations(column: pa.Array) -> Values:
    unit = column.type.unit
    ticks = fixed_width_values(column, np.int64)
    # Of seconds and milliseconds not all fit into microseconds.
    if unit == "ns" or not _fits(ticks, column, 1, _PER_SECOND[unit]):
        return column.to_pylist()  # type: ignore[no-any-return]
    if column.null_count:
        ticks = np.where(null_mask(column), 0, ticks)
    return _with_nulls(ticks.astype(f"timedelta64[{unit}]").astype("timedelta64[us]"), column)


def _times(column: pa.Array) -> Values:
    # Nanoseconds are cut to microseconds by both, but not by all versions of Arrow in the same way.
    return column.to_pylist() if column.type == pa.time64("ns") else _objects(column)


def _encoded(column: pa.DictionaryArray) -> Values:
    values = column.dictionary
    if values.type.id not in _SHARED or values.null_count:
        return column.to_pylist()  # type: ignore[no-any-return]
    # Objects that nobody can change may stand in many rows.
    known = np.empty(len(values) + 1, dtype=object)
    known[: len(values)] = values_of(values)
    indices = column.indices
    numbers = fixed_width_values(indices, indices.type.to_pandas_dtype()).astype(np.int64)
    if column.null_count:
        numbers = np.where(null_mask(column), len(values), numbers)
    return known[numbers].tolist()  # type: ignore[no-any-return]


def _lists(column: pa.Array) -> Values:
    offsets, first, end = _offsets(column)
    items = values_of(column.values.slice(first, end - first))
    lists: Values = [items[start:stop] for start, stop in itertools.pairwise(offsets)]
    return _nulled(lists, column)


def _maps(column: pa.MapArray) -> Values:
    offsets, first, end = _offsets(column)
    keys = values_of(column.keys.slice(first, end - first))
    pairs = list(zip(keys, values_of(column.items.slice(first, end - first)), strict=True))
    lists: Values = [pairs[start:stop] for start, stop in itertools.pairwise(offsets)]
    return _nulled(lists, column)


def _offsets(column: pa.Array) -> tuple[list[int], int, int]:
    """Where each list begins and ends, counted from the first item of all; and where that one and the last are."""
    wide = np.int64 if pa.types.is_large_list(column.type) else np.int32
    offsets = buffer_values(column, 1, wide, len(column) + 1)
    first, end = int(offsets[0]), int(offsets[-1])
    return (offsets - first).tolist(), first, end


def _structs(column: pa.StructArray) -> Values:
    names = tuple(field.name for field in column.type)
    if len(set(names)) < len(names):
        return column.to_pylist()  # type: ignore[no-any-return]
    # Children as they are: a null struct hides what stands in them.
    children = [values_of(column.field(number)) for number in range(len(names))]
    rows: Values = list(_dictionaries(names)(children, len(column)))
    return _nulled(rows, column)


def _nulled(values: Values, column: pa.Array) -> Values:
    if column.null_count:
        for number in np.flatnonzero(null_mask(column)).tolist():
            values[number] = None
    return values


_NUMBERS: Final = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
_FLOATS: Final = [pa.float16(), pa.float32(), pa.float64()]
_OBJECTS: Final = [pa.bool_(), pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(1), pa.null()]
_DECIMALS: Final = [
    getattr(pa, name)(5, 2) for name in ("decimal32", "decimal64", "decimal128", "decimal256") if hasattr(pa, name)
]
_SHARED: Final = {kind.id for kind in [*_NUMBERS, *_FLOATS, *_OBJECTS, *_DECIMALS]}
"""Types whose Python values cannot be changed."""
_READERS: Final[dict[int, Callable[[pa.Array], Values]]] = {
    **dict.fromkeys([kind.id for kind in [*_NUMBERS, *_FLOATS]], _numbers),
    **dict.fromkeys([kind.id for kind in [*_OBJECTS, *_DECIMALS]], _objects),
    pa.date32().id: _dates,
    pa.timestamp("us").id: _timestamps,
    pa.duration("us").id: _durations,
    pa.time32("s").id: _times,
    pa.time64("us").id: _times,
    pa.list_(pa.null()).id: _lists,
    pa.large_list(pa.null()).id: _lists,
    pa.map_(pa.int8(), pa.int8()).id: _maps,
    pa.struct([]).id: _structs,
    pa.dictionary(pa.int32(), pa.string()).id: _encoded,
}
