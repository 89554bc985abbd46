"""Some rows of each key, columnar: what the N largest of a key, or its last N, are chosen from.

Rows lie in immutable batches in the order in which they came, and a row is known by its place in that order, its *id*.
The ids of a key are a linked list in two columns of numbers, so that memory follows the rows and not keys times N; the
rows of many keys are gathered in as many steps as the longest of their lists has rows. Rows that are dropped stay where
they are until they are the larger part; then the others move together, and keep their order.

A snapshot refers to the batches and copies one byte for each row: whether it was dropped. A checkpoint has the rows
alone, in the layout of `RowsState`; index and lists are made again from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.gather import filter_rows, take_rows
from penstock.columnar.plain import plain_type
from penstock.columnar.schemas.schema_guard import SchemaGuard
from penstock.state.aggregates.columns import plain_key
from penstock.state.contract import StateOwner
from penstock.state.index.key_index import KeyIndex, with_capacity
from penstock.state.pieces import KeyedPiece
from penstock.state.rows.rows import RowsSnapshot, RowsState

Ids = npt.NDArray[np.int64]

_DEAD_ROWS_MIN = 1 << 12
_MERGED_ROWS_MAX = 1 << 17
_MERGED_BYTES_MAX = 1 << 28
_NONE = np.int64(-1)


@dataclass(frozen=True, slots=True)
class KeyedRowsDescriptor:
    """Some rows of each key. `key` are the columns that the input is partitioned by."""

    name: str
    key: tuple[str, ...]

    def create(self, owner: StateOwner) -> KeyedRows:
        return KeyedRows(self.name, self.key, owner.key_groups, owner.max_parallelism)


class KeyedRows(RowsState):
    """Rows of one subtask, by key."""

    def __init__(self, name: str, key: Sequence[str], owned: range, max_parallelism: int) -> None:
        super().__init__(name, key, owned, max_parallelism)
        self._guard = SchemaGuard(f"state '{name}'")
        self._index: KeyIndex | None = None
        self._kinds: list[pa.DataType] = []
        self._ends: list[int] = []
        """The id behind the last row of each batch."""
        self._rows = 0
        self._alive_rows = 0
        self._is_alive = np.zeros(0, np.bool_)
        self._next = np.zeros(0, np.int64)
        """By row, the id of another row of its key."""
        self._first = np.zeros(0, np.int64)
        """By slot, the id of one of its rows, plus one; 0 for none."""

    @property
    def declared(self) -> str:
        return f"rows of each key by ({', '.join(self.key)})"

    @property
    def state_bytes(self) -> int:
        numbers = self._is_alive.nbytes + self._next.nbytes + self._first.nbytes
        return super().state_bytes + numbers + (0 if self._index is None else self._index.state_bytes)

    @property
    def rows(self) -> int:
        """Number of rows that were not dropped."""
        return self._alive_rows

    # --- reading ---

    def slots_of(self, batch: pa.RecordBatch) -> npt.NDArray[np.intp]:
        """The slot of the key of each row; a new one for a new key."""
        if self._index is None:
            self._kinds = [plain_type(batch.column(name).type) for name in self.key]
            self._index = KeyIndex(self._kinds)
        keys = [plain_key(batch.column(name), kind) for name, kind in zip(self.key, self._kinds, strict=True)]
        slots = self._index.slots_of(keys).astype(np.intp, copy=False)
        self._first = with_capacity(self._first, self._index.size)
        return slots

    def of_slots(self, slots: npt.NDArray[np.intp]) -> tuple[Ids, npt.NDArray[np.intp]]:
        """The ids of all rows of these slots, which are different, in the order in which the rows were added.

        And for each of them the place of its slot in `slots`.
        """
        ids, places = [np.zeros(0, np.int64)], [np.zeros(0, np.intp)]
        place, current = np.arange(len(slots)), self._first[slots] - 1
        while True:
            is_row = current >= 0
            if not is_row.any():
                found = np.concatenate(ids)
                order = np.argsort(found)
                return found[order], np.concatenate(places)[order]
            place, current = place[is_row], current[is_row]
            ids.append(current)
            places.append(place)
            current = self._next[current]

    def take(self, ids: Ids, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Rows by their ids, which rise, with all columns or some. There must have been a row."""
        parts, end = [], 0
        for batch, stop in zip(self._batches, self._ends, strict=True):
            begin, end = end, int(np.searchsorted(ids, stop, side="left"))
            if begin < end:
                chosen = batch if columns is None else batch.select(columns)
                parts.append(take_rows(chosen, ids[begin:end] - (stop - batch.num_rows)))
        if parts:
            return parts[0] if len(parts) == 1 else pa.concat_batches(parts)
        return (self._batches[0] if columns is None else self._batches[0].select(columns)).slice(0, 0)

    # --- changing ---

    def replace(
        self,
        slots: npt.NDArray[np.intp],
        kept: Ids,
        kept_slots: npt.NDArray[np.intp],
        dropped: Ids,
        added: pa.RecordBatch,
    ) -> None:
        """Let the rows of `slots` be those of `kept`, and the rows `added`, which are the last of the ids.

        `kept_slots` has the slot of each id of `kept`, then of each row of `added`. `dropped` are the other ids that
        the slots had.
        """
        ids = np.concatenate([kept, self._add(added)])
        self._is_alive[dropped] = False
        self._alive_rows -= len(dropped)
        order = np.argsort(kept_slots, kind="stable")
        ids, owners = ids[order], kept_slots[order]
        is_last = np.append(owners[1:] != owners[:-1], True)[: len(ids)]
        self._next[ids] = np.where(is_last, _NONE, np.append(ids[1:], _NONE)[: len(ids)])
        is_first = np.insert(owners[1:] != owners[:-1], 0, True)[: len(ids)]
        self._first[slots] = 0
        self._first[owners[is_first]] = ids[is_first] + 1
        self.version += 1
        if self._rows - self._alive_rows > max(self._alive_rows, _DEAD_ROWS_MIN):
            self._move_together()

    def append(self, batch: pa.RecordBatch) -> None:
        """Rows of a checkpoint: they join those of their keys."""
        slots = self.slots_of(batch)
        touched = np.unique(slots)
        held, places = self.of_slots(touched)
        self.replace(touched, held, np.concatenate([touched[places], slots]), held[:0], batch)

    def _add(self, batch: pa.RecordBatch) -> Ids:
        first, end = self._rows, self._rows + batch.num_rows
        self._is_alive = with_capacity(self._is_alive, end)
        self._next = with_capacity(self._next, end)
        self._is_alive[first:end] = True
        self._rows, self._alive_rows = end, self._alive_rows + batch.num_rows
        if batch.num_rows or not self._batches:
            # A snapshot has the list as it was.
            self._batches = _with_batch(self._batches, self._guard.check(batch))
            self._ends = np.cumsum([each.num_rows for each in self._batches]).tolist()
        return np.arange(first, end)

    def _move_together(self) -> None:
        is_alive = self._is_alive[: self._rows]
        ids = np.cumsum(is_alive) - 1
        alive = np.flatnonzero(is_alive)
        batches, start = list[pa.RecordBatch](), 0
        for batch in self._batches:
            end = start + batch.num_rows
            batches = _with_batch(batches, filter_rows(batch, pa.array(is_alive[start:end])))
            start = end
        following = self._next[alive]
        self._next = np.where(following >= 0, ids[following], _NONE)
        self._first = np.where(self._first > 0, ids[self._first - 1] + 1, 0)
        self._is_alive = np.ones(len(alive), np.bool_)
        self._rows, self._batches = len(alive), batches
        self._ends = np.cumsum([each.num_rows for each in batches]).tolist()

    # --- checkpoints ---

    def snapshot(self) -> KeyedRowsSnapshot:
        return KeyedRowsSnapshot(self, self.version, self._batches, self._is_alive[: self._rows].copy())


