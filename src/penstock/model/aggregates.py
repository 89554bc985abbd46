"""What a columnar aggregate is, as a value: the API describes it, the runtime's state computes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Function: TypeAlias = Literal[
    "sum",
    "count",
    "min",
    "max",
    "mean",
    "first",
    "last",
    "std",
    "var",
    "count_distinct",
    "approx_count_distinct",
    "quantile",
    "collect_list",
    "arg_min",
    "arg_max",
    "own",
]
"""`own` is an aggregate of a user's."""

FUNCTIONS: dict[str, Function] = {name: name for name in get_args(Function) if name != "own"}
ALIASES = {"avg": "mean"}
"""Other names for the same function. A checkpoint knows the first name only."""

StateColumns: TypeAlias = Mapping[str, npt.NDArray[Any]]
"""Numbers by the names of a `ColumnarAggregate.state`, one for each group."""
Groups: TypeAlias = npt.NDArray[np.intp]
"""For each row, the number of its group: the place of its key in the columns of the state."""


class ColumnarAggregate(ABC):
    """An aggregate of your own, which works on all keys of a batch at once.

    `state` names its numbers, with their types of numpy (int64, float64 or bool); `initial` says with which they begin,
    if not with 0. A row in which one of its columns is null is left out. Pass an instance and its columns where a
    function and a column are passed: `aggregate(price=(WeightedMean(), "price", "size"))`.

    The trap: several rows of a batch may have one group. Add with `np.add.at(state["n"], groups, …)`; with
    `state["n"][groups] += …` only the last of them counts.

    Example:

        import numpy as np

        class WeightedMean(ColumnarAggregate):
            state = {"total": "float64", "weight": "float64"}

            def add_batch(self, state, groups, value, weight):
                np.add.at(state["total"], groups, value.to_numpy() * weight.to_numpy())
                np.add.at(state["weight"], groups, weight.to_numpy())

            def merge(self, state, groups, other):
                for name in state:
                    np.add.at(state[name], groups, other[name])

            def result(self, state):
                return state["total"] / state["weight"]

        assert WeightedMean().name == "WeightedMean"
        orders.key_by().aggregate(mean=(WeightedMean(), "amount", "at"), emit="final").sink(output)
        run(pipeline)
        assert output.rows() == [{"mean": 23.0}]
    """

    state: ClassVar[Mapping[str, str]]
    initial: ClassVar[Mapping[str, float]] = {}
    output_type: ClassVar[pa.DataType] = pa.float64()

    @property
    def name(self) -> str:
        """The name in checkpoints: state of another name is that of another aggregate."""
        return type(self).__name__

    @abstractmethod
    def add_batch(self, state: StateColumns, groups: Groups, *columns: pa.Array) -> None:
        """Change `state` by rows, whose columns hold no nulls."""

    @abstractmethod
    def merge(self, state: StateColumns, groups: Groups, other: StateColumns) -> None:
        """Change `state` by the numbers that other instances have gathered later in event time."""

    @abstractmethod
    def result(self, state: StateColumns) -> npt.NDArray[Any] | pa.Array:
        """The value of each group, of `output_type`."""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One output column: `function` over `column`, which only a count may do without."""

    function: Function
    column: str | None
    output: str
    by: str | None = None
    """The column that `arg_min` and `arg_max` compare."""
    fraction: float | None = None
    """The part of the values that is not greater than a quantile."""
    own: ColumnarAggregate | None = None
    """The aggregate of a user's."""
    more: tuple[str, ...] = ()
    """The columns of a user's aggregate behind the first one."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads."""
        return tuple(name for name in (self.column, self.by, *self.more) if name is not None)

    @property
    def called(self) -> str:
        return self.function if self.own is None else f"own {self.own.name}"


_KEPT: Mapping[str, tuple[str, ...]] = {
    "mean": ("sum", "count"),
    "std": ("moments",),
    "var": ("moments",),
    "count_distinct": ("distinct",),
    "approx_count_distinct": ("hashes",),
    "quantile": ("digest",),
    "collect_list": ("list",),
}
"""What is kept for a function, where that is not its result."""


def labels_of(aggregate: Aggregate) -> tuple[str, ...]:
    """The names of the columns that state holds for an aggregate. A checkpoint has them: they may not change."""
    columns = ", ".join(aggregate.columns) or "*"
    return tuple(f"{each}({columns})" for each in _KEPT.get(aggregate.function, (aggregate.called,)))


def kept_for(aggregates: Iterable[Aggregate]) -> str:
    """The numbers that state holds for these aggregates, in one order: a mean is kept as a sum and a count.

    Two lists of aggregates with the same numbers can take over each other's state, however they are ordered or named.
    """
    return ", ".join(sorted({label for each in aggregates for label in labels_of(each)}))


def outputs_of(aggregates: Iterable[Aggregate]) -> str:
    """The outputs with their functions, in one order."""
    return ", ".join(sorted(f"{each.output}={_shown(each)}" for each in aggregates))


def _shown(aggregate: Aggregate) -> str:
    arguments = [*aggregate.columns] if aggregate.columns else ["*"]
    arguments += [] if aggregate.fraction is None else [str(aggregate.fraction)]
    return f"{aggregate.called}({', '.join(arguments)})"


def columns_of(aggregates: Iterable[Aggregate]) -> tuple[str, ...]:
    """The columns that these aggregates read, each once."""
    return tuple(dict.fromkeys(column for each in aggregates for column in each.columns))
