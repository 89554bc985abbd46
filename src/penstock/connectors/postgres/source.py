"""A table of PostgreSQL as a source: the rows that are there, then every change of them, by logical replication."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from penstock.connectors.postgres.catalog import Catalog, Table
from penstock.connectors.postgres.changes import Decoder, Entry
from penstock.connectors.postgres.log_reader import LogReader
from penstock.connectors.postgres.positions import Position
from penstock.connectors.postgres.server import Server, table_name
from penstock.connectors.source import Backlog, Portion, Source, SplitReader
from penstock.connectors.threads import Feed
from penstock.errors import PipelineError
from penstock.model.changelog import Changelog

_WAITING_BYTES_MAX = 16 << 20
_SPLIT = "log"


class PostgresSource(Source):
    """A table of PostgreSQL and its changes: the rows that are there, then inserts, updates and deletes as they commit.

        PostgresSource(dsn, "orders", publication="penstock", slot="totals")
        PostgresSource(dsn, "shop.orders", publication="penstock", slot="mirror", changelog="upserting")
        PostgresSource(dsn, "orders", publication="penstock", slot="news", snapshot=False)   # changes alone

    Example:

        source = PostgresSource("postgresql://app@db/shop", "orders", publication="penstock", slot="totals")
        shop = Pipeline("shop")
        changes = shop.source(source, name="changes")
        totals = changes.key_by("customer").aggregate(total=("sum", "amount"), emit="changelog").to_upsert("customer")
        totals.sink(PostgresSink("postgresql://app@db/shop", "totals", mode="upsert", key="customer"), name="table")
        assert shop.graph().nodes[-1].name == "table"

    The stream is a changelog, with a column `op`. With `changelog="retracting"` an update is a delete of the row as it
    was and an insert of the row as it is, so that aggregates can take values back: the table needs `REPLICA IDENTITY
    FULL`. With "upserting" it is one record, for a table with the same key; a delete has the columns of the key alone.

    The server needs `wal_level = logical`, a publication with the table, and a user that may replicate. The source
    creates the slot if it is missing. Rows and changes come once each, whatever dies: the place in the server's log is
    in the checkpoint, and the server is told of it when the checkpoint is durable. There is one split: changes have an
    order.

    `snapshot` are the rows that are there when a new pipeline starts. A TRUNCATE does not say which rows are gone: it
    is a `DataError`, or passed over with `on_truncate="skip"`.

    The trap: a slot keeps the server's log until the pipeline has a checkpoint behind it. One that nobody reads any
    more fills the disk of the server: drop it (`pg_drop_replication_slot`), and set `max_slot_wal_keep_size`.
    """

    is_endless = True

    def __init__(
        self,
        dsn: str,
        table: str,
        *,
        publication: str,
        slot: str,
        changelog: Changelog = "retracting",
        snapshot: bool = True,
        on_truncate: Literal["fail", "skip"] = "fail",
    ) -> None:
        if changelog not in ("retracting", "upserting"):
            raise PipelineError(f"PostgresSource: changelog is {changelog!r}: it must be 'retracting' or 'upserting'")
        if on_truncate not in ("fail", "skip"):
            raise PipelineError(f"PostgresSource: on_truncate is {on_truncate!r}: it must be 'fail' or 'skip'")
        if not publication:
            raise PipelineError("PostgresSource: publication is empty: name one that contains the table")
        if not slot or not set(slot) <= set("abcdefghijklmnopqrstuvwxyz0123456789_") or len(slot) > 63:
            raise PipelineError(
                f"PostgresSource: slot is {slot!r}: it must consist of at most 63 lower-case letters, "
                "digits and underscores"
            )
        self.server = Server("PostgresSource", dsn)
        self.schema, self.table = table_name("PostgresSource", table)
        self.publication = publication
        self.slot = slot
        self.changelog: Changelog = changelog
        self.has_snapshot = snapshot
        self.on_truncate = on_truncate
        self._table: Table | None = None

    def identity(self) -> Mapping[str, str]:
        # Without the server: databases move. A checkpoint knows the server by its identifier.
        table = f"{self.schema}.{self.table}"
        return {**super().identity(), "table": table, "database": self.server.database, "changelog": self.changelog}

    def on_start(self) -> None:
        # All workers have the columns of now, whatever is altered while they start.
        self._checked()

    def splits(self) -> Sequence[str]:
        return [_SPLIT]

    def open(self, split: str, offset: bytes | None) -> SplitReader:
        table, position = self._checked(), Position.decoded(offset) if offset else None
        decoder = Decoder(table, self.changelog, self._where)
        work = LogReader(
            self.server,
            table,
            self._catalog(),
            decoder,
            where=self._where,
            slot=self.slot,
            publication=self.publication,
            has_snapshot=self.has_snapshot,
            skips_truncate=self.on_truncate == "skip",
            position=position,
        )
        return PostgresReader(work, position)

    @property
    def _where(self) -> str:
        return f"PostgresSource of {self.schema}.{self.table}"

    def _catalog(self) -> Catalog:
        return Catalog(self.server, self._where, self.publication, self.slot)

    def _checked(self) -> Table:
        if self._table is None:
            self._table = self._catalog().table(self.schema, self.table, self.changelog, has_snapshot=self.has_snapshot)
        return self._table


class PostgresReader(SplitReader):
    """Takes what the thread has read, and knows the position behind what it has returned."""

    def __init__(self, work: LogReader, position: Position | None) -> None:
        self._work = work
        self._feed = Feed("penstock-postgres", work.work, _WAITING_BYTES_MAX)
        self._position = position
        self._entry: Entry | None = None
        self._row = 0

    @property
    def is_caught_up(self) -> bool:  # type: ignore[override]
        return self._work.is_caught_up and self._entry is None and not self._feed.entries

    def read(self, rows_max: int) -> Any:
        if not self._feed.is_started:
            self._feed.start()
        if self._entry is None and not self._next():
            return None
        entry = self._entry
        assert entry is not None
        if entry.batch is None:
            self._finish(entry)
            if entry.truncated:
                return Portion(rows_skipped=1, example=entry.truncated)
            return None
        return self._part(entry, rows_max)

    def _next(self) -> bool:
        # In this order: the thread fails after its last entry.
        failed = self._feed.failed
        if not self._feed.entries:
            if failed is not None:
                raise failed
            return False
        self._entry, self._row = self._feed.entries[0], 0
        return True

    def _part(self, entry: Entry, rows_max: int) -> Any:
        assert entry.batch is not None and entry.places is not None
        first, count = self._row, entry.batch.num_rows
        end = entry.places.cut(min(first + rows_max, count))
        if end == count:
            self._finish(entry)
        else:
            self._row, self._position = end, entry.places.behind(end)
        return entry.batch.slice(first, end - first)

    def _finish(self, entry: Entry) -> None:
        self._position, self._entry = entry.end, None
        self._feed.take(entry.size)
        self._feed.wake()

    def backlog(self) -> Backlog | None:
        end = self._work.wal_end
        return None if end is None or self._position is None else Backlog(bytes=max(0, end - self._position.lsn))

    def offset(self) -> bytes:
        return b"{}" if self._position is None else self._position.encoded()

    def on_checkpoint_complete(self, offset: bytes) -> None:
        position = Position.decoded(offset)
        if position is not None:
            self._work.durable = max(self._work.durable, position.lsn)

    def close(self) -> None:
        self._feed.close()
