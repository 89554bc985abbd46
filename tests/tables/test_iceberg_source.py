"""Iceberg tables as sources: every row once through crashes, beside independent writers, and with errors that help."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import DataError, Pipeline, PipelineError
from penstock.connectors.source import END_OF_SPLIT
from penstock.ids import CheckpointId, Generation
from penstock.testing import CollectSink, check_source, run
from tests.components import required_package

required_package("pyiceberg")

from pyiceberg.catalog import load_catalog  # noqa: E402
from pyiceberg.types import LongType, StringType  # noqa: E402

from penstock.connectors.iceberg import IcebergSink, IcebergSource  # noqa: E402
from penstock.connectors.iceberg.table import IcebergLocation  # noqa: E402

NAME = "a.t"


@pytest.fixture
def catalog(tmp_path: Path) -> dict[str, str]:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    opened = load_catalog("default", **properties)
    opened.create_namespace("a")
    opened.create_table(NAME, schema=pa.schema({"n": pa.int64(), "text": pa.string()}))
    return properties


def table_of(catalog: dict[str, str]) -> Any:
    return load_catalog("default", **catalog).load_table(NAME)


def numbers(start: int, count: int) -> pa.Table:
    values = range(start, start + count)
    return pa.table({"n": pa.array(values, pa.int64()), "text": [f"row {n}" for n in values]})


def appended(catalog: dict[str, str], start: int, count: int) -> int:
    table = table_of(catalog)
    table.append(numbers(start, count))
    return int(table.current_snapshot().snapshot_id)


def followed(source: IcebergSource, wanted: int, **options: Any) -> list[dict[str, Any]]:
    """The rows that come until there are as many as are wanted."""
    output = CollectSink()
    pipeline = Pipeline("follow")
    pipeline.source(source, name="table").sink(output, name="output")
    run(pipeline, until=lambda: sum(batch.num_rows for batch in output.batches()) >= wanted, **options)
    return output.rows()


def test_the_source_keeps_the_contract(catalog: dict[str, str]) -> None:
    for start in (0, 20, 40):
        appended(catalog, start, 20)
    expected = numbers(0, 60).to_batches()[0]
    check_source(lambda: IcebergSource(catalog, NAME, follow=False, splits=3), expected)
    first = table_of(catalog).snapshots()[0].snapshot_id
    check_source(lambda: IcebergSource(catalog, NAME, snapshot=first, splits=1), expected, rows=60)


def test_new_snapshots_are_followed_through_crashes(catalog: dict[str, str]) -> None:
    """The table is empty when the pipeline starts."""
    output = CollectSink()
    pipeline = Pipeline("follow")
    pipeline.source(IcebergSource(catalog, NAME, splits=2), name="table").sink(output, name="output")
    steps = iter([0, 10, 20])
    goal = [0]

    def until() -> bool:
        rows = sum(batch.num_rows for batch in output.batches())
        if rows >= goal[0]:
            start = next(steps, None)
            if start is not None:
                appended(catalog, start, 10)
                goal[0] = start + 10
        return rows >= 30

    run(pipeline, parallelism=2, until=until, crash_after_checkpoints=[1, 3])
    assert sorted(row["n"] for row in output.rows()) == list(range(30))


def test_rows_of_the_sink_are_read_and_a_pipeline_resumes_where_it_stopped(
    catalog: dict[str, str], tmp_path: Path
) -> None:
    output = CollectSink()
    for part in range(2):
        sink = IcebergSink(catalog, NAME)
        writer = sink.writer(0, Generation(1))
        writer.write(numbers(50 * part, 50).to_batches()[0])
        sink.committer().commit(CheckpointId(part + 1), list(writer.prepare()()))
        pipeline = Pipeline("resumed")
        pipeline.source(IcebergSource(catalog, NAME, splits=2), name="table").sink(output, name="output")
        wanted = 50 * (part + 1)
        run(pipeline, store=tmp_path / "checkpoints", until=lambda wanted=wanted: len(output.rows()) >= wanted)
    assert sorted(row["n"] for row in output.rows()) == list(range(100))


def test_a_start_in_the_past_reads_the_table_as_it_was_and_then_what_came_after(catalog: dict[str, str]) -> None:
    first = appended(catalog, 0, 10)
    second = appended(catalog, 10, 10)
    bounded = IcebergSource(catalog, NAME, snapshot=first, follow=False)
    check_source(lambda: bounded, numbers(0, 10).to_batches()[0])
    snapshot = table_of(catalog).snapshot_by_id(second)
    at = datetime.datetime.fromtimestamp(snapshot.timestamp_ms / 1000, datetime.UTC)
    before = at - datetime.timedelta(milliseconds=1)
    assert IcebergSource(catalog, NAME, as_of=at).start().snapshot == second
    assert IcebergSource(catalog, NAME, as_of=before).start().snapshot == first
    with pytest.raises(PipelineError, match="there is no snapshot 7, or it has expired; the newest ones are"):
        IcebergSource(catalog, NAME, snapshot=7).start()
    long_ago = datetime.datetime(2001, 1, 1, tzinfo=datetime.UTC)
    with pytest.raises(
        PipelineError, match=r"as_of is 2001-01-01T00:00:00\+00:00, and the table has no snapshot of that"
    ):
        IcebergSource(catalog, NAME, as_of=long_ago).start()


def test_deleted_rows_are_an_error_unless_they_are_to_be_passed_over(
    catalog: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    first = appended(catalog, 0, 10)
    table_of(catalog).delete("n < 5")
    appended(catalog, 10, 5)
    with pytest.raises(DataError, match=r"snapshot \d+ \(overwrite\) deletes or updates rows.*on_change='skip'"):
        followed(IcebergSource(catalog, NAME, snapshot=first), 15, restarts=1)
    rows = followed(IcebergSource(catalog, NAME, snapshot=first, on_change="skip"), 15)
    assert sorted(row["n"] for row in rows) == list(range(15))
    assert "the snapshot is skipped, and with it 1 files that it adds" in caplog.text


def test_a_compaction_is_not_new_data(catalog: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Written by hand: pyiceberg does not compact, Spark and Trino do."""
    from pyiceberg.io.pyarrow import _dataframe_to_data_files
    from pyiceberg.table.snapshots import Operation
    from pyiceberg.table.update import snapshot as update

    first = appended(catalog, 0, 5)
    appended(catalog, 5, 5)
    table = table_of(catalog)
    files = [task.file for task in table.scan().plan_files()]
    rewritten = numbers(0, 10)
    monkeypatch.setattr(update, "update_snapshot_summaries", lambda summary, previous_summary: summary)
    transaction = table.transaction()
    with update._OverwriteFiles(Operation.REPLACE, transaction, table.io, snapshot_properties={}) as snapshot:
        for file in files:
            snapshot.delete_data_file(file)
        for file in _dataframe_to_data_files(table_metadata=table.metadata, df=rewritten, io=table.io):
            snapshot.append_data_file(file)
    transaction.commit_transaction()
    assert table_of(catalog).current_snapshot().summary.operation is Operation.REPLACE
    appended(catalog, 10, 5)
    rows = followed(IcebergSource(catalog, NAME, snapshot=first), 15)
    assert sorted(row["n"] for row in rows) == list(range(15))


