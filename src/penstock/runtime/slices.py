"""Time slices: how many records one call into a chain gets, so that the mailbox is never held for long.

What a call costs is measured: so much for the call itself, and so much for each record. A slice is what takes a few
milliseconds, so that a barrier never waits for a large batch in a slow function. Where the call itself takes longer
than that, smaller slices would only mean more calls: then a slice is what takes as long again. Time for which others
had the core does not count: it would shrink slices, and cost more calls, where the cores are short already.

What a call itself costs shows only in calls of different sizes. One record after the other that takes too long may be
slow records, or slow calls: so every now and then a call gets two.
"""

from __future__ import annotations

_MEMORY = 0.7
"""How much the calls before count when another one is measured."""
_SPREAD_MIN = 0.01
"""Calls of nearly equal size, by their squared relative deviation, tell nothing about what the call itself costs."""
_ALIKE_MAX = 8
"""After so many calls of one record each, one with two is tried."""
_TRIED_US_MAX = 20_000
"""Records that take longer than this are never tried two at a time: barriers would wait for both."""
_ROWS_PART_MIN = 0.02
"""The records are at least this part of what a call takes: it is an estimate, which must not run away."""


class SlicePolicy:
    """Learns what the calls of one chain cost. Starts small and at most doubles, because nothing is known yet."""

    __slots__ = (
        "_alike",
        "_call_us",
        "_calls",
        "_row_us",
        "_rows",
        "_rows_squared",
        "_rows_us",
        "_us",
        "rows_max",
        "slice_us",
        "upper",
    )

    def __init__(self, slice_us: int, rows_max: int, rows_first: int = 1024) -> None:
        self.slice_us = slice_us
        self.upper = rows_max
        self.rows_max = min(rows_first, rows_max)
        self._call_us = self._row_us = 0.0
        """What a call itself costs, and each record in it."""
        self._alike = 0
        """So many calls in a row have told nothing about the call itself."""
        # Sums over the calls, the older ones counting less: for a straight line through (rows, time).
        self._calls = self._rows = self._us = self._rows_squared = self._rows_us = 0.0

    def rows_within(self, us: int) -> int:
        """How many records to give to a call that should take so long, which is as usual or less."""
        rows = max(1, min(self._rows_within(us), self.rows_max))
        return 2 if rows == 1 and self._is_worth_a_try else rows

    @property
    def _is_worth_a_try(self) -> bool:
        return self._alike >= _ALIKE_MAX and self._us <= _TRIED_US_MAX * self._calls and self.upper > 1

    def _rows_within(self, us: int) -> int:
        return int(max(us - self._call_us, self._call_us) / max(self._row_us, 1e-6))

    def measured(self, rows: int, took_us: int) -> None:
        """Learn from one call."""
        if rows < 1:
            return
        # Slowing down is learnt at once: the next slice must not be as long as this one was.
        memory = _MEMORY if took_us <= 2 * (self._call_us + self._row_us * rows) else 0.0
        self._calls = memory * self._calls + 1
        self._rows = memory * self._rows + rows
        self._us = memory * self._us + took_us
        self._rows_squared = memory * self._rows_squared + rows * rows
        self._rows_us = memory * self._rows_us + rows * took_us
        self._learn()
        self.rows_max = max(1, min(self._rows_within(self.slice_us), 2 * self.rows_max, self.upper))

    def _learn(self) -> None:
        """Put a straight line through the calls; where they are all alike, what the call itself costs is as before."""
        mean_us, mean_row_us = self._us / self._calls, self._us / self._rows
        deviation = self._calls * self._rows_squared - self._rows * self._rows
        is_telling = deviation >= _SPREAD_MIN * self._rows * self._rows
        self._alike = 0 if is_telling else self._alike + 1
        if is_telling:
            slope = (self._calls * self._rows_us - self._rows * self._us) / deviation
            self._call_us = mean_us - max(slope, 0.0) * self._rows / self._calls
        self._call_us = min(max(self._call_us, 0.0), (1 - _ROWS_PART_MIN) * mean_us)
        self._row_us = mean_row_us - self._call_us * self._calls / self._rows
