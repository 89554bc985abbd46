"""What a `PostgresSource` needs of a server, looked up and checked before anything is read.

Every requirement that is not met is an error with the statement that mends it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.connectors.postgres.kinds import SETTINGS, SORTED_KINDS, TEXTS, arrow_type
from penstock.connectors.postgres.pgoutput import Relation
from penstock.connectors.postgres.server import Server, driver, quoted
from penstock.errors import DataError, PipelineError, StorageError
from penstock.model.changelog import OP, Changelog

_VERSION_MIN = 150000
_FULL, _NOTHING = "f", "n"

_log = logging.getLogger("penstock")


@dataclass(frozen=True, slots=True)
class Column:
    """A column that the publication publishes."""

    name: str
    oid: int
    kind: pa.DataType


@dataclass(frozen=True, slots=True)
class Table:
    """A published table, as it is when the pipeline starts."""

    schema: str
    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    """Columns of the primary key, or of the replica identity if that is another index."""
    row_filter: str | None
    """The condition of the publication, which holds for the snapshot too."""

    @property
    def shown(self) -> str:
        return f"{self.schema}.{self.name}"

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    def copy_statement(self, after: Sequence[str] | None) -> str:
        """All rows in the order of the key, as CSV; or those behind a key."""
        terms = [self._term(name) for name in self.key]
        conditions = [f"({self.row_filter})"] if self.row_filter else []
        if after is not None:
            bounds = [self._bound(name, text) for name, text in zip(self.key, after, strict=True)]
            conditions.append(f"({', '.join(terms)}) > ({', '.join(bounds)})")
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        names = ", ".join(quoted(column.name) for column in self.columns)
        return (
            f"COPY (SELECT {names} FROM {quoted(self.schema, self.name)}{where} ORDER BY {', '.join(terms)}) "
            f"TO STDOUT (FORMAT csv)"
        )

    def _bound(self, name: str, text: str) -> str:
        oid = self.column(name).oid
        literal = "'" + text.replace("'", "''") + "'"
        return f'{literal}::text COLLATE "C"' if oid in TEXTS else f"{literal}::{_CASTS[oid]}"

    def _term(self, name: str) -> str:
        # Texts in the order of their bytes, which is the one that is known here too.
        return f'{quoted(name)} COLLATE "C"' if self.column(name).oid in TEXTS else quoted(name)


_CASTS = {20: "int8", 21: "int2", 23: "int4", 1082: "date", 1114: "timestamp", 1184: "timestamptz", 2950: "uuid"}


@dataclass(frozen=True, slots=True)
class Slot:
    """A replication slot, which keeps the log from the confirmed place on."""

    confirmed: int
    """Changes of transactions that committed in front of it are gone for this slot."""
    status: str
    """What is left of its log: reserved, extended, unreserved or lost."""
    retained_bytes: int
    wal_end: int
    safe_bytes: int | None
    """More log, beyond which the server gives the slot up; None if it never does."""


class Catalog:
    """Looks at the catalog of a server, for one source."""

    def __init__(self, server: Server, where: str, publication: str, slot: str) -> None:
        self._server = server
        self._where = where
        self._publication = publication
        self._slot = slot

    def table(self, schema: str, name: str, changelog: Changelog, *, has_snapshot: bool) -> Table:
        """Check everything. Raises `PipelineError`."""
        with self._server.connect(autocommit=True, options=SETTINGS) as connection:
            self._check_server(connection)
            number, kind, identity = self._relation(connection, schema, name)
            names, row_filter = self._published(connection, schema, name, kind)
            columns = self._columns(connection, number, names)
            key = self._key(connection, number, identity)
            table = Table(schema, name, columns, key, row_filter)
            self._check_identity(table, identity, changelog)
            self.check_partitions(connection, table, changelog)
            if has_snapshot:
                self._check_snapshot(connection, table)
            self._warn_of_publication(connection, table)
            slot = self.slot(connection)
            if slot is not None:
                self.check_slot(slot)
        self.system()
        return table

    def _check_server(self, connection: Any) -> None:
        if connection.info.server_version < _VERSION_MIN:
            version = connection.info.parameter_status("server_version")
            raise PipelineError(
                f"{self._where}: {self._server.address} is PostgreSQL {version}, but version 15 or newer is required"
            )
        (level,) = connection.execute("SHOW wal_level").fetchone()
        if level != "logical":
            raise PipelineError(
                f"{self._where}: wal_level of {self._server.address} is '{level}', but must be "
                "'logical': ALTER SYSTEM SET wal_level = logical, and restart the server"
            )

    def _relation(self, connection: Any, schema: str, name: str) -> tuple[int, str, str]:
        found = connection.execute(
            "SELECT c.oid, c.relkind::text, c.relreplident::text FROM pg_class c "
            "JOIN pg_namespace s ON s.oid = c.relnamespace WHERE s.nspname = %s AND c.relname = %s",
            (schema, name),
        ).fetchone()
        if found is None or found[1] not in ("r", "p"):
            raise PipelineError(
                f"{self._where}: table {schema}.{name} not found in {self._server.address}: create it "
                "first, or check the name, which is case-sensitive"
            )
        return int(found[0]), str(found[1]), str(found[2])

    def _published(self, connection: Any, schema: str, name: str, kind: str) -> tuple[list[str], str | None]:
        exists = connection.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", (self._publication,)).fetchone()
        publication, table = quoted(self._publication), quoted(schema, name)
        by_root = " WITH (publish_via_partition_root = true)" if kind == "p" else ""
        if exists is None:
            raise PipelineError(
                f"{self._where}: publication '{self._publication}' not found in "
                f"{self._server.address}: CREATE PUBLICATION {publication} FOR TABLE {table}{by_root}"
            )
        found = connection.execute(
            "SELECT attnames::text[], rowfilter FROM pg_publication_tables "
            "WHERE pubname = %s AND schemaname = %s AND tablename = %s",
            (self._publication, schema, name),
        ).fetchone()
        if found is None:
            cure = f"ALTER PUBLICATION {publication} ADD TABLE {table}"
            if kind == "p":
                cure += f", and ALTER PUBLICATION {publication} SET (publish_via_partition_root = true)"
            raise PipelineError(f"{self._where}: publication '{self._publication}' does not have the table: {cure}")
        return list(found[0]), found[1]

    def _columns(self, connection: Any, number: int, published: Sequence[str]) -> tuple[Column, ...]:
        # A domain is read as the type that it stands for. A generated column is in no change, so in no snapshot.
        found = connection.execute(
            "SELECT a.attname, COALESCE(NULLIF(t.typbasetype, 0), a.atttypid)::oid, "
            "CASE WHEN t.typbasetype = 0 THEN a.atttypmod ELSE t.typtypmod END "
            "FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid WHERE a.attrelid = %s AND a.attnum > 0 "
            "AND NOT a.attisdropped AND a.attgenerated = '' AND a.attname = ANY(%s) ORDER BY a.attnum",
            (number, list(published)),
        ).fetchall()
        if any(name == OP for name, _, _ in found):
            raise PipelineError(
                f"{self._where}: the stream adds a column '{OP}', which the table has already: "
                "publish the other columns only: ALTER PUBLICATION … SET TABLE … (column, …)"
            )
        return tuple(Column(name, int(oid), arrow_type(int(oid), modifier)) for name, oid, modifier in found)

    def _key(self, connection: Any, number: int, identity: str) -> tuple[str, ...]:
        chosen = "i.indisreplident" if identity == "i" else "i.indisprimary"
        found = connection.execute(
            f"SELECT a.attname FROM pg_index i CROSS JOIN unnest(i.indkey) WITH ORDINALITY AS k(attnum, place) "
            f"JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum "
            f"WHERE i.indrelid = %s AND {chosen} ORDER BY k.place",
            (number,),
        ).fetchall()
        return tuple(name for (name,) in found)

    def _check_identity(self, table: Table, identity: str, changelog: Changelog) -> None:
        altered = f"ALTER TABLE {quoted(table.schema, table.name)}"
        if changelog == "retracting" and identity != _FULL:
            raise PipelineError(
                f"{self._where}: a retracting changelog needs the old rows, but the log of this table "
                f'has only their keys: {altered} REPLICA IDENTITY FULL, or set changelog="upserting"'
            )
        if changelog == "upserting" and (not table.key or identity == _NOTHING):
            raise PipelineError(
                f"{self._where}: an upserting changelog needs a key, but the log of this table has "
                f"none: {altered} ADD PRIMARY KEY (…), and {altered} REPLICA IDENTITY DEFAULT"
            )

    def check_partitions(self, connection: Any, table: Table, changelog: Changelog) -> None:
        """Raise `DataError` for a partition whose old rows are not in the log.

        They look as if they were: such a change is marked by the root, and has nulls where it has no values.
        """
        if changelog != "retracting":
            return
        found = connection.execute(
            "SELECT p.relid::regclass::text FROM pg_partition_tree(%s::regclass) p JOIN pg_class c ON c.oid = p.relid "
            "WHERE p.isleaf AND c.relreplident <> 'f' LIMIT 1",
            (quoted(table.schema, table.name),),
        ).fetchone()
        if found is not None:
            raise self._without_old_rows(found[0])

    def check_partition(self, connection: Any, table: Table, relation: Relation, changelog: Changelog) -> None:
        """Raise `DataError` for a relation of the log that is such a partition, before its first change is read."""
        if changelog != "retracting" or relation.identity == _FULL:
            return
        (is_partition,) = connection.execute(
            "SELECT EXISTS (SELECT FROM pg_partition_ancestors(%s::oid::regclass) a "
            "WHERE a.relid = %s::regclass AND a.relid <> %s::oid)",
            (relation.number, quoted(table.schema, table.name), relation.number),
        ).fetchone()
        if is_partition:
            raise self._without_old_rows(quoted(relation.schema, relation.name))

    def _without_old_rows(self, partition: str) -> DataError:
        return DataError(
            f"{self._where}: partition {partition} has no old rows in the log, which a retracting changelog needs: "
            f"ALTER TABLE {partition} REPLICA IDENTITY FULL. If it has changes already, start again with a new "
            f"checkpoint directory and a new slot"
        )

    def _check_snapshot(self, connection: Any, table: Table) -> None:
        if not table.key:
            raise PipelineError(
                f"{self._where}: existing rows are read in the order of the primary key, but the "
                f"table has none: ALTER TABLE {quoted(table.schema, table.name)} ADD PRIMARY KEY (…), "
                "or set snapshot=False"
            )
        names = [column.name for column in table.columns]
        for name in table.key:
            if name not in names:
                raise PipelineError(
                    f"{self._where}: publication '{self._publication}' leaves out '{name}' of the key: add it to its "
                    f"columns, or set snapshot=False"
                )
            if table.column(name).oid not in SORTED_KINDS:
                raise PipelineError(
                    f"{self._where}: existing rows are read in the order of the key, but the order of "
                    f"the type of '{name}' is not known here: it must be an integer, text, varchar, "
                    "uuid, date or timestamp. Set snapshot=False to read changes alone"
                )
        (may_read,) = connection.execute(
            "SELECT has_table_privilege(%s, 'SELECT')", (quoted(table.schema, table.name),)
        ).fetchone()
        if not may_read:
            raise PipelineError(
                f"{self._where}: the user may not read the table: GRANT SELECT ON "
                f"{quoted(table.schema, table.name)} TO …, or set snapshot=False"
            )

    def _warn_of_publication(self, connection: Any, table: Table) -> None:
        found = connection.execute(
            "SELECT pubinsert, pubupdate, pubdelete, pubtruncate FROM pg_publication WHERE pubname = %s",
            (self._publication,),
        ).fetchone()
        kinds = ("inserts", "updates", "deletes", "truncates")
        missing = [kind for kind, is_published in zip(kinds, found, strict=True) if not is_published]
        if missing:
            _log.warning(
                "%s: publication '%s' publishes no %s of %s: the stream will not contain them",
                self._where,
                self._publication,
                ", no ".join(missing),
                table.shown,
            )

    # --- slot ---

    def system(self) -> str:
        """The identifier of the server, by a connection for replication. Raises `PipelineError` without permission."""
        psycopg = driver()
        try:
            connection = self._server.connect(autocommit=True, replication="database")
        except StorageError as error:
            if isinstance(error.__cause__, psycopg.OperationalError) and "replication" in str(error):
                raise PipelineError(
                    f"{self._where}: the user may not replicate: ALTER ROLE … REPLICATION, by a superuser ({error})"
                ) from error
            raise
        with connection:
            found = connection.execute("IDENTIFY_SYSTEM").fetchone()
        return str(found[0])

    def slot(self, connection: Any) -> Slot | None:
        """The slot as it is now; None if it is missing. Raises `PipelineError` if it is of another kind."""
        found = connection.execute(
            "SELECT slot_type, plugin, database, confirmed_flush_lsn - '0/0', wal_status, "
            "pg_current_wal_lsn() - restart_lsn, pg_current_wal_lsn() - '0/0', safe_wal_size "
            "FROM pg_replication_slots WHERE slot_name = %s",
            (self._slot,),
        ).fetchone()
        if found is None:
            return None
        kind, plugin, database, confirmed, status, retained, wal_end, safe = found
        (current,) = connection.execute("SELECT current_database()").fetchone()
        if (kind, plugin, database) != ("logical", "pgoutput", current):
            raise PipelineError(
                f"{self._where}: slot '{self._slot}' is a {kind} slot ({plugin}) of database "
                f"{database}, and must be a logical one (pgoutput) of {current}: choose another name "
                "for the slot; the source creates it"
            )
        return Slot(int(confirmed or 0), status or "lost", int(retained or 0), int(wal_end), safe and int(safe))

    def check_slot(self, slot: Slot) -> None:
        """Raise `DataError` if the server has given the slot up."""
        if slot.status == "lost":
            raise DataError(
                f"{self._where}: the server has removed the log of slot '{self._slot}', which had grown beyond "
                f"max_slot_wal_keep_size: changes are lost. Drop the slot (SELECT pg_drop_replication_slot("
                f"'{self._slot}')), start again with a new checkpoint directory, and raise that setting"
            )
