"""What a columnar aggregate keeps for each key, and how a batch of values is folded into it.

An accumulator is a column, indexed by slot: of numbers, of records of numbers (`records`), or of objects that are
replaced and never changed (`sketches`); values that are kept one by one are beside it (`collections`). Nulls never
reach it: which slots have seen a value is kept once for each input column. Integers are added in 64 bits, and an
overflow is an error, not a wrap.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.fixed_width import FIXED_WIDTH, fixed_width_values
from penstock.model.aggregates import Aggregate
from penstock.state.columns import array_of_values, words_of
from penstock.state.index.slot_table import Slots

Numbers: TypeAlias = npt.NDArray[Any]
Nulls: TypeAlias = npt.NDArray[np.bool_] | None
Input: TypeAlias = tuple[str, ...]
"""The columns of which none may be null in a row that counts; none: every row does."""

_INT64_MAX = 2**63 - 1
_LOW = np.int64(0xFFFFFFFF)


def _no_column(name: str) -> pa.Array:
    raise AssertionError(f"there is no column {name} here")


class Folded(NamedTuple):
    """The values of one input of a batch that are not null, beside their slots."""

    slots: Slots
    values: Numbers
    """Empty if they are only counted, or read as Arrow arrays."""
    is_set: npt.NDArray[np.bool_]
    """By slot: whether an earlier batch had a value."""
    read: Callable[[str], pa.Array] = _no_column
    """A column of the batch, plain: just the rows of `slots`."""


class Accumulator(ABC):
    """One column of the state. `label` names it in a checkpoint, so it may not change."""

    initial: Any = 0
    is_count = False
    """Whether its result is 0 and not null where no value has come."""
    needs_numbers = True
    """Whether it folds `Folded.values`."""

    def __init__(self, label: str, input: Input, kind: pa.DataType, dtype: npt.DTypeLike | None = None) -> None:
        self.label = label
        self.input = input
        self.kind = kind
        """The type in a checkpoint."""
        self.dtype: np.dtype[Any] = np.dtype(number_dtype(kind) if dtype is None else dtype)

    @property
    def columns(self) -> Input:
        """All columns of a batch that it reads."""
        return self.input

    @property
    def held_bytes(self) -> int:
        """Memory beside the column itself."""
        return 0

    @abstractmethod
    def fold(self, state: Numbers, folded: Folded) -> None:
        """Change `state` at the slots. Raises `OverflowError`."""

    def merge(self, state: Numbers, folded: Folded, source: Accumulator) -> None:
        """As `fold`, where the values are what `source`, an accumulator like this one, has made of other rows."""
        self.fold(state, folded)

    def clear(self, state: Numbers, slots: Slots) -> None:
        """The slots, each once, are as if they had never had a row."""
        state[slots] = self.initial

    def restored(self) -> None:
        """The state has got values from a checkpoint: forget what was known of it."""
        return

    def fresh(self) -> Self:
        """One like this one, for another column."""
        return copy.copy(self)

    def frozen(self) -> Accumulator:
        """What a snapshot needs of it, however this one changes."""
        return self

    def array(self, numbers: Numbers, nulls: Nulls) -> pa.Array:
        """The numbers as an Arrow array of this accumulator's type, as a checkpoint has them."""
        if pa.types.is_boolean(self.kind):
            return pa.array(numbers.astype(np.bool_), mask=nulls)
        return array_of_values(numbers, self.kind, nulls)

    def put(self, state: Numbers, slots: Slots, array: pa.Array, nulls: npt.NDArray[np.bool_]) -> None:
        """The inverse of `array`: set slots that are empty."""
        numbers = numbers_of(array)
        if array.null_count:
            numbers = np.where(nulls, np.array(self.initial, dtype=numbers.dtype), numbers)
        state[slots] = numbers

    def has_value(self, state: Numbers, slots: Slots, nulls: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Which of the slots that were `put` have a value."""
        return ~nulls

    def result(self, aggregate: Aggregate, numbers: Numbers, nulls: Nulls) -> pa.Array:
        """The column that is emitted for `aggregate`."""
        return self.array(numbers, nulls)


class Count(Accumulator):
    is_count = True
    needs_numbers = False

    def __init__(self, label: str, input: Input) -> None:
        super().__init__(label, input, pa.int64())

    def fold(self, state: Numbers, folded: Folded) -> None:
        np.add.at(state, folded.slots, 1)

    def merge(self, state: Numbers, folded: Folded, source: Accumulator) -> None:
        np.add.at(state, folded.slots, folded.values)

    def has_value(self, state: Numbers, slots: Slots, nulls: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        has: npt.NDArray[np.bool_] = state.take(slots) > 0
        return has


class FloatSum(Accumulator):
    def __init__(self, label: str, input: Input) -> None:
        super().__init__(label, input, pa.float64())

    def fold(self, state: Numbers, folded: Folded) -> None:
        with np.errstate(all="ignore"):  # infinity and NaN are values like others
            np.add.at(state, folded.slots, folded.values)


class IntegerSum(Accumulator):
    """Adds blindly as long as a bound over all batches proves that no sum can overflow, and with care after that."""

    def __init__(self, label: str, input: Input) -> None:
        super().__init__(label, input, pa.int64())
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

    def __init__(self, function: Literal["min", "max"], label: str, input: Input, kind: pa.DataType) -> None:
        super().__init__(label, input, kind)
        self.initial, self._ufunc = extreme_of(function, self.dtype)

    def fold(self, state: Numbers, folded: Folded) -> None:
        with np.errstate(invalid="ignore"):
            self._ufunc.at(state, folded.slots, folded.values)


def extreme_of(function: Literal["min", "max"], dtype: np.dtype[Any]) -> tuple[float | int, np.ufunc]:
    """The number with which a minimum or a maximum begins, and the function that goes on from it."""
    is_min = function == "min"
    if dtype.kind == "f":
        # fmin passes over a NaN that it can replace, maximum keeps every NaN: both make NaN the largest.
        return (np.nan, np.fmin) if is_min else (-np.inf, np.maximum)
    limits = np.iinfo(dtype)
    return (int(limits.max), np.minimum) if is_min else (int(limits.min), np.maximum)


class First(Accumulator):
    def fold(self, state: Numbers, folded: Folded) -> None:
        rows = np.flatnonzero(~folded.is_set.take(folded.slots))[::-1]
        # Of several assignments to one slot the last one stays, and they are made from the end.
        state[folded.slots[rows]] = folded.values[rows]


class Last(Accumulator):
    def fold(self, state: Numbers, folded: Folded) -> None:
        state[folded.slots] = folded.values


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


def distinct_places(slots: Slots) -> tuple[Slots, npt.NDArray[np.intp]]:
    """The slots, each once and in order, and for each row the place of its slot among them. Faster than a sort."""
    top = int(slots.max()) + 1
    if top > 16 * len(slots) + 1024:
        distinct, places = np.unique(slots, return_inverse=True)
        return distinct, places
    is_there = np.zeros(top, dtype=np.bool_)
    is_there[slots] = True
    distinct = np.flatnonzero(is_there)
    numbers = np.empty(top, dtype=np.intp)
    numbers[distinct] = np.arange(len(distinct))
    return distinct, numbers.take(slots)
