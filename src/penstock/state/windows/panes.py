"""Aggregates by key and pane of event time, columnar: the ground on which every kind of windows stands.

For every pane that is open (see `model.windows`) there are separate columns, so that a pane is dropped by forgetting
it, whatever its size. The panes share one index of keys: a row is looked up once, and a key that comes in every pane
is known in all of them. A batch whose rows lie in one pane is folded as it is; else it is cut, without a sort if its
panes are in order.

The index only grows. When many of its keys do not come any more, the panes that follow get a new one, and the old
one goes with the last of its panes.

Which rows are late, and which results are complete, is for the kinds to say: `state` has the windows that are the same
for every key, `sessions` those that the records of a key make.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.fixed_width import fixed_width_values
from penstock.columnar.gather import take, take_rows
from penstock.columnar.hashing import key_groups
from penstock.errors import DataError, RestoreError
from penstock.model.aggregates import Aggregate, kept_for
from penstock.model.event_time import MAX_WATERMARK, event_times
from penstock.model.windows import WINDOW_END, WINDOW_START
from penstock.state.aggregates.columns import Columns, ColumnsSnapshot, plain_key, stored_values
from penstock.state.columns import array_of_values
from penstock.state.contract import StateOwner
from penstock.state.index.key_index import KeyIndex
from penstock.state.index.slot_table import Slots
from penstock.state.pieces import (
    KEY,
    KEY_GROUP,
    VALUE,
    KeyedPiece,
    blocks,
    check_owned,
    cut,
    in_batches,
    own_rows,
    stable_order,
    struct_of,
)
from penstock.state.windows.clock import WindowClock
from penstock.state.windows.layout import PANE_START, Layout, layout_of_batch, layout_of_checkpoint

_FIRST_CAPACITY = 1 << 6
_SPARE_KEYS = 1 << 10
_PANES_ASKED = 8
_PANES_FOUND_MAX = 12
_EMITTED_ROWS_MAX = 1 << 16
_INT64 = np.iinfo(np.int64)
_NO_ROWS = np.zeros(0, np.intp)

Ticked: TypeAlias = npt.NDArray[np.int64]
"""Event times of one unit."""


class PanesDescribed(Protocol):
    """What the descriptor of every kind says."""

    @property
    def name(self) -> str: ...

    @property
    def key(self) -> tuple[str, ...]: ...

    @property
    def aggregates(self) -> tuple[Aggregate, ...]: ...

    @property
    def on(self) -> str: ...


class PanedState(ABC):
    """The open panes of one subtask. `key` are the columns its input is partitioned by, `on` has the event time."""

    def __init__(self, described: PanesDescribed, clock: WindowClock, owner: StateOwner) -> None:
        self.name = described.name
        self.key = described.key
        self.aggregates = described.aggregates
        self.on = described.on
        self.version = 0
        self._clock = clock
        self._owned = owner.key_groups
        self._max_parallelism = owner.max_parallelism
        self._kept = self.aggregates
        """What is kept in each pane: the aggregates, and whatever else a kind needs to know of its rows."""
        self._layout: Layout | None = None
        self._checked: pa.Schema | None = None
        self._panes: dict[int, Columns] = {}
        self._index = KeyIndex([])
        self._dropped_keys = 0
        """As many as the last pane had that was dropped."""

    @property
    def declared(self) -> str:
        return f"{self._clock.declared} on {self.on} with {kept_for(self.aggregates)}"

    @property
    def state_bytes(self) -> int:
        """The columns of all parts, and each index of keys once."""
        parts = self._parts()
        indexes = {id(index): index for index in [self._index, *(part.index for part in parts)]}
        return sum(part.column_bytes for part in parts) + sum(index.state_bytes for index in indexes.values())

    @property
    def open_panes(self) -> int:
        return len(self._panes)

    def _parts(self) -> list[Columns]:
        """All columns that are held."""
        return list(self._panes.values())

    @abstractmethod
    def _completed(self, layout: Layout, watermark_ms: int) -> list[pa.RecordBatch]:
        """Remove and return the results that are complete at this watermark, which the clock has not heard of yet."""

    @abstractmethod
    def _open_from(self, layout: Layout, watermark_ms: int) -> int:
        """A row of this event time, in ticks, or a later one is not late."""

    # --- records ---

    def add(self, batch: pa.RecordBatch) -> npt.NDArray[np.intp]:
        """Fold `batch` in, but for the rows that are late, and return the numbers of those.

        Raises `DataError` as `AggregateState.update` does, and for an event time that is missing or null.
        """
        if batch.num_rows == 0:
            return _NO_ROWS
        layout = self._bind(batch.schema)
        times = event_times(batch, self.on)
        late = self._late(layout, batch, times)
        if len(late):
            rows = np.delete(np.arange(len(times)), late)
            batch, times = take_rows(batch, rows), times[rows]
        if len(times):
            self._fold(layout, batch, times)
            self.version += 1
        return late

    def _late(self, layout: Layout, batch: pa.RecordBatch, times: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
        """The rows that have no open window."""
        earliest = int(times.min())
        if earliest >= self._open_from(layout, self._clock.fastest_ms):
            return _NO_ROWS
        limits: npt.NDArray[np.int64] | int = self._open_from(layout, self._clock.slowest_ms)
        if not self._clock.is_even:
            groups = key_groups(batch, self.key, self._max_parallelism)
            limits = self._clock.of(groups, lambda watermark_ms: self._open_from(layout, watermark_ms))
        return np.flatnonzero(times < limits)

    def _fold(self, layout: Layout, batch: pa.RecordBatch, times: npt.NDArray[np.int64]) -> None:
        grid = layout.grid
        earliest, latest = int(times.min()), int(times.max())
        first, last = grid.pane_at(earliest), grid.pane_at(latest)
        self._check_range(layout, earliest, latest)
        if last not in self._panes:
            self._renew_index(layout)
        if first == last:
            index = self._panes[first].index if first in self._panes else self._index
            self._fold_pane(layout, first, batch, self._slots_in(layout, index, batch))
            return
        slots = self._slots_in(layout, self._index, batch)
        numbers = grid.panes_of(times, first)
        order = None
        values = batch.select(layout.inputs)
        if not bool((numbers[1:] >= numbers[:-1]).all()):
            order = _stable_order(numbers, last - first + 1)
            values, slots, numbers = take_rows(values, order), slots.take(order), numbers.take(order)
        ends = [*(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)]
        for start, end in zip([0, *ends], ends, strict=False):
            number, here = first + int(numbers[start]), slots[start:end]
            if number in self._panes and self._panes[number].index is not self._index:
                rows = batch.slice(start, end - start) if order is None else take_rows(batch, order[start:end])
                here = self._slots_in(layout, self._panes[number].index, rows)
            self._fold_pane(layout, number, values.slice(start, end - start), here)

    def _slots_in(self, layout: Layout, index: KeyIndex, batch: pa.RecordBatch) -> Slots:
        keys = [plain_key(batch.column(name), kind) for name, kind in zip(self.key, layout.kinds, strict=True)]
        return index.slots_of(keys).astype(np.intp, copy=False)

    def _fold_pane(self, layout: Layout, number: int, values: pa.RecordBatch, slots: Slots) -> None:
        if number not in self._panes:
            self._panes[number] = self._new_pane(layout, self._index)
        self._panes[number].add(values, slots, self.name)
        self._on_folded(layout, number, slots)

    def _on_folded(self, layout: Layout, number: int, slots: Slots) -> None:
        """A pane has got rows of these slots."""
        return

    def _new_pane(self, layout: Layout, index: KeyIndex) -> Columns:
        capacity = max(_FIRST_CAPACITY, index.size)
        return Columns(self.key, index, layout.new_accumulators(), capacity, knows_rows=True)

    def _renew_index(self, layout: Layout) -> None:
        """Begin a new index if the panes of late have used only a small part of this one."""
        recent = [pane for pane in list(self._panes.values())[-_PANES_ASKED:] if pane.index is self._index]
        used = max((len(pane.slots_with_rows()) for pane in recent), default=self._dropped_keys)
        if self._index.size > _SPARE_KEYS + 4 * used:
            self._index = KeyIndex(layout.kinds)

    def _check_range(self, layout: Layout, earliest: int, latest: int) -> None:
        reach = layout.grid.reach_ticks
        if earliest - reach < _INT64.min or latest + reach > _INT64.max:
            raise DataError(
                f"state '{self.name}': event times from {earliest} to {latest} in '{self.on}' are out of range: "
                f"the bounds of their windows do not fit into {layout.time}"
            )

    # --- watermarks ---

    def close(self, watermark_ms: int) -> list[pa.RecordBatch]:
        """Remove the windows that are complete at this watermark and return them.

        The end of all input completes every window, but it is not remembered as a time that has been reached: if the
        pipeline goes on with more input later, that is not late.
        """
        emitted: list[pa.RecordBatch] = []
        if self._layout is not None and self._panes:
            emitted = self._completed(self._layout, watermark_ms)
        if watermark_ms < MAX_WATERMARK:
            self._clock.advance(watermark_ms)
        return results_in_batches([result for result in emitted if result.num_rows])

    def _drop_panes(self, before: int) -> None:
        """Forget the panes with smaller numbers."""
        gone = [number for number in self._panes if number < before]
        if gone:
            self._dropped_keys = len(self._panes[max(gone)].slots_with_rows())
            self._panes = {number: pane for number, pane in self._panes.items() if number >= before}

    def _results(self, layout: Layout, columns: Columns, slots: Slots, bounds: Sequence[Ticked]) -> pa.RecordBatch:
        """The rows that are emitted for these slots, with the start and the end of their windows."""
        keys = columns.index.snapshot().arrays(slots)
        times = [array_of_values(each, layout.time, None) for each in bounds]
        outputs = [columns.output(aggregate, slots) for aggregate in self.aggregates]
        names = [*self.key, WINDOW_START, WINDOW_END, *(aggregate.output for aggregate in self.aggregates)]
        return pa.RecordBatch.from_arrays([*keys, *times, *outputs], names=names)

    def _merge(self, layout: Layout, parts: Sequence[Columns]) -> Columns:
        if len(parts) == 1:
            return parts[0]
        is_shared = all(part.index is parts[0].index for part in parts)
        merged = self._new_pane(layout, parts[0].index if is_shared else KeyIndex(layout.kinds))
        for part in parts:
            theirs = ours = part.slots_with_rows()
            if not is_shared:
                ours = merged.index.slots_of(part.index.snapshot().arrays(theirs)).astype(np.intp)
            merged.merge(part, theirs, ours, self.name)
        return merged

    # --- checkpoints ---

    def snapshot(self) -> PanesSnapshot:
        """References only: the time depends on the number of open panes, not of keys."""
        panes = [(number, pane.snapshot()) for number, pane in self._panes.items()]
        return PanesSnapshot(self, self.version, self._layout, panes)

    def encode(
        self, layout: Layout, panes: Sequence[tuple[int, ColumnsSnapshot]], target_bytes: int
    ) -> list[KeyedPiece]:
        """Pieces of a snapshot. Runs in the background: touches nothing of the live state."""
        parts = [part for number, pane in panes for part in self._batches_of(layout, number, pane)]
        pieces = []
        for whole in in_batches(parts):
            groups = fixed_width_values(whole.column(KEY_GROUP), np.int32)
            check_owned(self.name, groups, self._owned)
            ordered = take_rows(whole, stable_order(groups, self._owned))
            pieces += cut(self.name, pa.Table.from_batches([ordered]), target_bytes)
        return pieces

    def _batches_of(self, layout: Layout, number: int, pane: ColumnsSnapshot) -> Iterator[pa.RecordBatch]:
        slots, values = np.flatnonzero(pane.rows()), pane.arrays()
        for begin, end in blocks(pane.keys.row_bytes().take(slots)):
            yield self._batch_of(layout, number, pane, slots[begin:end], values)

    def _batch_of(
        self, layout: Layout, number: int, pane: ColumnsSnapshot, slots: Slots, arrays: Sequence[pa.Array]
    ) -> pa.RecordBatch:
        keys = pane.keys.arrays(slots)
        groups = key_groups(pa.RecordBatch.from_arrays(keys, names=list(self.key)), self.key, self._max_parallelism)
        start = array_of_values(np.full(len(slots), layout.grid.start_of(number), dtype=np.int64), layout.time, None)
        values = [take(array, slots) for array in arrays]
        value = struct_of(values, [accumulator.label for accumulator in pane.accumulators])
        columns = [pa.array(groups), struct_of([*keys, start], [*self.key, PANE_START]), value]
        return pa.RecordBatch.from_arrays(columns, names=[KEY_GROUP, KEY, VALUE])

    def restore(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Add the rows of `batches` that belong to this subtask (I9), and return how many that were."""
        restored = 0
        for batch in batches:
            mine = own_rows(self.name, batch, self._owned, self._max_parallelism, lambda _: self.key)
            layout = self._adopt(layout_of_checkpoint(self.name, self.key, self._kept, self._clock.kind, batch.schema))
            if mine.num_rows:
                self._restore(layout, mine)
                restored += mine.num_rows
        self.version += bool(restored)
        return restored

    def _restore(self, layout: Layout, batch: pa.RecordBatch) -> None:
        *keys, starts = batch.column(1).flatten()
        slots = self._index.slots_of(keys)
        ticks = fixed_width_values(starts, np.int64)
        order = np.argsort(ticks, kind="stable")
        stored = stored_values(batch.column(2), [label for label, _ in layout.numbers])
        values = [take(array, order) for array in stored]
        slots, ticks = slots[order], ticks[order]
        ends = [*(np.flatnonzero(ticks[1:] != ticks[:-1]) + 1).tolist(), len(ticks)]
        for start, end in zip([0, *ends], ends, strict=False):
            here = slots[start:end]
            number = self._restored_number(layout, int(ticks[start]))
            pane = self._panes[number]
            pane.put(here, [array.slice(start, end - start) for array in values])
            rows = len(pane.slots_with_rows())
            pane.mark_rows(here)
            self._on_restored(layout, number, here)
            if len(pane.slots_with_rows()) < rows + len(here):
                raise RestoreError(f"state '{self.name}' cannot be restored: the checkpoint has a key twice")

    def _restored_number(self, layout: Layout, start: int) -> int:
        """The number of a pane that begins at `start`, and is there now."""
        number = layout.grid.pane_at(start)
        if layout.grid.start_of(number) != start:
            raise RestoreError(f"state '{self.name}' cannot be restored: it has other windows than the pipeline")
        if number not in self._panes:
            self._panes[number] = self._new_pane(layout, self._index)
        return number

    def _on_restored(self, layout: Layout, number: int, slots: Slots) -> None:
        """A pane has got these slots from a checkpoint."""
        return

    # --- types ---

    def _bind(self, schema: pa.Schema) -> Layout:
        """The layout, which is settled by the first batch; every batch is checked against it."""
        if self._layout is None or self._checked is None or not self._checked.equals(schema):
            self._adopt(layout_of_batch(self.name, self.key, self._kept, self._clock.kind, self.on, schema))
            self._checked = schema
        assert self._layout is not None
        return self._layout

    def _adopt(self, layout: Layout) -> Layout:
        if self._layout is None:
            self._layout = layout
            self._index = KeyIndex(layout.kinds)
        elif self._layout != layout:
            raise DataError(
                f"state '{self.name}' was built from columns of other types: {self._layout}; "
                f"cast the columns of this batch to those, instead of {layout}"
            )
        return self._layout


