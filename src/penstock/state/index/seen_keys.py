"""Which rows are the first ones of their keys, columnar; and until when a key is remembered.

A row that is kept makes every other row of its key a duplicate up to a time, its own time and `within`. A later row of
the key is kept again, and so on: whether a row is kept depends on the rows before it. Where several rows of a key are
kept in one batch, they are found by pointer jumping: each row points to the first row that would be kept behind it, and
a kept row has no later time before it, so that the running maximum of the times is enough to find it.

Keys that are forgotten stay in an index, which only grows. When it has twice as many keys as were alive after the last
renewal, a new one takes its place: the keys that are alive are moved in portions, and until then a key that the new
index does not know is looked up in the old one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.gather import take
from penstock.state.index.key_index import KeyIndex, with_capacity
from penstock.state.index.slot_table import Slots

Times = npt.NDArray[np.int64]
Rows = npt.NDArray[np.intp]

NEVER = np.iinfo(np.int64).min
"""The key was never seen."""
ALWAYS = np.iinfo(np.int64).max
"""The key is never forgotten."""
_SPARE_KEYS = 1 << 12


def ends_of(times: Times, within: int) -> Times:
    """Until when rows of these times are remembered; `ALWAYS` where no later time fits into 64 bits."""
    fits = times <= ALWAYS - within
    return np.where(fits, times, ALWAYS - within) + within


class SeenKeys:
    """The keys of one subtask, and until when each is remembered."""

    def __init__(self, kinds: Sequence[pa.DataType]) -> None:
        self.kinds = tuple(kinds)
        self._index = KeyIndex(kinds)
        self._until: Times = np.empty(0, dtype=np.int64)
        self._old: tuple[KeyIndex, Times] | None = None
        self._to_move: deque[tuple[list[pa.Array], Times]] = deque()
        self._size_next = 2 * _SPARE_KEYS

    @property
    def size(self) -> int:
        """Keys in the index, forgotten ones included."""
        return self._index.size + (0 if self._old is None else self._old[0].size)

    @property
    def seen_bytes(self) -> int:
        old = 0 if self._old is None else self._old[0].state_bytes + self._old[1].nbytes
        return self._index.state_bytes + self._until.nbytes + old

    def first_rows(self, keys: Sequence[pa.Array], times: Times, within: int | None) -> Rows:
        """The rows that are no duplicates, in their order. They are remembered; without `within`, always."""
        slots = self._slots_of(keys)
        order = np.argsort(slots, kind="stable")
        kept = order[_kept(slots[order], times[order], self._until.take(slots[order]), within)]
        self._until[slots[kept]] = ALWAYS
        if within is not None:
            # By row, because the last one of several that were kept of a key counts.
            self._until[slots[kept]] = ends_of(times[kept], within)
        kept.sort()
        return kept

    def remember(self, keys: Sequence[pa.Array], until: Times) -> None:
        """These keys are remembered until then, or for longer."""
        slots = self._slots_of(keys)
        np.maximum.at(self._until, slots, until)

    @property
    def is_to_be_renewed(self) -> bool:
        return self._old is None and self._index.size > self._size_next

    def renew(self, entries: Iterable[tuple[list[pa.Array], Times]]) -> None:
        """Begin a new index. `entries` have all keys that are remembered."""
        self._old = self._index, self._until
        self._index, self._until = KeyIndex(self.kinds), np.empty(0, dtype=np.int64)
        self._to_move = deque(entries)

    def move_some(self, now: int) -> None:
        """Move one portion of the keys that are remembered at the time `now` to the new index."""
        if self._old is None:
            return
        if self._to_move:
            keys, until = self._to_move.popleft()
            alive = np.flatnonzero(until > now)
            self.remember([take(key, alive) for key in keys], until[alive])
        if not self._to_move:
            self._old = None
            self._size_next = 2 * (self._index.size + _SPARE_KEYS)

    def _slots_of(self, keys: Sequence[pa.Array]) -> Slots:
        known = self._index.size
        slots = self._index.slots_of(keys).astype(np.intp, copy=False)
        size = self._index.size
        if size > known:
            self._until = with_capacity(self._until, size)
            self._until[known:size] = NEVER
            if self._old is not None:
                self._ask_old(self._old, keys, slots, known)
        return slots

    def _ask_old(self, old: tuple[KeyIndex, Times], keys: Sequence[pa.Array], slots: Slots, known: int) -> None:
        index, until = old
        rows = np.flatnonzero(slots >= known)
        theirs = index.find([take(key, rows) for key in keys], nulls_match=True)
        found = np.flatnonzero(theirs >= 0)
        self._until[slots[rows[found]]] = until[theirs[found]]


def _kept(slots: Slots, times: Times, until: Times, within: int | None) -> npt.NDArray[np.bool_]:
    """Which rows are kept, of rows that are sorted by slot and else in their order."""
    count = len(slots)
    kept = np.zeros(count, dtype=np.bool_)
    if count == 0:
        return kept
    begins = np.flatnonzero(np.diff(slots, prepend=slots[0] - 1))
    may = ((times >= until) | (until == NEVER)) & (until != ALWAYS)
    first = _first_of(may, begins)
    kept[first] = True
    if within is None or len(first) == 0:
        return kept
    numbers = np.cumsum(np.isin(np.arange(count), begins)) - 1
    ends = np.full(len(begins), ALWAYS)
    ends[numbers[first]] = ends_of(times[first], within)
    again = (times >= ends[numbers]) & (ends[numbers] != ALWAYS) & may
    if again.any():
        kept |= _orbits(numbers, times, first, within)
    return kept


def _first_of(mask: npt.NDArray[np.bool_], begins: Rows) -> Rows:
    """Of each stretch that begins at `begins`, the first row that the mask has."""
    rows = np.flatnonzero(mask)
    stretches = np.searchsorted(begins, rows, side="right")
    return rows[np.flatnonzero(np.diff(stretches, prepend=0))]


def _orbits(numbers: Rows, times: Times, first: Rows, within: int) -> npt.NDArray[np.bool_]:
    """The rows that follow from the `first` ones, each the first row that is at least `within` after the one before."""
    count = len(times)
    ends = ends_of(times, within)
    distinct = np.unique(np.concatenate([times, ends]))
    span = len(distinct) + 1
    reached = np.maximum.accumulate(numbers * span + np.searchsorted(distinct, times))
    following = np.searchsorted(reached, numbers * span + np.searchsorted(distinct, ends))
    beyond = following == count
    following[beyond] = 0
    beyond |= (numbers[following] != numbers) | (ends == ALWAYS)
    following[beyond] = count
    jump = np.append(following, count)
    kept = np.zeros(count + 1, dtype=np.bool_)
    kept[first] = True
    before = 0
    while (now := int(np.count_nonzero(kept[:count]))) > before:
        before = now
        kept[jump[np.flatnonzero(kept)]] = True
        jump = jump[jump]
    return kept[:count]
