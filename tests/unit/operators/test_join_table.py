"""Rows of a stream find the rows of a table: columnar, refreshed in the background, and never half a table."""

from __future__ import annotations

import logging
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import DataError, Pipeline, PipelineError, UserCodeError
from penstock.api import lookups
from penstock.operators import join_table
from penstock.operators.join_table import REFRESH_FAILED, REFRESHED, JoinTableOperator
from penstock.testing import ListSource, collect
from tests.unit.operators.keyed.bench import Bench

STREAM = [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}, {"id": None, "v": "c"}, {"id": 9, "v": "d"}]
TABLE = pa.table({"id": [2, 1, 2, None], "v": ["x", "y", "z", "w"]})


def stream() -> Any:
    return Pipeline("p").source(ListSource(STREAM))


def operator(table: Any, refresh_ms: int | None = None, keeps_unmatched: bool = False) -> JoinTableOperator:
    return JoinTableOperator(
        table, ("id",), ("id",), keeps_unmatched=keeps_unmatched, suffix="_right", refresh_ms=refresh_ms
    )


_keys = st.one_of(st.none(), st.integers(-5, 5), st.sampled_from([-(2**63), 2**63 - 1]))


@pytest.mark.parametrize("text", [False, True])
@settings(max_examples=60, deadline=None)
@given(st.lists(_keys, max_size=30), st.lists(_keys, min_size=1, max_size=30), st.booleans())
def test_it_finds_what_two_nested_loops_find(text: bool, table: list[Any], asked: list[Any], left: bool) -> None:
    kind = pa.string() if text else pa.int64()
    made = pa.table({"id": pa.array(table, pa.int64()).cast(kind), "n": pa.array(range(len(table)), pa.int64())})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(join_table, "_EMITTED_ROWS", 7)
        bench = Bench(operator(made, keeps_unmatched=left), ()).begin()
        bench.background()
        bench.process(pa.record_batch({"id": pa.array(asked, pa.int64()).cast(kind), "row": range(len(asked))}))
    expected = []
    for row, key in enumerate(asked):
        found = [n for n, other in enumerate(table) if key is not None and other == key]
        expected += [(row, n) for n in found or ([None] if left else [])]
    assert [(row["row"], row["n"]) for row in bench.rows()] == expected
    assert all(batch.num_rows <= 7 for batch in bench.emitted)


class SparkFrame:
    """Has what a DataFrame of Spark has, classic or over Connect."""

    def toArrow(self) -> pa.Table:
        return TABLE


@pytest.mark.parametrize("given_table", [TABLE, TABLE.to_batches()[0], SparkFrame(), lambda: TABLE, SparkFrame])
def test_tables_of_every_kind_give_the_same(given_table: Any) -> None:
    assert collect(stream().join_table(given_table, on="id"), parallelism=2, by="v_right") == [
        {"id": 2, "v": "b", "v_right": "x"},
        {"id": 1, "v": "a", "v_right": "y"},
        {"id": 2, "v": "b", "v_right": "z"},
    ]


def test_a_frame_of_pandas_and_keys_of_other_names() -> None:
    frame = pd.DataFrame({"key": [1], "name": ["one"]})
    joined = stream().join_table(frame, on={"id": "key"}, how="left").select("id", "name")
    assert collect(joined)[:2] == [{"id": 1, "name": "one"}, {"id": 2, "name": None}]


def test_no_record_is_read_before_the_table_is_there() -> None:
    bench = Bench(operator(TABLE), ()).begin()
    assert not bench.operator.wants_input
    bench.background()
    assert bench.operator.wants_input


def test_a_refreshed_table_is_swapped_in_and_one_that_fails_is_not(caplog: pytest.LogCaptureFixture) -> None:
    answers: list[Any] = [TABLE, ValueError("gone"), TABLE.slice(1, 1), pa.table({"id": [1]})]

    def read() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    bench, found = Bench(operator(read, refresh_ms=5_000), ()).begin(), []
    bench.background()
    while True:
        bench.emitted.clear()
        bench.process(pa.record_batch({"id": [2, 1]}))
        found.append([row["v"] for row in bench.rows()])
        if not answers:
            break
        (at_ms, call) = bench.context.timers.pop()
        assert at_ms == 5_000
        call()
        with caplog.at_level(logging.WARNING, "penstock"):
            bench.background()
    # A table with other columns is refused too: records behind it would have another schema.
    assert found == [["x", "z", "y"], ["x", "z", "y"], ["y"], ["y"]]
    assert (bench.count(REFRESHED), bench.count(REFRESH_FAILED)) == (1, 2)
    assert ["stays in use" in record.getMessage() for record in caplog.records] == [True, True]
    assert "ValueError: gone" in caplog.records[0].getMessage()


def test_a_first_read_that_fails_names_the_operator() -> None:
    def read() -> Any:
        raise OSError("no such bucket")

    bench = Bench(operator(read), ()).begin()
    with pytest.raises(UserCodeError, match=r"operator 'op', subtask 1 of 1: reading the table.*no such bucket"):
        bench.background()


def test_keys_of_another_type_are_an_error_with_a_cure() -> None:
    with pytest.raises(DataError, match=r"int64 in the stream, and 'id' of the table is string: cast one"):
        collect(stream().join_table(pa.table({"id": ["1"]}), on="id"))


def test_two_columns_of_one_name_are_an_error_with_a_cure() -> None:
    table = pa.table({"id": [1], "v": ["x"], "v_right": ["y"]})
    with pytest.raises(DataError, match="choose another suffix"):
        collect(stream().join_table(table, on="id"))


def test_the_call_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PipelineError, match=r"no column key.*its columns are id, v"):
        stream().join_table(TABLE, on={"id": "key"})
    with pytest.raises(PipelineError, match="must be a pyarrow"):
        stream().join_table([1, 2], on="id")
    with pytest.raises(PipelineError, match="refresh_every needs a function"):
        stream().join_table(TABLE, on="id", refresh_every="1 s")
    with pytest.raises(PipelineError, match="join_table: on takes the names of columns"):
        stream().join_table(TABLE, on=())
    monkeypatch.setattr(lookups, "TABLE_BYTES_MAX", 10)
    with pytest.raises(PipelineError, match=r"travels to every worker.*Pass a function"):
        stream().join_table(TABLE, on="id")
