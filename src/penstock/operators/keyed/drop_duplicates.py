"""The operator behind `Stream.drop_duplicates`: the first row of each key, columnar.

The state is a log: the keys that were kept, each with the time until which it is remembered, as immutable batches. So a
snapshot is the list of them, and batches whose times have all passed are dropped. The index that finds the keys is made
from the log, here and after a restore.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.gather import joined, take, take_rows
from penstock.columnar.grouping import key_columns
from penstock.columnar.plain import plain_type
from penstock.errors import DataError
from penstock.metrics import standard as metrics
from penstock.metrics.metric import counter
from penstock.model.event_time import MAX_WATERMARK, MIN_WATERMARK, Ticks, event_times, ticks_of
from penstock.operators.contract import Emit
from penstock.operators.named import NamedOperator
from penstock.state.aggregates.columns import plain_key
from penstock.state.index.seen_keys import ALWAYS, NEVER, SeenKeys, Times, ends_of

_log = logging.getLogger("penstock")

UNTIL = "penstock.until"
"""The column of the log behind those of the key."""
_PORTION_ROWS = 1 << 13
"""Rows of a batch of the log that is not merged with others any more."""
_INT64_MIN, _INT64_MAX = int(NEVER), int(ALWAYS)

DUPLICATES = counter(
    "num_duplicates_dropped", "rows", "rows that `drop_duplicates` left out: their key had come before", is_total=True
)


class DropDuplicatesOperator(NamedOperator):
    """Passes on the first row of each key; `on` is the column of the event time, None for the clock of the worker."""

    def __init__(self, within_ms: int | None, on: str | None) -> None:
        self.within_ms = within_ms
        self.on = on

    def setup(self) -> None:
        context = self.context
        self._late = context.metrics.counter(metrics.LATE)
        self._duplicates = context.metrics.counter(DUPLICATES)
        self._log_state = context.keyed.rows("seen", context.key)
        self._seen: SeenKeys | None = None
        self._ends: list[int] = []
        """Of each batch of the log, the time at which the last of its keys is forgotten."""
        self._ticks = Ticks(1000)
        if self.within_ms is None and context.subtask == 0:
            _log.warning(
                "operator '%s': drop_duplicates without within remembers every key that ever came, so its state grows "
                'with the number of keys: set within="1 hour" to bound it',
                context.operator,
            )

    def on_restored(self, emit: Emit) -> Iterator[None]:
        for batch in self._log_state.get():
            self._ends.append(_last_end(batch))
            for start in range(0, batch.num_rows, _PORTION_ROWS):
                keys, until = self._entry(batch.slice(start, _PORTION_ROWS))
                self._keys_of([key.type for key in keys]).remember(keys, until)
                yield

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> None:
        columns = key_columns(batch, self.context.key, self.context.operator)
        seen = self._keys_of([plain_type(column.type) for column in columns])
        keys = [plain_key(column, kind) for column, kind in zip(columns, seen.kinds, strict=True)]
        times = self._times(batch)
        rows = self._in_time(times)
        if len(rows) < batch.num_rows:
            self._late.add(batch.num_rows - len(rows))
            batch, times = take_rows(batch, rows), times[rows]
            keys = [take(key, rows) for key in keys]
        first = seen.first_rows(keys, times, self._within)
        self._duplicates.add(batch.num_rows - len(first))
        if len(first):
            taken = [take(key, first) for key in keys]
            until = np.full(len(first), ALWAYS) if self._within is None else ends_of(times[first], self._within)
            self._append(pa.RecordBatch.from_arrays([*taken, pa.array(until)], names=[*self.context.key, UNTIL]))
            emit(batch if len(first) == batch.num_rows else take_rows(batch, first))
        self._tidy(seen)

    def on_watermark(self, watermark: int, emit: Emit) -> None:
        if watermark < MAX_WATERMARK:
            self._forget()

    # --- time ---

    @property
    def _within(self) -> int | None:
        """In the unit of the times."""
        return None if self.within_ms is None else max(1, -(-self.within_ms * self._ticks.per_s // 1000))

    def _times(self, batch: pa.RecordBatch) -> Times:
        if self.within_ms is None:
            return np.zeros(batch.num_rows, dtype=np.int64)
        if self.on is None:
            return np.full(batch.num_rows, self.context.now_ms(), dtype=np.int64)
        try:
            times = event_times(batch, self.on)
        except DataError as error:
            raise DataError(f"operator '{self.context.operator}': {error}") from error
        ticks = ticks_of(batch.schema.field(self.on).type)
        assert ticks is not None
        self._ticks = ticks
        return times

    @property
    def _now(self) -> int:
        """Entries that are remembered until then, or a time before, are forgotten."""
        if self.within_ms is None:
            return _INT64_MIN
        now_ms = self.context.now_ms() if self.on is None else self.context.watermark
        if now_ms == MIN_WATERMARK:
            return _INT64_MIN
        return min(max(self._ticks.of_ms(now_ms), _INT64_MIN), _INT64_MAX - 1)

    def _in_time(self, times: Times) -> npt.NDArray[np.intp]:
        """The rows of which it is known whether they are duplicates: the others' keys may be forgotten already."""
        if self.on is None or self._within is None or self.context.watermark == MIN_WATERMARK:
            return np.arange(len(times))
        return np.flatnonzero(ends_of(times, self._within) > self._now)

    # --- the log ---

    def _keys_of(self, kinds: list[pa.DataType]) -> SeenKeys:
        if self._seen is None:
            self._seen = SeenKeys(kinds)
        if self._seen.kinds != tuple(kinds):
            raise DataError(
                f"operator '{self.context.operator}': the columns {', '.join(self.context.key)} were of the types "
                f"{', '.join(map(str, self._seen.kinds))} before, and are {', '.join(map(str, kinds))} now: cast them"
            )
        return self._seen

    def _entry(self, batch: pa.RecordBatch) -> tuple[list[pa.Array], Times]:
        *keys, until = batch.columns
        return keys, until.to_numpy()

    def _append(self, entry: pa.RecordBatch) -> None:
        """Add to the log; small neighbours become one."""
        entries = list(self._log_state.get())
        merged = [entry]
        while entries and entries[-1].num_rows <= min(2 * sum(each.num_rows for each in merged), _PORTION_ROWS):
            merged.insert(0, entries.pop())
        if len(merged) == 1:
            self._log_state.append(entry)
            self._ends.append(_last_end(entry))
        else:
            added = joined(merged)
            self._log_state.put([*entries, *added])
            self._ends = [*self._ends[: len(entries)], *map(_last_end, added)]

    def _tidy(self, seen: SeenKeys) -> None:
        """Forget some of the keys whose time is over."""
        if self.on is None:
            self._forget()
        if seen.is_to_be_renewed and self.within_ms is not None:
            seen.renew(self._entry(entry) for entry in self._log_state.get())
        seen.move_some(self._now)

    def _forget(self) -> None:
        """Drop the batches of the log whose keys are all forgotten; with the last one, the index."""
        now = self._now
        if self._ends and min(self._ends) <= now:
            alive = [entry for entry, end in zip(self._log_state.get(), self._ends, strict=True) if end > now]
            self._log_state.put(alive)
            self._ends = [end for end in self._ends if end > now]
            if not alive:
                self._seen = None
        if self._seen is not None:
            self._seen.move_some(now)


def _last_end(entry: pa.RecordBatch) -> int:
    return int(entry.column(UNTIL).to_numpy().max())
