"""`DataFrameSource`: the query runs once, and its rows come exactly once, through crashes and restarts."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from penstock import ParquetSink, Pipeline, PipelineError
from penstock.connectors.spark.dataframe import DataFrameSource
from penstock.testing import CollectSink, check_source, run

pytestmark = pytest.mark.spark


def test_rows_of_a_query_come_once_although_the_query_would_return_others(spark: SparkSession, tmp_path: Path) -> None:
    """A random column: a query that ran again would give other rows."""
    query = spark.range(0, 900, 1, 3).select("id", F.rand().alias("value"))
    source = DataFrameSource(query, staging=tmp_path / "staging")
    pipeline = Pipeline("from a query")
    pipeline.source(source, name="query").sink(ParquetSink(tmp_path / "out"), name="out")
    job = pipeline.start(spark, tmp_path / "checkpoints", parallelism=1, workers=1)
    job.wait()
    first = {row["id"]: row["value"] for row in spark.read.parquet(str(tmp_path / "out")).collect()}
    assert sorted(first) == list(range(900))

    # Started again, it finds the same rows, also through a crash, and at every position.
    output = CollectSink()
    again = Pipeline("again")
    again.source(DataFrameSource(query, staging=tmp_path / "staging"), name="query").sink(output, name="out")
    run(again, parallelism=2, crash_after_checkpoints=1)
    assert {row["id"]: row["value"] for row in output.rows()} == first
    assert len(output.rows()) == 900
    check_source(lambda: DataFrameSource(query, staging=tmp_path / "staging"), output.rows(), batch_rows=100)

    source.discard()
    assert not (tmp_path / "staging" / "rows").exists()


def test_wrong_frames_and_queries_are_told(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="takes a DataFrame of Spark, not list"):
        DataFrameSource([], staging=tmp_path)  # type: ignore[arg-type]
    stream = spark.readStream.format("rate").load()
    with pytest.raises(PipelineError, match="is a streaming one, which does not end"):
        DataFrameSource(stream, staging=tmp_path)
    broken = spark.range(3).select((F.lit("x").cast("int") / F.raise_error(F.lit("no such thing"))).alias("x"))
    pipeline = Pipeline("broken")
    pipeline.source(DataFrameSource(broken, staging=tmp_path / "s"), name="query").sink(CollectSink(), name="out")
    with pytest.raises(Exception, match="Spark cannot stage the rows"):
        run(pipeline)
