"""The questions of Nexmark, by name, each a function from the events to the stream of its answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from examples.nexmark.events import Events
from examples.nexmark.queries import joins, ranking, row_by_row, totals, windows
from penstock import Stream

Query: TypeAlias = Callable[[Events], Stream]

_ROOMS = (row_by_row, totals, windows, joins, ranking)

QUERIES: dict[str, Query] = {
    name: getattr(room, name)
    for name in (f"q{number}" for number in range(24))
    for room in _ROOMS
    if hasattr(room, name)
}
