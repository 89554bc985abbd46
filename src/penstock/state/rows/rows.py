"""Rows kept by key, as batches: what a join or a window holds back until something else has come.

Nothing is indexed: an operator reads all rows, decides columnar, and puts back what it keeps. Batches are
immutable, and their list only grows at its end or is replaced by another: so a snapshot is a reference to it and a
length, and adding a batch costs the same however many there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from penstock.columnar.gather import take_rows
from penstock.columnar.hashing import key_groups
from penstock.errors import DataError, RestoreError
from penstock.state.pieces import (
    KEY,
    KEY_GROUP,
    VALUE,
    KeyedPiece,
    check_owned,
    cut,
    in_batches,
    own_rows,
    stable_order,
    struct_of,
)


class RowsState:
    """Rows of one subtask. `key` names the columns by which the input is partitioned."""

    def __init__(self, name: str, key: Sequence[str], owned: range, max_parallelism: int) -> None:
        self.name = name
        self.key = tuple(key)
        self.version = 0
        self._owned = owned
        self._max_parallelism = max_parallelism
        self._batches: list[pa.RecordBatch] = []
        self._is_disowned = False

    def disown(self) -> None:
        """The state was deleted. Every use of it is a `DataError` from now on."""
        self._batches = []
        self._is_disowned = True

    def _check_owned(self) -> None:
        if self._is_disowned:
            raise DataError(f"state '{self.name}' was deleted: it cannot be read or written any more")

    @property
    def declared(self) -> str:
        return f"rows by ({', '.join(self.key)})"

    @property
    def state_bytes(self) -> int:
        return sum(batch.nbytes for batch in self._batches)

    def get(self) -> tuple[pa.RecordBatch, ...]:
        """All rows, in the order in which they were added."""
        self._check_owned()
        return tuple(self._batches)

    def append(self, batch: pa.RecordBatch) -> None:
        """Add rows behind those that are there."""
        self._check_owned()
        if batch.num_rows:
            self._batches.append(batch)
            self.version += 1

    def put(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Replace all rows."""
        self._check_owned()
        self._batches = [batch for batch in batches if batch.num_rows]
        self.version += 1

    def snapshot(self) -> RowsSnapshot:
        return RowsSnapshot(self, self.version, self._batches, len(self._batches))

    def restore(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Add rows of a checkpoint, of our own key groups only (I9)."""
        restored = 0
        for batch in batches:
            if batch.schema.names != [KEY_GROUP, KEY, VALUE]:
                raise RestoreError(f"state '{self.name}' holds rows, and the checkpoint has something else for it")
            own = own_rows(self.name, batch, self._owned, self._max_parallelism, lambda kind: self.key)
            if own.num_rows:
                self.append(pa.RecordBatch.from_struct_array(own.column(VALUE)))
                restored += own.num_rows
        return restored

    def encode(self, batches: Sequence[pa.RecordBatch], target_bytes: int) -> list[KeyedPiece]:
        """Pieces of a snapshot. The rows of a key are in one of them, or in several in their order (I2)."""
        pieces = []
        for rows in in_batches(batches):
            groups = key_groups(rows, self.key, self._max_parallelism)
            check_owned(self.name, groups, self._owned)
            order = stable_order(groups, self._owned)
            ordered = take_rows(rows, order)
            columns = {
                KEY_GROUP: pa.array(groups[order]),
                KEY: struct_of([ordered.column(name) for name in self.key], self.key),
                VALUE: ordered.to_struct_array(),
            }
            pieces += cut(self.name, pa.table(columns), target_bytes)
        return pieces


class RowsSnapshot:
    """The rows of one moment."""

    def __init__(self, state: RowsState, version: int, batches: list[pa.RecordBatch], count: int) -> None:
        self._state = state
        self.version = version
        self._batches = batches
        self._count = count
        """How many of them there were: what follows was added later."""

    def encode(self, target_bytes: int) -> list[KeyedPiece]:
        return self._state.encode(self._batches[: self._count], target_bytes)
