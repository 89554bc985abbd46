"""The operators behind `KeyedStream.over` in event time: records wait until the watermark has passed them.

So they are emitted in the order of event time, in portions between which the mailbox gets control; the watermark is
held until the last of them (decision 34). Frames of rows need the last rows of a key alone. Frames of a stretch of time
need all rows of it: they are kept as one side of a join is, in runs sorted by key and time, so that a portion costs
for the rows of its own keys.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from penstock.columnar.gather import take_rows
from penstock.columnar.grouping import key_codes
from penstock.columnar.hashing import Words, hash_rows
from penstock.model.aggregates import Aggregate, columns_of
from penstock.model.event_time import MAX_WATERMARK, event_times
from penstock.model.joins import first_tick_at
from penstock.model.over import Frame, RangeFrame, RowsFrame
from penstock.model.windows import Late
from penstock.operators.contract import Emit
from penstock.operators.join.merges import merge_runs
from penstock.operators.over.frames import Bounds, LastRows, OverOperator
from penstock.operators.over.waiting import Times, WaitingRows
from penstock.state.joins.run import Rows, bisected, pairs_of
from penstock.state.joins.side import JoinSideDescriptor

_PORTION_ROWS = 1 << 13
_INT64 = np.iinfo(np.int64)


class OverTimeOperator(OverOperator):
    """Frames in the order of event time."""

    emits_later = True

    def __init__(self, aggregates: Sequence[Aggregate], frame: Frame, on: str, late: Late) -> None:
        super().__init__(aggregates)
        self.frame = frame
        self.on = on
        self.late: Late = late

    def setup(self) -> None:
        self._waiting = WaitingRows(self.context, self.frame, self.on, self.late)
        self._reached: int | None = None
        """The watermark that is held until the rows before it are emitted."""
        self._is_emitting = False

    def on_restored(self, emit: Emit) -> None:
        self._waiting.restored()

    @property
    def is_idle(self) -> bool:  # type: ignore[override]
        return not self._is_emitting

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> None:
        self.check(batch)
        self._waiting.add(batch)

    def on_watermark(self, watermark: int, emit: Emit) -> bool | None:
        # The end is no time: the rows that are left are emitted by `on_end`.
        if watermark < MAX_WATERMARK:
            self._waiting.advance(watermark)
            self._reached = watermark
            if not self._is_emitting:
                self._is_emitting = True
                self.context.work_off(self._emission(emit))
        return True

    def _emission(self, emit: Emit) -> Iterator[None]:
        """Emit the rows before the watermark, which may rise meanwhile, and pass it on."""
        reached = None
        while reached != self._reached:
            reached = self._reached
            assert reached is not None
            yield from self._emit_before(reached, emit)
            self.passed(reached)
        self._is_emitting = False
        assert reached is not None
        self.context.release_watermark(reached)

    def _emit_before(self, watermark: int | None, emit: Emit) -> Iterator[None]:
        is_over = self.context.begin_slice()
        for rows in self._waiting.due(watermark, _PORTION_ROWS):
            emit(self.with_frames(rows))
            if is_over():
                yield
                is_over = self.context.begin_slice()

    def on_end(self, emit: Emit) -> Iterator[None]:
        yield from self._emit_before(None, emit)
        self.ended()

    @abstractmethod
    def with_frames(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows with their aggregates. Each call has later rows than the one before."""

    def passed(self, watermark: int) -> None:
        """All rows before the watermark were emitted."""

    def ended(self) -> None:
        """All rows were emitted."""


class OverLastRowsOperator(OverTimeOperator):
    """Frames of the last rows of a key in the order of event time."""

    frame: RowsFrame

    def setup(self) -> None:
        super().setup()
        self._last = LastRows(self.context, self.aggregates, self.frame.rows)

    def with_frames(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return self.with_outputs(rows, *self._last.frames_of(rows))


class OverRangeOperator(OverTimeOperator):
    """Frames of a stretch of event time, which ends with the time of the record."""

    frame: RangeFrame

    def setup(self) -> None:
        super().setup()
        key = self.context.key
        self._kept = list(dict.fromkeys([*key, *columns_of(self.aggregates), self.on]))
        self._before = self.context.keyed.register(JoinSideDescriptor("over.before", key, "event", self.on, False))

    def with_frames(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        new, times = rows.select(self._kept), event_times(rows, self.on)
        self._before.learn(new.schema.remove_metadata())
        span = self._before.ticks.of_ms(self.frame.range_ms)
        since = np.where(times < _INT64.min + min(span, _INT64.max), _INT64.min, times - min(span, _INT64.max))
        hashes = hash_rows(new, self.context.key)
        both = pa.concat_batches([*self._rows_before(hashes, since, times), new])
        all_times = event_times(both, self.on)
        keys = key_codes([both.column(name) for name in self.context.key])
        order = _order(keys, all_times)
        keys, all_times = keys[order], all_times[order]
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        mine = place[len(order) - len(times) :]
        firsts, ends = rows_from(keys, all_times, since, mine), rows_up_to(keys, all_times)[mine]
        made = self.with_outputs(rows, take_rows(both, order), firsts, ends)
        self._before.add(hashes, times, new, None)
        merge_runs(self._before, self.context)
        return made

    def _rows_before(self, hashes: Words, since: Times, times: Times) -> list[pa.RecordBatch]:
        """The emitted rows that may be in a frame. Rows of other keys with an equal hash do no harm."""
        if self._before.run_count == 0:
            return []
        # Rows are in the order of time: the first one of a key reaches back furthest.
        asked, first = np.unique(hashes, return_index=True)
        last = np.full(len(asked), times[-1])
        found = []
        for run in self._before.runs_with(since[first], last):
            starts, counts = run.find(asked, since[first], last)
            for _, rows in pairs_of(starts, counts, max(1, int(counts.sum()))):
                found.append(take_rows(run.rows, rows))
        return found

    def passed(self, watermark: int) -> None:
        self._before.drop_before(first_tick_at(self._before.ticks, watermark - self.frame.range_ms))
        merge_runs(self._before, self.context)

    def ended(self) -> None:
        # After a restore the end comes again, and a later run on the same checkpoints begins with empty frames.
        self._before.clear()


def _order(keys: Bounds, times: Times) -> Rows:
    """By key, then time, then as they are. Rows of a key came in the order of time, but for those of a checkpoint."""
    order = np.argsort(keys, kind="stable")
    sorted_keys, sorted_times = keys[order], times[order]
    if bool(((sorted_times[1:] >= sorted_times[:-1]) | (sorted_keys[1:] != sorted_keys[:-1])).all()):
        return order
    return np.lexsort((times, keys))


def rows_from(keys: Bounds, times: Times, since: Times, places: Bounds) -> Bounds:
    """For the rows at `places`, the first row of the key that is not earlier than `since`; rows are sorted."""
    return bisected(times, np.searchsorted(keys, keys[places]), places, since, is_after=False)


def rows_up_to(keys: Bounds, times: Times) -> Bounds:
    """For each row, the number of the first row behind those of its key and time."""
    rows = np.arange(1, len(keys) + 1)
    is_last = np.append((keys[1:] != keys[:-1]) | (times[1:] != times[:-1]), True)[: len(keys)]
    return np.minimum.accumulate(np.where(is_last, rows, len(keys))[::-1])[::-1]
