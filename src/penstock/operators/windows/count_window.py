"""The operator behind `KeyedStream.count_window`: aggregates of a fixed number of records of a key."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.columnar.grouping import key_columns
from penstock.errors import DataError
from penstock.metrics.metric import counter
from penstock.model.aggregates import Aggregate
from penstock.model.event_time import MAX_WATERMARK, MIN_WATERMARK, event_times, ticks_of
from penstock.model.filtered import Masked
from penstock.model.windows import CountWindows
from penstock.operators.contract import Emit
from penstock.operators.masked_columns import MaskedColumns
from penstock.operators.named import NamedOperator
from penstock.state.windows.counts import CountWindowDescriptor

EXPIRED = counter(
    "num_windows_expired",
    "windows",
    "windows of `count_window` that were not full and were forgotten after `state_ttl`",
    is_total=True,
)


class CountWindowOperator(NamedOperator):
    """Folds each batch into the open window of each key, and emits those that are complete.

    With `ttl_ms`, a key is forgotten when it has had no record for that long, and at most for about twice as long: by
    event time, which is in the column `on`, or by the clock if that is None. A generation of keys is forgotten when
    the newest of its records is that old, so that no record of the future is forgotten before its time.
    """

    def __init__(
        self,
        kind: CountWindows,
        aggregates: Sequence[Aggregate],
        masks: Sequence[Masked] = (),
        ttl_ms: int | None = None,
        on: str | None = None,
    ) -> None:
        self.kind = kind
        self.aggregates = tuple(aggregates)
        self.masked = MaskedColumns(masks)
        self.ttl_ms = ttl_ms
        self.on = on

    def setup(self) -> None:
        described = CountWindowDescriptor("count_windows", self.context.key, self.aggregates, self.kind)
        self._state = self.context.keyed.register(described)
        self._expired = self.context.metrics.counter(EXPIRED)
        self._newest_ms = MIN_WATERMARK
        """The newest record of the current generation."""
        self._forget_at_ms: int | None = None
        """When the idle generation is forgotten. None after a start: nobody knows how old its records are."""
        if self.ttl_ms is not None and self.on is None:
            self._tick(self.ttl_ms)

    def on_watermark(self, watermark: int, emit: Emit) -> None:
        # An end of input is no time: a later run goes on with windows that are not full.
        if self.ttl_ms is not None and self.on is not None and MIN_WATERMARK < watermark < MAX_WATERMARK:
            self._forget(watermark, self.ttl_ms)

    def _tick(self, ttl_ms: int) -> None:
        now_ms = self.context.now_ms()
        self._forget(now_ms, ttl_ms)
        self.context.call_at(now_ms + ttl_ms, lambda: self._tick(ttl_ms))

    def _forget(self, now_ms: int, ttl_ms: int) -> None:
        if self._forget_at_ms is None:
            self._newest_ms = max(self._newest_ms, now_ms)
            self._forget_at_ms = now_ms + ttl_ms
        elif now_ms >= self._forget_at_ms:
            self._expired.add(self._state.begin_generation())
            self._forget_at_ms = max(self._newest_ms, now_ms) + ttl_ms

    def _note_time(self, batch: pa.RecordBatch) -> None:
        if self.on is None:
            self._newest_ms = self.context.now_ms()
            return
        times, ticks = event_times(batch, self.on), ticks_of(batch.schema.field(self.on).type)
        assert ticks is not None
        self._newest_ms = max(self._newest_ms, ticks.to_ms(int(times.max())))

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> None:
        key_columns(batch, self.context.key, self.context.operator)
        try:
            if self.ttl_ms is not None:
                self._note_time(batch)
            for result in self._state.add(self.masked.added(batch, DataError)):
                emit(result)
        except DataError as error:
            raise DataError(f"operator '{self.context.operator}': {error}") from error
