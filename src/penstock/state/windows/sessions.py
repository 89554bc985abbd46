"""Sessions: windows that the records of a key make.

Panes are as long as the gap (`model/windows/session.py`), so a row is folded into the pane of its time and nothing
else, whatever sessions there are. In its pane a key has one part of a session, with the times of its first and last
row. Sessions are put together when the watermark moves on. With `limit` = watermark - gap:

    pane      | behind limit: frozen | of limit | ahead of limit, open |

- No row before `limit` is taken: it is late, since a session of it alone would be complete. The rule asks nothing of
  other rows, so it does not depend on how batches are cut, or on which rows came before.
- A part whose last row is before `limit`, and to which no part in the next pane is linked, is a complete session.
- A frozen pane gets no more rows. Its parts that are linked to the next pane are merged into it, in the order of time,
  with the time of their first row; the others are complete. So an open session has a part in at most three panes,
  however long it is, and a frozen pane is dropped whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.model.aggregates import Aggregate
from penstock.model.event_time import MAX_WATERMARK
from penstock.model.windows import SessionWindows
from penstock.state.aggregates.columns import Columns
from penstock.state.contract import StateOwner
from penstock.state.index.slot_table import Slots
from penstock.state.windows.clock import CLOCK_SUFFIX, ClockDescriptor, WindowClock
from penstock.state.windows.layout import Layout
from penstock.state.windows.panes import PanedState, clipped


@dataclass(frozen=True, slots=True)
class SessionDescriptor:
    """Aggregates by key and session. The input is partitioned by `key`; `on` is the column of the event time."""

    name: str
    key: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]
    kind: SessionWindows
    on: str

    def create(self, owner: StateOwner) -> SessionState:
        # The clock comes first in a checkpoint too: it says best what is wrong, if the gap is another one now.
        clock = owner.register(ClockDescriptor(f"{self.name}{CLOCK_SUFFIX}", self.kind))
        return SessionState(self, clock, owner)


class SessionState(PanedState):
    """The open sessions of one subtask."""

    def __init__(self, described: SessionDescriptor, clock: WindowClock, owner: StateOwner) -> None:
        super().__init__(described, clock, owner)
        times = [Aggregate("min", self.on, ""), Aggregate("max", self.on, "")]
        self._first, self._last = f"min({self.on})", f"max({self.on})"
        self._kept = (*self.aggregates, *times)

    def _open_from(self, layout: Layout, watermark_ms: int) -> int:
        return clipped(layout.ticks.of_ms(watermark_ms) - layout.grid.reach_ticks)

    def _completed(self, layout: Layout, watermark_ms: int) -> list[pa.RecordBatch]:
        limit = layout.ticks.of_ms(watermark_ms) - layout.grid.reach_ticks
        frozen_before = layout.grid.pane_at(limit)
        if watermark_ms == MAX_WATERMARK:
            frozen_before = max(self._panes) + 1
        results = []
        for number in sorted(number for number in self._panes if number <= frozen_before):
            is_frozen = number < frozen_before
            results.append(self._close_pane(layout, number, None if is_frozen else limit))
        self._drop_panes(frozen_before)
        self.version += bool(results)
        return results

    def _close_pane(self, layout: Layout, number: int, limit: int | None) -> pa.RecordBatch:
        """The complete sessions of a pane, which are removed from it; without a limit the pane is frozen."""
        pane = self._panes[number]
        slots = pane.slots_with_rows()
        if limit is not None:
            slots = slots[pane.numbers[self._last].take(slots) < clipped(limit)]
        linked, into = self._linked(layout, pane, number + 1, slots)
        done = slots[~linked]
        firsts, lasts = (pane.numbers[label].take(done) for label in (self._first, self._last))
        result = self._results(layout, pane, done, [firsts, lasts + layout.grid.reach_ticks])
        if limit is not None:
            pane.clear(done)
        elif linked.any():
            self._carry(layout, pane, slots[linked], number + 1, into[linked])
        return result

    def _linked(
        self, layout: Layout, pane: Columns, following: int, slots: Slots
    ) -> tuple[npt.NDArray[np.bool_], Slots]:
        """Which parts go on in the next pane, and their slots there."""
        after = self._panes.get(following)
        if after is None or len(slots) == 0:
            return np.zeros(len(slots), dtype=np.bool_), slots
        into = slots
        if after.index is not pane.index:
            into = after.index.slots_of(pane.index.snapshot().arrays(slots)).astype(np.intp, copy=False)
        after.make_room()
        # The next pane is later. Differences of 64-bit numbers without a sign are right where those with one overflow.
        firsts = after.numbers[self._first].take(into).view(np.uint64)
        pause = firsts - pane.numbers[self._last].take(slots).view(np.uint64)
        return after.has_rows(into) & (pause <= np.uint64(layout.grid.reach_ticks)), into

    def _carry(self, layout: Layout, pane: Columns, slots: Slots, following: int, into: Slots) -> None:
        """Merge parts of a frozen pane into the next one, as a new pane: a snapshot may have the old one."""
        after = self._panes[following]
        merged = self._new_pane(layout, after.index)
        merged.merge(pane, slots, into, self.name)
        theirs = after.slots_with_rows()
        merged.merge(after, theirs, theirs, self.name)
        self._panes[following] = merged
