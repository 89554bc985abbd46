"""What the operators do to records: every method of a stream, in every form, on no rows, one row and many."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock import DataError, GeneratorSource, Pipeline, Source, Stream, UserCodeError
from penstock.operators.keyed.reduce import ReduceOperator
from penstock.state import KeyedState
from penstock.testing import ABORT, CHECKPOINT, CollectSink, ListSource, Result, run


def output_of(build: Callable[[Stream], Stream], source: Source, **options: Any) -> list[dict[str, Any]]:
    return run_of(build, source, **options)[0]


def run_of(build: Callable[[Stream], Stream], source: Source, **options: Any) -> tuple[list[dict[str, Any]], Result]:
    pipeline, sink = Pipeline("p"), CollectSink()
    build(pipeline.source(source)).sink(sink)
    result = run(pipeline, **options)
    return sink.rows(), result


def numbers(count: int) -> ListSource:
    return ListSource([{"n": n} for n in range(count)])


def values(rows: list[dict[str, Any]], name: str = "n") -> list[Any]:
    return [row[name] for row in rows]


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"n": pc.multiply(batch["n"], 2)})


# --- map, filter, flat_map ---


@pytest.mark.parametrize("count", [0, 1, 5000])
def test_map_of_batches(count: int) -> None:
    assert values(output_of(lambda s: s.map(doubled), numbers(count))) == [2 * n for n in range(count)]


def test_map_of_rows() -> None:
    rows = output_of(lambda s: s.map(lambda row: {"n": row["n"] + 1, "t": str(row["n"])}, format="rows"), numbers(3))
    assert rows == [{"n": 1, "t": "0"}, {"n": 2, "t": "1"}, {"n": 3, "t": "2"}]


def test_map_of_pandas() -> None:
    rows = output_of(lambda s: s.map(lambda frame: frame.assign(n=frame["n"] * 3), format="pandas"), numbers(3))
    assert values(rows) == [0, 3, 6]


def test_map_of_polars() -> None:
    rows = output_of(lambda s: s.map(lambda f: f.with_columns(polars.col("n") * 3), format="polars"), numbers(3))
    assert values(rows) == [0, 3, 6]


def test_pandas_keeps_integers_and_booleans_with_nulls_what_they_are() -> None:
    batches = [
        pa.record_batch({"n": pa.array([1, 2]), "b": pa.array([True, False])}),
        pa.record_batch({"n": pa.array([None, 3], pa.int64()), "b": pa.array([None, True])}),
    ]
    pipeline, sink = Pipeline("p"), CollectSink()
    pipeline.source(ListSource(batches)).map(lambda frame: frame, format="pandas").sink(sink)
    run(pipeline)
    assert sink.table().schema == batches[0].schema
    assert sink.table()["n"].to_pylist() == [1, 2, None, 3]


def test_filter_by_mask_expression_batch_row_and_frame() -> None:
    ways: list[Callable[[Stream], Stream]] = [
        lambda s: s.filter(lambda batch: pc.greater(batch["n"], 2)),
        lambda s: s.filter(lambda batch: batch["n"].to_numpy() > 2),
        lambda s: s.filter(lambda batch: [n > 2 for n in batch["n"].to_pylist()]),
        lambda s: s.filter(lambda batch: pc.field("n") > 2),
        lambda s: s.filter(pc.field("n") > 2),
        lambda s: s.filter(lambda batch: batch.filter(pc.field("n") > 2)),
        lambda s: s.filter(lambda row: row["n"] > 2, format="rows"),
        lambda s: s.filter(lambda frame: frame["n"] > 2, format="pandas"),
        lambda s: s.filter(lambda frame: frame[frame["n"] > 2], format="pandas"),
    ]
    for way in ways:
        assert values(output_of(way, numbers(5))) == [3, 4]


def test_a_mask_of_another_length_or_type_is_an_error() -> None:
    for mask in ([True], [1, 2, 3]):
        with pytest.raises(DataError, match=r"'filter-[0-9a-f]{8}': filter needs a boolean for each of 3 rows"):
            output_of(lambda s, mask=mask: s.filter(lambda batch: mask), numbers(3), restarts=0)


def test_flat_map_of_batches_and_rows() -> None:
    ways: list[Callable[[Stream], Stream]] = [
        lambda s: s.flat_map(lambda batch: [batch, doubled(batch)]),
        lambda s: s.flat_map(lambda row: [{"n": row["n"]}, {"n": 2 * row["n"]}], format="rows"),
    ]
    for way in ways:
        assert sorted(values(output_of(way, numbers(3)))) == [0, 0, 1, 2, 2, 4]


def test_flat_map_may_return_nothing() -> None:
    assert output_of(lambda s: s.flat_map(lambda batch: []), numbers(3)) == []
    assert output_of(lambda s: s.flat_map(lambda row: None, format="rows"), numbers(3)) == []


def test_a_table_is_as_good_as_a_batch() -> None:
    rows = output_of(lambda s: s.map(lambda batch: pa.Table.from_batches([batch, batch])), numbers(2))
    assert values(rows) == [0, 1, 0, 1]


def test_something_else_than_a_batch_is_an_error_that_names_the_operator() -> None:
    with pytest.raises(DataError, match=r"'lengths': expected a pyarrow.RecordBatch .*returned int: 3"):
        output_of(lambda s: s.map(len, name="lengths"), numbers(3), restarts=0)


def test_select_and_with_column() -> None:
    def build(stream: Stream) -> Stream:
        more = stream.with_column("m", lambda batch: pc.add(batch["n"], 1)).with_column("n", lambda batch: batch["m"])
        return more.with_column("one", lambda batch: pa.scalar(1)).select("one", "n")

    assert output_of(build, numbers(2)) == [{"one": 1, "n": 1}, {"one": 1, "n": 2}]


def test_a_column_that_is_not_there_is_an_error_with_those_that_are() -> None:
    with pytest.raises(
        DataError, match=r"'select-[0-9a-f]{8}': column 'x' not found, or ambiguous; the columns are: n"
    ):
        output_of(lambda s: s.select("x"), numbers(2), restarts=0)


def test_what_a_function_raises_names_the_operator() -> None:
    def broken(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError("no luck")

    with pytest.raises(UserCodeError, match="operator 'broken', subtask 0 of 1: process raised ValueError: no luck"):
        output_of(lambda s: s.map(broken, name="broken"), numbers(2), restarts=0)


# --- schemas ---


def test_a_declared_schema_is_cast_to() -> None:
    pipeline, sink = Pipeline("p"), CollectSink()
    declared = "t string, n double"
    pipeline.source(numbers(2)).map(lambda row: {"n": row["n"], "t": None}, format="rows", schema=declared).sink(sink)
    run(pipeline)
    assert sink.table().schema == pa.schema([("t", pa.string()), ("n", pa.float64())])


def test_a_schema_that_drifts_is_an_error_that_says_what_differs() -> None:
    def drifting(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch if batch["n"][0].as_py() == 0 else pa.record_batch({"n": ["text"]})

    source = ListSource([{"n": n} for n in range(2)], batch_rows=1)
    message = "output of operator 'drifting': the schema changed .*: 'n' was int64 and is string. Cast"
    with pytest.raises(DataError, match=message):
        output_of(lambda s: s.map(drifting, name="drifting"), source, restarts=0)


def test_input_that_drifts_is_an_error_of_the_operator_that_gets_it() -> None:
    source = ListSource([pa.record_batch({"n": [1]}), pa.record_batch({"n": [1], "m": [2]})])
    with pytest.raises(DataError, match=r"operator 'map-[0-9a-f]{8}': the schema changed .*: 'm' is new"):
        output_of(lambda s: s.map(lambda batch: batch), source, restarts=0)


def test_a_column_of_nulls_takes_the_type_of_those_before_it() -> None:
    source = ListSource([{"n": n} for n in range(3)], batch_rows=1)
    rows = output_of(lambda s: s.map(lambda row: {"x": 1.5 if row["n"] == 0 else None}, format="rows"), source)
    assert values(rows, "x") == [1.5, None, None]


def test_fields_that_only_some_rows_have_are_kept() -> None:
    rows = output_of(lambda s: s.map(lambda row: {"a": 1} if row["n"] else {"b": 2}, format="rows"), numbers(2))
    assert rows == [{"b": 2, "a": None}, {"b": None, "a": 1}]


def test_a_field_that_comes_later_is_an_error_and_not_lost() -> None:
    source = ListSource([{"n": n} for n in range(2)], batch_rows=1)
    with pytest.raises(DataError, match="a row has the fields b"):
        output_of(lambda s: s.map(lambda r: {"a": 1} if not r["n"] else {"b": 1}, format="rows"), source, restarts=0)


# --- keys ---


def orders(count: int = 200, keys: int = 7) -> list[Any]:
    return [{"user": f"u{n % keys}", "amount": n} for n in range(count)]


def newest(rows: list[dict[str, Any]], *key: str) -> dict[Any, dict[str, Any]]:
    """A stream of updates: the last one for a key counts, and subtasks keep their order."""
    return {tuple(row[name] for name in key): row for row in rows}


@pytest.mark.parametrize("parallelism", [1, 3])
def test_aggregates_of_all_functions(parallelism: int) -> None:
    rows = output_of(
        lambda s: s.key_by("user").aggregate(
            total=("sum", "amount"), n="count", least=("min", "amount"), most=("max", "amount"), mean=("mean", "amount")
        ),
        ListSource(orders(), splits=2),
        parallelism=parallelism,
        workers=2,
    )
    for (user,), row in newest(rows, "user").items():
        amounts = [order["amount"] for order in orders() if order["user"] == user]
        expected = [sum(amounts), len(amounts), min(amounts), max(amounts), np.mean(amounts)]
        assert [row[name] for name in ("total", "n", "least", "most", "mean")] == expected


def test_count_and_sum() -> None:
    source = ListSource(orders(20, 2))
    assert newest(output_of(lambda s: s.key_by("user").count(), source), "user")[("u1",)]["count"] == 10
    assert newest(output_of(lambda s: s.key_by("user").sum("amount"), source), "user")[("u0",)]["amount"] == 90


@pytest.mark.parametrize("parallelism", [1, 3])
def test_reduce_survives_a_crash(parallelism: int) -> None:
    items = [*orders(100), CHECKPOINT, *orders(50), ABORT(), *orders(30)]
    plain = [item for item in items if isinstance(item, dict)]
    rows, result = run_of(
        lambda s: s.key_by("user").reduce(lambda a, b: {"user": a["user"], "amount": a["amount"] + b["amount"]}),
        ListSource(items, batch_rows=9),
        parallelism=parallelism,
        workers=2,
    )
    assert result.restarts == 1
    found = {user: row["amount"] for (user,), row in newest(rows, "user").items()}
    assert found == {f"u{k}": sum(row["amount"] for row in plain if row["user"] == f"u{k}") for k in range(7)}


def test_the_state_of_reduce_stays_small() -> None:
    state = KeyedState(range(128), 128)
    operator = ReduceOperator(lambda a, b: {**a, "amount": a["amount"] + b["amount"]})
    operator.open(SimpleNamespace(operator="reduce", key=("user",), keyed=state))  # type: ignore[arg-type]
    for order in orders(2500, 3):
        operator.process(pa.RecordBatch.from_pylist([order]), 0, lambda batch: None)
    batches = state.rows("reduced", ["user"]).get()
    assert len(batches) < 20
    assert sum(batch.num_rows for batch in batches) < 1100


def test_reduce_needs_a_row_of_its_function() -> None:
    with pytest.raises(
        DataError, match=r"'reduce-user-[0-9a-f]{8}': reduce needs a function that returns a dict, not 7"
    ):
        output_of(lambda s: s.key_by("user").reduce(lambda a, b: 7), ListSource(orders(20)), restarts=0)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_key_column_that_is_not_there_is_an_error_with_those_that_are(parallelism: int) -> None:
    with pytest.raises(DataError, match=r"customer.*columns.*user, amount"):
        output_of(lambda s: s.key_by("customer").count(), ListSource(orders(20)), restarts=0, parallelism=parallelism)


def test_null_is_a_key_like_any_other() -> None:
    source = ListSource([{"user": None, "amount": 1}, {"user": "u", "amount": 2}, {"user": None, "amount": 3}])
    rows = output_of(lambda s: s.key_by("user").sum("amount"), source, parallelism=2)
    assert newest(rows, "user")[(None,)]["amount"] == 4


def test_null_in_a_key_can_be_refused() -> None:
    source = ListSource([{"user": "u", "amount": 2}, {"user": None, "amount": 1}])
    with pytest.raises(
        DataError, match=r"'key_by-[0-9a-f]{8}': the key column 'user' is null in 1 of 2 rows: filter them out"
    ):
        output_of(lambda s: s.key_by("user", nulls="error").sum("amount"), source, restarts=0)
    good = ListSource([{"user": "u", "amount": 2}])
    assert output_of(lambda s: s.key_by("user", nulls="error").sum("amount"), good) == [{"user": "u", "amount": 2}]


def test_nan_is_one_key() -> None:
    source = ListSource([{"k": float("nan"), "v": 1}] * 3, batch_rows=1)
    rows = output_of(lambda s: s.key_by("k").reduce(lambda a, b: {**a, "v": a["v"] + b["v"]}), source)
    assert [row["v"] for row in rows] == [1, 2, 3]


def test_the_two_zeros_are_one_key_and_reduced_in_their_order() -> None:
    source = ListSource([{"k": -0.0 if n % 2 else 0.0, "v": str(n)} for n in range(6)])
    rows = output_of(lambda s: s.key_by("k").reduce(lambda a, b: {**a, "v": a["v"] + b["v"]}), source)
    assert [row["v"] for row in rows] == ["012345"]


def test_both_hours_when_clocks_go_back_are_reduced_on_their_own() -> None:
    hours = pa.array([1_729_988_100, 1_729_991_700], pa.int64()).view(pa.timestamp("s", "Europe/Paris"))
    source = ListSource([pa.record_batch({"k": hours, "v": ["a", "b"]})] * 2)
    rows = output_of(lambda s: s.key_by("k").reduce(lambda a, b: {**a, "v": a["v"] + b["v"]}), source)
    assert {row["v"] for row in rows} == {"a", "b", "aa", "bb"}


def test_aggregates_of_a_text_are_an_error_that_names_the_operator() -> None:
    with pytest.raises(
        DataError, match=r"operator 'aggregate-amount-[0-9a-f]{8}': .*sum\(user\) needs integers or floats"
    ):
        output_of(lambda s: s.key_by("amount").sum("user"), ListSource(orders(5)), restarts=0)


# --- union, exchanges, large ---


def test_union() -> None:
    pipeline, sink = Pipeline("p"), CollectSink()
    one, two = pipeline.source(numbers(10), name="one"), pipeline.source(numbers(5), name="two")
    one.union(two).map(doubled).sink(sink)
    run(pipeline, parallelism=2)
    assert sorted(values(sink.rows())) == sorted([2 * n for n in range(10)] + [2 * n for n in range(5)])


def test_union_of_different_schemas_is_an_error() -> None:
    pipeline = Pipeline("p")
    one, two = pipeline.source(numbers(10), name="one"), pipeline.source(ListSource([{"m": 1}]), name="two")
    one.union(two).map(lambda batch: batch, name="both").sink(CollectSink())
    with pytest.raises(DataError, match="operator 'both': the schema changed"):
        run(pipeline, restarts=0)


@pytest.mark.parametrize(
    ("exchange", "parallelism"), [("rebalance", 3), ("shuffle", 3), ("rescale", 3), ("rescale", 1), ("to_one", None)]
)
def test_exchanges_lose_and_repeat_nothing(exchange: str, parallelism: int | None) -> None:
    rows = output_of(
        lambda s: getattr(s, exchange)().map(lambda batch: batch, parallelism=parallelism),
        ListSource([*({"n": n} for n in range(500)), CHECKPOINT, ABORT(), *({"n": n} for n in range(500, 900))]),
        parallelism=2,
        workers=2,
    )
    assert sorted(values(rows)) == list(range(900))


def test_broadcast_goes_to_every_subtask() -> None:
    rows = output_of(lambda s: s.broadcast().map(lambda batch: batch, parallelism=3), numbers(10))
    assert sorted(values(rows)) == sorted(list(range(10)) * 3)


def test_a_large_batch() -> None:
    source = GeneratorSource(lambda start, count: pa.record_batch({"n": np.arange(start, start + count)}), rows=10**6)
    pipeline, sink = Pipeline("p"), CollectSink()
    pipeline.source(source).with_column("k", lambda b: pc.bit_wise_and(b["n"], 3)).key_by("k").sum("n").sink(sink)
    run(pipeline)
    assert newest(sink.rows(), "k")[(3,)]["n"] == sum(range(3, 10**6, 4))


def test_a_batch_of_ten_million_rows() -> None:
    whole = pa.record_batch({"n": np.arange(10**7), "k": np.arange(10**7) % 100})
    rows = output_of(lambda s: s.key_by("k").sum("n"), ListSource([whole]), parallelism=2)
    assert newest(rows, "k")[(7,)]["n"] == sum(range(7, 10**7, 100))


def test_a_long_string() -> None:
    rows = output_of(
        lambda s: s.key_by("k").count().with_column("k", lambda batch: pc.utf8_length(batch["k"])),
        ListSource([{"k": "x" * 100_000_000}, {"k": "y"}]),
        parallelism=2,
        timeout=280,
    )
    assert {row["k"]: row["count"] for row in rows} == {100_000_000: 1, 1: 1}
