"""Rows that wait for the watermark, as keyed state: they leave in the order of event time.

Each batch is sorted by time when it comes. The rows that a watermark has passed are then the beginning of some batches,
found by binary search: a watermark costs for the rows that it lets go and for the number of batches that wait, and
not for the rows that stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.gather import take_rows
from penstock.columnar.hashing import key_groups
from penstock.errors import DataError
from penstock.ids import LATE
from penstock.metrics import standard as metrics
from penstock.model.event_time import Ticks, event_time_type, event_times, ticks_of
from penstock.model.over import Frame
from penstock.model.windows import Late
from penstock.operators.contract import OperatorContext
from penstock.state.windows.clock import ClockDescriptor

_INT64 = np.iinfo(np.int64)

Times = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Held:
    """Rows in the order of their times; `whole` is the number of rows whose memory they hold."""

    rows: pa.RecordBatch
    times: Times
    whole: int

    def behind(self, count: int) -> _Held:
        """Without the first rows. Once half of its memory is not needed any more, the others move away."""
        rows, times = self.rows.slice(count), self.times[count:]
        if 2 * len(times) > self.whole:
            return _Held(rows, times, self.whole)
        return _Held(take_rows(rows, np.arange(len(times))), times.copy(), len(times))


class WaitingRows:
    """The rows of one subtask that wait. Ask for it in `open`; call `restored` when the state is back."""

    def __init__(self, context: OperatorContext, frame: Frame, on: str, late: Late) -> None:
        self._context = context
        self._on = on
        self._late: Late = late
        self._late_rows = context.metrics.counter(metrics.LATE)
        self._clock = context.keyed.register(ClockDescriptor("over.clock", frame))
        self._state = context.keyed.rows("over.waiting", context.key)
        self._held: list[_Held] = []

    def restored(self) -> None:
        self._put([_in_order(rows, event_times(rows, self._on)) for rows in self._state.get()])

    def advance(self, watermark: int) -> None:
        """Rows before the watermark are late from now on."""
        self._clock.advance(watermark)

    def add(self, batch: pa.RecordBatch) -> None:
        """Hold rows until the watermark has passed them. Raises `DataError` for late ones if they are an error."""
        times = event_times(batch, self._on)
        late = self._late_of(batch, times)
        if len(late):
            self._on_late(take_rows(batch, late))
            rest = np.delete(np.arange(batch.num_rows), late)
            batch, times = take_rows(batch, rest), times[rest]
        if len(times):
            held = _in_order(batch, times)
            self._held.append(held)
            self._state.append(held.rows)

    def _late_of(self, batch: pa.RecordBatch, times: Times) -> npt.NDArray[np.intp]:
        """The rows behind the clock of their key group: after a rescale, keys of other subtasks are among them."""
        ticks = self._ticks(batch)

        def passed(watermark_ms: int) -> int:
            return min(max(ticks.of_ms(watermark_ms), _INT64.min), _INT64.max)

        if len(times) == 0 or int(times.min()) >= passed(self._clock.fastest_ms):
            return np.zeros(0, np.intp)
        groups = key_groups(batch, self._context.key, self._context.max_parallelism)
        return np.flatnonzero(times < self._clock.of(groups, passed))

    def _on_late(self, rows: pa.RecordBatch) -> None:
        if self._late == "error":
            raise DataError(
                f"operator '{self._context.operator}': {rows.num_rows} rows arrived after later ones "
                'had been emitted: allow a longer delay in with_watermark, or set late="drop" to '
                "count them and go on"
            )
        if self._late == "stream":
            self._context.emit_to(LATE, rows)
        else:
            self._late_rows.add(rows.num_rows)

    def _ticks(self, rows: pa.RecordBatch) -> Ticks:
        ticks = ticks_of(event_time_type(rows.schema, self._on))
        assert ticks is not None
        return ticks

    def due(self, watermark: int | None, rows_max: int) -> Iterator[pa.RecordBatch]:
        """Hand over the rows before `watermark`, or all, in the order of time and then of arrival, some at a time.

        A row that was handed over is not part of the state any more (I1). Rows of one time are handed over together.
        """
        waiting = self._due(watermark)
        while waiting is not None:
            end = min(rows_max, len(waiting.times))
            end = int(np.searchsorted(waiting.times, waiting.times[end - 1], side="right"))
            rows, left = waiting.rows.slice(0, end), waiting.behind(end)
            waiting = left if len(left.times) else None
            self._put(([] if waiting is None else [waiting]) + self._held[1:])
            yield rows

    def _due(self, watermark: int | None) -> _Held | None:
        """Put the rows before `watermark` together, as the first that are held."""
        due: list[pa.RecordBatch] = []
        left: list[_Held] = []
        limit = None if watermark is None or not self._held else self._ticks(self._held[0].rows).of_ms(watermark)
        for held in self._held:
            # At the watermark itself others may follow.
            is_all = limit is None or limit > _INT64.max
            count = len(held.times) if is_all else _count_before(held.times, limit or 0)
            if count:
                due.append(held.rows.slice(0, count))
            if count < len(held.times):
                left.append(held.behind(count) if count else held)
        if not due:
            return None
        rows = pa.concat_batches(due)
        first = _in_order(rows, event_times(rows, self._on))
        self._put([first, *left])
        return first

    def _put(self, held: list[_Held]) -> None:
        self._held = held
        self._state.put([each.rows for each in held])


def _count_before(times: Times, limit: int) -> int:
    """How many of the sorted times are before the limit."""
    return 0 if limit <= _INT64.min else int(np.searchsorted(times, np.int64(limit), side="left"))


def _in_order(rows: pa.RecordBatch, times: Times) -> _Held:
    """The rows in the order of their times; those of one time stay in their order."""
    if bool((times[1:] >= times[:-1]).all()):
        return _Held(rows, times, len(times))
    order = np.argsort(times, kind="stable")
    return _Held(take_rows(rows, order), times[order], len(times))
