"""Windows by count: aggregates of a key that begin anew with a fixed number of records.

A key has one open window, so this is the state of running aggregates with the number of its records. A batch is sorted
by key. Its rows that complete the open window of their key, or leave it open, are folded there; windows that lie in the
batch whole are folded beside it, all in one; then the rest of the rows begins the next windows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.gather import take, take_rows
from penstock.model.aggregates import Aggregate, labels_of
from penstock.model.windows import CountWindows
from penstock.state.aggregates.columns import Columns
from penstock.state.aggregates.state import AggregateState
from penstock.state.contract import StateOwner
from penstock.state.index.key_index import KeyIndex
from penstock.state.index.slot_table import Slots

_ROWS = Aggregate("count", None, "")
"""The number of records in the open window of a key."""

Rows = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class CountWindowDescriptor:
    """Aggregates by key and window of a fixed number of records. The input is partitioned by `key`."""

    name: str
    key: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]
    kind: CountWindows

    def create(self, owner: StateOwner) -> CountWindowState:
        return CountWindowState(self, owner)


class CountWindowState(AggregateState):
    """The open windows of one subtask."""

    def __init__(self, described: CountWindowDescriptor, owner: StateOwner) -> None:
        kept = (*described.aggregates, _ROWS)
        super().__init__(described.name, described.key, kept, owner.key_groups, owner.max_parallelism)
        self._emitted = described.aggregates
        self._size = described.kind.rows
        self._kind = described.kind

    @property
    def declared(self) -> str:
        return f"{self._kind} with {super().declared}"

    def add(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Fold `batch` in, and return the results of the windows that are complete, those of a key in their order."""
        if batch.num_rows == 0:
            return []
        columns = self._bind(batch.schema)
        keys, slots = columns.slots_of(batch)
        self.version += 1
        order = np.argsort(slots, kind="stable")
        ordered = slots.take(order)
        starts = np.flatnonzero(np.diff(ordered, prepend=-1))
        in_key = np.arange(len(ordered)) - np.repeat(starts, np.diff(starts, append=len(ordered)))
        counts = columns.numbers[labels_of(_ROWS)[0]]
        windows = (counts.take(ordered) + in_key) // self._size
        if not windows.any() and int((counts.take(ordered) + in_key).max()) + 1 < self._size:
            columns.fold(batch, slots, self.name)
            return []
        return self._cut(columns, batch, keys, order, ordered, windows)

    def _cut(
        self,
        columns: Columns,
        batch: pa.RecordBatch,
        keys: list[pa.Array],
        order: Rows,
        slots: Slots,
        windows: npt.NDArray[np.int64],
    ) -> list[pa.RecordBatch]:
        """`slots` and `windows` belong to the rows `order`: a window is a stretch of rows with one slot and number."""
        is_open = windows == 0
        self._fold_rows(columns, batch, order[is_open], slots[is_open])
        begins = np.flatnonzero((np.diff(slots, prepend=-1) != 0) | (np.diff(windows, prepend=-1) != 0))
        lengths = np.diff(begins, append=len(slots))
        full = slots[begins[is_open[begins]]]
        full = full[columns.numbers[labels_of(_ROWS)[0]].take(full) == self._size]
        results = [self._results(columns, full, columns.index.snapshot().arrays(full))]
        columns.clear(full)
        is_whole = ~is_open[begins] & (lengths == self._size)
        results.append(self._whole(columns, batch, keys, order, begins[is_whole]))
        is_rest = np.repeat(~is_open[begins] & ~is_whole, lengths)
        self._fold_rows(columns, batch, order[is_rest], slots[is_rest])
        return [result for result in results if result.num_rows]

    def _whole(
        self, columns: Columns, batch: pa.RecordBatch, keys: list[pa.Array], order: Rows, begins: Rows
    ) -> pa.RecordBatch:
        """The results of windows that lie in the batch whole, from these places on."""
        count = len(begins)
        rows = order[(begins[:, None] + np.arange(self._size)).ravel()]
        beside = Columns((), KeyIndex([pa.int64()]), [each.fresh() for each in columns.accumulators], max(1, count))
        slots = beside.index.slots_of([pa.array(np.repeat(np.arange(count), self._size))]).astype(np.intp)
        beside.make_room()
        self._fold_rows(beside, batch, rows, slots)
        firsts = slots[:: self._size]
        return self._results(beside, firsts, [take(key, order[begins]) for key in keys])

    def _fold_rows(self, columns: Columns, batch: pa.RecordBatch, rows: Rows, slots: Slots) -> None:
        if len(rows):
            columns.fold(take_rows(batch, rows), slots, self.name)

    def _results(self, columns: Columns, slots: Slots, keys: list[pa.Array]) -> pa.RecordBatch:
        outputs = [columns.output(aggregate, slots) for aggregate in self._emitted]
        names = [*self.key, *(aggregate.output for aggregate in self._emitted)]
        return pa.RecordBatch.from_arrays([*keys, *outputs], names=names)
