"""Time slices: how many records one call into a chain gets, so that the mailbox is never held for long.

The cost of a call is measured: a fixed part for the call itself, and a part for each record. A slice is what takes a
few milliseconds, so that a barrier never waits for a large batch in a slow function. Where the call itself takes longer
than that, smaller slices would only mean more calls: then the records get twice the time of the call, which makes two
thirds of the best throughput at three times the shortest delay. Time for which others had the core does not count: it
would shrink slices, and cost more calls, where the cores are short already.

The two parts are told apart by a straight line through the calls, which count by their relative error: in absolute
terms one slow large call would outweigh dozens of small ones. A line needs calls of different sizes. Where all are
alike, slow records look like slow calls: so every now and then a call gets fewer records, or more of them where few are
slow. No slowness is a reason not to try: a function with a slow call would stay at one record a call. Where a trial
shows that records are slow, and not the call, the next one is further away.
"""

from __future__ import annotations

_MEMORY = 0.8
"""How much the calls before count when another one is measured."""
_MEMORY_SLOW = 0.2
"""The same when it took much longer than expected: all calls before together count this much of it."""
_SPREAD_MIN = 0.01
"""Calls of nearly equal size, by their squared relative deviation, tell nothing about what the call itself costs."""
_ALIKE_MAX = 12
"""After this number of similar calls in a row, another size is tried."""
_ALIKE_MAX_MOST = 16 * _ALIKE_MAX
"""The same where trials have told nothing new."""
_FEW = 8
"""Calls with fewer records than this are tried with more of them: with less there is nothing to be seen."""
_ROWS_SHARE = 2.0
"""Where the call itself takes longer than a slice, its records may take this many times as long."""
_SHRINK_MAX = 8
"""One slow call makes the bound of the next ones smaller by this factor at most: it may have been an accident."""
_ROWS_PART_MIN = 0.02
"""The records are at least this part of what a call takes: it is an estimate, which must not run away."""


class SlicePolicy:
    """Learns what the calls of one chain cost. Starts small and at most doubles, because nothing is known yet."""

    __slots__ = (
        "_alike",
        "_alike_max",
        "_rows",
        "_rows_squared",
        "_rows_us",
        "_us",
        "_weight",
        "call_us",
        "row_us",
        "rows_max",
        "slice_us",
        "upper",
    )

    def __init__(self, slice_us: int, rows_max: int, rows_first: int = 1024) -> None:
        self.slice_us = slice_us
        self.upper = rows_max
        self.rows_max = min(rows_first, rows_max)
        self.call_us = self.row_us = 0.0
        """What a call itself costs, and each record in it."""
        self._alike = 0
        """Calls in a row that said nothing about the fixed cost of a call."""
        self._alike_max = _ALIKE_MAX
        # Weighted sums over the calls, the older ones counting less: for a straight line through (rows, time).
        self._weight = self._rows = self._us = self._rows_squared = self._rows_us = 0.0

    def rows_within(self, us: int) -> int:
        """How many records to give to a call that should take `us`, at most the usual slice."""
        rows = max(1, min(self._rows_within(us), self.rows_max))
        return rows if self._alike < self._alike_max else self._other_than(rows)

    def _other_than(self, rows: int) -> int:
        """A size that tells more than another call like those before, unless that could not change anything."""
        if rows == self.upper:
            return rows
        return rows // 2 if rows >= _FEW else min(2 * rows, self.upper)

    def _rows_within(self, us: int) -> int:
        return int(max(us - self.call_us, _ROWS_SHARE * self.call_us) / max(self.row_us, 1e-6))

    def measured(self, rows: float, took_us: float) -> None:
        """Learn from one call, or from the mean of several."""
        if rows <= 0:
            return
        # Slowing down is learnt at once: the next slice must not be as long as this one was.
        weight = 1 / max(took_us, 1) ** 2
        memory = _MEMORY
        if self._weight and took_us > 2 * (self.call_us + self.row_us * rows):
            memory = min(_MEMORY, _MEMORY_SLOW * weight / self._weight)
        self._weight = memory * self._weight + weight
        self._rows = memory * self._rows + weight * rows
        self._us = memory * self._us + weight * took_us
        self._rows_squared = memory * self._rows_squared + weight * rows * rows
        self._rows_us = memory * self._rows_us + weight * rows * took_us
        was_trial = self._alike >= self._alike_max
        before = self._rows_within(self.slice_us)
        self._learn()
        wanted = self._rows_within(self.slice_us)
        if was_trial and not self._alike:
            is_news = not before / 2 <= wanted <= before * 2
            self._alike_max = _ALIKE_MAX if is_news else min(2 * self._alike_max, _ALIKE_MAX_MOST)
        least = self.rows_max // _SHRINK_MAX
        self.rows_max = max(1, min(max(wanted, least), 2 * self.rows_max, self.upper))

    def _learn(self) -> None:
        """Put a straight line through the calls; where they are all alike, what the call itself costs is as before."""
        mean_rows, mean_us = self._rows / self._weight, self._us / self._weight
        deviation = self._rows_squared / self._weight - mean_rows * mean_rows
        is_telling = deviation >= _SPREAD_MIN * mean_rows * mean_rows
        self._alike = 0 if is_telling else self._alike + 1
        if is_telling:
            slope = (self._rows_us / self._weight - mean_rows * mean_us) / deviation
            self.call_us = mean_us - max(slope, 0.0) * mean_rows
        self.call_us = min(max(self.call_us, 0.0), (1 - _ROWS_PART_MIN) * mean_us)
        self.row_us = (mean_us - self.call_us) / mean_rows
