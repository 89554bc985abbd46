"""A user's script in a process of its own, for tests of what such a process prints and how it takes Ctrl-C.

    python -m tests.spark.script DIRECTORY SCENE

Standard output has one line for each thing that the test waits for; all else goes to standard error.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.connectors.collect import CollectSink
from penstock.connectors.generator import GeneratorSource
from penstock.pipeline import Pipeline
from penstock.spark.interrupts import HANDLER
from penstock.spark.job import Job


def numbers(first: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"n": range(first, first + count)})


def raises(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.append_column("m", batch.column("typo"))


def say(text: str) -> None:
    print(text, flush=True)


def start(spark: SparkSession, name: str, directory: str, function: Any = None, **settings: Any) -> Job:
    pipeline = Pipeline(name)
    stream = pipeline.source(GeneratorSource(numbers, rows_per_second=1000))
    if function is not None:
        stream = stream.map(function, name="enrich")
    stream.sink(CollectSink())
    job: Job = pipeline.start(spark, f"{directory}/{name}", parallelism=2, checkpoint_interval=0.3, **settings)
    return job


def await_checkpoint(job: Job) -> None:
    while not any(record.is_completed for record in job.checkpoints()):
        assert not job.wait(0.05)


def error_of(job: Job) -> str:
    try:
        job.wait()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def say_when_waiting() -> None:
    while not HANDLER.is_waiting:
        time.sleep(0.05)
    say("waiting")


def typo(spark: SparkSession, directory: str) -> None:
    """A function with a typo ends the pipeline. The session is warm: this counts from the start of the pipeline."""
    spark.range(1).collect()
    sys.stderr.write("--- typo begins\n")
    began = time.monotonic()
    say(error_of(start(spark, "typo", directory, raises)).splitlines()[0])
    say(f"took {time.monotonic() - began:.1f}")
    sys.stderr.write("--- typo ends\n")


def interrupted(spark: SparkSession, directory: str) -> None:
    """Somebody presses Ctrl-C, first while another query of the session runs, then in `wait`."""
    job = start(spark, "interrupted", directory)
    await_checkpoint(job)
    try:
        say("busy")
        while True:
            time.sleep(0.05)
    except KeyboardInterrupt:
        say("KeyboardInterrupt")
    time.sleep(2.0)
    say(f"restarts {job.status.restarts}")
    # Said when it waits, and not just before: until then Ctrl-C is for the script.
    threading.Thread(target=say_when_waiting, daemon=True).start()
    say(f"waited {job.wait()}")
    say(f"phase {job.status.phase.value}")
    assert not Path(f"{directory}/interrupted/owner.json").exists()


def stopped(spark: SparkSession, directory: str) -> None:
    """The session is stopped under the pipeline."""
    job = start(spark, "stopped", directory)
    await_checkpoint(job)
    spark.stop()
    say(error_of(job))
    say(f"restarts {job.status.restarts}")
    assert not Path(f"{directory}/stopped/owner.json").exists()


def unfit(spark: SparkSession, directory: str) -> None:
    """The Python of the workers has not even pyarrow."""
    job = start(spark, "unfit", directory)
    say(error_of(job))
    say(f"restarts {job.status.restarts}")


SCENES = {"typo": typo, "interrupted": interrupted, "stopped": stopped, "unfit": unfit}


def main(directory: str, *scenes: str) -> None:
    # Four slots, so that the pipelines leave some; with its progress bar, as in a user's script.
    builder = SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.memory", "1g").getOrCreate()
    for scene in scenes:
        SCENES[scene](spark, directory)


if __name__ == "__main__":
    main(*sys.argv[1:])
