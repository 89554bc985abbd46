"""The tables of a `PostgresSink`: the target, a staging table beside it, and the markers of commits.

    penstock_stage_<hash>   rows that were staged, with the writer and the part they belong to
    penstock_commits        per writer, the newest checkpoint that was published

The hash is that of the target and its columns: a target that gets another column gets another staging table, and output
that was staged before is committed from the old one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.connectors.postgres.server import Server, driver, quoted, table_name
from penstock.errors import PipelineError

COMMITS = "penstock_commits"
OP_COLUMN = "penstock_op"
"""Column of a staging table: the operation of a changelog, null for records that have none."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the target."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class Tables:
    """Names, quoted and with their schema, for statements."""

    target: str
    stage: str
    commits: str
    columns: tuple[Column, ...]


class Database(Server):
    """Where the target lies, and how to get there. Pickled to the workers; opens nothing by itself."""

    def __init__(self, dsn: str, table: str, staging_schema: str | None) -> None:
        super().__init__("PostgresSink", dsn)
        self.schema, self.name = table_name("PostgresSink", table)
        self.staging_schema = staging_schema or self.schema

    def prepared(self, key: Sequence[str], by: str | None) -> Tables:
        """Check the target, and make staging table and markers if they are missing. Raises `PipelineError`."""
        psycopg = driver()
        with self.connect() as connection:
            tables = self.tables(connection)
            names = [column.name for column in tables.columns]
            for name in (*key, *([by] if by else [])):
                if name not in names:
                    raise PipelineError(
                        f"PostgresSink: {tables.target} has no column '{name}' for key or by; its columns are "
                        f"{', '.join(names)}"
                    )
            if key:
                self._check_unique(connection, tables, key)
            statements = self._statements(tables)
            try:
                for statement in statements:
                    connection.execute(statement)
            except psycopg.errors.InsufficientPrivilege as error:
                raise PipelineError(
                    f"PostgresSink: the user may not create staging tables in schema {self.staging_schema}: grant "
                    f"CREATE on it, or set staging_schema=…, or let an owner run once: {'; '.join(statements)}"
                ) from error
        return tables

    def tables(self, connection: Any) -> Tables:
        """Look up the target. Raises `PipelineError` if it does not exist."""
        found = connection.execute(
            "SELECT a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_attribute a "
            "JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace s ON s.oid = c.relnamespace "
            "WHERE s.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped "
            "AND a.attgenerated = '' ORDER BY a.attnum",
            (self.schema, self.name),
        ).fetchall()
        if not found:
            raise PipelineError(
                f"PostgresSink: table {self.schema}.{self.name} not found in {self.address}: create "
                "it first, or check the name, which is case-sensitive"
            )
        columns = tuple(Column(name, kind) for name, kind in found)
        text = repr((self.schema, self.name, columns, OP_COLUMN))
        stage = f"penstock_stage_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        return Tables(
            quoted(self.schema, self.name),
            quoted(self.staging_schema, stage),
            quoted(self.staging_schema, COMMITS),
            columns,
        )

    def _check_unique(self, connection: Any, tables: Tables, key: Sequence[str]) -> None:
        found = connection.execute(
            "SELECT array_agg(a.attname::text) FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid "
            "AND a.attnum = ANY(i.indkey) WHERE i.indrelid = %s::regclass AND i.indisunique AND i.indpred IS NULL "
            "GROUP BY i.indexrelid",
            (tables.target,),
        ).fetchall()
        if not any(set(columns) == set(key) for (columns,) in found):
            listed = ", ".join(quoted(name) for name in key)
            raise PipelineError(
                f"PostgresSink: an upsert by {listed} needs a unique index on exactly these columns: "
                f"ALTER TABLE {tables.target} ADD PRIMARY KEY ({listed})"
            )

    def _statements(self, tables: Tables) -> list[str]:
        stage = tables.stage
        kinds = ", ".join(f"{quoted(column.name)} {column.kind}" for column in tables.columns)
        return [
            # Two drivers that start at once would both find no table; one of them waits here.
            "SELECT pg_advisory_xact_lock(1885694575)",
            f"CREATE TABLE IF NOT EXISTS {tables.commits} (scope text PRIMARY KEY, version bigint NOT NULL, "
            f"committed_at timestamptz NOT NULL DEFAULT now())",
            f"CREATE TABLE IF NOT EXISTS {stage} (penstock_writer text NOT NULL, penstock_part int NOT NULL, "
            f"penstock_generation bigint NOT NULL, penstock_staged_at timestamptz NOT NULL DEFAULT now(), "
            f"penstock_row bigint GENERATED ALWAYS AS IDENTITY, {OP_COLUMN} text, {kinds})",
            f"CREATE INDEX IF NOT EXISTS {quoted(stage.rpartition('.')[2].strip(chr(34)) + '_part')} ON {stage} "
            f"(penstock_writer, penstock_part)",
        ]
