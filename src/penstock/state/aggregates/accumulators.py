"""What a columnar aggregate keeps for each key, and how a batch of values is folded into it.

An accumulator is a column of numbers, indexed by slot. Nulls never reach it: which slots have seen a value is
kept once for each input column. Integers are added in 64 bits and an overflow is an error, not a wrap.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.fixed_width import FIXED_WIDTH, fixed_width_values
from penstock.errors import DataError
from penstock.model.aggregates import Aggregate
from penstock.state.columns import array_of_values, column_type, fits_word, words_of
from penstock.state.index.slot_table import Slots

Numbers: TypeAlias = npt.NDArray[Any]

_INT64_MAX = 2**63 - 1
_LOW = np.int64(0xFFFFFFFF)


class Folded(NamedTuple):
    """The values of one column of a batch that are not null, beside their slots."""

    slots: Slots
    values: Numbers
    """Empty if they are only counted."""
    is_set: npt.NDArray[np.bool_]
    """By slot: whether an earlier batch had a value."""


class Accumulator(ABC):
    """One column of the state. `label` names it in a checkpoint, so it may not change."""

    initial: float | int = 0

    def __init__(self, function: str, column: str | None, kind: pa.DataType) -> None:
        self.column = column
        self.is_count = function == "count"
        self.label = f"{function}({column or '*'})"
        self.kind = kind
        self.dtype = np.dtype(number_dtype(kind))

    @abstractmethod
    def fold(self, state: Numbers, folded: Folded) -> None:
        """Change `state` at the slots. Raises `OverflowError`."""

    def merge(self, state: Numbers, folded: Folded) -> None:
        """As `fold`, where the values are what accumulators like this one have made of earlier ones."""
        self.fold(state, folded)

    def restored(self) -> None:
        """The state has got values from a checkpoint: forget what was known of it."""
        return

    def array(self, numbers: Numbers, nulls: npt.NDArray[np.bool_] | None) -> pa.Array:
        """The numbers as an Arrow array of this accumulator's type."""
        if pa.types.is_boolean(self.kind):
            return pa.array(numbers.astype(np.bool_), mask=nulls)
        return array_of_values(numbers, self.kind, nulls)


class Count(Accumulator):
    def __init__(self, column: str | None) -> None:
        super().__init__("count", column, pa.int64())

    def fold(self, state: Numbers, folded: Folded) -> None:
        np.add.at(state, folded.slots, 1)

    def merge(self, state: Numbers, folded: Folded) -> None:
        np.add.at(state, folded.slots, folded.values)


class FloatSum(Accumulator):
    def __init__(self, column: str) -> None:
        super().__init__("sum", column, pa.float64())

    def fold(self, state: Numbers, folded: Folded) -> None:
        with np.errstate(all="ignore"):  # infinity and NaN are values like others
            np.add.at(state, folded.slots, folded.values)


class IntegerSum(Accumulator):
    """Adds blindly as long as a bound over all batches proves that no sum can overflow, and with care after that."""

    def __init__(self, column: str) -> None:
        super().__init__("sum", column, pa.int64())
        self.restored()

    def restored(self) -> None:
        self._bound = _INT64_MAX  # anything is possible, until the state has been looked at

    def fold(self, state: Numbers, folded: Folded) -> None:
        values = folded.values
        highest, lowest = int(values.max()), int(values.min())
        if highest > _INT64_MAX:
            raise OverflowError
        values = values.view(np.int64)
        most = max(highest, -lowest) * len(values)
        if self._bound + most > _INT64_MAX:
            self._bound = max(int(state.max()), -int(state.min()))
        if self._bound + most <= _INT64_MAX:
            self._bound += most
            np.add.at(state, folded.slots, values)
        else:
            self._bound = _INT64_MAX
            _add_exactly(state, folded.slots, values)


def _add_exactly(state: Numbers, slots: Slots, values: Numbers) -> None:
    """Sums of the upper and the lower halves cannot overflow, and together they say whether the whole does."""
    distinct, place = np.unique(slots, return_inverse=True)
    low, high = state[distinct] & _LOW, state[distinct] >> 32
    np.add.at(low, place, values & _LOW)
    np.add.at(high, place, values >> 32)
    high += low >> 32
    if high.max() > 2**31 - 1 or high.min() < -(2**31):
        raise OverflowError
    state[distinct] = (high << 32) | (low & _LOW)