def test_columns_are_found_by_their_ids_whatever_they_were_called(catalog: dict[str, str]) -> None:
    appended(catalog, 0, 2)
    with table_of(catalog).update_schema() as update:
        update.rename_column("text", "label")
    with table_of(catalog).update_schema() as update:
        update.add_column("text", StringType())
        update.add_column("size", LongType())
    wider = pa.table({"n": pa.array([2]), "label": ["x"], "text": ["new"], "size": pa.array([7])})
    table_of(catalog).append(wider)
    rows = followed(IcebergSource(catalog, NAME, follow=False), 3)
    assert sorted(((row["n"], row["label"], row["text"], row["size"]) for row in rows), key=lambda row: row[0]) == [
        (0, "row 0", None, None),
        (1, "row 1", None, None),
        (2, "x", "new", 7),
    ]


def test_a_schema_that_changes_while_the_pipeline_runs_is_told(
    catalog: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    appended(catalog, 0, 2)
    source = IcebergSource(catalog, NAME)
    source.on_start()
    with table_of(catalog).update_schema() as update:
        update.add_column("size", LongType())
    table_of(catalog).append(pa.table({"n": pa.array([2]), "text": ["x"], "size": pa.array([7])}))
    rows = followed(source, 3)
    assert sorted(row["n"] for row in rows) == [0, 1, 2]
    assert "has a new schema (1): rows keep the schema of the start (0)" in caplog.text


def expired(catalog: dict[str, str], *snapshots: int) -> None:
    table = table_of(catalog)
    table.maintenance.expire_snapshots().by_ids(list(snapshots)).commit()


def read_until(reader: Any, is_done: Callable[[Any], bool]) -> list[Any]:
    found = []
    for _ in range(5_000):
        found.append(reader.read(100))
        if is_done(found[-1]):
            return found
    raise AssertionError("the reader does not come to it")


def position_behind(catalog: dict[str, str]) -> bytes:
    """Of a reader that has read the table to its end."""
    reader = IcebergSource(catalog, NAME, splits=1).open("0/1", None)
    read_until(reader, lambda batch: batch is not None)
    read_until(reader, lambda batch: reader.is_caught_up)
    return reader.offset()


def test_expired_snapshots_are_an_error_and_not_a_gap(catalog: dict[str, str]) -> None:
    first = appended(catalog, 0, 10)
    offset = position_behind(catalog)
    second = appended(catalog, 10, 10)
    appended(catalog, 20, 10)
    expired(catalog, first, second)
    lost = IcebergSource(catalog, NAME, splits=1).open("0/1", offset)
    with pytest.raises(DataError, match=r"last read at snapshot \d+.*snapshots have expired.*new checkpoint directory"):
        read_until(lost, lambda batch: batch is END_OF_SPLIT)


def test_a_snapshot_that_has_expired_is_not_needed_if_its_successor_names_it(
    catalog: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Java expires snapshots: the parent of the next one is still named."""
    first = appended(catalog, 0, 10)
    offset = position_behind(catalog)
    appended(catalog, 10, 10)

    def without_the_first(*_: Any) -> Any:
        table = table_of(catalog)
        kept = [snapshot for snapshot in table.metadata.snapshots if snapshot.snapshot_id != first]
        table.metadata = table.metadata.model_copy(update={"snapshots": kept})
        return table

    monkeypatch.setattr(IcebergLocation, "table", without_the_first)
    again = IcebergSource(catalog, NAME, splits=1).open("0/1", offset)
    batch = read_until(again, lambda batch: batch is not None)[-1]
    assert batch["n"].to_pylist() == list(range(10, 20))


def test_the_first_snapshot_of_a_table_that_was_empty_is_missed_when_it_has_expired(catalog: dict[str, str]) -> None:
    """pyiceberg takes the name of an expired parent away: the next snapshot looks like the first."""
    reader = IcebergSource(catalog, NAME, splits=1).open("0/1", None)
    read_until(reader, lambda batch: reader.is_caught_up)
    offset = reader.offset()
    first = appended(catalog, 0, 10)
    appended(catalog, 10, 10)
    expired(catalog, first)
    lost = IcebergSource(catalog, NAME, splits=1).open("0/1", offset)
    with pytest.raises(DataError, match="last read when the table was empty, and its first snapshot has expired"):
        read_until(lost, lambda batch: batch is not None)


def test_a_table_that_was_rolled_back_is_an_error(catalog: dict[str, str]) -> None:
    first = appended(catalog, 0, 10)
    appended(catalog, 10, 10)
    offset = position_behind(catalog)
    table_of(catalog).manage_snapshots().set_current_snapshot(first).commit()
    again = IcebergSource(catalog, NAME, splits=1).open("0/1", offset)
    with pytest.raises(DataError, match="the table was rolled back"):
        read_until(again, lambda batch: batch is END_OF_SPLIT)


def test_the_backlog_counts_rows_of_this_and_of_later_snapshots(catalog: dict[str, str]) -> None:
    first = appended(catalog, 0, 10)
    appended(catalog, 10, 7)
    reader = IcebergSource(catalog, NAME, snapshot=first, splits=1).open("0/1", None)
    assert reader.backlog() is None
    batch = read_until(reader, lambda batch: batch is not None)[-1]
    assert batch.num_rows == 10
    read_until(reader, lambda batch: batch is not None)
    backlog = reader.backlog()
    assert backlog is not None
    assert backlog.rows == 0
    again = IcebergSource(catalog, NAME, snapshot=first, splits=1).open("0/1", None)
    read_until(again, lambda batch: again.backlog() is not None)
    assert not again.is_caught_up


def test_wrong_arguments_and_tables_are_told_with_the_way_out(catalog: dict[str, str]) -> None:
    with pytest.raises(PipelineError, match="write it with its namespace"):
        IcebergSource(catalog, "orders")
    with pytest.raises(PipelineError, match=r"the catalog has no table a.gone: create it first"):
        IcebergSource(catalog, "a.gone").start()
    with pytest.raises(PipelineError, match="on_change is 'stop': it must be 'fail' or 'skip'"):
        IcebergSource(catalog, NAME, on_change="stop")  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="splits is 0"):
        IcebergSource(catalog, NAME, splits=0)
    with pytest.raises(PipelineError, match="give only one"):
        IcebergSource(catalog, NAME, snapshot=1, as_of=datetime.datetime.now(datetime.UTC))
    with pytest.raises(PipelineError, match="must be a datetime with a time zone"):
        IcebergSource(catalog, NAME, as_of=datetime.datetime(2026, 1, 1))
