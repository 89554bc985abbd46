"""The operator behind `KeyedStream.top`: the first N rows of each key by a column, as a retracting changelog.

A batch is ranked together with the rows that its keys hold already, in one sort. Rows of equal rank are in the order in
which they came: so the earlier one stays.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.gather import take_rows
from penstock.columnar.grouping import key_columns
from penstock.columnar.ranking import order_numbers, places_in_groups
from penstock.columnar.schemas.schema_guard import column_of
from penstock.errors import DataError
from penstock.model.changelog import OP, changelog_of
from penstock.operators.contract import Emit
from penstock.operators.named import NamedOperator
from penstock.state.rows.keyed_rows import Ids, KeyedRowsDescriptor


class TopOperator(NamedOperator):
    """Keeps the first `count` rows of each key, and emits what leaves and enters them."""

    def __init__(self, count: int, by: str, descending: bool, rank: str | None) -> None:
        self.count = count
        self.by = by
        self.descending = descending
        self.rank = rank

    def setup(self) -> None:
        self._state = self.context.keyed.register(KeyedRowsDescriptor("top", self.context.key))

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> None:
        self._check(batch)
        slots = self._state.slots_of(batch)
        touched, places = np.unique(slots, return_inverse=True)
        held, held_places = self._state.of_slots(touched)
        values = self._values(held, batch)
        ranks = _ranks(np.concatenate([held_places, places]), values, self.descending)
        held_ranks, new_ranks = ranks[: len(held)], ranks[len(held) :]
        stays, enters = held_ranks < self.count, np.flatnonzero(new_ranks < self.count)
        entering = take_rows(batch, enters)
        if self.rank is None:
            changes = changelog_of(self._rows(held[~stays], batch), entering)
        else:
            former = _ranks(held_places, values.slice(0, len(held)), self.descending)
            changes = self._moves(held, former, held_ranks, self._ranked(entering, new_ranks[enters]), batch)
        owners = np.concatenate([touched[held_places[stays]], slots[enters]])
        self._state.replace(touched, held[stays], owners, held[~stays], entering)
        if changes is not None:
            emit(changes)

    def _check(self, batch: pa.RecordBatch) -> None:
        key_columns(batch, self.context.key, self.context.operator)
        column_of(batch, self.by, self._error)
        taken = [name for name in (OP, self.rank) if name in batch.schema.names]
        if taken:
            raise self._error(
                f"the input has a column '{taken[0]}' already, which top() adds: drop or rename it in front"
            )

    def _error(self, text: str) -> DataError:
        return DataError(f"operator '{self.context.operator}': {text}")

    def _values(self, held: Ids, batch: pa.RecordBatch) -> pa.Array:
        """What rows are ordered by: of the rows that are held, then of the batch. No other column is looked at."""
        new = batch.column(self.by)
        return pa.concat_arrays([self._state.take(held, [self.by]).column(0), new]) if len(held) else new

    def _rows(self, ids: Ids, batch: pa.RecordBatch) -> pa.RecordBatch:
        return self._state.take(ids) if len(ids) else batch.slice(0, 0)

    def _moves(
        self,
        held: Ids,
        former: npt.NDArray[np.intp],
        ranks: npt.NDArray[np.intp],
        entering: pa.RecordBatch,
        batch: pa.RecordBatch,
    ) -> pa.RecordBatch | None:
        """Deletes, then inserts: a row that changes its rank is both."""
        moved = np.flatnonzero(former != ranks)
        rows = self._rows(held[moved], batch)
        stays = np.flatnonzero(ranks[moved] < self.count)
        inserted = [self._ranked(take_rows(rows, stays), ranks[moved[stays]]), entering]
        whole = pa.concat_batches([each for each in inserted if each.num_rows] or inserted[:1])
        return changelog_of(self._ranked(rows, former[moved]), whole)

    def _ranked(self, rows: pa.RecordBatch, ranks: npt.NDArray[np.intp]) -> pa.RecordBatch:
        assert self.rank is not None
        return rows.append_column(self.rank, pa.array(ranks.astype(np.int64) + 1))


def _ranks(keys: npt.NDArray[np.intp], values: pa.Array, descending: bool) -> npt.NDArray[np.intp]:
    """The rank of each row within its key, from 0. Rows are in the order in which they came."""
    order = np.lexsort((order_numbers(values, descending), keys))
    ranks = np.empty(len(order), np.intp)
    ranks[order] = places_in_groups(keys[order])
    return ranks
