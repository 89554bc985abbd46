"""Windows that are the same for every key: when they are complete, and which rows have come too late.

A window of several panes (see `panes`) is merged when it is emitted, so that a row costs the same however much windows
overlap; blocks of panes are merged beforehand, so that a window of thousands of panes is made of some hundred.

A window is complete when the watermark has reached its end. A row is late if all windows that it belongs to were
complete before it came, and the time for which they allow lateness is over too: until then their panes are kept.

A result is emitted when it is complete, and again when late rows that are allowed have changed it. With early results
it is emitted whenever it has changed. The slots that have changed since then are known by pane. They are no part of a
checkpoint: they are emitted with the batch that changed them, or, if that waits for a clock, all slots count as changed
after a restore.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.columnar.hashing import key_groups
from penstock.model.aggregates import Aggregate
from penstock.model.event_time import MAX_WATERMARK
from penstock.model.windows import ON_CLOSE, Emission, FixedWindows, WindowKind
from penstock.state.aggregates.columns import Columns
from penstock.state.contract import StateOwner
from penstock.state.index.slot_table import Slots
from penstock.state.windows.clock import CLOCK_SUFFIX, ClockDescriptor, WindowClock
from penstock.state.windows.layout import Layout
from penstock.state.windows.panes import PanedState, clipped, results_in_batches


@dataclass(frozen=True, slots=True)
class WindowDescriptor:
    """Aggregates by key and window. The input is partitioned by `key`; `on` is the column of the event time."""

    name: str
    key: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]
    kind: WindowKind
    on: str
    emission: Emission = ON_CLOSE

    @property
    def lateness_ms(self) -> int:
        return self.kind.lateness_ms if isinstance(self.kind, FixedWindows) else 0

    def create(self, owner: StateOwner) -> WindowState:
        # The clock comes first in a checkpoint too: it says best what is wrong, if the windows are others now.
        clock = owner.register(ClockDescriptor(f"{self.name}{CLOCK_SUFFIX}", self.kind))
        return WindowState(self, clock, owner)


class WindowState(PanedState):
    """The open windows of one subtask."""

    def __init__(self, described: WindowDescriptor, clock: WindowClock, owner: StateOwner) -> None:
        super().__init__(described, clock, owner)
        self._blocks: dict[int, Columns] = {}
        """Panes that were merged already. Not part of a checkpoint."""
        self._emission = described.emission
        self._lateness_ms = described.lateness_ms
        self._changed: dict[int, list[Slots]] = {}
        """By pane, the slots that have changed since they were emitted: if early results or late rows need that."""

    def _parts(self) -> list[Columns]:
        return [*super()._parts(), *self._blocks.values()]

    def _on_folded(self, layout: Layout, number: int, slots: Slots) -> None:
        self._blocks.pop(number // layout.grid.panes_per_block, None)
        if self._emission.is_early or (self._lateness_ms and self._was_emitted(layout, number)):
            self._changed.setdefault(number, []).append(slots)

    def _on_restored(self, layout: Layout, number: int, slots: Slots) -> None:
        if self._emission.every_ms is not None:
            self._changed.setdefault(number, []).append(slots)

    def _was_emitted(self, layout: Layout, pane: int) -> bool:
        """Whether the pane belongs to a window that was emitted for some key."""
        emitted = self._last_complete(layout, self._clock.fastest_ms)
        return any(True for _ in layout.grid.windows_with([pane], self._last_dropped(layout), emitted))

    def _last_dropped(self, layout: Layout) -> int:
        return self._last_complete(layout, self._clock.slowest_ms - self._lateness_ms)

    def _open_from(self, layout: Layout, watermark_ms: int) -> int:
        tick = layout.grid.start_of(
            layout.grid.first_pane_after(self._last_complete(layout, watermark_ms - self._lateness_ms))
        )
        return clipped(tick)

    def _last_complete(self, layout: Layout, watermark_ms: int) -> int:
        return layout.grid.last_complete(layout.ticks.of_ms(watermark_ms))

    # --- watermarks ---

    def updates(self) -> list[pa.RecordBatch]:
        """The results that have changed since they were emitted: of windows that were, and early ones if asked for."""
        layout = self._layout
        if layout is None or not self._changed:
            return []
        return results_in_batches([result for result in self._updates(layout) if result.num_rows])

    def _updates(self, layout: Layout) -> list[pa.RecordBatch]:
        to = self._last_complete(layout, self._clock.fastest_ms)
        if self._emission.is_early and self._changed:
            to = layout.grid.last_window_of(max(self._changed))
        windows = list(layout.grid.windows_with(sorted(self._changed), self._last_dropped(layout), to))
        results = [self._update(layout, window) for window in windows]
        self._changed = {}
        return results

    def _completed(self, layout: Layout, watermark_ms: int) -> list[pa.RecordBatch]:
        after = self._last_complete(layout, self._clock.slowest_ms)
        to = self._last_complete(layout, watermark_ms)
        if watermark_ms == MAX_WATERMARK:
            to = layout.grid.last_window_of(max(self._panes))
        windows = list(layout.grid.windows_with(sorted(self._panes), after, to))
        if not windows and not self._lateness_ms:
            return []
        is_kept = self._lateness_ms and watermark_ms < MAX_WATERMARK
        dropped = self._last_complete(layout, watermark_ms - self._lateness_ms) if is_kept else to
        open_from = layout.grid.first_pane_after(dropped)
        if not windows and min(self._panes) >= open_from:
            return []
        results = self._updates(layout)
        if not self._emission.is_early:
            results += [self._result(layout, window) for window in windows]
        self._drop_panes(open_from)
        first_block = -(-open_from // layout.grid.panes_per_block)
        self._blocks = {number: block for number, block in self._blocks.items() if number >= first_block}
        self.version += 1
        return results

    def _result(self, layout: Layout, window: int) -> pa.RecordBatch:
        columns, slots = self._merged(layout, window)
        # Some of the keys may come from a subtask that has emitted this window before a rescale.
        slots = self._slots_where(
            columns, slots, lambda watermark_ms: not self._is_complete(layout, window, watermark_ms)
        )
        return self._rows_of(layout, window, columns, slots)

    def _update(self, layout: Layout, window: int) -> pa.RecordBatch:
        columns, slots = self._merged_changes(layout, window)

        def is_due(watermark_ms: int) -> bool:
            """Its first rows are still there, and it is not emitted for the first time when it is complete."""
            is_kept = not self._is_complete(layout, window, watermark_ms - self._lateness_ms)
            return is_kept and (self._emission.is_early or self._is_complete(layout, window, watermark_ms))

        return self._rows_of(layout, window, columns, self._slots_where(columns, slots, is_due))

    def _is_complete(self, layout: Layout, window: int, watermark_ms: int) -> bool:
        return window <= self._last_complete(layout, watermark_ms)

    def _slots_where(self, columns: Columns, slots: Slots, holds: Callable[[int], bool]) -> Slots:
        """The slots for the watermark of whose key group something holds."""
        if self._clock.is_even:
            return slots if holds(self._clock.slowest_ms) else slots[:0]
        keys = columns.index.snapshot().arrays(slots)
        groups = key_groups(pa.RecordBatch.from_arrays(keys, names=list(self.key)), self.key, self._max_parallelism)
        return slots[np.flatnonzero(self._clock.of(groups, holds))]

    def _rows_of(self, layout: Layout, window: int, columns: Columns, slots: Slots) -> pa.RecordBatch:
        bounds = [np.full(len(slots), tick, dtype=np.int64) for tick in layout.grid.window_bounds(window)]
        return self._results(layout, columns, slots, bounds)

    def _merged_changes(self, layout: Layout, window: int) -> tuple[Columns, Slots]:
        """The columns of a window, merged for the slots alone that have changed, and these slots."""
        numbers = [number for number in layout.grid.panes_in(window) if number in self._panes]
        parts = [self._panes[number] for number in numbers]
        changed = [(self._panes[number], slots) for number in numbers for slots in self._changed.get(number, [])]
        if not all(part.index is parts[0].index for part in parts):
            merged = self._merge(layout, parts)
            found = [merged.index.slots_of(part.index.snapshot().arrays(slots)) for part, slots in changed]
            return merged, np.unique(np.concatenate(found)).astype(np.intp)
        slots = np.unique(np.concatenate([slots for _, slots in changed])).astype(np.intp)
        if len(parts) == 1:
            return parts[0], slots
        merged = self._new_pane(layout, parts[0].index)
        for part in parts:
            part.make_room()
            here = slots[part.has_rows(slots)]
            merged.merge(part, here, here, self.name)
        return merged, slots

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
