"""The columns of running aggregates, and a snapshot of them that copies nothing.

The state is a key index and one column of numbers per accumulator, each in one piece, so that any set of slots
is gathered or changed in one call. What makes a snapshot cheap is a log instead of copies: it holds references to
the columns, and from then on whoever is about to overwrite a slot for the first time writes its old values into
the snapshot's log before. The background thread copies the columns and puts the logged values back:

    mailbox:     log the old value     -> overwrite it
    background:  copy the column       -> read the log

A value that was overwritten before the copy passed over it had been logged even before that; a value that was
overwritten later and is in the log too was copied unchanged. Either way the result is the moment of the snapshot,
without a lock. Once the copy is made nothing needs to be logged; a snapshot that is dropped is no longer fed.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.fixed_width import null_mask
from penstock.columnar.gather import take
from penstock.columnar.plain import plain
from penstock.errors import DataError, RestoreError
from penstock.model.aggregates import Aggregate, labels_of
from penstock.state.aggregates.accumulators import Accumulator, Folded, Input, Numbers, numbers_of
from penstock.state.columns import Mask, array_of_words, words_of
from penstock.state.index.key_index import KeyIndex, KeySnapshot, with_capacity
from penstock.state.index.slot_table import Slots

_FIRST_CAPACITY = 1 << 10
_NO_NUMBERS: Numbers = np.empty(0)
_NO_MASK: Mask = np.empty(0, dtype=np.bool_)
_ROWS: Input = ()
_SET = "set"


def stored_values(stored: pa.StructArray, labels: Iterable[str]) -> list[pa.Array]:
    """The numbers of a checkpoint in the order of `labels`: the pipeline may list its aggregates in another one now."""
    by_label = dict(zip([field.name for field in stored.type], stored.flatten(), strict=True))
    return [by_label[label] for label in labels]


class Columns:
    """The live state once its types are known: keys, numbers, and which slots have a value in which column."""

    def __init__(
        self,
        key: Sequence[str],
        index: KeyIndex,
        accumulators: list[Accumulator],
        capacity: int = _FIRST_CAPACITY,
        knows_rows: bool = False,
    ) -> None:
        self.key = tuple(key)
        self.index = index
        self.accumulators = accumulators
        inputs = sorted({a.input for a in accumulators if a.input})
        self._by_label = {a.label: a for a in accumulators}
        self._by_input = {each: [a for a in accumulators if a.input == each] for each in [_ROWS, *inputs]}
        self._numeric = {each for each, users in self._by_input.items() if any(a.needs_numbers for a in users)}
        self.numbers = {a.label: np.zeros(capacity, dtype=a.dtype) for a in accumulators}
        self.is_set: dict[Input, Mask]
        """By input, the slots that have a value; with `knows_rows`, by no column those that have had a row at all."""
        self.is_set = {each: np.zeros(capacity, dtype=np.bool_) for each in [*inputs, *[_ROWS] * knows_rows]}
        self._ready = 0
        self._last_row = np.empty(capacity, dtype=np.int32)
        self._open: list[weakref.ref[ColumnsSnapshot]] = []

    @property
    def column_bytes(self) -> int:
        """The memory of the columns, without that of the index, which others may share."""
        arrays = [*self.numbers.values(), *self.is_set.values(), self._last_row]
        return sum(array.nbytes for array in arrays) + sum(a.held_bytes for a in self.accumulators)

    def fits(self, kinds: Sequence[pa.DataType], accumulators: Iterable[Accumulator]) -> bool:
        ours = [(a.label, a.kind) for a in self.accumulators]
        return self.index.kinds == tuple(kinds) and ours == [(a.label, a.kind) for a in accumulators]

    def describe(self) -> str:
        key = ", ".join(f"{name}: {kind}" for name, kind in zip(self.key, self.index.kinds, strict=True))
        return f"{key}, " + ", ".join(f"{a.label}: {a.kind}" for a in self.accumulators)

    def slots_of(self, batch: pa.RecordBatch) -> tuple[list[pa.Array], Slots]:
        """The key columns, plain, and the slot of each row; the columns have room for new slots."""
        keys = [plain_key(batch.column(name), kind) for name, kind in zip(self.key, self.index.kinds, strict=True)]
        slots = self.index.slots_of(keys).astype(np.intp, copy=False)  # numpy would otherwise do so for each use
        self.make_room()
        return keys, slots

    def fold(self, batch: pa.RecordBatch, slots: Slots, name: str) -> npt.NDArray[np.intp]:
        """Fold the batch in and return the last row of each key in it."""
        if len(slots) == 0:
            return np.empty(0, dtype=np.intp)
        rows = self._last_rows(slots)
        self._fold(batch, slots, slots[rows], name)
        return rows

    def add(self, batch: pa.RecordBatch, slots: Slots, name: str) -> None:
        """As `fold`, for those who do not ask for rows; the slots may come from an index that is shared."""
        self.make_room()
        if len(slots):
            self._fold(batch, slots, slots[self._last_rows(slots)] if self._open else slots, name)

    def merge(self, other: Columns, theirs: Slots, ours: Slots, name: str) -> None:
        """Fold in what `other` has gathered in the slots `theirs`: into `ours`, each of which is there once.

        The trap: these columns are new, or they are in no snapshot.
        """
        self.make_room()
        for input, accumulators in self._by_input.items():
            has_value = np.flatnonzero(other.is_set[input].take(theirs)) if input else np.arange(len(theirs))
            if len(has_value) == 0:
                continue
            places, into = theirs[has_value], ours[has_value]
            for accumulator in accumulators:
                values = other.numbers[accumulator.label].take(places)
                folded = Folded(into, values, self.is_set.get(input, _NO_MASK))
                try:
                    accumulator.merge(self.numbers[accumulator.label], folded, other._by_label[accumulator.label])
                except OverflowError as error:
                    raise _overflow(accumulator, name) from error
            if input:
                self.is_set[input][into] = True
        if _ROWS in self.is_set:
            self.is_set[_ROWS][ours] = True

    def _fold(self, batch: pa.RecordBatch, slots: Slots, touched: Slots, name: str) -> None:
        """`touched` has all `slots`, if possible each once."""
        self._log(touched)
        for input, accumulators in self._by_input.items():
            folded = self._folded(batch, input, slots)
            if folded is None:
                continue
            for accumulator in accumulators:
                try:
                    accumulator.fold(self.numbers[accumulator.label], folded)
                except OverflowError as error:
                    raise _overflow(accumulator, name) from error
            if input in self.is_set:
                self.is_set[input][touched if folded.slots is slots else folded.slots] = True

    def clear(self, slots: Slots) -> None:
        """Forget what these slots have: they are as if they had never had a row."""
        self._log(slots)
        for accumulator in self.accumulators:
            accumulator.clear(self.numbers[accumulator.label], slots)
        for mask in self.is_set.values():
            mask[slots] = False

    def has_rows(self, slots: Slots) -> Mask:
        """Whether each slot has had a row, with `knows_rows`."""
        return self.is_set[_ROWS].take(slots)

    def mark_rows(self, slots: Slots) -> None:
        """These slots have had rows, with `knows_rows`."""
        self.is_set[_ROWS][slots] = True

    def slots_with_rows(self) -> Slots:
        """The slots that have had a row, with `knows_rows`."""
        return np.flatnonzero(self.is_set[_ROWS])

    def output(self, aggregate: Aggregate, slots: Slots) -> pa.Array:
        """The column of the result that `aggregate` asks for."""
        label, *others = labels_of(aggregate)
        if aggregate.function == "mean":
            counts = self.numbers[others[0]].take(slots)
            return pa.array(self.numbers[label].take(slots) / np.maximum(counts, 1), mask=counts == 0)
        accumulator = self._by_label[label]
        nulls = None
        if accumulator.input and not accumulator.is_count:
            is_set = self.is_set[accumulator.input].take(slots)
            nulls = None if np.count_nonzero(is_set) == len(is_set) else ~is_set
        return accumulator.result(aggregate, self.numbers[label].take(slots), nulls)

    def restore(self, batch: pa.RecordBatch, name: str) -> None:
        """Add rows of a checkpoint, each with a key that is not here yet."""
        before = self.index.size
        slots = self.index.slots_of(batch.column(1).flatten())
        if self.index.size != before + batch.num_rows:
            raise RestoreError(f"state '{name}' cannot be restored: the checkpoint has a key twice")
        self.put(slots, stored_values(batch.column(2), [accumulator.label for accumulator in self.accumulators]))

    def put(self, slots: Slots, arrays: Iterable[pa.Array]) -> None:
        """Set slots that have no values yet to those of a checkpoint: an array for each accumulator."""
        self.make_room()
        for accumulator, array in zip(self.accumulators, arrays, strict=True):
            nulls, numbers = null_mask(array), self.numbers[accumulator.label]
            accumulator.put(numbers, slots, array, nulls)
            accumulator.restored()
            if accumulator.input:
                self.is_set[accumulator.input][slots] = accumulator.has_value(numbers, slots, nulls)

    def snapshot(self) -> ColumnsSnapshot:
        # What others have added to the index since is not in these columns.
        keys = replace(self.index.snapshot(), size=self._ready)
        snapshot = ColumnsSnapshot(keys, [a.frozen() for a in self.accumulators], self.numbers, self.is_set)
        self._open = [reference for reference in self._open if _is_open(reference)]
        self._open.append(weakref.ref(snapshot))
        return snapshot

    def _folded(self, batch: pa.RecordBatch, input: Input, slots: Slots) -> Folded | None:
        """The values to fold from the columns `input`, or None if there are none."""
        if not input:
            return Folded(slots, _NO_NUMBERS, _NO_MASK)
        first, *more = input
        array, is_set = plain(batch.column(first)), self.is_set[input]
        values = numbers_of(array) if input in self._numeric else _NO_NUMBERS
        if not more and array.null_count == 0:  # nearly always
            return Folded(slots, values, is_set, functools.partial(_read, batch, None))
        arrays = [array, *(plain(batch.column(column)) for column in more)]
        rows = np.flatnonzero(~functools.reduce(np.logical_or, [null_mask(array) for array in arrays]))
        if len(rows) == 0:
            return None
        values = values[rows] if input in self._numeric else values
        return Folded(slots[rows], values, is_set, functools.partial(_read, batch, rows))

    def _last_rows(self, slots: Slots) -> npt.NDArray[np.intp]:
        """Of each slot the last row, in order: write the number of the row into the slot, and see whose stayed."""
        numbers = np.arange(len(slots), dtype=np.int32)
        self._last_row[slots] = numbers
        is_last: Mask = self._last_row.take(slots) == numbers
        return is_last.nonzero()[0]

    def _log(self, touched: Slots) -> None:
        if not self._open:
            return
        for reference in self._open:
            snapshot = reference()
            if snapshot is not None:
                snapshot.log(touched)
        self._open = [reference for reference in self._open if _is_open(reference)]

    def make_room(self) -> None:
        """For all slots of the index."""
        size = self.index.size
        if size == self._ready:
            return
        if size > len(self._last_row):
            self._last_row = with_capacity(self._last_row, size)
            self.numbers = {label: with_capacity(column, size) for label, column in self.numbers.items()}
            self.is_set = {name: with_capacity(column, size) for name, column in self.is_set.items()}
            self._open = []  # the snapshots have the old columns to themselves
        for accumulator in self.accumulators:  # in `is_set` there is nothing to do: room is made of zeros
            self.numbers[accumulator.label][self._ready : size] = accumulator.initial
        self._ready = size


def _read(batch: pa.RecordBatch, rows: npt.NDArray[np.intp] | None, column: str) -> pa.Array:
    array = plain(batch.column(column))
    return array if rows is None else take(array, rows)


def _overflow(accumulator: Accumulator, name: str) -> DataError:
    return DataError(
        f"state '{name}': {accumulator.label} has left the range of 64-bit integers; "
        "cast the column to float64 if that is precise enough"
    )


def plain_key(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """A key as it is emitted and stored: without encoding, and with one zero and one NaN."""
    array = plain(array)
    if pa.types.is_floating(kind):
        return array_of_words(words_of(array), kind, null_mask(array) if array.null_count else None)
    return array if array.type == kind else array.cast(kind)


class ColumnsSnapshot:
    """The columns at one moment: references to the live ones, and a log of what has been overwritten since."""

    def __init__(
        self,
        keys: KeySnapshot,
        accumulators: Sequence[Accumulator],
        numbers: dict[str, Numbers],
        is_set: dict[Input, Mask],
    ) -> None:
        self.keys = keys
        self.accumulators = tuple(accumulators)
        self.is_materialised = False
        self._live: list[Numbers] = [*numbers.values(), *is_set.values()]
        self._labels: list[object] = [*numbers, *((_SET, name) for name in is_set)]
        self._is_logged: Mask | None = None
        self._logged: list[tuple[Slots, list[Numbers]]] = []
        self._materialising = threading.Lock()

    def log(self, touched: Slots) -> None:
        """Called in the mailbox before these slots are overwritten."""
        # By local names: the background may settle, and drop all three, at any moment.
        live, logged, is_logged = self._live, self._logged, self._is_logged
        if self.is_materialised:
            return
        if is_logged is None:
            self._is_logged = is_logged = np.zeros(self.keys.size, dtype=np.bool_)
        old = touched[touched < self.keys.size]
        old = old[~is_logged.take(old)]
        if len(old):
            logged.append((old, [column.take(old) for column in live]))
            is_logged[old] = True

    def arrays(self) -> list[pa.Array]:
        """The accumulators' columns as Arrow arrays, null where no value has come."""
        columns = dict(zip(self._labels, self._materialise(), strict=True))
        arrays = []
        for accumulator in self.accumulators:
            has_nulls = bool(accumulator.input) and not accumulator.is_count
            nulls = ~columns[_SET, accumulator.input] if has_nulls else None
            arrays.append(accumulator.array(columns[accumulator.label], nulls))
        return arrays

    def rows(self) -> Mask:
        """Which slots have had a row, if the columns knew that."""
        return dict(zip(self._labels, self._materialise(), strict=True))[_SET, _ROWS]

    def _materialise(self) -> list[Numbers]:
        """Copy, then read the log: in this order, see the head of this file. Runs in any thread, once."""
        with self._materialising:
            if not self.is_materialised:
                copies = [column[: self.keys.size].copy() for column in self._live]
                self.is_materialised = True
                for slots, values in self._logged:
                    for column, old in zip(copies, values, strict=True):
                        column[slots] = old
                self._live, self._logged, self._is_logged = copies, [], None
            return self._live


def _is_open(reference: weakref.ref[ColumnsSnapshot]) -> bool:
    snapshot = reference()
    return snapshot is not None and not snapshot.is_materialised
