"""One call of `write` for each checkpoint that has records: idle ones, failures, input held back, columns that vary."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage

from penstock import SparkSink, StorageError, UserCodeError
from penstock.connectors.sink import Prepared, SinkWriter, nothing_prepared
from penstock.ids import Generation

HANG_S = 60
"""Nothing here takes so long unless it hangs."""


class Scripted(DataSource):
    """Each call of `write` waits until it is let through; a row that says "fail" raises."""

    go_on = threading.Event()
    begun = threading.Event()
    calls: list[list[Row]]

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        class Writer(DataSourceStreamWriter):
            def write(self, iterator: Iterator[Row]) -> Any:
                Scripted.begun.set()
                Scripted.go_on.wait(HANG_S)
                rows = list(iterator)
                Scripted.calls.append(rows)
                if any(row.s == "fail" for row in rows):
                    raise ConnectionError("no disk")
                return WriterCommitMessage()

        return Writer()


@pytest.fixture
def writer() -> Iterator[SinkWriter]:
    Scripted.go_on, Scripted.begun, Scripted.calls = threading.Event(), threading.Event(), []
    made = SparkSink(Scripted).writer(0, Generation(1))
    yield made
    Scripted.go_on.set()
    made.close()


def rows(*values: str) -> pa.RecordBatch:
    return pa.record_batch({"s": pa.array(values, pa.string())})


def result_of(prepared: Prepared) -> Sequence[bytes] | Exception:
    """What a background thread gets, which is not waited for longer than anybody but a hung one takes."""
    found: list[Sequence[bytes] | Exception] = []

    def call() -> None:
        try:
            found.append(prepared())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(HANG_S / 2)
    assert found, "still waiting"
    return found[0]


def test_after_a_checkpoint_with_records_one_without_calls_nobody(writer: SinkWriter) -> None:
    Scripted.go_on.set()
    writer.write(rows("a"))
    assert len(writer.prepare()()) == 1
    # So that nobody has to wait for a thread.
    assert writer.prepare() is nothing_prepared
    writer.write(rows("b"))
    assert len(writer.prepare()()) == 1
    assert [[row.s for row in call] for call in Scripted.calls] == [["a"], ["b"]]


def test_every_checkpoint_that_waits_hears_of_a_failure(writer: SinkWriter) -> None:
    writer.write(rows("fail"))
    first = writer.prepare()
    writer.write(rows("a"))
    second = writer.prepare()
    Scripted.go_on.set()
    assert isinstance(result_of(first), UserCodeError)
    assert isinstance(result_of(second), UserCodeError)


def test_a_writer_that_has_failed_wants_the_input_with_which_to_say_so(writer: SinkWriter) -> None:
    writer.write(rows("fail"))
    first = writer.prepare()
    writer.write(rows(*["a"] * 100_000))
    assert not writer.wants_input
    Scripted.go_on.set()
    assert isinstance(result_of(first), UserCodeError)
    assert writer.wants_input
    with pytest.raises(UserCodeError, match="no disk"):
        writer.write(rows("b"))


def test_a_few_rows_of_many_bytes_are_enough_to_wait_for(writer: SinkWriter) -> None:
    writer.write(rows("a"))
    assert Scripted.begun.wait(HANG_S)
    assert writer.wants_input
    writer.write(rows("b" * 2_000_000))
    assert not writer.wants_input


def test_a_preparation_ends_when_the_writer_is_closed_however_long_user_code_is_stuck(writer: SinkWriter) -> None:
    writer.write(rows("a"))
    prepared = writer.prepare()
    assert Scripted.begun.wait(HANG_S)
    writer.close()
    assert isinstance(result_of(prepared), StorageError)
    assert (Scripted.calls, Scripted.go_on.is_set()) == ([], False)


@pytest.mark.parametrize(
    "second",
    [
        lambda first: pa.record_batch([[None], ["b"]], first.schema.remove(0).insert(0, pa.field("n", pa.int64()))),
        lambda first: pa.record_batch({"s": ["b"], "n": pa.array([None], pa.int64())}),
    ],
    ids=["nulls", "another order"],
)
def test_later_batches_may_have_nulls_and_another_order_of_columns(
    writer: SinkWriter, second: Callable[[pa.RecordBatch], pa.RecordBatch]
) -> None:
    Scripted.go_on.set()
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("s", pa.string(), nullable=False)])
    first = pa.record_batch([[1], ["a"]], schema)
    writer.write(first)
    writer.write(second(first))
    assert len(writer.prepare()()) == 1
    assert [[tuple(row) for row in call] for call in Scripted.calls] == [[(1, "a"), (None, "b")]]
    assert [row.n for row in Scripted.calls[0]] == [1, None]
