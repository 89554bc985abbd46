"""A user's script on a Spark Connect server. PySpark allows no other session in its process.

    python -m tests.spark.connected DIRECTORY REMOTE

Standard output has one line for each thing that the test waits for; all else goes to standard error.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.connectors.generator import GeneratorSource
from penstock.driver.attempts.phases import Phase
from penstock.errors import NoFreeSlots
from penstock.pipeline import Pipeline
from penstock.spark.job import Job
from penstock.testing import CollectSink


def numbers(first: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"k": [n % 3 for n in range(first, first + count)]})


def say(text: str) -> None:
    print(text, flush=True)


def start(
    spark: SparkSession, directory: str, name: str, rows: int | None, workers: int, timeout: float = 240
) -> tuple[Job, CollectSink]:
    pipeline, output = Pipeline(name), CollectSink()
    source = GeneratorSource(numbers, rows=rows, rows_per_second=None if rows else 500, splits=2)
    pipeline.source(source, name="numbers").key_by("k").count("n", name="count").sink(output, name="output")
    options = {"parallelism": workers, "checkpoint_interval": 0.5, "start_timeout": timeout}
    return pipeline.start(spark, f"{directory}/{name}", **options), output  # type: ignore[arg-type]


def checkpoints_of(job: Job) -> int:
    return sum(record.is_completed for record in job.checkpoints())


def until_checkpoint(job: Job, after: int = 0) -> list[Phase]:
    """The phases until a checkpoint is complete, in their order."""
    phases: list[Phase] = []
    while checkpoints_of(job) <= after:
        phase = job.status.phase
        phases += [phase] if phase not in phases else []
        assert not job.wait(0.02)
    return phases


def finishes(spark: SparkSession, directory: str) -> None:
    job, output = start(spark, directory, "finishes", rows=3_000, workers=1)
    job.wait()
    counts = {k: max(row["n"] for row in output.rows() if row["k"] == k) for k in range(3)}
    say(f"{job.status.phase.value} {job.status.rows_in} {counts}")


def survives(spark: SparkSession, directory: str) -> None:
    job, output = start(spark, directory, "survives", rows=None, workers=2)
    phases = until_checkpoint(job)
    say(f"phases {[phase.value for phase in phases if phase in (Phase.STARTING, Phase.RUNNING)]}")
    say(f"slots {job.status.workers} of {job.status.slots_total}")
    os.kill(job.worker_processes[1], signal.SIGKILL)
    while not job.status.restarts:
        assert not job.wait(0.05)
    until_checkpoint(job, checkpoints_of(job))
    savepoint = job.stop(drain=True)
    status = job.status
    counted = sum(max(row["n"] for row in output.rows() if row["k"] == k) for k in range(3))
    is_last, lost = savepoint == status.last_checkpoint, status.rows_in - counted
    say(f"restarts {status.restarts}, at the savepoint {is_last}, lost {lost}")


def waits(spark: SparkSession, directory: str) -> None:
    job, _ = start(spark, directory, "waits", rows=None, workers=3, timeout=15)
    detail = ""
    while not detail and not job.wait(0.05):
        status = job.status
        detail = status.detail if status.phase is Phase.WAITING_FOR_SLOTS else ""
    say(f"waiting for slots: {detail}")
    try:
        job.wait()
    except NoFreeSlots as error:
        say(f"NoFreeSlots: {error}")


def main(directory: str, remote: str) -> None:
    began = time.monotonic()
    spark = SparkSession.builder.remote(remote).getOrCreate()
    sys.stderr.write(f"connected after {time.monotonic() - began:.1f} s\n")
    for scene in (finishes, survives, waits):
        scene(spark, directory)


if __name__ == "__main__":
    main(*sys.argv[1:])
