"""The same processors on Spark's transformWithState and on Penstock: they see the same, type by type, and say the same.

Few queries, with much in each: a streaming query with state takes some seconds whatever it does.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from penstock import Pipeline
from penstock.columnar.schemas.schema_guard import as_schema
from penstock.spark.sessions import session_zone
from penstock.testing import CHECKPOINT, CollectSink, ListSource, run
from penstock.worker.settings import WorkerSettings
from tests.spark.processors import (
    COUNTED,
    INITIAL,
    KEYS,
    T0,
    TIMED,
    TYPES,
    EventTimers,
    Initial,
    PandasInitial,
    PandasStates,
    RowStates,
    batches,
    ddl,
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ZONE = "America/New_York"
_ATTEMPTS_MAX = 5
_WHOLE_BATCHES = WorkerSettings(slice_us=10**9, checkpoint_slice_us=10**9, driver_silence_ms=10**9)
"""Which type a frame has for a column depends on the nulls of the whole batch, here as on Spark."""
_SETTINGS = {
    "spark.sql.session.timeZone": ZONE,
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}
TOLD = as_schema(ddl({"told": "string"}))
STATES = as_schema(ddl({"told": "string", **TYPES}))


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    before = {name: spark.conf.get(name, None) for name in _SETTINGS}
    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)
    yield spark
    for name, old in before.items():
        spark.conf.unset(name) if old is None else spark.conf.set(name, old)


def test_the_zone_of_processors_is_that_of_the_session(session: SparkSession) -> None:
    assert session_zone(session) == ZONE
    session.conf.unset("spark.sql.session.timeZone")
    try:
        assert session_zone(session) == session.sql("SELECT current_timezone()").collect()[0][0]
    finally:
        session.conf.set("spark.sql.session.timeZone", ZONE)


class Both:
    """Runs a processor on Spark and on Penstock, batch by batch, with the same records."""

    def __init__(self, spark: SparkSession, root: Path, items: list[pa.RecordBatch]) -> None:
        self.spark = spark
        self.root = root
        self.items = items
        (root / "in").mkdir()
        for number, item in enumerate(items):
            path = root / "in" / f"{number}.parquet"
            pq.write_table(pa.Table.from_batches([item]), path)
            # Spark reads files in the order of their times.
            os.utime(path, (T0 / 1000 + number, T0 / 1000 + number))

    def on_spark(self, transformed: Callable[[DataFrame], DataFrame], schema: str) -> pa.Table:
        """The output, from one batch for each file."""
        for attempt in range(_ATTEMPTS_MAX):
            try:
                return self._on_spark(transformed, schema, f"state {attempt}")
            except StreamingQueryException as error:
                # Spark gives a Python process ten seconds to start, which is not enough on a busy machine.
                if "failed to connect back" not in str(error) or attempt == _ATTEMPTS_MAX - 1:
                    raise
        raise AssertionError

    def _on_spark(self, transformed: Callable[[DataFrame], DataFrame], schema: str, state: str) -> pa.Table:
        reader = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        rows = transformed(reader.parquet(str(self.root / "in")))
        writer = rows.writeStream.format("memory").queryName("told").outputMode("update")
        query = writer.option("checkpointLocation", str(self.root / state)).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
            return self.spark.table("told").toArrow()
        finally:
            query.stop()

    def on_penstock(self, processor: Any, key: list[str], **options: Any) -> pa.Table:
        sink, pipeline = CollectSink(), Pipeline("p")
        # A checkpoint in between keeps the batches apart.
        marked = [part for item in self.items for part in (item, CHECKPOINT)]
        stream = pipeline.source(ListSource(marked))
        if options.get("time_mode") == "event":
            stream = stream.with_watermark("time", 0)
        stream.key_by(*key).process(processor, **options).sink(sink)
        run(pipeline, time_zone=ZONE, worker_settings=_WHOLE_BATCHES)
        return pa.Table.from_pylist(sink.rows(), schema=options["schema"])


def told(table: pa.Table) -> list[str]:
    return [line for text in table["told"].to_pylist() for line in text.splitlines()]


@pytest.mark.parametrize(("form", "processor"), [("pandas", PandasStates()), ("rows", RowStates())])
def test_records_states_and_output_have_the_types_of_spark(
    session: SparkSession, tmp_path: Path, form: str, processor: Any
) -> None:
    columns = {**KEYS, **TYPES}
    both = Both(session, tmp_path, batches(as_schema(ddl(columns))))

    def transformed(rows: DataFrame) -> DataFrame:
        grouped = rows.groupBy(*KEYS)
        call = grouped.transformWithStateInPandas if form == "pandas" else grouped.transformWithState
        return call(processor, ddl({"told": "string", **TYPES}), "Update", "None")

    theirs = both.on_spark(transformed, ddl(columns))
    ours = both.on_penstock(processor, list(KEYS), schema=STATES, format=form, time_mode="none")
    assert told(ours) == told(theirs)
    assert ours.to_pylist() == theirs.cast(STATES).to_pylist()


def test_event_time_timers_are_called_as_on_spark(session: SparkSession, tmp_path: Path) -> None:
    schema = as_schema("id string, time timestamp")
    items = [
        pa.RecordBatch.from_pylist(
            [{"id": key, "time": datetime.datetime.fromtimestamp((T0 + at) / 1000, datetime.UTC)} for key, at in rows],
            schema=schema,
        )
        for rows in TIMED
    ]
    both = Both(session, tmp_path, items)
    theirs = both.on_spark(
        lambda rows: (
            rows.withWatermark("time", "0 seconds")
            .groupBy("id")
            .transformWithState(EventTimers(), "told string", "Update", "EventTime")
        ),
        "id string, time timestamp",
    )
    ours = both.on_penstock(EventTimers(), ["id"], schema=TOLD, format="rows", time_mode="event", at_end="drop")
    # Spark takes up a watermark with the records of the next batch, and Penstock before them.
    assert sorted(told(ours)) == sorted(told(theirs))


@pytest.mark.parametrize(("form", "processor"), [("pandas", PandasInitial()), ("rows", Initial())])
def test_the_initial_state_is_that_of_spark(session: SparkSession, tmp_path: Path, form: str, processor: Any) -> None:
    both = Both(session, tmp_path, [pa.record_batch({"id": keys}) for keys in COUNTED])
    initial = session.createDataFrame(INITIAL).groupBy("id")

    def transformed(rows: DataFrame) -> DataFrame:
        grouped = rows.groupBy("id")
        call = grouped.transformWithStateInPandas if form == "pandas" else grouped.transformWithState
        return call(processor, "told string", "Update", "None", initialState=initial)

    theirs = both.on_spark(transformed, "id string")
    ours = both.on_penstock(processor, ["id"], schema=TOLD, format=form, time_mode="none", initial_state=initial)
    assert sorted(told(ours)) == sorted(told(theirs))
