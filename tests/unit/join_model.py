"""Joins in plain Python, row by row and pair by pair: what the columnar join is compared with.

Times are in nanoseconds, as whole numbers of Python's, which do not overflow.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from penstock.model.joins import SIDES, How, IntervalBounds, JoinBounds, RegularBounds, WindowBounds

MS = 1_000_000
Result = tuple[object, ...]
"""The number of the left row, that of the right one, and `op` if the result is a changelog."""


@dataclass
class Row:
    side: int
    number: int
    key: object
    time: int
    matched: bool = False
    is_gone: bool = False


@dataclass
class Model:
    """A join with all that it has ever seen."""

    bounds: JoinBounds
    how: How
    watermark_ms: int | None = None
    rows: list[Row] = field(default_factory=list)
    output: Counter[Result] = field(default_factory=Counter)
    late: int = 0

    def add(self, row: Row) -> None:
        if self.watermark_ms is not None and self._is_late(row):
            self.late += 1
            return
        for other in self.rows:
            if other.side != row.side and row.key is not None and other.key == row.key and self._meet(row, other):
                self._pair(row, other)
        if not row.matched and self._is_outer(row) and not self.bounds.closes:
            self._emit(self._alone(row), "insert")
        self.rows.append(row)

    def _pair(self, row: Row, other: Row) -> None:
        if not other.matched and self._is_outer(other) and not self.bounds.closes:
            self._emit(self._alone(other), "delete")
        row.matched = other.matched = True
        pair = (row.number, other.number) if row.side == 0 else (other.number, row.number)
        self._emit(pair, "insert")

    def advance(self, watermark_ms: int) -> None:
        self.watermark_ms = watermark_ms if self.watermark_ms is None else max(watermark_ms, self.watermark_ms)
        for row in self.rows:
            # A row that is still to come is not earlier than the watermark.
            if not row.is_gone and self._last_partner(row) < self.watermark_ms * MS:
                self._go(row)

    def end(self) -> None:
        for row in self.rows:
            if not row.is_gone and self.bounds.closes:
                self._go(row)

    def _go(self, row: Row) -> None:
        row.is_gone = True
        if not row.matched and self._is_outer(row) and self.bounds.closes:
            self._emit(self._alone(row), "insert")

    def _is_outer(self, row: Row) -> bool:
        return self.how in ("full", SIDES[row.side])

    def _alone(self, row: Row) -> Result:
        return (row.number, None) if row.side == 0 else (None, row.number)

    def _emit(self, result: Result, op: str) -> None:
        self.output[result if self.bounds.closes or self.how == "inner" else (*result, op)] += 1

    def _is_late(self, row: Row) -> bool:
        assert self.watermark_ms is not None
        bounds, now = self.bounds, self.watermark_ms * MS
        if isinstance(bounds, RegularBounds):
            return bounds.ttl_ms is not None and row.time + bounds.ttl_ms * MS < now
        if isinstance(bounds, WindowBounds):
            return (row.time // (bounds.size_ms * MS) + 1) * bounds.size_ms * MS <= now
        return row.time < now

    def _meet(self, row: Row, other: Row) -> bool:
        left, right = (row, other) if row.side == 0 else (other, row)
        bounds = self.bounds
        if isinstance(bounds, IntervalBounds):
            return bounds.lower_ms * MS <= right.time - left.time <= bounds.upper_ms * MS
        if isinstance(bounds, WindowBounds):
            return left.time // (bounds.size_ms * MS) == right.time // (bounds.size_ms * MS)
        return not other.is_gone

    def _last_partner(self, row: Row) -> int:
        """The latest time at which a partner may come."""
        bounds = self.bounds
        if isinstance(bounds, IntervalBounds):
            return row.time + (bounds.upper_ms if row.side == 0 else -bounds.lower_ms) * MS
        if isinstance(bounds, WindowBounds):
            return (row.time // (bounds.size_ms * MS) + 1) * bounds.size_ms * MS - 1
        assert isinstance(bounds, RegularBounds)
        return 2**80 if bounds.ttl_ms is None else row.time + bounds.ttl_ms * MS
