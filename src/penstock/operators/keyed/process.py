"""The operators behind `KeyedStream.process` and `ConnectedStreams.process`: user functions with state and timers.

A batch is sorted by key once; the function is then called with one slice for each key. The loop is over keys, not
rows. What the calls return is put together again, so that many keys do not mean many small batches.
"""

from __future__ import annotations

import bisect
import copy
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.columnar.gather import take_rows
from penstock.columnar.grouping import Groups, group, key_columns, key_tuples
from penstock.columnar.schema_guard import SchemaGuard, SchemaLike, as_schema
from penstock.errors import DataError, PenstockError, PipelineError
from penstock.metrics.group import MetricGroup
from penstock.model.event_time import MIN_WATERMARK, timestamp_ms
from penstock.model.units import Duration, duration_ms
from penstock.operators.contract import BatchState, Emit, Key, OperatorContext
from penstock.operators.formats import ArrowFormat, As, Format, Records, format_of
from penstock.operators.keyed.functions import KeyedFunction, TwoInputContext, TwoInputFunction
from penstock.operators.keyed.handles import ListState, MapState, ValueState
from penstock.operators.keyed.timers import KeyedTimers, TimeMode, timers_of
from penstock.operators.keyed.ttl import ExpiringListState, ExpiringMapState, ExpiringValueState, with_expiry
from penstock.operators.named import NamedOperator
from penstock.operators.spark.processor import ProcessorFunction
from penstock.operators.spark.values import SparkPandasFormat, SparkRowsFormat, StateTuples
from penstock.operators.steps import Steps
from penstock.state.keyed import KeyedState
from penstock.state.rows.rows import RowsState
from penstock.user_code import shortened

Whole: TypeAlias = Callable[[pa.RecordBatch], Records]
Cut: TypeAlias = Callable[[Records, int, int], Records]
Shown: TypeAlias = Callable[[pa.RecordBatch], Sequence[Key]]
"""A batch in the format of a function; some of its rows; and its keys as the function sees them."""

_INITIAL_ROWS = 1 << 14
"""Rows of the initial state that are grouped by key in one call."""
_PORTION_ROWS = 1 << 12
"""Rows that become what a function sees at once, if single calls do not get more."""


