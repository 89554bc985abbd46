"""Operators whose values leave them at every change or by a trigger, and the keys that wait for that trigger.

Keys that have had records since they were emitted are pending. They are state: after a failure the same keys are
pending, and none is after the end of the input.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.gather import take_rows
from penstock.model.aggregates import Aggregate
from penstock.model.triggers import Trigger
from penstock.operators.contract import Emit, OperatorContext
from penstock.operators.named import NamedOperator

_EMITTED_ROWS = 1 << 12
"""Keys whose values are emitted at a time."""
_SINCE = "penstock.since"

Show = Callable[[pa.RecordBatch, Emit], None]
"""Emits the current values of these keys."""


class Pending:
    """The pending keys of one subtask, which `show` emits when the trigger says so."""

    def __init__(self, context: OperatorContext, trigger: Trigger, show: Show) -> None:
        self._context = context
        self._trigger = trigger
        self._show = show
        self._key = list(context.key)
        keyed = context.keyed
        # With a trigger by records, a key stays when it was emitted, and has had 0 since then.
        since = Aggregate("count", None, "") if trigger.rows is None else Aggregate("sum", _SINCE, _SINCE)
        self._since = keyed.aggregate("pending", context.key, [since])
        self._due = keyed.rows("due", context.key) if trigger.every_ms is not None else None
        """Keys whose time has come, and which are being emitted."""
        self._is_emitting = False
        self._has_ended = False

    def add(self, batch: pa.RecordBatch, emit: Emit) -> None:
        """These records are in the values of their keys."""
        keys = batch.select(self._key)
        if self._trigger.rows is None:
            self._since.fold(keys)
        else:
            self._emit_full(keys, self._trigger.rows, emit)

    def _emit_full(self, keys: pa.RecordBatch, rows: int, emit: Emit) -> None:
        counted = self._since.update(keys.append_column(_SINCE, pa.array(np.ones(keys.num_rows, dtype=np.int64))))
        full = take_rows(counted, np.flatnonzero(counted.column(_SINCE).to_numpy() >= rows))
        if full.num_rows:
            self._since.fold(full.set_column(len(self._key), _SINCE, pc.negate(full.column(_SINCE))))
            self._show(full.select(self._key), emit)

    # --- by the clock ---

    def begin(self, emit: Emit) -> None:
        """The state is restored, and the clock runs from now on."""
        if self._due is not None:
            self._emit_due(emit)
            self._wait(emit)

    def _wait(self, emit: Emit) -> None:
        assert self._trigger.every_ms is not None
        self._context.call_at(self._context.now_ms() + self._trigger.every_ms, lambda: self._on_time(emit))

    def _on_time(self, emit: Emit) -> None:
        if not self._has_ended:
            self._all_are_due()
            self._emit_due(emit)
            self._wait(emit)

    def _all_are_due(self) -> None:
        taken = self._since.take_all()
        if taken is not None and self._due is not None:
            self._due.append(taken.select(self._key))

    def _emit_due(self, emit: Emit) -> None:
        if not self._is_emitting:
            self._is_emitting = True
            self._context.work_off(self._round(emit))

    def _round(self, emit: Emit) -> Iterator[None]:
        assert self._due is not None
        while batches := self._due.get():
            self._show(batches[0].slice(0, _EMITTED_ROWS), emit)
            # I1: these keys have been emitted, whatever becomes of the others.
            self._due.put([batches[0].slice(_EMITTED_ROWS), *batches[1:]])
            yield
        self._is_emitting = False

    # --- the end ---

    def end(self, emit: Emit) -> Iterator[None]:
        """Emit all keys that are pending, in steps. Then none is."""
        self._has_ended = True
        if self._due is not None:
            self._all_are_due()
            yield from self._round(emit)
            return
        taken = self._since.take_all()
        if taken is None:
            return
        if self._trigger.rows is not None:
            taken = take_rows(taken, np.flatnonzero(taken.column(_SINCE).to_numpy()))
        keys = taken.select(self._key)
        for start in range(0, keys.num_rows, _EMITTED_ROWS):
            self._show(keys.slice(start, _EMITTED_ROWS), emit)
            yield


class TriggeredOperator(NamedOperator):
    """Values by key, which are emitted at every change, or by a trigger if there is one."""

    def __init__(self, trigger: Trigger | None) -> None:
        self.trigger = trigger

    def setup(self) -> None:
        self._pending = None if self.trigger is None else Pending(self.context, self.trigger, self.show)

    def on_restored(self, emit: Emit) -> Iterator[None] | None:
        if self._pending is not None:
            self._pending.begin(emit)
        return None

    def on_end(self, emit: Emit) -> Iterator[None] | None:
        return None if self._pending is None else self._pending.end(emit)

    @abstractmethod
    def show(self, keys: pa.RecordBatch, emit: Emit) -> None:
        """Emit the current values of these keys."""
