"""Columns without Python functions: `select`, `with_column`, `drop`, `rename`, `cast`, and expressions in `filter`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock import DataError, Pipeline, PipelineError
from penstock.api.stream import Stream
from penstock.storage import MemoryStore
from penstock.testing import ABORT, CHECKPOINT, CollectSink, ListSource, collect, run

ROWS = [{"user": "ada", "amount": 3, "at": 1_000}, {"user": "ben", "amount": -1, "at": 2_000}]


def orders(rows: list[Any] = ROWS) -> Stream:
    return Pipeline("p").source(ListSource(rows), name="in")


@pytest.mark.parametrize(
    ("build", "rows"),
    [
        (lambda s: s.select("at", "user"), [{"at": 1_000, "user": "ada"}, {"at": 2_000, "user": "ben"}]),
        (lambda s: s.select(n=pc.field("amount") * 2, m=pc.scalar(1)), [{"n": 6, "m": 1}, {"n": -2, "m": 1}]),
        (
            lambda s: s.select("user").with_column("u", pc.utf8_length(pc.field("user"))).drop("user"),
            [{"u": 3}, {"u": 3}],
        ),
        (lambda s: s.select("amount").with_column("amount", pc.field("amount") + 1), [{"amount": 4}, {"amount": 0}]),
        (lambda s: s.drop("user", "at"), [{"amount": 3}, {"amount": -1}]),
        (lambda s: s.rename({"user": "at", "at": "user"}).select("at"), [{"at": "ada"}, {"at": "ben"}]),
        (lambda s: s.select("amount").cast({"amount": "string"}), [{"amount": "3"}, {"amount": "-1"}]),
        (lambda s: s.select("amount").cast({"amount": pa.float32()}), [{"amount": 3.0}, {"amount": -1.0}]),
        (lambda s: s.filter(pc.field("amount") < 0).select("user"), [{"user": "ben"}]),
    ],
)
def test_columns_are_those_that_were_asked_for(build: Callable[[Stream], Stream], rows: list[Any]) -> None:
    assert collect(build(orders())) == rows


def test_the_order_of_rows_and_the_types_stay() -> None:
    rows = [{"n": n, "m": str(n)} for n in range(20_000)]
    stream = orders(rows).with_column("n", pc.field("n") + 0).select("n", "m", half=pc.field("n") / 2.0)
    assert [row["n"] for row in collect(stream)] == list(range(20_000))
    sink = CollectSink()
    run(orders(rows).cast({"n": "int"}).drop("m").sink(sink))
    assert sink.table().schema == pa.schema({"n": pa.int32()})


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda s: s.select("usr", name="op"), "column 'usr' not found, or ambiguous; the columns are: user, am"),
        (
            lambda s: s.select(n=pc.field("usr"), name="op"),
            "there is no column 'usr'; the columns are: user, amount, at",
        ),
        (lambda s: s.with_column("n", pc.field("usr") * 2, name="op"), "there is no column 'usr'; the columns are"),
        (lambda s: s.with_column("n", pc.field("user") * 2, name="op"), r"the columns are: user \(string\), amount \("),
        (lambda s: s.filter(pc.field("usr") > 0, name="op"), "there is no column 'usr'; the columns are: user, amount"),
        (
            lambda s: s.drop("usr", name="op"),
            "column 'usr' not found, or ambiguous; the columns are: user, amount",
        ),
        (lambda s: s.drop("user", "amount", "at", name="op"), "no column would be left"),
        (lambda s: s.rename({"usr": "u"}, name="op"), "column 'usr' not found, or ambiguous; the columns are"),
        (lambda s: s.rename({"user": "at"}, name="op"), "rename would make two columns 'at'; the columns are: user"),
        (lambda s: s.cast({"usr": "int"}, name="op"), "column 'usr' not found, or ambiguous; the columns are"),
        (lambda s: s.cast({"user": "int"}, name="op"), "column 'user' is string and cannot become int32: "),
    ],
)
def test_an_error_names_the_operator_and_the_columns_that_there_are(
    build: Callable[[Stream], Stream], message: str
) -> None:
    with pytest.raises(DataError, match=rf"operator 'op': .*{message}") as raised:
        collect(build(orders()))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda s: s.select(), "select takes the names of columns, at least one"),
        (lambda s: s.select(pc.field("user")), r"an expression needs a name for its column: select\(double="),
        (lambda s: s.select(user="user"), "select: user is 'user': it must be an Arrow expression"),
        (lambda s: s.select("user", user=pc.field("at")), "select names a column twice: user, user"),
        (lambda s: s.with_column("n", 7), "with_column takes an Arrow expression or a function, not 7"),
        (lambda s: s.with_column(7, pc.field("n")), "with_column takes the names of columns"),
        (lambda s: s.drop(), "drop takes the names of columns, at least one"),
        (
            lambda s: s.rename("user"),
            'rename takes a dictionary by columns, such as {"user": "customer"}, not \'user\'',
        ),
        (lambda s: s.rename({}), "rename takes a dictionary by columns"),
        (lambda s: s.rename({"a": "c", "b": "c"}), "rename names a column twice: c, c"),
        (lambda s: s.cast({"n": "number"}), "cast: the type of 'n' is 'number': it must be an Arrow type, or a string"),
        (lambda s: s.cast({"n": 7}), "cast: the type of 'n' is 7"),
        (lambda s: s.filter(7), "filter takes a function, not 7"),
    ],
)
def test_a_mistake_is_found_when_the_pipeline_is_described(build: Callable[[Stream], Stream], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        build(orders())


def test_the_event_time_follows_its_column_to_a_new_name() -> None:
    timed = orders().with_watermark("at", 0).rename({"at": "seen"})
    assert collect(timed.key_by("user").window("1 min").count("n")) == [
        {"user": user, "window_start": 0, "window_end": 60_000, "n": 1} for user in ("ada", "ben")
    ]


def test_avg_is_another_name_for_mean_in_the_result_and_in_a_checkpoint() -> None:
    def described(function: str, items: list[Any], sink: CollectSink) -> Pipeline:
        keyed = orders(items).key_by("user")
        return keyed.aggregate(m=(function, "amount"), emit="final", name="means").sink(sink, name="out")

    first, sink, store = CollectSink(), CollectSink(), MemoryStore()
    with pytest.raises(Exception, match="ABORT"):
        run(described("mean", [*ROWS, CHECKPOINT, ABORT()], first), restarts=0, store=store)
    run(described("avg", [*ROWS, CHECKPOINT, {"user": "ada", "amount": 5, "at": 3_000}], sink), store=store)
    assert sorted((row["user"], row["m"]) for row in sink.rows()) == [("ada", 4.0), ("ben", -1.0)]
