"""PostgreSQL as a source, a real server: every row and every change once, through every failure."""

from __future__ import annotations

import datetime
import decimal
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from penstock import DataError, Pipeline, PipelineError, PostgresSink, StorageError
from penstock.connectors.source import Portion, SplitReader
from penstock.storage import MemoryStore
from penstock.testing import CollectSink, check_source, run
from tests.components import required_package
from tests.tables.conftest import PostgresServer

psycopg = required_package("psycopg")

from penstock.connectors.postgres import PostgresSource  # noqa: E402

_NAMES = (f"source{number}" for number in itertools.count())
_PATIENCE_S = 60


class Database:
    """A table with a publication, and the statements of a test."""

    def __init__(self, server: PostgresServer, name: str) -> None:
        self.server = server
        self.name = name

    def __call__(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.server.dsn(), autocommit=True) as connection:
            cursor = connection.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def create(self, columns: str = "id bigint PRIMARY KEY, v text", identity: str = "FULL", extra: str = "") -> None:
        self(f"CREATE TABLE {self.name} ({columns})")
        self(f"ALTER TABLE {self.name} REPLICA IDENTITY {identity}")
        self(f"CREATE PUBLICATION {self.name} FOR TABLE {self.name} {extra}")

    def source(self, **options: Any) -> PostgresSource:
        return PostgresSource(self.server.dsn(), self.name, **{"publication": self.name, "slot": self.name} | options)

    def insert(self, first: int, last: int, text: str = "v") -> None:
        self(f"INSERT INTO {self.name} SELECT n, %s || n FROM generate_series({first}, {last}) n", text)

    def rows(self) -> Counter[tuple[Any, ...]]:
        return Counter(self(f"SELECT * FROM {self.name}"))

    def confirmed(self) -> str:
        return str(self("SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s", self.name)[0][0])


@pytest.fixture
def database(postgres_server: PostgresServer) -> Iterator[Database]:
    made = Database(postgres_server, next(_NAMES))
    yield made
    drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active"
    deadline = time.monotonic() + _PATIENCE_S
    while made("SELECT 1 FROM pg_replication_slots") and time.monotonic() < deadline:
        made(drop)


