"""Aggregates of some records only, as values: SQL's FILTER (WHERE …).

A filtered aggregate is one over a *masked* column: the column where the condition holds, and null elsewhere. Aggregates
leave nulls out, so every function can be filtered, and a state knows nothing of conditions. The name of a masked column
says the condition: a checkpoint has it, so state of one condition is never taken for that of another.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import pyarrow.compute as pc


@dataclass(frozen=True, slots=True, eq=False)
class Filtered:
    """What `filtered` returns: an aggregate, and the condition under which a record counts."""

    what: tuple[object, ...]
    where: pc.Expression


@dataclass(frozen=True, slots=True, eq=False)
class Masked:
    """A column that is null where the condition does not hold; without a column, one that says where it holds."""

    name: str
    column: str | None
    where: pc.Expression


def filtered(*what: object, where: pc.Expression) -> Filtered:
    """An aggregate of the records for which an Arrow expression is true, as SQL's `FILTER (WHERE …)`.

    Pass it where an aggregate is passed: `aggregate(cheap=filtered("count", where=pc.field("price") < 10))`, with the
    function and its columns first. A record for which the condition is null does not count.

    Example:

        >>> import pyarrow.compute as pc
        >>> large = filtered("sum", "amount", where=pc.field("amount") > 2)
        >>> collect(orders.key_by("user").aggregate(large=large, orders="count", emit="final"), by="user")
        [{'user': 'ada', 'large': 8, 'orders': 2}, {'user': 'ben', 'large': None, 'orders': 1}]
    """
    return Filtered(what, where)


def masked(column: str | None, where: pc.Expression) -> Masked:
    """The masked column of a filtered aggregate. Equal conditions on one column have one name, others have others."""
    shown = " ".join(str(where).split())
    if "..." in shown:
        # Arrow shows the ends of a long list alone.
        shown += f" {hashlib.sha256(where.__reduce__()[1][0].to_pybytes()).hexdigest()[:16]}"
    return Masked(f"{column or '*'} where {shown}", column, where)
