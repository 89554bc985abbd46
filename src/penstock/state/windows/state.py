"""Windows that are the same for every key: when they are complete, and which rows have come too late.

A window of several panes (see `panes`) is merged when it is emitted, so that a row costs the same however much windows
overlap; blocks of panes are merged beforehand, so that a window of thousands of panes is made of some hundred.

A window is complete when the watermark has reached its end. A row is late if all windows that it belongs to were
complete before it came.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.columnar.hashing import key_groups
from penstock.model.aggregates import Aggregate
from penstock.model.event_time import MAX_WATERMARK
from penstock.model.windows import WindowKind
from penstock.state.aggregates.columns import Columns
from penstock.state.contract import StateOwner
from penstock.state.index.slot_table import Slots
from penstock.state.windows.clock import ClockDescriptor, WindowClock
from penstock.state.windows.layout import Layout
from penstock.state.windows.panes import PanedState, clipped


@dataclass(frozen=True, slots=True)
class WindowDescriptor:
    """Aggregates by key and window. The input is partitioned by `key`; `on` is the column of the event time."""

    name: str
    key: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]
    kind: WindowKind
    on: str

    def create(self, owner: StateOwner) -> WindowState:
        # The clock comes first in a checkpoint too: it says best what is wrong, if the windows are others now.
        clock = owner.register(ClockDescriptor(f"{self.name}.clock", self.kind))
        return WindowState(self, clock, owner)


class WindowState(PanedState):
    """The open windows of one subtask."""

    def __init__(self, described: WindowDescriptor, clock: WindowClock, owner: StateOwner) -> None:
        super().__init__(described, clock, owner)
        self._blocks: dict[int, Columns] = {}
        """Panes that were merged already. Not part of a checkpoint."""

    def _parts(self) -> list[Columns]:
        return [*super()._parts(), *self._blocks.values()]

    def _on_folded(self, layout: Layout, number: int) -> None:
        self._blocks.pop(number // layout.grid.panes_per_block, None)

    def _open_from(self, layout: Layout, watermark_ms: int) -> int:
        tick = layout.grid.start_of(layout.grid.first_pane_after(self._last_complete(layout, watermark_ms)))
        return clipped(tick)

    def _last_complete(self, layout: Layout, watermark_ms: int) -> int:
        return layout.grid.last_complete(layout.ticks.of_ms(watermark_ms))

    # --- watermarks ---

    def _completed(self, layout: Layout, watermark_ms: int) -> list[pa.RecordBatch]:
        after = self._last_complete(layout, self._clock.slowest_ms)
        to = self._last_complete(layout, watermark_ms)
        if watermark_ms == MAX_WATERMARK:
            to = layout.grid.last_window_of(max(self._panes))
        windows = list(layout.grid.windows_with(sorted(self._panes), after, to))
        if not windows:
            return []
        results = [self._result(layout, window) for window in windows]
        open_from = layout.grid.first_pane_after(to)
        self._drop_panes(open_from)
        first_block = -(-open_from // layout.grid.panes_per_block)
        self._blocks = {number: block for number, block in self._blocks.items() if number >= first_block}
        self.version += 1
        return results

    def _result(self, layout: Layout, window: int) -> pa.RecordBatch:
        columns, slots = self._merged(layout, window)
        if not self._clock.is_even:
            # Some of the keys come from a subtask that has emitted this window before a rescale.
            keys = columns.index.snapshot().arrays(slots)
            groups = key_groups(pa.RecordBatch.from_arrays(keys, names=list(self.key)), self.key, self._max_parallelism)
            is_new = self._clock.of(groups, lambda watermark_ms: window > self._last_complete(layout, watermark_ms))
            slots = slots[np.flatnonzero(is_new)]
        bounds = [np.full(len(slots), tick, dtype=np.int64) for tick in layout.grid.window_bounds(window)]
        return self._results(layout, columns, slots, bounds)

    def _merged(self, layout: Layout, window: int) -> tuple[Columns, Slots]:
        """The columns of a window, and the slots in them that had rows."""
        merged = self._merge(layout, self._parts_of(layout, window))
        return merged, merged.slots_with_rows()

    def _parts_of(self, layout: Layout, window: int) -> list[Columns]:
        """What a window is merged from, in the order of time: whole blocks where possible, else single panes."""
        parts, panes, block_panes = [], layout.grid.panes_in(window), layout.grid.panes_per_block
        number = panes.start
        while number < panes.stop:
            if block_panes > 1 and number % block_panes == 0 and number + block_panes <= panes.stop:
                parts.append(self._block(layout, number // block_panes))
                number += block_panes
            else:
                parts.append(self._panes.get(number))
                number += 1
        return [part for part in parts if part is not None]

    def _block(self, layout: Layout, block: int) -> Columns | None:
        """The panes of a block in one, or None if it has none. Kept until one of them changes or is dropped."""
        if block not in self._blocks:
            first = block * layout.grid.panes_per_block
            numbers = range(first, first + layout.grid.panes_per_block)
            panes = [self._panes[number] for number in numbers if number in self._panes]
            if not panes:
                return None
            self._blocks[block] = self._merge(layout, panes)
        return self._blocks[block]
