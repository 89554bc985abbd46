"""Spark reads the output of a pipeline: whole checkpoints, each row once, also through restarts of the query."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock import FileSource, OptionError, ParquetSink, PenstockDataSource, Pipeline
from penstock.connectors.files.filesystem import place_of
from penstock.connectors.files.sink import FileCommitter, FileSink
from penstock.ids import CheckpointId, Generation
from penstock.testing import CollectSink

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture(autouse=True)
def registered(spark: SparkSession) -> None:
    spark.dataSource.register(PenstockDataSource)


def staged(sink: FileSink, numbers: Sequence[int], subtask: int = 0) -> list[bytes]:
    writer = sink.writer(subtask, Generation(1))
    writer.write(pa.record_batch({"n": pa.array(numbers, pa.int64())}))
    return list(writer.prepare()())


def commit(sink: FileSink, checkpoint: int, *numbers: int) -> None:
    FileCommitter(place_of(sink.directory), sink.directory).commit(CheckpointId(checkpoint), staged(sink, numbers))


def numbers_of(spark: SparkSession, directory: Path) -> list[int]:
    return sorted(row["n"] for row in spark.read.format("penstock").load(str(directory)).collect())


class Query:
    """A streaming query that writes each micro-batch to a list, and can be started again."""

    def __init__(self, spark: SparkSession, source: Path, checkpoints: Path, **options: object) -> None:
        self._spark, self._source, self._checkpoints, self._options = spark, source, checkpoints, options
        self.batches: dict[int, list[int]] = {}
        self.fails_in: int | None = None

    def run(self) -> list[list[int]]:
        for attempt in range(20):
            try:
                return self._run()
            except Exception as error:
                # Spark limits the time that a Python process has to start, and a busy machine may take longer.
                if "failed to connect back" not in str(error) or attempt == 19:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _run(self) -> list[list[int]]:
        stream = self._spark.readStream.format("penstock").schema("n bigint")
        for name, value in self._options.items():
            stream = stream.option(name, str(value))
        query = (
            stream.load(str(self._source))
            .writeStream.foreachBatch(self._on_batch)
            .option("checkpointLocation", str(self._checkpoints))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        self.offsets = [json.loads(each["sources"][0]["endOffset"]) for each in query.recentProgress]
        return [rows for _, rows in sorted(self.batches.items())]

    def _on_batch(self, rows: Any, number: int) -> None:
        if number == self.fails_in:
            raise RuntimeError("the query is killed")
        self.batches[number] = sorted(row["n"] for row in rows.collect())


def test_a_query_sees_a_checkpoint_whole_or_not_at_all(spark: SparkSession, tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "out")
    commit(sink, 1, 1, 2)
    committables = [*staged(sink, [3]), *staged(sink, [4], subtask=1)]
    # The driver dies when one of two files is renamed: everybody sees it in the directory.
    one = json.loads(committables[0])
    (tmp_path / "out" / one["staged"]).rename(tmp_path / "out" / one["final"])
    assert spark.read.parquet(str(tmp_path / "out")).count() == 3
    assert numbers_of(spark, tmp_path / "out") == [1, 2]
    for _ in range(2):
        FileCommitter(place_of(sink.directory), sink.directory).commit(CheckpointId(2), committables)
    assert numbers_of(spark, tmp_path / "out") == [1, 2, 3, 4]


def test_a_stream_reads_each_commit_once_through_restarts_of_the_query(spark: SparkSession, tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "out")
    query = Query(spark, tmp_path / "out", tmp_path / "query", maxRowsPerTrigger=2)
    for checkpoint in range(1, 5):
        commit(sink, checkpoint, checkpoint * 10, checkpoint * 10 + 1)
    query.fails_in = 2
    with pytest.raises(Exception, match="the query is killed"):
        query.run()
    assert query.batches == {0: [10, 11], 1: [20, 21]}
    # The micro-batch that failed is read again, and is what it was, whatever was committed meanwhile.
    commit(sink, 7, 70)
    query.fails_in = None
    assert query.run() == [[10, 11], [20, 21], [30, 31], [40, 41], [70]]
    assert query.offsets[-1] == {"commit": 5, "checkpoint": 7}
    # A pipeline that starts anew begins with checkpoint 1 again.
    commit(sink, 1, 80)
    assert query.run()[5:] == [[80]]


def test_a_job_gives_its_output_as_a_dataframe(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "numbers.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(1000)))
    pipeline = Pipeline("numbers")
    numbers = pipeline.source(FileSource(tmp_path / "in", format="jsonl"), name="numbers")
    numbers.sink(ParquetSink(tmp_path / "out"), name="out")
    numbers.sink(CollectSink(), name="collected")
    job = pipeline.start(spark, tmp_path / "checkpoints", parallelism=2, workers=1)
    assert job.wait(timeout=120)
    for name in ("out", None):
        assert sorted(row["n"] for row in job.to_dataframe(name).collect()) == list(range(1000))
    with pytest.raises(OptionError, match="to_dataframe reads file sinks"):
        job.to_dataframe("collected")
    with pytest.raises(OptionError, match="there is no sink 'other'"):
        job.to_dataframe("other")
