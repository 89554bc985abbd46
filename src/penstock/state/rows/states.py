"""Value, list and map state for functions that see one key at a time.

The interface is that of PySpark's `StatefulProcessor` handles, under its own names and under snake case; values
are tuples of a schema. The operator sets the current key; a state belongs to all keys of its subtask.

Kept in one dictionary per key group. A snapshot takes references to the dictionaries and begins a new epoch; the
first write to a key group in an epoch copies that group's dictionary, and the first write to a map copies that one.
A list is never copied: a snapshot knows how many of its elements it has. So nothing that a snapshot refers to is ever
changed, and the background may read it at its leisure.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.columnar.fixed_width import fixed_width_values
from penstock.columnar.schema_diff import schema_text
from penstock.errors import DataError, PipelineError, ProtocolViolation, RestoreError
from penstock.state.pieces import KEY, KEY_GROUP, USER_KEY, VALUE, KeyedPiece, cut, own_rows
from penstock.state.rows.tuples import Row, TupleType

_CONVERTED_ROWS = 1 << 12  # in one call, in which the interpreter is not free for anybody else


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


class _NoCursor:
    """Stands for the cursor of a state that was deleted, so that a check costs nothing as long as it is not."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        raise DataError(f"state '{self._name}' was deleted: it cannot be read or written any more")


