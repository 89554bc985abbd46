"""The types of windowed aggregates, which the first batch or the restored state settles, whichever comes first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.errors import DataError, RestoreError
from penstock.model.aggregates import Aggregate
from penstock.model.event_time import Ticks, event_time_type, ticks_of
from penstock.model.windows import WindowGrid, WindowKind
from penstock.state.aggregates.accumulators import Accumulator
from penstock.state.aggregates.functions import accumulators_for, stored_accumulators
from penstock.state.columns import column_type
from penstock.state.pieces import VALUE

PANE_START = "penstock.pane_start"
"""The last column of the key in a checkpoint."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Equal layouts have columns of equal types."""

    kinds: tuple[pa.DataType, ...]
    """Of the key columns."""
    time: pa.DataType
    numbers: tuple[tuple[str, pa.DataType], ...]
    """The label and type of each accumulator."""
    ticks: Ticks
    grid: WindowGrid
    _accumulators: tuple[Accumulator, ...] = field(repr=False, compare=False)

    @property
    def inputs(self) -> list[str]:
        """The columns that are aggregated."""
        return sorted({column for accumulator in self._accumulators for column in accumulator.columns})

    def new_accumulators(self) -> list[Accumulator]:
        """Each pane has its own, since an accumulator may remember something of the numbers that it works on."""
        return [accumulator.fresh() for accumulator in self._accumulators]


def layout_of_batch(
    name: str, key: Sequence[str], aggregates: Sequence[Aggregate], windows: WindowKind, on: str, schema: pa.Schema
) -> Layout:
    """The layout that records of `schema` need. Raises `DataError`."""
    kinds = [column_type(name, schema, column) for column in key]
    time = event_time_type(schema, on)
    return _layout(name, kinds, time, windows, accumulators_for(name, aggregates, schema))


def layout_of_checkpoint(
    name: str, key: Sequence[str], aggregates: Sequence[Aggregate], windows: WindowKind, schema: pa.Schema
) -> Layout:
    """The layout that a piece of a checkpoint has. Raises `RestoreError`."""
    if len(schema) != 3 or schema.names[2] != VALUE or not pa.types.is_struct(schema.types[2]):
        raise RestoreError(f"state '{name}' cannot be restored: it has no columns of aggregates in {schema}")
    stored, value = list(schema.types[1]), schema.types[2]
    accumulators = stored_accumulators(aggregates, value)
    if accumulators is None or [column.name for column in stored] != [*key, PANE_START]:
        raise RestoreError(
            f"state '{name}' cannot be restored: the checkpoint has {schema.types[1]} and {value}, "
            f"and the pipeline wants {tuple(key)} and {tuple(aggregates)}"
        )
    *kinds, time = [column.type for column in stored]
    return _layout(name, kinds, time, windows, accumulators)


def _layout(
    name: str,
    kinds: Sequence[pa.DataType],
    time: pa.DataType,
    windows: WindowKind,
    accumulators: Mapping[str, Accumulator],
) -> Layout:
    ticks = ticks_of(time)
    grid = None if ticks is None else windows.on(ticks)
    if ticks is None or grid is None:
        raise DataError(
            f"state '{name}': {windows} cannot be represented in event times of type {time}: cast "
            "them to timestamp('ms')"
        )
    numbers = tuple((label, accumulator.kind) for label, accumulator in accumulators.items())
    return Layout(tuple(kinds), time, numbers, ticks, grid, tuple(accumulators.values()))
