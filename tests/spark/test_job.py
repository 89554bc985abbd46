"""The job handle: starting, resuming, savepoints, stopping, and every way of starting that cannot work."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from penstock import (
    GeneratorSource,
    IncompatibleCheckpoint,
    JobListener,
    KeyedFunction,
    NoReadableCheckpoint,
    OptionError,
    ParquetSink,
    PenstockError,
    Pipeline,
    PipelineError,
    StorageError,
)
from penstock.driver.supervisor import Phase
from penstock.spark.job import Job
from tests.spark.kit import completed, until

pytestmark = pytest.mark.spark


def numbers(start: int, count: int) -> pa.RecordBatch:
    n = np.arange(start, start + count)
    return pa.record_batch({"n": n, "k": n % 7})


def make(root: Path, name: str = "numbers", rows: int | None = None, rate: float | None = 2000) -> Pipeline:
    pipeline = Pipeline(name)
    source = GeneratorSource(numbers, rows=rows, splits=2, rows_per_second=rate)
    pipeline.source(source, name="source").key_by("k").process(Pass(), name="pass").sink(
        ParquetSink(str(root / "out")), name="out"
    )
    return pipeline


class Pass(KeyedFunction):
    """Counts the records of each key, so that there is state, and passes them on."""

    def open(self, context: Any) -> None:
        self.count = context.value("count", "n bigint")

    def process(self, key: Any, rows: pa.RecordBatch, context: Any) -> pa.RecordBatch:
        (before,) = self.count.get() or (0,)
        self.count.update((before + rows.num_rows,))
        return rows


class Heard(JobListener):
    """Notes the kinds of the events."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def _note(self, event: object) -> None:
        self.events.append(type(event).__name__)

    on_started = on_checkpoint = on_restart = on_finished = _note


def begin(pipeline: Pipeline, spark: SparkSession, root: Path, **options: Any) -> Job:
    defaults = {"parallelism": 2, "checkpoint_interval": 0.2}
    job = pipeline.start(spark, checkpoints=str(root / "checkpoints"), **(defaults | options))
    assert isinstance(job, Job)
    return job


def published(root: Path) -> list[int]:
    return sorted(n for path in (root / "out").glob("*.parquet") for n in pq.read_table(path)["n"].to_pylist())


def test_a_bounded_pipeline_finishes_by_itself_and_publishes_everything(spark: SparkSession, tmp_path: Path) -> None:
    job = begin(make(tmp_path, rows=5000, rate=None), spark, tmp_path)
    assert job.wait(60)
    assert job.status.phase is Phase.FINISHED
    assert published(tmp_path) == list(range(5000))


def test_a_drained_pipeline_resumes_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    job = begin(make(tmp_path), spark, tmp_path)
    until(lambda: completed(job) >= 2, "two checkpoints")
    savepoint = job.stop(drain=True, timeout=60)
    first = published(tmp_path)
    assert savepoint is not None and first and len(first) == len(set(first))
    again = begin(make(tmp_path), spark, tmp_path)
    until(lambda: completed(again) >= 2, "two more")
    again.stop(drain=True, timeout=60)
    both = published(tmp_path)
    assert len(both) > len(first) and len(both) == len(set(both))
    assert set(first) <= set(both)


