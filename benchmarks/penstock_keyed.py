"""Rows per second of Penstock on the keyed work: `python -m benchmarks.penstock_keyed PARALLELISM ROWS sum|map`.

Prints one line. The time is that of the pipeline from its first record to its end, final checkpoint included, like
the peers' net time; `start` is from `start()` to the first record, on a session that has run nothing before.
The answer is verified: a fast wrong answer is a failure.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.work import expected_totals, pipeline
from penstock.protocol.manifest import Manifest, StateKind
from penstock.runtime.channel_state import decode_batches
from penstock.runtime.directory import Directory
from penstock.spark.job import Job
from penstock.storage import open_store, paths
from penstock.storage.blob import read_segment


def session(slots: int) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    root = str(Path(__file__).resolve().parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    builder = SparkSession.builder.master(f"local[{slots}]").appName("penstock benchmarks")
    for key in ("spark.ui.enabled", "spark.ui.showConsoleProgress"):
        builder = builder.config(key, "false")
    for key in ("spark.driver.host", "spark.driver.bindAddress"):
        builder = builder.config(key, "127.0.0.1")
    return builder.config("spark.log.level", "OFF").getOrCreate()


def peak_memory_mb(process: int) -> float:
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0.0
    return max((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM")), default=0.0)


def run(job: Job) -> tuple[float, float, float]:
    """Wait for the end; returns when the first record was seen, when it ended, and the largest worker in MB."""
    first, memory = 0.0, 0.0
    while not job.wait(0.02):
        if not first and job.status.rows_in:
            first = time.monotonic()
        memory = max([memory, *(peak_memory_mb(process) for process in job.worker_processes.values())])
    return first, time.monotonic(), memory


def verify(checkpoints: str, rows: int) -> None:
    """Look at the keyed state of the final checkpoint."""
    store = open_store(checkpoints)
    directory = Directory(store)
    manifest = directory.manifest_or_void(directory.ids(paths.PathKind.MANIFEST)[-1])
    assert isinstance(manifest, Manifest) and manifest.is_final
    counted, total = 0, 0.0
    for report in manifest.reports:
        for state in report.states:
            if state.kind is StateKind.KEYED:
                for batch in decode_batches(read_segment(store, state.segment)):
                    value = batch.column("value")
                    counted += sum(value.field("count(*)").to_pylist())
                    total += sum(value.field("sum(v)").to_pylist())
    if (counted, total) != expected_totals(rows):
        raise SystemExit(f"WRONG: {counted} rows, sum {total}, expected {expected_totals(rows)}")


def main() -> None:
    parallelism, rows, kind = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    spark = session(parallelism)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as root:
        began = time.monotonic()
        job = pipeline(kind, rows, parallelism).start(
            spark, checkpoints=root, parallelism=parallelism, checkpoint_interval=1.0, worker_silence=30
        )
        first, ended, memory = run(job)
        if kind == "sum":
            verify(root, rows)
        net = ended - first
        done = [record for record in job.checkpoints() if record.reason is None]
        print(
            f"penstock {kind} p={parallelism} rows={rows} net={net:.2f}s {rows / net / 1e6:.3f}M rows/s "
            f"start={first - began:.2f}s checkpoints={len(done)} worker={memory:.0f}MB verified"
        )
    spark.stop()


if __name__ == "__main__":
    main()
