"""A table of PostgreSQL as a sink: rows are staged in the database by COPY, and moved in one transaction.

Why a staging table: a committable must be small, and a transaction that is left open by a writer would hold its locks
and die with the connection. Two-phase commit (`PREPARE TRANSACTION`) survives that, but needs a server setting that is
off by default, and a prepared transaction that nobody finishes blocks VACUUM of the whole database. Rows of a staging
table are plain rows. They are written twice, and never pass through the driver.

The commit is one transaction: the marker of the checkpoint, the rows from the staging table, and their removal there.
The marker decides: a row that has this checkpoint or a later one stops a repeated commit, and one of another driver
waits for the lock on that row (I4, I6).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from penstock.connectors.postgres.database import OP_COLUMN, Database, Tables
from penstock.connectors.postgres.server import driver, quoted
from penstock.connectors.postgres.writer import StagingWriter
from penstock.connectors.sink import Committer, Sink, SinkWriter
from penstock.connectors.tables.arguments import check_mode
from penstock.connectors.tables.changes import warn_of_own_op
from penstock.connectors.tables.data_files import CommitId
from penstock.errors import DataError, StorageError
from penstock.ids import CheckpointId, Generation
from penstock.model.changelog import DELETE

_ORPHANS_AFTER = "7 days"
_PARTS = "(SELECT * FROM unnest(%(writers)s::text[], %(parts)s::int[]))"

_log = logging.getLogger("penstock")


class PostgresSink(Sink):
    """Writes rows to a table of PostgreSQL, exactly once: one transaction for each checkpoint.

    Example:

        totals = orders.key_by("customer").aggregate(total=("sum", "amount"), sequence="version")
        table = PostgresSink("postgresql://app@db/shop", "totals", mode="upsert", key="customer", by="version")
        totals.sink(table, name="table")
        assert pipeline.graph().nodes[-1].name == "table"

    The table must exist. Columns of the records are found by name; columns that they lack get their default.
    `mode="upsert"` needs a unique index on `key`. Of several rows of a key the one that is highest in the column `by`
    wins, in the checkpoint and in the table; without `by` the last one, which is certain only if all rows of a key come
    from one subtask: put `key_by` in front. If the records are a changelog, with a column `op` that the table does not
    have, "delete" removes the row of the key.

    Staging table and markers (`penstock_stage_…`, `penstock_commits`) lie in the schema of the table, or in
    `staging_schema`. Rows that were staged and never committed are removed by a start seven days later.

    The trap: the password of `dsn` travels to the workers with the pipeline. Leave it out, and have a `~/.pgpass` or
    `PGPASSWORD` there, if the cluster is not yours alone.
    """

    def __init__(
        self,
        dsn: str,
        table: str,
        *,
        mode: Literal["append", "upsert"] = "append",
        key: str | Sequence[str] | None = None,
        by: str | None = None,
        staging_schema: str | None = None,
    ) -> None:
        self.key, self.by = check_mode("PostgresSink", mode, key, by), by
        self.mode = mode
        self.is_upsert = mode == "upsert"
        self.database = Database(dsn, table, staging_schema)

    def identity(self) -> Mapping[str, str]:
        table = f"{self.database.schema}.{self.database.name}"
        return {**super().identity(), "server": self.database.address, "table": table, "mode": self.mode}

    def writer(self, subtask: int, generation: Generation) -> SinkWriter:
        return StagingWriter(self.database, generation, takes_changes=self.is_upsert)

    def committer(self) -> Committer:
        tables = self.database.prepared(self.key, self.by)
        if self.is_upsert:
            warn_of_own_op(self, [column.name for column in tables.columns])
        return _PostgresCommitter(self, tables)


class _PostgresCommitter(Committer):
    def __init__(self, sink: PostgresSink, tables: Tables) -> None:
        self._sink = sink
        self._tables = tables

    def commit(self, checkpoint: CheckpointId, committables: Sequence[bytes]) -> None:
        psycopg = driver()
        parts = [json.loads(payload) for payload in committables]
        identity = CommitId.of(checkpoint, [part["writer"] for part in parts])
        try:
            with self._sink.database.connect() as connection:
                if not self._is_first(connection, identity):
                    return
                for same in _in_order(parts):
                    self._move(connection, same)
        except psycopg.DataError as error:
            raise DataError(self._told(checkpoint, error)) from error
        except psycopg.IntegrityError as error:
            raise DataError(self._told(checkpoint, error)) from error
        except psycopg.Error as error:
            raise StorageError(self._told(checkpoint, error)) from error

    def _told(self, checkpoint: CheckpointId, error: Exception) -> str:
        return f"{self._sink!r}: the commit of checkpoint {checkpoint} failed: {' '.join(str(error).split())}"

    def _is_first(self, connection: Any, identity: CommitId) -> bool:
        """Whether nobody has published this checkpoint; until the end of the transaction nobody else can."""
        marked = connection.execute(
            f"INSERT INTO {self._tables.commits} AS known (scope, version) VALUES (%s, %s) ON CONFLICT (scope) DO "
            f"UPDATE SET version = EXCLUDED.version, committed_at = now() WHERE known.version < EXCLUDED.version "
            f"RETURNING 1",
            (identity.scope, identity.version),
        ).fetchone()
        return marked is not None

    def _move(self, connection: Any, parts: Sequence[dict[str, Any]]) -> None:
        stage = parts[0]["stage"]
        chosen = {"writers": [part["writer"] for part in parts], "parts": [part["part"] for part in parts]}
        expected = sum(part["rows"] for part in parts)
        (found,) = connection.execute(
            f"SELECT count(*) FROM {stage} WHERE (penstock_writer, penstock_part) IN {_PARTS}", chosen
        ).fetchone()
        if found != expected:
            # I8: the rest would be lost in silence.
            raise StorageError(
                f"{self._sink!r}: {stage} has {found} of {expected} staged rows of this checkpoint: "
                "the others were removed. Put them back, or start from an older checkpoint with "
                "restore=…"
            )
        connection.execute(
            f"WITH moved AS (DELETE FROM {stage} WHERE (penstock_writer, penstock_part) IN {_PARTS} RETURNING *) "
            f"{self._insertion(parts[0]['columns'], has_ops=parts[0].get('changes', False))}",
            chosen,
        )

    def _insertion(self, columns: Sequence[str], *, has_ops: bool) -> str:
        target, key, by = self._tables.target, self._sink.key, self._sink.by
        names = ", ".join(_literal(name) for name in columns)
        if not key:
            return f"INSERT INTO {target} ({names}) SELECT {names} FROM moved ORDER BY penstock_row"
        keys = ", ".join(_literal(name) for name in key)
        order = f"{keys}, {f'{_literal(by)} DESC NULLS LAST, ' if by else ''}penstock_row DESC"
        rest = [_literal(name) for name in columns if name not in key]
        action = f"DO UPDATE SET {', '.join(f'{name} = EXCLUDED.{name}' for name in rest)}" if rest else "DO NOTHING"
        newer = f" WHERE {self._newer('EXCLUDED')}" if by and rest else ""
        stays = f"WHERE {OP_COLUMN} <> '{DELETE}' " if has_ops else ""
        return (
            f", newest AS (SELECT DISTINCT ON ({keys}) * FROM moved ORDER BY {order})"
            f"{self._deletion() if has_ops else ''} "
            f"INSERT INTO {target} AS known ({names}) SELECT {names} FROM newest {stays}"
            f"ON CONFLICT ({keys}) {action}{newer}"
        )

    def _newer(self, given: str) -> str:
        by = _literal(self._sink.by or "")
        return f"(known.{by} IS NULL OR {given}.{by} >= known.{by})"

    def _deletion(self) -> str:
        """Of one statement with the insertion: each key has one newest change, so that no row is met by both."""
        same = [f"known.{_literal(name)} = newest.{_literal(name)}" for name in self._sink.key]
        conditions = [f"newest.{OP_COLUMN} = '{DELETE}'", *same, *([self._newer("newest")] if self._sink.by else [])]
        return f", gone AS (DELETE FROM {self._tables.target} AS known USING newest WHERE {' AND '.join(conditions)})"

    def discard_uncommitted(self, generation: Generation) -> None:
        """Remove old orphans. Age decides: generations of other pipelines that stage rows here are not ours."""
        with self._sink.database.connect() as connection:
            removed = connection.execute(
                f"DELETE FROM {self._tables.stage} WHERE penstock_staged_at < now() - interval '{_ORPHANS_AFTER}'"
            ).rowcount
        if removed:
            _log.info("%r: removed %d staged rows that were never committed", self._sink, removed)


def _in_order(parts: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Parts that one statement can move, in the order in which each writer has staged them: the last row of a key
    wins, also if the columns have changed within the checkpoint."""
    counts: dict[str, int] = {}
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for part in sorted(parts, key=lambda part: int(part["part"])):
        counts[part["writer"]] = place = counts.get(part["writer"], 0) + 1
        kind = place, part["stage"], tuple(part["columns"]), part.get("changes", False)
        groups.setdefault(kind, []).append(part)
    return [groups[kind] for kind in sorted(groups)]


def _literal(name: str) -> str:
    # psycopg takes a percent sign for a parameter where there are parameters.
    return quoted(name).replace("%", "%%")
