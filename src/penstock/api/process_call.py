"""The call `KeyedStream.process`: its arguments, checked, and the operator that they describe."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import pyarrow as pa

from penstock.api.arguments import (
    AtEnd,
    instance_of,
    letters_of,
    require_choice,
    schema_or_none,
    side_schemas_of,
)
from penstock.columnar.schemas.schema_guard import SchemaLike
from penstock.columnar.tables import table_of
from penstock.errors import PipelineError
from penstock.graph.logical import OperatorFactory
from penstock.operators.failures import OnError
from penstock.operators.formats import As
from penstock.operators.keyed.batch_function import BatchFunction, BatchFunctionOperator
from penstock.operators.keyed.functions import KeyedFunction
from penstock.operators.keyed.process import ProcessOperator, ProcessorOperator
from penstock.operators.keyed.timers import TimeMode


class ProcessCall:
    """A function with state, and how it is to be called."""

    def __init__(
        self,
        function: object,
        key: tuple[str, ...],
        format: As | None,
        schema: SchemaLike | None,
        at_end: AtEnd,
        mode: TimeMode,
        initial_state: object,
        on_error: OnError,
        side_outputs: Mapping[str, SchemaLike] | None,
    ) -> None:
        instance = self.instance = instance_of(function)
        is_processor = hasattr(instance, "handleInputRows")
        if not is_processor and not isinstance(instance, KeyedFunction | BatchFunction):
            raise PipelineError(
                f"process takes a KeyedFunction, a BatchFunction or a StatefulProcessor, not {function!r}"
            )
        self.format: As = format or ("pandas" if is_processor else "arrow")
        if is_processor and self.format not in ("pandas", "rows"):
            raise PipelineError(
                f'process: a StatefulProcessor takes format="pandas" or format="rows", not {self.format!r}'
            )
        if isinstance(instance, BatchFunction) and self.format != "arrow":
            raise PipelineError(f"process: a BatchFunction takes Arrow batches, not {self.format!r}")
        require_choice("process: at_end", at_end, "fire", "drop")
        require_choice("process: on_error", on_error, "raise", "drop", "stream")
        if isinstance(instance, BatchFunction) and on_error != "raise":
            raise PipelineError(
                f"process: on_error is {on_error!r} for a BatchFunction, whose changes to the state of many keys "
                f"cannot be taken back: write a KeyedFunction, or filter such records out in front of it"
            )
        self.schema = schema_or_none(schema)
        arguments = instance, key, self.format, self.schema, at_end == "fire", mode, on_error
        schemas = side_schemas_of("process", instance, side_outputs)
        self.side_outputs = (*letters_of(on_error), *schemas)
        self.made: OperatorFactory = functools.partial(ProcessOperator, *arguments, side_schemas=schemas)
        if isinstance(instance, BatchFunction):
            self.made = functools.partial(
                BatchFunctionOperator, instance, key, self.schema, at_end == "fire", mode, side_schemas=schemas
            )
        if is_processor and schemas:
            raise PipelineError(
                "process: side_outputs are for a KeyedFunction or a BatchFunction: the handle of a StatefulProcessor "
                "has no method that emits to them"
            )
        if is_processor:
            self.made = functools.partial(ProcessorOperator, *arguments, initial_table(initial_state, key))
        elif initial_state is not None:
            raise PipelineError("process: initial_state is for a StatefulProcessor, which has handleInitialState")


def time_mode_of(mode: TimeMode | None, has_event_time: bool) -> TimeMode:
    """The time of the timers: as the user says, or that of the stream."""
    chosen: TimeMode = mode if mode is not None else "event" if has_event_time else "processing"
    require_choice("process: time_mode", chosen, "event", "processing", "none")
    return chosen


def initial_table(given: object, key: tuple[str, ...]) -> pa.Table | None:
    """The initial state as one table: of Arrow, pandas or Spark, where `groupBy` may have been called on it."""
    if given is None:
        return None
    # A DataFrame that was grouped, as Spark's own `initialState` is, has its DataFrame here.
    given = getattr(given, "_df", given)
    table = table_of(given)
    if table is None:
        raise PipelineError(
            f"process: initial_state is {type(given).__name__}: it must be a pyarrow.Table, or a DataFrame of "
            f"pandas or Spark"
        )
    missing = [column for column in key if table.schema.names.count(column) != 1]
    if missing:
        raise PipelineError(
            f"process: initial_state has no column {', '.join(missing)} of the key, or more than one; its columns are "
            f"{', '.join(table.schema.names)}"
        )
    return table
