"""State with a time to live: values, elements and entries that are gone some time after they were last written.

Wraps the row states of the runtime: the time of expiry is one more field of what is stored. What has expired is
never returned, and it is removed: when its key is looked at again, or by a sweep over all keys.

A sweep goes from key to key, some hundred at a time, so that the mailbox is never held for long; one round follows the
other after half a time to live. So memory and checkpoints hold what is alive and what has expired not long ago. Nothing
is noted for each entry: there is nothing to restore, and a state of which nothing expires costs a look at each key
twice in its time to live.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.gather import null_unless
from penstock.operators.contract import OperatorContext
from penstock.state.rows.cursor import KeysLike
from penstock.state.rows.tuples import ColumnsLike

EXPIRY = "penstock.expires_at_ms"
Row: TypeAlias = tuple[Any, ...]


def with_expiry(schema: pa.Schema) -> pa.Schema:
    return schema.append(pa.field(EXPIRY, pa.int64()))


_SWEPT_AT_ONCE = 512
"""Entries that a sweep looks at before the mailbox gets control again."""
_ROUND_MS_MIN = 100
_FIRST_ROUND_MS_MAX = 60_000
"""The first round begins soon after the start, or none ever would where a pipeline restarts more often than that."""
_STEP_MS = 5
_BUSY_STEP_MS = 1
"""After a step in which most had expired."""


class _Sweep:
    """Removes the expired entries of one state, in rounds."""

    def __init__(self, state: Any, owner: _Expiring, ttl_ms: int, context: OperatorContext) -> None:
        self._state = state
        self._owner = owner
        self._context = context
        self._round_ms = max(ttl_ms // 2, _ROUND_MS_MIN)
        self._round: Iterator[bool] = iter(())
        self._began_ms = 0
        context.call_at(context.now_ms() + min(self._round_ms, _FIRST_ROUND_MS_MAX), self._begin)

    def _begin(self) -> None:
        self._began_ms = self._context.now_ms()
        self._round = self._entries()
        self._step()

    def _entries(self) -> Iterator[bool]:
        for key_group in self._state.key_groups_held():
            # By a copy of the keys: others come and go between two steps.
            for key in self._state.keys_in(key_group):
                yield from self._owner.expire(key_group, key)

    def _step(self) -> None:
        seen = list(itertools.islice(self._round, _SWEPT_AT_ONCE))
        now_ms = self._context.now_ms()
        if len(seen) < _SWEPT_AT_ONCE:
            self._context.call_at(max(self._began_ms + self._round_ms, now_ms + _STEP_MS), self._begin)
            return
        is_busy = 2 * sum(seen) > len(seen)
        self._context.call_at(now_ms + (_BUSY_STEP_MS if is_busy else _STEP_MS), self._step)


class _Expiring(ABC):
    def __init__(self, state: Any, ttl_ms: int, context: OperatorContext) -> None:
        self._state = state
        self._ttl_ms = ttl_ms
        self._now_ms = context.now_ms
        if not state.is_swept:
            # A function may ask for its state again and again: one sweep is enough for all.
            state.is_swept = True
            _Sweep(state, self, ttl_ms, context)

    @abstractmethod
    def expire(self, key_group: int, key: Row) -> Iterator[bool]:
        """Remove what has expired of a key; for each entry that was looked at, whether it had expired.

        The trap: between two of its results anything may happen to the state.
        """

    def clear(self) -> None:
        self._state.clear()

    def _stamped(self, row: Row) -> Row:
        return (*row, self._now_ms() + self._ttl_ms)

    def _lives(self, row: Row) -> bool:
        return bool(row[-1] > self._now_ms())


class ExpiringValueState(_Expiring):
    """As `ValueState`."""

    def exists(self) -> bool:
        return self.get() is not None

    def get(self) -> Row | None:
        row = self._state.get()
        if row is not None and not self._lives(row):
            self._state.clear()
            row = None
        return None if row is None else row[:-1]

    def update(self, new_value: Row) -> None:
        self._state.update(self._stamped(new_value))

    def get_batch(self, keys: KeysLike) -> pa.RecordBatch:
        rows = self._state.get_batch(keys)
        lives = pc.greater(rows.column(EXPIRY), self._now_ms())
        values = rows.drop_columns([EXPIRY])
        columns = [null_unless(lives, column) for column in values.columns]
        return pa.RecordBatch.from_arrays(columns, schema=values.schema)

    def update_batch(self, keys: KeysLike, values: ColumnsLike) -> None:
        columns = dict(values) if isinstance(values, Mapping) else dict(zip(values.schema.names, values, strict=True))
        self._state.update_batch(keys, {**columns, EXPIRY: [self._now_ms() + self._ttl_ms] * len(keys)})

    def clear_batch(self, keys: KeysLike) -> None:
        self._state.clear_batch(keys)

    def expire(self, key_group: int, key: Row) -> Iterator[bool]:
        with self._state.at(key_group, key):
            is_alive = self.exists()
        yield not is_alive


class ExpiringListState(_Expiring):
    """As `ListState`; each element has its own time."""

    def exists(self) -> bool:
        return self._first_lives() or bool(self._living())

    def get(self) -> Iterator[Row]:
        return iter([row[:-1] for row in self._living()])

    def put(self, new_state: Iterable[Row]) -> None:
        self._state.put([self._stamped(row) for row in new_state])

    def append_value(self, new_state: Row) -> None:
        self._state.append_value(self._stamped(new_state))

    def append_list(self, new_state: Iterable[Row]) -> None:
        self._state.append_list([self._stamped(row) for row in new_state])

    appendValue = append_value
    appendList = append_list

    def expire(self, key_group: int, key: Row) -> Iterator[bool]:
        with self._state.at(key_group, key):
            is_alive = self._first_lives()
            if not is_alive:
                self._living()
        yield not is_alive

    def _first_lives(self) -> bool:
        """Elements are added at the end, with later times: if the first one lives, so do all."""
        first = next(self._state.get(), None)
        return first is not None and self._lives(first)

    def _living(self) -> list[Row]:
        rows = list(self._state.get())
        if rows and self._lives(rows[0]):
            return rows
        living = [row for row in rows if self._lives(row)]
        if rows and not living:
            self._state.clear()
        elif len(living) < len(rows):
            self._state.put(living)
        return living


class ExpiringMapState(_Expiring):
    """As `MapState`; each entry has its own time."""

    def exists(self) -> bool:
        return any(map(self._lives, self._state.values())) or bool(self._living())

    def get_value(self, key: Row) -> Row | None:
        row = self._state.get_value(key)
        if row is not None and not self._lives(row):
            self._state.remove_key(key)
            row = None
        return None if row is None else row[:-1]

    def contains_key(self, key: Row) -> bool:
        return self.get_value(key) is not None

    def update_value(self, key: Row, value: Row) -> None:
        self._state.update_value(key, self._stamped(value))

    def iterator(self) -> Iterator[tuple[Row, Row]]:
        return iter([(key, row[:-1]) for key, row in self._living()])

    def keys(self) -> Iterator[Row]:
        return iter([key for key, _ in self._living()])

    def values(self) -> Iterator[Row]:
        return iter([row[:-1] for _, row in self._living()])

    def remove_key(self, key: Row) -> None:
        self._state.remove_key(key)

    getValue = get_value
    containsKey = contains_key
    updateValue = update_value
    removeKey = remove_key

    def expire(self, key_group: int, key: Row) -> Iterator[bool]:
        with self._state.at(key_group, key):
            user_keys = list(self._state.keys())
        for user_key in user_keys:
            with self._state.at(key_group, key):
                is_alive = self.contains_key(user_key)
            yield not is_alive

    def _living(self) -> list[tuple[Row, Row]]:
        living = []
        for key, row in self._state.iterator():
            if self._lives(row):
                living.append((key, row))
            else:
                self._state.remove_key(key)
        return living
