"""The memory of Python objects in a state, estimated from a few of them: a look at each would hold the mailbox."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Collection, Mapping
from typing import Any

_ENTRIES_MEASURED = 64
_ITEMS_MEASURED = 16
"""Of one list or map."""


def estimated_bytes(groups: Collection[Mapping[Any, object]]) -> int:
    """About the bytes of these dictionaries and all that they hold. The time depends on their number alone."""
    entries = sum(len(group) for group in groups)
    if not entries:
        return 0
    tables = sum(sys.getsizeof(group) for group in groups)
    each = -(-_ENTRIES_MEASURED // len(groups))
    measured = list(itertools.islice(_some_entries(groups, each), _ENTRIES_MEASURED))
    return tables + entries * sum(measured) // len(measured)


def _some_entries(groups: Collection[Mapping[Any, object]], each: int) -> itertools.chain[int]:
    return itertools.chain.from_iterable(
        (object_bytes(key) + object_bytes(value) for key, value in itertools.islice(group.items(), each))
        for group in groups
    )


def object_bytes(value: object) -> int:
    """About the bytes of one value: of tuples, lists and maps with their first items, the others like these."""
    inner: object = getattr(value, "items", None)
    if isinstance(value, dict):
        return sys.getsizeof(value) + _of_items(list(itertools.islice(value.items(), _ITEMS_MEASURED)), len(value))
    if isinstance(value, tuple | list):
        return sys.getsizeof(value) + _of_items(value[:_ITEMS_MEASURED], len(value))
    if isinstance(inner, list | dict):
        # The list or map of one key, in its cell.
        return sys.getsizeof(value) + object_bytes(inner)
    return sys.getsizeof(value)


def _of_items(some: Collection[object], count: int) -> int:
    return sum(object_bytes(each) for each in some) * count // max(1, len(some))
