"""The key that the row states of a subtask are at, and many keys at once."""

from __future__ import annotations

from typing import Any, TypeAlias

import pyarrow as pa

from penstock.columnar.hashing import key_groups
from penstock.columnar.plain import plain, plain_type
from penstock.errors import DataError, PipelineError, ProtocolViolation
from penstock.state.pieces import struct_of
from penstock.state.rows.tuples import Row, TupleType, fields_text

KeysLike: TypeAlias = pa.RecordBatch | pa.Table | pa.Array | pa.ChunkedArray
"""The columns of the key, one row for each key."""


class KeyCursor:
    """The key that all row states of a subtask are at."""

    __slots__ = ("key", "key_group", "key_type", "max_parallelism", "owned")

    def __init__(self, owned: range, max_parallelism: int) -> None:
        self.owned = owned
        self.max_parallelism = max_parallelism
        self.key_type: TupleType | None = None
        self.key_group = -1
        self.key: Row = ()

    def declare(self, schema: pa.Schema) -> None:
        """Settle the columns of the key; once."""
        for field in schema:
            if field.type == pa.time64("ns"):
                # Two keys that are one in Python would share their state, and not their key group.
                raise PipelineError(f"the key column '{field.name}' is {field.type}, which Python cuts to microseconds")
        declared = TupleType("the key", schema)
        if self.key_type is None:
            self.key_type = declared
        elif not self.key_type.schema.equals(declared.schema):
            raise PipelineError(f"the key has the columns {self.key_type.schema}, and cannot have {schema} as well")

    def move(self, key_group: int, key: Any) -> None:
        if self.key_type is None:
            raise ProtocolViolation("the key was set before its columns were declared")
        if key_group not in self.owned:
            raise ProtocolViolation(f"key group {key_group} is not among {self.owned.start} … {self.owned.stop - 1}")
        self.key_group, self.key = key_group, self.key_type.freeze(key)

    def owned_only(self, key_groups: list[int]) -> list[int]:
        """The key groups, if all are ours (I9): who moves to many keys asks once, and sets `key_group` and `key`."""
        if key_groups and not (self.owned.start <= min(key_groups) and max(key_groups) < self.owned.stop):
            raise ProtocolViolation(
                f"key groups {min(key_groups)} … {max(key_groups)} are not all among "
                f"{self.owned.start} … {self.owned.stop - 1}"
            )
        return key_groups

    def stored(self, tuples: list[Row], types: list[pa.DataType]) -> list[Row]:
        """The stored tuples of many keys, which are the values of columns of these types."""
        assert self.key_type is not None
        # An extension or an encoding may give other values than the type by which the state knows the column.
        is_as_seen = self.key_type.is_stored_as_seen and types == self.key_type.schema.types
        return tuples if is_as_seen else list(map(self.key_type.freeze, tuples))

    def leave(self) -> None:
        """Stand at no key: a state that is changed now is an error."""
        self.key_group, self.key = -1, ()

    def located(self, keys: KeysLike) -> tuple[list[int], list[Row]]:
        """The key groups and the stored tuples of many keys. Raises `DataError` if they are not keys of ours (I9)."""
        if self.key_type is None:
            raise DataError("the state of many keys is asked for where no record has come: do that in process_batch()")
        schema = self.key_type.schema
        columns = [keys] if isinstance(keys, pa.Array | pa.ChunkedArray) else list(keys.columns)
        if [_plain_type_of(column) for column in columns] != schema.types:
            raise DataError(f"keys are a batch with the columns {fields_text(schema)}, not {_shown(keys)}")
        arrays = [_plain_as(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
        numbers = key_groups(pa.RecordBatch.from_arrays(arrays, names=schema.names), schema.names, self.max_parallelism)
        if len(numbers) and not (self.owned.start <= numbers.min() and numbers.max() < self.owned.stop):
            raise DataError(
                "a key is asked for that belongs to another subtask: take keys from the columns of the current batch"
            )
        return numbers.tolist(), self.key_type.rows(struct_of(arrays, schema.names))


def _plain_type_of(column: pa.Array | pa.ChunkedArray) -> pa.DataType:
    return plain_type(column.type)


def _plain_as(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """The values without their encoding, inside of structs too: they are stored, and written by their type."""
    array = plain(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)
    return array if array.type == kind else array.cast(kind)


def _shown(keys: KeysLike) -> str:
    return str(keys.type) if isinstance(keys, pa.Array | pa.ChunkedArray) else fields_text(keys.schema)


class NoCursor:
    """Stands for the cursor of a state that was deleted, so that a check costs nothing as long as it is not."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        raise DataError(f"state '{self._name}' was deleted: it cannot be read or written any more")
