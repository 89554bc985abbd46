"""Readers of the committed output of a pipeline, without Spark: offsets, limits, types, and output that is gone."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from penstock import DataError, JsonLinesSink, OptionError, ParquetSink, PenstockDataSource, StorageError
from penstock.connectors.files.commit_log import commits_of, files_of
from penstock.connectors.files.filesystem import place_of
from penstock.connectors.files.sink import FileCommitter, FileSink
from penstock.connectors.spark import output as output_module
from penstock.connectors.spark.output import OutputStreamReader
from penstock.connectors.spark.rows import struct_of
from penstock.ids import CheckpointId, Generation

NUMBERS = struct_of("n bigint")
BEGIN = {"commit": 0, "checkpoint": 0}


def staged(sink: FileSink, batch: pa.RecordBatch, subtask: int = 0) -> list[bytes]:
    writer = sink.writer(subtask, Generation(1))
    writer.write(batch)
    return list(writer.prepare()())


def committer_of(sink: FileSink) -> FileCommitter:
    return FileCommitter(place_of(sink.directory), sink.directory)


def commit(sink: FileSink, checkpoint: int, *numbers: int) -> None:
    batch = pa.record_batch({"n": pa.array(numbers, pa.int64())})
    committer_of(sink).commit(CheckpointId(checkpoint), staged(sink, batch))


def source(directory: str | Path, **options: str) -> PenstockDataSource:
    return PenstockDataSource({"path": str(directory), **options})


def stream(directory: Path, **options: str) -> OutputStreamReader:
    reader = source(directory, **options).streamReader(NUMBERS)
    assert isinstance(reader, OutputStreamReader)
    return reader


def rows(reader: Any, partitions: Sequence[Any]) -> list[int]:
    batches: Iterator[pa.RecordBatch] = (batch for each in partitions for batch in reader.read(each))
    return [n for batch in batches for n in batch["n"].to_pylist()]


def entries(directory: Path) -> list[Path]:
    return sorted((directory / "_commits").iterdir())


def test_offsets_are_commits_and_a_commit_is_never_divided(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    reader = stream(tmp_path, maxRowsPerTrigger="3")
    assert reader.initialOffset() == BEGIN
    assert reader.latestOffset(BEGIN, ReadAllAvailable()) == BEGIN
    commit(sink, 3, 1, 2)
    commit(sink, 5, 3)
    commit(sink, 6, 4, 5, 6, 7)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(3)
    first = reader.latestOffset(BEGIN, limit)
    assert first == {"commit": 2, "checkpoint": 5}
    second = reader.latestOffset(first, limit)
    assert second == {"commit": 3, "checkpoint": 6}
    assert reader.latestOffset(second, limit) == second
    assert reader.latestOffset(BEGIN, ReadAllAvailable()) == second
    assert rows(reader, reader.partitions(BEGIN, first)) == [1, 2, 3]
    assert rows(reader, reader.partitions(first, second)) == [4, 5, 6, 7]
    assert reader.partitions(second, second) == []


def test_what_is_available_now_is_what_was_committed_when_the_query_began(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    commit(sink, 1, 1)
    reader = stream(tmp_path)
    reader.prepareForTriggerAvailableNow()
    commit(sink, 2, 2)
    assert reader.latestOffset(BEGIN, ReadAllAvailable()) == {"commit": 1, "checkpoint": 1}
    assert stream(tmp_path, start="latest").initialOffset() == {"commit": 2, "checkpoint": 2}


def test_a_commit_that_is_repeated_is_in_the_log_once(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    committables = staged(sink, pa.record_batch({"n": [1]}))
    earlier = committer_of(sink)
    earlier.commit(CheckpointId(1), committables)
    earlier.commit(CheckpointId(1), committables)
    commit(sink, 2, 2)
    # A pipeline that goes back to its first checkpoint publishes it again.
    committer_of(sink).commit(CheckpointId(1), committables)
    earlier.commit(CheckpointId(1), committables)
    assert [each.number for each in commits_of(place_of(tmp_path), "")] == [1, 2]
    assert len(entries(tmp_path)) == 2
    # A driver that had looked before writes another entry, or the same one.
    second = entries(tmp_path)[0].read_bytes()
    (tmp_path / "_commits" / entries(tmp_path)[0].name.replace("000000000001", "000000000003")).write_bytes(second)
    reader = source(tmp_path).reader(NUMBERS)
    assert rows(reader, reader.partitions()) == [1, 2]


def test_files_from_before_the_log_are_its_first_entry(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    commit(sink, 7, 1)
    commit(sink, 8, 2)
    for entry in entries(tmp_path):
        entry.unlink()
    # The driver died in the middle of the commit that comes again.
    (committable,) = staged(sink, pa.record_batch({"n": [3]}))
    told = json.loads(committable)
    (tmp_path / told["staged"]).rename(tmp_path / told["final"])
    committer_of(sink).commit(CheckpointId(9), [committable])
    place = place_of(tmp_path)
    assert [(each.number, each.checkpoint) for each in commits_of(place, "")] == [(1, 0), (2, 9)]
    assert [len(files_of(place, each, "")) for each in commits_of(place, "")] == [2, 1]
    reader = source(tmp_path).reader(NUMBERS)
    assert sorted(rows(reader, reader.partitions())) == [1, 2, 3]


def test_an_entry_that_a_crash_left_unfinished_is_removed_and_not_read(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    commit(sink, 1, 1)
    (tmp_path / "_commits" / ".unfinished-000000000002-00000000").write_text('{"checkp')
    assert len(commits_of(place_of(tmp_path), "")) == 1
    committer_of(sink).discard_uncommitted(Generation(2))
    assert len(entries(tmp_path)) == 1


def test_output_that_was_removed_or_replaced_is_told(tmp_path: Path) -> None:
    sink, reader = ParquetSink(tmp_path), stream(tmp_path)
    for checkpoint in (1, 2, 3, 4):
        commit(sink, checkpoint, checkpoint)
    first, second, third, fourth = entries(tmp_path)
    at = {"commit": 1, "checkpoint": 1}
    second.unlink()
    with pytest.raises(StorageError, match="has no commit between 1 and 3"):
        reader.latestOffset(at, ReadAllAvailable())
    first.unlink()
    with pytest.raises(StorageError, match="commits 2 to 2 were removed before this query has read them"):
        reader.latestOffset(at, ReadAllAvailable())
    # A query that begins now reads the rest.
    assert reader.initialOffset() == {"commit": 2, "checkpoint": 0}
    assert rows(reader, reader.partitions(reader.initialOffset(), {"commit": 4, "checkpoint": 4})) == [3, 4]
    (file,) = json.loads(third.read_text())["files"]
    (tmp_path / file["name"]).unlink()
    with pytest.raises(StorageError, match="was committed, and is gone"):
        rows(reader, reader.partitions(reader.initialOffset(), {"commit": 4, "checkpoint": 4}))
    third.unlink()
    fourth.unlink()
    with pytest.raises(StorageError, match="The directory was emptied or replaced"):
        reader.latestOffset(at, ReadAllAvailable())
    (tmp_path / "_commits" / "000000000001-c9-0123456789abcdef.json").write_text('{"files": []}')
    with pytest.raises(StorageError, match="is not the output that this query has read"):
        reader.latestOffset(at, ReadAllAvailable())


def test_types_and_columns_come_as_spark_has_them(tmp_path: Path) -> None:
    at = datetime.datetime(2024, 1, 2, 3, 4, 5, 678000, tzinfo=datetime.UTC)
    row = {"at": at, "day": at.date(), "text": "ü", "list": [1, None], "inner": {"a": 1.5}, "nothing": None}
    types = {
        "at": pa.timestamp("us", "UTC"),
        "day": pa.date32(),
        "text": pa.large_string(),
        "list": pa.list_(pa.int64()),
        "inner": pa.struct({"a": pa.float64()}),
        "nothing": pa.int32(),
    }
    ddl = "at timestamp, day date, text string, list array<bigint>, inner struct<a: double>, nothing int"
    for sink in (ParquetSink(tmp_path / "parquet"), JsonLinesSink(tmp_path / "json")):
        batch = pa.RecordBatch.from_pylist([row], schema=pa.schema(types))
        committer_of(sink).commit(CheckpointId(1), staged(sink, batch))
        reader = source(sink.directory).reader(struct_of(f"{ddl}, other int"))
        (found,) = (each for part in reader.partitions() for each in reader.read(part))
        assert found.to_pylist() == [{**row, "other": None}]
    assert source(tmp_path / "parquet").schema() == struct_of(ddl)
    assert source(tmp_path / "json").schema()["text"].dataType.simpleString() == "string"

    def read(name: str, ddl: str) -> None:
        reader = source(tmp_path / name).reader(struct_of(ddl))
        list(reader.read(reader.partitions()[0]))

    with pytest.raises(OptionError, match="declare it as a string, and decode it with unbase64"):
        read("json", "text binary")
    with pytest.raises(DataError, match="does not fit the schema of the query"):
        read("parquet", "text int")
    with pytest.raises(DataError, match="does not fit the schema of the query"):
        read("json", "text int")


def test_files_of_one_query_are_read_by_tasks_of_about_one_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = ParquetSink(tmp_path)
    for checkpoint in range(1, 6):
        commit(sink, checkpoint, checkpoint)
    size = next(tmp_path.glob("*.parquet")).stat().st_size
    monkeypatch.setattr(output_module, "_PARTITION_BYTES", 2 * size + 10)
    reader = source(tmp_path).reader(NUMBERS)
    assert [rows(reader, [each]) for each in reader.partitions()] == [[1, 2], [3, 4], [5]]


def test_wrong_options_and_empty_directories_are_told(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"nothing has been committed to .*give them with .schema"):
        source(tmp_path).schema()
    reader = source(tmp_path).reader(NUMBERS)
    assert rows(reader, reader.partitions()) == []
    with pytest.raises(OptionError, match="has no option 'startt'; its options are path, start, maxRowsPerTrigger"):
        source(tmp_path, startt="latest")
    with pytest.raises(OptionError, match="needs the directory of a file sink"):
        PenstockDataSource({})
    for option, value in (("start", "2020"), ("maxRowsPerTrigger", "0"), ("maxRowsPerTrigger", "many")):
        with pytest.raises(OptionError, match=f"option {option} must be"):
            stream(tmp_path, **{option: value})
