"""Windows by count: aggregates of a key that begin anew with a fixed number of records.

A key has one open window, so this is the state of running aggregates with the number of its records. A batch is sorted
by key. Its rows that complete the open window of their key, or leave it open, are folded there; windows that lie in the
batch whole are folded beside it, all in one; then the rest of the rows begins the next windows.

With a time to live there are two generations of keys. `begin_generation` makes the keys of the current one idle, and
forgets those that were idle before; a key that has a row again comes back with its open window. So a key is forgotten
after one to two generations without a row, all of them at once, and nothing is noted for each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.gather import take, take_rows
from penstock.errors import DataError
from penstock.model.aggregates import Aggregate, labels_of
from penstock.model.windows import CountWindows
from penstock.state.aggregates.columns import Columns
from penstock.state.aggregates.state import AggregateState
from penstock.state.contract import StateOwner
from penstock.state.index.key_index import KeyIndex
from penstock.state.index.slot_table import Slots

_IDLE_SUFFIX = ".idle"
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
        return CountWindowState(self, owner, owner.register(IdleDescriptor(f"{self.name}{_IDLE_SUFFIX}", self)))


@dataclass(frozen=True, slots=True)
class IdleDescriptor:
    """Open windows of keys that have had no row in the current generation."""

    name: str
    of: CountWindowDescriptor

    def create(self, owner: StateOwner) -> IdleWindows:
        return IdleWindows(self.name, self.of, owner)


class _OpenWindows(AggregateState):
    def __init__(self, name: str, described: CountWindowDescriptor, owner: StateOwner) -> None:
        kept = (*described.aggregates, _ROWS)
        super().__init__(name, described.key, kept, owner.key_groups, owner.max_parallelism)
        self._kind = described.kind

    @property
    def declared(self) -> str:
        return f"{self._kind} with {super().declared}"


class IdleWindows(_OpenWindows):
    """The generation before the current one."""

    @property
    def holds_keys(self) -> bool:
        return len(self) > 0

    def replace(self, columns: Columns | None) -> int:
        """Hold these instead, and return the number of open windows that are forgotten."""
        dropped, self._bound = self._bound, columns
        self.version += dropped is not None or columns is not None
        return 0 if dropped is None else int(np.count_nonzero(_counts(dropped)[: dropped.index.size]))

    def recall(self, columns: Columns, keys: list[pa.Array], slots: Slots) -> None:
        """Move the open windows of these keys, if any, to `slots` of `columns`, which are new there."""
        idle = self._bound
        assert idle is not None
        if not idle.fits(columns.index.kinds, columns.accumulators):
            raise DataError(
                f"state '{self.name}' was built from columns of other types: {idle.describe()}; cast the columns of "
                f"this batch to those: {columns.describe()}"
            )
        theirs = idle.index.find(keys, nulls_match=True).astype(np.intp, copy=False)
        known = np.flatnonzero(theirs >= 0)
        known = known[_counts(idle).take(theirs[known]) > 0]
        if len(known):
            columns.merge(idle, theirs[known], slots[known], self.name)
            idle.clear(theirs[known])
            self.version += 1


def _counts(columns: Columns) -> npt.NDArray[np.int64]:
    """The number of records in the open window of each slot."""
    counts: npt.NDArray[np.int64] = columns.numbers[labels_of(_ROWS)[0]]
    return counts


class CountWindowState(_OpenWindows):
    """The open windows of one subtask."""

    def __init__(self, described: CountWindowDescriptor, owner: StateOwner, idle: IdleWindows) -> None:
        super().__init__(described.name, described, owner)
        self._emitted = described.aggregates
        self._size = described.kind.rows
        self._idle = idle

    def begin_generation(self) -> int:
        """Forget the keys that have had no row in this generation; the number of their open windows."""
        dropped = self._idle.replace(self._bound)
        self.version += self._bound is not None
        self._bound = None
        return dropped

    def add(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Fold `batch` in, and return the results of the windows that are complete, those of a key in their order."""
        if batch.num_rows == 0:
            return []
        columns = self._bind(batch.schema)
        known = columns.index.size
        keys, slots = columns.slots_of(batch)
        if columns.index.size > known and self._idle.holds_keys:
            new, first = np.unique(slots, return_index=True)
            first = first[new >= known]
            self._idle.recall(columns, [take(key, first) for key in keys], slots[first])
        self.version += 1
        order = np.argsort(slots, kind="stable")
        ordered = slots.take(order)
        starts = np.flatnonzero(np.diff(ordered, prepend=-1))
        in_key = np.arange(len(ordered)) - np.repeat(starts, np.diff(starts, append=len(ordered)))
        counts = _counts(columns)
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
        full = full[_counts(columns).take(full) == self._size]
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
