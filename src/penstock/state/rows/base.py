"""What value, list and map state have in common: keys by key group, snapshots, encoding and restoring.

`states.py` says how entries are kept so that nothing that a snapshot refers to is ever changed.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa

from penstock.columnar.fixed_width import fixed_width_values
from penstock.columnar.schemas.schema_diff import schema_text
from penstock.errors import DataError, PipelineError, RestoreError
from penstock.state.pieces import KEY, KEY_GROUP, KeyedPiece, cut, own_rows
from penstock.state.rows.cursor import KeyCursor, NoCursor
from penstock.state.rows.memory import estimated_bytes
from penstock.state.rows.tuples import Row, TupleType

Entry = TypeVar("Entry")
"""What a state keeps for a key."""

CONVERTED_ROWS = 1 << 12  # in one call, in which the interpreter is not free for anybody else


def _portions(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for first in range(0, max(1, batch.num_rows), CONVERTED_ROWS):
            yield batch.slice(first, CONVERTED_ROWS)


@dataclass(slots=True)
class Group(Generic[Entry]):
    """The entries of one key group, which may be changed in `epoch` only."""

    epoch: int
    entries: dict[Row, Entry]


@dataclass(frozen=True, slots=True)
class _Block:
    """Rows on their way to a batch."""

    key_groups: list[int]
    keys: list[Row]
    columns: list[list[Row]]
    """One per column of the layout."""

    def parts(self) -> Iterator[_Block]:
        """The rows, `CONVERTED_ROWS` at a time."""
        if len(self.keys) <= CONVERTED_ROWS:
            yield from [self] if self.keys else []
            return
        for first in range(0, len(self.keys), CONVERTED_ROWS):
            yield self.part(slice(first, first + CONVERTED_ROWS))

    def part(self, rows: slice) -> _Block:
        return _Block(self.key_groups[rows], self.keys[rows], [column[rows] for column in self.columns])


class RowState(ABC, Generic[Entry]):
    """What value, list and map state have in common."""

    def __init__(self, name: str, cursor: KeyCursor) -> None:
        self.name = name
        self.version = 0
        self._cursor = cursor
        self._groups: dict[int, Group[Entry]] = {}
        self._epoch = 0
        self.is_swept = False
        """Whether somebody removes what has expired; see `penstock.operators.keyed.ttl`."""

    @property
    def state_bytes(self) -> int:
        """Estimated from a few entries."""
        return estimated_bytes([group.entries for group in self._groups.values()])

    def exists(self) -> bool:
        """Whether the current key has anything in this state."""
        cursor = self._cursor
        group = self._groups.get(cursor.key_group)
        return group is not None and cursor.key in group.entries

    def disown(self) -> None:
        """The state was deleted. Every use of it is a `DataError` from now on."""
        self._groups = {}
        self._cursor = NoCursor(self.name)  # type: ignore[assignment]

    def clear(self) -> None:
        """Remove what the current key has."""
        if self._read() is None:
            return
        entries = self._writable_entries()
        del entries[self._cursor.key]
        if not entries:
            del self._groups[self._cursor.key_group]

    def hold(self) -> Entry | None:
        """What the current key has, to `put_back` before the key changes: nothing changes it in between."""
        return self._read()

    def put_back(self, held: Entry | None) -> None:
        """Undo all changes of the current key since `hold`."""
        if held is None:
            self.clear()
        elif self._read() is not held:
            self._writable_entries()[self._cursor.key] = held

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

    def snapshot(self) -> RowSnapshot[Entry]:
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

    def encode(self, groups: dict[int, Group[Entry]], target_bytes: int) -> list[KeyedPiece]:
        """Pieces of a snapshot. Runs in the background."""
        batches = [batch for block in self._blocks(groups) for batch in self._batches(block)]
        return cut(self.name, pa.Table.from_batches(batches), target_bytes) if batches else []

    def _blocks(self, groups: dict[int, Group[Entry]]) -> Iterator[_Block]:
        """The rows in the order of their key groups, some thousands at a time."""
        block = self._empty_block()
        for number in sorted(groups):
            keys, entries = iter(groups[number].entries), iter(groups[number].entries.values())
            while some := list(itertools.islice(keys, self._entries_at_once)):
                held = list(itertools.islice(entries, self._entries_at_once))
                block.keys.extend(self._rows_of(some, held, block.columns))
                block.key_groups.extend([number] * (len(block.keys) - len(block.key_groups)))
                if len(block.keys) >= CONVERTED_ROWS:
                    yield from block.parts()
                    block = self._empty_block()
        yield from block.parts()

    def _empty_block(self) -> _Block:
        return _Block([], [], [[] for _ in self._layout()])

    _entries_at_once = 1 << 8
    """Entries that `_rows_of` gets in one call. Each may have many rows."""

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
    def _rows_of(self, keys: Sequence[Row], entries: Sequence[Entry], columns: list[list[Row]]) -> Sequence[Row]:
        """Add the rows of some keys to the columns of the layout, and return the key of each row."""

    @abstractmethod
    def _restore_row(self, entries: dict[Row, Entry], key: Row, row: Row) -> None:
        """Add one row. `row` has one tuple for each column of the layout."""

    def _read(self) -> Entry | None:
        group = self._groups.get(self._cursor.key_group)
        return None if group is None else group.entries.get(self._cursor.key)

    def _writable_entries(self) -> dict[Row, Entry]:
        """The dictionary of the current key group, for one change; it is our own after this."""
        self.version += 1
        number = self._cursor.key_group
        group = self._groups.get(number)
        if group is None or group.epoch != self._epoch:
            group = self._writable_group(number)
        return group.entries

    def _writable_group(self, number: int) -> Group[Entry]:
        if number < 0:
            raise DataError(
                f"state '{self.name}' has a value for each key, and was changed where there is no key, such as in "
                f"init() or open(): change it where records of a key or a timer are handled, or use initial_state"
            )
        group = self._groups.get(number)
        if group is None:
            group = self._groups[number] = Group(self._epoch, {})
        elif group.epoch != self._epoch:
            group = self._groups[number] = Group(self._epoch, dict(group.entries))
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


class RowSnapshot(Generic[Entry]):
    """A row state at one moment."""

    def __init__(self, state: RowState[Entry], version: int, groups: dict[int, Group[Entry]]) -> None:
        self.version = version
        self._state = state
        self._groups = groups

    def encode(self, target_bytes: int) -> list[KeyedPiece]:
        return self._state.encode(self._groups, target_bytes)
