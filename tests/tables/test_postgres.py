"""PostgreSQL, a real server: exactly once through every failure, and errors that help."""

from __future__ import annotations

import datetime
import decimal
import itertools
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import DataError, GeneratorSource, Pipeline, PipelineError, StorageError
from penstock.ids import CheckpointId, Generation
from penstock.testing import check_sink, run
from tests.components import required_package
from tests.tables.conftest import PostgresServer
from tests.tables.deaths import killed_at_every_step

psycopg = required_package("psycopg")

from penstock.connectors.postgres import PostgresSink  # noqa: E402
from penstock.connectors.postgres.copy import csv_of  # noqa: E402

Execute = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def execute(postgres_server: PostgresServer) -> Execute:
    def run_statement(statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(postgres_server.dsn()) as connection:
            cursor = connection.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []

    return run_statement


_NAMES = (f"t{number}" for number in itertools.count())


@pytest.fixture
def table(execute: Execute) -> str:
    name = next(_NAMES)
    execute(f"CREATE TABLE {name} (n bigint PRIMARY KEY, text text)")
    return name


def rows(*numbers: int, text: str = "x") -> pa.RecordBatch:
    return pa.record_batch({"n": list(numbers), "text": [text] * len(numbers)})


def staged(sink: PostgresSink, *batches: pa.RecordBatch) -> list[bytes]:
    writer = sink.writer(0, Generation(1))
    for batch in batches:
        writer.write(batch)
    committables = list(writer.prepare()())
    writer.close()
    return committables


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_the_sink_keeps_the_contract(postgres_server: PostgresServer, execute: Execute, mode: Any) -> None:
    def make(name: str) -> PostgresSink:
        # Without a key in the table: nothing but the sink prevents a row from coming twice.
        key = "PRIMARY KEY" if mode == "upsert" else ""
        execute(f"CREATE TABLE IF NOT EXISTS {mode}_{name} (n bigint {key}, text text)")
        return PostgresSink(postgres_server.dsn(), f"{mode}_{name}", mode=mode, key="n" if key else None)

    def read_back(name: str) -> list[dict[str, Any]]:
        return [{"n": n, "text": text} for n, text in execute(f"SELECT n, text FROM {mode}_{name}")]

    check_sink(make, read_back, rows=90, deaths_max=8 if mode == "append" else 2)


def test_a_driver_that_is_killed_at_any_step_of_a_commit_loses_and_doubles_nothing(
    tmp_path: Path, postgres_server: PostgresServer, execute: Execute
) -> None:
    dsn = postgres_server.dsn()
    killed_at_every_step(
        tmp_path,
        sink="import os, psycopg; from penstock.connectors.postgres import PostgresSink; "
        f"table = 'killed_' + os.path.basename(DIRECTORY); connection = psycopg.connect('{dsn}', autocommit=True); "
        "connection.execute(f'CREATE TABLE IF NOT EXISTS {table} (n bigint)'); "
        f"sink = PostgresSink('{dsn}', table)",
        module="penstock.connectors.postgres.sink",
        read_back=lambda home: [n for (n,) in execute(f"SELECT n FROM killed_{home.name}")],
    )


def test_a_driver_that_is_killed_while_it_applies_a_changelog_loses_doubles_and_keeps_no_deleted_row(
    tmp_path: Path, postgres_server: PostgresServer, execute: Execute
) -> None:
    dsn = postgres_server.dsn()
    killed_at_every_step(
        tmp_path,
        sink="import os, psycopg; from penstock.connectors.postgres import PostgresSink; "
        f"table = 'changed_' + os.path.basename(DIRECTORY); connection = psycopg.connect('{dsn}', autocommit=True); "
        "connection.execute(f'CREATE TABLE IF NOT EXISTS {table} (n bigint PRIMARY KEY)'); "
        f"sink = PostgresSink('{dsn}', table, mode='upsert', key='n')",
        module="penstock.connectors.postgres.sink",
        read_back=lambda home: [n for (n,) in execute(f"SELECT n FROM changed_{home.name}")],
        changes=True,
    )


def changes(*given: tuple[str, str, int]) -> pa.RecordBatch:
    ops, keys, values = zip(*given, strict=True)
    return pa.record_batch({"op": list(ops), "k": list(keys), "value": list(values)})


def test_a_changelog_deletes_rows_and_the_newest_change_of_a_key_wins(
    postgres_server: PostgresServer, execute: Execute
) -> None:
    execute("CREATE TABLE changed (k text PRIMARY KEY, value bigint)")
    sink = PostgresSink(postgres_server.dsn(), "changed", mode="upsert", key="k")
    committer = sink.committer()
    first = changes(("insert", "a", 1), ("insert", "b", 1), ("insert", "c", 1), ("delete", "c", 1))
    committer.commit(CheckpointId(1), staged(sink, first))
    second = ("delete", "a", 1), ("update", "b", 2), ("delete", "gone", 0), ("delete", "d", 1), ("insert", "d", 4)
    handed = staged(sink, changes(*second))
    for _ in range(2):
        committer.commit(CheckpointId(2), handed)
    assert execute("SELECT k, value FROM changed ORDER BY k") == [("b", 2), ("d", 4)]
    with pytest.raises(DataError, match=r"the column 'op' of the changes for public.changed has 'upsert'"):
        staged(sink, changes(("upsert", "a", 1)))
    append = PostgresSink(postgres_server.dsn(), "changed")
    with pytest.raises(DataError, match="has no column 'op'"):
        staged(append, changes(("insert", "a", 1)))


def test_a_delete_that_is_older_than_the_row_in_the_table_deletes_nothing(
    postgres_server: PostgresServer, execute: Execute
) -> None:
    execute("CREATE TABLE changed_by (k text PRIMARY KEY, value bigint)")
    sink = PostgresSink(postgres_server.dsn(), "changed_by", mode="upsert", key="k", by="value")
    committer = sink.committer()
    committer.commit(CheckpointId(1), staged(sink, changes(("insert", "a", 5), ("insert", "b", 5))))
    committer.commit(CheckpointId(2), staged(sink, changes(("delete", "a", 4), ("delete", "b", 5))))
    assert execute("SELECT k FROM changed_by") == [("a",)]


def test_the_last_row_of_a_key_wins_also_if_the_columns_change_within_a_checkpoint(
    postgres_server: PostgresServer, execute: Execute
) -> None:
    execute("CREATE TABLE columns_change (k text PRIMARY KEY, a bigint, b bigint)")
    sink = PostgresSink(postgres_server.dsn(), "columns_change", mode="upsert", key="k")
    older, newer = pa.record_batch({"k": ["x"], "b": [1], "a": [1]}), pa.record_batch({"k": ["x"], "a": [2]})
    sink.committer().commit(CheckpointId(1), staged(sink, older, newer))
    assert execute("SELECT a, b FROM columns_change") == [(2, 1)]


def test_a_server_that_drops_its_connections_costs_a_restart_and_no_row(
    postgres_server: PostgresServer, execute: Execute, table: str
) -> None:
    sink = PostgresSink(postgres_server.dsn(), table)
    pipeline = Pipeline("cut")
    source = GeneratorSource(lambda start, count: rows(*range(start, start + count)), rows=2_000, splits=2)
    pipeline.source(source, name="numbers").sink(sink, name="table")
    cuts = iter(range(2))

    def look() -> bool:
        if next(cuts, None) is not None:
            execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'penstock'")
        return False

    run(pipeline, parallelism=2, until=look, restarts=5)
    assert execute(f"SELECT count(*), count(DISTINCT n) FROM {table}") == [(2_000, 2_000)]


def test_two_drivers_that_commit_one_checkpoint_at_once_publish_it_once(
    postgres_server: PostgresServer, execute: Execute
) -> None:
    execute("CREATE TABLE at_once (n bigint)")
    sink = PostgresSink(postgres_server.dsn(), "at_once")
    first, second = sink.committer(), sink.committer()
    committables = staged(sink, rows(1, 2, 3).select(["n"]))
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(one.commit, CheckpointId(4), committables) for one in (first, second)]:
            done.result(60)
    assert execute("SELECT count(*) FROM at_once") == [(3,)]


