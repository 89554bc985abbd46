"""A server of PostgreSQL: its address without the password, and connections to it."""

from __future__ import annotations

from typing import Any

from penstock.connectors.tables.arguments import required
from penstock.errors import PipelineError, StorageError

CONNECT_TIMEOUT_S = 10


def driver() -> Any:
    """The package psycopg."""
    return required("psycopg", "postgres", "PostgreSQL")


def quoted(*names: str) -> str:
    """An identifier of SQL; a percent sign would be a parameter to psycopg."""
    doubled = ['"' + name.replace('"', '""') + '"' for name in names]
    return ".".join(doubled)


def table_name(user: str, table: str) -> tuple[str, str]:
    """Schema and name. Raises `PipelineError`."""
    schema, dot, name = table.rpartition(".")
    if not name or (dot and not schema):
        raise PipelineError(f"{user}: table is {table!r}: write 'name' or 'schema.name'")
    return schema or "public", name


class Server:
    """How to get to the server. Pickled to the workers; opens nothing by itself."""

    def __init__(self, user: str, dsn: str) -> None:
        psycopg = driver()
        self.user = user
        """The connector that errors name."""
        self.dsn = dsn
        try:
            parts = psycopg.conninfo.conninfo_to_dict(dsn)
        except psycopg.Error as error:
            # The text of the error may quote the whole address, with its password.
            raise PipelineError(
                f"{user}: dsn is not an address of PostgreSQL: write "
                "'postgresql://user@host:5432/database', or 'host=… dbname=…'"
            ) from error
        host = parts.get("host") or parts.get("hostaddr") or "localhost"
        self.database = parts.get("dbname") or parts.get("user") or ""
        self.address = f"{host}:{parts.get('port') or 5432}/{self.database}"

    def connect(self, *, autocommit: bool = False, **settings: Any) -> Any:
        """Raises `StorageError` without the password."""
        psycopg = driver()
        try:
            return psycopg.connect(
                self.dsn,
                autocommit=autocommit,
                connect_timeout=CONNECT_TIMEOUT_S,
                application_name="penstock",
                **settings,
            )
        except psycopg.OperationalError as error:
            text = " ".join(str(error).split())
            raise StorageError(
                f"{self.user}: no connection to {self.address}: {text}. Check host, port, database, user and password "
                f"in dsn, and that the workers reach the host too"
            ) from error