def _with_batch(batches: list[pa.RecordBatch], batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """A list with one more batch; neighbours of like size are merged, so that there are few and no row moves often."""
    merged = [*batches, batch]
    while len(merged) > 1 and merged[-2].num_rows <= min(2 * merged[-1].num_rows, _MERGED_ROWS_MAX):
        if merged[-2].nbytes + merged[-1].nbytes > _MERGED_BYTES_MAX:
            break
        last = merged.pop()
        merged[-1] = pa.concat_batches([merged[-1], last])
    return merged


class KeyedRowsSnapshot(RowsSnapshot):
    """The rows of one moment."""

    def __init__(
        self, state: KeyedRows, version: int, batches: list[pa.RecordBatch], is_alive: npt.NDArray[np.bool_]
    ) -> None:
        super().__init__(state, version, batches, len(batches))
        self._is_alive = is_alive

    def encode(self, target_bytes: int) -> list[KeyedPiece]:
        ends = np.cumsum([batch.num_rows for batch in self._batches]).tolist()
        starts = [0, *ends]
        alive = [
            filter_rows(batch, pa.array(self._is_alive[start:end]))
            for batch, start, end in zip(self._batches, starts, ends, strict=False)
        ]
        return self._state.encode([batch for batch in alive if batch.num_rows], target_bytes)
