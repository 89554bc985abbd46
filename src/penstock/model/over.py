"""Frames of `over`, as values: the last records of a key, or those of a stretch of event time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from penstock.model.event_time import Ticks


@dataclass(frozen=True, slots=True)
class RangeFrame:
    """For each record, all records of its key from `range_ms` before it up to its own event time, both included."""

    range_ms: int

    def __str__(self) -> str:
        return f"frames of {self.range_ms} ms"

    @property
    def parameters(self) -> Mapping[str, int]:
        return {"range_ms": self.range_ms}

    def on(self, ticks: Ticks) -> None:
        """It has no grid of windows: each record has a frame of its own."""
        return None


@dataclass(frozen=True, slots=True)
class RowsFrame:
    """For each record, the record and those of its key before it in event time, at most `rows` together."""

    rows: int

    def __str__(self) -> str:
        return f"frames of {self.rows} rows"

    @property
    def parameters(self) -> Mapping[str, int]:
        return {"rows": self.rows}

    def on(self, ticks: Ticks) -> None:
        """It has no grid of windows either."""
        return None


Frame: TypeAlias = RangeFrame | RowsFrame
