"""User code that is stuck on real Spark: checkpoints complete all the same, and a kill loses nothing."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from penstock import GeneratorSource, ParquetSink, Pipeline
from penstock.ids import WorkerId
from tests.spark.kit import completed, until

pytestmark = pytest.mark.spark

ROWS = 4000
STUCK_S = float(os.environ.get("STUCK_SECONDS", "2"))
"""How long the function stays stuck at least. With 60, and `pytest -s`, see how long the checkpoints take."""


def numbers(start: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"n": np.arange(start, start + count)})


class StuckOnce:
    """Stuck in one batch until somebody says so; all other batches pass."""

    def __init__(self, root: str) -> None:
        self.root = root

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if 1234 in batch.column("n").to_pylist():
            (Path(self.root) / "stuck").touch()
            while not (Path(self.root) / "go on").exists():
                time.sleep(0.02)
        return batch


def test_checkpoints_complete_while_a_function_is_stuck_and_a_kill_loses_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = Pipeline("stuck")
    pipeline.source(GeneratorSource(numbers, rows=ROWS, splits=2), name="numbers").map_async(
        StuckOnce(str(tmp_path)), batch_rows=100, name="slow"
    ).sink(ParquetSink(str(tmp_path / "out")), name="out")
    job: Any = pipeline.start(spark, checkpoints=str(tmp_path / "checkpoints"), parallelism=2, checkpoint_interval=0.2)
    until((tmp_path / "stuck").exists, "the function to be stuck")
    before, since = completed(job), time.monotonic()
    until(
        lambda: completed(job) >= before + 5 and time.monotonic() >= since + STUCK_S,
        "five checkpoints meanwhile",
        STUCK_S + 120,
    )
    took = [record.duration_ms for record in job.checkpoints()[before:] if record.is_completed]
    print(f"stuck for {time.monotonic() - since:.0f} s: {completed(job) - before} checkpoints, slowest {max(took)} ms")
    os.kill(job.worker_processes[WorkerId(0)], signal.SIGKILL)
    until(lambda: job.status.restarts >= 1, "the restart")
    (tmp_path / "go on").touch()
    assert job.wait(120)
    out = sorted(n for path in (tmp_path / "out").glob("*.parquet") for n in pq.read_table(path)["n"].to_pylist())
    assert out == list(range(ROWS))
