"""The log of a server as it comes: the replication protocol on a connection of psycopg.

psycopg gives access to the copy in both directions by which PostgreSQL replicates, and no more: messages are taken
apart here. The server is told a place when a checkpoint behind it is durable, and removes its log up to there; so a
crash at any moment finds all that is needed.
"""

from __future__ import annotations

import select
import struct
import time

from penstock.connectors.postgres.kinds import SETTINGS
from penstock.connectors.postgres.server import Server, driver, quoted

_EPOCH_S = 946_684_800
"""2000-01-01, from which PostgreSQL counts."""
_STATUS_EVERY_S = 5.0
"""The server ends a connection that says nothing for `wal_sender_timeout`, a minute unless it is set."""
_DATA, _KEEPALIVE = b"wk"
_DATA_HEADER = 25


class SlotBusy(Exception):
    """Another connection reads the slot."""


class WalStream:
    """Messages of one slot from a place on. Used by one thread."""

    def __init__(self, server: Server, slot: str, publication: str, lsn: int) -> None:
        self._connection = server.connect(autocommit=True, replication="database", options=SETTINGS)
        self._copy = self._connection.pgconn
        self.confirmed = 0
        """The place of which the server is told."""
        self.idle_at = lsn
        """All transactions that committed in front of it have come, if none is under way."""
        self._told = 0
        self._told_at = time.monotonic()
        try:
            self._begin(slot, publication, lsn)
        except BaseException:
            self.close()
            raise

    def _begin(self, slot: str, publication: str, lsn: int) -> None:
        psycopg = driver()
        names = quoted(publication).replace("'", "''")
        command = (
            f"START_REPLICATION SLOT {quoted(slot)} LOGICAL {shown_lsn(lsn)} "
            f"(proto_version '1', publication_names '{names}')"
        )
        self._copy.send_query(command.encode())
        result = self._copy.get_result()
        if result.status != psycopg.pq.ExecStatus.COPY_BOTH:
            error = psycopg.errors.error_from_result(result)
            if isinstance(error, psycopg.errors.ObjectInUse):
                raise SlotBusy(" ".join(str(error).split()))
            raise error

    def message(self) -> bytes | None:
        """The next message of the log; None if none has come. Raises `psycopg.Error` when the server ends it."""
        while True:
            length, data = self._copy.get_copy_data(1)
            if length == 0:
                self._copy.consume_input()
                length, data = self._copy.get_copy_data(1)
                if length == 0:
                    return None
            if length < 0:
                raise self._ending()
            if data[0] == _DATA:
                return bytes(data[_DATA_HEADER:])
            if data[0] == _KEEPALIVE:
                self.idle_at, _, wants_reply = struct.unpack_from(">QqB", data, 1)
                if wants_reply:
                    self._tell()

    def _ending(self) -> Exception:
        psycopg = driver()
        result = self._copy.get_result()
        if result is not None and result.status == psycopg.pq.ExecStatus.FATAL_ERROR:
            found: Exception = psycopg.errors.error_from_result(result)
            return found
        ended: Exception = psycopg.OperationalError("the server has ended the replication")
        return ended

    def wait(self, seconds: float) -> None:
        """Until something has come."""
        select.select([self._copy.socket], [], [], seconds)

    def tell_if_due(self) -> None:
        """Tell the server of the confirmed place, and that this side lives."""
        if self.confirmed != self._told or time.monotonic() - self._told_at >= _STATUS_EVERY_S:
            self._tell()

    def _tell(self) -> None:
        self._told, self._told_at = self.confirmed, time.monotonic()
        now = int((time.time() - _EPOCH_S) * 1_000_000)
        place = self.confirmed
        self._copy.put_copy_data(struct.pack(">cQQQqB", b"r", place, place, place, now, 0))
        self._copy.flush()

    def close(self) -> None:
        self._connection.close()


def shown_lsn(lsn: int) -> str:
    """A place in the log as PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
