"""Aggregates over frames: for each of many stretches of rows that lie together, one number or value.

A frame is a range of rows, from `first` up to `end`, of columns that are sorted by key. All frames are made in a few
calls of numpy. Counts and sums of whole numbers are differences of running sums, whatever the length of a frame; others
cost the rows in all frames together: a row that is in a thousand frames is looked at a thousand times. Nulls are left
out, as in SQL.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.fixed_width import FIXED_WIDTH, fixed_width_values, null_mask
from penstock.columnar.gather import take
from penstock.columnar.plain import plain
from penstock.columnar.ranking import sort_codes
from penstock.errors import DataError

Bounds: TypeAlias = npt.NDArray[np.int64]

FRAME_FUNCTIONS = ("sum", "count", "min", "max", "mean", "first", "last")


def over_frames(function: str, column: pa.Array | None, first: Bounds, end: Bounds) -> pa.Array:
    """`function` of `column` for each frame, none of which is empty; a count of all rows without a column."""
    if column is None:
        return pa.array(end - first)
    column = plain(column)
    is_null = null_mask(column) if column.null_count else np.zeros(len(column), np.bool_)
    counts = _counts(~is_null, first, end)
    match function:
        case "count":
            return pa.array(counts)
        case "sum":
            return pa.array(_sums(column, is_null, first, end), mask=counts == 0)
        case "mean":
            return pa.array(
                _float_sums(_numbers(column, is_null), first, end) / np.maximum(counts, 1), mask=counts == 0
            )
        case "min" | "max":
            return _taken(column, _extremes(column, is_null, function == "max", first, end), counts == 0)
        case "first":
            return _taken(column, _next_valid(is_null)[first], counts == 0)
        case "last":
            return _taken(column, len(column) - 1 - _next_valid(is_null[::-1])[len(column) - end], counts == 0)
        case _:
            raise DataError(f"over: unknown function {function!r}; the functions are {', '.join(FRAME_FUNCTIONS)}")


def _counts(is_valid: npt.NDArray[np.bool_], first: Bounds, end: Bounds) -> npt.NDArray[np.int64]:
    before: npt.NDArray[np.int64] = np.concatenate([np.zeros(1, np.int64), np.cumsum(is_valid, dtype=np.int64)])
    counts: npt.NDArray[np.int64] = before[end] - before[first]
    return counts


def _reduced(reduce: np.ufunc, values: npt.NDArray[Any], first: Bounds, end: Bounds) -> npt.NDArray[Any]:
    # Every second result is that from the end of a frame to the beginning of the next one: in the order of their
    # beginnings, all of these together have no more rows than there are. An end may lie behind the last row, where
    # there must be a value.
    order = np.argsort(first, kind="stable")
    padded = np.append(values, values[-1:])
    made = reduce.reduceat(padded, np.stack([first[order], end[order]], axis=1).ravel())[::2]
    back: npt.NDArray[Any] = np.empty_like(made)
    back[order] = made
    return back


def _running_sums(values: npt.NDArray[np.int64], first: Bounds, end: Bounds) -> npt.NDArray[np.int64]:
    """Exact wherever a sum fits into 64 bits: that running sums exceed them cancels out."""
    before: npt.NDArray[np.int64] = np.concatenate([np.zeros(1, np.int64), np.cumsum(values, dtype=np.int64)])
    sums: npt.NDArray[np.int64] = before[end] - before[first]
    return sums


def _sum_max(values: npt.NDArray[Any], first: Bounds, end: Bounds) -> int:
    """No sum of a frame is further from zero than this."""
    if len(values) == 0 or len(first) == 0:
        return 0
    return max(abs(int(values.min())), abs(int(values.max()))) * int((end - first).max())


def _float_sums(values: npt.NDArray[Any], first: Bounds, end: Bounds) -> npt.NDArray[np.float64]:
    if values.dtype.kind in "iu" and _sum_max(values, first, end) < 2**53:
        return _running_sums(values.astype(np.int64), first, end).astype(np.float64)
    return _reduced(np.add, values.astype(np.float64), first, end)


def _numbers(column: pa.Array, is_null: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    """The values, and zero for null."""
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise DataError(f"sum and mean need numbers, not {column.type}: cast the column in front")
    values = fixed_width_values(column, FIXED_WIDTH[column.type.id])
    return np.where(is_null, values.dtype.type(0), values)


def _sums(column: pa.Array, is_null: npt.NDArray[np.bool_], first: Bounds, end: Bounds) -> npt.NDArray[Any]:
    values = _numbers(column, is_null)
    if values.dtype.kind == "f":
        return _reduced(np.add, values.astype(np.float64), first, end)
    if values.dtype == np.uint64 and len(values) and int(values.max()) > np.iinfo(np.int64).max:
        raise DataError("a sum of unsigned integers exceeds 64 bits: cast the column to double in front")
    sums = _running_sums(values.astype(np.int64), first, end)
    if (
        _sum_max(values, first, end) >= 2**62
        and (np.abs(_reduced(np.add, values.astype(np.float64), first, end)) >= 2.0**62).any()
    ):
        # Near the limit, and only there, in numbers without one.
        exact = _reduced(np.add, values.astype(object), first, end)
        if any(abs(each) >= 2**63 for each in exact):
            raise DataError("a sum of integers exceeds 64 bits: cast the column to double in front")
    return sums


def _extremes(
    column: pa.Array, is_null: npt.NDArray[np.bool_], largest: bool, first: Bounds, end: Bounds
) -> npt.NDArray[np.int64]:
    """The number of a row with the smallest or largest value of each frame. NaN is not smaller or larger than any."""
    codes = sort_codes(column, descending=largest).astype(np.int64)
    row_of = np.zeros(int(codes.max(initial=0)) + 1, np.int64)
    row_of[codes[::-1]] = np.arange(len(codes))[::-1]
    codes[is_null] = np.iinfo(np.int64).max
    best = _reduced(np.minimum, codes, first, end)
    # Where all is null, any row will do: ranks begin with 1.
    return row_of[np.where(best == np.iinfo(np.int64).max, 0, best)]


def _next_valid(is_null: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """For each row, the number of the first row from there on that is not null; of the last row, if all are null."""
    rows = np.where(is_null, len(is_null) - 1, np.arange(len(is_null)))
    return np.minimum.accumulate(rows[::-1])[::-1]


def _taken(column: pa.Array, rows: npt.NDArray[np.int64], is_null: npt.NDArray[np.bool_]) -> pa.Array:
    if not is_null.any():
        return take(column, rows)
    return column.take(pa.array(np.where(is_null, 0, rows), mask=is_null))
