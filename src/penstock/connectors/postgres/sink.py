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

from penstock.connectors.postgres.database import Database, Tables, driver, quoted
from penstock.connectors.postgres.writer import StagingWriter
from penstock.connectors.sink import Committer, Sink, SinkWriter
from penstock.connectors.tables.arguments import check_mode
from penstock.connectors.tables.data_files import CommitId
from penstock.errors import DataError, StorageError
from penstock.ids import CheckpointId, Generation

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
    from one subtask: put `key_by` in front.

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
        self.database = Database(dsn, table, staging_schema)

    def identity(self) -> Mapping[str, str]:
        table = f"{self.database.schema}.{self.database.name}"
        return {**super().identity(), "server": self.database.address, "table": table, "mode": self.mode}

    def writer(self, subtask: int, generation: Generation) -> SinkWriter:
        return StagingWriter(self.database, generation)

    def committer(self) -> Committer:
        return _PostgresCommitter(self, self.database.prepared(self.key, self.by))


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
                for stage, columns in sorted({(part["stage"], tuple(part["columns"])) for part in parts}):
                    same = [part for part in parts if (part["stage"], tuple(part["columns"])) == (stage, columns)]
                    self._move(connection, stage, columns, same)
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

    def _move(self, connection: Any, stage: str, columns: Sequence[str], parts: Sequence[dict[str, Any]]) -> None:
        chosen = {"writers": [part["writer"] for part in parts], "parts": [part["part"] for part in parts]}
        expected = sum(part["rows"] for part in parts)
        (found,) = connection.execute(
            f"SELECT count(*) FROM {stage} WHERE (penstock_writer, penstock_part) IN {_PARTS}", chosen
        ).fetchone()
        if found != expected:
            # I8: the rest would be lost in silence.
            raise StorageError(
                f"{self._sink!r}: {stage} has {found} of {expected} staged rows of this checkpoint: somebody has "
                f"removed them. Start from an older checkpoint with fall_back, or bring them back"
            )
        connection.execute(
            f"WITH moved AS (DELETE FROM {stage} WHERE (penstock_writer, penstock_part) IN {_PARTS} RETURNING *) "
            f"{self._insertion(columns)}",
            chosen,
        )

    def _insertion(self, columns: Sequence[str]) -> str:
        target, key, by = self._tables.target, self._sink.key, self._sink.by
        names = ", ".join(_literal(name) for name in columns)
        if not key:
            return f"INSERT INTO {target} ({names}) SELECT {names} FROM moved ORDER BY penstock_row"
        keys = ", ".join(_literal(name) for name in key)
        order = f"{keys}, {f'{_literal(by)} DESC NULLS LAST, ' if by else ''}penstock_row DESC"
        rest = [_literal(name) for name in columns if name not in key]
        action = f"DO UPDATE SET {', '.join(f'{name} = EXCLUDED.{name}' for name in rest)}" if rest else "DO NOTHING"
        newer = (
            f" WHERE known.{_literal(by)} IS NULL OR EXCLUDED.{_literal(by)} >= known.{_literal(by)}"
            if by and rest
            else ""
        )
        return (
            f"INSERT INTO {target} AS known ({names}) SELECT DISTINCT ON ({keys}) {names} FROM moved ORDER BY {order} "
            f"ON CONFLICT ({keys}) {action}{newer}"
        )

    def discard_uncommitted(self, generation: Generation) -> None:
        """Remove old orphans. Age decides: generations of other pipelines that stage rows here are not ours."""
        with self._sink.database.connect() as connection:
            removed = connection.execute(
                f"DELETE FROM {self._tables.stage} WHERE penstock_staged_at < now() - interval '{_ORPHANS_AFTER}'"
            ).rowcount
        if removed:
            _log.info("%r: removed %d staged rows that were never committed", self._sink, removed)


def _literal(name: str) -> str:
    # psycopg takes a percent sign for a parameter where there are parameters.
    return quoted(name).replace("%", "%%")
