"""Value, list and map state for functions that see one key at a time.

The interface is that of PySpark's `StatefulProcessor` handles, under its own names and under snake case; values
are tuples of a schema. The operator sets the current key; a state belongs to all keys of its subtask.

Kept in one dictionary per key group. A snapshot takes references to the dictionaries and begins a new epoch; the
first write to a key group in an epoch copies that group's dictionary, and the first write to a map copies that one.
A list is never copied: a snapshot knows how many of its elements it has. So nothing that a snapshot refers to is ever
changed, and the background may read it at its leisure.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import DataError, RestoreError
from penstock.state.pieces import USER_KEY, VALUE
from penstock.state.rows.base import CONVERTED_ROWS, RowState
from penstock.state.rows.cursor import KeyCursor, KeysLike
from penstock.state.rows.tuples import ColumnsLike, Row, TupleType

_HELD = -1
"""The epoch of a map that may not be changed in its place."""


@dataclass(slots=True)
class _Elements:
    """The list of one key, which may be changed in `epoch` only: its first `count` items.

    A list only grows at its end. So the elements of a later epoch may lie in the same list, behind those of this one.
    """

    epoch: int
    items: list[Row]
    count: int


@dataclass(slots=True)
class _Entries:
    """The map of one key, which may be changed in `epoch` only."""

    epoch: int
    items: dict[Row, Row]


class ValueState(RowState[Row]):
    """One tuple per key."""

    def __init__(self, name: str, cursor: KeyCursor, schema: pa.Schema) -> None:
        super().__init__(name, cursor)
        self._type = TupleType(f"value state '{name}'", schema)
        self._freeze, self._is_plain = self._type.freeze, self._type.is_plain

    def get(self) -> Row | None:
        """The current key's value, or None."""
        # `_read` and `_writable_entries` are written out here: a call more is a fourth of the time.
        cursor = self._cursor
        group = self._groups.get(cursor.key_group)
        row = None if group is None else group.entries.get(cursor.key)
        return row if row is None or self._is_plain else self._type.thaw(row)

    def update(self, new_value: Row) -> None:
        """Replace the current key's value."""
        row = self._freeze(new_value)
        cursor = self._cursor
        group = self._groups.get(cursor.key_group)
        if group is None or group.epoch != self._epoch:
            group = self._writable_group(cursor.key_group)
        self.version += 1
        group.entries[cursor.key] = row

    # --- many keys at once ---

    def get_batch(self, keys: KeysLike) -> pa.RecordBatch:
        """The values of many keys as columns, one row for each row of `keys`; null where a key has no value.

        `keys` has the columns of the key: a batch, or an array if the key is one column. A key may come several times.
        """
        numbers, stored = self._cursor.located(keys)
        groups = {number: group.entries for number, group in self._groups.items()}
        nothing: dict[Row, Row] = {}
        missing = (None,) * len(self._type.schema)
        rows = [groups.get(number, nothing).get(key, missing) for number, key in zip(numbers, stored, strict=True)]
        schema = pa.schema([field.with_nullable(True) for field in self._type.schema])
        return pa.RecordBatch.from_arrays(self._type.array(rows).flatten(), schema=schema)

    def update_batch(self, keys: KeysLike, values: ColumnsLike) -> None:
        """Replace the values of many keys: row by row those of `keys`, of which the last one of a key counts.

        `values` are the columns of the state: a batch, or a mapping from names to arrays.
        """
        numbers, stored = self._cursor.located(keys)
        rows = self._type.rows_of_columns(values, len(stored))
        for number in sorted(set(numbers)):
            self._writable_group(number)
        groups = {number: group.entries for number, group in self._groups.items()}
        for number, key, row in zip(numbers, stored, rows, strict=True):
            groups[number][key] = row
        self.version += bool(rows)

    def clear_batch(self, keys: KeysLike) -> None:
        """Remove the values of many keys."""
        for number, key in zip(*self._cursor.located(keys), strict=True):
            group = self._groups.get(number)
            if group is not None and key in group.entries:
                self.version += 1
                entries = self._writable_group(number).entries
                del entries[key]
                if not entries:
                    del self._groups[number]

    def describe(self) -> tuple[str, tuple[pa.Schema, ...]]:
        return "value", (self._type.schema,)

    def _layout(self) -> list[tuple[str, TupleType]]:
        return [(VALUE, self._type)]

    _entries_at_once = CONVERTED_ROWS

    def _rows_of(self, keys: Sequence[Row], entries: Sequence[Row], columns: list[list[Row]]) -> Sequence[Row]:
        columns[0].extend(entries)
        return keys

    def _restore_row(self, entries: dict[Row, Row], key: Row, row: Row) -> None:
        if key in entries:
            raise RestoreError(f"state '{self.name}' cannot be restored: the checkpoint has the key {key!r} twice")
        entries[key] = row[0]


