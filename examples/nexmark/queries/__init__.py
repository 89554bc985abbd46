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

NOT_YET: dict[str, str] = {
    "q3": "join",
    "q4": "join, top, aggregates of a changelog",
    "q6": "join, over",
    "q7": "key_by without columns, join",
    "q8": "drop_duplicates, join",
    "q9": "join, top",
    "q11": "session",
    "q13": "join_table",
    "q15": "count_distinct",
    "q16": "count_distinct",
    "q18": "top",
    "q19": "top",
    "q20": "join",
    "q23": "join",
}
"""Questions that cannot be asked yet, with the calls that are missing. `tests/nexmark` keeps it exact."""
