"""Windows by count: as many records of a key, in the order in which they come. They need no event time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CountWindows:
    """A window of a key is complete when it has `rows` records."""

    rows: int

    def __str__(self) -> str:
        return f"windows of {self.rows} records"
