"""Numbers that rows are ordered by: the same order as that of Arrow, for every type."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.columnar.ranking import order_numbers, sort_codes

COLUMNS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int64(), [0, -(2**63), 2**63 - 1, -1, 0]),
    (pa.uint64(), [0, 2**64 - 1, 2**63, 5]),
    (pa.uint8(), [0, 255, 128, 5]),
    (pa.int8(), [0, -128, 127, -1]),
    (pa.int64(), [3, None, 1, None]),
    (pa.float64(), [1.5, float("nan"), -float("inf"), 0.0, None]),
    (pa.timestamp("us", "UTC"), [dt.datetime(1969, 1, 1, tzinfo=dt.UTC), dt.datetime(2030, 1, 1, tzinfo=dt.UTC)]),
    (pa.date32(), [dt.date(1969, 1, 1), dt.date(2030, 1, 1)]),
    (pa.string(), ["b", "a", None, "ab"]),
    (pa.decimal128(5, 2), [1, 3, 2]),
    (pa.dictionary(pa.int8(), pa.string()), ["z", "a", "z"]),
    (pa.bool_(), [True, False, True]),
]


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(
    ("kind", "values"), COLUMNS, ids=lambda each: str(each) if isinstance(each, pa.DataType) else ""
)
def test_numbers_are_in_the_order_of_the_values(kind: pa.DataType, values: list[Any], descending: bool) -> None:
    column = pa.array(values, kind)
    by_number = np.argsort(order_numbers(column, descending), kind="stable")
    by_code = np.argsort(sort_codes(column, descending), kind="stable")
    assert by_number.tolist() == by_code.tolist()


def test_a_slice_is_ordered_by_its_own_rows() -> None:
    assert np.argsort(order_numbers(pa.array([9, 3, 1, 2]).slice(1), True)).tolist() == [0, 2, 1]
