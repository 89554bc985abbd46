"""Functions with state: keyed ones, PySpark's processors, two inputs; their timers, and all of it through failures."""

from __future__ import annotations

import datetime
import time
import zoneinfo
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock import (
    DataError,
    KeyedFunction,
    Pipeline,
    PipelineError,
    RestoreError,
    Row,
    StatefulProcessor,
    Stream,
    TwoInputFunction,
    UserCodeError,
)
from penstock.testing import ABORT, CHECKPOINT, PAUSE, CollectSink, ListSource, Result, run

NOW = int(time.time() * 1000)


def clicks(count: int, users: int = 5, first: int = 0) -> list[Any]:
    return [{"user": f"u{n % users}", "n": n} for n in range(first, first + count)]


def run_of(build: Callable[[Stream], Stream], items: list[Any], **options: Any) -> tuple[list[dict[str, Any]], Result]:
    pipeline, sink = Pipeline("p"), CollectSink()
    splits = options.pop("splits", 1)
    build(pipeline.source(ListSource(items, splits=splits, batch_rows=options.pop("batch_rows", 50)))).sink(sink)
    result = run(pipeline, **options)
    return sink.rows(), result


def newest(rows: list[dict[str, Any]]) -> dict[str, int]:
    return {row["user"]: row["n"] for row in rows}


class Count(KeyedFunction):
    def open(self, context: Any) -> None:
        self.count = context.value("count", "n bigint")

    def process(self, key: Any, rows: pa.RecordBatch, context: Any) -> Any:
        assert context.key == key
        (n,) = self.count.get() or (0,)
        self.count.update((n + rows.num_rows,))
        return pa.record_batch({"user": [key[0]], "n": [n + rows.num_rows]})


@pytest.mark.parametrize(("parallelism", "workers"), [(1, 1), (3, 2), (4, 1)])
def test_value_state_survives_a_crash(parallelism: int, workers: int) -> None:
    items = [*clicks(100), CHECKPOINT, *clicks(20), ABORT(), *clicks(30)]
    rows, result = run_of(
        lambda s: s.key_by("user").process(Count()), items, parallelism=parallelism, workers=workers, splits=2
    )
    assert result.restarts == 1
    assert newest(rows) == {f"u{k}": 30 for k in range(5)}


@pytest.mark.parametrize("number", [float("nan"), 0.0])
def test_a_struct_with_floats_is_one_key_through_a_crash(number: float) -> None:
    key = [{"a": number, "b": 1}, {"a": -number, "b": 1}]
    items = [{"user": key[n % 2], "n": n} for n in range(4)]
    rows, _ = run_of(lambda s: s.key_by("user").process(Count()), [*items, CHECKPOINT, ABORT(), items[0]], batch_rows=1)
    assert [row["n"] for row in rows] == [1, 2, 3, 4, 5]


def test_records_of_the_two_zeros_are_of_one_key_and_in_their_order() -> None:
    class Passed(KeyedFunction):
        def process(self, key: Any, rows: pa.RecordBatch, context: Any) -> Any:
            return rows

    items = [{"k": -0.0 if n % 2 else 0.0, "n": n} for n in range(6)]
    rows, _ = run_of(lambda s: s.key_by("k").process(Passed()), items)
    assert [row["n"] for row in rows] == list(range(6))


def test_both_hours_when_clocks_go_back_are_keys_of_their_own_through_a_crash() -> None:
    paris = zoneinfo.ZoneInfo("Europe/Paris")
    hours = [datetime.datetime(2024, 10, 27, 2, 30, tzinfo=paris, fold=fold) for fold in (0, 1)]
    items = [{"user": hours[n % 2], "n": n} for n in range(4)]
    schema = pa.schema([("user", pa.timestamp("us", "Europe/Paris")), ("n", pa.int64())])
    batches = [pa.RecordBatch.from_pylist(items, schema=schema)]
    # In one key group, or they would not meet.
    pipeline, sink = Pipeline("p", max_parallelism=1), CollectSink()
    pipeline.source(ListSource([*batches, CHECKPOINT, ABORT(), *batches])).key_by("user").process(Count()).sink(sink)
    run(pipeline)
    # A key may have more than one call; the last one has counted all of its records.
    counted = {row["user"].astimezone(datetime.UTC): row["n"] for row in sink.rows()}
    assert counted == {hour.astimezone(datetime.UTC): 4 for hour in hours}


def test_a_class_does_for_an_instance() -> None:
    rows, _ = run_of(lambda s: s.key_by("user").process(Count), clicks(10))
    assert newest(rows) == {f"u{k}": 2 for k in range(5)}


