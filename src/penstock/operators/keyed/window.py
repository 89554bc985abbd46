"""The operator behind `KeyedStream.window` and `session`: aggregates by key and window, emitted when it is complete.

The kind of the windows (`model/windows`) says which window a record belongs to and when a window is complete; the
state (`state/windows`) keeps them by that.
"""

from __future__ import annotations

from collections.abc import Sequence

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
from penstock.model.windows import Late, SessionWindows, WindowKind
from penstock.operators.contract import Emit
from penstock.operators.named import NamedOperator
from penstock.state.windows.panes import PanedState


class WindowOperator(NamedOperator):
    """Folds each batch into the windows of its rows, and emits those that a watermark has passed."""

    emits_later = True

    def __init__(self, kind: WindowKind, on: str, aggregates: Sequence[Aggregate], late: Late) -> None:
        self.kind = kind
        self.on = on
        self.aggregates = tuple(aggregates)
        self.late = late

    def setup(self) -> None:
        self._late_rows = self.context.metrics.counter(metrics.LATE)
        self._state = self._made_state()

    def _made_state(self) -> PanedState:
        key, keyed = self.context.key, self.context.keyed
        if isinstance(self.kind, SessionWindows):
            return keyed.sessions("sessions", key, self.aggregates, self.kind, self.on)
        return keyed.windows("windows", key, self.aggregates, self.kind, self.on)

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> None:
        key_columns(batch, self.context.key, self.context.operator)
        try:
            late_rows = self._state.add(batch)
        except DataError as error:
            raise DataError(f"operator '{self.context.operator}': {error}") from error
        if len(late_rows):
            self._on_late(batch, late_rows)

    def on_watermark(self, watermark: int, emit: Emit) -> bool | None:
        try:
            for batch in self._state.close(watermark):
                emit(batch)
        except DataError as error:
            raise DataError(f"operator '{self.context.operator}': {error}") from error
        return None

    def on_end(self, emit: Emit) -> None:
        self.on_watermark(MAX_WATERMARK, emit)

    def _on_late(self, batch: pa.RecordBatch, rows: npt.NDArray[np.intp]) -> None:
        if self.late == "error":
            raise DataError(
                f"operator '{self.context.operator}': the windows of {len(rows)} rows had been emitted when the rows "
                f'came: allow a longer delay in with_watermark, or say late="drop" to count them and go on'
            )
        if self.late == "stream":
            self.context.emit_to(LATE, take_rows(batch, rows))
        else:
            self._late_rows.add(len(rows))
