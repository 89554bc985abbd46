"""The examples of the documents that need PostgreSQL, run as a reader would run them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from tests.architecture.test_docs_are_true import examples
from tests.components import required_package
from tests.tables.conftest import PostgresServer

psycopg = required_package("psycopg")


@pytest.mark.parametrize(("heading", "source"), examples("python postgres"))
def test_every_example_runs_on_postgresql(heading: str, source: str, postgres_server: PostgresServer) -> None:
    names: dict[str, Any] = vars(ModuleType("__main__"))
    here = source.replace("localhost:5432", f"127.0.0.1:{postgres_server.port}")
    exec(compile(here, "<example>", "exec"), names)
    with psycopg.connect(postgres_server.dsn(), autocommit=True) as connection:
        connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active")
