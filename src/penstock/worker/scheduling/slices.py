"""Time slices: how many records one call into a chain gets, so that the mailbox is never held for long.

What a call costs is measured: so much for the call itself, and so much for each record. A slice is what takes a few
milliseconds, so that a barrier never waits for a large batch in a slow function. Where the call itself takes longer
than that, smaller slices would only mean more calls: then a slice is what takes as long again. Time for which others
had the core does not count: it would shrink slices, and cost more calls, where the cores are short already.

The two are told apart by a straight line through the calls, which count by their relative error: in absolute terms one
slow large call would outweigh dozens of small ones. A line needs calls of different sizes. Where all are alike, slow
records look like slow calls: so every now and then a call gets half as many records, or two in place of one.
"""

from __future__ import annotations

_MEMORY = 0.7
"""How much the calls before count when another one is measured."""
_SPREAD_MIN = 0.01
"""Calls of nearly equal size, by their squared relative deviation, tell nothing about what the call itself costs."""
_ALIKE_MAX = 12
"""After so many calls that were alike, another size is tried."""
_TRIED_US_MAX = 20_000
"""Records that take longer than this are never tried two at a time: barriers would wait for both."""
_ROWS_PART_MIN = 0.02
"""The records are at least this part of what a call takes: it is an estimate, which must not run away."""


class SlicePolicy:
    """Learns what the calls of one chain cost. Starts small and at most doubles, because nothing is known yet."""

    __slots__ = (
        "_alike",
        "_call_us",
        "_row_us",
        "_rows",
        "_rows_squared",
        "_rows_us",
        "_us",
        "_weight",
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
        # Weighted sums over the calls, the older ones counting less: for a straight line through (rows, time).
        self._weight = self._rows = self._us = self._rows_squared = self._rows_us = 0.0

    def rows_within(self, us: int) -> int:
        """How many records to give to a call that should take so long, which is as usual or less."""
        rows = max(1, min(self._rows_within(us), self.rows_max))
        return rows if self._alike < _ALIKE_MAX else self._other_than(rows)

    def _other_than(self, rows: int) -> int:
        """A size that tells more than another call like those before, unless that could not change anything."""
        if rows == self.upper:
            return rows
        if rows > 1:
            return rows // 2
        return 2 if self._call_us + self._row_us <= _TRIED_US_MAX else 1

    def _rows_within(self, us: int) -> int:
        return int(max(us - self._call_us, self._call_us) / max(self._row_us, 1e-6))

    def measured(self, rows: int, took_us: int) -> None:
        """Learn from one call."""
        if rows < 1:
            return
        # Slowing down is learnt at once: the next slice must not be as long as this one was.
        memory = _MEMORY if took_us <= 2 * (self._call_us + self._row_us * rows) else 0.0
        weight = 1 / max(took_us, 1) ** 2
        self._weight = memory * self._weight + weight
        self._rows = memory * self._rows + weight * rows
        self._us = memory * self._us + weight * took_us
        self._rows_squared = memory * self._rows_squared + weight * rows * rows
        self._rows_us = memory * self._rows_us + weight * rows * took_us
        self._learn()
        self.rows_max = max(1, min(self._rows_within(self.slice_us), 2 * self.rows_max, self.upper))

    def _learn(self) -> None:
        """Put a straight line through the calls; where they are all alike, what the call itself costs is as before."""
        mean_rows, mean_us = self._rows / self._weight, self._us / self._weight
        deviation = self._rows_squared / self._weight - mean_rows * mean_rows
        is_telling = deviation >= _SPREAD_MIN * mean_rows * mean_rows
        self._alike = 0 if is_telling else self._alike + 1
        if is_telling:
            slope = (self._rows_us / self._weight - mean_rows * mean_us) / deviation
            self._call_us = mean_us - max(slope, 0.0) * mean_rows
        self._call_us = min(max(self._call_us, 0.0), (1 - _ROWS_PART_MIN) * mean_us)
        self._row_us = (mean_us - self._call_us) / mean_rows
