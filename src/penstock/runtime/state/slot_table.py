"""From keys to slots: an open-addressing hash table that looks up a whole batch at once.

A slot is a dense number, 0 for the first key that was ever added, 1 for the next; the columns of the state are
indexed by it. The table knows only slots: whose key lies in a slot is for the owner to say, so that two keys are
the same only if they are equal, however their hashes collide.

All rows of a batch probe in lockstep: those that have found their key drop out, the others go on to their next
position, by a stride of their own, since with a common one the few rows at the end of a long run would need a
round for each step. New keys are added by election: all rows at a free position write their number into it, the
last one stays and brings its key in, and the others look again, so that the copies of one key find it there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.runtime.keys import Words

Slots: TypeAlias = npt.NDArray[np.signedinteger[Any]]
Rows: TypeAlias = npt.NDArray[np.intp]
Positions: TypeAlias = npt.NDArray[np.int64]

Equal: TypeAlias = Callable[[Slots, Rows | None], npt.NDArray[np.bool_]]
"""Whether the key in each slot is the key of the row beside it; None means all rows. For a slot of -1, any answer."""

Append: TypeAlias = Callable[[Rows], None]
"""Give the keys of these rows the next slots, in this order."""

_FREE = -1
_SMALLEST_CAPACITY = 1 << 10
_POSITIONS_PER_KEY_MIN = 4
_POSITIONS_PER_KEY_GROWN = 8
_SLOTS_MAX = 2**31 - 2


class SlotTable:
    """Positions of a power of two, each free or holding a slot. `rehash` gives the hashes of all slots again."""

    def __init__(self, rehash: Callable[[], Words]) -> None:
        self.size = 0
        self._rehash = rehash
        self._allocate(_SMALLEST_CAPACITY)

    def find_or_add(self, hashes: Words, equal: Equal, append: Append) -> Slots:
        """The slot of each row; rows with new keys get new ones. Equal keys must have equal hashes."""
        position = self._home(hashes)
        found = self._slots.take(position)
        matches = equal(found, None)
        matches &= found != _FREE
        if not matches.all():
            misses = np.flatnonzero(~matches)
            self._resolve(found, misses, position[misses], hashes, equal, append)
        return found

    def rebuild(self, size: int) -> None:
        """Hold the slots 0 … size-1 and nothing else. Their keys must be distinct."""
        self.size = size
        capacity = _SMALLEST_CAPACITY
        while capacity < size * _POSITIONS_PER_KEY_GROWN:
            capacity *= 2
        self._allocate(capacity)
        hashes = self._rehash()
        pending = np.arange(size, dtype=np.int32)
        position = self._home(hashes)
        while len(pending):
            free = np.flatnonzero(self._slots.take(position) == _FREE)
            self._slots[position[free]] = pending[free]
            lost = np.flatnonzero(self._slots.take(position) != pending)
            pending = pending[lost]
            position = self._next(position[lost], hashes[pending])

    def _resolve(
        self, found: Slots, rows: Rows, position: Positions, hashes: Words, equal: Equal, append: Append
    ) -> None:
        """Probe on for the `rows` that did not find their key at `position`, adding what is new."""
        while len(rows):
            free = self._slots.take(position) == _FREE
            following = self._next(position, hashes[rows])
            if free.any():
                self._elect(rows[free], position[free], append)
                following = np.where(free, position, following)
            if self.size * _POSITIONS_PER_KEY_MIN > len(self._slots):
                self.rebuild(self.size)
                following = self._home(hashes[rows])
            slots = self._slots.take(following)
            matches = equal(slots, rows)
            matches &= slots != _FREE
            found[rows[matches]] = slots[matches]
            lost = np.flatnonzero(~matches)
            rows, position = rows[lost], following[lost]

    def _elect(self, rows: Rows, position: Positions, append: Append) -> None:
        ballot = np.arange(len(rows), dtype=np.int32)
        self._slots[position] = ballot
        winners = np.flatnonzero(self._slots.take(position) == ballot)
        if self.size + len(winners) > _SLOTS_MAX:
            raise OverflowError(f"one subtask cannot hold more than {_SLOTS_MAX} keys")
        self._slots[position[winners]] = np.arange(self.size, self.size + len(winners), dtype=np.int32)
        append(rows[winners])
        self.size += len(winners)

    def _allocate(self, capacity: int) -> None:
        self._slots: Slots = np.full(capacity, _FREE, dtype=np.int32)
        self._mask = np.int64(capacity - 1)

    def _home(self, hashes: Words) -> Positions:
        # The low bits: the high ones decide the key group, and are much the same all over one subtask.
        return hashes.view(np.int64) & self._mask

    def _next(self, position: Positions, hashes: Words) -> Positions:
        # An odd stride visits every position of a table of a power of two.
        stride = (hashes >> np.uint64(40)).view(np.int64) | 1
        return (position + stride) & self._mask
