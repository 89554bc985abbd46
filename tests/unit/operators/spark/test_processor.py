"""Processors of PySpark without Spark: what is refused at once, the initial state, and the types they see.

`tests/spark/test_processors.py` runs the same processor on Spark and compares.
"""

from __future__ import annotations

import datetime
import zoneinfo
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row as SparkRow
from pyspark.sql.streaming import StatefulProcessor

from penstock import DataError, KeyedFunction, Pipeline, PipelineError, Row, TwoInputFunction, UserCodeError
from penstock.storage import MemoryStore
from penstock.testing import ABORT, CHECKPOINT, CollectSink, ListSource, run

ZONE = "America/New_York"
NOON = datetime.datetime(2024, 1, 1, 12, tzinfo=datetime.UTC)


def output_of(processor: Any, items: list[Any], **options: Any) -> list[dict[str, Any]]:
    sink, pipeline = CollectSink(), Pipeline("p")
    settings = {
        name: options.pop(name) for name in ("time_zone", "parallelism", "store", "restarts") if name in options
    }
    options.setdefault("schema", "t string")
    pipeline.source(ListSource(items)).key_by("id").process(processor, **{"format": "rows", **options}).sink(sink)
    run(pipeline, **{"restarts": 0, **settings})
    return sink.rows()