class ListState(RowState[_Elements]):
    """A list of tuples per key. A list without elements does not exist."""

    def __init__(self, name: str, cursor: KeyCursor, schema: pa.Schema) -> None:
        super().__init__(name, cursor)
        self._type = TupleType(f"list state '{name}'", schema)

    def get(self) -> Iterator[Row]:
        """The current key's elements, as they are now: what is appended meanwhile is not among them."""
        cell = self._read()
        # Without a copy: what is appended meanwhile lies behind the elements that are counted now.
        return iter(()) if cell is None else self._type.thawed(itertools.islice(cell.items, cell.count))

    def put(self, new_state: Iterable[Row]) -> None:
        """Replace the current key's list by this one, which has elements."""
        items = self._frozen(new_state)
        self._writable_entries()[self._cursor.key] = _Elements(self._epoch, items, len(items))

    def append_value(self, new_state: Row) -> None:
        """Add one element."""
        row = self._type.freeze(new_state)
        cell = self._writable_cell(self._writable_entries(), self._cursor.key)
        cell.items.append(row)
        cell.count += 1

    def append_list(self, new_state: Iterable[Row]) -> None:
        """Add several elements, one at least."""
        items = self._frozen(new_state)
        cell = self._writable_cell(self._writable_entries(), self._cursor.key)
        cell.items.extend(items)
        cell.count += len(items)

    appendValue = append_value
    appendList = append_list

    def hold(self) -> _Elements | None:
        cell = self._read()
        return None if cell is None else _Elements(cell.epoch, cell.items, cell.count)

    def put_back(self, held: _Elements | None) -> None:
        if held is not None and len(held.items) > held.count:
            # Behind these elements lie those that were appended since, and a list only grows at its end.
            held = _Elements(self._epoch, held.items[: held.count], held.count)
        super().put_back(held)

    def describe(self) -> tuple[str, tuple[pa.Schema, ...]]:
        return "list", (self._type.schema,)

    def _frozen(self, rows: Iterable[Row]) -> list[Row]:
        if not isinstance(rows, Iterable):
            raise DataError(f"{self._type.what} takes a list of tuples, not {rows!r}")
        items = [self._type.freeze(row) for row in rows]
        if not items:
            # As in Spark; a list that becomes empty by accident would vanish without a word.
            raise DataError(f"{self._type.what} takes a list with elements; use clear() to remove it")
        return items

    def _writable_cell(self, entries: dict[Row, _Elements], key: Row) -> _Elements:
        cell = entries.get(key)
        if cell is None:
            cell = entries[key] = _Elements(self._epoch, [], 0)
        elif cell.epoch != self._epoch:
            # A snapshot has the former cell and its count, and that one is never appended to again.
            cell = entries[key] = _Elements(self._epoch, cell.items, cell.count)
        return cell

    def _layout(self) -> list[tuple[str, TupleType]]:
        return [(VALUE, self._type)]

    def _rows_of(self, keys: Sequence[Row], entries: Sequence[_Elements], columns: list[list[Row]]) -> Sequence[Row]:
        for entry in entries:
            columns[0].extend(entry.items[: entry.count])
        return [key for key, entry in zip(keys, entries, strict=True) for _ in range(entry.count)]

    def _restore_row(self, entries: dict[Row, _Elements], key: Row, row: Row) -> None:
        cell = self._writable_cell(entries, key)
        cell.items.append(row[0])
        cell.count += 1


