"""The kinds of state that hold rows: values, lists and maps by single keys, and whole rows as batches."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.columnar.plain import plain_type
from penstock.state.contract import StateOwner
from penstock.state.rows.rows import RowsState
from penstock.state.rows.states import ListState, MapState, ValueState


def _plain(schema: pa.Schema) -> pa.Schema:
    """States are compared by the types in which they keep values: a dictionary of texts is kept as texts."""
    return pa.schema([field.with_type(plain_type(field.type)) for field in schema])


@dataclass(frozen=True, slots=True)
class ValueDescriptor:
    """One tuple for each key."""

    name: str
    schema: pa.Schema

    def __post_init__(self) -> None:
        object.__setattr__(self, "schema", _plain(self.schema))

    def create(self, owner: StateOwner) -> ValueState:
        return ValueState(self.name, owner.cursor, self.schema)


@dataclass(frozen=True, slots=True)
class ListDescriptor:
    """A list of tuples for each key."""

    name: str
    schema: pa.Schema

    def __post_init__(self) -> None:
        object.__setattr__(self, "schema", _plain(self.schema))

    def create(self, owner: StateOwner) -> ListState:
        return ListState(self.name, owner.cursor, self.schema)


@dataclass(frozen=True, slots=True)
class MapDescriptor:
    """A map from tuples to tuples for each key."""

    name: str
    user_key_schema: pa.Schema
    value_schema: pa.Schema

    def __post_init__(self) -> None:
        object.__setattr__(self, "user_key_schema", _plain(self.user_key_schema))
        object.__setattr__(self, "value_schema", _plain(self.value_schema))

    def create(self, owner: StateOwner) -> MapState:
        return MapState(self.name, owner.cursor, self.user_key_schema, self.value_schema)


@dataclass(frozen=True, slots=True)
class RowsDescriptor:
    """Whole rows, as batches, by the columns `key` that the input is partitioned by."""

    name: str
    key: tuple[str, ...]

    def create(self, owner: StateOwner) -> RowsState:
        return RowsState(self.name, self.key, owner.key_groups, owner.max_parallelism)
