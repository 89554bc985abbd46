"""PySpark's stream writers as sinks: one write per checkpoint, messages as JSON, every row published once."""

from __future__ import annotations

import base64
import datetime
import enum
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage

from penstock import DataError, Pipeline, PipelineError, SparkSink, StorageError, UserCodeError
from penstock.connectors.sink import SinkWriter, nothing_prepared
from penstock.connectors.spark.messages import decode_message, encode_message, message_classes
from penstock.ids import CheckpointId, Generation
from penstock.operators.pickling import dumps, loads
from penstock.testing import ABORT, CHECKPOINT, ListSource, run
from tests.unit.connectors.spark.data_sources import Batches, BatchesWriter, Files, Part, Written

ONE, TWO = CheckpointId(1), CheckpointId(2)


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(numbers, pa.int64())})


def writer_of(kind: type, **options: Any) -> SinkWriter:
    return SparkSink(kind, options).writer(0, Generation(1))


def published(directory: Path) -> list[int]:
    lines = [line for path in directory.glob("[0-9]*.jsonl") for line in path.read_text().splitlines()]
    return sorted(json.loads(line)["n"] for line in lines)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def writing_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("penstock-write")]


# --- writing ---


def test_what_was_written_before_the_cut_is_published_by_its_commit_and_nothing_else(tmp_path: Path) -> None:
    sink = SparkSink(Files, {"path": tmp_path})
    writer = sink.writer(0, Generation(1))
    writer.write(batch(1, 2))
    writer.write(batch(3))
    first = writer.prepare()
    writer.write(batch(4))
    committables = list(first())
    assert published(tmp_path) == []
    sink.committer().commit(ONE, committables)
    assert published(tmp_path) == [1, 2, 3]
    sink.committer().commit(TWO, list(writer.prepare()()))
    assert published(tmp_path) == [1, 2, 3, 4]
    sink.committer().commit(ONE, committables)
    assert published(tmp_path) == [1, 2, 3, 4]
    writer.close()


def test_one_commit_takes_the_messages_of_all_subtasks(tmp_path: Path) -> None:
    sink = SparkSink(Files, {"path": tmp_path})
    committables = []
    for subtask in range(3):
        writer = sink.writer(subtask, Generation(1))
        writer.write(batch(subtask))
        committables += writer.prepare()()
        writer.close()
    sink.committer().commit(CheckpointId(7), committables)
    assert sorted(path.name for path in tmp_path.glob("7-*")) == ["7-0.jsonl", "7-1.jsonl", "7-2.jsonl"]


def test_without_records_there_is_no_write_and_no_message(tmp_path: Path) -> None:
    writer = writer_of(Files, path=tmp_path)
    assert list(writer.prepare()()) == []
    writer.write(batch())
    assert list(writer.prepare()()) == []
    writer.close()
    assert list(tmp_path.iterdir()) == []


def test_nor_is_there_one_after_a_checkpoint_that_had_records(tmp_path: Path) -> None:
    writer = writer_of(Files, path=tmp_path)
    writer.write(batch(1))
    assert len(list(writer.prepare()())) == 1
    written = sorted(tmp_path.iterdir())
    # Nobody has to wait for a thread.
    assert writer.prepare() is nothing_prepared
    writer.write(batch())
    assert writer.prepare() is nothing_prepared
    writer.close()
    assert sorted(tmp_path.iterdir()) == written


def test_commit_is_not_called_for_a_checkpoint_without_records() -> None:
    BatchesWriter.written.clear()
    batches: list[int] = []

    class Noting(Batches):
        def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
            class Writer(BatchesWriter):
                def commit(self, messages: Any, batchId: int) -> None:
                    batches.append(len(messages))

            return Writer()

    pipeline = Pipeline("p")
    source = ListSource([{"n": 1}, CHECKPOINT, CHECKPOINT, CHECKPOINT, {"n": 2}])
    pipeline.source(source, name="read").sink(SparkSink(Noting), name="out")
    run(pipeline)
    assert batches == [1, 1]
    assert pa.Table.from_batches(BatchesWriter.written).to_pydict() == {"n": [1, 2]}