def test_a_pipeline_starts_from_a_savepoint_elsewhere_and_at_another_parallelism(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = begin(make(tmp_path), spark, tmp_path)
    until(lambda: completed(job) >= 1, "a checkpoint")
    job.savepoint(str(tmp_path / "kept"), timeout=60)
    job.stop(timeout=60)
    assert job.status.phase is Phase.STOPPED
    other = tmp_path / "other"
    # The output up to the savepoint was published by the first one; the second one goes on from there.
    again = begin(make(other), spark, other, restore=str(tmp_path / "kept"), parallelism=3, workers=3)
    until(lambda: completed(again) >= 2, "checkpoints at parallelism 3")
    again.stop(drain=True, timeout=60)
    before, after = published(tmp_path), published(other)
    assert after and not set(after[:1]) & set(before[:1])
    assert len(after) == len(set(after))


def test_status_and_checkpoints_tell_what_happens(spark: SparkSession, tmp_path: Path) -> None:
    heard = Heard()
    job = begin(make(tmp_path), spark, tmp_path, listeners=[heard])
    assert job.is_active
    assert job.checkpoint(timeout=60) >= 1
    until(lambda: job.status.rows_in > 0 and job.status.rows_out > 0, "rows")
    record = job.checkpoints()[-1]
    assert record.duration_ms >= 0 and record.state_bytes >= 0
    assert job.status.last_checkpoint is not None
    job.checkpoint(timeout=60)
    progress = job.last_progress
    assert progress is not None and progress.rows_in >= progress.rows_out > 0 and progress.state_rows == 7
    assert [source.name for source in progress.sources] == ["source"] and len(progress.sources[0].positions) == 2
    metrics = job.metrics()
    assert {sample.subtask for sample in metrics.of("num_records_in", "pass")} == {0, 1}
    assert set(metrics.by_operator("num_records_in")) == {"source", "pass", "out"}
    job.stop(timeout=60)
    assert not job.is_active
    assert heard.events[0] == "JobStarted" and heard.events[-1] == "JobFinished" and "CheckpointEnded" in heard.events
    assert job.stop(timeout=60) is None, "to stop it again does no harm"
    with pytest.raises(PenstockError, match="has ended"):
        job.checkpoint(timeout=5)


# --- what cannot work ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 64}, "needs 64 workers at the same time, and this session has 4 slots"),
        ({"checkpoint_intervall": 1}, "did you mean checkpoint_interval"),
        ({"checkpoint_interval": -1}, "checkpoint_interval is -1"),
        ({"checkpoint_mode": "sometimes"}, "must be one of aligned"),
        ({"parallelism": 0}, "parallelism is 0"),
        ({"retained_checkpoints": 0}, "retained_checkpoints is 0"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(
    options: dict[str, Any], message: str, spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=message):
        begin(make(tmp_path), spark, tmp_path, **options)


def test_a_checkpoint_directory_that_is_a_file_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").touch()
    with pytest.raises((StorageError, OptionError), match="checkpoints"):
        begin(make(tmp_path), spark, tmp_path)


def test_a_directory_in_use_by_a_live_driver_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    job = begin(make(tmp_path), spark, tmp_path, workers=1)
    with pytest.raises(OptionError, match="in use by pipeline 'numbers' in process"):
        begin(make(tmp_path), spark, tmp_path, workers=1)
    job.stop(timeout=60)


def test_another_pipelines_directory_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    begin(make(tmp_path, rows=100, rate=None), spark, tmp_path).wait(60)
    job = begin(make(tmp_path, name="other"), spark, tmp_path)
    with pytest.raises(
        IncompatibleCheckpoint, match="it was taken by pipeline 'numbers', and this pipeline is 'other'"
    ):
        job.wait(60)


def test_a_damaged_checkpoint_is_never_silently_an_empty_state(spark: SparkSession, tmp_path: Path) -> None:
    begin(make(tmp_path, rows=100, rate=None), spark, tmp_path).wait(60)
    for manifest in (tmp_path / "checkpoints").rglob("manifest.json"):
        manifest.write_bytes(manifest.read_bytes()[:-40])
    job = begin(make(tmp_path, rows=100, rate=None), spark, tmp_path)
    with pytest.raises(NoReadableCheckpoint, match="allow_output_twice"):
        job.wait(60)


def test_a_function_that_always_fails_ends_the_job_with_its_error(spark: SparkSession, tmp_path: Path) -> None:
    def broken(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError("no such luck")

    pipeline = Pipeline("broken")
    pipeline.source(GeneratorSource(numbers, rows=10), name="source").map(broken, name="unlucky").sink(
        ParquetSink(str(tmp_path / "out")), name="out"
    )
    job = begin(pipeline, spark, tmp_path, restarts_max=1, restart_delay=0.05)
    with pytest.raises(PenstockError, match=r"operator 'unlucky'.*no such luck"):
        job.wait(60)


def test_a_function_that_cannot_travel_is_refused_before_anything_starts(spark: SparkSession, tmp_path: Path) -> None:
    lock = __import__("threading").Lock()
    pipeline = Pipeline("stuck")
    with pytest.raises(PipelineError, match="holder"):
        pipeline.source(GeneratorSource(numbers, rows=10), name="source").map(
            lambda batch: batch.slice(int(lock.locked())), name="holder"
        ).sink(ParquetSink(str(tmp_path / "out")), name="out")
        begin(pipeline, spark, tmp_path)


def test_stopping_is_quick(spark: SparkSession, tmp_path: Path) -> None:
    job = begin(make(tmp_path), spark, tmp_path)
    until(lambda: completed(job) >= 1, "a checkpoint")
    began = time.monotonic()
    job.stop(timeout=60)
    # Not a measurement: workers that had to be ended by Spark would take its whole patience.
    assert time.monotonic() - began < 30
