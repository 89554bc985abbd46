"""A pipeline of a user who has her project checked: described, started, watched, stopped."""

from __future__ import annotations

from typing import assert_type

from pyspark.sql import SparkSession

from penstock import FileSource, Job, KeyedStream, ParquetSink, Pipeline, Status, Stream, WindowedStream
from penstock.spark.settings import Settings


def described() -> Pipeline:
    pipeline = Pipeline("totals")
    orders = pipeline.source(FileSource("/data/orders"))
    assert_type(orders, Stream)
    by_user = orders.key_by("user")
    assert_type(by_user, KeyedStream)
    by_minute = by_user.window("1 min", on="at")
    assert_type(by_minute, WindowedStream)
    assert_type(by_minute.sum("amount"), Stream)
    assert_type(by_user.aggregate(total=("sum", "amount")), Stream)
    return by_user.sum("amount").sink(ParquetSink("/data/totals"))


def started(spark: SparkSession) -> Job:
    job = described().start(
        spark,
        "/data/checkpoints",
        parallelism=2,
        workers=None,
        restore=17,
        checkpoint_interval="1 s",
        checkpoint_mode="unaligned",
        state_backend="memory",
        retained_checkpoints=5,
        allow_dropped_state=True,
    )
    assert_type(job, Job)
    return job


def watched(job: Job) -> int:
    status = job.status
    assert_type(status, Status)
    assert_type(status.name, str)
    assert_type(status.restarts, int)
    assert_type(status.last_error, str | None)
    assert_type(job.wait(timeout=1.0), bool)
    checkpoint = job.stop(drain=True)
    return 0 if checkpoint is None else checkpoint


def settings() -> Settings:
    made = Settings(checkpoint_interval="1 s", tolerable_failures=3)
    assert_type(made.retained_checkpoints, int)
    assert_type(made.allow_dropped_state, bool)
    assert_type(made.state_backend, str)
    return made
