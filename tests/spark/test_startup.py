"""Slots of a shared session: a pipeline that has none waits, says so, and names those who hold them."""

from __future__ import annotations

import logging
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.connectors.collect import CollectSink
from penstock.connectors.generator import GeneratorSource
from penstock.driver.attempts.phases import Phase
from penstock.errors import NoFreeSlots
from penstock.pipeline import Pipeline
from penstock.spark.job import Job
from tests.spark.kit import completed, until

pytestmark = pytest.mark.spark


def numbers(first: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"n": range(first, first + count)})


def endless(name: str, spark: SparkSession, root: Path, workers: int, **settings: object) -> Job:
    pipeline = Pipeline(name)
    pipeline.source(GeneratorSource(numbers, rows_per_second=100)).sink(CollectSink())
    job: Job = pipeline.start(spark, root / name, parallelism=workers, checkpoint_interval=0.2, **settings)
    return job


def test_a_pipeline_without_free_slots_waits_and_names_the_one_that_holds_them(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock")
    first = endless("orders", spark, tmp_path, workers=3)
    phases = []

    def has_run() -> bool:
        status = first.status
        phases.append(status.phase)
        return status.phase is Phase.RUNNING

    until(has_run, "the first pipeline", 120)
    assert first.status.rows_in == 0 or Phase.STARTING in phases
    assert "pipeline orders holds 3 of the 4 slots" in caplog.text
    assert (first.status.workers, first.status.slots_total) == (3, 4)

    # In Spark's user interface the pipeline has its name.
    assert spark._sc is not None
    (number,) = spark._sc.statusTracker().getActiveJobsIds()
    data = spark._sc._jsc.sc().statusStore().job(number)
    assert (data.description().get(), data.name()) == ("penstock: orders, generation 1",) * 2

    impatient = endless("totals", spark, tmp_path, workers=2, start_timeout=3)
    until(lambda: impatient.status.phase is Phase.WAITING_FOR_SLOTS, "waiting for slots")
    assert impatient.status.detail == "1 of 2 free"
    with pytest.raises(NoFreeSlots, match="held by penstock: orders, generation 1"):
        impatient.wait(120)
    assert impatient.status.restarts == 0
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any(text.startswith("pipeline totals waits: the pipeline needs 2 slots") for text in warnings)

    patient = endless("patient", spark, tmp_path, workers=2)
    until(lambda: patient.status.phase is Phase.WAITING_FOR_SLOTS, "waiting for slots")
    first.stop()
    until(lambda: completed(patient) > 0, "a checkpoint of the one that waited", 120)
    assert (patient.status.phase, patient.status.restarts) == (Phase.RUNNING, 0)
    patient.stop()
