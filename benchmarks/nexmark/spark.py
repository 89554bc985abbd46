"""Spark Structured Streaming on questions of Nexmark: `python -m benchmarks.nexmark.spark QUERY EVENTS PARALLELISM`,
and `python -m benchmarks.nexmark.spark check [QUERY …]` has DuckDB judge its answers on a few events.

Spark has no source that makes the events, so they are written as Parquet before the clock starts, eight files of each
stream in the order of time, and read in four micro-batches. `rate` is events for each second from the start of the
query to the end of its last micro-batch; that includes planning. Asked are the questions that Spark 4.3 can run on a
stream: not those with distinct counts, ranks, or an aggregate behind a join.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from benchmarks.nexmark.catalogue import SPARK_QUERIES, SPARK_SQL
from examples.nexmark.generator import Maker, Shape, counts
from examples.nexmark.queries.joins import SIDE_TABLE
from tests.nexmark.judge import differences
from tests.nexmark.questions import QUESTIONS

_FILES, _FILES_AT_ONCE = 8, 2
_READS = re.compile(r"(\w+) \(([^)]*)\)")
_WINDOWS_OPEN = ("q8", "q11")
"""Questions whose last windows are open at the end, when Spark does not emit them."""


def session(parallelism: int) -> SparkSession:
    builder = SparkSession.builder.master(f"local[{parallelism}]").appName("nexmark")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "6g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(parallelism),
        "spark.log.level": "OFF",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def prepared(spark: SparkSession, sql: str, shape: Shape, events: int, directory: Path) -> None:
    """Write the events that a query reads, and make streams of them."""
    for kind, listed in _READS.findall(sql.splitlines()[0]):
        columns = tuple(listed.split(", "))
        wanted = columns if "date_time" in columns else (*columns, "date_time")
        make, count = Maker(shape, kind, wanted), counts(events)[kind]
        (directory / kind).mkdir()
        for number in range(_FILES):
            start, end = (count * each // _FILES for each in (number, number + 1))
            table = pa.Table.from_batches([make(start, end - start)])
            schema = pa.schema([_for_spark(field) for field in table.schema])
            pq.write_table(table.cast(schema), directory / kind / f"{number}.parquet")
        path = str(directory / kind)
        stream = spark.readStream.schema(spark.read.parquet(path).schema).option("maxFilesPerTrigger", _FILES_AT_ONCE)
        stream.parquet(path).withWatermark("date_time", "4 seconds").createOrReplaceTempView(kind)
    spark.createDataFrame(SIDE_TABLE.to_pandas()).createOrReplaceTempView("side_table")


def _for_spark(field: pa.Field) -> pa.Field:
    return field.with_type(pa.timestamp("us", tz="UTC")) if pa.types.is_timestamp(field.type) else field


def answered(spark: SparkSession, sql: str, directory: Path, into: Callable[[Any], Any]) -> float:
    """Run a query to its end; returns the seconds that it took."""
    asked = "\n".join(line for line in sql.splitlines() if not line.startswith("--"))
    began = time.time()
    writer = into(spark.sql(asked)).outputMode("update" if "-- updates" in sql else "append")
    query = writer.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    return time.time() - began


def run(name: str, events: int, parallelism: int) -> str:
    """Run it once, and say how it went in one line."""
    spark, sql = session(parallelism), (SPARK_SQL / f"{name}.sql").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="penstock-nexmark-") as directory:
        prepared(spark, sql, Shape(), events, Path(directory))
        net = answered(spark, sql, Path(directory), lambda answer: answer.writeStream.format("noop"))
        spark.stop()
    return f"spark-ss {name} p={parallelism} events={events} rate={events / net / 1e6:.4f}M/s net={net:.3f}s counted"


def check(name: str) -> list[str]:
    """What DuckDB has to say against Spark's answer."""
    question, found = QUESTIONS[name], list[pa.RecordBatch]()

    def kept(batch: DataFrame, _: int) -> None:
        found.extend(batch.toArrow().to_batches())

    spark, sql = session(2), (SPARK_SQL / f"{name}.sql").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="penstock-nexmark-") as directory:
        prepared(spark, sql, question.shape, question.events, Path(directory))
        answered(spark, sql, Path(directory), lambda answer: answer.writeStream.foreachBatch(kept))
    complaints = differences(question, found)
    return [each for each in complaints if name not in _WINDOWS_OPEN or not each.startswith("missing")]


def main() -> int:
    if sys.argv[1] != "check":
        name, events, parallelism = sys.argv[1:]
        print(run(name, int(events), int(parallelism)), flush=True)
        return 0
    wrong = 0
    for name in sys.argv[2:] or SPARK_QUERIES:
        complaints = check(name)
        wrong += bool(complaints)
        print(f"{name}: {complaints[0] if complaints else 'as DuckDB'}", flush=True)
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
