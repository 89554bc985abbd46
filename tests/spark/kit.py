"""Running a topology of the simulator on Spark, under backpressure, and judging what comes out."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.spark.job import Job
from penstock.spark.launch import start
from tests.simulation.topologies import TOPOLOGIES, Load, Topology
from tests.spark.world import FileWorld


def build(name: str, root: Path, load: Load) -> tuple[FileWorld, Topology]:
    world = FileWorld(root / "world", load.slow_us)
    return world, TOPOLOGIES[name](world, load)  # type: ignore[arg-type]


def launch(topology: Topology, spark: SparkSession, root: Path, mode: str = "unaligned", **options: object) -> Job:
    defaults: dict[str, object] = {
        "parallelism": 2,
        "workers": 2,
        "checkpoint_interval": 0.1,
        "checkpoint_mode": mode,
        "alignment_timeout": 0.02,
        "worker_silence": 3.0,
        "restart_delay": 0.05,
        "channel_size": 2048,
    }
    return start(topology.graph, spark, root / "checkpoints", **(defaults | options))  # type: ignore[arg-type]


def until(condition: Callable[[], bool], what: str, timeout: float = 240.0) -> None:
    """Wait for something that must happen."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not happen within {timeout} s")
        time.sleep(0.02)


def completed(job: Job) -> int:
    return sum(record.is_completed for record in job.checkpoints())


def inflight_bytes(job: Job) -> int:
    return sum(record.inflight_bytes for record in job.checkpoints())
