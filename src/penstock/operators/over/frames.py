"""Parts of the operators behind `KeyedStream.over`: the columns that they read and add, and the last rows of a key."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.frames import over_frames
from penstock.columnar.gather import take_rows
from penstock.columnar.grouping import key_columns
from penstock.columnar.ranking import places_in_groups
from penstock.columnar.schemas.schema_guard import column_of
from penstock.errors import DataError
from penstock.model.aggregates import Aggregate, columns_of
from penstock.operators.contract import Emit, OperatorContext
from penstock.operators.named import NamedOperator
from penstock.state.rows.keyed_rows import KeyedRowsDescriptor

Bounds = npt.NDArray[np.int64]


class OverOperator(NamedOperator):
    """Adds the aggregates of a frame to each record."""

    def __init__(self, aggregates: Sequence[Aggregate]) -> None:
        self.aggregates = tuple(aggregates)

    def check(self, batch: pa.RecordBatch) -> None:
        key_columns(batch, self.context.key, self.context.operator)
        for column in columns_of(self.aggregates):
            column_of(batch, column, self.error)
        taken = [each.output for each in self.aggregates if each.output in batch.schema.names]
        if taken:
            raise self.error(f"the input has a column '{taken[0]}' already: give the output another name")

    def error(self, text: str) -> DataError:
        return DataError(f"operator '{self.context.operator}': {text}")

    def with_outputs(self, rows: pa.RecordBatch, frames: pa.RecordBatch, first: Bounds, end: Bounds) -> pa.RecordBatch:
        """The rows with the aggregates of their frames, which are ranges of rows of `frames`."""
        for each in self.aggregates:
            column = None if each.column is None else frames.column(each.column)
            try:
                rows = rows.append_column(each.output, over_frames(each.function, column, first, end))
            except DataError as error:
                raise self.error(f"{each.output}: {error}") from error
        return rows


class LastRows:
    """The last rows of each key, as keyed state, with the columns that are aggregated alone. Ask for it in `open`."""

    def __init__(self, context: OperatorContext, aggregates: Sequence[Aggregate], rows: int) -> None:
        self._rows = rows
        self._state = context.keyed.register(KeyedRowsDescriptor("over", context.key))
        self._kept = list(dict.fromkeys([*context.key, *columns_of(aggregates)]))

    def frames_of(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Bounds, Bounds]:
        """The frame of each record as a range of the rows that are returned. The records are among the last ones now.

        They must come in the order in which frames are to have them.
        """
        new = batch.select(self._kept)
        slots = self._state.slots_of(new)
        touched, places = np.unique(slots, return_inverse=True)
        held, held_places = self._state.of_slots(touched)
        both = pa.concat_batches([self._state.take(held), new]) if len(held) else new
        keys = np.concatenate([held_places, places])
        # Ids are in the order in which rows were added: so both lie in that order.
        order = np.argsort(keys, kind="stable")
        behind = places_in_groups(keys[order])
        ends = np.arange(1, len(order) + 1)
        firsts = ends - np.minimum(behind + 1, self._rows)
        position = np.empty(len(order), np.int64)
        position[order] = np.arange(len(order))
        mine = position[len(held) :]
        self._keep(touched, held, slots, keys, order, new)
        return take_rows(both, order), firsts[mine], ends[mine]

    def _keep(
        self,
        touched: npt.NDArray[np.intp],
        held: npt.NDArray[np.int64],
        slots: npt.NDArray[np.intp],
        keys: npt.NDArray[np.intp],
        order: npt.NDArray[np.intp],
        new: pa.RecordBatch,
    ) -> None:
        """Keep the last `rows` - 1 records of each key: no later frame reaches further back."""
        from_end = np.empty(len(order), np.intp)
        from_end[order] = places_in_groups(keys[order][::-1])[::-1]
        stays = from_end < self._rows - 1
        old, added = stays[: len(held)], np.flatnonzero(stays[len(held) :])
        owners = np.concatenate([touched[keys[: len(held)][old]], slots[added]])
        self._state.replace(touched, held[old], owners, held[~old], take_rows(new, added))


class OverRowsOperator(OverOperator):
    """Frames of the last `rows` records of a key, in the order in which they come."""

    def __init__(self, aggregates: Sequence[Aggregate], rows: int) -> None:
        super().__init__(aggregates)
        self.rows = rows

    def setup(self) -> None:
        self._last = LastRows(self.context, self.aggregates, self.rows)

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> None:
        self.check(batch)
        emit(self.with_outputs(batch, *self._last.frames_of(batch)))
