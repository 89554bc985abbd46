"""Rows on their way from a server to a reader: of a snapshot, and of the changes in the log, with their positions."""

from __future__ import annotations

import io
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv

from penstock.connectors.postgres.catalog import Table
from penstock.connectors.postgres.kinds import typed
from penstock.connectors.postgres.pgoutput import DELETE as DELETED
from penstock.connectors.postgres.pgoutput import UPDATE as UPDATED
from penstock.connectors.postgres.pgoutput import Mask, Relation, Tuples
from penstock.connectors.postgres.positions import Position, Snapshot, is_new
from penstock.errors import DataError
from penstock.model.changelog import DELETE, INSERT, OP, UPDATE, Changelog

_OPS = pa.array([INSERT, UPDATE, DELETE])
_INSERT, _UPDATE, _DELETE = range(3)

_log = logging.getLogger("penstock")


class Places(Protocol):
    """The positions within a batch."""

    def cut(self, end: int) -> int:
        """The first row from `end` on behind which there is a position."""
        ...

    def behind(self, end: int) -> Position: ...


@dataclass(frozen=True, slots=True)
class Entry:
    """What one reading has brought."""

    end: Position
    batch: pa.RecordBatch | None = None
    places: Places | None = None
    size: int = 0
    truncated: str = ""
    """A TRUNCATE that is passed over: where it is in the log."""


@dataclass(frozen=True, slots=True)
class SnapshotPlaces:
    """Behind each row of a snapshot there is a position: its key."""

    base: Position
    keys: list[pa.Array]

    def cut(self, end: int) -> int:
        return end

    def behind(self, end: int) -> Position:
        *before, last = self.base.snapshots
        key = tuple(column[end - 1].as_py() for column in self.keys)
        return replace(self.base, snapshots=(*before, replace(last, to=key)))


@dataclass(frozen=True, slots=True)
class ChangePlaces:
    """Behind each change there is a position; both rows of an update belong to one change."""

    base: Position
    changes: npt.NDArray[np.int64]
    """The number of the change, of each row."""
    pending: Pending

    def cut(self, end: int) -> int:
        while end < len(self.changes) and self.changes[end] == self.changes[end - 1]:
            end += 1
        return end

    def behind(self, end: int) -> Position:
        number = self.changes[end - 1]
        pending = self.pending
        return replace(
            self.base, lsn=pending.lsns[number], commit=pending.commits[number], changes=pending.counts[number]
        )


@dataclass(slots=True)
class Pending:
    """Changes that were taken from the log and are not decoded yet; a number of each list for each of them."""

    messages: list[bytes] = field(default_factory=list)
    transactions: list[int] = field(default_factory=list)
    lsns: list[int] = field(default_factory=list)
    """The end of the transaction before."""
    commits: list[int] = field(default_factory=list)
    """Where its transaction commits."""
    counts: list[int] = field(default_factory=list)
    """Which change of the transaction it is, the first is 1."""
    size: int = 0