def applied(changes: Sequence[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """The table that a retracting changelog makes. A row that was taken back too often has a count below zero."""
    counts: Counter[tuple[Any, ...]] = Counter()
    for change in changes:
        row = tuple(value for name, value in change.items() if name != "op")
        counts[row] += 1 if change["op"] == "insert" else -1
    return Counter({row: count for row, count in counts.items() if count})


def read(database: Database, changes: int, *steps: Callable[[], None], **options: Any) -> list[dict[str, Any]]:
    """Rows of a pipeline, until there are `changes`; a step is taken whenever there is something new."""
    output = CollectSink()
    pipeline = Pipeline("read")
    pipeline.source(database.source(**options), name="table").sink(output, name="output")
    left = list(steps)
    seen = -1

    def look() -> bool:
        nonlocal seen
        count = len(output.rows())
        if left and count > seen and (count or not steps):
            seen = count
            left.pop(0)()
        return count >= changes and not left

    run(pipeline, until=look, timeout=_PATIENCE_S)
    return output.rows()


# --- rows and changes ---


def test_the_rows_that_are_there_come_first_and_then_every_change(database: Database) -> None:
    database.create()
    database.insert(1, 3)

    def change() -> None:
        database.insert(4, 4)
        database(f"UPDATE {database.name} SET v = 'new' WHERE id = 2")
        database(f"DELETE FROM {database.name} WHERE id = 1")

    found = [(row["op"], row["id"], row["v"]) for row in read(database, 7, change)]
    assert sorted(found[:3]) == [("insert", 1, "v1"), ("insert", 2, "v2"), ("insert", 3, "v3")]
    assert found[3:] == [("insert", 4, "v4"), ("delete", 2, "v2"), ("insert", 2, "new"), ("delete", 1, "v1")]


def test_an_upserting_changelog_has_one_record_for_an_update_and_two_for_another_key(database: Database) -> None:
    for identity in ("DEFAULT", "FULL"):
        database.create(identity=identity)
        database.insert(1, 2)

        def change() -> None:
            database(f"UPDATE {database.name} SET v = 'new' WHERE id = 1")
            database(f"UPDATE {database.name} SET id = 9 WHERE id = 2")
            database(f"DELETE FROM {database.name} WHERE id = 1")

        found = read(database, 6, change, changelog="upserting")
        changed = [(row["op"], row["id"]) for row in found[2:]]
        assert changed == [("update", 1), ("delete", 2), ("insert", 9), ("delete", 1)], identity
        assert found[5]["v"] == (None if identity == "DEFAULT" else "new")
        database.name = next(_NAMES)


def test_values_of_every_kind_are_the_same_in_the_snapshot_and_in_the_log(database: Database) -> None:
    database.create(
        "id bigint PRIMARY KEY, i int, s smallint, f float8, g real, t text, b bool, d date, at timestamptz, "
        "plain timestamp, x numeric(10, 2), y bytea, u uuid, j jsonb, free numeric, hour time, tags int[], "
        'doubled bigint GENERATED ALWAYS AS (id * 2) STORED, "odd ""name" varchar(5)'
    )
    columns = 'i, s, f, g, t, b, d, at, plain, x, y, u, j, free, hour, tags, "odd ""name"'
    values = (
        "-5, 7, 1.5, 0.1, E'a\"b,\\nc\\\\ü', true, '2026-01-02', '2026-01-02 03:04:05.678901+02', "
        "'1999-12-31 23:59:59', 1.25, '\\x00ff', '11111111-2222-3333-4444-555555555555', '{\"a\": 1}', 1.250, "
        "'12:30:00.5', '{1,2}', 'odd'"
    )

    def insert(first: int) -> None:
        database(f"INSERT INTO {database.name} (id, {columns}) VALUES ({first}, {values})")
        database(f"INSERT INTO {database.name} (id, t, y) VALUES ({first + 1}, '', '')")
        database(f"INSERT INTO {database.name} (id) VALUES ({first + 2})")

    insert(1)
    found = [{**row, "id": 0} for row in read(database, 6, lambda: insert(4))]
    assert found[:3] == found[3:]
    at = datetime.datetime(2026, 1, 2, 1, 4, 5, 678901, tzinfo=datetime.UTC)
    whole = {"i": -5, "s": 7, "f": 1.5, "t": 'a"b,\nc\\ü', "b": True, "d": datetime.date(2026, 1, 2), "at": at}
    whole |= {"plain": datetime.datetime(1999, 12, 31, 23, 59, 59), "x": decimal.Decimal("1.25"), "y": b"\x00\xff"}
    whole |= {"j": '{"a": 1}', "free": "1.250", "hour": datetime.time(12, 30, 0, 500_000), "tags": "{1,2}"}
    whole |= {'odd "name': "odd", "u": "11111111-2222-3333-4444-555555555555"}
    assert {name: found[0][name] for name in whole} == whole
    assert found[0]["g"] == pytest.approx(0.1) and "doubled" not in found[0]
    assert (found[1]["t"], found[1]["y"], found[2]["t"], found[2]["y"]) == ("", b"", None, None)


def test_a_large_value_that_an_update_leaves_alone_is_that_of_the_old_row(database: Database) -> None:
    database.create("id bigint PRIMARY KEY, v text, large text")
    database(f"ALTER TABLE {database.name} ALTER large SET STORAGE EXTERNAL")
    database(f"INSERT INTO {database.name} VALUES (1, 'a', repeat('x', 9000))")
    found = read(database, 3, lambda: database(f"UPDATE {database.name} SET v = 'b'") and None)
    assert [(row["op"], row["v"], len(row["large"])) for row in found[1:]] == [
        ("delete", "a", 9000),
        ("insert", "b", 9000),
    ]


def test_a_large_value_that_the_log_does_not_repeat_is_an_error_and_never_a_null(database: Database) -> None:
    database.create("id bigint PRIMARY KEY, v text, large text", identity="DEFAULT")
    database(f"ALTER TABLE {database.name} ALTER large SET STORAGE EXTERNAL")
    database(f"INSERT INTO {database.name} VALUES (1, 'a', repeat('x', 9000))")
    with pytest.raises(DataError, match=r"the large value of column 'large' as it was.*REPLICA IDENTITY FULL"):
        read(database, 2, lambda: database(f"UPDATE {database.name} SET v = 'b'") and None, changelog="upserting")


def test_rows_and_columns_that_the_publication_leaves_out_are_in_neither_part(database: Database) -> None:
    database.create("id bigint PRIMARY KEY, v text, secret text", extra="(id, v) WHERE (id > 10)", identity="DEFAULT")
    insert = f"INSERT INTO {database.name} SELECT n, 'v', 'x' FROM generate_series(%s::int, %s::int) n"
    database(insert, 9, 11)
    found = read(
        database, 2, lambda: database(insert, 1, 3) or (database(insert, 12, 12) and None), changelog="upserting"
    )
    assert found == [{"id": 11, "v": "v", "op": "insert"}, {"id": 12, "v": "v", "op": "insert"}]


@pytest.mark.parametrize("is_published", [True, False], ids=["published", "not published"])
def test_changes_of_other_tables_are_passed_over_and_do_not_keep_the_log(
    database: Database, is_published: bool
) -> None:
    database.create()
    other = f"{database.name}_other"
    database(f"CREATE TABLE {other} (id bigint PRIMARY KEY)")
    if is_published:
        database(f"ALTER PUBLICATION {database.name} ADD TABLE {other}")
    database.insert(1, 1)
    confirmed: list[str] = []

    def others() -> None:
        confirmed.append(database.confirmed())
        database(f"INSERT INTO {other} SELECT generate_series(1, 500)")

    def moved() -> bool:
        return bool(confirmed) and database.confirmed() != confirmed[0]

    output = CollectSink()
    pipeline = Pipeline("others")
    pipeline.source(database.source(), name="table").sink(output, name="output")

    def look() -> bool:
        if output.rows() and not confirmed:
            others()
        return moved()

    run(pipeline, until=look, timeout=_PATIENCE_S)
    assert [row["id"] for row in output.rows()] == [1]


def test_a_column_that_is_added_is_left_out_with_a_warning_and_is_there_after_a_restart(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    database.create()
    database.insert(1, 1)
    store = MemoryStore()
    output = CollectSink()

    def alter() -> None:
        database(f"ALTER TABLE {database.name} ADD COLUMN note text DEFAULT 'none'")
        database(f"INSERT INTO {database.name} VALUES (2, 'v2', 'new')")

    def go(count: int, step: Callable[[], None]) -> None:
        steps = [step]
        pipeline = Pipeline("altered")
        pipeline.source(database.source(), name="table").sink(output, name="output")

        def look() -> bool:
            if steps and output.rows():
                steps.pop()()
            return len(output.rows()) >= count

        run(pipeline, store=store, until=look, timeout=_PATIENCE_S)

    go(2, alter)
    assert "the table has new columns (note): they are left out" in caplog.text
    assert output.rows()[1] == {"id": 2, "v": "v2", "op": "insert"}
    output = CollectSink()
    database(f"INSERT INTO {database.name} VALUES (3, 'v3', 'there')")
    go(1, lambda: None)
    assert output.rows() == [{"id": 3, "v": "v3", "note": "there", "op": "insert"}]


# --- exactly once ---


class Unconfirmed(PostgresSource):
    """Tells the server nothing, so that one slot can be read again and again."""

    def open(self, split: str, offset: bytes | None) -> SplitReader:
        reader = super().open(split, offset)
        reader.on_checkpoint_complete = lambda offset: None  # type: ignore[method-assign]
        return reader


def test_the_source_keeps_the_contract_while_it_reads_the_rows_that_are_there(database: Database) -> None:
    database.create("a int, b text, v text, PRIMARY KEY (a, b)")
    database(f"INSERT INTO {database.name} SELECT n % 7, 'Ä' || n, n FROM generate_series(1, 60) n")
    check_source(database.source, rows=60, batch_rows=11)


def test_the_source_keeps_the_contract_while_it_reads_changes_of_small_and_large_transactions(
    database: Database,
) -> None:
    database.create()
    database("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", database.name)
    for first in (1, 2, 3):
        database.insert(first, first)
    database.insert(10, 49)
    database(f"UPDATE {database.name} SET v = 'new' WHERE id < 20")

    def make() -> PostgresSource:
        options: dict[str, Any] = {"publication": database.name, "slot": database.name, "snapshot": False}
        return Unconfirmed(database.server.dsn(), database.name, **options)

    check_source(make, rows=43 + 2 * 13, batch_rows=5)


class Died(BaseException):
    """The driver is gone."""


class Writers:
    """Transactions of all kinds, some of them open for a while, until the pipeline has read enough."""

    def __init__(self, database: Database, count: int) -> None:
        self._database = database
        self._count = count
        self.failed: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(2)]

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        for thread in self._threads:
            thread.join(_PATIENCE_S)

    @property
    def are_done(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self, number: int) -> None:
        name = self._database.name
        try:
            with psycopg.connect(self._database.server.dsn()) as connection:
                for turn in range(self._count):
                    new = 10_000 * (number + 1) + 3 * turn
                    # Half of the keys lie in front of the snapshot, half behind it; some rows come and go.
                    connection.execute(
                        f"INSERT INTO {name} VALUES (%s, 'a'), (%s, 'b'), (%s, 'c')", (new, -new, new + 1)
                    )
                    connection.execute(f"UPDATE {name} SET v = v || 'x' WHERE id = %s", (turn % 400 + 200 * number,))
                    connection.execute(f"DELETE FROM {name} WHERE id = %s", (new if turn % 2 else -new,))
                    if turn % 5 == 0:
                        connection.execute(f"UPDATE {name} SET id = %s WHERE id = %s", (new + 2, turn % 400))
                    if turn % 7 == 0:
                        connection.rollback()
                    elif turn % 3:
                        connection.commit()
        except BaseException as error:
            self.failed.append(error)


@pytest.mark.parametrize("crashes", [0, 1, 4])
def test_rows_and_changes_make_the_table_whatever_is_written_while_they_are_read_and_whatever_dies(
    database: Database, crashes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small entries, so that the snapshot is interrupted in the middle.
    monkeypatch.setattr("penstock.connectors.postgres.log_reader._ENTRY_BYTES", 400)
    database.create()
    database.insert(0, 999)
    output = CollectSink()
    store = MemoryStore()
    with Writers(database, 150) as writers:
        for death in range(crashes, -1, -1):
            pipeline = Pipeline("mirror")
            pipeline.source(database.source(), name="table").sink(output, name="output")
            enough = len(output.rows()) + 150

            def look(is_last: bool = death == 0, enough: int = enough) -> bool:
                rows = output.rows()
                if not is_last and len(rows) >= enough:
                    raise Died
                return is_last and writers.are_done and applied(rows) == database.rows()

            try:
                run(
                    pipeline,
                    store=store,
                    until=look,
                    timeout=_PATIENCE_S,
                    crash_after_checkpoints=1 if death == 2 else (),
                )
            except Died:
                continue
            except TimeoutError:
                break
    assert not writers.failed
    found, table = applied(output.rows()), database.rows()
    assert found == table, f"missing {list((table - found).items())[:5]}, surplus {list((found - table).items())[:5]}"


def taken(reader: SplitReader, rows: int, rows_max: int = 10) -> list[dict[str, Any]]:
    """The next rows of a reader."""
    found: list[dict[str, Any]] = []
    deadline = time.monotonic() + _PATIENCE_S
    while len(found) < rows:
        portion = reader.read(min(rows_max, rows - len(found)))
        records = portion.records if isinstance(portion, Portion) else portion
        if isinstance(records, pa.RecordBatch):
            found += records.to_pylist()
        else:
            assert time.monotonic() < deadline, f"{len(found)} of {rows} rows have come"
            time.sleep(0.001)
    return found


def test_a_snapshot_that_is_interrupted_goes_on_behind_its_last_key_with_the_table_as_it_is_then(
    database: Database,
) -> None:
    # Texts that the server sorts otherwise than by their bytes: a0, B1, a2 …
    database.create('a int, b text COLLATE "und-x-icu", v text, PRIMARY KEY (a, b)')
    name = database.name
    database(
        f"INSERT INTO {name} SELECT n / 10, substr('aB', n % 2 + 1, 1) || n % 10, 'v' FROM generate_series(0, 99) n"
    )
    source = database.source()
    source.on_start()
    found: list[dict[str, Any]] = []
    offset: bytes | None = None
    for turn, rows in enumerate((35, 20)):
        reader = source.open("log", offset)
        found += taken(reader, rows)
        offset = reader.offset()
        reader.close()
        assert not json.loads(offset)["is_complete"]
        # In front of the last key, behind it, and from one side to the other, to and fro.
        key = ("a0", "B1")[turn]
        database(f"INSERT INTO {name} VALUES (0, 'new{turn}', 'v'), (99, 'new{turn}', 'v')")
        database(f"UPDATE {name} SET v = 'changed' WHERE a IN ({turn}, {9 - turn}) AND b LIKE 'a%'")
        database(f"DELETE FROM {name} WHERE (a, b) IN ((0, '{key}'), (9, '{key}'))")
        database(f"UPDATE {name} SET a = 50 + {turn} WHERE (a, b) = (1, '{key}')")
        database(f"UPDATE {name} SET a = 0, b = 'moved{turn}' WHERE (a, b) = (8, '{key}')")
    snapshots = json.loads(offset)["snapshots"]
    assert [one["to"] for one in snapshots] == [["3", "B9"], ["5", "B9"]]
    reader = source.open("log", offset)

    def catch_up() -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while applied(found) != database.rows() and time.monotonic() < deadline:
            records = reader.read(7)
            found.extend(records.to_pylist() if isinstance(records, pa.RecordBatch) else [])
        assert applied(found) == database.rows()

    catch_up()
    database(f"INSERT INTO {name} VALUES (4, 'last', 'v')")
    catch_up()
    reader.close()
    # Once the log was read beyond them, snapshots are forgotten.
    assert json.loads(reader.offset())["snapshots"] == []


def test_the_server_is_told_of_a_place_only_when_a_checkpoint_behind_it_is_durable(database: Database) -> None:
    database.create()
    source = database.source(snapshot=False)
    source.on_start()
    reader = source.open("log", None)
    while database("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND active", database.name) == []:
        reader.read(1)
    before = database.confirmed()
    database.insert(1, 10)
    taken(reader, 10)
    middle = reader.offset()
    assert database.confirmed() == before
    database.insert(11, 20)
    taken(reader, 10)
    reader.on_checkpoint_complete(middle)
    deadline = time.monotonic() + _PATIENCE_S
    while database.confirmed() == before and time.monotonic() < deadline:
        reader.read(1)
    assert database.confirmed() != before
    reader.close()
    # Everything behind it is still there.
    again = source.open("log", middle)
    assert [row["id"] for row in taken(again, 10)] == list(range(11, 21))
    again.close()


def test_a_checkpoint_that_is_older_than_the_slot_is_refused(database: Database) -> None:
    database.create()
    database.insert(1, 3)
    source = database.source()
    source.on_start()
    reader = source.open("log", None)
    taken(reader, 3)
    old = reader.offset()
    reader.close()
    database("SELECT pg_drop_replication_slot(%s)", database.name)
    with pytest.raises(
        DataError, match="was dropped, and with it the changes behind the checkpoint: start again with a new"
    ):
        taken(source.open("log", old), 1)
    database.insert(4, 6)
    database("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", database.name)
    with pytest.raises(DataError, match=r"the checkpoint needs the log from \w+/\w+ on, and slot .* has it from"):
        taken(source.open("log", old), 1)
    elsewhere = json.dumps({**json.loads(old), "system": "123"}).encode()
    with pytest.raises(DataError, match="the checkpoint belongs to the server with the identifier 123"):
        taken(source.open("log", elsewhere), 1)


def test_a_transaction_that_the_log_does_not_have_as_it_was_is_refused(database: Database) -> None:
    database.create()
    database("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", database.name)
    database.insert(1, 10)
    source = database.source(snapshot=False)
    source.on_start()
    reader = source.open("log", None)
    taken(reader, 5, rows_max=5)
    position = json.loads(reader.offset())
    reader.close()
    assert position["changes"] == 5
    for wrong in ({"commit": position["commit"] - 8}, {"changes": 11}):
        reader = source.open("log", json.dumps({**position, **wrong}).encode())
        with pytest.raises(DataError, match="which the log no longer has in the same form"):
            taken(reader, 6)
        reader.close()


def test_a_server_that_drops_its_connections_costs_a_restart_and_no_row(database: Database) -> None:
    database.create()
    database.insert(1, 50)
    output = CollectSink()
    pipeline = Pipeline("cut")
    pipeline.source(database.source(), name="table").sink(output, name="output")
    cuts = iter(range(2))
    enough = 50

    def look() -> bool:
        nonlocal enough
        if len(output.rows()) >= enough and next(cuts, None) is not None:
            database("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'penstock'")
            database.insert(enough + 1, enough + 25)
            enough += 25
        return len(output.rows()) >= 100

    result = run(pipeline, until=look, timeout=_PATIENCE_S, restarts=20)
    assert applied(output.rows()) == database.rows()
    assert result.restarts


def test_a_mirror_in_the_same_server_is_the_table(database: Database) -> None:
    database.create(identity="DEFAULT")
    database.insert(1, 100)
    mirror = f"{database.name}_mirror"
    database(f"CREATE TABLE {mirror} (id bigint PRIMARY KEY, v text)")
    pipeline = Pipeline("mirror")
    stream = pipeline.source(database.source(changelog="upserting"), name="table")
    stream.sink(PostgresSink(database.server.dsn(), mirror, mode="upsert", key="id"), name="mirror")
    steps = [
        f"UPDATE {database.name} SET v = 'x' WHERE id % 3 = 0",
        f"DELETE FROM {database.name} WHERE id % 5 = 0",
        f"UPDATE {database.name} SET id = id + 1000 WHERE id % 7 = 0",
    ]

    def look() -> bool:
        is_same = database.rows() == Counter(database(f"SELECT * FROM {mirror}"))
        if is_same and steps:
            database(steps.pop(0))
            return False
        return is_same

    run(pipeline, until=look, timeout=_PATIENCE_S, crash_after_checkpoints=3)
    assert not steps


# --- what cannot be told, and what is missing ---


def test_a_truncate_is_an_error_again_after_a_restart_or_is_passed_over_and_counted(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    database.create()
    database("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", database.name)
    with psycopg.connect(database.server.dsn()) as connection:
        connection.execute(f"INSERT INTO {database.name} VALUES (1, 'a')")
        connection.execute(f"TRUNCATE {database.name}")
        connection.execute(f"INSERT INTO {database.name} VALUES (2, 'b')")
    source = database.source(snapshot=False)
    source.on_start()
    offset: bytes | None = None
    for _ in range(2):
        # The position must not be behind the truncate: nobody would hear of it after a restart.
        reader = source.open("log", offset)
        with pytest.raises(DataError, match=r"TRUNCATE of public\.\w+ in the transaction at .*on_truncate=\"skip\""):
            taken(reader, 2)
        offset = reader.offset()
        reader.close()
    output = CollectSink()
    pipeline = Pipeline("truncated")
    pipeline.source(database.source(snapshot=False, on_truncate="skip"), name="table").sink(output, name="output")
    result = run(pipeline, until=lambda: len(output.rows()) == 2, timeout=_PATIENCE_S)
    assert [row["id"] for row in output.rows()] == [1, 2]
    assert result.rows_skipped == 1 and "is skipped: rows that the stream has delivered stay" in caplog.text


def test_a_truncate_in_front_of_the_snapshot_is_none_of_ours(database: Database) -> None:
    database.create()
    database("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", database.name)
    database.insert(1, 5)
    database(f"TRUNCATE {database.name}")
    database.insert(6, 6)
    found = read(database, 2, lambda: database.insert(7, 7))
    assert [row["id"] for row in found] == [6, 7]


def test_another_reader_of_the_slot_is_waited_for_and_then_told(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    database.create()
    database.insert(1, 1)
    source = database.source()
    source.on_start()
    first = source.open("log", None)
    taken(first, 1)
    while not database("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND active", database.name):
        first.read(1)
    monkeypatch.setattr("penstock.connectors.postgres.log_reader._BUSY_S", 0.1)
    second = source.open("log", first.offset())
    with pytest.raises(StorageError, match=r"another process reads slot .*two pipelines need two slots.*pg_terminate"):
        taken(second, 1)
    assert "waiting for slot" in caplog.text
    first.close()
    second.close()
    monkeypatch.undo()
    database.insert(2, 2)
    third = source.open("log", first.offset())
    assert taken(third, 1)[0]["id"] == 2
    third.close()


def test_a_slot_that_the_server_has_given_up_is_told_with_the_way_out(database: Database) -> None:
    database.create()
    source = database.source()
    source.on_start()
    reader = source.open("log", None)
    database.insert(1, 1)
    taken(reader, 1)
    offset = reader.offset()
    reader.close()
    database("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
    database("SELECT pg_reload_conf()")
    try:
        status, deadline = "reserved", time.monotonic() + _PATIENCE_S
        while status != "lost" and time.monotonic() < deadline:
            database.insert(1, 0)
            database("SELECT pg_logical_emit_message(true, 'x', 'x'), pg_switch_wal()")
            database("CHECKPOINT")
            status = database("SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s", database.name)[0][0]
        for begin in (lambda: taken(source.open("log", offset), 1), lambda: database.source().on_start()):
            with pytest.raises(
                DataError, match=r"has removed the log of slot .*max_slot_wal_keep_size.*pg_drop_replic"
            ):
                begin()
    finally:
        database("ALTER SYSTEM RESET max_slot_wal_keep_size")
        database("SELECT pg_reload_conf()")


def test_the_log_that_a_slot_keeps_is_the_backlog_and_much_of_it_is_a_warning(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("penstock.connectors.postgres.log_reader._RETAINED_BYTES_MAX", 1)
    monkeypatch.setattr("penstock.connectors.postgres.log_reader._LOOK_S", 0)
    database.create()
    database.insert(1, 1)
    source = database.source()
    source.on_start()
    reader = source.open("log", None)
    assert reader.backlog() is None and not reader.is_caught_up
    taken(reader, 1)
    deadline = time.monotonic() + _PATIENCE_S
    while (reader.backlog() is None or not reader.is_caught_up) and time.monotonic() < deadline:
        reader.read(1)
    backlog = reader.backlog()
    assert backlog is not None and backlog.bytes is not None and reader.is_caught_up
    reader.close()
    assert "MiB of the server's log" in caplog.text


def test_what_the_server_lacks_is_told_with_the_statement_that_mends_it(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(match: str, **options: Any) -> None:
        with pytest.raises(PipelineError, match=match):
            database.source(**options).on_start()

    name = database.name
    refused(f"table public.{name} not found in 127.0.0.1")
    database(f"CREATE TABLE {name} (id bigint, v text)")
    refused(f'publication \'{name}\' not found .*CREATE PUBLICATION "{name}" FOR TABLE "public"."{name}"')
    database(f"CREATE PUBLICATION {name} WITH (publish = 'insert, update')")
    refused(f'does not have the table: ALTER PUBLICATION "{name}" ADD TABLE "public"."{name}"')
    database(f"ALTER PUBLICATION {name} ADD TABLE {name}")
    refused(r"has only their keys: .*REPLICA IDENTITY FULL, or set changelog=\"upserting\"")
    refused("needs a key, but the log of this table has none", changelog="upserting")
    database(f"ALTER TABLE {name} REPLICA IDENTITY FULL")
    refused(r"the table has none: ALTER TABLE .* ADD PRIMARY KEY \(…\), or set snapshot=False")
    database.source(snapshot=False).on_start()
    assert f"publication '{name}' publishes no deletes, no truncates of public.{name}" in caplog.text
    database(f"ALTER TABLE {name} ADD COLUMN k jsonb PRIMARY KEY")
    refused("the order of the type of 'k' is not known here")
    database(f"ALTER TABLE {name} DROP k, ADD PRIMARY KEY (id), ADD COLUMN op text")
    refused("the stream adds a column 'op', which the table has already")
    database(f"ALTER TABLE {name} DROP op")
    database("SELECT pg_create_logical_replication_slot('of_another_kind', 'test_decoding')")
    refused(r"is a logical slot \(test_decoding\) of database postgres", slot="of_another_kind")
    role = f"{name}_guest"
    database(f"CREATE ROLE {role} LOGIN")
    guest = PostgresSource(database.server.dsn(user=role), name, publication=name, slot=name)
    with pytest.raises(PipelineError, match="the user may not read the table: GRANT SELECT"):
        guest.on_start()
    database(f"GRANT SELECT ON {name} TO {role}")
    with pytest.raises(PipelineError, match="the user may not replicate: ALTER ROLE … REPLICATION"):
        guest.on_start()
    database(f"ALTER ROLE {role} REPLICATION")
    guest.on_start()


def test_a_partitioned_table_is_published_by_its_root(database: Database) -> None:
    name = database.name
    database(f"CREATE TABLE {name} (id bigint PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    database(f"CREATE TABLE {name}_low PARTITION OF {name} FOR VALUES FROM (0) TO (10)")
    database(f"CREATE TABLE {name}_high PARTITION OF {name} FOR VALUES FROM (10) TO (20)")
    database(f"ALTER TABLE {name} REPLICA IDENTITY FULL")
    database(f"CREATE PUBLICATION {name} FOR TABLE {name}")
    with pytest.raises(PipelineError, match=r"SET \(publish_via_partition_root = true\)"):
        database.source().on_start()
    database(f"ALTER PUBLICATION {name} SET (publish_via_partition_root = true)")
    database(f"ALTER TABLE {name}_low REPLICA IDENTITY FULL")
    # Changes of this partition would have nulls in place of the old values.
    with pytest.raises(DataError, match=f"partition {name}_high has no old rows in the log.*REPLICA IDENTITY FULL"):
        database.source().on_start()
    database(f"ALTER TABLE {name}_high REPLICA IDENTITY FULL")
    database.insert(3, 12)
    found = read(database, 12, lambda: database(f"UPDATE {name} SET id = 15 WHERE id = 4") and None)
    assert applied(found) == database.rows()


@pytest.mark.parametrize("is_altered", [False, True])
def test_a_partition_without_old_rows_is_refused_before_its_first_change(database: Database, is_altered: bool) -> None:
    name = database.name
    database(f"CREATE TABLE {name} (id bigint PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    database(f"CREATE TABLE {name}_low PARTITION OF {name} FOR VALUES FROM (0) TO (10)")
    for table in (name, f"{name}_low"):
        database(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
    # A table of the same publication that is no partition needs no old rows.
    database(f"CREATE TABLE {name}_other (id bigint PRIMARY KEY)")
    tables = f"{name}, {name}_other"
    database(f"CREATE PUBLICATION {name} FOR TABLE {tables} WITH (publish_via_partition_root = true)")
    database.insert(3, 5)

    def change() -> None:
        database(f"INSERT INTO {name}_other VALUES (1)")
        if is_altered:
            database(f"ALTER TABLE {name}_low REPLICA IDENTITY DEFAULT")
            database(f"UPDATE {name} SET v = 'new' WHERE id = 4")
            database(f"ALTER TABLE {name}_low REPLICA IDENTITY FULL")
        else:
            high = f"{name}_high"
            statements = (
                f"CREATE TABLE {high} PARTITION OF {name} FOR VALUES FROM (10) TO (20)",
                f"INSERT INTO {name} VALUES (12, 'old')",
                f"UPDATE {name} SET v = 'new' WHERE id = 12",
                # Nothing in the catalog shows it later.
                f"ALTER TABLE {high} REPLICA IDENTITY FULL",
            )
            database("; ".join(statements))

    with pytest.raises(DataError, match=f"{name}_.* has no old rows in the log.*REPLICA IDENTITY FULL"):
        read(database, 100, change)


def test_a_server_that_is_too_old_or_keeps_no_logical_log_is_told() -> None:
    class Old:
        class info:
            server_version = 140000

            @staticmethod
            def parameter_status(name: str) -> str:
                return "14.1"

    class Plain:
        class info:
            server_version = 160000

        def execute(self, statement: str) -> Any:
            return self

        def fetchone(self) -> tuple[str]:
            return ("replica",)

    catalog = PostgresSource("postgresql://app@db/shop", "orders", publication="p", slot="s")._catalog()
    with pytest.raises(PipelineError, match=r"is PostgreSQL 14\.1, but version 15 or newer is required"):
        catalog._check_server(Old())
    with pytest.raises(
        PipelineError, match=r"wal_level of db:5432/shop is 'replica'.*ALTER SYSTEM SET wal_level = logical"
    ):
        catalog._check_server(Plain())


def test_wrong_options_are_told_when_the_source_is_described() -> None:
    def refused(match: str, **options: Any) -> None:
        with pytest.raises(PipelineError, match=match):
            PostgresSource("postgresql://app@db/shop", "orders", **{"publication": "p", "slot": "s"} | options)

    refused("changelog is 'both': it must be 'retracting' or 'upserting'", changelog="both")
    refused("on_truncate is 'no'", on_truncate="no")
    refused("slot is 'My-Slot': it must consist of at most 63 lower-case letters", slot="My-Slot")
    refused("publication is empty", publication="")
    with pytest.raises(PipelineError, match="PostgresSource: dsn is not an address of PostgreSQL"):
        PostgresSource("postgresql//app:secret@db", "orders", publication="p", slot="s")
    source = PostgresSource("postgresql://app:secret@127.0.0.1:1/shop", "orders", publication="p", slot="s")
    with pytest.raises(StorageError, match=r"PostgresSource: no connection to 127.0.0.1:1/shop") as refusal:
        source.on_start()
    assert "secret" not in repr(source) + str(refusal.value)
