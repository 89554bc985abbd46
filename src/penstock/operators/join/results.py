"""The rows that a join emits: pairs, and rows without a partner.

The columns of a row without a partner are known when the other side has shown a record, or declares them. Until then
such rows wait, as keyed state; so does the watermark, which would make them late.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from penstock.errors import DataError
from penstock.model.event_time import event_time_type, ticks_of
from penstock.model.joins import LEFT, OP, SIDES, WindowBounds, clipped, is_outer, scaled
from penstock.model.units import shown_duration
from penstock.model.windows import WINDOW_END, WINDOW_START
from penstock.operators.contract import Emit, OperatorContext
from penstock.operators.join.output import JoinOutput
from penstock.operators.join.spec import JoinSpec
from penstock.state.columns import array_of_values
from penstock.state.joins.side import JoinSide

_log = logging.getLogger("penstock")

_PATIENCE_MS = 10_000
"""Rows may wait for the columns of the other side for this long before it is said."""


class JoinResults:
    """Makes the output of one subtask. Ask for it in `open`: it has state."""

    def __init__(self, spec: JoinSpec, sides: Sequence[JoinSide], context: OperatorContext) -> None:
        self._spec = spec
        self._sides = sides
        self._context = context
        self._waiting = [
            context.keyed.rows(f"{SIDES[side]}.waiting", spec.keys[side]) if is_outer(spec.how, side) else None
            for side in range(2)
        ]
        self._schemas = list(spec.schemas)
        self._output: JoinOutput | None = None
        self._is_watched = False

    @property
    def key_kinds(self) -> Sequence[pa.DataType]:
        """The types of the key. A pair was found, so both sides are known."""
        assert self._output is not None
        return self._output.key_kinds

    @property
    def has_waiting(self) -> bool:
        return any(waiting is not None and waiting.get() for waiting in self._waiting)

    def restored_schema(self, side: int) -> pa.Schema | None:
        """Of the rows of a side that a checkpoint has, if it has any."""
        waiting = self._waiting[side]
        held = waiting.get() if waiting is not None else ()
        return self._sides[side].schema or (held[0].schema if held else None)

    def learn(self, side: int, schema: pa.Schema, emit: Emit) -> bool:
        """A side has shown its columns. True if rows that have waited for them were emitted."""
        self._sides[side].learn(schema)
        self._schemas[side] = schema
        left, right = self._schemas
        if self._output is not None or left is None or right is None:
            return False
        spec = self._spec
        self._output = JoinOutput((left, right), spec.keys, suffix=spec.suffix, added=spec.added)
        has_waited = self.has_waiting
        for number, rows in self._take_waiting():
            emit(self.row_alone(number, rows, "insert"))
        return has_waited

    def end(self, emit: Emit) -> None:
        """Emit the rows that wait as they are: nobody has seen a record of the other side, or knows its columns."""
        for side, rows in self._take_waiting():
            added = self._added(side, rows, "insert")
            emit(pa.RecordBatch.from_arrays([*rows.columns, *added.values()], names=[*rows.schema.names, *added]))

    def _take_waiting(self) -> list[tuple[int, pa.RecordBatch]]:
        taken: list[tuple[int, pa.RecordBatch]] = []
        for side, waiting in enumerate(self._waiting):
            if waiting is not None:
                taken += [(side, rows) for rows in waiting.get()]
                waiting.put([])
        return taken

    def pairs(self, side: int, rows: pa.RecordBatch, partners: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of `side` beside their partners."""
        assert self._output is not None
        return self._output.rows(
            (rows, partners) if side == LEFT else (partners, rows), self._added(side, rows, "insert")
        )

    def emit_alone(self, side: int, rows: pa.RecordBatch, emit: Emit) -> None:
        """Emit rows without a partner, or let them wait until the columns of the other side are known."""
        if self._output is not None:
            emit(self.row_alone(side, rows, "insert"))
            return
        waiting = self._waiting[side]
        assert waiting is not None
        waiting.append(rows)
        if not self._is_watched:
            self._is_watched = True
            self._context.call_at(self._context.now_ms() + _PATIENCE_MS, lambda: self._say_if_waiting(side))

    def _say_if_waiting(self, side: int) -> None:
        if self.has_waiting:
            _log.warning(
                "operator '%s', subtask %d: rows of the %s side have no partner, and wait for the first record of the "
                "%s side: its columns are not known. Declare them with schema=… of the operator in front of the join",
                self._context.operator,
                self._context.subtask,
                SIDES[side],
                SIDES[1 - side],
            )

    def row_alone(self, side: int, rows: pa.RecordBatch, op: str) -> pa.RecordBatch:
        """Rows of `side` beside nulls."""
        assert self._output is not None
        return self._output.rows((rows, None) if side == LEFT else (None, rows), self._added(side, rows, op))

    def _added(self, side: int, rows: pa.RecordBatch, op: str) -> Mapping[str, pa.Array]:
        """The columns that the output has besides those of the sides."""
        added: dict[str, pa.Array] = {}
        if isinstance(self._spec.bounds, WindowBounds):
            added |= self._windows(self._spec.bounds, side, rows)
        if self._spec.is_changelog:
            added[OP] = pa.repeat(pa.scalar(op), rows.num_rows)
        return added

    def _windows(self, bounds: WindowBounds, side: int, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        """The bounds of the window of each row, in the type of the event time of the left side, if that is known."""
        schema, on = self._schemas[LEFT] or self._schemas[side], self._spec.on[LEFT if self._schemas[LEFT] else side]
        assert schema is not None and on is not None
        kind = event_time_type(schema, on)
        ticks = ticks_of(kind)
        size = None if ticks is None else ticks.exactly(bounds.size_ms)
        if ticks is None or size is None:
            raise DataError(
                f"windows of {shown_duration(bounds.size_ms)} cannot be represented in event times of "
                f"type {kind}: cast them to timestamp('ms')"
            )
        starts = bounds.starts_ms(self._sides[side].times_of(rows, 0), self._sides[side].ticks)
        first, last = int(starts.min()) * ticks.per_s // 1000, int(starts.max()) * ticks.per_s // 1000
        if first != clipped(first) or last + size != clipped(last + size):
            raise DataError(
                f"event times of the {SIDES[side]} side are out of range: the bounds of their windows do not fit "
                f"into {kind}"
            )
        ours = scaled(starts, ticks.per_s // 1000) if ticks.per_s >= 1000 else starts // (1000 // ticks.per_s)
        return {
            WINDOW_START: array_of_values(ours, kind, None),
            WINDOW_END: array_of_values(ours + np.int64(size), kind, None),
        }