class Base(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.handle = handle
        self.n = handle.getValueState("n", "n int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        yield Row(t=str(self.work(key, list(rows), timerValues)))

    def work(self, key: Any, rows: list[Any], timerValues: Any) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        pass


# --- refused at once ---


class LateState(Base):
    def work(self, key: Any, rows: list[Any], timerValues: Any) -> Any:
        return self.handle.getListState("late", "n int")


class LateKeyedState(KeyedFunction):
    def process(self, key: Any, rows: Any, context: Any) -> Any:
        return context.map("late", "k string", "v string")


class LateBroadcastState(TwoInputFunction):
    def process_left(self, batch: pa.RecordBatch, context: Any) -> Any:
        return context.broadcast_state("late")

    process_right = process_left


def test_a_state_that_is_asked_for_with_the_records_is_refused_at_once() -> None:
    for function, form in ((LateState(), "rows"), (LateKeyedState(), "arrow")):
        with pytest.raises(DataError, match=r"state 'late' while it processes records: ask for .* in open\(\) or init"):
            output_of(function, [{"id": "a"}], format=form)
    pipeline = Pipeline("p")
    sides = [pipeline.source(ListSource([{"id": "a"}]), name=name) for name in ("left", "right")]
    sides[0].connect(sides[1].broadcast()).process(LateBroadcastState()).sink(CollectSink())
    with pytest.raises(DataError, match="state 'late' while it processes"):
        run(pipeline, restarts=0)


class AskedAgain(KeyedFunction):
    def open(self, context: Any) -> None:
        context.value("n", "n int")

    def process(self, key: Any, rows: Any, context: Any) -> Any:
        state = context.value("n", "n int")
        (n,) = state.get() or (0,)
        state.update((n + rows.num_rows,))
        return pa.record_batch({"t": [str(n + rows.num_rows)]})


def test_a_state_may_be_asked_for_again() -> None:
    items = [{"id": "a"}, CHECKPOINT, ABORT(), {"id": "a"}]
    assert [row["t"] for row in output_of(AskedAgain(), items, format="arrow", restarts=1)] == ["1", "2"]


class Deleted(Base):
    def init(self, handle: Any) -> None:
        super().init(handle)
        handle.deleteIfExists("n")

    def work(self, key: Any, rows: list[Any], timerValues: Any) -> Any:
        return self.n.get()


class DeletedLate(Base):
    def work(self, key: Any, rows: list[Any], timerValues: Any) -> Any:
        return self.handle.deleteIfExists("n")


class DeletedAll(Base):
    def init(self, handle: Any) -> None:
        self.gone = [handle.getListState("list", "n int"), handle.getMapState("map", "k int", "n int")]
        for name in ("list", "map"):
            handle.deleteIfExists(name)

    def work(self, key: Any, rows: list[Any], timerValues: Any) -> Any:
        gone_list, gone_map = self.gone
        return [list(found) for found in (gone_list.get(), gone_map.iterator(), gone_map.keys(), gone_map.values())]


class DeletedAndAskedFor(Base):
    def init(self, handle: Any) -> None:
        handle.deleteIfExists("n")
        super().init(handle)


class TimerInInit(Base):
    def init(self, handle: Any) -> None:
        handle.registerTimer(5)


class Lives(Base):
    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n int", 1000)

    def work(self, key: Any, rows: list[Any], timerValues: Any) -> Any:
        return "lived"


def test_a_deleted_state_is_not_used() -> None:
    with pytest.raises(DataError, match="state 'n' was deleted"):
        output_of(Deleted(), [{"id": "a"}])
    with pytest.raises(DataError, match=r"deletes state 'n' while it processes records.*clear\(\)"):
        output_of(DeletedLate(), [{"id": "a"}])


def test_a_deleted_list_or_map_has_no_elements_as_on_spark() -> None:
    assert output_of(DeletedAll(), [{"id": "a"}]) == [{"t": "[[], [], [], []]"}]


def test_a_state_that_is_deleted_and_asked_for_is_an_error() -> None:
    # It would come back with a restore, or be lost with every failure.
    with pytest.raises(DataError, match=r"deletes state 'n' and asks for it again.*give the new state another name"):
        output_of(DeletedAndAskedFor(), [{"id": "a"}])


def test_no_timer_is_set_without_a_key() -> None:
    with pytest.raises(DataError, match=r"a timer is set in open\(\) or init\(\)"):
        output_of(TimerInInit(), [{"id": "a"}])


@pytest.mark.parametrize("mode", ["event", "none"])
def test_a_time_to_live_needs_processing_time(mode: Any) -> None:
    with pytest.raises(DataError, match=f'time_mode="{mode}": set time_mode="processing"'):
        output_of(Lives(), [{"id": "a"}], time_mode=mode)
    assert output_of(Lives(), [{"id": "a"}], time_mode="processing") == [{"t": "lived"}]


# --- initial state ---


class Counts(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n int")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        (n,) = self.n.get() or (0,)
        self.n.update((n + initialState.v,))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        (n,) = self.n.get() or (0,)
        n += len(list(rows))
        self.n.update((n,))
        yield Row(id=key[0], n=n)

    def close(self) -> None:
        pass


INITIAL = pa.table({"id": [f"k{n % 40}" for n in range(80)], "v": [1000 * (n % 40) for n in range(80)]})


def newest(rows: list[dict[str, Any]]) -> dict[str, int]:
    return {row["id"]: row["n"] for row in rows}


@pytest.mark.parametrize("initial", [INITIAL, INITIAL.to_pandas(), INITIAL.to_batches()[0]])
def test_each_key_begins_with_its_initial_state_once_whatever_happens(initial: Any) -> None:
    keys = [{"id": f"k{n}"} for n in range(45)]
    items = [*keys, CHECKPOINT, ABORT(), *keys]
    options = {"schema": "id string, n int", "initial_state": initial, "parallelism": 3, "restarts": 1}
    expected = {f"k{n}": (2000 * n if n < 40 else 0) + 2 for n in range(45)}
    assert newest(output_of(Counts(), items, **options)) == expected


def test_a_pipeline_that_resumes_at_another_parallelism_does_not_take_its_initial_state_again() -> None:
    keys, store = [{"id": f"k{n}"} for n in range(45)], MemoryStore()
    options = {"schema": "id string, n int", "initial_state": INITIAL, "store": store, "name": "counts"}
    with pytest.raises(UserCodeError, match="ABORT"):
        output_of(Counts(), [*keys, CHECKPOINT, ABORT(), *keys], parallelism=1, **options)
    rows = output_of(Counts(), [*keys, *keys], parallelism=3, **options)
    assert newest(rows) == {f"k{n}": (2000 * n if n < 40 else 0) + 2 for n in range(45)}


def test_an_initial_state_that_cannot_be_used_is_refused() -> None:
    stream = Pipeline("p").source(ListSource([{"id": "a"}])).key_by("id")
    with pytest.raises(PipelineError, match="initial_state has no column id of the key"):
        stream.process(Counts(), initial_state=pa.table({"v": [1]}))
    with pytest.raises(PipelineError, match="initial_state is list"):
        stream.process(Counts(), initial_state=[1])
    with pytest.raises(PipelineError, match="initial_state is for a StatefulProcessor"):
        stream.process(AskedAgain(), initial_state=INITIAL)


# --- types ---


class Kinds(StatefulProcessor):
    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for frame in rows:
            yield pd.DataFrame({"t": [f"{name} {frame[name].dtype} {list(frame[name])}" for name in frame]})

    def close(self) -> None:
        pass


class Told(Base):
    def work(self, key: Any, rows: list[Any], timerValues: Any) -> Any:
        assert all(isinstance(row, SparkRow) for row in rows)
        return [list(row) for row in rows]


def test_times_are_in_the_zone_of_the_session() -> None:
    items = [{"id": "a", "at": NOON}]
    rows = output_of(Kinds(), items, format="pandas", time_zone=ZONE)
    assert rows[1]["t"] == "at datetime64[ns] [Timestamp('2024-01-01 07:00:00')]"
    told = output_of(Told(), items, time_zone=ZONE)
    assert told == [{"t": str([["a", NOON.astimezone(zoneinfo.ZoneInfo(ZONE))]])}]


def test_columns_that_spark_does_not_have_are_passed_as_they_are() -> None:
    batch = pa.record_batch(
        {
            "id": pa.array(["a", "a"]).dictionary_encode(),
            "u": pa.array([1, 2**63], pa.uint64()),
            "l": pa.array([[1], None], pa.large_list(pa.uint8())),
            "ns": pa.array([1, None], pa.timestamp("ns", "UTC")),
        }
    )
    rows = output_of(Kinds(), [batch], format="pandas", time_zone=ZONE)
    assert [row["t"].split(" [")[0] for row in rows] == ["id object", "u uint64", "l object", "ns datetime64[ns]"]


class Out(StatefulProcessor):
    def __init__(self, frames: list[pd.DataFrame]) -> None:
        self.frames = frames

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        list(rows)
        yield from self.frames

    def close(self) -> None:
        pass


def test_frames_become_the_declared_schema() -> None:
    frames = [
        pd.DataFrame({"m": [{"a": 1}], "at": [pd.Timestamp("2024-01-01 07:00")]}),
        pd.DataFrame({0: [None], 1: [None]}),
    ]
    rows = output_of(
        Out(frames), [{"id": "a"}], format="pandas", schema="m map<string,int>, at timestamp", time_zone=ZONE
    )
    assert rows == [{"m": [("a", 1)], "at": NOON}, {"m": None, "at": None}]


def test_a_frame_that_does_not_fit_says_which_column() -> None:
    with pytest.raises(DataError, match="the DataFrame has the columns n, odd, and the declared schema has n"):
        output_of(Out([pd.DataFrame({"n": [1], "odd": [1]})]), [{"id": "a"}], format="pandas", schema="n int")
    with pytest.raises(DataError, match="column 'n'"):
        output_of(Out([pd.DataFrame({"n": ["x"]})]), [{"id": "a"}], format="pandas", schema="n int")
    with pytest.raises(DataError, match="column 'n'"):
        output_of(Out([pd.DataFrame({"n": [1.5]})]), [{"id": "a"}], format="pandas", schema="n int")
