"""State with a time to live: values, elements and entries that are gone some time after they were last written.

Wraps the row states of the runtime: the time of expiry is one more field of what is stored. What has expired is
never returned; it is removed when its key is looked at again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import pyarrow as pa

from penstock.errors import PipelineError

EXPIRY = "penstock.expires_at_ms"
Row: TypeAlias = tuple[Any, ...]


def with_expiry(schema: pa.Schema) -> pa.Schema:
    return schema.append(pa.field(EXPIRY, pa.int64()))


class _Expiring:
    def __init__(self, state: Any, ttl_ms: int, now_ms: Callable[[], int]) -> None:
        if ttl_ms <= 0:
            raise PipelineError(f"the time to live of state '{state.name}' is {ttl_ms} ms: it must be at least 1")
        self._state = state
        self._ttl_ms = ttl_ms
        self._now_ms = now_ms

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


class ExpiringListState(_Expiring):
    """As `ListState`; each element has its own time."""

    def exists(self) -> bool:
        return bool(self._living())

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

    def _living(self) -> list[Row]:
        rows = list(self._state.get())
        living = [row for row in rows if self._lives(row)]
        if rows and not living:
            self._state.clear()
        elif len(living) < len(rows):
            self._state.put(living)
        return living


class ExpiringMapState(_Expiring):
    """As `MapState`; each entry has its own time."""

    def exists(self) -> bool:
        return bool(self._living())

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

    def _living(self) -> list[tuple[Row, Row]]:
        living = []
        for key, row in self._state.iterator():
            if self._lives(row):
                living.append((key, row))
            else:
                self._state.remove_key(key)
        return living
