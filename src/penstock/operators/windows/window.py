"""The operator behind `KeyedStream.window` and `session`: aggregates by key and window, emitted when it is complete.

The kind of the windows (`model/windows`) says which window a record belongs to and when a window is complete; the
state (`state/windows`) keeps them by that.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.gather import take_rows
from penstock.columnar.grouping import key_columns
from penstock.errors import DataError
from penstock.ids import LATE
from penstock.metrics import standard as metrics
from penstock.model.aggregates import Aggregate
from penstock.model.event_time import MAX_WATERMARK
from penstock.model.filtered import Masked
from penstock.model.windows import ON_CLOSE, Emission, Late, SessionWindows, WindowKind
from penstock.operators.contract import Emit
from penstock.operators.masked_columns import MaskedColumns
from penstock.operators.named import NamedOperator
from penstock.state.windows.panes import PanedState
from penstock.state.windows.state import WindowState


class WindowOperator(NamedOperator):
    """Folds each batch into the windows of its rows, and emits those that a watermark has passed."""

    emits_later = True

    def __init__(
        self,
        kind: WindowKind,
        on: str,
        aggregates: Sequence[Aggregate],
        late: Late,
        emission: Emission = ON_CLOSE,
        masks: Sequence[Masked] = (),
    ) -> None:
        self.kind = kind
        self.on = on
        self.aggregates = tuple(aggregates)
        self.late = late
        self.emission = emission
        self.masked = MaskedColumns(masks)

    def setup(self) -> None:
        self._late_rows = self.context.metrics.counter(metrics.LATE)
        self._has_ended = False
        key, keyed = self.context.key, self.context.keyed
        self._state: PanedState
        self._windows: WindowState | None = None
        if isinstance(self.kind, SessionWindows):
            self._state = keyed.sessions("sessions", key, self.aggregates, self.kind, self.on)
        else:
            self._state = self._windows = keyed.windows(
                "windows", key, self.aggregates, self.kind, self.on, self.emission
            )

    def on_restored(self, emit: Emit) -> None:
        if self.emission.every_ms is not None:
            self._wait(emit, self.emission.every_ms)

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> None:
        key_columns(batch, self.context.key, self.context.operator)
        with self._naming_operator():
            late_rows = self._state.add(self.masked.added(batch, DataError))
            if self.emission.every_ms is None:
                self._emit_updates(emit)
        if len(late_rows):
            self._on_late(batch, late_rows)

    def on_watermark(self, watermark: int, emit: Emit) -> bool | None:
        with self._naming_operator():
            for batch in self._state.close(watermark):
                emit(batch)
        return None

    def _emit_updates(self, emit: Emit) -> None:
        if self._windows is not None:
            for batch in self._windows.updates():
                emit(batch)

    def _wait(self, emit: Emit, every_ms: int) -> None:
        self.context.call_at(self.context.now_ms() + every_ms, functools.partial(self._on_time, emit, every_ms))

    def _on_time(self, emit: Emit, every_ms: int) -> None:
        if not self._has_ended:
            with self._naming_operator():
                self._emit_updates(emit)
            self._wait(emit, every_ms)

    @contextlib.contextmanager
    def _naming_operator(self) -> Iterator[None]:
        try:
            yield
        except DataError as error:
            raise DataError(f"operator '{self.context.operator}': {error}") from error

    def on_end(self, emit: Emit) -> None:
        self._has_ended = True
        self.on_watermark(MAX_WATERMARK, emit)

    def _on_late(self, batch: pa.RecordBatch, rows: npt.NDArray[np.intp]) -> None:
        if self.late == "error":
            raise DataError(
                f"operator '{self.context.operator}': {len(rows)} rows arrived after their windows "
                'had been emitted: allow a longer delay in with_watermark, or set late="drop" to '
                "count them and go on"
            )
        if self.late == "stream":
            self.context.emit_to(LATE, take_rows(batch, rows))
        else:
            self._late_rows.add(len(rows))
