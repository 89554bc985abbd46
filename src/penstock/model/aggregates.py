"""What a columnar aggregate is, as a value: the API describes it, the runtime's state computes it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

Function: TypeAlias = Literal["sum", "count", "min", "max", "mean", "first", "last"]

FUNCTIONS: dict[str, Function] = {name: name for name in get_args(Function)}
ALIASES = {"avg": "mean"}
"""Other names for the same function. A checkpoint knows the first name only."""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One output column: `function` over `column`, which only a count may do without."""

    function: Function
    column: str | None
    output: str


def kept_for(aggregates: Iterable[Aggregate]) -> str:
    """The numbers that state holds for these aggregates, in one order: a mean is kept as a sum and a count.

    Two lists of aggregates with the same numbers can take over each other's state, however they are ordered or named.
    """
    kept = set()
    for each in aggregates:
        functions = ("sum", "count") if each.function == "mean" else (each.function,)
        kept |= {f"{function}({each.column or '*'})" for function in functions}
    return ", ".join(sorted(kept))


def outputs_of(aggregates: Iterable[Aggregate]) -> str:
    """The outputs with their functions, in one order."""
    return ", ".join(sorted(f"{each.output}={each.function}({each.column or '*'})" for each in aggregates))


def columns_of(aggregates: Iterable[Aggregate]) -> tuple[str, ...]:
    """The columns that these aggregates read, each once."""
    return tuple(dict.fromkeys(each.column for each in aggregates if each.column is not None))