class MapState(RowState[_Entries]):
    """A map from tuples to tuples per key. A map without entries does not exist."""

    def __init__(self, name: str, cursor: KeyCursor, user_key_schema: pa.Schema, value_schema: pa.Schema) -> None:
        super().__init__(name, cursor)
        self._key_type = TupleType(f"map state '{name}' as key", user_key_schema)
        self._type = TupleType(f"map state '{name}' as value", value_schema)

    def get_value(self, key: Row) -> Row | None:
        """The value of a user key, or None."""
        cell = self._read()
        user_key = self._key_type.freeze(key)
        row = None if cell is None else cell.items.get(user_key)
        return row if row is None or self._type.is_plain else self._type.thaw(row)

    def contains_key(self, key: Row) -> bool:
        return self._key_type.freeze(key) in self._items()

    def update_value(self, key: Row, value: Row) -> None:
        """Set the value of a user key."""
        user_key, row = self._key_type.freeze(key), self._type.freeze(value)
        self._writable_items(self._writable_entries(), self._cursor.key)[user_key] = row

    def iterator(self) -> Iterator[tuple[Row, Row]]:
        """The entries, as they are now: the map may be changed meanwhile."""
        items = self._items()
        return iter(list(zip(self._key_type.thawed(items), self._type.thawed(items.values()), strict=True)))

    def keys(self) -> Iterator[Row]:
        """The user keys, as they are now."""
        return iter(list(self._key_type.thawed(self._items())))

    def values(self) -> Iterator[Row]:
        """The values, as they are now."""
        return iter(list(self._type.thawed(self._items().values())))

    def remove_key(self, key: Row) -> None:
        """Remove a user key, if it is there."""
        user_key = self._key_type.freeze(key)
        if user_key not in self._items():
            return
        items = self._writable_items(self._writable_entries(), self._cursor.key)
        del items[user_key]
        if not items:
            self.clear()

    getValue = get_value
    containsKey = contains_key
    updateValue = update_value
    removeKey = remove_key

    def hold(self) -> _Entries | None:
        cell = self._read()
        if cell is not None:
            # The first change makes a copy of a map of no epoch.
            cell.epoch = _HELD
        return cell

    def describe(self) -> tuple[str, tuple[pa.Schema, ...]]:
        return "map", (self._key_type.schema, self._type.schema)

    def _items(self) -> dict[Row, Row]:
        cell = self._read()
        return {} if cell is None else cell.items

    def _writable_items(self, entries: dict[Row, _Entries], key: Row) -> dict[Row, Row]:
        cell = entries.get(key)
        if cell is None or cell.epoch != self._epoch:
            cell = entries[key] = _Entries(self._epoch, {} if cell is None else dict(cell.items))
        return cell.items

    def _layout(self) -> list[tuple[str, TupleType]]:
        return [(USER_KEY, self._key_type), (VALUE, self._type)]

    def _rows_of(self, keys: Sequence[Row], entries: Sequence[_Entries], columns: list[list[Row]]) -> Sequence[Row]:
        columns[0].extend([user_key for entry in entries for user_key in entry.items])
        columns[1].extend([value for entry in entries for value in entry.items.values()])
        return [key for key, entry in zip(keys, entries, strict=True) for _ in entry.items]

    def _restore_row(self, entries: dict[Row, _Entries], key: Row, row: Row) -> None:
        cell = entries.get(key)
        if cell is None:
            cell = entries[key] = _Entries(self._epoch, {})
        if row[0] in cell.items:
            raise RestoreError(
                f"state '{self.name}' cannot be restored: the checkpoint has {row[0]!r} of {key!r} twice"
            )
        cell.items[row[0]] = row[1]