@pytest.mark.parametrize("as_", ["arrow", "pandas", "rows"])
def test_a_keyed_function_sees_its_rows_in_the_form_of_its_choice(as_: Any) -> None:
    class Sum(KeyedFunction):
        def process(self, key: Any, rows: Any, context: Any) -> Iterator[Any]:
            if as_ == "arrow":
                yield pa.record_batch({"user": [key[0]], "n": [pc.sum(rows["n"]).as_py()]})
            elif as_ == "pandas":
                assert list(rows.index) == list(range(len(rows)))
                yield pd.DataFrame({"user": [key[0]], "n": [rows["n"].sum()]})
            else:
                yield {"user": key[0], "n": sum(row["n"] for row in rows)}

    rows, _ = run_of(lambda s: s.key_by("user").process(Sum(), format=as_), clicks(10), batch_rows=100)
    # A key may have more than one call.
    sums: Counter[str] = Counter()
    for row in rows:
        sums[row["user"]] += row["n"]
    assert sums == {f"u{k}": k + k + 5 for k in range(5)}


def test_list_and_map_state() -> None:
    class Both(KeyedFunction):
        def open(self, context: Any) -> None:
            self.seen = context.list("seen", pa.schema([("n", pa.int64())]))
            self.parity = context.map("parity", "even boolean", "count int")

        def process(self, key: Any, rows: Any, context: Any) -> Iterator[Any]:
            for row in rows:
                self.seen.append_value((row["n"],))
                even = (row["n"] % 2 == 0,)
                (count,) = self.parity.get_value(even) or (0,)
                self.parity.update_value(even, (count + 1,))
            counts = {even: count for (even,), (count,) in self.parity.iterator()}
            yield {"user": key[0], "n": sum(n for (n,) in self.seen.get()), "even": counts.get(True, 0)}

    items = [*clicks(20, 2), CHECKPOINT, ABORT(), *clicks(20, 2, 20)]
    rows, _ = run_of(lambda s: s.key_by("user").process(Both(), format="rows"), items, parallelism=2)
    last = {row["user"]: (row["n"], row["even"]) for row in rows}
    assert last == {"u0": (sum(range(0, 40, 2)), 20), "u1": (sum(range(1, 40, 2)), 0)}


def test_state_with_a_time_to_live_is_gone_after_it() -> None:
    class Recent(KeyedFunction):
        def open(self, context: Any) -> None:
            self.value = context.value("value", "n bigint", ttl="40 ms")
            self.list = context.list("list", "n bigint", ttl="40 ms")
            self.map = context.map("map", "k bigint", "n bigint", ttl="40 ms")

        def process(self, key: Any, rows: Any, context: Any) -> Iterator[Any]:
            for row in rows:
                old = self.value.get(), list(self.list.get()), list(self.map.iterator()), self.map.exists()
                self.value.update((row["n"],))
                self.list.append_value((row["n"],))
                self.map.update_value((row["n"],), (row["n"],))
                yield {"old": str(old)}

    items = [*clicks(2, 1), PAUSE("60 ms"), *clicks(1, 1)]
    rows, _ = run_of(lambda s: s.key_by("user").process(Recent(), format="rows"), items)
    nothing, first = "(None, [], [], False)", "((0,), [(0,)], [((0,), (0,))], True)"
    assert [row["old"] for row in rows] == [nothing, first, nothing]


def test_what_a_function_raises_names_its_operator_and_the_key() -> None:
    class Broken(KeyedFunction):
        def process(self, key: Any, rows: Any, context: Any) -> None:
            raise KeyError("nope")

    with pytest.raises(
        UserCodeError, match=r"operator 'broken', subtask 0 of 1: process, key \('u0',\) raised KeyError"
    ):
        run_of(lambda s: s.key_by("user").process(Broken(), name="broken"), clicks(1), restarts=0)


def test_state_that_is_gone_from_the_function_is_an_error_unless_it_is_deleted() -> None:
    class Old(Count):
        def open(self, context: Any) -> None:
            super().open(context)
            context.value("old", "n bigint")

        def process(self, key: Any, rows: pa.RecordBatch, context: Any) -> Any:
            context.value("old", "n bigint").update((1,))
            return super().process(key, rows, context)

    class Deleting(Count):
        def open(self, context: Any) -> None:
            super().open(context)
            context.delete_state("old")

    def described(function: KeyedFunction) -> Pipeline:
        source = ListSource([*clicks(10), CHECKPOINT])
        return Pipeline("p").source(source).key_by("user").process(function, name="count").sink(CollectSink())

    store = run(described(Old())).store
    with pytest.raises(RestoreError, match="keyed state 'old'"):
        run(described(Count()), store=store, restarts=0)
    run(described(Deleting()), store=store)


