"""A join as its user described it: a value that travels to the workers."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.model.joins import OP, How, JoinBounds, RegularBounds, WindowBounds
from penstock.model.windows import WINDOW_END, WINDOW_START, Late
from penstock.state.joins.side import Clock


@dataclass(frozen=True, slots=True)
class JoinSpec:
    """A join as its user described it."""

    bounds: JoinBounds
    how: How
    keys: tuple[tuple[str, ...], tuple[str, ...]]
    on: tuple[str | None, str | None]
    """The columns of the event time."""
    late: Late
    suffix: str
    schemas: tuple[pa.Schema | None, pa.Schema | None]
    """Of the sides, as far as they are declared."""

    @property
    def clock(self) -> Clock:
        if isinstance(self.bounds, RegularBounds):
            return "none" if self.bounds.ttl_ms is None else "event" if self.bounds.in_event_time else "processing"
        return "event"

    @property
    def is_changelog(self) -> bool:
        return not self.bounds.closes and self.how != "inner"

    @property
    def added(self) -> tuple[str, ...]:
        """Columns that the output has besides those of the sides."""
        windows = (WINDOW_START, WINDOW_END) if isinstance(self.bounds, WindowBounds) else ()
        return (*windows, *((OP,) if self.is_changelog else ()))
