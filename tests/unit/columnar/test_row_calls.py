"""Calls of a function of rows: what they get and return is what they would get and return row by row."""

from __future__ import annotations

import contextlib
import datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.columnar import row_calls
from penstock.columnar.row_calls import ColumnRows, RowCalls
from penstock.columnar.schemas.schema_guard import SchemaGuard
from penstock.columnar.values import rows_of
from penstock.errors import DataError
from penstock.operators.formats import RowsFormat
from tests.unit.columnar.test_values import _arrays, _plain

ODD_NAMES = ["{row}", "a 'b'", "made", "function", "\\n\n"]


def _batch(**columns: Any) -> pa.RecordBatch:
    return pa.record_batch({name: pa.array(values) for name, values in columns.items()})


@settings(max_examples=300, deadline=None)
@given(_arrays(_plain), _arrays(_plain), st.sampled_from(ODD_NAMES))
def test_a_function_gets_and_returns_rows_of_any_type_as_they_are(left: pa.Array, right: pa.Array, name: str) -> None:
    count = min(len(left), len(right))
    batch = pa.record_batch([left.slice(0, count), right.slice(0, count)], names=["a", name])
    seen: list[object] = []

    def same(row: dict[str, object]) -> dict[str, object]:
        seen.append(row)
        return row

    made = RowsFormat(SchemaGuard("here", batch.schema)).mapped(same, batch)
    assert repr(seen) == repr(batch.to_pylist())
    if count:
        made.validate(full=True)
        assert made.schema == batch.schema and repr(made.to_pylist()) == repr(batch.to_pylist())
    else:
        assert made is None


_RETURNED = st.sampled_from(
    [{"x": 1, "y": "a"}, {"y": "b", "x": 2}, {"x": 1}, {"x": 1, "y": "a", "z": 0}, {"x": 1, "z": "a"}, (1, "a"), None]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(_RETURNED, min_size=1, max_size=6))
def test_results_that_are_not_alike_are_judged_as_those_of_single_calls(returned: list[Any]) -> None:
    batch = _batch(n=range(len(returned)))
    schema = pa.schema([("x", pa.int64()), ("y", pa.string())])

    def outcome(mapped: bool) -> object:
        form = RowsFormat(SchemaGuard("here", schema))
        try:
            made = form.mapped(lambda row: returned[row["n"]], batch) if mapped else form.batch(returned)
        except DataError as error:
            return str(error)
        assert made is not None
        return made.to_pylist()

    assert outcome(mapped=True) == outcome(mapped=False)


def test_each_row_is_called_once_also_behind_one_that_is_not_alike() -> None:
    called: list[object] = []

    def function(row: dict[str, object]) -> dict[str, object]:
        called.append(row["n"])
        return row if row["n"] != 2 else {"m": 1, **row}

    columns, odd = RowCalls(_batch(n=range(5))).columns(function, ("n",))
    assert called == [0, 1, 2, 3, 4]
    assert columns == [[0, 1]] and odd == [{"m": 1, "n": 2}, {"n": 3}, {"n": 4}]


@pytest.mark.parametrize("raised", [KeyError("n"), ValueError("no luck")], ids=repr)
@pytest.mark.parametrize("way", ["results", "truths", "columns"])
def test_an_exception_carries_the_row(way: str, raised: Exception) -> None:
    def function(row: dict[str, Any]) -> dict[str, object]:
        if row["n"] == 3:
            row.clear()
            raise raised
        return row

    calls = RowCalls(_batch(n=range(5), m="abcde"))
    with pytest.raises(type(raised)) as caught:
        calls.columns(function, ("n", "m")) if way == "columns" else getattr(calls, way)(function)
    # The row as it was given to the function, whatever that has done with it.
    assert caught.value.__notes__[-1:] == ["row 3 of 5 in its batch, {'n': 3, 'm': 'd'}"]
    del raised.__notes__


def test_the_row_behind_one_that_is_not_alike_is_named_by_its_number() -> None:
    def function(row: dict[str, Any]) -> object:
        return row if row["n"] < 1 else (1,) if row["n"] < 3 else 1 // 0

    with pytest.raises(ZeroDivisionError) as caught:
        RowCalls(_batch(n=range(5))).columns(function, ("n",))
    assert caught.value.__notes__ == ["row 3 of 5 in its batch, {'n': 3}"]


def test_truths_are_booleans_of_whatever_is_returned() -> None:
    returned = [0, 1, "", "a", None, [], [0]]
    calls = RowCalls(_batch(n=range(len(returned))))
    assert calls.truths(lambda row: returned[row["n"]]) == [False, True, False, True, False, False, True]


def _outputs(
    returned: list[Any], names: tuple[str, ...], at_once: int = 100
) -> tuple[list[list[object]], list[object], list[tuple[int, bool]]]:
    """What a function with these results puts out, and where its calls stop."""
    calls = RowCalls(_batch(n=range(len(returned))))
    columns: list[list[object]] = [[] for _ in names]
    odd: list[object] = []
    turns = calls.outputs(lambda row: returned[row["n"]], list, names, columns, odd)
    stops: list[tuple[int, bool]] = []
    with contextlib.suppress(StopIteration):
        is_mid_row = next(turns)
        while True:
            stops.append((calls.number, is_mid_row))
            is_mid_row = turns.send(at_once)
    return columns, odd, stops