# --- timers ---


class Alarm(KeyedFunction):
    """Says how many records of a key had come some time after the first one."""

    def __init__(self, after_ms: int) -> None:
        self.after_ms = after_ms

    def open(self, context: Any) -> None:
        self.count = context.value("count", "n bigint")

    def process(self, key: Any, rows: pa.RecordBatch, context: Any) -> None:
        (n,) = self.count.get() or (0,)
        if n == 0:
            context.set_timer(context.now_ms() + self.after_ms)
            assert len(list(context.timers())) == 1
        self.count.update((n + rows.num_rows,))

    def on_timer(self, key: Any, at_ms: int, context: Any) -> Any:
        (n,) = self.count.get()
        late = context.now_ms() - at_ms
        return pa.record_batch({"user": [key[0]], "n": [n], "late": [late], "timers": [len(list(context.timers()))]})


def test_timers_are_called_at_their_time() -> None:
    rows, _ = run_of(lambda s: s.key_by("user").process(Alarm(30)), [*clicks(10), PAUSE("80 ms"), *clicks(10)])
    assert newest(rows) == {f"u{k}": 2 for k in range(5)}
    assert all(row["late"] >= 0 and row["timers"] == 1 for row in rows)


def test_timers_that_are_left_at_the_end_are_called_early() -> None:
    rows, _ = run_of(lambda s: s.key_by("user").process(Alarm(10**7)), clicks(10))
    assert newest(rows) == {f"u{k}": 2 for k in range(5)}
    assert all(row["late"] < 0 for row in rows)


def test_timers_that_are_left_at_the_end_can_be_dropped() -> None:
    rows, _ = run_of(lambda s: s.key_by("user").process(Alarm(10**7), at_end="drop"), clicks(10))
    assert rows == []


@pytest.mark.parametrize("parallelism", [1, 3])
def test_timers_survive_a_crash_and_are_called_once(parallelism: int) -> None:
    items = [*clicks(10), CHECKPOINT, ABORT(), PAUSE("120 ms"), *clicks(5)]
    rows, result = run_of(lambda s: s.key_by("user").process(Alarm(60)), items, parallelism=parallelism, workers=2)
    assert result.restarts == 1
    assert sorted((row["user"], row["n"]) for row in rows) == [(f"u{k}", 2) for k in range(5)]


def test_timers_move_with_their_keys_when_the_pipeline_is_rescaled() -> None:
    def described() -> tuple[Pipeline, CollectSink]:
        sink = CollectSink()
        source = ListSource([*clicks(10), CHECKPOINT, PAUSE("500 ms"), *clicks(5)])
        return Pipeline("p").source(source, parallelism=1).key_by("user").process(Alarm(400)).sink(sink), sink

    first, none = described()
    started = time.monotonic()
    store = run(first, parallelism=1, until=lambda: time.monotonic() > started + 0.03).store
    assert none.rows() == []
    second, sink = described()
    run(second, parallelism=4, workers=2, store=store)
    assert sorted((row["user"], row["n"]) for row in sink.rows()) == [(f"u{k}", 2) for k in range(5)]


def test_a_timer_can_be_deleted_and_set_again() -> None:
    class Fickle(KeyedFunction):
        def process(self, key: Any, rows: Any, context: Any) -> None:
            context.set_timer(NOW)
            context.delete_timer(NOW)
            context.set_timer(NOW + 1)
            context.set_timer(NOW + 1)
            context.delete_timer(NOW + 7)

        def on_timer(self, key: Any, at_ms: int, context: Any) -> Iterator[Any]:
            yield {"at": at_ms - NOW}

    rows, _ = run_of(lambda s: s.key_by("user").process(Fickle(), format="rows"), [*clicks(1), PAUSE("20 ms")])
    assert rows == [{"at": 1}]


def test_what_a_timer_raises_names_its_operator() -> None:
    class Broken(Alarm):
        def on_timer(self, key: Any, at_ms: int, context: Any) -> Any:
            raise KeyError("nope")

    with pytest.raises(
        UserCodeError,
        match=r"operator 'process-user-[0-9a-f]{8}', subtask 0 of 1: on_timer, key \('u0',\) raised KeyError",
    ):
        run_of(lambda s: s.key_by("user").process(Broken(1)), [*clicks(1), PAUSE("30 ms")], restarts=0)


# --- as in PySpark ---


