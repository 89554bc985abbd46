"""Accumulators that keep several numbers for each slot, as one column of records: in a checkpoint it is a struct."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columnar.fixed_width import null_mask
from penstock.errors import DataError
from penstock.model.aggregates import Aggregate, ColumnarAggregate
from penstock.state.aggregates.accumulators import (
    Accumulator,
    Folded,
    Input,
    Nulls,
    Numbers,
    distinct_places,
    extreme_of,
    number_dtype,
    numbers_of,
)
from penstock.state.columns import array_of_values, with_nulls
from penstock.state.index.slot_table import Slots

_TYPES = {"float64": pa.float64(), "int64": pa.int64(), "bool": pa.bool_()}


class Records(Accumulator):
    """A column of records, whose fields are those of the struct `kind`, in its order."""

    def __init__(self, label: str, input: Input, kind: pa.StructType) -> None:
        fields = [(field.name, "?" if pa.types.is_boolean(field.type) else number_dtype(field.type)) for field in kind]
        super().__init__(label, input, kind, fields)

    def array(self, numbers: Numbers, nulls: Nulls) -> pa.Array:
        children = [_array(numbers[field.name], field.type) for field in self.kind]
        mask = None if nulls is None else pa.array(nulls)
        return pa.StructArray.from_arrays(children, fields=list(self.kind), mask=mask)

    def put(self, state: Numbers, slots: Slots, array: pa.Array, nulls: npt.NDArray[np.bool_]) -> None:
        for field, child in zip(self.kind, array.flatten(), strict=True):
            numbers = child.to_numpy(zero_copy_only=False) if pa.types.is_boolean(field.type) else numbers_of(child)
            state[field.name][slots[~nulls]] = numbers[~nulls]


def _array(numbers: Numbers, kind: pa.DataType) -> pa.Array:
    return pa.array(numbers) if pa.types.is_boolean(kind) else array_of_values(numbers, kind, None)


class Moments(Records):
    """Number, mean and sum of squared distances from it, of the values so far: what variances are merged from.

    Sums of squares would cancel each other where the mean is large; these do not (Chan, Golub and LeVeque, 1979).
    """

    def __init__(self, label: str, input: Input) -> None:
        fields = [("count", pa.int64()), ("mean", pa.float64()), ("m2", pa.float64())]
        super().__init__(label, input, pa.struct(fields))

    def fold(self, state: Numbers, folded: Folded) -> None:
        slots, places = distinct_places(folded.slots)
        values = folded.values.astype(np.float64, copy=False)
        made = np.zeros(len(slots), dtype=self.dtype)
        made["count"] = np.bincount(places, minlength=len(slots))
        with np.errstate(all="ignore"):
            made["mean"] = np.bincount(places, values, len(slots)) / made["count"]
            apart = values - made["mean"].take(places)
            made["m2"] = np.bincount(places, apart * apart, len(slots))
        self._combine(state, slots, made)

    def merge(self, state: Numbers, folded: Folded, source: Accumulator) -> None:
        self._combine(state, folded.slots, folded.values)

    def _combine(self, state: Numbers, slots: Slots, other: Numbers) -> None:
        ours = state[slots]
        count = ours["count"] + other["count"]
        with np.errstate(all="ignore"):
            apart = other["mean"] - ours["mean"]
            share = other["count"] / np.maximum(count, 1)
            ours["m2"] += other["m2"] + apart * apart * ours["count"] * share
            # Of a first part the mean is taken over as it is: rounding would make equal values different.
            ours["mean"] = np.where(ours["count"] == 0, other["mean"], ours["mean"] + apart * share)
        ours["count"] = count
        state[slots] = ours

    def result(self, aggregate: Aggregate, numbers: Numbers, nulls: Nulls) -> pa.Array:
        """Of a sample, as in Spark: null for a single value."""
        with np.errstate(all="ignore"):
            variance = numbers["m2"] / np.maximum(numbers["count"] - 1, 1)
            values = np.sqrt(variance) if aggregate.function == "std" else variance
        return pa.array(values, mask=numbers["count"] < 2)


class ArgExtreme(Records):
    """The value of the row with the smallest or the largest `by`. Of several such rows the first one counts."""

    def __init__(
        self, function: Literal["min", "max"], label: str, column: str, by: str, kinds: Sequence[pa.DataType]
    ) -> None:
        kind, by_kind = kinds
        super().__init__(label, (by,), pa.struct([("value", kind), ("is_null", pa.bool_()), ("by", by_kind)]))
        self._column = column
        self._by = np.dtype(number_dtype(by_kind))
        self._start, self._ufunc = extreme_of(function, self._by)

    @property
    def columns(self) -> Input:
        return (*self.input, self._column)

    def fold(self, state: Numbers, folded: Folded) -> None:
        made = np.zeros(len(folded.slots), dtype=self.dtype)
        values = folded.read(self._column)
        made["value"] = numbers_of(values)
        made["is_null"] = null_mask(values) if values.null_count else False
        made["by"] = folded.values
        self._take_best(state, folded, made)

    def merge(self, state: Numbers, folded: Folded, source: Accumulator) -> None:
        self._take_best(state, folded, folded.values)

    def _take_best(self, state: Numbers, folded: Folded, made: Numbers) -> None:
        slots, places = distinct_places(folded.slots)
        best = np.full(len(slots), self._start, dtype=self._by)
        with np.errstate(invalid="ignore"):
            self._ufunc.at(best, places, made["by"])
            # Where the state has the same, its row came first.
            before = state["by"].take(slots)
            is_better = ~folded.is_set.take(slots) | ~_same(self._ufunc(before, best), before)
        rows = np.flatnonzero(_same(made["by"], best.take(places)) & is_better.take(places))[::-1]
        # Of several assignments to one slot the last one stays, and they are made from the end.
        state[folded.slots[rows]] = made[rows]

    def result(self, aggregate: Aggregate, numbers: Numbers, nulls: Nulls) -> pa.Array:
        is_null = numbers["is_null"] if nulls is None else numbers["is_null"] | nulls
        kind = self.kind.field("value").type
        if pa.types.is_boolean(kind):
            return pa.array(numbers["value"], mask=is_null)
        return array_of_values(numbers["value"], kind, is_null)


def _same(left: Numbers, right: Numbers) -> npt.NDArray[np.bool_]:
    """Equal, or both NaN."""
    equal: npt.NDArray[np.bool_] = left == right
    return equal | (np.isnan(left) & np.isnan(right)) if left.dtype.kind == "f" else equal


class Own(Records):
    """An aggregate of a user's."""

    needs_numbers = False

    def __init__(self, label: str, columns: Input, own: ColumnarAggregate) -> None:
        kind = pa.struct([(name, _TYPES[np.dtype(dtype).name]) for name, dtype in own.state.items()])
        super().__init__(label, columns, kind)
        self._own = own
        self.initial = tuple(own.initial.get(name, 0) for name in own.state)

    def fold(self, state: Numbers, folded: Folded) -> None:
        slots, places = distinct_places(folded.slots)
        parts = self._parts(state[slots])
        self._own.add_batch(parts, places, *(folded.read(column) for column in self.input))
        self._put_back(state, slots, parts)

    def merge(self, state: Numbers, folded: Folded, source: Accumulator) -> None:
        parts = self._parts(state[folded.slots])
        self._own.merge(parts, np.arange(len(folded.slots)), self._parts(folded.values))
        self._put_back(state, folded.slots, parts)

    def result(self, aggregate: Aggregate, numbers: Numbers, nulls: Nulls) -> pa.Array:
        with np.errstate(all="ignore"):
            made = self._own.result(self._parts(numbers))
        array = made if isinstance(made, pa.Array) else pa.array(made)
        if len(array) != len(numbers):
            raise DataError(
                f"{self._own.name}.result has returned {len(array)} values for {len(numbers)} groups: it must return "
                f"one for each"
            )
        if array.type != self._own.output_type:
            array = array.cast(self._own.output_type)
        return with_nulls(array, nulls)

    def _parts(self, numbers: Numbers) -> dict[str, npt.NDArray[Any]]:
        """A copy by name, in pieces that numpy and the user can work on."""
        return {name: np.ascontiguousarray(numbers[name]) for name in self._own.state}

    def _put_back(self, state: Numbers, slots: Slots, parts: dict[str, npt.NDArray[Any]]) -> None:
        for name, numbers in parts.items():
            state[name][slots] = numbers