def test_a_checkpoint_directory_that_was_deleted_does_not_make_new_output_look_old(
    postgres_server: PostgresServer, execute: Execute, table: str
) -> None:
    for number in (1, 2):
        sink = PostgresSink(postgres_server.dsn(), table)
        sink.committer().commit(CheckpointId(1), staged(sink, rows(number)))
    assert execute(f"SELECT count(*) FROM {table}") == [(2,)]


def test_staged_rows_that_are_gone_are_an_error_and_nothing_is_published(
    postgres_server: PostgresServer, execute: Execute, table: str
) -> None:
    sink = PostgresSink(postgres_server.dsn(), table)
    committer = sink.committer()
    committables = staged(sink, rows(1, 2, 3))
    stage = json.loads(committables[0])["stage"]
    execute(f"DELETE FROM {stage} WHERE n = 2")
    with pytest.raises(StorageError, match="has 2 of 3 staged rows"):
        committer.commit(CheckpointId(1), committables)
    assert execute(f"SELECT count(*) FROM {table}") == [(0,)]


def test_upserts_replace_rows_and_the_highest_sequence_wins(postgres_server: PostgresServer, execute: Execute) -> None:
    execute("CREATE TABLE totals (k text PRIMARY KEY, version bigint, value bigint, made text DEFAULT 'here')")
    sink = PostgresSink(postgres_server.dsn(), "totals", mode="upsert", key="k", by="version")
    committer = sink.committer()

    def upsert(checkpoint: int, *given: tuple[str, int, int]) -> None:
        keys, versions, values = zip(*given, strict=True)
        batch = pa.record_batch({"k": list(keys), "version": list(versions), "value": list(values)})
        committer.commit(CheckpointId(checkpoint), staged(sink, batch))

    upsert(1, ("a", 2, 20), ("a", 1, 10), ("b", 1, 1))
    upsert(2, ("a", 1, 99), ("b", 2, 2), ("c", 1, 3))
    expected = [("a", 20, "here"), ("b", 2, "here"), ("c", 3, "here")]
    assert execute("SELECT k, value, made FROM totals ORDER BY k") == expected


