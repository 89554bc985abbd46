"""The demonstration: a pipeline on local Spark that is killed twice and loses nothing.

`make demo` runs it. For about a minute, orders are numbered per customer, with keyed state, while a slow step holds
the whole pipeline up. Twice, one of its workers is killed with SIGKILL. Then it is stopped with a savepoint, and its
Parquet output is checked with a Spark query against what the sources say they have read.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from penstock import GeneratorSource, Job, KeyedFunction, ParquetSink, Pipeline
from penstock import checkpoints as penstock_checkpoints

CUSTOMERS = 200


def orders(start: int, count: int) -> pa.RecordBatch:
    """Orders number `start` to `start + count - 1`: a function of the numbers alone, so that they can be replayed."""
    number = np.arange(start, start + count)
    return pa.record_batch({"order": number, "customer": number * 2654435761 % CUSTOMERS, "amount": number % 97 / 4})


class NumberOrders(KeyedFunction):
    """Numbers the orders of each customer, and adds up what they come to."""

    def open(self, context):  # type: ignore[no-untyped-def]
        self.account = context.value("account", "orders bigint, total double")

    def process(self, key, rows, context):  # type: ignore[no-untyped-def]
        count, total = self.account.get() or (0, 0.0)
        running = total + np.cumsum(rows["amount"].to_numpy())
        self.account.update((count + rows.num_rows, float(running[-1])))
        numbers = np.arange(count + 1, count + 1 + rows.num_rows)
        return rows.append_column("nth", pa.array(numbers)).append_column("running_total", pa.array(running))


def slowly(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Stands for a slow service: slow for ten seconds, quick for five, and so on."""
    is_slow = time.time() % 15 < 10
    time.sleep(batch.num_rows * (50e-6 if is_slow else 5e-6))
    return batch


def pipeline(output: str) -> Pipeline:
    made = Pipeline("demo")
    (
        made.source(GeneratorSource(orders, splits=2), name="orders")
        .key_by("customer")
        .process(NumberOrders(), name="number")
        .rebalance()
        .map(slowly, name="slow service")
        .sink(ParquetSink(output), name="parquet")
    )
    return made


def say(text: str) -> None:
    print(text, flush=True)


def watch(job: Job, seconds: float, started: float) -> None:
    """Tell how it goes, once every two seconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if job.wait(min(2.0, max(0.0, until - time.monotonic()))):
            raise SystemExit("the pipeline ended by itself, which it should not have")
        status = job.status
        done = [record for record in job.checkpoints() if record.is_completed]
        last = "none yet"
        if done:
            kind = "unaligned" if done[-1].is_unaligned else "aligned"
            inflight = f", {done[-1].inflight_bytes / 1e6:.1f} MB in flight" if done[-1].inflight_bytes else ""
            last = f"{done[-1].checkpoint} ({kind}, {done[-1].duration_ms} ms{inflight})"
        say(
            f"  {time.monotonic() - started:5.1f} s  {status.phase.value:<18} in {status.rows_in:>9,}  "
            f"out {status.rows_out:>9,}  backpressure {status.backpressure_percent:>3} %  checkpoint {last}"
        )


def kill_a_worker(job: Job, number: int) -> None:
    await_that(lambda: job.worker_processes and completed(job) > 0, "a checkpoint to fall back to")
    worker, process = sorted(job.worker_processes.items())[number % len(job.worker_processes)]
    say(f"  >>> kill -9 {process}, which is worker {worker}")
    restarts = job.status.restarts
    os.kill(process, signal.SIGKILL)
    await_that(lambda: job.status.restarts > restarts, "the restart")
    before = completed(job)
    began = time.monotonic()
    await_that(lambda: completed(job) > before, "a checkpoint after the restart")
    say(f"  >>> recovered: the next checkpoint was complete {time.monotonic() - began:.1f} s after the restart began")


def completed(job: Job) -> int:
    return sum(record.is_completed for record in job.checkpoints())


def await_that(condition: Callable[[], object], what: str) -> None:
    until = time.monotonic() + 60
    while not condition():
        if time.monotonic() > until:
            raise SystemExit(f"{what} did not come within a minute")
        time.sleep(0.02)


def rows_read(checkpoints: Path, savepoint: int) -> int:
    """How many orders the sources had read at the savepoint, by their own account."""
    positions = penstock_checkpoints.open(checkpoints).read(savepoint).positions()
    return sum(json.loads(offset)["position"] for offset in positions["offset"].to_pylist())


def verify(spark: SparkSession, output: Path, read: int) -> bool:
    """Ask Spark what came out."""
    rows = spark.read.parquet(str(output))
    count, distinct = rows.agg(F.count("*"), F.countDistinct("order")).first()
    per_customer = rows.groupBy("customer").agg(
        F.count("*").alias("rows"), F.max("nth").alias("last"), F.countDistinct("nth").alias("numbers")
    )
    off = per_customer.where("rows <> last or rows <> numbers").count()
    lost, duplicated = read - distinct, count - distinct
    say(f"rows in          {read:>12,}")
    say(f"rows out         {count:>12,}")
    say(f"lost             {lost:>12,}")
    say(f"duplicated       {duplicated:>12,}")
    say(f"customers whose numbers have a gap or a repeat: {off} of {per_customer.count()}")
    return lost == 0 and duplicated == 0 and off == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=55.0, help="how long the pipeline runs")
    parser.add_argument("--keep", metavar="DIR", help="work here and leave everything behind")
    arguments = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    root = Path(arguments.keep or tempfile.mkdtemp(prefix="penstock-demo-"))
    began = time.monotonic()
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("penstock demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    say(f"Spark {spark.version} is up after {time.monotonic() - began:.1f} s. Starting the pipeline.")
    try:
        return run(spark, root, arguments.seconds)
    finally:
        spark.stop()
        if not arguments.keep:
            shutil.rmtree(root, ignore_errors=True)


def run(spark: SparkSession, root: Path, seconds: float) -> int:
    started = time.monotonic()
    job = pipeline(str(root / "output")).start(
        spark,
        checkpoints=str(root / "checkpoints"),
        parallelism=2,
        checkpoint_interval="1 s",
        alignment_timeout="200 ms",
        channel_size="512 KiB",
    )
    watch(job, seconds / 3, started)
    kill_a_worker(job, 0)
    watch(job, seconds / 3, started)
    kill_a_worker(job, 1)
    watch(job, seconds / 3, started)
    say("  >>> stopping with a savepoint")
    savepoint = job.stop(drain=True, timeout=120)
    assert savepoint is not None
    say("Asking Spark what is in the output.")
    is_right = verify(spark, root / "output", rows_read(root / "checkpoints", savepoint))
    done = [record for record in job.checkpoints() if record.is_completed]
    unaligned = sum(record.is_unaligned for record in done)
    restarts = job.status.restarts
    say(f"restarts         {restarts:>12}")
    say(f"checkpoints      {len(done):>12} ({len(done) - unaligned} aligned, {unaligned} unaligned)")
    is_right = is_right and restarts >= 2 and bool(done)
    say("Everything is there exactly once." if is_right else "SOMETHING IS OFF.")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