def test_an_arrow_writer_gets_batches_in_the_types_of_spark() -> None:
    BatchesWriter.written.clear()
    sink = SparkSink(Batches)
    writer = sink.writer(0, Generation(1))
    writer.write(pa.record_batch({"s": pa.array(["a", "b"]).dictionary_encode()}))
    writer.write(pa.record_batch({"s": pa.array(["c"])}))
    committables = list(writer.prepare()())
    sink.committer().commit(ONE, committables)
    assert pa.Table.from_batches(BatchesWriter.written).to_pydict() == {"s": ["a", "b", "c"]}
    writer.close()


class Keeping(DataSource):
    """Notes its rows, and what its writer remembers from the call before."""

    rows: ClassVar[list[Any]] = []
    remembered: ClassVar[list[int]] = []

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        class Writer(DataSourceStreamWriter):
            def __init__(self) -> None:
                self.calls: list[int] = []

            def write(self, iterator: Iterator[Row]) -> Any:
                Keeping.remembered.append(len(self.calls))
                self.calls.append(1)
                Keeping.rows += list(iterator)
                return None

            def commit(self, messages: Any, batchId: int) -> None:
                Keeping.rows.append((schema.simpleString(), overwrite, messages, batchId))

        return Writer()


def test_a_row_writer_gets_rows_as_from_spark_and_a_copy_of_the_writer_for_every_call() -> None:
    Keeping.rows.clear()
    Keeping.remembered.clear()
    sink = SparkSink(Keeping, overwrite=True)
    writer = sink.writer(0, Generation(1))
    nested = pa.array([{"b": b"x", "at": datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC)}])
    writer.write(pa.record_batch({"n": [1], "nested": nested, "map": pa.array([[("a", 1)]], pa.map_("str", "i4"))}))
    committables = list(writer.prepare()())
    writer.write(pa.record_batch({"n": [2], "nested": nested, "map": pa.array([None], pa.map_("str", "i4"))}))
    committables += writer.prepare()()
    writer.close()
    first, second = Keeping.rows
    assert (first.n, first.nested.b, first.map, second.map) == (1, b"x", {"a": 1}, None)
    assert isinstance(first.nested.at, datetime.datetime)
    assert Keeping.remembered == [0, 0]
    sink.committer().commit(CheckpointId(9), committables)
    schema = "struct<n:bigint,nested:struct<b:binary,at:timestamp>,map:map<string,int>>"
    assert Keeping.rows[-1] == (schema, True, [None, None], 9)


class Contexts(DataSource):
    """Notes the partition and the attempt that it sees, after the others have begun."""

    seen: ClassVar[list[tuple[int, int]]] = []
    together = threading.Barrier(2)

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        class Writer(DataSourceStreamWriter):
            def write(self, iterator: Iterator[Row]) -> Any:
                Contexts.together.wait(10)
                context: Any = TaskContext.get()
                Contexts.seen.append((context.partitionId(), context.taskAttemptId()))
                list(iterator)
                return WriterCommitMessage()

        return Writer()


def test_each_call_of_write_has_a_task_context_of_its_own() -> None:
    Contexts.seen.clear()
    sink, before = SparkSink(Contexts), TaskContext.get()
    writers = [sink.writer(subtask, Generation(1)) for subtask in (0, 1)]
    for _ in range(2):
        for writer in writers:
            writer.write(batch(1))
        assert [len(writer.prepare()()) for writer in writers] == [1, 1]
    for writer in writers:
        writer.close()
    assert sorted(partition for partition, _ in Contexts.seen) == [0, 0, 1, 1]
    assert len({attempt for _, attempt in Contexts.seen}) == 4
    assert TaskContext.get() is before


class Lazy(DataSource):
    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        class Writer(DataSourceStreamWriter):
            def write(self, iterator: Iterator[Row]) -> Any:
                return Written(next(iterator).n)

        return Writer()


