"""From keys to slots: an open-addressing hash table that looks up a whole batch at once.

A slot is a dense number, 0 for the first key that was ever added, 1 for the next; the columns of the state are
indexed by it. The table knows only slots: whose key lies in a slot is for the owner to say, so that two keys are
the same only if they are equal, however their hashes collide.

All rows of a batch probe in lockstep: those that have found their key drop out, the others go on to their next
position, by individual strides, since with a common one the few rows at the end of a long run would need a
round for each step. New keys are added by election: all rows at a free position write their number into it, the
last one stays and brings its key in, and the others look again, so that the copies of one key find it there.

The table consists of segments of one size, and a directory that says by some bits of a hash which segment it belongs
to (extendible hashing). A segment that has become too full is split in two. All segments become too full at about the
same time, so splits are rationed: a new key pays for moving a few old ones, and the fullest segment is split first. So
the table grows in small steps, and no call takes longer because there are many keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.columnar.hashing import Words

Slots: TypeAlias = npt.NDArray[np.signedinteger[Any]]
Rows: TypeAlias = npt.NDArray[np.intp]
Positions: TypeAlias = npt.NDArray[np.int64]

Equal: TypeAlias = Callable[[Slots, Rows | None], npt.NDArray[np.bool_]]
"""Whether the key in each slot is the key of the row beside it; None means all rows. For a slot of -1, any answer."""

Append: TypeAlias = Callable[[Rows], None]
"""Give the keys of these rows the next slots, in this order."""

_FREE = 0
"""A position holds a slot plus one."""
_SEGMENT_BITS = 12
_SEGMENT = 1 << _SEGMENT_BITS
_SEGMENT_KEYS_MAX = _SEGMENT * 3 // 8
"""Keys in a segment; one more, and it is to be split. Probing is short while most positions are free."""
_SEGMENT_KEYS_LIMIT = _SEGMENT * 3 // 4
"""Keys in a segment; one more, and it is split at once."""
_MOVED_PER_KEY = 2
"""Keys that may be moved for each new one. With one, the table would grow just as fast as it fills."""
_MOVES_SAVED_MAX = 8 * _SEGMENT_KEYS_MAX
"""Moves that are paid for and not made yet, at most: a call makes as many, and those that its own keys pay for."""
_ROOM_SEGMENTS_MAX = 16
"""Segments that room is made for beforehand: the system clears it in one call."""
_DEPTH_SLACK = 6
"""Bits by which the directory may be deeper than its segments need. Keys whose hashes agree in more are not split."""
_SLOTS_MAX = 2**31 - 2


class SlotTable:
    """Positions, each free or holding a slot. `rehash` gives the hashes of some slots again."""

    def __init__(self, rehash: Callable[[Slots], Words]) -> None:
        self.size = 0
        self._rehash = rehash
        self._positions: Slots = np.zeros(_SEGMENT, dtype=np.int32)
        self._directory: npt.NDArray[np.int64] = np.zeros(1, dtype=np.int64)
        """For each value of the bits above those of a position, the first position of its segment."""
        self._keys: npt.NDArray[np.int64] = np.zeros(1, dtype=np.int64)
        """Of each segment, how many keys it holds."""
        self._depths: npt.NDArray[np.int64] = np.zeros(1, dtype=np.int64)
        """Of each segment, by how many bits of the directory its keys agree."""
        self._moves = 0
        """Moves of keys that are paid for."""

    @property
    def table_bytes(self) -> int:
        return sum(array.nbytes for array in (self._positions, self._directory, self._keys, self._depths))

    def find_or_add(self, hashes: Words, equal: Equal, append: Append) -> Slots:
        """The slot of each row; rows with new keys get new ones. Equal keys must have equal hashes."""
        position = self._home(hashes)
        found = self._positions.take(position)
        found -= 1
        matches = equal(found, None)
        matches &= found >= 0
        if not matches.all():
            misses = np.flatnonzero(~matches)
            self._resolve(found, misses, position[misses], hashes, equal, append)
            # Here nobody is on the way to a position, and nothing has to be looked up again.
            self._split_segments(self._full_segments())
        return found

    def find(self, hashes: Words, equal: Equal) -> Slots:
        """The slot of each row, -1 where its key is not here. Nothing is added."""
        position = self._home(hashes)
        found: Slots = np.full(len(hashes), -1, dtype=np.int32)
        rows: Rows = np.arange(len(hashes))
        while len(rows):
            slots = self._positions.take(position)
            slots -= 1
            matches = equal(slots, rows)
            matches &= slots >= 0
            found[rows[matches]] = slots[matches]
            on = np.flatnonzero(~matches & (slots >= 0))
            rows = rows[on]
            position = _next(position[on], hashes[rows])
        return found

    def _resolve(
        self, found: Slots, rows: Rows, position: Positions, hashes: Words, equal: Equal, append: Append
    ) -> None:
        """Probe on for the `rows` that did not find their key at `position`, adding those that are new."""
        while len(rows):
            free = self._positions.take(position) == _FREE
            following = _next(position, hashes[rows])
            if free.any():
                self._elect(rows[free], position[free], append)
                following = np.where(free, position, following)
                if self._keys.max() > _SEGMENT_KEYS_LIMIT and self._split_crowded_segments():
                    following = self._home(hashes[rows])
            slots = self._positions.take(following)
            slots -= 1
            matches = equal(slots, rows)
            matches &= slots >= 0
            found[rows[matches]] = slots[matches]
            lost = np.flatnonzero(~matches)
            rows, position = rows[lost], following[lost]

    def _elect(self, rows: Rows, position: Positions, append: Append) -> None:
        ballot = np.arange(1, len(rows) + 1, dtype=np.int32)
        self._positions[position] = ballot
        winners = np.flatnonzero(self._positions.take(position) == ballot)
        first, end = self.size, self.size + len(winners)
        if end > _SLOTS_MAX:
            raise OverflowError(f"one subtask cannot hold more than {_SLOTS_MAX} keys")
        taken = position[winners]
        self._positions[taken] = np.arange(first + 1, end + 1, dtype=np.int32)
        append(rows[winners])
        self.size = end
        self._moves = min(self._moves, _MOVES_SAVED_MAX) + _MOVED_PER_KEY * len(winners)
        self._keys += np.bincount(taken >> _SEGMENT_BITS, minlength=len(self._keys))

    def _split_crowded_segments(self) -> bool:
        """Split those that cannot wait; True if there were any."""
        has_split = False
        while len(crowded := self._splittable(_SEGMENT_KEYS_LIMIT)):
            has_split = True
            self._split_segments(crowded)
        if self._keys.max() == _SEGMENT:
            raise OverflowError(f"{_SEGMENT} keys of one subtask have nearly the same hash")
        return has_split

    def _full_segments(self) -> npt.NDArray[np.intp]:
        """Those that are full, the fullest first: as many as are paid for."""
        full = self._splittable(_SEGMENT_KEYS_MAX)
        fullest_first = full[np.argsort(-self._keys[full], kind="stable")]
        moves = np.cumsum(self._keys[fullest_first])
        paid = int(np.searchsorted(moves, self._moves, side="right"))
        self._moves -= int(moves[paid - 1]) if paid else 0
        return fullest_first[:paid]

    def _splittable(self, keys: int) -> npt.NDArray[np.intp]:
        """The segments with more than this many keys, unless the hashes of these agree in too many bits."""
        depth_max = len(self._depths).bit_length() + _DEPTH_SLACK
        return np.flatnonzero((self._keys > keys) & (self._depths < depth_max))

    def _split_segments(self, segments: npt.NDArray[np.intp]) -> None:
        if len(segments):
            held = self._positions.reshape(-1, _SEGMENT)[segments]
            slots = held[held != _FREE] - 1
            others = range(len(self._depths), len(self._depths) + len(segments))
            self._make_room(len(segments))
            for segment, other in zip(segments.tolist(), others, strict=True):
                self._split(segment, other)
            self._insert(slots)

    def _make_room(self, segments: int) -> None:
        """Room for some more segments."""
        none = np.zeros(segments, dtype=np.int64)
        self._keys, self._depths = np.concatenate([self._keys, none]), np.concatenate([self._depths, none])
        count = len(self._depths)
        if count * _SEGMENT > len(self._positions):
            # In place, where the system can do so: the time goes with the part that is new.
            self._positions.resize((count + min(count // 8, _ROOM_SEGMENTS_MAX)) * _SEGMENT, refcheck=False)

    def _split(self, segment: int, other: int) -> None:
        """Empty a segment, and let `other` take those of its hashes that have one more bit set."""
        depth = int(self._depths[segment])
        if len(self._directory) == 1 << depth:
            self._directory = np.concatenate([self._directory, self._directory])
        self._positions[segment * _SEGMENT : (segment + 1) * _SEGMENT] = _FREE
        self._keys[segment] = 0
        self._depths[segment] = self._depths[other] = depth + 1
        agreed = np.flatnonzero(self._directory[: 1 << depth] == segment * _SEGMENT)[0]
        self._directory[agreed + (1 << depth) :: 1 << (depth + 1)] = other * _SEGMENT

    def _insert(self, slots: Slots) -> None:
        """Put slots whose keys are distinct into segments that have room for them."""
        hashes = self._rehash(slots)
        pending = slots + 1
        position = self._home(hashes)
        self._keys += np.bincount(position >> _SEGMENT_BITS, minlength=len(self._keys))
        while len(pending):
            free = np.flatnonzero(self._positions.take(position) == _FREE)
            self._positions[position[free]] = pending[free]
            lost = np.flatnonzero(self._positions.take(position) != pending)
            pending, hashes = pending[lost], hashes[lost]
            position = _next(position[lost], hashes)

    def _home(self, hashes: Words) -> Positions:
        # The low bits: the high ones decide the key group, and are much the same all over one subtask.
        bits = hashes.view(np.int64)
        if len(self._directory) == 1:
            return bits & (_SEGMENT - 1)
        first = self._directory.take((bits >> _SEGMENT_BITS) & (len(self._directory) - 1))
        first |= bits & (_SEGMENT - 1)
        return first


def _next(position: Positions, hashes: Words) -> Positions:
    """The following position in the same segment: an odd stride visits all of them, a power of two."""
    stride = (hashes >> np.uint64(40)).view(np.int64) | 1
    return (position & ~np.int64(_SEGMENT - 1)) | ((position + stride) & (_SEGMENT - 1))
