"""A Spark session for a benchmark, and what the processes of a pipeline need."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.spark.job import Job

_ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Bench:
    """Where one run of a benchmark takes place."""

    spark: SparkSession
    checkpoints: str
    notes: str


@contextlib.contextmanager
def bench(slots: int) -> Iterator[Bench]:
    """A session with so many slots that has run nothing before, and two empty directories."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as root:
        directories = [Path(root) / name for name in ("checkpoints", "notes")]
        for directory in directories:
            directory.mkdir()
        spark = session(slots)
        try:
            yield Bench(spark, *map(str, directories))
        finally:
            spark.stop()


def session(slots: int) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    builder = SparkSession.builder.master(f"local[{slots}]").appName("penstock benchmarks")
    for key in ("spark.ui.enabled", "spark.ui.showConsoleProgress"):
        builder = builder.config(key, "false")
    for key in ("spark.driver.host", "spark.driver.bindAddress"):
        builder = builder.config(key, "127.0.0.1")
    return builder.config("spark.log.level", "OFF").getOrCreate()


def wait_watching_memory(job: Job) -> float:
    """Wait for the end of a job; returns the memory of its largest worker at its peak, in MB."""
    memory = 0.0
    while not job.wait(0.25):
        memory = max(memory, peak_memory_mb(job))
    return memory


def peak_memory_mb(job: Job) -> float:
    """The memory of the largest worker that runs now, at its peak so far."""
    return max((_peak_memory_mb(process) for process in job.worker_processes.values()), default=0.0)


def _peak_memory_mb(process: int) -> float:
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0.0
    return max((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM")), default=0.0)