def test_a_write_need_not_take_all_rows() -> None:
    writer = writer_of(Lazy)
    for first in (1, 11):
        for number in range(first, first + 5):
            writer.write(batch(number))
        (committable,) = writer.prepare()()
        assert json.loads(committable)["message"]["fields"]["rows"] == first
    writer.close()


# --- threads and errors ---


class Stuck(DataSource):
    go_on = threading.Event()
    ended: ClassVar[list[str]] = []
    begun: ClassVar[list[int]] = []

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        class Writer(DataSourceStreamWriter):
            def write(self, iterator: Iterator[Row]) -> Any:
                Stuck.begun.append(1)
                Stuck.go_on.wait(10)
                try:
                    for _ in iterator:
                        pass
                    Stuck.ended.append("complete")
                    return WriterCommitMessage()
                finally:
                    Stuck.ended.append("over")

        return Writer()


@pytest.fixture
def stuck() -> Iterator[SinkWriter]:
    Stuck.go_on.clear()
    Stuck.ended.clear()
    Stuck.begun.clear()
    writer = writer_of(Stuck)
    yield writer
    Stuck.go_on.set()
    writer.close()
    until(lambda: writing_threads() == [])


def test_a_write_that_is_stuck_holds_up_neither_the_mailbox_nor_the_cut(stuck: SinkWriter) -> None:
    big = pa.record_batch({"n": pa.array(range(100_000), pa.int64())})
    started = time.monotonic()
    assert stuck.wants_input
    stuck.write(batch(1))
    assert stuck.wants_input
    stuck.write(big)
    assert not stuck.wants_input
    prepared = stuck.prepare()
    stuck.write(batch(1))
    assert time.monotonic() - started < 2
    Stuck.go_on.set()
    assert len(prepared()) == 1
    until(lambda: stuck.wants_input)


def test_what_is_being_written_when_it_is_closed_is_not_taken_for_complete(stuck: SinkWriter) -> None:
    stuck.write(batch(1))
    until(lambda: Stuck.begun == [1])
    stuck.close()
    Stuck.go_on.set()
    until(lambda: writing_threads() == [])
    assert Stuck.ended == ["over"]


def test_a_preparation_does_not_wait_for_a_writer_that_is_closed(stuck: SinkWriter) -> None:
    stuck.write(batch(1))
    prepared = stuck.prepare()
    stuck.close()
    with pytest.raises(StorageError, match="closed before its output was complete"):
        prepared()


class Failing(DataSource):
    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        class Writer(DataSourceStreamWriter):
            def write(self, iterator: Iterator[Row]) -> Any:
                for row in iterator:
                    if row.n == 2:
                        raise ConnectionError("no disk")
                return WriterCommitMessage()

        return Writer()


def test_what_write_raises_is_the_error_of_its_checkpoint_and_of_all_that_follows() -> None:
    writer = writer_of(Failing)
    writer.write(batch(1, 2))
    prepared = writer.prepare()
    said = r"SparkSink of 'Failing', subtask 0: write raised ConnectionError: no disk \(.*test_sink.py:"
    with pytest.raises(UserCodeError, match=said):
        prepared()
    until(lambda: writing_threads() == [])
    with pytest.raises(UserCodeError, match=said):
        writer.write(batch(3))
    with pytest.raises(UserCodeError, match=said):
        writer.prepare()
    writer.close()


def test_a_type_that_spark_does_not_have_is_said_with_the_cure() -> None:
    with pytest.raises(DataError, match="column 'n' is uint64, for which Spark has no type: cast it"):
        writer_of(Batches).write(pa.record_batch({"n": pa.array([1], pa.uint64())}))


def test_a_batch_of_another_schema_is_an_error() -> None:
    writer = writer_of(Batches)
    writer.write(batch(1))
    with pytest.raises(DataError, match="'m' is new"):
        writer.write(pa.record_batch({"m": [1]}))
    with pytest.raises(DataError, match="does not fit the schema of the first one"):
        writer.write(pa.record_batch({"n": ["x"]}))
    writer.close()


