"""Time slices: how many records one call into a chain gets, so that the mailbox is never held for long.

The rate at which a chain works is measured and smoothed; a slice is what it does in a few milliseconds.
A barrier therefore never waits for a large batch in a slow function.
"""

from __future__ import annotations


class SlicePolicy:
    """Learns the rate of one chain. Starts small and at most doubles, because nothing is known yet."""

    __slots__ = ("_rows_per_us", "rows_max", "slice_us", "upper")

    def __init__(self, slice_us: int, rows_max: int, rows_first: int = 1024) -> None:
        self.slice_us = slice_us
        self.upper = rows_max
        self.rows_max = min(rows_first, rows_max)
        self._rows_per_us: float | None = None

    def measured(self, rows: int, took_us: int) -> None:
        """Learn from one call."""
        rate = rows / max(took_us, 1)
        known = self._rows_per_us
        # Slowing down is learnt at once: the next slice must not be as long as this one was.
        self._rows_per_us = rate if known is None or rate < known / 2 else 0.7 * known + 0.3 * rate
        wanted = int(self._rows_per_us * self.slice_us)
        self.rows_max = max(1, min(wanted, 2 * self.rows_max, self.upper))
