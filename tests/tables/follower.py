"""A pipeline that follows a table of PostgreSQL, as a driver that can be killed: `python -m tests.tables.follower …`.

    python -m tests.tables.follower DSN TABLE DIRECTORY

The table has a slot and a publication of its name. Its changelog goes to `DIRECTORY/changes` as it is, and added up by
customer to the table `TABLE_totals`. Standard output has a line with the process ids of the workers whenever they are
others, and one for each checkpoint. It runs until `DIRECTORY/stop` exists.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from penstock import ParquetSink, Pipeline, PostgresSink, PostgresSource
from tests.spark.conftest import make_session

PARALLELISM = 2


def pipeline(dsn: str, table: str, directory: Path) -> Pipeline:
    made = Pipeline("follower")
    changes = made.source(PostgresSource(dsn, table, publication=table, slot=table), name="table")
    changes.sink(ParquetSink(directory / "changes"), name="changes")
    totals = changes.key_by("customer").aggregate(orders="count", total=("sum", "amount"), emit="changelog")
    sink = PostgresSink(dsn, f"{table}_totals", mode="upsert", key="customer")
    totals.to_upsert("customer").sink(sink, name="totals")
    return made


def say(what: str, value: object) -> None:
    print(json.dumps({what: value}), flush=True)


def main(dsn: str, table: str, root: str) -> None:
    directory = Path(root)
    spark = make_session(f"local[{PARALLELISM}]")
    job = pipeline(dsn, table, directory).start(
        spark,
        directory / "checkpoints",
        parallelism=PARALLELISM,
        checkpoint_interval=0.2,
        restart_delay=0.05,
        restarts_max=100,
        ui_port=None,
    )
    workers: list[int] = []
    completed = 0
    while not (directory / "stop").exists():
        assert not job.wait(0.05), "the pipeline has ended"
        now = sorted(job.worker_processes.values())
        if len(now) == PARALLELISM and now != workers:
            workers = now
            say("workers", workers)
        newest = max((record.checkpoint for record in job.checkpoints() if record.is_completed), default=0)
        if newest > completed:
            completed = newest
            say("completed", completed)
    job.stop(drain=True, timeout=120)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
