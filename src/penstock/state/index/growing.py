"""A column of values that are appended and never changed, and that grows without a pause.

To copy a large column at once holds the mailbox: most of that time, the system makes the new pages. So the larger copy
is begun when the column is half full, and each call that appends some values copies a few times as many of the old
ones. By the time the column is full, the copy is complete and takes its place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_FIRST_CAPACITY = 1 << 10
_COPIED_PER_VALUE = 3
"""Old values that are copied for each new one. With two, the copy would be complete when the column is just full."""


class GrowingColumn:
    """Values of one type. `values` may be replaced by a larger array, and what is in it before the end never changes.

    So a reference to `values` and a size are a snapshot.
    """

    __slots__ = ("_copied", "_larger", "values")

    def __init__(self, dtype: npt.DTypeLike, capacity: int = _FIRST_CAPACITY) -> None:
        self.values: npt.NDArray[Any] = np.zeros(capacity, dtype=dtype)
        self._larger: npt.NDArray[Any] | None = None
        self._copied = 0

    @property
    def column_bytes(self) -> int:
        return self.values.nbytes + (0 if self._larger is None else self._larger.nbytes)

    def append(self, size: int, values: npt.NDArray[Any]) -> None:
        """Put `values` behind the first `size` ones, all of which stay. Values that were never put are zero."""
        end = size + len(values)
        if end > len(self.values) // 2:
            self._grow(size, end)
        self.values[size:end] = values

    def _grow(self, size: int, end: int) -> None:
        if self._larger is None or len(self._larger) < 2 * end:
            self._larger, self._copied = np.zeros(2 * max(end, len(self.values)), dtype=self.values.dtype), 0
        to = min(size, self._copied + _COPIED_PER_VALUE * (end - size))
        if end > len(self.values):
            to = size
        self._larger[self._copied : to] = self.values[self._copied : to]
        self._copied = to
        if to == size:
            self.values, self._larger = self._larger, None
