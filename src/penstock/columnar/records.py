"""Rows that a function has returned, as columns: by code that is compiled once for the names of their fields.

Rows of one kind and the same fields become columns without a look at each row in Python. `columns_of` says so by
returning None where they are not of one kind: whoever calls it looks at each row then, and can name the odd one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias

Column: TypeAlias = Sequence[object]
Columns: TypeAlias = tuple[tuple[str, ...], list[Column]]
"""Names, and the values of each."""


def columns_of(rows: Sequence[object], names: tuple[str, ...] | None) -> Columns | None:
    """The columns of rows that all have just the fields `names`, or those of the first row if that is None.

    Rows are dictionaries, tuples with names (a Row of PySpark, a namedtuple), or plain tuples in the order of `names`.
    None if they are of several kinds, have other fields, or are something else.
    """
    kinds = set(map(type, rows))
    if len(kinds) != 1:
        return None
    (kind,) = kinds
    if kind is dict:
        return _of_dictionaries(rows, names)  # type: ignore[arg-type]
    return _of_tuples(rows, kind, names) if issubclass(kind, tuple) else None  # type: ignore[arg-type]


def _of_dictionaries(rows: Sequence[dict[object, object]], names: tuple[str, ...] | None) -> Columns | None:
    if names is None:
        found = tuple(rows[0])
        if not found or not all(isinstance(name, str) for name in found):
            return None
        names = found  # type: ignore[assignment]
    assert names is not None
    try:
        columns = _taken(names)(rows)
    except KeyError:
        return None
    # Each row has all names, and all rows together no more fields than that: so there are no others.
    return (names, columns) if sum(map(len, rows)) == len(rows) * len(names) else None


@functools.lru_cache(maxsize=1024)
def _taken(names: tuple[str, ...]) -> Callable[[Sequence[dict[object, object]]], list[Column]]:
    """Takes the columns out of dictionaries. Names enter the code by their `repr` only."""
    source = "lambda rows: [" + ", ".join(f"[row[{name!r}] for row in rows]" for name in names) + "]"
    made: Callable[[Sequence[dict[object, object]]], list[Column]] = eval(source, {})
    return made


def _of_tuples(
    rows: Sequence[tuple[object, ...]], kind: type[tuple[object, ...]], names: tuple[str, ...] | None
) -> Columns | None:
    fields = names if kind is tuple else _fields_of(rows, kind)
    if not fields or set(map(len, rows)) != {len(fields)}:
        return None
    columns: list[Column] = list(zip(*rows, strict=True))
    if names is None or names == fields:
        return fields, columns
    by_name = dict(zip(fields, columns, strict=True))
    if len(by_name) != len(fields) or by_name.keys() != set(names) or len(names) != len(fields):
        return None
    return names, [by_name[name] for name in names]


def _fields_of(rows: Sequence[tuple[object, ...]], kind: type[tuple[object, ...]]) -> tuple[str, ...] | None:
    """The names that all rows have; None if they have none, or not the same."""
    if isinstance(fields := getattr(kind, "_fields", None), tuple):
        return fields
    found = [getattr(row, "__fields__", None) for row in rows]
    first = found[0]
    if not first or found.count(first) != len(found) or len(set(first)) != len(first):
        return None
    return tuple(first)
