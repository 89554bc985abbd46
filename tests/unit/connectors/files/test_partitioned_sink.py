"""File sinks that divide their rows among directories, and compress: what is written is what is read back."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import DataError, FileSource, JsonLinesSink, OptionError, ParquetSink, PenstockDataSource, Pipeline
from penstock.connectors.files import sink as sink_module
from penstock.connectors.files.filesystem import place_of
from penstock.connectors.files.partitioning import Partitioner, partition_fields
from penstock.connectors.files.partitions import partition_values
from penstock.connectors.files.sink import FileCommitter, FileSink
from penstock.connectors.spark.rows import struct_of
from penstock.ids import CheckpointId, Generation
from penstock.testing import ABORT, CHECKPOINT, CollectSink, ListSource, run

HOUR = 3_600_000_000
BEGIN = datetime.datetime(2026, 1, 1, 22, 30, tzinfo=datetime.UTC)


def order(n: int) -> dict[str, Any]:
    return {"n": n, "country": ["NL", "a/b=c", None][n % 3], "at": BEGIN + datetime.timedelta(minutes=30 * n)}


def write(sink: FileSink, *batches: pa.RecordBatch, checkpoint: int = 1) -> list[bytes]:
    writer = sink.writer(0, Generation(1))
    for batch in batches:
        writer.write(batch)
    committables = list(writer.prepare()())
    FileCommitter(place_of(sink.directory), sink.directory).commit(CheckpointId(checkpoint), committables)
    return committables


def directories(path: Path) -> set[str]:
    names = {str(file.parent.relative_to(path)) for file in path.rglob("part-*")}
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize("kind", [ParquetSink, JsonLinesSink])
def test_rows_go_to_the_directories_of_their_values_once_through_crashes(kind: Any, tmp_path: Path) -> None:
    rows = [order(n) for n in range(12)]
    items = [*rows[:5], CHECKPOINT, *rows[5:8], ABORT(), *rows[8:], CHECKPOINT]
    pipeline = Pipeline("orders")
    sink = kind(tmp_path / "out", partition_by=["country", "day(at)"])
    pipeline.source(ListSource(items), name="orders").sink(sink, name="out")
    run(pipeline)
    null = "__HIVE_DEFAULT_PARTITION__"
    assert directories(tmp_path / "out") == {
        f"country={country}/at_day={day}"
        for country in ("NL", "a%2Fb%3Dc", null)
        for day in ("2026-01-01", "2026-01-02")
    }
    output = CollectSink()
    back = Pipeline("back")
    suffix, schema = ("parquet", None) if kind is ParquetSink else ("jsonl", "n bigint, at timestamp, country string")
    source = FileSource(tmp_path / "out", format=suffix, schema=schema)
    back.source(source, name="files").sink(output, name="rows")
    run(back)
    found = sorted(output.rows(), key=lambda row: row["n"])
    assert [(row["n"], row["country"], row["at"]) for row in found] == [(r["n"], r["country"], r["at"]) for r in rows]
    if kind is ParquetSink:
        assert [row["at_day"] for row in found] == [row["at"].date() for row in rows]


def test_spark_reads_partition_columns_from_the_paths(tmp_path: Path) -> None:
    rows = [order(n) for n in range(6)]
    write(ParquetSink(tmp_path, partition_by=["country", "hour(at)"]), pa.RecordBatch.from_pylist(rows))
    source = PenstockDataSource({"path": str(tmp_path)})
    assert source.schema().simpleString() == "struct<n:bigint,at:timestamp,country:string,at_hour:string>"
    reader = source.reader(source.schema())
    found = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    expected = [{**row, "at_hour": f"{row['at']:%Y-%m-%d-%H}"} for row in rows]
    assert sorted(found, key=lambda row: row["n"]) == expected
    narrow = source.reader(struct_of("at_hour string, other int"))
    (first, *_) = (batch for part in narrow.partitions() for batch in narrow.read(part))
    assert first.to_pylist()[0] == {"at_hour": "2026-01-01-22", "other": None}


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_any_rows_are_divided_without_loss_and_in_order(data: st.DataObject) -> None:
    texts = st.one_of(st.none(), st.text(min_size=1, max_size=5))
    values = data.draw(st.lists(st.tuples(texts, st.one_of(st.none(), st.integers(0, 50 * HOUR)), st.booleans())))
    table = pa.record_batch(
        {
            "text": pa.array([each[0] for each in values], pa.string()),
            "at": pa.array([each[1] for each in values], pa.timestamp("us", "Asia/Kolkata")),
            "flag": pa.array([each[2] for each in values], pa.bool_()),
            "n": pa.array(range(len(values)), pa.int64()),
        }
    )
    fields = partition_fields("sink", ["text", "hour(at)", "flag"])
    found: dict[int, dict[str, Any]] = {}
    for path, rows in Partitioner(fields, "sink").divided(table):
        numbers = rows["n"].to_pylist()
        assert numbers == sorted(numbers)
        assert rows.schema.names == ["at", "n"]
        found |= {n: partition_values(f"{path}file") for n in numbers}
    assert sorted(found) == list(range(len(values)))
    for n, (text, at, flag) in enumerate(values):
        hour = None if at is None else f"{datetime.datetime.fromtimestamp(at // HOUR * 3600, datetime.UTC):%Y-%m-%d-%H}"
        assert found[n] == {"text": text, "at_hour": hour, "flag": "true" if flag else "false"}


def test_files_roll_by_size_in_each_directory(tmp_path: Path) -> None:
    sink = JsonLinesSink(tmp_path, partition_by="k", roll_size=1)
    batch = pa.record_batch({"k": [1, 2, 1], "n": [1, 2, 3]})
    assert len(write(sink, batch, batch)) == 4
    assert [len(list((tmp_path / f"k={k}").iterdir())) for k in (1, 2)] == [2, 2]


def test_too_many_directories_in_one_checkpoint_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_module, "OPEN_PARTITIONS_MAX", 3)
    writer = ParquetSink(tmp_path, partition_by="k").writer(0, Generation(1))
    for _ in range(2):
        writer.write(pa.record_batch({"k": [1, 2, 3], "n": [1, 2, 3]}))
    with pytest.raises(DataError, match=r"more than 3 partitions .* put key_by in front"):
        writer.write(pa.record_batch({"k": [4], "n": [4]}))
    writer.close()
    assert list((tmp_path / "_staging").iterdir()) == []


@pytest.mark.parametrize(
    ("partition_by", "batch", "said"),
    [
        ("x", {"n": [1]}, "names the column 'x', which is not found"),
        ("n", {"n": [1]}, "none is left for the files"),
        ("n", {"n": [1.5], "x": [1]}, "is double: use a string"),
        ("n", {"n": [""], "x": [1]}, "cannot be distinguished from null"),
        ("n", {"n": ["__HIVE_DEFAULT_PARTITION__"], "x": [1]}, "cannot be distinguished from null"),
        ("day(n)", {"n": [1]}, "needs a timestamp, and the column is int64"),
        ("hour(n)", {"n": [datetime.date(2026, 1, 1)]}, "needs a timestamp"),
        ("day(n)", {"n": [datetime.date(2026, 1, 1)], "n_day": [1]}, "which exists already"),
    ],
)
def test_rows_that_have_no_directory_are_told(
    partition_by: str, batch: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=said):
        ParquetSink(tmp_path, partition_by=partition_by).writer(0, Generation(1)).write(pa.record_batch(batch))


def test_wrong_options_are_told_at_the_start(tmp_path: Path) -> None:
    for wrong, said in (
        (["a", "a"], "twice"),
        ("week(at)", "function week"),
        ([3], "names of columns"),
        ("", "names"),
    ):
        with pytest.raises(OptionError, match=said):
            ParquetSink(tmp_path, partition_by=wrong)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="JsonLinesSink: compression must be one of bz2, gzip, lz4, zstd, not 'zip'"):
        JsonLinesSink(tmp_path, compression="zip")
    with pytest.raises(OptionError, match=r"ParquetSink: compression must be one of .*, not 'zip'"):
        ParquetSink(tmp_path, compression="zip")


@pytest.mark.parametrize("codec", ["gzip", "zstd", "bz2", "lz4"])
def test_compressed_lines_are_read_back_by_source_and_data_source(codec: str, tmp_path: Path) -> None:
    sink = JsonLinesSink(tmp_path, compression=codec)
    batch = pa.record_batch({"n": list(range(5000))})
    (committable,) = write(sink, batch, batch)
    told = json.loads(committable)
    assert told["final"].endswith(sink.suffix) and told["rows"] == 10_000
    assert told["bytes"] < 40_000
    output = CollectSink()
    back = Pipeline("back")
    back.source(FileSource(tmp_path, format="jsonl"), name="files").sink(output, name="rows")
    run(back)
    assert sorted(row["n"] for row in output.rows()) == sorted([*range(5000)] * 2)
    source = PenstockDataSource({"path": str(tmp_path)})
    reader = source.reader(source.schema())
    assert sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)) == 10_000


def test_a_compressed_file_that_was_never_handed_over_is_removed(tmp_path: Path) -> None:
    writer = JsonLinesSink(tmp_path, compression="gzip").writer(0, Generation(1))
    writer.write(pa.record_batch({"n": [1]}))
    writer.close()
    assert list((tmp_path / "_staging").iterdir()) == []


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "brotli", "zstd", "lz4"])
def test_parquet_has_its_codecs(codec: str, tmp_path: Path) -> None:
    write(ParquetSink(tmp_path, compression=codec), pa.record_batch({"n": [1, 2]}))
    assert ds.dataset(tmp_path, format="parquet").to_table()["n"].to_pylist() == [1, 2]
