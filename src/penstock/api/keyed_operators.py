"""The operators behind `KeyedStream.process` and `ConnectedStreams.process`: user functions with state and timers.

A batch is sorted by key once; the function is then called with one slice for each key. The loop is over keys, not
rows. What the calls return is put together again, so that many keys do not mean many small batches.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from penstock.api.expiring import ExpiringListState, ExpiringMapState, ExpiringValueState, with_expiry
from penstock.api.forms import ArrowForm, As, Form, RowsForm, form_of
from penstock.api.functions import KeyedFunction, ProcessorFunction, Row, TwoInputFunction
from penstock.api.grouping import group
from penstock.api.operator import MIN_WATERMARK, BatchState, Emit, OperatorContext
from penstock.api.operators import NamedOperator
from penstock.api.schemas import SchemaLike, as_schema
from penstock.api.timers import KeyedTimers
from penstock.errors import DataError, PipelineError


class StateAccess:
    """Implements `KeyedContext` and `TwoInputContext` on the context of an operator."""

    def __init__(self, operator: StatefulOperator) -> None:
        self._operator = operator
        self._context: OperatorContext = operator.context
        self.key: tuple[Any, ...] = ()
        self.key_group = -1
        self.watermark: int | None = None
        self.side = 0
        self._declared: pa.Schema | None = None

    @property
    def operator(self) -> str:
        return self._context.operator

    @property
    def subtask(self) -> int:
        return self._context.subtask

    @property
    def parallelism(self) -> int:
        return self._context.parallelism

    def now_ms(self) -> int:
        return self._context.now_ms()

    # --- state ---

    def value(self, name: str, schema: SchemaLike, *, ttl_ms: int | None = None) -> Any:
        kind = as_schema(schema)
        if ttl_ms is None:
            return self._keyed.value(name, kind)
        return ExpiringValueState(self._keyed.value(name, with_expiry(kind)), ttl_ms, self._context)

    def list(self, name: str, schema: SchemaLike, *, ttl_ms: int | None = None) -> Any:
        kind = as_schema(schema)
        if ttl_ms is None:
            return self._keyed.list(name, kind)
        return ExpiringListState(self._keyed.list(name, with_expiry(kind)), ttl_ms, self._context)

    def map(self, name: str, key_schema: SchemaLike, value_schema: SchemaLike, *, ttl_ms: int | None = None) -> Any:
        key, kind = as_schema(key_schema), as_schema(value_schema)
        if ttl_ms is None:
            return self._keyed.map(name, key, kind)
        return ExpiringMapState(self._keyed.map(name, key, with_expiry(kind)), ttl_ms, self._context)

    def delete_state(self, name: str) -> None:
        self._keyed.remove(name)

    def rows(self, name: str, side: str = "left") -> Any:
        return self._keyed.rows(name, self._operator.keys[("left", "right").index(side)])

    def broadcast_state(self, name: str) -> BatchState:
        return self._context.broadcast_state(name)

    @property
    def _keyed(self) -> Any:
        return self._context.keyed

    # --- the current key ---

    def move(self, key_group: int, key: tuple[Any, ...]) -> None:
        self._keyed.set_key(key_group, key)
        self.key_group, self.key = key_group, key

    def each_key(self, batch: pa.RecordBatch) -> Iterator[tuple[tuple[Any, ...], pa.RecordBatch]]:
        form = self._operator.form
        return self.each(batch, form.of, form.cut)

    def each(self, batch: pa.RecordBatch, of: Any, cut: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
        key = self._operator.keys[self.side]
        if not key:
            raise PipelineError(f"operator '{self.operator}': this side has no key: call key_by on it")
        if batch.num_rows == 0:
            return
        groups = group(batch, key, self.operator)
        # Both sides of a connection have one key; it goes by the names of the operator's first keyed input.
        keys = groups.keys.rename_columns(list(self._context.key))
        self._declare(keys.schema)
        whole = of(groups.batch)
        numbers = self._keyed.groups_of(keys)
        for number, key_tuple, start, end in zip(numbers, groups.key_tuples(), groups.starts, groups.ends, strict=True):
            self.move(number, key_tuple)
            yield key_tuple, cut(whole, start, end)

    def _declare(self, schema: pa.Schema) -> None:
        if self._declared is not None and schema.equals(self._declared):
            return
        self._declared = schema
        try:
            self._keyed.declare_key(schema)
        except PipelineError as error:
            raise DataError(f"operator '{self.operator}': {error}. Cast one of them") from error

    # --- timers ---

    def set_timer(self, at_ms: int) -> None:
        self._operator.timers.set(int(at_ms), self.key_group, self.key)

    def delete_timer(self, at_ms: int) -> None:
        self._operator.timers.delete(int(at_ms))

    def timers(self) -> Sequence[int]:
        return self._operator.timers.times()


class StatefulOperator(NamedOperator):
    """What the keyed and the two-input operator have in common: states, timers, output."""

    emits_later = True
    form: Form
    timers: KeyedTimers

    def __init__(self, keys: Sequence[tuple[str, ...]], fire_at_end: bool) -> None:
        self.keys = tuple(keys)
        """The key columns of each input."""
        self.fire_at_end = fire_at_end
        self._has_timers = False
        self._outputs: list[Any] = []

    def opened(self) -> None:
        self.access = StateAccess(self)
        if any(self.keys):
            self._has_timers = True
            self.timers = KeyedTimers(self.context, self._on_due, self._flush)

    def on_restored(self, emit: Emit) -> Iterator[None] | None:
        self._emit = emit
        return self.timers.restored() if self._has_timers else None

    def on_watermark(self, watermark: int, emit: Emit) -> bool | None:
        self.access.watermark = None if watermark == MIN_WATERMARK else watermark
        return None

    def on_end(self, emit: Emit) -> Iterator[None] | None:
        return self.timers.end(self.fire_at_end) if self._has_timers else None

    def _on_due(self, key_group: int, key: tuple[Any, ...], at_ms: int) -> None:
        self.access.key_group, self.access.key = key_group, key
        with self.reporting("on_timer"):
            self._outputs += self.form.outputs(self.call_timer(key, at_ms))

    def call_timer(self, key: tuple[Any, ...], at_ms: int) -> Any:
        raise NotImplementedError

    def _flush(self) -> None:
        outputs, self._outputs = self._outputs, []
        self.emit_all(outputs, self._emit)

    def emit_all(self, outputs: Sequence[Any], emit: Emit) -> None:
        result = self.form.batch(outputs)
        if result is not None:
            emit(result)


class SparkRowsForm(RowsForm):
    """Rows as PySpark has them."""

    def of(self, batch: pa.RecordBatch) -> Any:
        names, columns = list(batch.schema.names), [column.to_pylist() for column in batch.columns]
        return [Row.of(names, values) for values in zip(*columns, strict=True)]


class ProcessOperator(StatefulOperator):
    """Calls a `KeyedFunction`, or a `StatefulProcessor`, with the records of one key after the other."""

    def __init__(
        self,
        function: Any,
        key: tuple[str, ...],
        as_: As,
        schema: pa.Schema | None,
        fire_at_end: bool,
    ) -> None:
        super().__init__([key], fire_at_end)
        # Each subtask has an instance of its own, as if it were in a process of its own.
        function = copy.deepcopy(function)
        self.is_processor = not isinstance(function, KeyedFunction)
        self.function = ProcessorFunction(function, as_ == "rows") if self.is_processor else function
        self.as_: As = as_
        self.schema = schema

    def opened(self) -> None:
        super().opened()
        guard = self.output_guard(self.schema)
        is_spark_rows = self.is_processor and self.as_ == "rows"
        self.form = SparkRowsForm(guard) if is_spark_rows else form_of(self.as_, guard)
        self.function.open(self.access)

    def work(self, batch: pa.RecordBatch, source: int, emit: Emit) -> None:
        access, form, outputs = self.access, self.form, []
        for key, rows in access.each(batch, form.of, form.cut):
            outputs += form.outputs(self.function.process(key, rows, access))
        self.emit_all(outputs, emit)

    def call_timer(self, key: tuple[Any, ...], at_ms: int) -> Any:
        return self.function.on_timer(key, at_ms, self.access)

    def close(self) -> None:
        self.function.close()


class TwoInputOperator(StatefulOperator):
    """Calls a `TwoInputFunction` with batches of its two inputs."""

    def __init__(
        self,
        function: Any,
        keys: Sequence[tuple[str, ...]],
        schema: pa.Schema | None,
        fire_at_end: bool,
    ) -> None:
        super().__init__(keys, fire_at_end)
        self.function: TwoInputFunction = copy.deepcopy(function)
        self.schema = schema

    def opened(self) -> None:
        super().opened()
        self.form = ArrowForm(self.output_guard(self.schema))
        self.function.open(self.access)

    def work(self, batch: pa.RecordBatch, source: int, emit: Emit) -> None:
        self.access.side = source
        call = self.function.process_right if source else self.function.process_left
        self.emit_all(self.form.outputs(call(batch, self.access)), emit)

    def call_timer(self, key: tuple[Any, ...], at_ms: int) -> Any:
        return self.function.on_timer(key, at_ms, self.access)

    def close(self) -> None:
        self.function.close()


class CallableTwoInput(TwoInputFunction):
    """A plain function of (batch, side) as a `TwoInputFunction`; side is "left" or "right"."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def process_left(self, batch: pa.RecordBatch, context: Any) -> Any:
        return self.function(batch, "left")

    def process_right(self, batch: pa.RecordBatch, context: Any) -> Any:
        return self.function(batch, "right")
