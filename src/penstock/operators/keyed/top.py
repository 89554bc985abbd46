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
from penstock.columnar.ranking import places_in_groups, sort_codes
from penstock.columnar.schema_guard import column_of
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
        before = self._state.take(held) if len(held) else batch.slice(0, 0)
        ranks = self._ranks(before, held, held_places, batch, places)
        held_ranks, new_ranks = ranks[: len(held)], ranks[len(held) :]
        stays, enters = held_ranks < self.count, np.flatnonzero(new_ranks < self.count)
        entering = take_rows(batch, enters)
        emit_to = self._changes(before, held, held_places, held_ranks, entering, new_ranks[enters])
        owners = np.concatenate([touched[held_places[stays]], slots[enters]])
        self._state.replace(touched, held[stays], owners, held[~stays], entering)
        if emit_to is not None:
            emit(emit_to)

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

    def _ranks(
        self,
        before: pa.RecordBatch,
        held: Ids,
        held_places: npt.NDArray[np.intp],
        batch: pa.RecordBatch,
        places: npt.NDArray[np.intp],
    ) -> npt.NDArray[np.intp]:
        """The rank of each row within its key, from 0: of the rows that are held, then of the batch."""
        values = pa.concat_arrays([before.column(self.by), batch.column(self.by)]) if len(held) else batch[self.by]
        keys = np.concatenate([held_places, places])
        # Ids are in the order of arrival, and those of the batch come behind all others.
        arrival = np.concatenate([held, np.arange(len(places)) + (held.max(initial=0) + 1)])
        return _ranks(keys, sort_codes(values, self.descending), arrival)

    def _changes(
        self,
        before: pa.RecordBatch,
        held: Ids,
        held_places: npt.NDArray[np.intp],
        held_ranks: npt.NDArray[np.intp],
        entering: pa.RecordBatch,
        entering_ranks: npt.NDArray[np.intp],
    ) -> pa.RecordBatch | None:
        """Deletes, then inserts. With a rank, a row that changes it is both."""
        leaves = held_ranks >= self.count
        if self.rank is None:
            return changelog_of(take_rows(before, np.flatnonzero(leaves)), entering)
        codes = sort_codes(before.column(self.by), self.descending)
        former = _ranks(held_places, codes, held)
        moved = np.flatnonzero(former != held_ranks)
        stays = moved[held_ranks[moved] < self.count]
        deleted = self._ranked(take_rows(before, moved), former[moved])
        inserted = [self._ranked(take_rows(before, stays), held_ranks[stays]), self._ranked(entering, entering_ranks)]
        return changelog_of(deleted, pa.concat_batches([each for each in inserted if each.num_rows] or inserted[:1]))

    def _ranked(self, rows: pa.RecordBatch, ranks: npt.NDArray[np.intp]) -> pa.RecordBatch:
        assert self.rank is not None
        return rows.append_column(self.rank, pa.array(ranks.astype(np.int64) + 1))


def _ranks(keys: npt.NDArray[np.intp], codes: npt.NDArray[np.uint64], arrival: Ids) -> npt.NDArray[np.intp]:
    order = np.lexsort((arrival, codes, keys))
    ranks = np.empty(len(order), np.intp)
    ranks[order] = places_in_groups(keys[order])
    return ranks