class Decoder:
    """Makes records of rows and changes, in the columns that the table had when the pipeline started."""

    def __init__(self, table: Table, changelog: Changelog, where: str) -> None:
        self._table = table
        self.changelog = changelog
        self._where = where
        self._said: set[str] = set()
        self.schema = pa.schema([*((one.name, one.kind) for one in table.columns), (OP, pa.string())])

    # --- rows of a snapshot ---

    def of_copy(self, data: bytes, base: Position) -> Entry:
        """Rows of a COPY, of which the last snapshot of `base` is read."""
        names = [column.name for column in self._table.columns]
        found = pyarrow.csv.read_csv(
            io.BytesIO(data),
            # Everything in one block: rows are not to be cut.
            pyarrow.csv.ReadOptions(column_names=names, block_size=len(data) + 1, use_threads=False),
            pyarrow.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        ).combine_chunks()
        texts = {name: found.column(name).chunk(0) for name in names}
        batch = self._batch(texts, pa.repeat(pa.scalar(INSERT), found.num_rows))
        places = SnapshotPlaces(base, [texts[name] for name in self._table.key])
        return Entry(places.behind(batch.num_rows), batch, places, len(data))

    # --- changes of the log ---

    def of_log(self, pending: Pending, relation: Relation, base: Position, end: Position) -> Entry:
        """The changes that are not in the snapshots of `base`."""
        tuples = Tuples(pending.messages, relation)
        tuples.fill_unchanged(self._where)
        removed, moved = self._removed(tuples)
        rows = np.concatenate([np.flatnonzero(removed), np.flatnonzero(tuples.has_new)])
        is_old = np.arange(len(rows)) < removed.sum()
        # In the order of the changes; of one that has both, the old row first.
        order = np.argsort(2 * rows + ~is_old, kind="stable")
        rows, is_old = rows[order], is_old[order]
        if base.snapshots:
            kept = self._kept(tuples, rows, is_old, pending, base.snapshots)
            rows, is_old = rows[kept], is_old[kept]
        if not len(rows):
            return Entry(end)
        batch = self._batch(self._texts(tuples, rows, is_old), self._ops(tuples, rows, is_old, moved))
        return Entry(end, batch, ChangePlaces(base, rows, pending), pending.size)

    def _removed(self, tuples: Tuples) -> tuple[Mask, Mask]:
        """The changes that take a row away, and those of them that are updates of its key."""
        is_update, is_delete = tuples.kinds == UPDATED, tuples.kinds == DELETED
        if self.changelog == "retracting":
            if ((is_update | is_delete) & ~tuples.has_old_row).any():
                raise DataError(
                    f"{self._where}: the log has a change without the old row, which a retracting "
                    "changelog needs: ALTER TABLE … REPLICA IDENTITY FULL. Changes already in the "
                    "log stay incomplete: start again with a new checkpoint directory"
                )
            return is_update | is_delete, np.zeros(len(is_update), np.bool_)
        if (is_delete & ~tuples.has_old).any():
            raise DataError(f"{self._where}: the log has a delete without a key: ALTER TABLE … ADD PRIMARY KEY (…)")
        moved: Mask = is_update & tuples.has_old
        same = moved.copy()
        for name in self._table.key:
            same &= tuples.same(tuples.relation.columns.index(name), moved)
        moved &= ~same
        return is_delete | moved, moved

    def _kept(
        self,
        tuples: Tuples,
        rows: npt.NDArray[np.int64],
        is_old: Mask,
        pending: Pending,
        snapshots: tuple[Snapshot, ...],
    ) -> Mask:
        kinds = [self._table.column(name).kind for name in self._table.key]
        places = [tuples.relation.columns.index(name) for name in self._table.key]
        keys = [
            typed(tuples.texts(place, rows, is_old), kind, self._where)
            for place, kind in zip(places, kinds, strict=True)
        ]
        return is_new(snapshots, np.array(pending.transactions, np.int64)[rows], keys, kinds)

    def _texts(self, tuples: Tuples, rows: npt.NDArray[np.int64], is_old: Mask) -> dict[str, pa.Array]:
        known = {name: place for place, name in enumerate(tuples.relation.columns)}
        self._warn_of_columns(list(known))
        return {
            column.name: tuples.texts(known[column.name], rows, is_old)
            if column.name in known
            else pa.nulls(len(rows), pa.string())
            for column in self._table.columns
        }

    def _warn_of_columns(self, found: Sequence[str]) -> None:
        wanted = [column.name for column in self._table.columns]
        new = [name for name in found if name not in wanted]
        gone = [name for name in wanted if name not in found]
        if new:
            self._say_once(
                f"the table has new columns ({', '.join(new)}): they are left out until the pipeline restarts"
            )
        if gone:
            self._say_once(f"changes in the log lack columns ({', '.join(gone)}), which are null in their rows")

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            _log.warning("%s: %s", self._where, text)

    def _ops(self, tuples: Tuples, rows: npt.NDArray[np.int64], is_old: Mask, moved: Mask) -> pa.Array:
        ops = np.full(len(tuples.kinds), _INSERT)
        if self.changelog == "upserting":
            ops[(tuples.kinds == UPDATED) & ~moved] = _UPDATE
        return _OPS.take(pa.array(np.where(is_old, _DELETE, ops[rows])))

    def _batch(self, texts: dict[str, pa.Array], ops: pa.Array) -> pa.RecordBatch:
        columns = [
            typed(texts[column.name], column.kind, f"{self._where}, column '{column.name}'")
            for column in self._table.columns
        ]
        return pa.RecordBatch.from_arrays([*columns, ops], schema=self.schema)