def test_values_of_every_kind_arrive_as_they_are(postgres_server: PostgresServer, execute: Execute) -> None:
    execute(
        "CREATE TABLE kinds (i int, f float8, s text, b bool, d date, t timestamptz, x numeric(10, 2), y bytea, "
        '"odd%% ""name" text)'
    )
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=datetime.UTC)
    odd = 'odd%% "name'
    given = [
        {
            "i": 1,
            "f": 1.5,
            "s": 'a"b,\nc\\',
            "b": True,
            "d": at.date(),
            "t": at,
            "x": decimal.Decimal("1.25"),
            odd: "%",
        },
        {"i": None, "f": None, "s": "", "b": None, "d": None, "t": None, "x": None, odd: None},
    ]
    schema = pa.schema(
        {
            **{"i": pa.int32(), "f": pa.float64(), "s": pa.string(), "b": pa.bool_(), "d": pa.date32()},
            **{"t": pa.timestamp("us", "UTC"), "x": pa.decimal128(10, 2), odd: pa.string()},
        }
    )
    batch = pa.RecordBatch.from_pylist(given, schema=schema).append_column("y", pa.array([b"\x00\xff", b""]))
    sink = PostgresSink(postgres_server.dsn(), "kinds")
    sink.committer().commit(CheckpointId(1), staged(sink, batch.slice(0), batch.slice(1)))
    found = execute('SELECT i, f, s, b, d, t, x, y, "odd%% ""name" FROM kinds')
    names = ["i", "f", "s", "b", "d", "t", "x", "y", odd]
    expected = [tuple(row[name] for name in names) for row in batch.to_pylist()]
    # The second batch is a slice: its row comes twice.
    assert found == [*expected, expected[1]]


def test_bytes_of_a_slice_are_those_of_the_slice() -> None:
    values = [b"ab", None, b"", b"\x01", b"xyz"]
    batch = pa.record_batch({"y": values})
    for start in range(len(values)):
        lines = csv_of(batch.slice(start), "t").decode().splitlines()
        assert lines == ["" if value is None else f'"\\x{value.hex()}"' for value in values[start:]]


