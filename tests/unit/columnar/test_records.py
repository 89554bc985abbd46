"""Rows of functions become columns: those that Arrow makes of them, whichever kind of row they are."""

from __future__ import annotations

import collections
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.columnar import records
from penstock.columnar.records import columns_of
from penstock.columnar.schemas.schema_guard import SchemaGuard
from penstock.columnar.values import rows_of
from penstock.operators.formats import RowsFormat
from penstock.operators.spark.processor import Row
from tests.unit.columnar.test_values import _arrays, _plain

Point = collections.namedtuple("Point", "x y")
KINDS: list[Any] = [{"x": 1, "y": "a"}, Row(x=1, y="a"), Row(y="a", x=1), Point(1, "a"), (1, "a")]


@settings(max_examples=300, deadline=None)
@given(_arrays(_plain), _arrays(_plain))
def test_rows_of_any_type_come_back_as_they_went(left: pa.Array, right: pa.Array) -> None:
    count = min(len(left), len(right))
    batch = pa.record_batch([left.slice(0, count), right.slice(0, count)], names=["a", "b 'c'"])
    made = RowsFormat(SchemaGuard("here", batch.schema)).batch(rows_of(batch))
    if not count:
        assert made is None
        return
    expected = pa.RecordBatch.from_pylist(batch.to_pylist(), schema=batch.schema)
    made.validate(full=True)
    assert repr(made.to_pylist()) == repr(expected.to_pylist()) == repr(batch.to_pylist())


_values = st.none() | st.integers(-5, 5) | st.text(max_size=2)
_dictionaries = st.dictionaries(st.sampled_from(["x", "y", "z", 1]), _values, max_size=3)


@settings(max_examples=300, deadline=None)
@given(st.lists(_dictionaries | st.sampled_from(KINDS), min_size=1, max_size=5), st.sampled_from([None, ("x", "y")]))
def test_columns_are_taken_at_once_only_if_all_rows_have_just_their_names(rows: list[Any], names: Any) -> None:
    made = columns_of(rows, names)
    if made is None:
        return
    found, columns = made
    assert names is None or found == names
    for number, row in enumerate(rows):
        taken = dict(zip(found, [column[number] for column in columns], strict=True))
        if isinstance(row, dict):
            assert taken == row
        else:
            assert taken == {"x": 1, "y": "a"}


@pytest.mark.parametrize("row", KINDS, ids=repr)
def test_rows_of_every_kind_are_one_batch(row: Any) -> None:
    form = RowsFormat(SchemaGuard("here", pa.schema([("x", pa.int64()), ("y", pa.string())])))
    assert columns_of([row, row], ("x", "y")) is not None
    assert form.batch([row, row]).to_pylist() == [{"x": 1, "y": "a"}] * 2
    mixed = form.batch([row, *KINDS])
    assert mixed is not None and mixed.to_pylist() == [{"x": 1, "y": "a"}] * (1 + len(KINDS))


def test_a_dictionary_that_makes_up_values_is_looked_at_on_its_own() -> None:
    made = collections.defaultdict(int, x=1)
    assert columns_of([made], ("x", "y")) is None
    assert dict(made) == {"x": 1}


def test_rows_with_other_names_in_between_are_looked_at_one_by_one() -> None:
    assert columns_of([Row(x=1, y="a"), Row(x=1, z="a")], None) is None
    assert columns_of([{"x": 1}, {"y": 1}], None) is None
    assert columns_of([{"x": 1}, {"x": 1, "y": 1}], None) is None
    form = RowsFormat(SchemaGuard("here"))
    assert form.batch([{"x": 1}, {"y": "a"}]).to_pylist() == [{"x": 1, "y": None}, {"x": None, "y": "a"}]


def test_code_is_compiled_once_for_each_set_of_names() -> None:
    columns_of([{"one name": 1}], None)
    before = records._taken.cache_info().misses
    for number in range(100):
        columns_of([{"one name": number}], ("one name",))
    assert records._taken.cache_info().misses == before