_OUTPUT = st.sampled_from([{"x": 1, "y": "a"}, {"y": "b", "x": 2}, {"x": 1}, {"x": 1, "y": "a", "z": 0}, (1, "a"), "b"])


@given(st.lists(st.lists(_OUTPUT, max_size=5), max_size=6), st.integers(1, 12), st.data())
def test_outputs_are_all_there_and_in_order(returned: list[list[Any]], at_once: int, data: st.DataObject) -> None:
    forms = [data.draw(st.sampled_from([list, tuple, iter, lambda made: (x for x in made)])) for _ in returned]
    results = [form(made) for form, made in zip(forms, returned, strict=True)]
    columns, odd, stops = _outputs(results, ("x", "y"), at_once)
    everything = [output for made in returned for output in made]
    assert [*ColumnRows(("x", "y"), columns), *odd] == everything
    assert not odd or set(odd[0]) != {"x", "y"} or isinstance(odd[0], str | tuple)
    assert stops == sorted(stops, key=lambda stop: (stop[0], not stop[1])) and len(stops) >= min(1, len(returned))


def test_calls_stop_in_the_middle_of_a_long_row_and_once_more_at_its_end() -> None:
    row = {"x": 1}
    _, _, stops = _outputs([[row], [row] * 7, [], []], ("x",), at_once=3)
    assert stops == [(0, True), (0, False), (1, True), (1, True), (1, False)]


def test_outputs_without_known_names_are_all_there() -> None:
    assert _outputs([[{"x": 1}], [{"y": 2}]], ())[:2] == ([], [{"x": 1}, {"y": 2}])
    assert [*ColumnRows((), [])] == []


def test_rows_without_columns_are_called_as_well() -> None:
    batch = pa.RecordBatch.from_struct_array(pa.array([{}, {}, {}], pa.struct([])))
    assert RowCalls(batch).results(dict) == [{}, {}, {}]
    assert RowCalls(batch).columns(lambda row: {"x": 1}, ("x",)) == ([[1, 1, 1]], [])
    assert RowCalls(batch).columns(lambda row: {}, ()) == ([], [{}, {}, {}])


def test_a_text_that_is_passed_on_is_not_converted_and_one_that_is_not_is() -> None:
    batch = _batch(kept=["a", None, "c"], changed=["a", "b", "c"], number=[1, 1, 1])
    form = RowsFormat(SchemaGuard("here", batch.schema))
    made = form.mapped(lambda row: {**row, "changed": row["changed"].replace("b", "x")}, batch)
    assert made is not None and made.to_pylist()[1] == {"kept": None, "changed": "x", "number": 1}
    assert made.column("kept").buffers()[2].address == batch.column("kept").buffers()[2].address
    # True is equal to 1 and is none: it is refused, as it is where there are other numbers.
    with pytest.raises(DataError, match="Expected integer, got bool"):
        form.mapped(lambda row: {**row, "number": True}, batch)


def test_a_text_of_a_column_of_another_name_or_type_is_converted() -> None:
    batch = _batch(one=["a", "b"], two=["c", "d"])
    form = RowsFormat(SchemaGuard("here", pa.schema([("one", pa.large_string()), ("two", pa.string())])))
    made = form.mapped(lambda row: {"one": row["one"], "two": row["one"]}, batch)
    assert made is not None and made.schema == form.guard.schema
    assert made.to_pylist() == [{"one": "a", "two": "a"}, {"one": "b", "two": "b"}]


def test_a_negative_zero_stays_one() -> None:
    batch = _batch(v=[0.0, 0.0])
    made = RowsFormat(SchemaGuard("here", batch.schema)).mapped(lambda row: {"v": -row["v"]}, batch)
    assert made is not None and repr(made.column("v").to_pylist()) == "[-0.0, -0.0]"


def test_times_with_and_without_a_zone_are_told_with_their_row() -> None:
    form = RowsFormat(SchemaGuard("here", pa.schema([("at", pa.timestamp("us", "UTC"))])))
    at = datetime.datetime(2026, 1, 1)

    def function(row: dict[str, Any]) -> dict[str, object]:
        return {"at": at.replace(tzinfo=datetime.UTC) if row["n"] < 2 else at}

    with pytest.raises(DataError, match=r"'at' has no time zone in row 2 of 3 .*: \{'at': datetime"):
        form.mapped(function, _batch(n=range(3)))


def test_code_is_compiled_once_for_each_set_of_names_of_calls() -> None:
    batch = _batch(n=range(3))
    for _ in range(2):
        RowCalls(batch).columns(lambda row: row, ("n",))
        RowCalls(batch).results(lambda row: row)
    before = row_calls._columns.cache_info().misses, row_calls._results.cache_info().misses
    RowCalls(batch).columns(lambda row: row, ("n",))
    RowCalls(batch).results(lambda row: row)
    assert (row_calls._columns.cache_info().misses, row_calls._results.cache_info().misses) == before


def test_rows_of_columns_are_those_rows() -> None:
    batch = _batch(n=range(3), m="abc")
    columns = [column.to_pylist() for column in batch.columns]
    assert list(ColumnRows(["n", "m"], columns)) == rows_of(batch)
