"""More in-flight data than a worker may hold: captured under backpressure, and recovered in bounded memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.session import peak_memory_mb
from penstock import GeneratorSource, Pipeline
from penstock.spark.job import Job
from tests.simulation.records import batch_of
from tests.spark.kit import until
from tests.spark.world import FileWorld

MIB = 1 << 20
_ROW_BYTES = 1024
_PATIENCE_S = 600.0


@dataclass(slots=True)
class Outcome:
    verdict: dict[str, object]
    captured_bytes: int
    """In flight in the checkpoint that was recovered from."""
    left_bytes: int
    """Still to be drained when the first checkpoint of the recovery was complete, as last heard of."""
    first_checkpoint_ms: int
    worker_mib: float
    """The most memory that a worker had while it recovered."""
    idle_mib: float
    """The same for one that recovered nothing."""

    def __str__(self) -> str:
        return (
            f"{self.captured_bytes / MIB:.0f} MiB in flight were captured and recovered; the first checkpoint took "
            f"{self.first_checkpoint_ms} ms, with {self.left_bytes / MIB:.0f} MiB still to be drained; largest worker "
            f"{self.worker_mib:.0f} MiB ({self.idle_mib:.0f} MiB without a recovery); {self.verdict}"
        )


def play(session: Callable[[], SparkSession], root: Path, mib: int, **settings: object) -> Outcome:
    """Fill the channels of a pipeline with `mib` MiB, stop it, and let it recover with channels of 1 MiB.

    `session` is asked for each start: Spark uses its Python processes again, and they do not forget how large they
    once were, so that memory can only be measured in a session of its own.
    """
    rows = mib * MIB // _ROW_BYTES * 5 // 4
    channel_bytes = mib * MIB // 4

    # Nobody gets anything done here: everything that the sources can send is in flight.
    stuck = _start(
        session(), root, rows, 2_000, channel_size=channel_bytes, channel_time=0, inflight_size_max=2 * mib * MIB
    )
    until(lambda: _done(stuck, mib * MIB), f"a checkpoint with {mib} MiB in flight", _PATIENCE_S)
    stuck.stop(timeout=_PATIENCE_S)
    captured = max(record.inflight_bytes for record in stuck.checkpoints() if record.is_completed)

    # Now it is drained slowly, until one more checkpoint is there.
    slow = _start(session(), root, rows, 100, **settings)
    memory, left = 0.0, 0
    while not any(record.is_completed for record in slow.checkpoints()):
        memory, left = max(memory, peak_memory_mb(slow)), _left(slow) or left
        assert not slow.wait(0.01), "it came to its end without a checkpoint"
    first = next(record for record in slow.checkpoints() if record.is_completed)
    time.sleep(mib / 1000)
    memory, left = max(memory, peak_memory_mb(slow)), _left(slow) or left
    slow.stop(timeout=_PATIENCE_S)

    # The rest as fast as it goes, from a checkpoint that refers to what the one before it has captured.
    quick = _start(session(), root, rows, 0, **settings)
    while not quick.wait(0.05):
        memory = max(memory, peak_memory_mb(quick))
    world = FileWorld(root / "world")
    verdict = world.verdict(np.arange(rows, dtype=np.int64))
    return Outcome(verdict, captured, left, first.duration_ms, memory, _idle_memory(session(), root / "idle"))


def _start(spark: SparkSession, root: Path, rows: int, slow_us: int, **settings: object) -> Job:
    pipeline = Pipeline("large")
    source = GeneratorSource(_records, rows=rows, splits=2)
    sink = FileWorld(root / "world", slow_us).sink("out")
    pipeline.source(source, name="source").rebalance().map(_as_it_is, name="map").rebalance().sink(sink, name="sink")
    options: dict[str, object] = {
        "parallelism": 2,
        "checkpoint_interval": 0.5,
        "checkpoint_mode": "unaligned",
        "worker_silence": 60,
        "retained_checkpoints": 1,
    }
    return pipeline.start(spark, checkpoints=root / "checkpoints", **(options | settings))  # type: ignore[no-any-return]


def _records(start: int, count: int) -> pa.RecordBatch:
    numbers = batch_of(np.arange(start, start + count, dtype=np.int64))
    padding = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(_ROW_BYTES - 8), count, [None, pa.py_buffer(bytes((_ROW_BYTES - 8) * count))]
    )
    return numbers.append_column("padding", padding)


def _as_it_is(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def _done(job: Job, bytes_wanted: int) -> bool:
    if job.wait(0):
        raise AssertionError("it came to its end before its channels were full")
    return any(record.is_completed and record.inflight_bytes >= bytes_wanted for record in job.checkpoints())


def _left(job: Job) -> int:
    recovery = job.status.recovery
    return 0 if recovery is None else recovery.bytes_left


def _idle_memory(spark: SparkSession, root: Path) -> float:
    """Of a worker that has the same work without a recovery."""
    job, memory = _start(spark, root, 50_000, 0), 0.0
    while not job.wait(0.01):
        memory = max(memory, peak_memory_mb(job))
    return memory
