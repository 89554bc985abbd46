"""A cache from integers that lie close together to numbers, in front of a slower way to find them.

Ids that come from a sequence need no hash: what is known of them stands at their own place in a table. One gather
then answers for a whole batch. Keys that are spread out do not come in here, and pay for a look at the smallest and
the largest of a batch.

A larger table is filled in steps, a part with each call. Until it is complete, keys out of the range of the old one are
found the slower way. Whatever the old one learns meanwhile is asked for once more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Ask: TypeAlias = Callable[[npt.NDArray[np.intp]], npt.NDArray[Any]]
"""The numbers, none of them negative, of the rows that are given."""

_UNKNOWN = -1
_SPAN_MAX = 1 << 20
"""Eight megabytes, or twice that: about what the caches of a processor hold."""
_FILLED_MAX = 1 << 16
"""Places of a larger table that one call fills: to fill two million at once takes the time of many batches."""
_SPARSE_MAX = 16
"""Most places in the table for each row that was ever asked for."""


class DirectTable:
    """What is known of the integers from `_base` on."""

    __slots__ = ("_asked", "_base", "_filled", "_larger", "_larger_base", "_places")

    def __init__(self) -> None:
        self._base = 0
        self._places: npt.NDArray[np.intp] = np.empty(0, dtype=np.intp)
        self._asked = 0
        self._larger: npt.NDArray[np.intp] | None = None
        self._larger_base = 0
        self._filled = 0

    @property
    def table_bytes(self) -> int:
        return self._places.nbytes + (0 if self._larger is None else self._larger.nbytes)

    def look_up(self, words: npt.NDArray[np.int64], ask: Ask) -> npt.NDArray[np.intp] | None:
        """The number of each; None if they do not lie close enough together for this table.

        What is not known yet is asked for, once: `ask` gets the rows of `words` that it is about.
        """
        if len(words) == 0:
            return None
        self._asked += len(words)
        if self._larger is not None:
            self._fill(self._larger)
        offsets = self._offsets_of(words)
        if offsets is None:
            if self._larger is None:
                self._grow(int(words.min()), int(words.max()))
                offsets = self._offsets_of(words)
            if offsets is None:
                return None
        known = self._places.take(offsets)
        if known[known.argmin()] == _UNKNOWN:
            rows = np.flatnonzero(known == _UNKNOWN)
            known[rows] = ask(rows)
            self._places[offsets[rows]] = known[rows]
        return known

    def _offsets_of(self, words: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
        """Where in the table they stand; None if one of them is not in its range."""
        offsets = words - self._base if self._base else words
        # Without a sign, what lies before the table lies far behind it, and one comparison is enough.
        unsigned = offsets.view(np.uint64)
        # By `argmax`, because `max` goes through Python, which takes several times as long for a few words.
        return offsets if unsigned[unsigned.argmax()] < len(self._places) else None

    def _grow(self, low: int, high: int) -> None:
        """Begin a table that reaches from `low` to `high`, unless it would be too large."""
        size = len(self._places)
        first = min(low, self._base) if size else low
        end = max(high + 1, self._base + size) if size else high + 1
        if end - first > min(_SPAN_MAX, _SPARSE_MAX * self._asked):
            return
        if 0 <= first < end - first:
            # Where it costs little the table begins at zero, and nothing needs to be subtracted.
            first = 0
        # Twice as much as is needed: ids grow, and a table that grew with each of them would be copied for each.
        self._larger, self._larger_base, self._filled = np.empty(2 * (end - first), dtype=np.intp), first, 0
        self._fill(self._larger)

    def _fill(self, larger: npt.NDArray[np.intp]) -> None:
        """Fill the next part of the larger table; complete, it takes the place of the old one."""
        begin, end = self._filled, min(self._filled + _FILLED_MAX, len(larger))
        larger[begin:end] = _UNKNOWN
        shift = self._base - self._larger_base
        first, last = max(begin, shift), min(end, shift + len(self._places))
        if first < last:
            larger[first:last] = self._places[first - shift : last - shift]
        self._filled = end
        if end == len(larger):
            self._base, self._places, self._larger = self._larger_base, larger, None
