"""The page of a pipeline on Spark: live figures, a kill, a profile, logs of workers, orders with the token."""

from __future__ import annotations

import json
import logging
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock import CallableSink, GeneratorSource, Pipeline, checkpoints
from penstock.dashboard.sights.stored import StoredSight
from penstock.dashboard.tokens import FILE
from penstock.storage.lease import owner_of

PATIENCE_S = 240.0


def numbers(start: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"n": range(start, start + count), "key": [n % 5 for n in range(start, start + count)]})


def warned(batch: pa.RecordBatch) -> pa.RecordBatch:
    if batch.column("n")[0].as_py() == 0:
        logging.getLogger("of.the.user").warning("the first row is here")
    return batch


def until(found: Callable[[], Any]) -> Any:
    limit = time.monotonic() + PATIENCE_S
    while not (value := found()):
        assert time.monotonic() < limit, "it never came"
        time.sleep(0.1)
    return value


def test_a_page_shows_a_pipeline_on_spark_through_a_kill_to_its_end(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pipeline = Pipeline("shown")
    source = pipeline.source(GeneratorSource(numbers, rows_per_second=5_000), name="numbers")
    source.map(warned, name="warned").key_by("key").sum("n", name="sums").sink(CallableSink(len), name="out")
    job = pipeline.start(spark, tmp_path, workers=1, parallelism=1, checkpoint_interval="1 s", ui_port=0)
    try:
        page = until(lambda: (owner := owner_of(checkpoints.open(tmp_path).store)) and owner.page)
        assert page in capfd.readouterr().err

        def asked(path: str, data: bytes | None = None, **headers: str) -> Any:
            request = urllib.request.Request(f"{page}/api/v1/{path}", data, headers)
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return json.loads(answer.read())

        until(lambda: asked("overview")["last_checkpoint"] and asked("overview")["rows_in_per_second"])
        [worker] = asked("workers")["workers"]
        assert worker["pid"] == job.worker_processes[0] and worker["memory_bytes"] > 1 << 20
        profile = asked("workers/0/profile", b'{"seconds": 0.5}')
        assert profile["samples"] > 0 and profile["stacks"][0]["frames"][0]["function"] == "run_worker"
        line = until(lambda: [each for each in asked("logs")["lines"] if each["worker"] == 0])[0]
        assert (line["text"], line["operator"]) == ("the first row is here", "warned")

        # On a slow machine an attempt may have failed before.
        attempts = len(asked("recoveries")["generations"])
        os.kill(asked("workers")["workers"][0]["pid"], signal.SIGKILL)
        until(lambda: len(asked("recoveries")["generations"]) > attempts and asked("overview")["phase"] == "running")
        now, before, *_ = asked("recoveries")["generations"]
        assert before["failure"]["summary"] and now["restored_checkpoint"] is not None
        assert {"starting workers", "restoring", "running"} <= {each["name"] for each in now["phases"]}

        with pytest.raises(urllib.error.HTTPError, match="403"):
            asked("drain", b"")
        token = (tmp_path / FILE).read_text().strip()
        assert asked("drain", b"", Authorization=f"Bearer {token}")["order"] == "drain"
        assert job.wait(timeout=PATIENCE_S)
    finally:
        job.stop(timeout=PATIENCE_S)
    left = StoredSight(checkpoints.open(tmp_path))
    assert left.overview().rows_in == job.status.rows_in and len(left.recoveries().generations) > attempts
    with pytest.raises(OSError):
        urllib.request.urlopen(page, timeout=10)