class StateAccess:
    """Implements `KeyedContext` and `TwoInputContext` on the context of an operator."""

    def __init__(self, operator: StatefulOperator) -> None:
        self._operator = operator
        self._context: OperatorContext = operator.context
        self.key: Key = ()
        self.key_group = -1
        self.side = 0
        self.timer_ms = MIN_WATERMARK
        """The latest event-time timer that was called."""
        self.is_open = False
        """Whether the function was opened: from then on it gets the states that it has asked for, and no others."""
        self._asked: set[str] = set()
        self._metrics: MetricGroup | None = None
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

    @property
    def watermark(self) -> int | None:
        # At the end of the input timers are called that the watermark never reached.
        reached = max(self._context.watermark, self.timer_ms)
        return None if reached == MIN_WATERMARK else reached

    @property
    def metrics(self) -> MetricGroup:
        if self._metrics is None:
            self._metrics = MetricGroup(self._context.metrics, f"operator '{self.operator}'")
        return self._metrics

    def now_ms(self) -> int:
        return self._context.now_ms()

    # --- state ---

    def _ask(self, name: str) -> None:
        """A state is asked for. One that `open` did not ask for would be lost after the first failure (I8)."""
        if self.is_open and name not in self._asked:
            raise DataError(
                f"operator '{self.operator}': the function asks for state '{name}' while it works on records: ask for "
                f"every state in open(), or init(), because there it is restored after a failure"
            )
        self._asked.add(name)

    def _ttl_ms(self, name: str, ttl: Duration | None) -> int | None:
        if ttl is None:
            return None
        self._operator.check_ttl(name)
        return duration_ms(f"operator '{self.operator}': the ttl of state '{name}'", ttl, at_least_ms=1)

    def value(self, name: str, schema: SchemaLike, *, ttl: Duration | None = None) -> ValueState:
        self._ask(name)
        ttl_ms = self._ttl_ms(name, ttl)
        kind = as_schema(schema)
        if ttl_ms is None:
            plain: ValueState = self._keyed.value(name, kind)
            return plain
        return ExpiringValueState(self._keyed.value(name, with_expiry(kind)), ttl_ms, self._context)

    def list(self, name: str, schema: SchemaLike, *, ttl: Duration | None = None) -> ListState:
        self._ask(name)
        ttl_ms = self._ttl_ms(name, ttl)
        kind = as_schema(schema)
        if ttl_ms is None:
            plain: ListState = self._keyed.list(name, kind)
            return plain
        return ExpiringListState(self._keyed.list(name, with_expiry(kind)), ttl_ms, self._context)

    def map(
        self, name: str, key_schema: SchemaLike, value_schema: SchemaLike, *, ttl: Duration | None = None
    ) -> MapState:
        self._ask(name)
        ttl_ms = self._ttl_ms(name, ttl)
        key, kind = as_schema(key_schema), as_schema(value_schema)
        if ttl_ms is None:
            plain: MapState = self._keyed.map(name, key, kind)
            return plain
        return ExpiringMapState(self._keyed.map(name, key, with_expiry(kind)), ttl_ms, self._context)

    def delete_state(self, name: str) -> None:
        if self.is_open:
            raise DataError(
                f"operator '{self.operator}': the function deletes state '{name}' while it works on records: delete "
                f"states in open(), or init(), and use clear() to remove the value of a key"
            )
        self._keyed.remove(name)

    def rows(self, name: str, side: str = "left") -> RowsState:
        self._ask(name)
        return self._keyed.rows(name, self._operator.keys[("left", "right").index(side)])

    def broadcast_state(self, name: str) -> BatchState:
        self._ask(name)
        return self._context.broadcast_state(name)

    @property
    def _keyed(self) -> KeyedState:
        return self._context.keyed

    # --- the current key ---

    def move(self, key_group: int, key: Key) -> None:
        self._keyed.set_key(key_group, key)
        self.key_group, self.key = key_group, key

    def each_key(self, batch: pa.RecordBatch) -> Iterator[tuple[Key, pa.RecordBatch]]:
        format = self._operator.format
        return self.each(batch, format.of, format.cut)

    def own_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows whose keys belong to this subtask (I9)."""
        columns = key_columns(batch, self._operator.keys[0], self.operator)
        keys = pa.RecordBatch.from_arrays(columns, names=list(self._context.key))
        groups = np.array(self._keyed.groups_of(keys), dtype=np.int64)
        owned = self._context.key_groups
        return take_rows(batch, np.flatnonzero((groups >= owned.start) & (groups < owned.stop)))

    @property
    def key_schema(self) -> pa.Schema:
        """The columns of the key, which a record or a checkpoint has declared."""
        return self._keyed.key_schema

    def each(
        self, batch: pa.RecordBatch, of: Whole, cut: Cut, shown: Shown | None = None
    ) -> Iterator[tuple[Key, Records]]:
        """Keys and their records, while all states are at the key. `shown` makes the keys that the function sees."""
        if batch.num_rows:
            groups = self.grouped(batch)
            for key, rows, _ in self.calls(groups, of, cut, shown, lambda: batch.num_rows):
                yield key, rows

    def grouped(self, batch: pa.RecordBatch) -> Groups:
        """The batch sorted by key; the state knows the types of the key from now on."""
        key = self._operator.keys[self.side]
        if not key:
            raise PipelineError(f"operator '{self.operator}': this side has no key: call key_by on it")
        groups = group(batch, key, self.operator)
        # Both sides of a connection have one key; it goes by the names of the operator's first keyed input.
        self._declare(groups.keys.rename_columns(list(self._context.key)).schema)
        return groups

    def calls(
        self, groups: Groups, of: Whole, cut: Cut, shown: Shown | None, rows_max: Callable[[], int]
    ) -> Iterator[tuple[Key, Records, int]]:
        """For each call of a function: the key, its records, and the number of sorted rows up to the last of them.

        While a key is in hand all states are at it. A key with more than `rows_max()` records has several calls. The
        rows become what the function sees in portions, so that no conversion takes long.
        """
        names, first, row = list(self._context.key), 0, 0
        while row < groups.batch.num_rows:
            # A whole number of calls, for a key with many records.
            portion_rows = rows_max() * max(1, _PORTION_ROWS // rows_max())
            end = max(bisect.bisect_right(groups.ends, row + portion_rows, first), first + 1)
            # One key alone may have more records than a portion: then it goes on with the next one.
            stop = min(groups.ends[end - 1], row + portion_rows)
            keys = groups.keys.slice(first, end - first)
            whole, tuples = of(groups.batch.slice(row, stop - row)), key_tuples(keys)
            numbers = self._keyed.groups_of(keys.rename_columns(names))
            seen = tuples if shown is None else shown(keys)
            starts, ends = [row, *groups.starts[first + 1 : end]], [*groups.ends[first : end - 1], stop]
            for number, key, key_seen, start, last in zip(numbers, tuples, seen, starts, ends, strict=True):
                done = start
                while done < last:
                    since, done = done, min(last, done + rows_max())
                    self.move(number, key)
                    yield key_seen, cut(whole, since - row, done - row), done
            first, row = end if stop == groups.ends[end - 1] else first, stop

    def _declare(self, schema: pa.Schema) -> None:
        if self._declared is not None and schema.equals(self._declared):
            return
        self._declared = schema
        try:
            self._keyed.declare_key(schema)
        except PipelineError as error:
            raise DataError(f"operator '{self.operator}': {error}. Cast one of them") from error

    # --- timers ---

    def set_timer(self, at: int | datetime) -> None:
        if self.key_group < 0:
            raise DataError(
                f"operator '{self.operator}': a timer is set in open(), or init(), where there is no key: set it for a "
                f"record of the key"
            )
        self._operator.timers.set(timestamp_ms(at), self.key_group, self.key)

    def delete_timer(self, at: int | datetime) -> None:
        self._operator.timers.delete(timestamp_ms(at))

    def timers(self) -> Sequence[int]:
        return self._operator.timers.times()


class StatefulOperator(NamedOperator):
    """What the keyed and the two-input operator have in common: states, timers, output."""

    emits_later = True
    format: Format
    timers: KeyedTimers

    def __init__(self, keys: Sequence[tuple[str, ...]], fire_at_end: bool, time_mode: TimeMode) -> None:
        self.keys = tuple(keys)
        """The key columns of each input."""
        self.fire_at_end = fire_at_end
        self.time_mode = time_mode
        self._has_timers = any(self.keys)
        self._outputs: list[object] = []

    def setup(self) -> None:
        self.access = StateAccess(self)
        if self._has_timers:
            self.timers = timers_of(self.time_mode, self.context, self._on_due, self._flush, self.keeps_own_timer)

    keeps_own_timer = True

    def open_function(self, function: Any) -> None:
        """Let the function ask for its states; from now on it may not ask for others."""
        function.open(self.access)
        self.access.is_open = True

    def check_ttl(self, name: str) -> None:
        """A state is asked for with a time to live."""

    @property
    def is_idle(self) -> bool:  # type: ignore[override]
        return not (self._has_timers and self.timers.is_calling)

    def on_restored(self, emit: Emit) -> Iterator[None] | None:
        self._emit = emit
        return self.timers.load_state() if self._has_timers else None

    def on_watermark(self, watermark: int, emit: Emit) -> bool | None:
        return self._has_timers and self.timers.on_watermark(watermark)

    def on_end(self, emit: Emit) -> Iterator[None] | None:
        return self.timers.end(self.fire_at_end) if self._has_timers else None

    def _on_due(self, key_group: int, key: Key, at_ms: int) -> None:
        self.access.key_group, self.access.key = key_group, key
        if self.time_mode == "event":
            self.access.timer_ms = max(self.access.timer_ms, at_ms)
        with self.reporting("on_timer"):
            self._outputs += self.format.outputs(self.call_timer(key, at_ms))

    def call_timer(self, key: Key, at_ms: int) -> object:
        raise NotImplementedError

    def _flush(self) -> None:
        outputs, self._outputs = self._outputs, []
        self.emit_all(outputs, self._emit)

    def emit_all(self, outputs: Sequence[object], emit: Emit) -> None:
        result = self.format.batch(outputs)
        if result is not None:
            emit(result)


class ProcessOperator(StatefulOperator):
    """Calls a `KeyedFunction` with the records of one key after the other."""

    def __init__(
        self,
        function: Any,
        key: tuple[str, ...],
        as_: As,
        schema: pa.Schema | None,
        fire_at_end: bool,
        time_mode: TimeMode,
    ) -> None:
        super().__init__([key], fire_at_end, time_mode)
        # Each subtask has its own instance, as if it ran in its own process.
        self.function: KeyedFunction = copy.deepcopy(function)
        self.as_: As = as_
        self.schema = schema

    def setup(self) -> None:
        super().setup()
        self.format = self.format_of(self.output_guard(self.schema))
        self.open_function(self.function)

    def format_of(self, guard: SchemaGuard) -> Format:
        return format_of(self.as_, guard)

    works_in_steps = True

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> Steps:
        groups = self.access.grouped(batch)
        return Steps(groups.order, lambda steps: self._by_key(groups, steps, emit))

    def keys_shown(self) -> Shown | None:
        """Makes the keys that the function sees from a batch of them; None for tuples."""
        return None

    def _by_key(self, groups: Groups, steps: Steps, emit: Emit) -> Iterator[None]:
        access, format, process, begin_slice = self.access, self.format, self.function.process, self.context.begin_slice
        outputs: list[object] = []
        is_over = begin_slice()
        try:
            for key, rows, done in access.calls(
                groups, format.of, format.cut, self.keys_shown(), lambda: steps.call_rows_max
            ):
                outputs += format.outputs(process(key, rows, access))
                steps.calls += 1
                if is_over() and done < len(groups.order):
                    # I1: the state of these keys has changed, so their output leaves before anybody looks at it.
                    self.emit_all(outputs, emit)
                    outputs, steps.rows_done = [], done
                    yield
                    is_over = begin_slice()
        except PenstockError:
            raise
        except Exception as error:
            raise self.failed(f"process, key {shortened(repr(access.key))}", error) from error
        self.emit_all(outputs, emit)

    def call_timer(self, key: Key, at_ms: int) -> object:
        return self.function.on_timer(key, at_ms, self.access)

    def close(self) -> None:
        self.function.close()


class ProcessorOperator(ProcessOperator):
    """Calls a `StatefulProcessor` in the same way, with keys, records and timers as PySpark has them."""

    keeps_own_timer = False
    format: SparkPandasFormat | SparkRowsFormat
    function: ProcessorFunction

    def __init__(
        self,
        processor: Any,
        key: tuple[str, ...],
        as_: As,
        schema: pa.Schema | None,
        fire_at_end: bool,
        time_mode: TimeMode,
        initial_state: pa.Table | None = None,
    ) -> None:
        function = ProcessorFunction(processor, as_ == "rows", time_mode)
        super().__init__(function, key, as_, schema, fire_at_end, time_mode)
        self.initial_state = initial_state
        self._key_rows: StateTuples | None = None

    def format_of(self, guard: SchemaGuard) -> Format:
        format = SparkRowsFormat if self.as_ == "rows" else SparkPandasFormat
        return format(guard, self.context.time_zone)

    def check_ttl(self, name: str) -> None:
        if self.time_mode != "processing":
            raise DataError(
                f"operator '{self.context.operator}': state '{name}' has a time to live, which is in processing time, "
                f'and the operator has time_mode="{self.time_mode}": say time_mode="processing" in process(), or clear '
                f"the state with an event-time timer"
            )

    def on_restored(self, emit: Emit) -> Iterator[None]:
        steps = super().on_restored(emit)
        if steps is not None:
            yield from steps
        if self.initial_state is not None and self.context.is_new:
            yield from self._take_initial_state(self.initial_state)

    def _take_initial_state(self, table: pa.Table) -> Iterator[None]:
        """Hand over the rows of the keys that are ours (I9). No checkpoint is taken before all of it is state."""
        is_over = self.context.begin_slice()
        for batch in table.to_batches(max_chunksize=_INITIAL_ROWS):
            for key, rows in self.access.each(
                self.access.own_rows(batch), self.format.of, self.format.cut, self.format.keys
            ):
                self.function.initial_state(key, rows, self.access)
                if is_over():
                    yield
                    is_over = self.context.begin_slice()

    def keys_shown(self) -> Shown | None:
        return self.format.keys

    def call_timer(self, key: Key, at_ms: int) -> object:
        if self._key_rows is None:
            self._key_rows = StateTuples(self.access.key_schema)
        return self.function.on_timer(self._key_rows.row(key), at_ms, self.access)


class TwoInputOperator(StatefulOperator):
    """Calls a `TwoInputFunction` with batches of its two inputs."""

    def __init__(
        self,
        function: Any,
        keys: Sequence[tuple[str, ...]],
        schema: pa.Schema | None,
        fire_at_end: bool,
        time_mode: TimeMode,
    ) -> None:
        super().__init__(keys, fire_at_end, time_mode)
        self.function: TwoInputFunction = copy.deepcopy(function)
        self.schema = schema

    def setup(self) -> None:
        super().setup()
        self.format = ArrowFormat(self.output_guard(self.schema))
        self.open_function(self.function)

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> None:
        self.access.side = input_index
        call = self.function.process_right if input_index else self.function.process_left
        self.emit_all(self.format.outputs(call(batch, self.access)), emit)

    def call_timer(self, key: Key, at_ms: int) -> object:
        return self.function.on_timer(key, at_ms, self.access)

    def close(self) -> None:
        self.function.close()


class CallableTwoInput(TwoInputFunction):
    """A plain function of (batch, side) as a `TwoInputFunction`; side is "left" or "right"."""

    def __init__(self, function: Callable[[pa.RecordBatch, str], object]) -> None:
        self.function = function

    def process_left(self, batch: pa.RecordBatch, context: TwoInputContext) -> object:
        return self.function(batch, "left")

    def process_right(self, batch: pa.RecordBatch, context: TwoInputContext) -> object:
        return self.function(batch, "right")
