"""Running aggregates by key: what a pipeline sees of them. `aggregate_columns` has the columns themselves.

Nothing here is done row by row. Types are settled by the first batch or by the restored state, whichever comes
first; a batch of other types is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.gather import take
from penstock.columnar.hashing import key_groups
from penstock.errors import DataError, IncompatibleCheckpoint, PipelineError, RestoreError
from penstock.model.aggregates import Aggregate, kept_for
from penstock.state.aggregates.columns import Columns, ColumnsSnapshot
from penstock.state.aggregates.functions import accumulators_for, stored_accumulators
from penstock.state.columns import column_type
from penstock.state.contract import StateOwner
from penstock.state.index.key_index import KeyIndex, KeySnapshot
from penstock.state.index.slot_table import Slots
from penstock.state.pieces import (
    KEY,
    KEY_GROUP,
    VALUE,
    KeyedPiece,
    blocks,
    check_owned,
    cut_rows,
    own_rows,
    stable_order,
    struct_of,
)


@dataclass(frozen=True, slots=True)
class AggregateDescriptor:
    """Running aggregates by the columns `key`, which begin with `partitioned_by`, the key of the input."""

    name: str
    key: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]
    partitioned_by: tuple[str, ...]

    def create(self, owner: StateOwner) -> AggregateState:
        place = owner.key_groups, owner.max_parallelism
        return AggregateState(self.name, self.key, self.aggregates, *place, self.partitioned_by)


class AggregateState:
    """Aggregates of one subtask. `key` names the key columns, which begin with those the input is partitioned by."""

    def __init__(
        self,
        name: str,
        key: Sequence[str],
        aggregates: Sequence[Aggregate],
        owned: range,
        max_parallelism: int,
        partitioned_by: Sequence[str] | None = None,
    ) -> None:
        self.name = name
        self.key = tuple(key)
        self.aggregates = tuple(aggregates)
        self.version = 0
        self._owned = owned
        self._max_parallelism = max_parallelism
        self._partitioned_by = self.key if partitioned_by is None else tuple(partitioned_by)
        self._names = [*self.key, *(aggregate.output for aggregate in self.aggregates)]
        self._check_definition()
        self._bound: Columns | None = None
        self._checked: pa.Schema | None = None

    @property
    def declared(self) -> str:
        return f"aggregates {kept_for(self.aggregates)}"

    @property
    def state_bytes(self) -> int:
        return 0 if self._bound is None else self._bound.column_bytes + self._bound.index.state_bytes

    def __len__(self) -> int:
        """The number of keys."""
        return 0 if self._bound is None else self._bound.index.size

    def update(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Fold `batch` in and return the current aggregates of each key in it, one row per key.

        The rows are in the order of each key's last appearance in `batch`. Nulls in values are ignored, as in SQL;
        a null in a key is a key. Raises `DataError` if a column is missing, has changed its type, or a sum of
        integers overflows; after that the state is not to be used any more.
        """
        columns = self._bind(batch.schema)
        keys, slots = columns.slots_of(batch)
        rows = columns.fold(batch, slots, self.name)
        self.version += bool(len(rows))
        return self._result(columns, slots.take(rows), [take(key, rows) for key in keys])

    def fold(self, batch: pa.RecordBatch) -> None:
        """As `update`, but without a result."""
        columns = self._bind(batch.schema)
        _, slots = columns.slots_of(batch)
        self.version += bool(len(columns.fold(batch, slots, self.name)))

    def current(self) -> pa.RecordBatch | None:
        """The aggregates of all keys, or None if there has been neither a batch nor a restored state."""
        if self._bound is None:
            return None
        keys = self._bound.index.snapshot().arrays()
        return self._result(self._bound, np.arange(len(self), dtype=np.int32), keys)

    def of_keys(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        """The aggregates of these keys, each of which is in the state."""
        columns = self._bound
        assert columns is not None
        arrays, slots = columns.slots_of(keys)
        return self._result(columns, slots, arrays)

    def take_all(self) -> pa.RecordBatch | None:
        """The aggregates of all keys, which are forgotten; None as in `current`. Snapshots keep what they have."""
        taken = self.current()
        if taken is not None and taken.num_rows:
            self._bound = None
            self.version += 1
        return taken

    def snapshot(self) -> AggregateSnapshot:
        """References only: the time does not depend on the number of keys."""
        columns = None if self._bound is None else self._bound.snapshot()
        return AggregateSnapshot(self, self.version, columns)

    def restore(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Add the rows of `batches` that belong to this subtask, and return how many that were."""
        restored = 0
        for batch in batches:
            mine = own_rows(self.name, batch, self._owned, self._max_parallelism, lambda _: self._partitioned_by)
            columns = self._bind_restored(batch.schema)
            if mine.num_rows:
                columns.restore(mine, self.name)
                restored += mine.num_rows
        self.version += bool(restored)
        return restored

    def encode(self, columns: ColumnsSnapshot, target_bytes: int) -> list[KeyedPiece]:
        """Pieces of a snapshot's columns. Runs in the background: touches nothing of the live state."""
        keys, values = columns.keys, columns.arrays()
        labels = [accumulator.label for accumulator in columns.accumulators]
        row_bytes = keys.row_bytes()
        groups = self._groups_of(keys, row_bytes)
        check_owned(self.name, groups, self._owned)
        order = stable_order(groups, self._owned)
        groups = groups[order]

        def batches(begin: int, end: int) -> list[pa.RecordBatch]:
            slots = order[begin:end]
            value = struct_of([take(array, slots) for array in values], labels)
            arrays = [pa.array(groups[begin:end]), struct_of(keys.arrays(slots), self.key), value]
            return [pa.RecordBatch.from_arrays(arrays, names=[KEY_GROUP, KEY, VALUE])]

        value_bytes = sum(array.nbytes for array in values) // max(1, keys.size)
        return cut_rows(self.name, groups, row_bytes[order] + value_bytes, target_bytes, batches)

    def _groups_of(self, keys: KeySnapshot, row_bytes: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """The key group of each slot, computed for as many keys at a time as fit into one batch."""
        parts = [np.empty(0, dtype=np.int32)]
        for begin, end in blocks(row_bytes):
            slots = None if end - begin == keys.size else np.arange(begin, end)
            key = pa.RecordBatch.from_arrays(keys.arrays(slots), names=list(self.key))
            parts.append(key_groups(key, self._partitioned_by, self._max_parallelism))
        return np.concatenate(parts)

    def _check_definition(self) -> None:
        if not self.key or self.key[: len(self._partitioned_by)] != self._partitioned_by:
            raise PipelineError(
                f"state '{self.name}': its key {self.key} must begin with the key of its input, {self._partitioned_by}"
            )
        if len(set(self._names)) < len(self._names):
            raise PipelineError(f"state '{self.name}': two of its columns have one name: {', '.join(self._names)}")
        for aggregate in self.aggregates:
            if aggregate.column is None and aggregate.function != "count":
                raise PipelineError(f"state '{self.name}': {aggregate.function} needs a column")

    def _bind(self, schema: pa.Schema) -> Columns:
        """The columns, which are made at the first batch; every batch is checked against them."""
        if self._bound is not None and self._checked is not None and self._checked.equals(schema):
            return self._bound
        kinds = [column_type(self.name, schema, name) for name in self.key]
        accumulators = accumulators_for(self.name, self.aggregates, schema)
        if self._bound is None:
            self._bound = Columns(self.key, KeyIndex(kinds), list(accumulators.values()))
        elif not self._bound.fits(kinds, accumulators.values()):
            raise DataError(
                f"state '{self.name}' was built from columns of other types: {self._bound.describe()}; "
                f"cast the columns of this batch to those: {schema}"
            )
        self._checked = schema
        return self._bound

    def _bind_restored(self, schema: pa.Schema) -> Columns:
        """The columns as the checkpoint has them, for a state that has not yet seen a batch."""
        if len(schema) != 3 or schema.names[2] != VALUE or not pa.types.is_struct(schema.types[2]):
            raise RestoreError(f"state '{self.name}' cannot be restored: it has no columns of aggregates in {schema}")
        key, value = schema.types[1], schema.types[2]
        accumulators = stored_accumulators(self.aggregates, value)
        if accumulators is None or tuple(field.name for field in key) != self.key:
            had, keyed = (", ".join(field.name for field in each) for each in (value, key))
            raise IncompatibleCheckpoint(
                f"state '{self.name}' cannot be restored: the checkpoint has {had} by {keyed}, and the pipeline wants "
                f"{kept_for(self.aggregates)} by {', '.join(self.key)}: aggregate as before, or give the operator "
                f"another name and set allow_dropped_state=True to go on without its state"
            )
        kinds = [field.type for field in key]
        if self._bound is None:
            self._bound = Columns(self.key, KeyIndex(kinds), list(accumulators.values()))
        elif not self._bound.fits(kinds, accumulators.values()):
            raise RestoreError(
                f"state '{self.name}' cannot be restored: its parts are of different types, "
                f"{self._bound.describe()} and {key}, {value}"
            )
        return self._bound

    def _result(self, columns: Columns, slots: Slots, keys: list[pa.Array]) -> pa.RecordBatch:
        outputs = [columns.output(aggregate, slots) for aggregate in self.aggregates]
        return pa.RecordBatch.from_arrays([*keys, *outputs], names=self._names)


class AggregateSnapshot:
    """The aggregates at one moment."""

    def __init__(self, state: AggregateState, version: int, columns: ColumnsSnapshot | None) -> None:
        self.version = version
        self._state = state
        self._columns = columns

    def encode(self, target_bytes: int) -> list[KeyedPiece]:
        return [] if self._columns is None else self._state.encode(self._columns, target_bytes)