def test_what_cannot_be_a_sink_is_said_before_anything_starts() -> None:
    class Nothing(DataSource):
        pass

    with pytest.raises(PipelineError, match="takes a class derived from"):
        SparkSink(dict)
    with pytest.raises(PipelineError, match="does not implement streamWriter"):
        SparkSink(Nothing)
    with pytest.raises(PipelineError, match="must be a list of classes"):
        SparkSink(Files, messages=["Written"])  # type: ignore[list-item]


# --- messages ---


ALLOWED = message_classes(Files)

plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
values = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.integers() | st.text(), inner)
        | st.builds(Part, path=st.text(), digest=inner)
    ),
    max_leaves=8,
)


@given(rows=values, part=values)
def test_a_message_comes_back_as_it_was(rows: Any, part: Any) -> None:
    message = Written(rows, part)
    encoded = json.loads(json.dumps(encode_message(message, ALLOWED, "here")))
    assert decode_message(encoded, ALLOWED, "here") == message


def test_a_message_without_fields_comes_back_too() -> None:
    encoded = encode_message(WriterCommitMessage(), ALLOWED, "here")
    assert type(decode_message(encoded, ALLOWED, "here")) is WriterCommitMessage
    assert decode_message(encode_message(None, ALLOWED, "here"), ALLOWED, "here") is None


class Size(enum.IntEnum):
    LARGE = 1


class Bare(WriterCommitMessage):
    def __init__(self) -> None:
        self.path = "x"


class Slotted(WriterCommitMessage):
    __slots__ = ("path",)


@dataclass
class Foreign(WriterCommitMessage):
    rows: int


def with_another_attribute() -> Written:
    message = Written(1)
    message.more = 2  # type: ignore[attr-defined]
    return message


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (17, "write returned 17, not a WriterCommitMessage"),
        (Part("x", b""), "not a WriterCommitMessage"),
        (Bare(), "the commit message has a .*Bare in it.*make it a dataclass"),
        (Slotted(), "the commit message has a .*Slotted in it.*make it a dataclass"),
        (with_another_attribute(), "make it a dataclass without other attributes"),
        (Written(Size.LARGE), "'rows' of .*Written has a .*Size in it"),
        (Written({"at": [datetime.date(2024, 1, 1)]}), "'rows' of .*Written has a datetime.date in it"),  # type: ignore[arg-type]
        (Foreign(1), r"Foreign, which is not in the module.*SparkSink\(…, messages=\[Foreign\]\)"),
        (Written(Foreign(1)), "'rows' of .*Written is of the class .*Foreign, which is not"),  # type: ignore[arg-type]
    ],
)
def test_a_message_that_cannot_be_kept_is_refused_where_it_is_made(message: Any, said: str) -> None:
    with pytest.raises(UserCodeError, match=f"here: .*{said}"):
        encode_message(message, ALLOWED, "here")


def test_a_class_that_is_named_is_allowed() -> None:
    classes = message_classes(Files, [Foreign])
    assert decode_message(encode_message(Foreign(3), classes, "here"), classes, "here") == Foreign(3)


ran: list[str] = []


@dataclass
class Evil(WriterCommitMessage):
    command: str

    def __post_init__(self) -> None:
        ran.append(self.command)

    def __setattr__(self, name: str, value: Any) -> None:
        ran.append(name)
        super().__setattr__(name, value)


@pytest.mark.parametrize(
    "name",
    [
        f"{__name__}.Evil",
        "os.system",
        "subprocess.Popen",
        "builtins.eval",
        "tests.unit.connectors.spark.data_sources.Files",
        "tests.unit.connectors.spark.data_sources.json",
        "",
    ],
)
def test_a_forged_class_is_refused_and_none_of_its_code_runs(name: str) -> None:
    schema = base64.b64encode(batch().schema.serialize()).decode()
    forged = {"schema": schema, "message": {"class": name, "fields": {"command": "rm"}}}
    ran.clear()
    with pytest.raises(StorageError, match=r"checkpoint 1: .*does not belong to this data source"):
        SparkSink(Files, {"path": "/nowhere"}).committer().commit(ONE, [json.dumps(forged).encode()])
    assert ran == []


