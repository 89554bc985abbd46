"""The state handles that a function gets from its context: what a user may do with the state of the current key.

Rows are tuples in the order of the schema that the state was asked for with. Their values are Python objects, as
`pyarrow` makes them: times are `datetime`s, lists are lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol, TypeAlias

StateRow: TypeAlias = tuple[Any, ...]


class ValueState(Protocol):
    """One row for each key: `context.value("count", "n bigint")`.

    Example:

        class Count(KeyedFunction):
            def open(self, context):
                self.count = context.value("count", "n bigint")

            def process(self, key, rows, context):
                n = self.count.get()[0] if self.count.exists() else 0
                self.count.update((n + rows.num_rows,))
                if n + rows.num_rows == 3:
                    self.count.clear()
                return pa.record_batch({"customer": [key[0]], "n": [n + rows.num_rows]})

        orders.key_by("customer").process(Count()).sink(output)
        run(pipeline)
        assert {"customer": "ann", "n": 2} in output.rows()
    """

    def exists(self) -> bool:
        """Whether the current key has a row."""
        ...

    def get(self) -> StateRow | None:
        """The row of the current key; None if it has none."""
        ...

    def update(self, new_value: StateRow) -> None:
        """Set the row of the current key."""
        ...

    def clear(self) -> None:
        """Remove the row of the current key."""
        ...


class ListState(Protocol):
    """A list of rows for each key: `context.list("amounts", "amount bigint")`.

    Example:

        class Last(KeyedFunction):
            def open(self, context):
                self.amounts = context.list("amounts", "amount bigint")

            def process(self, key, rows, context):
                amounts = [(amount,) for amount in rows["amount"].to_pylist()]
                if len(amounts) == 1:
                    self.amounts.append_value(amounts[0])
                else:
                    self.amounts.append_list(amounts)
                kept = list(self.amounts.get())[-10:]
                self.amounts.put(kept)
                if key == ("nobody",) and self.amounts.exists():
                    self.amounts.clear()
                return pa.record_batch({"customer": [key[0]], "total": [sum(amount for (amount,) in kept)]})

        orders.key_by("customer").process(Last()).sink(output)
        run(pipeline)
        assert {"customer": "ann", "total": 40} in output.rows()
    """

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
    """A map from rows to rows for each key: `context.map("seen", "page string", "n bigint")`.

    Example:

        class ByTime(KeyedFunction):
            def open(self, context):
                self.seen = context.map("seen", "at bigint", "amount bigint")

            def process(self, key, rows, context):
                for row in rows.to_pylist():
                    if not self.seen.contains_key((row["at"],)):
                        self.seen.update_value((row["at"],), (row["amount"],))
                first = min(self.seen.keys())
                assert self.seen.exists() and self.seen.get_value(first) in list(self.seen.values())
                total = sum(amount for _, (amount,) in self.seen.iterator())
                if total > 1_000_000:
                    self.seen.remove_key(first)
                if total < 0:
                    self.seen.clear()
                return pa.record_batch({"customer": [key[0]], "total": [total]})

        orders.key_by("customer").process(ByTime()).sink(output)
        run(pipeline)
        assert {"customer": "ann", "total": 40} in output.rows()
    """

    def exists(self) -> bool:
        """Whether the map of the current key has any entry."""
        ...

    def get_value(self, key: StateRow) -> StateRow | None:
        """The value of an entry; None if there is no such entry."""
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
