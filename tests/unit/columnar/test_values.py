"""Columns and rows of Python values: for every type they are the values that Arrow gives, and they come back."""

from __future__ import annotations

import datetime
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.columnar import values
from penstock.columnar.values import rows_of, tuples_of, values_of
from penstock.errors import DataError
from tests.unit.columnar.arrays import NAMES, columns

ROWS = 40
_UNITS = ("s", "ms", "us", "ns")


def same(left: Any, right: Any) -> bool:
    """Equal values of equal types, all the way down; NaN is equal to NaN, and a zone to itself only."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float) and math.isnan(left):
        return math.isnan(right)
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[name], right[name]) for name in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, datetime.datetime):
        return bool(left == right and left.tzinfo == right.tzinfo and left.fold == right.fold)
    return bool(left == right) and repr(left) == repr(right)


def assert_same(column: pa.Array) -> None:
    found, expected = values_of(column), column.to_pylist()
    assert same(found, expected), f"{column.type}: {found} is not {expected}"


@pytest.mark.parametrize("name", NAMES)
def test_values_are_those_of_arrow_for_every_type_and_slice(name: str) -> None:
    whole = columns(ROWS)[name]
    for start, count in ((0, ROWS), (0, 0), (1, ROWS), (3, 7), (ROWS - 1, 1), (ROWS, 0)):
        assert_same(whole.slice(start, count))


_numbers: dict[Any, st.SearchStrategy[Any]] = {
    kind: st.integers(-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1)
    for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())
}
_numbers |= {
    kind: st.integers(0, 2**kind.bit_width - 1) for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
}
_times = st.integers(-62_000_000_000, 253_000_000_000)
_per_second = {"s": 1, "ms": 10**3, "us": 10**6}
_others: dict[Any, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.float64(): st.floats(),
    pa.float32(): st.floats(width=32),
    pa.string(): st.text(),
    pa.large_string(): st.text(),
    pa.binary(): st.binary(),
    pa.large_binary(): st.binary(),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.decimal128(20, 3): st.decimals(-(10**16), 10**16, places=3),
    pa.decimal256(50, 3): st.decimals(-(10**16), 10**16, places=3),
    pa.date32(): st.dates(),
    pa.date64(): st.dates(datetime.date(1900, 1, 1), datetime.date(2100, 1, 1)),
    pa.time32("s"): st.integers(0, 86_399),
    pa.time32("ms"): st.integers(0, 86_399_999),
    pa.time64("us"): st.integers(0, 86_399_999_999),
    pa.time64("ns"): st.integers(0, 86_399_999_999_999),
    pa.duration("ns"): st.integers(-(2**60), 2**60),
    pa.timestamp("ns"): st.integers(-(2**60), 2**60),
    pa.timestamp("ns", "Europe/Berlin"): st.integers(0, 2**60),
    pa.null(): st.none(),
}
for _unit, _factor in _per_second.items():
    _others[pa.duration(_unit)] = _times.map(_factor.__mul__)
    for _zone in (None, "UTC", "Europe/Berlin", "+05:30"):
        _others[pa.timestamp(_unit, _zone)] = _times.map(_factor.__mul__)
_plain = _numbers | _others


def _arrays(kinds: dict[Any, st.SearchStrategy[Any]]) -> st.SearchStrategy[pa.Array]:
    """Columns of any type, nested or not, with nulls, and with rows cut off at both ends."""
    leaf = st.sampled_from(sorted(kinds, key=str)).map(lambda kind: (kind, kinds[kind]))

    def nested(inside: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.one_of(
            inside.map(lambda each: (pa.list_(each[0]), st.lists(each[1] | st.none(), max_size=4))),
            inside.map(lambda each: (pa.large_list(each[0]), st.lists(each[1] | st.none(), max_size=4))),
            inside.map(lambda each: (pa.list_(each[0], 2), st.lists(each[1] | st.none(), min_size=2, max_size=2))),
            inside.map(
                lambda each: (
                    pa.map_(pa.string(), each[0]),
                    st.lists(st.tuples(st.text(max_size=3), each[1] | st.none()), max_size=3),
                )
            ),
            st.tuples(inside, inside).map(
                lambda pair: (
                    pa.struct([("a", pair[0][0]), ("b c", pair[1][0])]),
                    st.fixed_dictionaries({"a": pair[0][1] | st.none(), "b c": pair[1][1] | st.none()}),
                )
            ),
        )

    def made(each: tuple[pa.DataType, st.SearchStrategy[Any]]) -> st.SearchStrategy[pa.Array]:
        lists = st.tuples(st.lists(each[1] | st.none(), max_size=8), st.integers(0, 8), st.integers(0, 8))
        return lists.map(lambda drawn: pa.array(drawn[0], each[0]).slice(drawn[1], drawn[2]))

    return st.recursive(leaf, nested, max_leaves=3).flatmap(made)


@settings(max_examples=400, deadline=None)
@given(_arrays(_plain))
def test_values_of_any_column_are_those_of_arrow(column: pa.Array) -> None:
    assert_same(column)
    if not pa.types.is_nested(column.type) and not pa.types.is_null(column.type):
        assert_same(column.dictionary_encode())


@settings(max_examples=100, deadline=None)
@given(_arrays(_plain), _arrays(_plain))
def test_rows_of_any_batch_are_those_of_arrow(left: pa.Array, right: pa.Array) -> None:
    count = min(len(left), len(right))
    batch = pa.record_batch([left.slice(0, count), right.slice(0, count)], names=["a", 'it\'s "b"\n'])
    assert same(rows_of(batch), batch.to_pylist())


@pytest.mark.parametrize("unit", _UNITS)
def test_times_that_python_does_not_have_are_an_error_as_with_arrow(unit: str) -> None:
    for kind in (pa.timestamp(unit), pa.timestamp(unit, "UTC")):
        column = pa.array([0, 2**62], kind)
        if unit == "ns":
            assert_same(column)
            continue
        with pytest.raises(OverflowError):
            column.to_pylist()
        with pytest.raises(OverflowError):
            values_of(column)


def test_both_times_of_the_hour_that_comes_twice_keep_their_fold() -> None:
    first = int(datetime.datetime(2025, 10, 26, 0, 30, tzinfo=datetime.UTC).timestamp())
    column = pa.array([first, first + 3600], pa.timestamp("s", "Europe/Berlin"))
    assert [at.fold for at in values_of(column)] == [0, 1]  # type: ignore[attr-defined]
    assert_same(column)


def test_lists_of_a_dictionary_are_objects_of_one_row_each() -> None:
    encoded = pa.DictionaryArray.from_arrays(pa.array([0, 0]), pa.array([[1]]))
    first, second = values_of(encoded)
    assert first == second and first is not second


def test_rows_without_columns_are_as_with_arrow() -> None:
    nothing = pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))
    assert rows_of(nothing) == [{}, {}]
    assert tuples_of([], 2) == [(), ()]


def test_a_dictionary_does_not_hold_one_of_two_columns_of_a_name() -> None:
    twice = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(DataError, match="two columns have the name 'a'"):
        rows_of(twice)


def test_code_is_compiled_once_for_each_set_of_names() -> None:
    batch = pa.record_batch({"one name": [1], "another": [2]})
    rows_of(batch)
    before = values._dictionaries.cache_info().misses
    for start in range(100):
        rows_of(pa.record_batch({"one name": [start], "another": [2]}))
    assert values._dictionaries.cache_info().misses == before
