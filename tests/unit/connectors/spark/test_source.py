"""PySpark's readers as sources: every row once, wherever it is cut, and the user's code in its own thread."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from penstock import (
    END_OF_SPLIT,
    DataError,
    Pipeline,
    PipelineError,
    RestoreError,
    SparkSource,
    SplitReader,
    UserCodeError,
)
from penstock.connectors.spark.reads import Position
from penstock.operators.pickling import dumps, loads
from penstock.testing import CollectSink, run
from penstock.worker.settings import WorkerSettings
from tests.unit.connectors.spark.data_sources import (
    Numbers,
    NumbersStream,
    OldNumbers,
    SimpleNumbers,
    SimpleStream,
    Span,
)

COUNT = 23


@pytest.fixture(autouse=True)
def forget() -> None:
    NumbersStream.committed.clear()
    NumbersStream.stopped.clear()
    SimpleStream.committed.clear()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def batches_of(reader: SplitReader, rows_max: int = 4) -> Iterator[pa.RecordBatch]:
    """What it returns until it ends."""
    deadline = time.monotonic() + 10
    while (batch := reader.read(rows_max)) is not END_OF_SPLIT:
        assert time.monotonic() < deadline
        if batch is None:
            time.sleep(0.0005)
        else:
            assert 0 < batch.num_rows <= rows_max
            yield batch


def numbers_of(reader: SplitReader, rows_max: int = 4) -> list[int]:
    return [number for batch in batches_of(reader, rows_max) for number in batch.column("n").to_pylist()]


def of(kind: type, mode: Any = "available_now", **options: Any) -> SparkSource:
    return SparkSource(kind, {"count": COUNT} | options, mode=mode, poll="1 ms")


def failing(kind: type, mode: Any = "available_now", **options: Any) -> Exception:
    """The error that reading it ends with."""
    source = of(kind, mode, **options)
    reader = source.open(source.splits()[0], None)
    with pytest.raises(Exception) as caught:
        numbers_of(reader)
    reader.close()
    return caught.value


# --- reading ---


@pytest.mark.parametrize("form", ["tuple", "list", "row", "batch"])
def test_a_stream_is_read_to_its_end_whatever_its_rows_are(form: str) -> None:
    reader = of(Numbers, form=form).open("stream", None)
    batches = list(batches_of(reader))
    assert [row for batch in batches for row in batch.to_pylist()] == [
        {"n": number, "name": f"number {number}"} for number in range(COUNT)
    ]
    assert {batch.schema for batch in batches} == {pa.schema({"n": pa.int64(), "name": pa.string()})}
    reader.close()


@pytest.mark.parametrize("kind", [SimpleNumbers, OldNumbers])
def test_so_are_a_simple_reader_and_one_of_an_older_spark(kind: type) -> None:
    reader = of(kind).open("stream", None)
    assert numbers_of(reader) == list(range(COUNT))
    reader.close()


def test_a_stream_goes_on_when_there_is_more() -> None:
    reader = of(Growing, "stream").open("stream", None)
    Growing.count = 5
    read: list[int] = []

    def take(count: int) -> bool:
        batch = reader.read(100)
        read.extend([] if batch is None else batch.column("n").to_pylist())
        return len(read) >= count

    until(lambda: take(5))
    assert reader.read(100) is None
    Growing.count = 8
    until(lambda: take(8))
    assert read == list(range(8))
    reader.close()


def test_each_partition_of_a_bounded_reader_is_a_split() -> None:
    source = of(Numbers, "batch")
    assert source.splits() == ["0/3", "1/3", "2/3"]
    read = [numbers_of(source.open(split, None)) for split in source.splits()]
    assert [number for numbers in read for number in numbers] == list(range(COUNT))
    assert all(read)


def test_a_worker_does_not_read_more_partitions_at_once_than_it_may() -> None:
    source = SparkSource(Numbers, {"count": 9, "partitions": 9}, mode="batch", reads_at_once=2)
    readers = [source.open(split, None) for split in source.splits()]
    read: list[int] = []
    deadline = time.monotonic() + 10
    while readers and time.monotonic() < deadline:
        for reader in list(readers):
            batch = reader.read(1)
            assert len(reading_threads()) <= 2
            if batch is END_OF_SPLIT:
                readers.remove(reader)
            elif batch is not None:
                read += batch.column("n").to_pylist()
    assert sorted(read) == list(range(9))


def test_it_travels_to_the_workers_with_the_partitions_that_were_planned() -> None:
    source = loads(dumps(of(Numbers, "batch")))
    assert sorted(n for split in source.splits() for n in numbers_of(source.open(split, None))) == list(range(COUNT))


def test_a_schema_that_is_given_wins_and_options_are_texts_without_case() -> None:
    reader = SparkSource(Numbers, {"COUNT": 2}, schema="n int, name string", mode="available_now").open("stream", None)
    (batch,) = batches_of(reader)
    assert batch.schema.field("n").type == pa.int32()
    reader.close()


# --- replay ---


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from([Numbers, SimpleNumbers, OldNumbers]),
    form=st.sampled_from(["tuple", "batch"]),
    step=st.integers(1, 12),
    cuts=st.lists(st.tuples(st.integers(1, 7), st.integers(0, 6)), max_size=6),
)
def test_after_a_failure_at_any_row_it_goes_on_with_the_next_one(
    kind: type, form: str, step: int, cuts: list[tuple[int, int]]
) -> None:
    """A reader is given up after so many calls, and another one goes on from its offset."""
    source = of(kind, form=form, step=step)
    read: list[int] = []
    offset: bytes | None = None
    for rows_max, calls in cuts:
        reader = source.open("stream", offset)
        found = batches_of(reader, rows_max)
        for _ in range(calls):
            batch = next(found, None)
            read += [] if batch is None else batch.column("n").to_pylist()
        offset = reader.offset()
        reader.close()
    last = source.open("stream", offset)
    read += numbers_of(last)
    last.close()
    assert read == list(range(COUNT))


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(0, 8), split=st.integers(0, 2))
def test_the_same_for_a_partition_of_a_bounded_reader(rows: int, split: int) -> None:
    source = of(Numbers, "batch")
    name = source.splits()[split]
    whole, first, read = numbers_of(source.open(name, None)), source.open(name, None), list[int]()
    found = batches_of(first, 1)
    for _ in range(rows):
        batch = next(found, None)
        read += [] if batch is None else batch.column("n").to_pylist()
    offset = first.offset()
    first.close()
    assert read + numbers_of(source.open(name, offset)) == whole


def test_an_offset_is_json_and_holds_no_partition() -> None:
    reader = of(Numbers).open("stream", None)
    assert json.loads(reader.offset())["start"] is None
    found = batches_of(reader, 3)
    next(found)
    assert json.loads(reader.offset()) == {
        "start": {"at": {"n": 0}},
        "end": {"at": {"n": 10}},
        "partitions": 2,
        "partition": 0,
        "rows": 3,
        "last": json.loads(reader.offset())["last"],
    }
    assert sum(batch.num_rows for batch in found) == COUNT - 3
    rest = {"end": None, "partitions": 0, "partition": 0, "rows": 0, "last": None}
    assert json.loads(reader.offset()) == {"start": {"at": {"n": COUNT}}} | rest
    reader.close()


def test_an_offset_of_another_source_is_refused() -> None:
    for offset in (b"17", b'{"file": 3}'):
        with pytest.raises(RestoreError, match=r"another kind of source"):
            of(Numbers).open("stream", offset)


def test_another_mode_or_another_number_of_partitions_is_refused() -> None:
    with pytest.raises(RestoreError, match=r"'stream'.*in mode 'batch' there is 0/3, 1/3, 2/3 to read"):
        of(Numbers, "batch").open("stream", None)
    with pytest.raises(RestoreError, match=r"the partitions have changed"):
        of(Numbers, "batch").open("0/4", None)


class Unsteady(Numbers):
    """Reads in another order, or less, every other time."""

    def streamReader(self, schema: Any) -> Any:
        return UnsteadyStream(self.options)


class UnsteadyStream(NumbersStream):
    fault = ""

    def partitions(self, start: Any, end: Any) -> list[InputPartition]:
        found = super().partitions(start, end)
        return found[:1] if self.fault == "partitions" else found

    def read(self, partition: Any) -> Iterator[Any]:
        rows = list(super().read(partition))
        return iter({"order": rows[::-1], "fewer": rows[:1]}.get(self.fault, rows))


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("order", r"row \d of partition 0 .* is not the one that was read there before.*same order"),
        ("fewer", r"\d rows had been read of partition 0 .* has only \d"),
        ("partitions", "there were 2 partitions and now there are 1"),
    ],
)
@pytest.mark.parametrize("form", ["tuple", "batch"])
def test_data_that_are_not_the_same_when_they_are_read_again_are_an_error(
    fault: str, said: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = of(Unsteady, form=form).open("stream", None)
    found = batches_of(first, 4)
    while json.loads(first.offset())["rows"] < 4:
        next(found)
    offset = first.offset()
    first.close()
    monkeypatch.setattr(UnsteadyStream, "fault", fault)
    again = of(Unsteady, form=form).open("stream", offset)
    try:
        with pytest.raises(RestoreError, match=said):
            numbers_of(again)
    finally:
        again.close()


# --- commit ---


def test_an_offset_is_committed_when_it_is_durable_and_not_before() -> None:
    reader = of(Numbers).open("stream", None)
    found = batches_of(reader, 5)
    offsets = [reader.offset()]
    for _ in found:
        offsets.append(reader.offset())
    time.sleep(0.02)
    assert NumbersStream.committed == []
    for offset in offsets:
        reader.on_checkpoint_complete(offset)
        time.sleep(0.005)
    until(lambda: bool(NumbersStream.committed) and NumbersStream.committed[-1] == {"at": {"n": 20}})
    reader.on_checkpoint_complete(reader.offset())
    until(lambda: NumbersStream.committed == [{"at": {"n": end}} for end in (10, 20, COUNT)])
    reader.close()


def test_a_range_that_is_half_read_is_not_committed() -> None:
    reader = of(Numbers, step=COUNT).open("stream", None)
    next(batches_of(reader, 3))
    reader.on_checkpoint_complete(reader.offset())
    reader.close()
    until(lambda: NumbersStream.stopped == [1])
    assert NumbersStream.committed == []


def test_what_was_durable_before_the_end_is_still_committed() -> None:
    reader = of(SimpleNumbers).open("stream", None)
    assert numbers_of(reader) == list(range(COUNT))
    reader.on_checkpoint_complete(reader.offset())
    reader.close()
    until(lambda: SimpleStream.committed == [{"n": COUNT}])


def test_a_thread_that_comes_back_from_user_code_after_its_attempt_commits_nothing_and_the_next_reader_does() -> None:
    Stuck.go_on.clear()
    at_ten, at_twenty = (Position({"at": {"n": number}}).encoded() for number in (10, 20))
    reader = of(Stuck, "stream").open("stream", at_ten)
    next(batches_of(reader))
    reader.on_checkpoint_complete(at_ten)
    reader.close()
    # The next attempt, which has come further.
    following = of(Numbers, "stream").open("stream", at_ten)
    next(batches_of(following))
    following.on_checkpoint_complete(at_ten)
    until(lambda: NumbersStream.committed == [{"at": {"n": 10}}])
    following.on_checkpoint_complete(at_twenty)
    until(lambda: NumbersStream.committed == [{"at": {"n": 10}}, {"at": {"n": 20}}])
    Stuck.go_on.set()
    until(lambda: NumbersStream.stopped == [1])
    assert NumbersStream.committed == [{"at": {"n": 10}}, {"at": {"n": 20}}]
    following.close()


class BadCommit(Numbers):
    def streamReader(self, schema: Any) -> Any:
        class Stream(NumbersStream):
            def commit(self, end: Any) -> None:
                raise OSError("the log is gone")

        return Stream(self.options)


def test_a_commit_that_fails_is_the_error_of_the_next_read() -> None:
    reader = of(BadCommit, "stream").open("stream", None)
    read: list[Any] = []
    until(lambda: read.append(reader.read(100)) or sum(b.num_rows for b in read if b is not None) == COUNT)  # type: ignore[func-returns-value]
    until(lambda: reader.read(1) is None and json.loads(reader.offset())["end"] is None)
    reader.on_checkpoint_complete(reader.offset())

    def raised() -> bool:
        try:
            reader.read(1)
        except UserCodeError as error:
            return "commit raised OSError: the log is gone" in str(error)
        return False

    until(raised)


# --- threads ---


class Growing(Numbers):
    """As many numbers as there are now."""

    count = 0

    def streamReader(self, schema: Any) -> Any:
        class Stream(NumbersStream):
            def latestOffset(self, start: Any, limit: Any) -> Any:
                return {"at": {"n": Growing.count}}

        return Stream(self.options)


class Stuck(Numbers):
    go_on = threading.Event()

    def streamReader(self, schema: Any) -> Any:
        class Stream(NumbersStream):
            def read(self, partition: Any) -> Iterator[Any]:
                yield 0, "one row"
                Stuck.go_on.wait(10)
                yield 1, "another"

        return Stream(self.options)


def reading_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("penstock-read")]


def test_a_read_that_is_stuck_holds_up_nobody_and_a_row_does_not_wait_for_the_next_one() -> None:
    Stuck.go_on.clear()
    reader = of(Stuck, "stream").open("stream", None)
    (row,) = next(batches_of(reader)).to_pylist()
    assert row["name"] == "one row"
    started = time.monotonic()
    assert reader.read(10) is None
    assert json.loads(reader.offset())["rows"] == 1
    reader.close()
    assert time.monotonic() - started < 1
    Stuck.go_on.set()
    until(lambda: reading_threads() == [])
    assert NumbersStream.stopped == [1]


def test_the_thread_ends_when_it_is_closed_wherever_it_waits() -> None:
    waiting_for_room = of(Numbers, "stream", count=100_000, step=100_000).open("stream", None)
    waiting_for_data = of(Numbers, "stream", count=0).open("stream", None)
    ended = of(Numbers, count=0).open("stream", None)
    assert numbers_of(ended) == []
    waiting_for_room.read(1)
    waiting_for_data.read(1)
    time.sleep(0.02)
    for reader in (waiting_for_room, waiting_for_data, ended):
        reader.close()
    until(lambda: reading_threads() == [])
    assert NumbersStream.stopped == [1, 1, 1]


def test_a_reader_that_never_read_can_be_closed() -> None:
    of(Numbers).open("stream", None).close()


def test_no_more_rows_wait_than_are_allowed() -> None:
    reader: Any = of(Numbers, "stream", count=100_000, step=100_000).open("stream", None)
    reader.read(1)
    time.sleep(0.1)
    assert len(reader._feed.entries) <= 2048 + 2
    reader.close()


# --- errors ---


class Wrong(DataSource):
    """Yields what it is told to."""

    rows: Any = ()

    def schema(self) -> str:
        return "n bigint, name string"

    def reader(self, schema: Any) -> DataSourceReader:
        class Reader(DataSourceReader):
            def read(self, partition: Any) -> Any:
                return iter(rows) if isinstance(rows, list) else rows

        rows = Wrong.rows
        return Reader()


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ((1,), "it has 1 values and the schema 2: n, name"),
        ("ab", "it is a str ('ab'): yield tuples, lists, Rows or pyarrow.RecordBatches"),
        ({"n": 1, "name": "a"}, "it is a dict"),
        (None, "it is a NoneType"),
        (("x", "y"), "column 'n' is int64, and 'x' is not: "),
        (Row(n=1, nam="x"), "it has the fields n, nam; the schema has"),
    ],
)
def test_a_row_that_does_not_fit_is_an_error_that_says_which_and_why(row: Any, said: str) -> None:
    Wrong.rows = [(0, "a"), (1, "b"), row]
    error = failing(Wrong, "batch")
    assert isinstance(error, DataError)
    assert "SparkSource of 'Wrong': row 2 of partition 0 does not fit the schema" in str(error)
    assert said in str(error)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"n": [1]}, "'name' is missing"),
        ({"n": ["x"], "name": ["y"]}, "column 'n' of a batch of partition 0 is string and cannot become int64"),
    ],
)
def test_so_is_a_batch(columns: dict[str, list[Any]], said: str) -> None:
    Wrong.rows = [pa.record_batch(columns)]
    error = failing(Wrong, "batch")
    assert isinstance(error, DataError) and said in str(error)


def test_a_batch_with_its_columns_in_another_order_or_smaller_types_is_brought_into_line() -> None:
    Wrong.rows = [
        pa.record_batch({"name": ["a"], "n": pa.array([1], pa.int8())}),
        pa.record_batch([[], []], ["n", "name"]),
    ]
    assert numbers_of(of(Wrong, "batch").open("0/1", None)) == [1]


def test_read_must_return_an_iterator() -> None:
    Wrong.rows = ((1, "a"),)
    assert "read returned a tuple, not an iterator" in str(failing(Wrong, "batch"))


@pytest.mark.parametrize("method", ["initialOffset", "latestOffset", "partitions", "read"])
def test_what_a_method_raises_is_reported_with_its_name_and_place(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(*arguments: Any) -> Any:
        raise ConnectionError("no broker")

    monkeypatch.setattr(NumbersStream, method, raises)
    error = failing(Numbers)
    assert isinstance(error, UserCodeError) and isinstance(error.__cause__, ConnectionError)
    assert f"SparkSource of 'numbers': {method} raised ConnectionError: no broker (" in str(error)
    assert "test_source.py:" in str(error)


def test_an_error_in_the_middle_comes_behind_the_rows_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(self: Any, partition: Span) -> Iterator[Any]:
        yield 0, "a"
        raise ValueError("bad record")

    monkeypatch.setattr(NumbersStream, "read", read)
    reader = of(Numbers).open("stream", None)
    found = batches_of(reader)
    assert next(found).num_rows == 1
    with pytest.raises(UserCodeError, match=r"read raised ValueError: bad record"):
        next(found)


@pytest.mark.parametrize("offset", [17, {"at": {1, 2}}, None])
def test_an_offset_must_be_a_dict_that_json_can_hold(offset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NumbersStream, "latestOffset", lambda self, start, limit: offset)
    assert "latestOffset returned" in str(failing(Numbers)) and "An offset is a dict" in str(failing(Numbers))


def test_a_simple_reader_that_does_not_move_its_offset_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimpleStream, "read", lambda self, start: (iter([(1,)]), start))
    assert "return the offset behind the rows" in str(failing(SimpleNumbers))


def test_what_cannot_be_a_source_is_said_before_anything_starts() -> None:
    class Nothing(DataSource):
        pass

    with pytest.raises(PipelineError, match=r"takes a class derived from .*DataSource"):
        SparkSource(dict)
    with pytest.raises(PipelineError, match=r"takes a class derived from"):
        SparkSource(Numbers({"count": "1"}))  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match=r"does not implement schema: give it with schema="):
        SparkSource(Nothing)
    with pytest.raises(PipelineError, match=r"neither streamReader nor simpleStreamReader.*mode='batch'"):
        SparkSource(Nothing, schema="n int")
    with pytest.raises(PipelineError, match=r"does not implement reader: mode 'batch' needs it"):
        SparkSource(SimpleNumbers, {"count": 1}, mode="batch")
    with pytest.raises(PipelineError, match=r"mode is 'micro'"):
        SparkSource(Numbers, mode="micro")  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match=r"SparkSource: poll is 0: it must be at least 1 ms"):
        SparkSource(Numbers, {"count": 1}, poll=0)
    with pytest.raises(UserCodeError, match=r"reader raised KeyError"):
        SparkSource(Numbers, mode="batch")


# --- in a pipeline ---


@pytest.mark.parametrize("mode", ["available_now", "batch"])
def test_in_a_pipeline_with_crashes_every_row_counts_once(mode: Any) -> None:
    output, count = CollectSink(), 3000
    pipeline = Pipeline("numbers")
    source = SparkSource(Numbers, {"count": count, "step": 97}, mode=mode, poll="1 ms")
    pipeline.source(source).map(slowly).sink(output)
    settings = WorkerSettings(source_rows_max=40)
    result = run(pipeline, parallelism=2, crash_after_checkpoints=(1, 3), worker_settings=settings)
    assert result.restarts == 2
    assert sorted(row["n"] for row in output.rows()) == list(range(count))
    if mode == "available_now":
        ends = [end["at"]["n"] for end in NumbersStream.committed]
        assert ends and all(end % 97 == 0 or end == count for end in ends)
        until(lambda: NumbersStream.committed[-1] == {"at": {"n": count}})
    until(lambda: reading_threads() == [])


def slowly(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(batch.num_rows * 50e-6)
    return batch