class Extreme(Accumulator):
    """The smallest or the largest value. NaN is larger than every number, as in Spark."""

    def __init__(self, function: Literal["min", "max"], column: str, kind: pa.DataType) -> None:
        super().__init__(function, column, kind)
        is_min = function == "min"
        self._ufunc: np.ufunc
        if self.dtype.kind == "f":
            # fmin passes over a NaN that it can replace, maximum keeps every NaN: both make NaN the largest.
            self.initial = np.nan if is_min else -np.inf
            self._ufunc = np.fmin if is_min else np.maximum
        else:
            self.initial = int(np.iinfo(self.dtype).max if is_min else np.iinfo(self.dtype).min)
            self._ufunc = np.minimum if is_min else np.maximum

    def fold(self, state: Numbers, folded: Folded) -> None:
        with np.errstate(invalid="ignore"):
            self._ufunc.at(state, folded.slots, folded.values)


class First(Accumulator):
    def __init__(self, column: str, kind: pa.DataType) -> None:
        super().__init__("first", column, kind)

    def fold(self, state: Numbers, folded: Folded) -> None:
        rows = np.flatnonzero(~folded.is_set.take(folded.slots))[::-1]
        # Of several assignments to one slot the last one stays, and they are made from the end.
        state[folded.slots[rows]] = folded.values[rows]


class Last(Accumulator):
    def __init__(self, column: str, kind: pa.DataType) -> None:
        super().__init__("last", column, kind)

    def fold(self, state: Numbers, folded: Folded) -> None:
        state[folded.slots] = folded.values


def accumulators_of(aggregate: Aggregate, kind: pa.DataType | None) -> list[Accumulator]:
    """What `aggregate` needs over a column of the plain type `kind`. Raises `DataError` for one it cannot take."""
    column = aggregate.column
    if column is None or kind is None:
        return [Count(None)]
    match aggregate.function:
        case "count":
            return [Count(column)]
        case "sum":
            return [_sum(aggregate, column, kind)]
        case "mean":
            return [_sum(aggregate, column, kind), Count(column)]
        case "min" | "max" as function:
            return [Extreme(function, column, _one_word(aggregate, kind))]
        case "first":
            return [First(column, _one_word(aggregate, kind))]
        case "last":
            return [Last(column, _one_word(aggregate, kind))]
        case _:
            assert_never(aggregate.function)


def accumulators_for(name: str, aggregates: Sequence[Aggregate], schema: pa.Schema) -> dict[str, Accumulator]:
    """By label, all that the aggregates of state `name` need over columns of `schema`. Raises `DataError`."""
    accumulators: dict[str, Accumulator] = {}
    for aggregate in aggregates:
        kind = None if aggregate.column is None else column_type(name, schema, aggregate.column)
        try:
            needed = accumulators_of(aggregate, kind)
        except DataError as error:
            raise DataError(f"state '{name}': {error}") from error
        accumulators.update((accumulator.label, accumulator) for accumulator in needed)
    return accumulators


def stored_accumulators(aggregates: Sequence[Aggregate], stored: pa.StructType) -> dict[str, Accumulator] | None:
    """By label, those whose numbers a checkpoint has in `stored`; None if that is not what these aggregates need."""
    kinds = {field.name: field.type for field in stored}
    accumulators: dict[str, Accumulator] = {}
    for aggregate in aggregates:
        label = f"{'sum' if aggregate.function == 'mean' else aggregate.function}({aggregate.column or '*'})"
        try:
            needed = accumulators_of(aggregate, kinds.get(label, pa.null()))
        except DataError:
            needed = []
        accumulators.update((accumulator.label, accumulator) for accumulator in needed)
    ours = {label: accumulator.kind for label, accumulator in accumulators.items()}
    return accumulators if ours == kinds else None


def _sum(aggregate: Aggregate, column: str, kind: pa.DataType) -> Accumulator:
    if pa.types.is_integer(kind):
        return IntegerSum(column)
    if pa.types.is_floating(kind):
        return FloatSum(column)
    raise DataError(f"{aggregate.function}({column}) needs integers or floats, not {kind}; cast the column first")


def _one_word(aggregate: Aggregate, kind: pa.DataType) -> pa.DataType:
    if pa.types.is_null(kind) or not fits_word(kind):
        raise DataError(f"{aggregate.function}({aggregate.column}) needs a type of at most 64 bits, not {kind}")
    return kind


def number_dtype(kind: pa.DataType) -> str:
    """The numpy type in which numbers of this Arrow type are kept."""
    if pa.types.is_floating(kind):
        return "f8"
    return "u8" if pa.types.is_uint64(kind) else "i8"


def numbers_of(array: pa.Array) -> Numbers:
    """The values in their numpy type; arbitrary at nulls, and perhaps the array's own buffer."""
    dtype = FIXED_WIDTH.get(array.type.id)
    if dtype is not None and dtype.kind == "f":
        # Not by words: as a value, -0.0 stays what it is.
        return fixed_width_values(array, dtype).astype(np.float64, copy=False)
    return words_of(array).view(number_dtype(array.type))
