"""What a commit of each table sink costs: `python -m benchmarks.table_commits [DSN]`. In this process, without Spark.

Rows are staged as by a writer, which is not measured; then the committer publishes them, as the driver does with each
checkpoint. Each line is one sink and one number of rows: the median time of a commit, and the processor time of it in
this process, among commits to a table that has some already. Sinks take turns, so that other work on the machine
counts for all of them alike. PostgreSQL takes part if the address of a server is given; its tables are made and
dropped there.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock import DeltaSink, IcebergSink, PostgresSink, Sink
from penstock.ids import CheckpointId, Generation

_ROUNDS = 11
_WARM = 2
"""Rounds that do not count: the table is made in them, and code is loaded."""
_SIZES = (1_000, 100_000)
_KEYS = 200_000
"""Keys of the upserts: about half of the rows of a checkpoint replace a row."""


def rows(start: int, count: int) -> pa.RecordBatch:
    numbers = np.arange(start, start + count)
    keys = (numbers * 7919) % _KEYS
    return pa.record_batch({"k": keys, "n": numbers, "amount": numbers * 0.5})


def changes(start: int, count: int) -> pa.RecordBatch:
    """Every tenth row is deleted."""
    batch = rows(start, count)
    ops = np.where(np.arange(count) % 10 == 0, "delete", "update")
    return batch.append_column("op", pa.array(ops.tolist()))


Made = tuple[str, Callable[[], Sink], Callable[[int, int], pa.RecordBatch]]


def table_sinks(home: Path, size: int, dsn: str | None) -> list[Made]:
    catalog = {"type": "sql", "uri": f"sqlite:///{home}/{size}.db", "warehouse": f"file://{home}/{size}"}
    schema = "k bigint, n bigint, amount double"
    upsert: dict[str, Any] = {"mode": "upsert", "key": "k", "by": "n"}
    made: list[Made] = [
        ("Delta append", lambda: DeltaSink(home / f"{size}-append"), rows),
        ("Delta upsert", lambda: DeltaSink(home / f"{size}-upsert", **upsert), changes),
        ("Iceberg append", lambda: IcebergSink(catalog, "b.append", schema=schema), rows),
        ("Iceberg upsert", lambda: IcebergSink(catalog, "b.upsert", schema=schema, **upsert), changes),
    ]
    if dsn is not None:
        made += [
            ("PostgreSQL append", lambda: PostgresSink(dsn, "penstock_bench_append"), rows),
            ("PostgreSQL upsert", lambda: PostgresSink(dsn, "penstock_bench_upsert", **upsert), changes),
        ]
    return made


@contextmanager
def database(dsn: str | None) -> Iterator[None]:
    if dsn is None:
        yield
        return
    import psycopg

    names = "penstock_bench_append", "penstock_bench_upsert"
    with psycopg.connect(dsn, autocommit=True) as connection:
        for name, key in zip(names, ("", " PRIMARY KEY"), strict=True):
            connection.execute(f"DROP TABLE IF EXISTS {name}")
            connection.execute(f"CREATE TABLE {name} (k bigint{key}, n bigint, amount float8)")
        try:
            yield
        finally:
            for name in names:
                connection.execute(f"DROP TABLE IF EXISTS {name}")


def measured(home: Path, size: int, dsn: str | None) -> None:
    trials = []
    for name, make, batch_of in table_sinks(home, size, dsn):
        sink = make()
        committer = sink.committer()
        assert committer is not None
        trials.append((name, committer, sink.writer(0, Generation(1)), batch_of, [], []))
    for number in range(_ROUNDS):
        for _, committer, writer, batch_of, walls, works in trials:
            writer.write(batch_of(number * size, size))
            committables = list(writer.prepare()())
            wall, work = time.perf_counter(), time.process_time()
            committer.commit(CheckpointId(number + 1), committables)
            walls.append(time.perf_counter() - wall)
            works.append(time.process_time() - work)
    for name, _, writer, _, walls, works in trials:
        writer.close()
        wall, work = (statistics.median(each[_WARM:]) * 1000 for each in (walls, works))
        print(f"{name:20} {size:9,} rows {wall:9.1f} ms   of the processor {work:9.1f} ms")


def main() -> None:
    dsn = sys.argv[1] if len(sys.argv) > 1 else None
    if dsn is None:
        print("PostgreSQL is left out: give the address of a server, as postgresql://user@host/database")
    for size in _SIZES:
        with tempfile.TemporaryDirectory() as home, database(dsn):
            measured(Path(home), size, dsn)


if __name__ == "__main__":
    main()
