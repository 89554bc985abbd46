"""Sessions: the records of a key that follow each other without a pause that is longer than the gap.

Two records at most the gap apart are in one session, as in Flink, and chains of them are too; a record exactly the gap
behind another one still belongs to it. A session begins with its first record and ends the gap behind its last one.

State is kept in panes of the length of the gap. So two records of a key in one pane are in one session, records that
have a whole pane between them are not linked directly, and a session is a chain of neighbouring panes: see
`state/windows/sessions.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.model.event_time import Ticks
from penstock.model.windows.fixed import Grid


@dataclass(frozen=True, slots=True)
class SessionWindows:
    """A session of a key ends when it has had no record for longer than `gap_ms`."""

    gap_ms: int

    def __str__(self) -> str:
        return f"sessions with a gap of {self.gap_ms} ms"

    @property
    def parameters(self) -> Mapping[str, int]:
        return {"gap_ms": self.gap_ms}

    def on(self, ticks: Ticks) -> Grid | None:
        """Panes of the length of the gap; None for a gap of half seconds over a column of seconds."""
        gap = ticks.exactly(self.gap_ms)
        return None if gap is None else Grid(gap, 0, 1, 1)
