"""Rows kept by key, as batches: what a join or a window holds back until something else has come.

Nothing is indexed: an operator reads all rows, decides columnar, and puts back what it keeps. Batches are
immutable and their list is replaced and never changed, so that a snapshot is one reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from penstock.errors import RestoreError
from penstock.runtime.keys import key_groups
from penstock.runtime.state.pieces import KEY, KEY_GROUP, VALUE, KeyedPiece, cut, own_rows, stable_order, struct_of


class RowsState:
    """Rows of one subtask. `key` names the columns by which the input is partitioned."""

    def __init__(self, name: str, key: Sequence[str], owned: range, max_parallelism: int) -> None:
        self.name = name
        self.key = tuple(key)
        self.version = 0
        self._owned = owned
        self._max_parallelism = max_parallelism
        self._batches: tuple[pa.RecordBatch, ...] = ()

    @property
    def declared(self) -> str:
        return f"rows by ({', '.join(self.key)})"

    def get(self) -> tuple[pa.RecordBatch, ...]:
        """All rows, in the order in which they were added."""
        return self._batches

    def append(self, batch: pa.RecordBatch) -> None:
        """Add rows behind those that are there."""
        self.put((*self._batches, batch))

    def put(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Replace all rows."""
        self._batches = tuple(batch for batch in batches if batch.num_rows)
        self.version += 1

    def snapshot(self) -> RowsSnapshot:
        return RowsSnapshot(self, self.version, self._batches)

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
        if not batches:
            return []
        rows = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
        groups = key_groups(rows, self.key, self._max_parallelism)
        order = pa.array(stable_order(groups, self._owned))
        columns = {
            KEY_GROUP: pa.array(groups).take(order),
            KEY: struct_of([rows.column(name).take(order) for name in self.key], self.key),
            VALUE: rows.to_struct_array().take(order),
        }
        return cut(self.name, pa.table(columns), target_bytes)


class RowsSnapshot:
    """The rows of one moment."""

    def __init__(self, state: RowsState, version: int, batches: tuple[pa.RecordBatch, ...]) -> None:
        self._state = state
        self.version = version
        self._batches = batches

    def encode(self, target_bytes: int) -> list[KeyedPiece]:
        return self._state.encode(self._batches, target_bytes)