def _portions(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for first in range(0, max(1, batch.num_rows), _CONVERTED_ROWS):
            yield batch.slice(first, _CONVERTED_ROWS)


@dataclass(slots=True)
class _Group:
    """The entries of one key group, which may be changed in `epoch` only."""

    epoch: int
    entries: dict[Row, Any]


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


@dataclass(frozen=True, slots=True)
class _Block:
    """Rows on their way to a batch."""

    key_groups: list[int]
    keys: list[Row]
    columns: list[list[Row]]
    """One per column of the layout."""

    def part(self, rows: slice) -> _Block:
        return _Block(self.key_groups[rows], self.keys[rows], [column[rows] for column in self.columns])


class RowState(ABC):
    """What value, list and map state have in common."""

    def __init__(self, name: str, cursor: KeyCursor) -> None:
        self.name = name
        self.version = 0
        self._cursor = cursor
        self._groups: dict[int, _Group] = {}
        self._epoch = 0
        self.is_swept = False
        """Whether somebody removes what has expired; see `penstock.operators.ttl`."""

    def exists(self) -> bool:
        """Whether the current key has anything in this state."""
        return self._read() is not None

    def disown(self) -> None:
        """The state was deleted. Every use of it is a `DataError` from now on."""
        self._groups = {}
        self._cursor = _NoCursor(self.name)  # type: ignore[assignment]

    def clear(self) -> None:
        """Remove what the current key has."""
        if self._read() is None:
            return
        entries = self._writable_entries()
        del entries[self._cursor.key]
        if not entries:
            del self._groups[self._cursor.key_group]

    def keys_held(self) -> Iterator[tuple[int, Row]]:
        """Every key that has anything in this state, with its key group: to take up again what a restore brought.

        The state must not change meanwhile.
        """
        key_type = self._cursor.key_type
        if key_type is not None:
            for number, group in sorted(self._groups.items()):
                for key in group.entries:
                    yield number, key_type.thaw(key)

    def key_groups_held(self) -> list[int]:
        return sorted(self._groups)

    def keys_in(self, key_group: int) -> list[Row]:
        """The keys of a key group, as `at` takes them."""
        group = self._groups.get(key_group)
        return [] if group is None else list(group.entries)

    @contextlib.contextmanager
    def at(self, key_group: int, key: Row) -> Iterator[None]:
        """Move all row states to a key that `keys_in` has given, and back."""
        cursor = self._cursor
        before = cursor.key_group, cursor.key
        cursor.key_group, cursor.key = key_group, key
        try:
            yield
        finally:
            cursor.key_group, cursor.key = before

    def snapshot(self) -> RowSnapshot:
        """References to the key groups, whose number is all that the time depends on."""
        self._epoch += 1
        return RowSnapshot(self, self.version, dict(self._groups))

    def restore(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Add the rows of `batches` that belong to this subtask, and return how many that were. In the background."""
        restored = 0
        for batch in _portions(batches):
            owned, max_parallelism = self._cursor.owned, self._cursor.max_parallelism
            mine = own_rows(self.name, batch, owned, max_parallelism, lambda key: [field.name for field in key])
            self._check_layout(batch.schema)
            if mine.num_rows:
                self._restore_rows(mine)
                restored += mine.num_rows
        self.version += bool(restored)
        return restored

    def encode(self, groups: dict[int, _Group], target_bytes: int) -> list[KeyedPiece]:
        """Pieces of a snapshot. Runs in the background."""
        batches = [batch for block in self._blocks(groups) for batch in self._batches(block)]
        return cut(self.name, pa.Table.from_batches(batches), target_bytes) if batches else []

    def _blocks(self, groups: dict[int, _Group]) -> Iterator[_Block]:
        """The rows in the order of their key groups, some thousands at a time."""
        block = _Block([], [], [[] for _ in self._layout()])
        for number in sorted(groups):
            for key, entry in groups[number].entries.items():
                rows = self._rows_of(entry, block.columns)
                block.keys.extend([key] * rows)
                block.key_groups.extend([number] * rows)
                if len(block.keys) >= _CONVERTED_ROWS:
                    yield block
                    block = _Block([], [], [[] for _ in self._layout()])
        if block.keys:
            yield block

    def _batches(self, block: _Block) -> list[pa.RecordBatch]:
        """The block as one batch, or as several if its strings do not fit into one."""
        try:
            return [self._batch(block)]
        except (pa.ArrowInvalid, TypeError):
            # Of more than 2 GiB Arrow makes a chunked array, which no struct takes. How large rows are nobody knows
            # before, and to find out takes as long as to convert them.
            if len(block.keys) == 1:
                raise
        half = len(block.keys) // 2
        return [batch for part in (slice(half), slice(half, None)) for batch in self._batches(block.part(part))]

    def _batch(self, block: _Block) -> pa.RecordBatch:
        key_type, layout = self._cursor.key_type, self._layout()
        assert key_type is not None
        arrays = [pa.array(block.key_groups, pa.int32()), key_type.array(block.keys)]
        arrays += [kind.array(column) for (_, kind), column in zip(layout, block.columns, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, names=[KEY_GROUP, KEY, *(name for name, _ in layout)])

    @functools.cached_property
    def declared(self) -> str:
        kind, schemas = self.describe()
        return f"{kind} {' to '.join(map(schema_text, schemas))}"

    @abstractmethod
    def describe(self) -> tuple[str, tuple[pa.Schema, ...]]:
        """Kind and schemas; two states of one name must agree in them."""

    @abstractmethod
    def _layout(self) -> list[tuple[str, TupleType]]:
        """The columns of a checkpoint after key group and key."""

    @abstractmethod
    def _rows_of(self, entry: Any, columns: list[list[Any]]) -> int:
        """Add the rows of one key to the columns of the layout, and return how many they are."""

    @abstractmethod
    def _restore_row(self, entries: dict[Row, Any], key: Row, row: Row) -> None:
        """Add one row. `row` has one tuple for each column of the layout."""

    def _read(self) -> Any:
        group = self._groups.get(self._cursor.key_group)
        return None if group is None else group.entries.get(self._cursor.key)

    def _writable_entries(self) -> dict[Row, Any]:
        """The dictionary of the current key group, for one change; it is our own after this."""
        self.version += 1
        number = self._cursor.key_group
        group = self._groups.get(number)
        if group is None or group.epoch != self._epoch:
            group = self._writable_group(number)
        return group.entries

    def _writable_group(self, number: int) -> _Group:
        if number < 0:
            raise DataError(
                f"state '{self.name}' has a value for each key, and was changed where there is no key, such as in "
                f"init() or open(): change it where records of a key or a timer are handled, or use initial_state"
            )
        group = self._groups.get(number)
        if group is None:
            group = self._groups[number] = _Group(self._epoch, {})
        elif group.epoch != self._epoch:
            group = self._groups[number] = _Group(self._epoch, dict(group.entries))
        return group

    def _check_layout(self, schema: pa.Schema) -> None:
        expected = [(name, pa.struct(list(kind.schema))) for name, kind in self._layout()]
        if list(zip(schema.names[2:], schema.types[2:], strict=True)) != expected:
            raise RestoreError(
                f"state '{self.name}' cannot be restored: the checkpoint has {schema}, the pipeline wants {expected}"
            )
        try:
            self._cursor.declare(pa.schema(list(schema.types[1])))
        except PipelineError as error:
            raise RestoreError(f"state '{self.name}' cannot be restored: {error}") from error

    def _restore_rows(self, batch: pa.RecordBatch) -> None:
        key_type = self._cursor.key_type
        assert key_type is not None
        numbers = fixed_width_values(batch.column(0), np.int32).tolist()
        keys = key_type.rows(batch.column(1))
        columns = [kind.rows(batch.column(2 + place)) for place, (_, kind) in enumerate(self._layout())]
        for number, key, *row in zip(numbers, keys, *columns, strict=True):
            self._restore_row(self._writable_group(number).entries, key, tuple(row))


class RowSnapshot:
    """A row state at one moment."""

    def __init__(self, state: RowState, version: int, groups: dict[int, _Group]) -> None:
        self.version = version
        self._state = state
        self._groups = groups

    def encode(self, target_bytes: int) -> list[KeyedPiece]:
        return self._state.encode(self._groups, target_bytes)


class ValueState(RowState):
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

    def describe(self) -> tuple[str, tuple[pa.Schema, ...]]:
        return "value", (self._type.schema,)

    def _layout(self) -> list[tuple[str, TupleType]]:
        return [(VALUE, self._type)]

    def _rows_of(self, entry: Any, columns: list[list[Any]]) -> int:
        columns[0].append(entry)
        return 1

    def _restore_row(self, entries: dict[Row, Any], key: Row, row: Row) -> None:
        if key in entries:
            raise RestoreError(f"state '{self.name}' cannot be restored: the checkpoint has the key {key!r} twice")
        entries[key] = row[0]


class ListState(RowState):
    """A list of tuples per key. A list without elements does not exist."""

    def __init__(self, name: str, cursor: KeyCursor, schema: pa.Schema) -> None:
        super().__init__(name, cursor)
        self._type = TupleType(f"list state '{name}'", schema)

    def get(self) -> Iterator[Row]:
        """The current key's elements, as they are now: what is appended meanwhile is not among them."""
        cell: _Elements | None = self._read()
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

    def _writable_cell(self, entries: dict[Row, Any], key: Row) -> _Elements:
        cell: _Elements | None = entries.get(key)
        if cell is None:
            cell = entries[key] = _Elements(self._epoch, [], 0)
        elif cell.epoch != self._epoch:
            # A snapshot has the former cell and its count, and that one is never appended to again.
            cell = entries[key] = _Elements(self._epoch, cell.items, cell.count)
        return cell

    def _layout(self) -> list[tuple[str, TupleType]]:
        return [(VALUE, self._type)]

    def _rows_of(self, entry: Any, columns: list[list[Any]]) -> int:
        columns[0].extend(entry.items[: entry.count])
        return int(entry.count)

    def _restore_row(self, entries: dict[Row, Any], key: Row, row: Row) -> None:
        cell = self._writable_cell(entries, key)
        cell.items.append(row[0])
        cell.count += 1


class MapState(RowState):
    """A map from tuples to tuples per key. A map without entries does not exist."""

    def __init__(self, name: str, cursor: KeyCursor, user_key_schema: pa.Schema, value_schema: pa.Schema) -> None:
        super().__init__(name, cursor)
        self._key_type = TupleType(f"map state '{name}' as key", user_key_schema)
        self._type = TupleType(f"map state '{name}' as value", value_schema)

    def get_value(self, key: Row) -> Row | None:
        """The value of a user key, or None."""
        cell: _Entries | None = self._read()
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

    def describe(self) -> tuple[str, tuple[pa.Schema, ...]]:
        return "map", (self._key_type.schema, self._type.schema)

    def _items(self) -> dict[Row, Row]:
        cell: _Entries | None = self._read()
        return {} if cell is None else cell.items

    def _writable_items(self, entries: dict[Row, Any], key: Row) -> dict[Row, Row]:
        cell: _Entries | None = entries.get(key)
        if cell is None or cell.epoch != self._epoch:
            cell = entries[key] = _Entries(self._epoch, {} if cell is None else dict(cell.items))
        return cell.items

    def _layout(self) -> list[tuple[str, TupleType]]:
        return [(USER_KEY, self._key_type), (VALUE, self._type)]

    def _rows_of(self, entry: Any, columns: list[list[Any]]) -> int:
        columns[0].extend(entry.items.keys())
        columns[1].extend(entry.items.values())
        return len(entry.items)

    def _restore_row(self, entries: dict[Row, Any], key: Row, row: Row) -> None:
        cell = entries.get(key)
        if cell is None:
            cell = entries[key] = _Entries(self._epoch, {})
        if row[0] in cell.items:
            raise RestoreError(
                f"state '{self.name}' cannot be restored: the checkpoint has {row[0]!r} of {key!r} twice"
            )
        cell.items[row[0]] = row[1]
