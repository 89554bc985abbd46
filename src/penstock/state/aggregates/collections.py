"""Accumulators that keep values one by one: distinct ones, or all of them in a list.

The values lie beside the column, each with the number of its owner: a life of a slot, which begins with its first value
and ends when the slot is cleared. The column has the number of the owner and how many values it has. Values are only
added, so that a snapshot is a few references, as that of keys is; those of owners that are gone are left behind when
they are more than the others.

In a checkpoint a slot has its values as a list.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.fixed_width import fixed_width_values
from penstock.columnar.gather import take
from penstock.columnar.plain import plain
from penstock.model.aggregates import Aggregate
from penstock.state.aggregates.accumulators import Accumulator, Folded, Input, Nulls, Numbers
from penstock.state.index.key_index import KeyIndex, KeySnapshot
from penstock.state.index.slot_table import Slots

_OWNER = [("owner", "i8"), ("count", "i8")]
_GARBAGE_MIN = 1 << 12
_OFFSETS_MAX = 2**31 - 1

Owners = npt.NDArray[np.int64]


class Run(NamedTuple):
    """Values in the order of their owners, those of one owner in the order in which they came."""

    owners: Owners
    values: pa.Array


class Collection(Accumulator):
    """A list of values for each slot."""

    needs_numbers = False

    def __init__(self, label: str, input: Input, value_kind: pa.DataType) -> None:
        super().__init__(label, input, pa.list_(value_kind), _OWNER)
        self.value_kind = value_kind
        self._owners = 0
        """The number of owners there have been. Owner 0 is no owner."""
        self._garbage = 0
        """Values of owners that are gone."""

    def fresh(self) -> Self:
        return type(self)(self.label, self.input, self.value_kind)

    def fold(self, state: Numbers, folded: Folded) -> None:
        self._add(state, folded.slots, folded.read(self.input[0]))

    def merge(self, state: Numbers, folded: Folded, source: Accumulator) -> None:
        assert isinstance(source, Collection)
        self._add_lists(state, folded.slots, *source.lists_of(folded.values["owner"]))

    def clear(self, state: Numbers, slots: Slots) -> None:
        self._garbage += int(state["count"].take(slots).sum())
        super().clear(state, slots)
        if self._garbage > _GARBAGE_MIN and self._garbage > int(state["count"].sum()):
            live = np.flatnonzero(state["owner"])
            owners = state["owner"].take(live)
            lengths, values = self.lists_of(owners)
            self._forget()
            self._append(np.repeat(owners, lengths), values)
            self._garbage = 0

    def array(self, numbers: Numbers, nulls: Nulls) -> pa.Array:
        lengths, values = self.lists_of(numbers["owner"])
        if len(values) > _OFFSETS_MAX:
            raise pa.ArrowInvalid(f"{self.label} has {len(values)} values: a piece of a checkpoint holds 2**31")
        offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
        buffers = [None if nulls is None else pa.array(~nulls).buffers()[1], pa.py_buffer(offsets)]
        return pa.Array.from_buffers(self.kind, len(lengths), buffers, children=[values])

    def put(self, state: Numbers, slots: Slots, array: pa.Array, nulls: npt.NDArray[np.bool_]) -> None:
        lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        self._add_lists(state, slots, lengths, array.flatten())

    def has_value(self, state: Numbers, slots: Slots, nulls: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        has: npt.NDArray[np.bool_] = state["count"].take(slots) > 0
        return has

    def lists_of(self, owners: Owners) -> tuple[npt.NDArray[np.int64], pa.Array]:
        """How many values each of these owners has, and the values, one owner behind the other."""
        return lists_in(self._runs(), owners, self.value_kind)

    def _add_lists(self, state: Numbers, slots: Slots, lengths: npt.NDArray[np.int64], values: pa.Array) -> None:
        if len(values):
            self._add(state, np.repeat(slots, lengths), values)

    def _add(self, state: Numbers, slots: Slots, values: pa.Array) -> None:
        is_new = state["owner"].take(slots) == 0
        if is_new.any():
            new = np.unique(slots[is_new])
            state["owner"][new] = np.arange(self._owners + 1, self._owners + 1 + len(new))
            self._owners += len(new)
        values = plain(values)
        values = values if values.type == self.value_kind else values.cast(self.value_kind)
        np.add.at(state["count"], slots[self._append(state["owner"].take(slots), values)], 1)

    def _append(self, owners: Owners, values: pa.Array) -> npt.NDArray[np.intp] | slice:
        """Add values; returns the rows that were added."""
        raise NotImplementedError

    def _forget(self) -> None:
        """Drop all values, into new structures: a snapshot may have the old ones."""
        raise NotImplementedError

    def _runs(self) -> Sequence[Run]:
        raise NotImplementedError


class Listed(Collection):
    """All values, in the order in which they came.

    Runs of like size are merged, so that there are few of them and no value is moved often.
    """

    def __init__(self, label: str, input: Input, value_kind: pa.DataType) -> None:
        super().__init__(label, input, value_kind)
        self._sorted: tuple[Run, ...] = ()

    @property
    def held_bytes(self) -> int:
        return sum(run.owners.nbytes + int(run.values.nbytes) for run in self._sorted)

    def frozen(self) -> Accumulator:
        return copy.copy(self)  # the runs are replaced and never changed

    def _runs(self) -> Sequence[Run]:
        return self._sorted

    def _append(self, owners: Owners, values: pa.Array) -> slice:
        runs = [*self._sorted, _run(owners, values)]
        while len(runs) > 1 and len(runs[-2].owners) <= 2 * len(runs[-1].owners):
            last = runs.pop()
            both = pa.concat_arrays([runs[-1].values, last.values])
            runs[-1] = _run(np.concatenate([runs[-1].owners, last.owners]), both)
        self._sorted = tuple(runs)
        return slice(None)

    def _forget(self) -> None:
        self._sorted = ()


class Distinct(Collection):
    """The distinct values, found by an index over owners and values."""

    is_count = True

    def __init__(self, label: str, input: Input, value_kind: pa.DataType) -> None:
        super().__init__(label, input, value_kind)
        self._forget()
        self._taken: KeySnapshot | None = None

    @property
    def held_bytes(self) -> int:
        return self._index.state_bytes

    def frozen(self) -> Accumulator:
        taken = copy.copy(self)
        taken._taken = self._index.snapshot()
        return taken

    def result(self, aggregate: Aggregate, numbers: Numbers, nulls: Nulls) -> pa.Array:
        return pa.array(numbers["count"])

    def _runs(self) -> Sequence[Run]:
        snapshot = self._index.snapshot() if self._taken is None else self._taken
        owners, values = snapshot.arrays()
        return [_run(fixed_width_values(owners, np.int64), values)]

    def _append(self, owners: Owners, values: pa.Array) -> npt.NDArray[np.intp]:
        known = self._index.size
        pairs = self._index.slots_of([pa.array(owners), values])
        new = np.flatnonzero(pairs >= known)
        # Of several rows with one new pair, one counts.
        return new[np.unique(pairs[new], return_index=True)[1]]

    def _forget(self) -> None:
        self._index = KeyIndex([pa.int64(), self.value_kind])


def _run(owners: Owners, values: pa.Array) -> Run:
    if bool((owners[1:] >= owners[:-1]).all()):
        return Run(owners, values)
    order = np.argsort(owners, kind="stable")
    return Run(owners.take(order), take(values, order))


def lists_in(runs: Sequence[Run], owners: Owners, kind: pa.DataType) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """How many values each of these owners has in all runs, and the values, one owner behind the other."""
    parts: list[pa.Array] = [pa.array([], kind)]
    starts, lengths = [], []
    before = 0
    for run in runs:
        first = np.searchsorted(run.owners, owners, side="left")
        many = np.searchsorted(run.owners, owners, side="right") - first
        parts.append(take(run.values, _ranges(first, many)))
        starts.append(before + np.cumsum(many) - many)
        lengths.append(many)
        before += len(parts[-1])
    if not runs:
        return np.zeros(len(owners), dtype=np.int64), parts[0]
    if len(runs) == 1:
        return lengths[0], parts[1]
    # Row by row of this table: the values of one owner in all runs.
    rows: npt.NDArray[Any] = _ranges(np.stack(starts, axis=1).ravel(), np.stack(lengths, axis=1).ravel())
    return np.sum(lengths, axis=0), take(pa.concat_arrays(parts), rows)


def _ranges(starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The numbers from each start on, as many as its length."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(total)