class OurCount(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "n bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        (n,) = self.count.get() or (0,)
        n += sum(len(frame) for frame in rows)
        self.count.update((n,))
        assert timerValues.getCurrentProcessingTimeInMs() >= NOW
        yield pd.DataFrame({"user": [key[0]], "n": [n]})


def test_a_processor_on_pandas() -> None:
    items = [*clicks(50), CHECKPOINT, ABORT(), *clicks(50)]
    rows, _ = run_of(lambda s: s.key_by("user").process(OurCount(), schema="user string, n bigint"), items)
    assert newest(rows) == {f"u{k}": 20 for k in range(5)}


def test_a_processor_written_for_pyspark_runs_as_it_is() -> None:
    from pyspark.sql import Row as SparkRow
    from pyspark.sql.streaming import StatefulProcessor as SparkProcessor
    from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

    class Sessions(SparkProcessor):  # type: ignore[misc]
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.count = handle.getValueState("count", StructType([StructField("n", LongType())]))
            self.names = handle.getListState("names", "name string")
            self.places = handle.getMapState("places", "n bigint", StructType([StructField("c", IntegerType())]))

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
            (user,) = key
            count = self.count.get()[0] if self.count.exists() else 0
            for row in rows:
                assert row.user == row["user"] == row[0] == user
                assert row.asDict() == {"user": user, "n": row.n}
                count += 1
                self.names.appendValue((row.user,))
                if not self.places.containsKey((row.n,)):
                    self.places.updateValue((row.n,), (0,))
                self.places.updateValue((row.n,), (self.places.getValue((row.n,))[0] + 1,))
            self.count.update((count,))
            if not list(self.handle.listTimers()):
                self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 10**6)
            yield SparkRow(user=user, n=count, names=len(list(self.names.get())), timer=False)

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
            assert expiredTimerInfo.getExpiryTimeInMs() > timerValues.getCurrentProcessingTimeInMs()
            places = sum(count for (count,) in self.places.values())
            yield SparkRow(user=key[0], n=places, names=0, timer=True)

        def close(self) -> None:
            return None

    schema = StructType(
        [
            StructField("user", StringType()),
            StructField("n", LongType()),
            StructField("names", IntegerType()),
            StructField("timer", __import__("pyspark").sql.types.BooleanType()),
        ]
    )
    items = [*clicks(20), CHECKPOINT, ABORT(), *clicks(20)]
    rows, result = run_of(
        lambda s: s.key_by("user").process(Sessions(), format="rows", schema=schema), items, parallelism=2
    )
    assert result.restarts == 1
    seen = {row["user"]: (row["n"], row["names"]) for row in rows if not row["timer"]}
    assert seen == {f"u{k}": (8, 8) for k in range(5)}
    assert {row["user"]: row["n"] for row in rows if row["timer"]} == {f"u{k}": 8 for k in range(5)}


def test_a_processor_wants_pandas_or_rows() -> None:
    with pytest.raises(PipelineError, match='format="pandas" or format="rows"'):
        run_of(lambda s: s.key_by("user").process(OurCount(), format="arrow"), clicks(1))


def test_a_row_is_like_pysparks() -> None:
    row = Row(a=1, b="x")
    assert (row.a, row["b"], row[0], "a" in row, tuple(row)) == (1, "x", 1, True, (1, "x"))
    assert repr(row) == "Row(a=1, b='x')"
    with pytest.raises(AttributeError):
        _ = row.c


# --- two inputs ---


class Join(TwoInputFunction):
    """Joins by key, each side waiting for the other, columnar on the left and by key on the right."""

    def open(self, context: Any) -> None:
        self.names = context.value("name", "name string")
        self.waiting = context.list("waiting", "n bigint")

    def process_left(self, batch: pa.RecordBatch, context: Any) -> Iterator[Any]:
        for key, rows in context.each_key(batch):
            name = self.names.get()
            if name is None:
                self.waiting.append_list([(n,) for n in rows["n"].to_pylist()])
            else:
                yield self._joined(key, name[0], rows["n"].to_pylist())

    def process_right(self, batch: pa.RecordBatch, context: Any) -> Iterator[Any]:
        for key, rows in context.each_key(batch):
            name = rows["name"][-1].as_py()
            self.names.update((name,))
            waiting = [n for (n,) in self.waiting.get()]
            self.waiting.clear()
            if waiting:
                yield self._joined(key, name, waiting)

    @staticmethod
    def _joined(key: Any, name: str, numbers: list[int]) -> pa.RecordBatch:
        return pa.record_batch({"user": [key[0]] * len(numbers), "name": [name] * len(numbers), "n": numbers})


