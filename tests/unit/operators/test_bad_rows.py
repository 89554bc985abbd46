"""Rows that do not fit: nothing is filled up, mixed or left out without a word, and the message says which row."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock import DataError, Pipeline, UserCodeError
from penstock.testing import CollectSink, ListSource, run

NAIVE = datetime.datetime(2026, 1, 1, 12)
AWARE = NAIVE.replace(tzinfo=datetime.UTC)


def result_of(step: Any, rows: list[Any], batch_rows: int = 1024) -> list[dict[str, Any]]:
    pipeline, sink = Pipeline("p"), CollectSink()
    step(pipeline.source(ListSource(rows, batch_rows=batch_rows))).sink(sink)
    run(pipeline, restarts=0)
    return sink.rows()


# --- fields ---


def test_a_declared_field_that_a_row_does_not_have_is_an_error_and_not_null() -> None:
    def parsed(row: dict[str, Any]) -> dict[str, Any]:
        return {"n": row["n"], "m": 1} if row["n"] < 2 else {"n": row["n"]}

    with pytest.raises(
        DataError, match=r"row 2 of 4 .* does not have the field 'm' of the declared schema: \{'n': 2\}"
    ):
        result_of(lambda s: s.map(parsed, format="rows", schema="n bigint, m bigint"), [{"n": n} for n in range(4)])


def test_a_declared_field_may_be_none() -> None:
    rows = result_of(
        lambda s: s.map(lambda r: {**r, "m": None}, format="rows", schema="n bigint, m bigint"), [{"n": 1}]
    )
    assert rows == [{"n": 1, "m": None}]


# --- times ---


@pytest.mark.parametrize("schema", [None, "n bigint, at timestamp", "n bigint, at timestamp_ntz"])
@pytest.mark.parametrize("batch_rows", [1, 10])
def test_times_with_and_without_a_zone_do_not_mix(schema: str | None, batch_rows: int) -> None:
    def timed(row: dict[str, Any]) -> dict[str, Any]:
        return {"n": row["n"], "at": AWARE if row["n"] else NAIVE}

    with pytest.raises(
        DataError, match=r"the time 'at' has a time zone in row \d of \d+ .* and had none in earlier rows: \{'n': 1"
    ):
        result_of(lambda s: s.map(timed, format="rows", schema=schema), [{"n": n} for n in range(3)], batch_rows)


def test_a_list_of_rows_does_not_mix_them_either() -> None:
    with pytest.raises(
        DataError, match=r"ListSource: the time 'at' has no time zone in row 1 of 2 .* and had one in earlier rows"
    ):
        ListSource([{"at": AWARE}, {"at": NAIVE}])


@pytest.mark.parametrize("time", [NAIVE, AWARE])
def test_times_of_one_kind_pass(time: datetime.datetime) -> None:
    rows = result_of(lambda s: s.map(lambda row: {"at": time}, format="rows"), [{"n": n} for n in range(3)], 1)
    assert rows == [{"at": time}] * 3


# --- functions that raise ---


def broken(row: dict[str, Any]) -> Any:
    return [{"n": 1 // (row["n"] - 57), "text": "x" * 500}]


@pytest.mark.parametrize(
    "step",
    [
        lambda s: s.map(broken, format="rows"),
        lambda s: s.flat_map(broken, format="rows"),
        lambda s: s.filter(broken, format="rows"),
        lambda s: s.map_async(broken, format="rows"),
        lambda s: s.map_async(broken, format="rows", executor="processes"),
    ],
)
def test_the_row_is_told_at_which_a_function_raises(step: Any) -> None:
    rows = [{"n": n, "text": "y" * 500} for n in range(100)]
    with pytest.raises(UserCodeError, match=r"ZeroDivisionError.*row 57 of 100 in its batch, \{'n': 57, 'text': 'yy+…"):
        result_of(step, rows)


def test_a_message_of_arrow_is_the_reason_without_the_schema() -> None:
    rows = [{"n": 1, "text": "a", "struct": {"a": 1}}]
    with pytest.raises(DataError, match="there is no column 'nope'; the columns are: n, text, struct") as caught:
        result_of(lambda s: s.filter(pc.field("nope") > 0), rows)
    assert "\n" not in str(caught.value)


# --- schemas that change on the way to a test ---


def test_what_was_collected_with_changing_columns_can_be_read() -> None:
    sink, pipeline = CollectSink(), Pipeline("p")
    batches = [pa.record_batch({"n": [1]}), pa.record_batch({"n": [2], "m": ["x"]})]
    pipeline.source(ListSource(batches)).sink(sink)
    run(pipeline)
    assert sink.rows() == [{"n": 1}, {"n": 2, "m": "x"}]
    assert sink.table().to_pylist() == [{"n": 1, "m": None}, {"n": 2, "m": "x"}]


def test_what_was_collected_in_types_that_do_not_fit_can_be_read_as_rows() -> None:
    sink, pipeline = CollectSink(), Pipeline("p")
    pipeline.source(ListSource([pa.record_batch({"n": [1]}), pa.record_batch({"n": ["x"]})])).sink(sink)
    run(pipeline)
    assert sink.rows() == [{"n": 1}, {"n": "x"}]
    with pytest.raises(DataError, match=r"because its schema changed .* use rows\(\)"):
        sink.table()