def test_wrong_servers_tables_and_records_are_told_with_the_way_out(
    postgres_server: PostgresServer, execute: Execute, table: str
) -> None:
    dsn = postgres_server.dsn()
    with pytest.raises(StorageError, match=r"no connection to 127.0.0.1:1/shop: .*Check host, port") as refused:
        PostgresSink("postgresql://app:secret@127.0.0.1:1/shop", "orders").committer()
    assert "secret" not in str(refused.value)
    with pytest.raises(StorageError, match='database "gone" does not exist'):
        PostgresSink(postgres_server.dsn(database="gone"), "orders").committer()
    with pytest.raises(PipelineError, match="dsn is not an address of PostgreSQL"):
        PostgresSink("postgresql//app:secret@db", "orders")
    with pytest.raises(PipelineError, match=r"table public.gone not found in .*create it first"):
        PostgresSink(dsn, "gone").committer()
    with pytest.raises(PipelineError, match=f'needs a unique index.*ALTER TABLE "public"."{table}" ADD PRIMARY KEY'):
        PostgresSink(dsn, table, mode="upsert", key="text").committer()
    with pytest.raises(PipelineError, match="has no column 'id' for key or by; its columns are n, text"):
        PostgresSink(dsn, table, mode="upsert", key="id").committer()
    sink = PostgresSink(dsn, table)
    sink.committer()
    with pytest.raises(DataError, match="has no column 'extra'; its columns are n, text"):
        staged(sink, pa.record_batch({"extra": [1]}))
    with pytest.raises(DataError, match='invalid input syntax for type bigint: "x"'):
        staged(sink, pa.record_batch({"n": ["x"]}))
    with pytest.raises(DataError, match=r"'text' for .* is list<.*write it as a text of JSON"):
        staged(sink, pa.record_batch({"text": [["a"]]}))
    execute("CREATE ROLE guest LOGIN")
    execute(f"GRANT SELECT, INSERT ON {table} TO guest")
    with pytest.raises(PipelineError, match="may not create staging tables in schema public: grant CREATE"):
        PostgresSink(postgres_server.dsn(user="guest"), table).committer()


def test_a_row_that_the_table_refuses_is_told_and_nothing_of_its_checkpoint_is_published(
    postgres_server: PostgresServer, execute: Execute, table: str
) -> None:
    sink = PostgresSink(postgres_server.dsn(), table)
    committer = sink.committer()
    committables = staged(sink, rows(1, 2, 2))
    with pytest.raises(DataError, match="checkpoint 1 failed: duplicate key value violates unique constraint"):
        committer.commit(CheckpointId(1), committables)
    execute(f"ALTER TABLE {table} DROP CONSTRAINT {table}_pkey")
    committer.commit(CheckpointId(1), committables)
    assert execute(f"SELECT count(*) FROM {table}") == [(3,)]


def test_a_target_with_a_new_column_has_another_staging_table_and_old_output_is_committed(
    postgres_server: PostgresServer, execute: Execute, table: str
) -> None:
    sink = PostgresSink(postgres_server.dsn(), table)
    sink.committer()
    committables = staged(sink, rows(1))
    execute(f"ALTER TABLE {table} ADD COLUMN note text DEFAULT 'none'")
    again = PostgresSink(postgres_server.dsn(), table)
    committer = again.committer()
    committer.commit(CheckpointId(1), committables)
    committer.commit(CheckpointId(2), staged(again, pa.record_batch({"n": [2], "note": ["new"]})))
    assert execute(f"SELECT n, note FROM {table} ORDER BY n") == [(1, "none"), (2, "new")]


def test_the_password_is_in_no_name_and_no_committable(postgres_server: PostgresServer, table: str) -> None:
    dsn = f"postgresql://postgres:secret@127.0.0.1:{postgres_server.port}/postgres"
    sink = PostgresSink(dsn, table)
    sink.committer()
    text = repr(sink) + json.dumps(dict(sink.identity())) + repr(staged(sink, rows(1)))
    assert "secret" not in text