def test_rebuilding_a_message_runs_none_of_its_code() -> None:
    classes = message_classes(Files, [Evil])
    encoded = encode_message(Evil("ls"), classes, "here")
    ran.clear()
    assert decode_message(encoded, classes, "here").command == "ls"
    assert ran == []


@pytest.mark.parametrize(
    "forged",
    [
        {"class": "x"},
        {"tuple": [], "class": "x"},
        {"tuple": {}},
        {"bytes": 1},
        {},
        {"class": 1, "fields": {}},
    ],
)
def test_what_no_writer_can_have_handed_over_is_refused(forged: Any) -> None:
    with pytest.raises(StorageError, match="not a commit message"):
        decode_message(forged, ALLOWED, "here")


NO_COMMITTABLES = [b"", b"\x80\x04N.", b"[]", b'{"schema": "", "message": null}', b'{"message": 1}']


@pytest.mark.parametrize("committable", NO_COMMITTABLES)
def test_so_is_what_is_no_committable(committable: bytes) -> None:
    with pytest.raises(StorageError, match="is not a committable of a SparkSink"):
        SparkSink(Files).committer().commit(ONE, [committable])


def test_a_message_of_an_older_class_takes_defaults_and_is_refused_without() -> None:
    name = f"{Written.__module__}.Written"
    assert decode_message({"class": name, "fields": {"rows": 1}}, ALLOWED, "here") == Written(1)
    for fields in ({}, {"rows": 1, "gone": 2}):
        with pytest.raises(StorageError, match="put it back as it was"):
            decode_message({"class": name, "fields": fields}, ALLOWED, "here")


# --- in a pipeline ---


def test_in_a_pipeline_with_failures_every_row_is_published_once(tmp_path: Path) -> None:
    rows: list[Any] = [{"n": n} for n in range(60)]
    items = [*rows[:20], CHECKPOINT, *rows[20:30], ABORT(), *rows[30:50], CHECKPOINT, *rows[50:]]
    pipeline = Pipeline("files")
    pipeline.source(ListSource(items, splits=2, batch_rows=3)).rebalance().sink(SparkSink(Files, {"path": tmp_path}))
    result = run(pipeline, parallelism=2, crash_after_checkpoints=1)
    assert result.restarts >= 2
    assert published(tmp_path) == list(range(60))
    until(lambda: writing_threads() == [])


def test_a_writer_takes_no_more_than_what_it_will_write_in_a_moment(tmp_path: Path) -> None:
    """A row takes it a millisecond, and a tenth of a second is what may wait."""
    writer: Any = writer_of(Files, path=tmp_path, delay=0.001)
    waiting = []
    for _ in range(20):
        until(lambda: writer.wants_input)
        writer.write(batch(*range(20)))
        waiting.append(writer._rows_waiting)
    assert max(waiting) <= 100 + 20
    writer.close()


def test_a_quick_writer_takes_more() -> None:
    writer: Any = writer_of(Batches)
    for _ in range(20):
        until(lambda: writer.wants_input)
        writer.write(batch(*range(1000)))
    until(lambda: writer._rows_per_second > 5_000)
    writer.close()


def test_a_slow_writer_holds_back_its_input_and_loses_nothing(tmp_path: Path) -> None:
    pipeline = Pipeline("slow")
    pipeline.source(ListSource([{"n": n} for n in range(100)], batch_rows=10)).sink(
        SparkSink(Files, {"path": tmp_path, "delay": 0.001})
    )
    run(pipeline)
    assert published(tmp_path) == list(range(100))


def test_it_travels_to_the_workers(tmp_path: Path) -> None:
    sink = loads(dumps(SparkSink(Files, {"path": tmp_path})))
    writer = sink.writer(0, Generation(1))
    writer.write(batch(5))
    sink.committer().commit(ONE, list(writer.prepare()()))
    assert published(tmp_path) == [5]
    writer.close()
