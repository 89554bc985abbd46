"""Grouping a batch by its key, columnar: the batch is sorted once, and each key gets a slice of it."""

from __future__ import annotations

import bisect
import datetime
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.fixed_width import FIXED_WIDTH
from penstock.columnar.gather import take, take_rows
from penstock.columnar.plain import plain
from penstock.columnar.schemas.schema_guard import column_of
from penstock.columnar.values import tuples_of
from penstock.errors import DataError


@dataclass(frozen=True, slots=True)
class Groups:
    """A batch, sorted so that the rows of a key are together and in their order; key i has `starts[i]:ends[i]`."""

    batch: pa.RecordBatch
    keys: pa.RecordBatch
    """One row for each key, in the order of the keys' first appearance: just the key columns."""
    starts: list[int]
    ends: list[int]
    order: npt.NDArray[np.int64]
    """The number that each row had before the batch was sorted."""

    def parts(self, rows_max: Callable[[], int]) -> Iterator[Groups]:
        """The same in parts of whole keys with at most `rows_max()` rows; a key with more rows is in several parts."""
        row = key = 0
        while row < self.batch.num_rows:
            most = row + max(1, rows_max())
            after = bisect.bisect_right(self.ends, most, key)
            last = max(after, key + 1)
            stop = min(self.ends[last - 1], most)
            starts, ends = [row, *self.starts[key + 1 : last]], [*self.ends[key : last - 1], stop]
            yield Groups(
                self.batch.slice(row, stop - row),
                self.keys.slice(key, last - key),
                [start - row for start in starts],
                [end - row for end in ends],
                self.order[row:stop],
            )
            row, key = stop, after


def key_tuples(keys: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """The rows of the key columns, as functions see them."""
    return tuples_of(keys.columns, keys.num_rows)


def hashable(value: Any) -> Any:
    """A value of a key as a dictionary finds it: all NaNs are one, structs and lists are tuples, times are in UTC."""
    if isinstance(value, float) and math.isnan(value):
        return math.nan
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        # Two times of one zone are compared by what its clocks show, which comes twice when they go back.
        return value.astimezone(datetime.UTC)
    if isinstance(value, dict):
        return tuple((name, hashable(item)) for name, item in value.items())
    return tuple(hashable(item) for item in value) if isinstance(value, list) else value


def group(batch: pa.RecordBatch, key: Sequence[str], operator: str) -> Groups:
    """Group by the columns `key`; nulls are a key like others. Raises `DataError` for a column that is not there."""
    columns = key_columns(batch, key, operator)
    codes = key_codes(columns)
    # Stable, so that the rows of a key keep their order (I2).
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    keys = pa.RecordBatch.from_arrays([take(column, order[starts]) for column in columns], names=list(key))
    is_sorted = bool((order[1:] > order[:-1]).all())
    ends = np.append(starts[1:], len(codes))[: len(starts)]
    return Groups(batch if is_sorted else take_rows(batch, order), keys, starts.tolist(), ends.tolist(), order)


def key_columns(batch: pa.RecordBatch, key: Sequence[str], operator: str) -> list[pa.Array]:
    def error(text: str) -> DataError:
        return DataError(f"operator '{operator}' is keyed by {', '.join(key)}: {text}")

    return [column_of(batch, name, error) for name in key]


def _with_one_zero(column: pa.Array) -> pa.Array:
    """The floats in which -0.0 and 0.0 are one key, as they are for the exchange: Arrow tells them apart."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    # Adding zero turns -0.0 into 0.0 and leaves every other number as it is.
    return pc.add(column.cast(pa.float64()), 0.0) if pa.types.is_floating(kind) else column


def key_codes(columns: Sequence[pa.Array]) -> npt.NDArray[np.int64]:
    """Equal numbers for equal keys, numbered by first appearance."""
    codes = _column_codes(_with_one_zero(columns[0]))
    for column in columns[1:]:
        more = _column_codes(_with_one_zero(column))
        pairs = codes * (int(more.max(initial=0)) + 1) + more
        codes = _column_codes(pa.array(pairs))
    return codes


def _column_codes(column: pa.Array) -> npt.NDArray[np.int64]:
    column = plain(column)
    if pa.types.is_struct(column.type):
        return key_codes([column.is_valid(), *column.flatten()])
    if pa.types.is_decimal(column.type) and column.type.id in FIXED_WIDTH:
        # Arrow cannot tell equal decimals of less than 128 bits.
        column = column.cast(pa.decimal128(column.type.precision, column.type.scale))
    encoded = column.dictionary_encode(null_encoding="encode")
    codes: npt.NDArray[np.int64] = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes
