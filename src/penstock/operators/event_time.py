"""Event time in a column: which types it may have, and the operator that makes watermarks from it.

A watermark says: no older record is expected. The operator reports the newest event time of each batch, less the delay
that the user allows; the subtask keeps a clock for each split that it reads, or each channel, and its watermark is the
slowest of them (`worker/event_time/subtask_clock.py`). So a record that comes no later than the delay behind the newest
one of its own split is never late, and one that comes later may be.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import DataError
from penstock.metrics.standard import AHEAD
from penstock.model.event_time import (
    IDLE_WATERMARK,
    MAX_WATERMARK,
    TICKS_PER_S,
    Ticks,
    Unit,
    event_time_type,
    event_times,
    ticks_of,
)
from penstock.operators.contract import Emit
from penstock.operators.named import NamedOperator

_log = logging.getLogger("penstock")


_PLAUSIBLE_S = 946_684_800, 4_102_444_800
"""From 2000 to 2100: numbers that are times of our days in a unit are hardly others in milliseconds."""
_DAY_MS = 86_400_000
_PAUSE_MS = 60_000
_INT64_MAX = 2**63 - 1
_FORMER_STATE = "clock"
"""Checkpoints of version 0.1.0 hold the clock of a subtask here. Clocks of splits are with the splits now."""


class EventTimeOperator(NamedOperator):
    """Lets all records pass, and reports their times. Watermarks from upstream end here, but for the last one."""

    def __init__(
        self,
        column: str,
        max_delay_ms: int,
        idle_after_ms: int | None = None,
        unit: Unit | None = None,
        max_ahead_ms: int | None = None,
        max_drift_ms: int | None = None,
    ) -> None:
        self.column = column
        self.max_delay_ms = max_delay_ms
        self.idle_after_ms = idle_after_ms
        self.unit = unit
        self.max_ahead_ms = max_ahead_ms
        self.max_drift_ms = max_drift_ms

    def setup(self) -> None:
        self._is_unit_checked = False
        self._rows = self._rows_ahead = 0
        self._furthest_ms = 0
        """The latest of the times that were ahead of the clock."""
        self._ahead = self.context.metrics.counter(AHEAD)
        self._warned_at_ms: int | None = None
        self.context.former_state(_FORMER_STATE)
        self.context.follow_event_time(self.idle_after_ms, self.max_drift_ms)

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> None:
        try:
            batch = self._with_unit(batch)
            times = event_times(batch, self.column)
        except DataError as error:
            raise DataError(f"operator '{self.context.operator}': {error}") from error
        emit(batch)
        ticks = ticks_of(batch.column(self.column).type)
        assert ticks is not None
        if len(times) and not self._is_unit_checked:
            self._check_unit(batch.column(self.column).type, times)
        times = self._not_ahead(times, ticks)
        if len(times):
            reached_ms = ticks.to_ms(int(times.max())) - self.max_delay_ms
            self.context.saw_event_time(min(max(reached_ms, IDLE_WATERMARK + 1), MAX_WATERMARK - 1))

    def _with_unit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """With `unit`, numbers become timestamps: so everybody behind knows their unit."""
        if self.unit is None:
            return batch
        kind, position = event_time_type(batch.schema, self.column), batch.schema.get_field_index(self.column)
        if not pa.types.is_int64(kind):
            raise DataError(
                f"the event time '{self.column}' is of type {kind}, which has a unit already: leave out unit="
            )
        return batch.set_column(position, self.column, batch.column(position).view(pa.timestamp(self.unit, "UTC")))

    def _check_unit(self, kind: pa.DataType, times: npt.NDArray[np.int64]) -> None:
        """Warn if numbers can hardly be milliseconds. Not an error: who knows what somebody counts."""
        self._is_unit_checked = True
        if not pa.types.is_int64(kind):
            return
        for unit in ("s", "us", "ns"):
            first, last = (second * TICKS_PER_S[unit] for second in _PLAUSIBLE_S)
            if first <= int(times.min()) and int(times.max()) < last:
                _log.warning(
                    "operator '%s': the numbers in the event time '%s', such as %d, are read as "
                    'milliseconds, but look like %s: if they are, use with_watermark("%s", "…", '
                    'unit="%s")',
                    self.context.operator,
                    self.column,
                    int(times[0]),
                    {"s": "seconds", "us": "microseconds", "ns": "nanoseconds"}[unit],
                    self.column,
                    unit,
                )

    def _not_ahead(self, times: npt.NDArray[np.int64], ticks: Ticks) -> npt.NDArray[np.int64]:
        """The times that move event time on: with `max_ahead` not those that are further ahead of the clock."""
        now_ms = self.context.now_ms()
        allowed_ms = _DAY_MS if self.max_ahead_ms is None else self.max_ahead_ms
        limit = min(ticks.of_ms(now_ms + allowed_ms), _INT64_MAX)
        self._rows += len(times)
        is_ahead = times > limit
        ahead = int(np.count_nonzero(is_ahead))
        if ahead:
            self._rows_ahead += ahead
            self._ahead.value += ahead
            self._furthest_ms = max(self._furthest_ms, ticks.to_ms(int(times.max())))
        if self.max_ahead_ms is None:
            # An odd time may be the first one: that it is odd shows when others have come.
            if ahead or (self._rows_ahead and self._warned_at_ms is None):
                self._warn_of_odd_times(now_ms)
            return times
        if not ahead:
            return times
        self._warn(
            now_ms,
            f"{self._rows_ahead} of {self._rows} rows so far, up to {_shown(self._furthest_ms)} in '{self.column}', "
            f"are further ahead of the clock than max_ahead allows, and do not move event time on",
        )
        return times[~is_ahead]

    def _warn_of_odd_times(self, now_ms: int) -> None:
        if 2 * self._rows_ahead < self._rows:
            self._warn(
                now_ms,
                f"a row has the time {_shown(self._furthest_ms)} in '{self.column}', more than a day ahead of the clock"
                f", and most others have not: event time has moved on to it, and rows with earlier times are late from "
                f'now on. Filter such rows out in front, or use with_watermark(…, max_ahead="1 hour")',
            )

    def _warn(self, now_ms: int, text: str) -> None:
        if self._warned_at_ms is None or now_ms - self._warned_at_ms >= _PAUSE_MS:
            self._warned_at_ms = now_ms
            _log.warning("operator '%s': %s", self.context.operator, text)

    def on_watermark(self, watermark: int, emit: Emit) -> bool | None:
        return watermark < MAX_WATERMARK


def _shown(ms: int) -> str:
    try:
        return f"{datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms):%Y-%m-%d %H:%M:%S} UTC"
    except OverflowError:
        return f"{ms} ms"
