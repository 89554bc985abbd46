"""Defects of PostgreSQL as a source: rows and changes that meet, positions, and values."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant

_TESTS = ("tests/unit/connectors/postgres/test_positions.py", "tests/tables/test_postgres_source.py")


def _mutant(name: str, file: str, old: str, new: str, why: str) -> Mutant:
    return Mutant(name, OWN, f"connectors/postgres/{file}", old, new, why, seeds=0, tests=_TESTS)


MUTANTS = (
    _mutant(
        "Changes that a snapshot has seen come again",
        "changes.py",
        "        if base.snapshots:\n",
        "        if False:\n",
        "I1: rows of the snapshot come twice, or are taken back once too often.",
    ),
    _mutant(
        "A change belongs to the first snapshot, wherever its key lies",
        "positions.py",
        "inside = is_open if snapshot.to is None else is_open & _at_most(keys, snapshot.to, kinds)",
        "inside = is_open",
        "I1: changes between two snapshots come twice behind the last key of the first.",
    ),
    _mutant(
        "Transactions that ran when a snapshot was taken count as seen",
        "positions.py",
        "((numbers < coming) & ~np.isin(numbers, listed))",
        "(numbers < coming)",
        "I1: their changes are lost.",
    ),
    _mutant(
        "A snapshot goes on from its first key after a restart",
        "log_reader.py",
        "self._table.copy_statement(before[-1].to if before else None)",
        "self._table.copy_statement(None)",
        "I1: rows come twice.",
    ),
    _mutant(
        "Texts of a key are compared as the server sorts them",
        "catalog.py",
        "        return f'{quoted(name)} COLLATE \"C\"' if self.column(name).oid in TEXTS else quoted(name)",
        "        return quoted(name)",
        "A snapshot is read in an order in which its ranges are not told apart.",
    ),
    _mutant(
        "The server is told of a place when it is read",
        "log_reader.py",
        "            self._stream.confirmed = self.durable\n",
        "            self._stream.confirmed = self._lsn\n",
        "I1: the log behind the checkpoint is gone after a crash.",
    ),
    _mutant(
        "A slot that is ahead of the checkpoint is not noticed",
        "log_reader.py",
        "        if slot.confirmed > position.lsn:\n",
        "        if False:\n",
        "I8: changes between the two are lost in silence.",
    ),
    _mutant(
        "A transaction is read from its first change after a restart",
        "log_reader.py",
        "        return self._count > changes\n",
        "        return True\n",
        "I1: its changes come twice.",
    ),
    _mutant(
        "A position behind one row of an update stands for both",
        "changes.py",
        "        while end < len(self.changes) and self.changes[end] == self.changes[end - 1]:\n            end += 1\n",
        "",
        "I1: the second row is lost after a restart.",
    ),
    _mutant(
        "The position is behind a truncate that is an error",
        "log_reader.py",
        "        self._flush(feed)\n        if not self._is_next():\n            return\n",
        "        if not self._is_next():\n            return\n        self._flush(feed)\n",
        "I8: after a restart nobody hears of it.",
    ),
    _mutant(
        "A large value that the log does not repeat is null",
        "pgoutput.py",
        "            if not unchanged.any():\n",
        "            if True:\n",
        "I8: an update makes a null of a value that it left alone.",
    ),
    _mutant(
        "The log of other tables does not move the position of a quiet one",
        "log_reader.py",
        "            self._lsn = stream.idle_at\n",
        "            pass\n",
        "The slot keeps the log of the whole server.",
    ),
    _mutant(
        "The snapshot has rows that the publication leaves out",
        "catalog.py",
        'conditions = [f"({self.row_filter})"] if self.row_filter else []',
        "conditions = []",
        "Rows come that have no changes.",
    ),
    _mutant(
        "Partitions without old rows in the log are not looked for",
        "catalog.py",
        "        if found is not None:\n            raise self._without_old_rows(",
        "        if False:\n            raise self._without_old_rows(",
        "I8: rows are taken back with nulls in place of their values.",
    ),
    _mutant(
        "A partition without old rows is not looked for when its changes come",
        "catalog.py",
        "        if is_partition:\n",
        "        if False:\n",
        "I8: a partition that is made while the pipeline runs has nulls in place of its old rows.",
    ),
    _mutant(
        "A snapshot is forgotten at once",
        "positions.py",
        "left = tuple(one for one in self.snapshots if one.wal > self.lsn)",
        "left = ()",
        "I1: changes that it has seen come again.",
    ),
)
