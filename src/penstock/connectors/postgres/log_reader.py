"""Reads a table of PostgreSQL in a thread beside the mailbox: the rows that are there, then the changes in the log.

The slot comes first, so that nothing is missed, and then the rows: the log repeats some of what they hold, and that is
left out (see `positions`). For this a snapshot must see every transaction that committed in front of the slot. Such a
transaction may still be finishing when the slot is there, on a server with synchronous replicas for long; so the
snapshot is taken when all that were writing then have ended.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np

from penstock.connectors.postgres.catalog import Catalog, Slot, Table
from penstock.connectors.postgres.changes import Decoder, Entry, Pending
from penstock.connectors.postgres.kinds import SETTINGS
from penstock.connectors.postgres.pgoutput import BEGIN, COMMIT, RELATION, TRUNCATE, Relation, relation_of, truncated
from penstock.connectors.postgres.positions import Position, Snapshot
from penstock.connectors.postgres.server import Server, driver
from penstock.connectors.postgres.wal_stream import SlotBusy, WalStream, shown_lsn
from penstock.connectors.threads import Feed
from penstock.errors import DataError, StorageError

_ENTRY_BYTES = 256 << 10
_POLL_S = 0.1
_LOOK_S = 10.0
_BUSY_S = 120.0
"""Twice the time after which a server gives up a client that is gone (`wal_sender_timeout`)."""
_RETAINED_BYTES_MAX = 1 << 30
"""Log that a slot keeps, beyond which each doubling is a warning."""
_UNREPORTED_BYTES_MAX = 16 << 20
"""Log of other tables that is passed over before the position says so."""
_CHANGES = frozenset(b"IUD")

_log = logging.getLogger("penstock")


class LogReader:
    """The work of the thread. The mailbox sets `durable`, and reads `wal_end` and `is_caught_up`."""

    def __init__(
        self,
        server: Server,
        table: Table,
        catalog: Catalog,
        decoder: Decoder,
        *,
        where: str,
        slot: str,
        publication: str,
        has_snapshot: bool,
        skips_truncate: bool,
        position: Position | None,
    ) -> None:
        self._server = server
        self._table = table
        self._catalog = catalog
        self._decoder = decoder
        self._where = where
        self._slot = slot
        self._publication = publication
        self._has_snapshot = has_snapshot
        self._skips_truncate = skips_truncate
        self._position = position
        self.durable = 0
        """A place in the log behind which a checkpoint is durable."""
        self.wal_end: int | None = None
        self.is_caught_up = False
        self._stream: WalStream | None = None
        self._looked_at = -_LOOK_S
        self._retained_max = _RETAINED_BYTES_MAX
        # Of the log: the table as its messages describe it, the transaction under way, and changes to be decoded.
        self._relation: Relation | None = None
        self._transaction: tuple[int, int] | None = None
        """Where it commits, and its number."""
        self._count = 0
        """Changes of it so far."""
        self._lsn = 0
        """The end of the last whole transaction."""
        self._reported = 0
        self._resumed: tuple[int, int] | None = None
        """The transaction that was read in part before the restart: where it commits, and how many changes."""
        self._pending = Pending()

    def work(self, feed: Feed) -> None:
        feed.on_wake = self._tell
        with self._told_errors():
            system = self._catalog.system()
            with self._server.connect(autocommit=True, options=SETTINGS) as connection:
                position = self._begun(feed, connection, system)
                if not position.is_complete:
                    position = self._read_snapshot(feed, connection, position)
                self._follow(feed, connection, position)

    @contextmanager
    def _told_errors(self) -> Iterator[None]:
        psycopg = driver()
        try:
            yield
        except psycopg.Error as error:
            text = " ".join(str(error).split())
            raise StorageError(f"{self._where}: {self._server.address} has failed: {text}") from error

    # --- slot ---

    def _begun(self, feed: Feed, connection: Any, system: str) -> Position:
        """Where to begin, with a slot that has everything from there on. Raises `DataError` if that is gone."""
        slot, position = self._catalog.slot(connection), self._position
        if slot is not None:
            self._catalog.check_slot(slot)
        if position is not None:
            self._check_position(position, slot, system)
            return position
        if slot is None:
            slot = self._created(feed, connection)
        if self._has_snapshot:
            self._await_writers(feed, connection)
        return Position(system, slot.confirmed, is_complete=not self._has_snapshot)

    def _check_position(self, position: Position, slot: Slot | None, system: str) -> None:
        again = "start again with a new checkpoint directory, which reads the table anew"
        if position.system != system:
            raise DataError(
                f"{self._where}: the checkpoint belongs to the server with the identifier "
                f"{position.system}, and this server has {system}: correct dsn, or {again}"
            )
        if slot is None:
            raise DataError(
                f"{self._where}: slot '{self._slot}' was dropped, and with it the changes behind the "
                f"checkpoint: {again}"
            )
        if slot.confirmed > position.lsn:
            raise DataError(
                f"{self._where}: the checkpoint needs the log from {shown_lsn(position.lsn)} on, and slot "
                f"'{self._slot}' has it from {shown_lsn(slot.confirmed)} on: a later checkpoint was durable, the slot "
                f"was created anew, or another pipeline reads it. Start from the newest checkpoint, or {again}"
            )

    def _created(self, feed: Feed, connection: Any) -> Slot:
        """Create the slot, which waits for all transactions that are writing."""
        psycopg = driver()
        seconds = 10
        while True:
            try:
                connection.execute(f"SET statement_timeout = '{seconds} s'")
                connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (self._slot,))
                connection.execute("SET statement_timeout = 0")
                break
            except psycopg.errors.DuplicateObject:
                break
            except psycopg.errors.QueryCanceled:
                seconds *= 2
                self._warn_of_writers(connection, f"the creation of slot '{self._slot}'")
                feed.wait(0)
            except psycopg.errors.ConfigurationLimitExceeded as error:
                raise StorageError(
                    f"{self._where}: the server has no free replication slot: drop an unused one "
                    f"(pg_replication_slots), or raise max_replication_slots ({error})"
                ) from error
        slot = self._catalog.slot(connection)
        assert slot is not None
        _log.info("%s: created slot '%s' at %s", self._where, self._slot, shown_lsn(slot.confirmed))
        return slot

    def _await_writers(self, feed: Feed, connection: Any) -> None:
        (coming,) = connection.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text").fetchone()
        warned_at = time.monotonic()
        while connection.execute("SELECT pg_snapshot_xmin(pg_current_snapshot()) < %s::xid8", (coming,)).fetchone()[0]:
            if time.monotonic() - warned_at > _LOOK_S:
                warned_at = time.monotonic()
                self._warn_of_writers(connection, "the snapshot")
            feed.wait(_POLL_S)

    def _warn_of_writers(self, connection: Any, what: str) -> None:
        found = connection.execute(
            "SELECT pid, now() - xact_start FROM pg_stat_activity WHERE backend_xid IS NOT NULL ORDER BY xact_start "
            "LIMIT 1"
        ).fetchone()
        oldest = f", the oldest of process {found[0]} for {found[1]}" if found else ""
        _log.warning("%s: %s waits for transactions that write%s", self._where, what, oldest)

    # --- snapshot ---

    def _read_snapshot(self, feed: Feed, connection: Any, position: Position) -> Position:
        """The rows behind the last key that was read, all of them in one transaction."""
        before = tuple(snapshot for snapshot in position.snapshots if snapshot.to is not None)
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        sees, wal = connection.execute(
            "SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn() - '0/0'"
        ).fetchone()
        position = replace(position, snapshots=(*before, Snapshot(sees, int(wal))))
        statement = self._table.copy_statement(before[-1].to if before else None)
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            rows: list[bytes] = []
            size = 0
            for row in copy:
                rows.append(bytes(row))
                size += len(row)
                if size >= _ENTRY_BYTES:
                    self._put(feed, self._decoder.of_copy(b"".join(rows), position))
                    rows, size = [], 0
            if rows:
                self._put(feed, self._decoder.of_copy(b"".join(rows), position))
        connection.execute("COMMIT")
        position = replace(position, is_complete=True)
        self._put(feed, Entry(position))
        return position

    def _put(self, feed: Feed, entry: Entry) -> None:
        feed.put(entry, entry.size)

    # --- log ---

    def _follow(self, feed: Feed, connection: Any, position: Position) -> None:
        self._position = position
        self._lsn = position.lsn
        self._resumed = (position.commit, position.changes) if position.commit else None
        stream = self._stream = self._started(feed, position.lsn)
        try:
            while True:
                message = stream.message()
                if message is not None:
                    self.is_caught_up = False
                    self._on_message(feed, connection, message)
                else:
                    self._on_idle(feed, connection, stream)
        finally:
            # The last checkpoint of a pipeline that stops: the server may forget what is in front of it.
            with suppress(Exception):
                self._tell()
            stream.close()

    def _started(self, feed: Feed, lsn: int) -> WalStream:
        until = time.monotonic() + _BUSY_S
        has_warned = False
        while True:
            try:
                return WalStream(self._server, self._slot, self._publication, lsn)
            except SlotBusy as busy:
                if time.monotonic() > until:
                    raise StorageError(
                        f"{self._where}: another process reads slot '{self._slot}' ({busy}): two "
                        "pipelines need two slots. If that is the connection of a dead worker, end "
                        "it: SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE "
                        f"slot_name = '{self._slot}'"
                    ) from busy
                if not has_warned:
                    has_warned = True
                    _log.warning("%s: waiting for slot '%s': %s", self._where, self._slot, busy)
                feed.wait(0.5)

    def _on_idle(self, feed: Feed, connection: Any, stream: WalStream) -> None:
        """Everything that the server has sent is read."""
        if self._transaction is None and self._resumed is None and stream.idle_at > self._lsn:
            # Others have written to the log. Without this step a quiet table would keep all of that.
            self._lsn = stream.idle_at
        self._flush(feed)
        self.is_caught_up = self._transaction is None
        self._look(connection)
        stream.wait(_POLL_S)
        feed.wait(0)

    def _on_message(self, feed: Feed, connection: Any, message: bytes) -> None:
        kind = message[0]
        if kind in _CHANGES:
            self._on_change(feed, message)
        elif kind == BEGIN:
            commit, _, number = struct.unpack_from(">QqI", message, 1)
            self._transaction, self._count = (commit, number), 0
        elif kind == COMMIT:
            commit, end = struct.unpack_from(">QQ", message, 2)
            self._on_commit(feed, commit, end)
        elif kind == RELATION:
            self._on_relation(feed, connection, relation_of(message))
        elif kind == TRUNCATE:
            self._on_truncate(feed, truncated(message))

    def _on_relation(self, feed: Feed, connection: Any, relation: Relation) -> None:
        if (relation.schema, relation.name) == (self._table.schema, self._table.name):
            # Changes so far are in the columns of before.
            self._flush(feed)
            self._relation = relation
        else:
            # The server describes a partition before the first change in it, and again when it is altered. Its changes
            # come as those of the root, and do not tell whether they have old rows.
            self._catalog.check_partition(connection, self._table, relation, self._decoder.changelog)

    def _on_change(self, feed: Feed, message: bytes) -> None:
        if self._relation is None or struct.unpack_from(">I", message, 1)[0] != self._relation.number:
            return
        if not self._is_next():
            return
        commit, number = self._under_way()
        pending = self._pending
        pending.messages.append(message)
        pending.transactions.append(number)
        pending.lsns.append(self._lsn)
        pending.commits.append(commit)
        pending.counts.append(self._count)
        pending.size += len(message)
        if pending.size >= _ENTRY_BYTES:
            self._flush(feed)

    def _is_next(self) -> bool:
        """Count a change of the transaction under way; False if it was returned before the restart."""
        self._count += 1
        if self._resumed is None:
            return True
        commit, changes = self._resumed
        if self._under_way()[0] != commit:
            raise self._other_log(commit)
        return self._count > changes

    def _under_way(self) -> tuple[int, int]:
        assert self._transaction is not None
        return self._transaction

    def _other_log(self, commit: int) -> DataError:
        return DataError(
            f"{self._where}: the checkpoint is in the middle of the transaction at "
            f"{shown_lsn(commit)}, which the log no longer has in the same form: was publication "
            f"'{self._publication}' changed? Start again with a new checkpoint directory, which reads "
            "the table anew"
        )

    def _on_commit(self, feed: Feed, commit: int, end: int) -> None:
        if self._resumed is not None:
            at, changes = self._resumed
            if commit > at or (commit == at and self._count < changes):
                raise self._other_log(at)
            if commit == at:
                self._resumed = None
        self._lsn, self._transaction = end, None
        if self._lsn - self._reported > _UNREPORTED_BYTES_MAX:
            self._flush(feed)

    def _on_truncate(self, feed: Feed, numbers: set[int]) -> None:
        if self._relation is None or self._relation.number not in numbers:
            return
        # I1: the position that is handed over now must not be behind the change that may be an error.
        self._flush(feed)
        if not self._is_next():
            return
        commit, number = self._under_way()
        assert self._position is not None
        snapshots = self._position.snapshots
        if snapshots and all(snapshot.has_seen(np.array([number]))[0] for snapshot in snapshots):
            return
        text = f"TRUNCATE of {self._table.shown} in the transaction at {shown_lsn(commit)}"
        if not self._skips_truncate:
            raise DataError(
                f"{self._where}: {text}: the log does not say which rows are gone. Start again with a "
                'new checkpoint directory, which reads the table anew, or set on_truncate="skip" if '
                "rows that the stream has delivered may stay downstream"
            )
        _log.warning("%s: %s is skipped: rows that the stream has delivered stay downstream", self._where, text)
        self._position = replace(self._position, lsn=self._lsn, commit=commit, changes=self._count)
        self._put(feed, Entry(self._position, truncated=text))

    def _flush(self, feed: Feed) -> None:
        """Hand over changes that are pending, and the position behind them."""
        base = self._position
        assert base is not None
        is_between = self._transaction is None or not self._count
        commit, count = (0, 0) if is_between else (self._under_way()[0], self._count)
        if self._resumed is not None:
            # Nothing was returned since: the position is that of the restart.
            return
        end = replace(base, lsn=self._lsn, commit=commit, changes=count).pruned()
        pending, self._pending = self._pending, Pending()
        if pending.messages:
            assert self._relation is not None
            self._put(feed, self._decoder.of_log(pending, self._relation, base, end))
        elif end != base:
            self._put(feed, Entry(end))
        self._position = end
        self._reported = self._lsn
        self._tell()

    # --- the server ---

    def _tell(self) -> None:
        if self._stream is not None:
            self._stream.confirmed = self.durable
            self._stream.tell_if_due()

    def _look(self, connection: Any) -> None:
        """See now and then how much log the slot keeps, and say if it is much."""
        if time.monotonic() - self._looked_at < _LOOK_S:
            return
        self._looked_at = time.monotonic()
        slot = self._catalog.slot(connection)
        self._catalog.check_partitions(connection, self._table, self._decoder.changelog)
        if slot is None:
            return
        self.wal_end = slot.wal_end
        if slot.retained_bytes >= self._retained_max or slot.status == "unreserved":
            self._retained_max = max(self._retained_max, 2 * slot.retained_bytes)
            left = "" if slot.safe_bytes is None else f"; after {slot.safe_bytes >> 20} MiB more the server gives it up"
            _log.warning(
                "%s: slot '%s' keeps %d MiB of the server's log%s. It is freed as checkpoints complete: check that "
                "they do, and that the pipeline keeps up",
                self._where,
                self._slot,
                slot.retained_bytes >> 20,
                left,
            )
