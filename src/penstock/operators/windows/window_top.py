"""The operator behind `WindowedStream.top`: the first N rows of each key and window, emitted at the end of the window.

Rows wait as they came. When there are twice as many as were kept last, those that are not among the first N of their
key and pane are dropped, in one sort: the first N rows of a window are among the first N rows of its panes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.gather import take_rows
from penstock.columnar.grouping import key_codes, key_columns
from penstock.columnar.hashing import key_groups
from penstock.columnar.ranking import order_numbers, places_in_groups
from penstock.columnar.schemas.schema_guard import column_of
from penstock.errors import DataError
from penstock.ids import LATE
from penstock.metrics import standard as metrics
from penstock.model.event_time import MAX_WATERMARK, event_time_type, event_times, ticks_of
from penstock.model.windows import WINDOW_END, WINDOW_START, Late, WindowKind
from penstock.model.windows.kind import WindowGrid
from penstock.operators.contract import Emit
from penstock.operators.named import NamedOperator
from penstock.state.windows.clock import ClockDescriptor

_PRUNED_ROWS_MIN = 1 << 13
_INT64 = np.iinfo(np.int64)


class WindowTopOperator(NamedOperator):
    """Keeps the rows of open windows, and emits the first `count` of each key by a column."""

    emits_later = True

    def __init__(
        self, kind: WindowKind, on: str, late: Late, *, count: int, by: str, descending: bool, rank: str | None
    ) -> None:
        self.kind = kind
        self.on = on
        self.late: Late = late
        self.count = count
        self.by = by
        self.descending = descending
        self.rank = rank
        self._held = self._pruned = 0

    def setup(self) -> None:
        self._late_rows = self.context.metrics.counter(metrics.LATE)
        self._clock = self.context.keyed.register(ClockDescriptor("top.clock", self.kind))
        self._state = self.context.keyed.rows("top", self.context.key)

    def on_restored(self, emit: Emit) -> None:
        self._held = sum(batch.num_rows for batch in self._state.get())

    # --- records ---

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> None:
        self._check(batch)
        late = self._late(batch)
        if len(late):
            self._on_late(take_rows(batch, late))
            batch = take_rows(batch, np.delete(np.arange(batch.num_rows), late))
        self._state.append(batch)
        self._held += batch.num_rows
        if self._held > max(2 * self._pruned, _PRUNED_ROWS_MIN):
            self._prune()

    def _check(self, batch: pa.RecordBatch) -> None:
        key_columns(batch, self.context.key, self.context.operator)
        column_of(batch, self.by, self._error)
        taken = [name for name in (WINDOW_START, WINDOW_END, self.rank) if name in batch.schema.names]
        if taken:
            raise self._error(
                f"the input has a column '{taken[0]}' already, which top() adds: drop or rename it in front"
            )

    def _error(self, text: str) -> DataError:
        return DataError(f"operator '{self.context.operator}': {text}")

    def _late(self, batch: pa.RecordBatch) -> npt.NDArray[np.intp]:
        """The rows that have no open window."""
        times, grid = event_times(batch, self.on), self._grid(batch)

        def open_from(watermark_ms: int) -> int:
            first = grid.start_of(grid.first_pane_after(self._last_complete(batch, watermark_ms)))
            return int(min(max(first, _INT64.min), _INT64.max))

        if len(times) == 0 or int(times.min()) >= open_from(self._clock.fastest_ms):
            return np.zeros(0, np.intp)
        groups = key_groups(batch, self.context.key, self.context.max_parallelism)
        return np.flatnonzero(times < self._clock.of(groups, open_from))

    def _on_late(self, rows: pa.RecordBatch) -> None:
        if self.late == "error":
            raise self._error(
                f"the windows of {rows.num_rows} rows had been emitted when the rows came: allow a longer delay in "
                f'with_watermark, or set late="drop" to count them and go on'
            )
        if self.late == "stream":
            self.context.emit_to(LATE, rows)
        else:
            self._late_rows.add(rows.num_rows)

    def _prune(self) -> None:
        rows = pa.concat_batches(self._state.get())
        kept = np.flatnonzero(self._ranks(rows, self._panes(rows)) < self.count)
        self._state.put([take_rows(rows, kept)])
        self._held = self._pruned = len(kept)

    # --- windows ---

    def _grid(self, batch: pa.RecordBatch) -> WindowGrid:
        kind = event_time_type(batch.schema, self.on)
        ticks = ticks_of(kind)
        grid = None if ticks is None else self.kind.on(ticks)
        if grid is None:
            raise self._error(f"{self.kind} have bounds that are no times of type {kind}: cast '{self.on}'")
        return grid

    def _last_complete(self, batch: pa.RecordBatch, watermark_ms: int) -> int:
        ticks = ticks_of(event_time_type(batch.schema, self.on))
        assert ticks is not None
        return self._grid(batch).last_complete(ticks.of_ms(watermark_ms))

    def _panes(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
        grid, times = self._grid(rows), event_times(rows, self.on)
        first = grid.pane_at(int(times.min()))
        return grid.panes_of(times, first).astype(np.int64) + first

    def _ranks(self, rows: pa.RecordBatch, windows: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
        """The rank of each row in its key and window, from 0. Rows are in the order of their arrival."""
        keys = key_codes([rows.column(name) for name in self.context.key])
        order = np.lexsort((order_numbers(rows.column(self.by), self.descending), windows, keys))
        # Equal keys and windows lie together.
        groups = np.cumsum(np.append(True, np.diff(keys[order]) != 0) | np.append(True, np.diff(windows[order]) != 0))
        ranks = np.empty(len(order), np.intp)
        ranks[order] = places_in_groups(groups)
        return ranks

    def on_watermark(self, watermark: int, emit: Emit) -> bool | None:
        batches = self._state.get()
        if batches and self._completes_some(batches[0], watermark):
            self._close(pa.concat_batches(batches), watermark, emit)
        if watermark < MAX_WATERMARK:
            self._clock.advance(watermark)
        return None

    def _completes_some(self, rows: pa.RecordBatch, watermark: int) -> bool:
        """Whether a window ends between the watermark before and this one: most watermarks complete none."""
        return self._last_complete(rows, watermark) > self._last_complete(rows, self._clock.slowest_ms)

    def on_end(self, emit: Emit) -> None:
        self.on_watermark(MAX_WATERMARK, emit)

    def _close(self, rows: pa.RecordBatch, watermark: int, emit: Emit) -> None:
        grid, last = self._grid(rows), self._last_complete(rows, watermark)
        panes = self._panes(rows)
        windows = self._windows(rows, panes, last)
        if not windows:
            return
        emitted = self._emitted(rows)
        for window in windows:
            within = grid.panes_in(window)
            chosen = np.flatnonzero((panes >= within.start) & (panes < within.stop) & (emitted < window))
            if len(chosen):
                emit(self._result(take_rows(rows, chosen), grid.window_bounds(window)))
        first_open = grid.first_pane_after(last)
        kept = np.flatnonzero(panes >= min(max(first_open, _INT64.min), _INT64.max))
        self._state.put([take_rows(rows, kept)])
        self._held = self._pruned = len(kept)

    def _windows(self, rows: pa.RecordBatch, panes: npt.NDArray[np.int64], last: int) -> list[int]:
        after = self._last_complete(rows, self._clock.slowest_ms)
        return list(self._grid(rows).windows_with(np.unique(panes).tolist(), after, last))

    def _emitted(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """The last window that was emitted for the key of each row: after a rescale, keys may have come from others."""
        groups = key_groups(rows, self.context.key, self.context.max_parallelism)
        return self._clock.of(groups, lambda ms: min(max(self._last_complete(rows, ms), _INT64.min), _INT64.max))

    def _result(self, rows: pa.RecordBatch, bounds: tuple[int, int]) -> pa.RecordBatch:
        ranks = self._ranks(rows, np.zeros(rows.num_rows, np.int64))
        chosen = np.flatnonzero(ranks < self.count)
        rows, ranks = take_rows(rows, chosen), ranks[chosen]
        kind = event_time_type(rows.schema, self.on)
        for name, bound in zip((WINDOW_START, WINDOW_END), bounds, strict=True):
            times = pa.array(np.full(rows.num_rows, bound, np.int64)).view(kind)
            rows = rows.append_column(name, times)
        return rows if self.rank is None else rows.append_column(self.rank, pa.array(ranks.astype(np.int64) + 1))
