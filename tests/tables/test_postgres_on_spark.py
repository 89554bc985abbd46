"""PostgreSQL as a source on Spark: workers, and then the driver, are killed while the table changes.

The judge is the history of the table: a trigger keeps each change in the transaction that makes it. Every version of a
row has its own number, so that a change that is lost or comes twice is seen as such.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow.parquet as pq
import pytest

from penstock import checkpoints
from penstock.errors import OptionError, StorageError
from tests.components import bound, required_package
from tests.spark.kit import until
from tests.tables.conftest import PostgresServer

psycopg = required_package("psycopg")

pytestmark = [pytest.mark.spark, pytest.mark.timeout(2400)]

_NAME = "orders_on_spark"
_CUSTOMERS = 20
_FIRST_ROWS = 3000
_PATIENCE_S = 900
_WAL_BYTES = 1 << 20
"""Log that a slot may keep when nothing is changed any more: a part of one of the server's files."""

Change: TypeAlias = tuple[str, int, int, int, int]
"""Operation, id, customer, amount, and the number of the row's version."""


class Orders:
    """A table, and what is done to it: by two threads, until they are told to stop."""

    def __init__(self, server: PostgresServer) -> None:
        self.dsn = server.dsn()
        self.failed: list[BaseException] = []
        columns = "id bigint, customer bigint, amount bigint, version bigint"
        for statement in (
            "CREATE SEQUENCE versions",
            f"CREATE TABLE {_NAME} ({columns}, PRIMARY KEY (id))",
            f"ALTER TABLE {_NAME} REPLICA IDENTITY FULL",
            f"CREATE TABLE history (number bigserial PRIMARY KEY, op text, {columns})",
            f"CREATE TABLE {_NAME}_totals (customer bigint PRIMARY KEY, orders bigint, total bigint)",
            f"CREATE PUBLICATION {_NAME} FOR TABLE {_NAME}",
            "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "IF TG_OP <> 'INSERT' THEN INSERT INTO history SELECT nextval('history_number_seq'), 'delete', OLD.*; "
            "END IF; IF TG_OP <> 'DELETE' THEN INSERT INTO history SELECT nextval('history_number_seq'), 'insert', "
            "NEW.*; END IF; RETURN NULL; END $$",
            f"CREATE TRIGGER keep AFTER INSERT OR UPDATE OR DELETE ON {_NAME} FOR EACH ROW EXECUTE FUNCTION keep()",
            f"INSERT INTO {_NAME} SELECT n, n % {_CUSTOMERS}, n % 97, nextval('versions') "
            f"FROM generate_series(1, {_FIRST_ROWS}) n",
        ):
            self(statement)
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in range(2)]

    def __call__(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def changing(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            for thread in self._threads:
                thread.join(60)

    def _write(self, number: int) -> None:
        """Each thread has its rows: those whose id is odd, or even."""
        rng = random.Random(number)
        fresh = 100_000 + number
        try:
            with psycopg.connect(self.dsn) as connection:
                while not self._is_over.wait(0.05):
                    for _ in range(rng.choice((1, 1, 3, 40))):
                        fresh += 2
                        old = 2 * rng.randrange(_FIRST_ROWS // 2) + number if rng.random() < 0.5 else fresh - 20
                        customer = rng.randrange(_CUSTOMERS)
                        for statement, values in (
                            (f"INSERT INTO {_NAME} VALUES (%s, %s, %s, nextval('versions'))", (fresh, customer, 7)),
                            (
                                f"UPDATE {_NAME} SET amount = amount + 1, customer = %s, version = nextval('versions') "
                                f"WHERE id = %s",
                                (customer, old),
                            ),
                            (f"DELETE FROM {_NAME} WHERE id = %s", (fresh - 40 if rng.random() < 0.7 else old,)),
                        ):
                            connection.execute(statement, values)
                    connection.rollback() if rng.random() < 0.1 else connection.commit()
        except BaseException as error:
            self.failed.append(error)

    def history(self, after: int = 0) -> list[Change]:
        """The changes that are in the history, behind a number of it."""
        columns = "op, id, customer, amount, version"
        return self(f"SELECT {columns} FROM history WHERE number > %s", after)  # type: ignore[return-value]

    def newest(self) -> int:
        return int(self("SELECT coalesce(max(number), 0) FROM history")[0][0])

    def totals_are_right(self) -> bool:
        """Whether the totals are those of the table, both as of one moment."""
        ((wrong,),) = self(
            f"SELECT count(*) FROM (SELECT customer, count(*) AS orders, sum(amount)::bigint AS total FROM {_NAME} "
            f"GROUP BY customer) a FULL JOIN {_NAME}_totals b USING (customer) "
            f"WHERE (a.orders, a.total) IS DISTINCT FROM (b.orders, b.total)"
        )
        return bool(wrong == 0)

    def confirmed(self) -> int | None:
        """The place in the log up to which the server was told that it may forget; None without a slot."""
        found = self("SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = %s", _NAME)
        return int(found[0][0]) if found and found[0][0] is not None else None

    def kept_bytes(self) -> int:
        self("CHECKPOINT")
        return int(
            self("SELECT pg_current_wal_lsn() - restart_lsn FROM pg_replication_slots WHERE slot_name = %s", _NAME)[0][
                0
            ]
        )


class Follower:
    """The program in a process of its own, and what it has said."""

    def __init__(self, orders: Orders, directory: Path) -> None:
        command = [sys.executable, "-m", "tests.tables.follower", orders.dsn, _NAME, str(directory)]
        with open(directory / "stderr", "ab") as errors:
            self.process = subprocess.Popen(bound(command), stdout=subprocess.PIPE, stderr=errors, text=True)
        self.workers: list[int] = []
        self.lives = 0
        """How many sets of workers there were."""
        self.completed = 0
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.startswith("{"):
                continue
            said = json.loads(line)
            self.completed = said.get("completed", self.completed)
            if "workers" in said:
                self.workers = said["workers"]
                self.lives += 1

    def await_checkpoints(self, count: int) -> None:
        """Until so many more are complete."""
        wanted = self.completed + count
        until(lambda: self.completed >= wanted or self.has_ended(), f"checkpoint {wanted}", _PATIENCE_S)
        assert not self.has_ended(), "the driver has ended by itself"

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def kill_worker(self, which: int) -> None:
        lives = self.lives
        os.kill(self.workers[which], signal.SIGKILL)
        until(lambda: self.lives > lives or self.has_ended(), "other workers", _PATIENCE_S)

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> int:
        code = self.process.wait(_PATIENCE_S)
        self._thread.join(60)
        return code


class SlotWatch:
    """Holds the slot against the checkpoints, again and again, until it is told to stop.

    The slot is looked at first: whatever it has confirmed, a checkpoint that is found afterwards must be behind it.
    """

    def __init__(self, orders: Orders, directory: Path) -> None:
        self._orders = orders
        self._directory = directory / "checkpoints"
        self._is_over = threading.Event()
        self.is_complete = False
        """Whether a checkpoint holds all rows that were there."""
        self.confirmed: list[int] = []
        self.too_early: list[str] = []
        self.failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> SlotWatch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join(60)

    def _run(self) -> None:
        try:
            while not self._is_over.wait(0.02):
                confirmed = self._orders.confirmed()
                durable = self._durable()
                if confirmed is None or durable is None:
                    continue
                if confirmed > durable:
                    self.too_early.append(f"{confirmed} was confirmed, and {durable} was durable")
                if not self.confirmed or confirmed != self.confirmed[-1]:
                    self.confirmed.append(confirmed)
        except BaseException as error:
            self.failed.append(error)

    def _durable(self) -> int | None:
        try:
            positions = checkpoints.open(self._directory).read().positions().to_pylist()
        except (OptionError, StorageError):
            return None
        offset = json.loads(positions[0]["offset"])
        self.is_complete = self.is_complete or bool(offset and offset["is_complete"])
        return int(offset["lsn"]) if offset else None


def test_rows_and_changes_come_once_although_workers_and_drivers_are_killed_and_the_slot_waits_for_checkpoints(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    orders = Orders(postgres_server)
    with SlotWatch(orders, tmp_path) as watch, contextlib.ExitStack() as lives:

        def start() -> Follower:
            made = Follower(orders, tmp_path)
            lives.callback(made.process.kill)
            return made

        with orders.changing():
            follower = start()
            follower.await_checkpoints(2)
            until(lambda: watch.is_complete, "the end of the rows that are there", _PATIENCE_S)
            # Behind this number of the history are changes that were made when all rows had been read.
            settled = orders.newest()
            for which in (0, 1):
                follower.kill_worker(which)
                follower.await_checkpoints(2)
            follower.kill()
            time.sleep(0.5)
            follower = start()
            follower.await_checkpoints(1)
            follower.kill_worker(0)
            follower.kill()
            follower = start()
            follower.await_checkpoints(3)
        assert not orders.failed
        until(orders.totals_are_right, "the totals of the table", _PATIENCE_S)
        until(lambda: orders.kept_bytes() < _WAL_BYTES, "the end of the log that the slot keeps", _PATIENCE_S)
        (tmp_path / "stop").touch()
        assert follower.end() == 0, (tmp_path / "stderr").read_text()[-3000:]
    assert not watch.failed
    assert not watch.too_early
    assert len(watch.confirmed) > 5
    judge(orders, tmp_path, settled)


def judge(orders: Orders, directory: Path, settled: int) -> None:
    """Hold the changes that were published against the history of the table."""
    history = orders.history()
    rows = pq.ParquetDataset(directory / "changes").read().select(["op", "id", "customer", "amount", "version"])
    found = Counter(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    assert found
    repeated = [change for change, count in found.items() if count > 1]
    assert not repeated, f"{len(repeated)} changes came twice, such as {repeated[:5]}"
    surplus = found - Counter(history)
    assert not surplus, f"{surplus.total()} changes were never made, such as {list(surplus)[:5]}"
    later = orders.history(settled)
    lost = Counter(later) - found
    assert not lost, f"{lost.total()} of {len(later)} changes are lost, such as {list(lost)[:5]}"
    alive: Counter[tuple[int, ...]] = Counter()
    for op, *version in found:
        alive[tuple(version)] += 1 if op == "insert" else -1
    table = Counter(orders(f"SELECT id, customer, amount, version FROM {_NAME}"))
    assert {version: count for version, count in alive.items() if count} == table
    assert len(later) > 500
