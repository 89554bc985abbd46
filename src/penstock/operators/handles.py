"""The state handles that a function gets from its context: what a user may do with the state of the current key.

Rows are tuples in the order of the schema that the state was asked for with. Their values are Python objects, as
`pyarrow` makes them: times are `datetime`s, lists are lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol, TypeAlias

StateRow: TypeAlias = tuple[Any, ...]


class ValueState(Protocol):
    """One row for each key: `context.value("count", "n bigint")`."""

    def exists(self) -> bool:
        """Whether the current key has a row."""
        ...

    def get(self) -> StateRow | None:
        """The row of the current key; None if there is none."""
        ...

    def update(self, new_value: StateRow) -> None:
        """Set the row of the current key."""
        ...

    def clear(self) -> None:
        """Remove the row of the current key."""
        ...


class ListState(Protocol):
    """A list of rows for each key: `context.list("amounts", "amount bigint")`."""

    def exists(self) -> bool:
        """Whether the current key has any row."""
        ...

    def get(self) -> Iterator[StateRow]:
        """The rows of the current key, in the order in which they came."""
        ...

    def put(self, new_state: Iterable[StateRow]) -> None:
        """Replace all rows of the current key."""
        ...

    def append_value(self, new_state: StateRow) -> None:
        """Add a row."""
        ...

    def append_list(self, new_state: Iterable[StateRow]) -> None:
        """Add some rows."""
        ...

    def clear(self) -> None:
        """Remove all rows of the current key."""
        ...


class MapState(Protocol):
    """A map from rows to rows for each key: `context.map("seen", "page string", "n bigint")`."""

    def exists(self) -> bool:
        """Whether the map of the current key has any entry."""
        ...

    def get_value(self, key: StateRow) -> StateRow | None:
        """The value of an entry; None if there is none."""
        ...

    def contains_key(self, key: StateRow) -> bool:
        """Whether there is such an entry."""
        ...

    def update_value(self, key: StateRow, value: StateRow) -> None:
        """Set an entry."""
        ...

    def iterator(self) -> Iterator[tuple[StateRow, StateRow]]:
        """All entries of the current key."""
        ...

    def keys(self) -> Iterator[StateRow]:
        """The keys of all entries."""
        ...

    def values(self) -> Iterator[StateRow]:
        """The values of all entries."""
        ...

    def remove_key(self, key: StateRow) -> None:
        """Remove an entry, if it is there."""
        ...

    def clear(self) -> None:
        """Remove all entries of the current key."""
        ...
