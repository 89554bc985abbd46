"""From `kill -9` of a worker to new output: `python -m benchmarks.recovery GROUPS [PARALLELISM]`.

A keyed sum with GROUPS keys in its state runs as fast as it can, with 1 s checkpoints. After the first checkpoint that
holds all of them one worker is killed. Times are from the kill: `noticed`, until the supervisor has begun a restart;
`up`, until all new workers have reported to the driver; `out`, until the first record was written by a sink;
`checkpoint`, until a new checkpoint was complete. `spark` is what Spark needs for the same without us, measured in the
same session right before: a barrier job of `mapInArrow` whose Python worker is killed, from the kill until the
functions of a second such job run. `beyond` is `out` less `spark`. Then the pipeline is drained and its state verified.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.checked import Checked, note, noted
from benchmarks.session import bench
from benchmarks.state_snapshot import EachInTurn, Nothing
from benchmarks.work import keyed_totals, require_equal
from penstock import GeneratorSource, Pipeline
from penstock.spark.job import Job

_PATIENCE_S = 120


def until(condition: Callable[[], object], what: str) -> float:
    """Wait for something; returns when it was so."""
    end = time.time() + _PATIENCE_S
    while not condition():
        if time.time() > end:
            raise SystemExit(f"{what} did not come within {_PATIENCE_S} s")
        time.sleep(0.005)
    return time.time()


# --- Spark alone ---


def spark_restart_s(spark: SparkSession, workers: int, notes: str) -> float:
    """How long Spark takes to notice that a Python worker was killed, and to run the functions of another job."""

    def job(name: str) -> threading.Thread:
        def run() -> None:
            with contextlib.suppress(Exception):
                spark.range(0, workers, 1, workers).mapInArrow(_stay(notes, name), "n long", barrier=True).collect()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def processes(name: str) -> list[int]:
        return [int(path.name.rsplit("-", 1)[1]) for path in Path(notes).glob(f"{name}-*")]

    first = job("spark1")
    until(lambda: len(processes("spark1")) == workers, "Spark's first job")
    time.sleep(0.5)
    killed = time.time()
    os.kill(processes("spark1")[0], signal.SIGKILL)
    first.join(_PATIENCE_S)
    second = job("spark2")
    up = until(lambda: len(processes("spark2")) == workers, "Spark's second job")
    (Path(notes) / "leave").touch()
    second.join(_PATIENCE_S)
    return up - killed


def _stay(notes: str, name: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def stay(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        note(notes, name, str(os.getpid()))
        for batch in batches:
            while not (Path(notes) / "leave").exists():
                time.sleep(0.01)
            yield pa.RecordBatch.from_pydict({"n": batch.column(0)})

    return stay


# --- the pipeline ---


def pipeline(groups: int, splits: int, notes: str) -> Pipeline:
    made, sink = Pipeline("bench-recovery"), Checked(Nothing, notes)
    stream = made.source(GeneratorSource(EachInTurn(groups), splits=splits), name="source")
    stream.key_by("k").aggregate(total=("sum", "v"), rows="count", name="sum").sink(sink, name="sink")
    return made


def completed(job: Job) -> int:
    return max((record.checkpoint for record in job.checkpoints() if record.is_completed), default=0)


def _are_up(job: Job, parallelism: int, victim: int) -> bool:
    processes = job.worker_processes.values()
    return len(processes) == parallelism and victim not in processes


def run(groups: int, parallelism: int = 2) -> str:
    with bench(parallelism) as place:
        spark_s = spark_restart_s(place.spark, parallelism, place.notes)
        job = pipeline(groups, parallelism, place.notes).start(
            place.spark,
            checkpoints=place.checkpoints,
            parallelism=parallelism,
            checkpoint_interval=1.0,
            worker_silence=30,
        )
        until(lambda: job.status.rows_in > 3 * parallelism * groups, "the state")
        full = completed(job)
        until(lambda: completed(job) > full + 1, "a checkpoint of the whole state")
        before = completed(job)
        victim = min(job.worker_processes.values())
        killed = time.time()
        os.kill(victim, signal.SIGKILL)
        noticed = until(lambda: job.status.restarts, "the restart")
        # Spark may take the process of a worker that was not killed for a new one.
        up = until(lambda: _are_up(job, parallelism, victim), "the new workers")
        after = max(before, completed(job))
        until(lambda: noted(place.notes, "out", up - 1), "output")
        checkpoint = until(lambda: completed(job) > after, "a new checkpoint")
        out = noted(place.notes, "out", killed)[0]
        read_ms = job.status.recovery.read_ms if job.status.recovery is not None else None
        job.stop(drain=True, timeout=120)
        found = keyed_totals(place.checkpoints)
        require_equal(found, {"rows": found["rows"], "total": found["rows"], "groups": groups})
    times = {"noticed": noticed, "up": up, "out": out, "checkpoint": checkpoint}
    shown = " ".join(f"{name}={at - killed:.3f}s" for name, at in times.items())
    return (
        f"penstock recovery groups={groups} p={parallelism} {shown} spark={spark_s:.3f}s "
        f"beyond={out - killed - spark_s:.3f}s read={read_ms or 0}ms verified"
    )


def main() -> None:
    groups, *parallelism = map(int, sys.argv[1:])
    print(run(groups, *parallelism), flush=True)


if __name__ == "__main__":
    main()