class PanesSnapshot:
    """The panes at one moment."""

    def __init__(
        self, state: PanedState, version: int, layout: Layout | None, panes: list[tuple[int, ColumnsSnapshot]]
    ) -> None:
        self.version = version
        self._state = state
        self._layout = layout
        self._panes = panes

    def encode(self, target_bytes: int) -> list[KeyedPiece]:
        return [] if self._layout is None else self._state.encode(self._layout, self._panes, target_bytes)


def _stable_order(numbers: npt.NDArray[np.uint64], count: int) -> npt.NDArray[np.intp]:
    """The rows of pane 0 of `count`, then those of pane 1 … Few panes are found one by one faster than by a sort."""
    if count <= _PANES_FOUND_MAX:
        return np.concatenate([(numbers == np.uint64(number)).nonzero()[0] for number in range(count)])
    # Numpy sorts integers of 16 bits by radix.
    return np.argsort(numbers.astype(np.uint16) if count <= 1 << 16 else numbers, kind="stable")


def results_in_batches(results: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Few windows with many keys or many with few: batches of a size that others can work with."""
    whole = results[0] if len(results) == 1 else pa.concat_batches(results) if results else None
    if whole is None:
        return []
    return [whole.slice(start, _EMITTED_ROWS_MAX) for start in range(0, whole.num_rows, _EMITTED_ROWS_MAX)]


def clipped(tick: int) -> int:
    """The nearest number of 64 bits."""
    return min(max(tick, _INT64.min), _INT64.max)
