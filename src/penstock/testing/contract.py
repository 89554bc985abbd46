"""Parts that the contract checks of sources and sinks share: the error, and the comparison of rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, cast

import pyarrow as pa

from penstock.errors import PenstockError
from penstock.operators.pickling import dumps, loads

T = TypeVar("T")

Rows: TypeAlias = "pa.Table | pa.RecordBatch | Iterable[Mapping[str, Any]]"

_SHOWN = 3


class ContractBroken(AssertionError):
    """A connector breaks its contract. The message names the rule, the moment, and the rows that show it."""


def broken(connector: object, rule: str, found: str, cure: str) -> ContractBroken:
    return ContractBroken(f"{connector!r}: {rule}. {found}. {cure}")


def row_texts(rows: Rows) -> list[str]:
    """Rows as texts that can be counted and shown; columns in the order of their names."""
    found = rows.to_pylist() if isinstance(rows, pa.Table | pa.RecordBatch) else rows
    return [json.dumps(dict(row), sort_keys=True, default=str) for row in found]


def difference(expected: Sequence[str], found: Sequence[str]) -> str | None:
    """How `found` differs from `expected` as a multiset, in words; None if it does not."""
    wanted, there = Counter(expected), Counter(found)
    missing, surplus = wanted - there, there - wanted
    doubled = {text: count for text, count in surplus.items() if text in wanted}
    foreign = {text: count for text, count in surplus.items() if text not in wanted}
    said = [
        f"{sum(rows.values())} of {len(expected)} rows {what}, such as {', '.join(list(rows)[:_SHOWN])}"
        for rows, what in ((missing, "are missing"), (doubled, "came twice"), (foreign, "were never written"))
        if rows
    ]
    return "; ".join(said) or None


def pickled(connector: T) -> T:
    """A copy as a worker gets it. Raises `ContractBroken`."""
    try:
        return cast(T, loads(dumps(connector)))
    except PenstockError:
        raise
    except Exception as error:
        raise broken(
            connector,
            "it cannot be pickled to the workers",
            f"{type(error).__name__}: {error}",
            "Keep settings alone in it, and open files and connections in the reader or writer",
        ) from error


def check_identity(first: Any, second: Any) -> None:
    """Two descriptions of the same connector have one identity, made of texts."""
    one, other = dict(first.identity()), dict(second.identity())
    if one != other:
        raise broken(
            first,
            "its identity differs from one start to the next, so it would refuse its own checkpoints",
            f"It was {one} and then {other}",
            "Make it of settings that do not change",
        )
    if not all(isinstance(text, str) for pair in one.items() for text in pair):
        raise broken(first, "its identity has a name or a value that is no text", f"It is {one}", "Return strings")