@pytest.mark.parametrize("parallelism", [1, 3])
def test_two_keyed_streams_meet_also_through_a_crash(parallelism: int) -> None:
    pipeline, sink = Pipeline("p"), CollectSink()
    left = pipeline.source(
        ListSource([*clicks(40), CHECKPOINT, *clicks(20, 5, 40), ABORT(), *clicks(40, 5, 60)]), name="left"
    )
    names = [{"id": f"u{k}", "name": f"name{k}"} for k in range(5)]
    right = pipeline.source(ListSource([*names[:2], CHECKPOINT, PAUSE("20 ms"), *names[2:]]), name="right")
    left.key_by("user").connect(right.key_by("id")).process(Join()).sink(sink)
    run(pipeline, parallelism=parallelism, workers=2)
    found = sorted((row["n"], row["name"]) for row in sink.rows())
    assert found == [(n, f"name{n % 5}") for n in range(100)]


class Threshold(TwoInputFunction):
    def open(self, context: Any) -> None:
        self.limit = context.broadcast_state("limit")

    def process_left(self, batch: pa.RecordBatch, context: Any) -> Any:
        limits = self.limit.get()
        return batch.filter(pc.greater_equal(batch["n"], limits[-1]["limit"][-1])) if limits else None

    def process_right(self, batch: pa.RecordBatch, context: Any) -> None:
        self.limit.put([batch.slice(batch.num_rows - 1)])


@pytest.mark.parametrize("keyed", [True, False])
def test_a_broadcast_side_comes_to_every_subtask(keyed: bool) -> None:
    pipeline, sink = Pipeline("p"), CollectSink()
    left: Stream = pipeline.source(
        ListSource([PAUSE("40 ms"), *clicks(50), CHECKPOINT, ABORT(), *clicks(50, 5, 50)]), name="left"
    )
    right = pipeline.source(ListSource([{"limit": 90}, {"limit": 30}]), parallelism=1, name="right")
    left = left.key_by("user") if keyed else left.rebalance()
    left.connect(right.broadcast()).process(Threshold(), parallelism=3).sink(sink)
    run(pipeline, parallelism=2, workers=2)
    assert sorted(row["n"] for row in sink.rows()) == list(range(30, 100))


def test_a_plain_function_gets_both_sides() -> None:
    pipeline, sink = Pipeline("p"), CollectSink()
    left, right = (
        pipeline.source(ListSource(clicks(3)), name="left"),
        pipeline.source(ListSource([{"m": 1}]), name="right"),
    )
    both = left.connect(right).process(lambda batch, side: pa.record_batch({"side": [side] * batch.num_rows}))
    both.sink(sink)
    run(pipeline)
    assert sorted(row["side"] for row in sink.rows()) == ["left"] * 3 + ["right"]


def test_keys_of_different_types_do_not_meet() -> None:
    pipeline = Pipeline("p")
    left, right = (
        pipeline.source(ListSource(clicks(3)), name="left"),
        pipeline.source(ListSource([{"id": 1, "name": "x"}]), name="right"),
    )
    left.key_by("user").connect(right.key_by("id")).process(Join(), name="join").sink(CollectSink())
    with pytest.raises(DataError, match=r"operator 'join': the key has the columns .* Cast one of them"):
        run(pipeline, restarts=0)


def test_timers_of_two_inputs() -> None:
    class Timeout(Join):
        def process_left(self, batch: pa.RecordBatch, context: Any) -> None:
            for _, rows in context.each_key(batch):
                self.waiting.append_list([(n,) for n in rows["n"].to_pylist()])
                context.set_timer(context.now_ms() + 10)

        def on_timer(self, key: Any, at_ms: int, context: Any) -> Any:
            waiting = [n for (n,) in self.waiting.get()]
            self.waiting.clear()
            return self._joined(key, "nobody", waiting) if waiting else None

    pipeline, sink = Pipeline("p"), CollectSink()
    left = pipeline.source(ListSource([*clicks(10), PAUSE("40 ms")]), name="left")
    right = pipeline.source(ListSource([{"id": "x", "name": "y"}]), name="right")
    left.key_by("user").connect(right.key_by("id")).process(Timeout()).sink(sink)
    run(pipeline, parallelism=2)
    assert sorted(row["n"] for row in sink.rows()) == list(range(10))
    assert {row["name"] for row in sink.rows()} == {"nobody"}


def test_no_key_no_keyed_state() -> None:
    pipeline = Pipeline("p")
    left, right = (
        pipeline.source(ListSource(clicks(3)), name="left"),
        pipeline.source(ListSource(clicks(3)), name="right"),
    )
    left.connect(right).process(Join(), name="join").sink(CollectSink())
    with pytest.raises(PipelineError, match="'join' asks for keyed state, but its input is not keyed: add key_by"):
        run(pipeline, restarts=0)
