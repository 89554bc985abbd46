"""Questions of Nexmark on real Spark, with a worker that is killed on the way, and DuckDB as the judge."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from examples.nexmark.events import Events
from examples.nexmark.queries import QUERIES
from penstock import Pipeline
from penstock.ids import WorkerId
from penstock.testing import CollectSink
from tests.nexmark.judge import differences
from tests.nexmark.questions import QUESTIONS
from tests.spark.kit import completed, until

pytestmark = pytest.mark.spark

ON_SPARK = ("q5", "q20")
"""Windows with timers behind them, and a join whose state grows."""


@pytest.mark.parametrize("name", ON_SPARK)
def test_the_answer_is_that_of_duckdb_although_a_worker_is_killed(
    name: str, spark: SparkSession, tmp_path: Path
) -> None:
    pipeline, output = Pipeline(f"nexmark {name}"), CollectSink()
    # At this rate there is something left to do when the worker is killed, on a fast machine too.
    question = QUESTIONS[name]
    QUERIES[name](Events(pipeline, question.events, shape=question.shape, rate=4_000)).sink(output)
    job = pipeline.start(spark, tmp_path, parallelism=2, checkpoint_interval=0.2, restart_delay=0.05)
    until(lambda: completed(job) >= 2, "two checkpoints", 200)
    os.kill(job.worker_processes[WorkerId(0)], signal.SIGKILL)
    assert job.wait(200)
    assert (job.status.restarts, job.status.rows_late) == (1, 0)
    assert differences(question, output.batches()) == []
