"""Data sources of PySpark on real Spark: read, killed, written, and every row is there once."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock import Pipeline, SparkSink, SparkSource
from penstock.ids import WorkerId
from tests.spark.kit import completed, until
from tests.unit.connectors.spark.data_sources import Files, Numbers

pytestmark = pytest.mark.spark

COUNT = 3000


def test_a_kill_loses_and_repeats_nothing(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    pipeline = Pipeline("numbers")
    source = SparkSource(Numbers, {"count": COUNT, "step": 100}, mode="available_now")
    pipeline.source(source, name="numbers").rebalance().sink(
        SparkSink(Files, {"path": out, "delay": 0.001}), name="out"
    )
    job: Any = pipeline.start(
        spark,
        checkpoints=str(tmp_path / "checkpoints"),
        parallelism=2,
        checkpoint_interval=0.2,
        channel_size=4096,
        restart_delay=0.05,
        worker_silence=3.0,
    )
    until(lambda: completed(job) >= 2, "two checkpoints")
    os.kill(job.worker_processes[WorkerId(0)], signal.SIGKILL)
    until(lambda: job.status.restarts >= 1, "the restart")
    assert job.wait(120)
    lines = [line for path in out.glob("[0-9]*.jsonl") for line in path.read_text(encoding="utf-8").splitlines()]
    assert sorted(json.loads(line)["n"] for line in lines) == list(range(COUNT))
