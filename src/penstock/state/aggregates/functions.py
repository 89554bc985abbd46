"""Which accumulators an aggregate needs, over columns of a batch or over those of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never

import pyarrow as pa

from penstock.errors import DataError
from penstock.model.aggregates import Aggregate, labels_of
from penstock.state.aggregates.accumulators import Accumulator, Count, Extreme, First, FloatSum, IntegerSum, Last
from penstock.state.aggregates.collections import Distinct, Listed
from penstock.state.aggregates.records import ArgExtreme, Moments, Own
from penstock.state.aggregates.sketches import Digests, Hashes
from penstock.state.columns import column_type, fits_word


def accumulators_of(aggregate: Aggregate, kinds: Sequence[pa.DataType]) -> list[Accumulator]:
    """What `aggregate` needs over columns of the plain types `kinds`. Raises `DataError` for one it cannot take."""
    label, *labels = labels_of(aggregate)
    column = aggregate.column
    if column is None:
        return [Count(label, ())]
    kind, input = kinds[0], (column,)
    match aggregate.function:
        case "count":
            return [Count(label, input)]
        case "sum":
            return [_sum(aggregate, label, kind)]
        case "mean":
            return [_sum(aggregate, label, kind), Count(labels[0], input)]
        case "min" | "max" as function:
            return [Extreme(function, label, input, _one_word(aggregate, kind))]
        case "first":
            return [First(label, input, _one_word(aggregate, kind))]
        case "last":
            return [Last(label, input, _one_word(aggregate, kind))]
        case "std" | "var":
            _require_numbers(aggregate, kind)
            return [Moments(label, input)]
        case "count_distinct":
            return [Distinct(label, input, kind)]
        case "collect_list":
            return [Listed(label, input, kind)]
        case "approx_count_distinct":
            return [Hashes(label, input)]
        case "quantile":
            _require_numbers(aggregate, kind)
            return [Digests(label, input)]
        case "arg_min" | "arg_max" as function:
            assert aggregate.by is not None
            both = [_one_word(aggregate, each) for each in kinds]
            return [ArgExtreme("min" if function == "arg_min" else "max", label, column, aggregate.by, both)]
        case "own":
            assert aggregate.own is not None
            return [Own(label, aggregate.columns, aggregate.own)]
        case _:
            assert_never(aggregate.function)


def accumulators_for(name: str, aggregates: Sequence[Aggregate], schema: pa.Schema) -> dict[str, Accumulator]:
    """By label, all that the aggregates of state `name` need over columns of `schema`. Raises `DataError`."""
    accumulators: dict[str, Accumulator] = {}
    for aggregate in aggregates:
        kinds = [column_type(name, schema, column) for column in aggregate.columns]
        try:
            needed = accumulators_of(aggregate, kinds)
        except DataError as error:
            raise DataError(f"state '{name}': {error}") from error
        accumulators.update((accumulator.label, accumulator) for accumulator in needed)
    return accumulators


def stored_accumulators(aggregates: Sequence[Aggregate], stored: pa.StructType) -> dict[str, Accumulator] | None:
    """By label, those whose numbers a checkpoint has in `stored`; None if that is not what these aggregates need."""
    kinds = {field.name: field.type for field in stored}
    accumulators: dict[str, Accumulator] = {}
    for aggregate in aggregates:
        try:
            needed = accumulators_of(aggregate, _input_kinds(aggregate, kinds))
        except DataError:
            needed = []
        accumulators.update((accumulator.label, accumulator) for accumulator in needed)
    ours = {label: accumulator.kind for label, accumulator in accumulators.items()}
    return accumulators if ours == kinds else None


def _input_kinds(aggregate: Aggregate, kinds: Mapping[str, pa.DataType]) -> list[pa.DataType]:
    """Types of columns that would be stored as they are stored in a checkpoint. They need not be those there were."""
    stored = kinds.get(labels_of(aggregate)[0], pa.null())
    if aggregate.function in ("count_distinct", "collect_list"):
        return [stored.value_type if pa.types.is_list(stored) else pa.null()]
    if aggregate.function in ("arg_min", "arg_max"):
        is_ours = pa.types.is_struct(stored) and stored.get_field_index("by") >= 0
        return [stored.field(name).type if is_ours else pa.null() for name in ("value", "by")]
    if aggregate.function in ("std", "var", "quantile"):
        return [pa.float64()]
    return [stored]


def _sum(aggregate: Aggregate, label: str, kind: pa.DataType) -> Accumulator:
    _require_numbers(aggregate, kind)
    input = aggregate.columns
    return IntegerSum(label, input) if pa.types.is_integer(kind) else FloatSum(label, input)


def _require_numbers(aggregate: Aggregate, kind: pa.DataType) -> None:
    if not pa.types.is_integer(kind) and not pa.types.is_floating(kind):
        raise DataError(
            f"{aggregate.function}({aggregate.column}) needs integers or floats, not {kind}; cast the column first"
        )


def _one_word(aggregate: Aggregate, kind: pa.DataType) -> pa.DataType:
    if pa.types.is_null(kind) or not fits_word(kind):
        columns = ", ".join(aggregate.columns)
        raise DataError(f"{aggregate.function}({columns}) needs a type of at most 64 bits, not {kind}")
    return kind
