"""Order within groups: numbers by which rows of any type are sorted, and the place of each row in its group."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.fixed_width import FIXED_WIDTH, fixed_width_values
from penstock.columnar.plain import plain


def sort_codes(column: pa.Array, descending: bool) -> npt.NDArray[np.uint64]:
    """Numbers in the order of the values: equal for equal values. NaN comes behind all numbers, null behind all."""
    order = "descending" if descending else "ascending"
    # Nulls are placed at the end unless told otherwise; versions of Arrow differ in how to tell it.
    ranks = pc.rank(plain(column), sort_keys=order, tiebreaker="dense")
    codes: npt.NDArray[np.uint64] = ranks.to_numpy(zero_copy_only=False)
    return codes


def order_numbers(column: pa.Array, descending: bool) -> npt.NDArray[Any]:
    """Numbers in the order of the values, as `sort_codes`, but with gaps: whole numbers and times as they are."""
    values = plain(column)
    dtype = FIXED_WIDTH.get(values.type.id)
    if dtype is None or values.null_count or np.dtype(dtype).kind not in "iu":
        return sort_codes(values, descending)
    numbers = fixed_width_values(values, dtype)
    # The complement turns the order round, and unlike the negative it always fits.
    return ~numbers if descending else numbers


def places_in_groups(groups: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.intp]:
    """For each row of groups that lie together, its place in its group, from 0."""
    rows = np.arange(len(groups))
    is_first = np.insert(groups[1:] != groups[:-1], 0, True)[: len(groups)]
    return rows - np.maximum.accumulate(np.where(is_first, rows, 0))
