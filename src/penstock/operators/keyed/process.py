"""The operators behind `KeyedStream.process` and `ConnectedStreams.process`: user functions with state and timers.

A batch is sorted by key once; the function is then called with one slice for each key. The loop is over keys, not
rows. What the calls return is put together again, so that many keys do not mean many small batches.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import GeneratorType
from typing import Any, cast

import numpy as np
import pyarrow as pa

from penstock.columnar.gather import take_rows
from penstock.columnar.grouping import Groups
from penstock.columnar.schemas.schema_guard import SchemaGuard
from penstock.errors import DataError, PenstockError
from penstock.operators.contract import Emit, Key
from penstock.operators.failures import Failures, OnError, failures_of, narrowed
from penstock.operators.formats import ArrowFormat, As, Format, Records, format_of
from penstock.operators.keyed.access import Shown, StateAccess
from penstock.operators.keyed.functions import KeyedFunction, TwoInputContext, TwoInputFunction
from penstock.operators.keyed.timers import KeyedTimers, TimeMode, timers_of
from penstock.operators.named import NamedOperator
from penstock.operators.side_outputs import NO_SIDE_OUTPUTS, Schemas, SideOutputs
from penstock.operators.spark.processor import ProcessorFunction
from penstock.operators.spark.values import SparkPandasFormat, SparkRowsFormat, StateTuples
from penstock.operators.steps import Steps
from penstock.user_code import note_record, noting_batch, shortened

_INITIAL_ROWS = 1 << 14
"""Rows of the initial state that are grouped by key in one call."""


class StatefulOperator(NamedOperator):
    """What the keyed and the two-input operator have in common: states, timers, output."""

    emits_later = True
    as_: As = "arrow"
    format: Format
    timers: KeyedTimers

    def __init__(
        self, keys: Sequence[tuple[str, ...]], fire_at_end: bool, time_mode: TimeMode, side_schemas: Schemas
    ) -> None:
        self.keys = tuple(keys)
        """The key columns of each input."""
        self.fire_at_end = fire_at_end
        self.time_mode = time_mode
        self.side_schemas = side_schemas
        self._has_timers = any(self.keys)
        self._outputs: list[object] = []

    def setup(self) -> None:
        self.access = StateAccess(self)
        self.side_outputs = SideOutputs(self.context, self.side_schemas, self.as_)
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

    @contextlib.contextmanager
    def reporting(self, what: str) -> Iterator[None]:
        """Errors of the function tell for which key it was called; those of other operators are left as they are."""
        try:
            yield
        except PenstockError as error:
            note_record(error, self._key_text)
            raise
        except Exception as error:
            raise self.failed(f"{what}, {self._key_text}", error) from error

    @property
    def _key_text(self) -> str:
        return f"key {shortened(repr(self.access.key))}"

    def call_timer(self, key: Key, at_ms: int) -> object:
        raise NotImplementedError

    def _flush(self) -> None:
        outputs, self._outputs = self._outputs, []
        self.emit_all(outputs, self._emit)

    def emit_all(self, outputs: Sequence[object], emit: Emit) -> None:
        result = self.format.batch(outputs)
        if result is not None:
            emit(result)
        self.side_outputs.flush()


class ProcessOperator(StatefulOperator):
    """Calls a `KeyedFunction` with the records of one key after the other."""

    _failures: Failures | None = None

    def __init__(
        self,
        function: Any,
        key: tuple[str, ...],
        as_: As,
        schema: pa.Schema | None,
        fire_at_end: bool,
        time_mode: TimeMode,
        on_error: OnError = "raise",
        *,
        side_schemas: Schemas = NO_SIDE_OUTPUTS,
    ) -> None:
        super().__init__([key], fire_at_end, time_mode, side_schemas)
        self.on_error: OnError = on_error
        # Each subtask has its own instance, as if it ran in its own process.
        self.function: KeyedFunction = copy.deepcopy(function)
        self.as_ = as_
        self.schema = schema

    def setup(self) -> None:
        super().setup()
        self.format = self.format_of(self.output_guard(self.schema))
        self._failures = failures_of(self.context, self.on_error)
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
        one, count, is_around = format.one, len(groups.order), self._failures is not None
        outputs: list[object] = []
        called = 0
        is_over = begin_slice()
        with self.reporting("process"):
            for key, rows, done in access.calls(groups, format.of, format.cut, self.keys_shown(), steps):
                if is_around:
                    outputs += self._outputs_around(key, rows, groups.batch.slice(called, done - called))
                    called = done
                else:
                    returned = process(key, rows, access)
                    # Most functions return one output or are generators: the first two questions answer for those.
                    kind = type(returned)
                    if kind is one:
                        outputs.append(returned)
                    elif kind is GeneratorType:
                        outputs += cast(Iterable[object], returned)
                    elif returned is not None:
                        outputs += format.outputs(returned)
                steps.calls += 1
                if is_over() and done < count:
                    # I1: the state of these keys has changed, so their output leaves before anybody looks at it.
                    self.emit_all(outputs, emit)
                    outputs, steps.rows_done = [], done
                    yield
                    is_over = begin_slice()
        self.emit_all(outputs, emit)

    def _outputs_around(self, key: Key, rows: Records, batch: pa.RecordBatch) -> list[object]:
        """The outputs for records of one key, which are `batch`, without those for which the function raises."""
        failed: dict[int, Exception] = {}

        def attempt(first: int, end: int) -> list[object]:
            # The function may have changed the records that it has failed for: it gets others.
            is_whole = end - first == batch.num_rows
            given = rows if is_whole else self.format.of(batch.slice(first, end - first))
            undo, held = self.context.keyed.hold(), self.side_outputs.held
            try:
                return self.format.outputs(self.function.process(key, given, self.access))
            except Exception:
                # I1: a record is in the state as a whole, or not at all.
                undo()
                self.side_outputs.discard(held)
                raise

        outputs = [each for some in narrowed(batch.num_rows, attempt, failed.__setitem__) for each in some]
        assert self._failures is not None
        bad = sorted(failed)
        self._failures.report(take_rows(batch, np.array(bad, dtype=np.int64)), [failed[number] for number in bad])
        return outputs

    def call_timer(self, key: Key, at_ms: int) -> object:
        return self.function.on_timer(key, at_ms, self.access)

    def close(self) -> None:
        self.function.close()
        if self._failures is not None:
            self._failures.close()


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
        on_error: OnError = "raise",
        initial_state: pa.Table | None = None,
    ) -> None:
        function = ProcessorFunction(processor, as_ == "rows", time_mode)
        super().__init__(function, key, as_, schema, fire_at_end, time_mode, on_error)
        self.initial_state = initial_state
        self._key_rows: StateTuples | None = None

    def format_of(self, guard: SchemaGuard) -> Format:
        format = SparkRowsFormat if self.as_ == "rows" else SparkPandasFormat
        return format(guard, self.context.time_zone)

    def check_ttl(self, name: str) -> None:
        if self.time_mode != "processing":
            raise DataError(
                f"operator '{self.context.operator}': state '{name}' has a time to live, which is in processing time, "
                f'and the operator has time_mode="{self.time_mode}": set time_mode="processing" in process(), or clear '
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
    """Calls a `TwoInputFunction` with batches of its two inputs.

    The records of a side with a key are sorted by it, so that a call has few keys with many records each. A call has
    whole keys, or a part of one.
    """

    works_in_steps = True

    def __init__(
        self,
        function: Any,
        keys: Sequence[tuple[str, ...]],
        schema: pa.Schema | None,
        fire_at_end: bool,
        time_mode: TimeMode,
        *,
        side_schemas: Schemas = NO_SIDE_OUTPUTS,
    ) -> None:
        super().__init__(keys, fire_at_end, time_mode, side_schemas)
        self.function: TwoInputFunction = copy.deepcopy(function)
        self.schema = schema

    def setup(self) -> None:
        super().setup()
        self.format = ArrowFormat(self.output_guard(self.schema))
        self.open_function(self.function)

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> Steps:
        self.access.side = input_index
        if not self.keys[input_index] or not batch.num_rows:
            parts = functools.partial(_slices, batch)
            return Steps(np.arange(batch.num_rows), lambda steps: self._by_call(parts, input_index, steps, emit))
        groups = self.access.grouped(batch)
        return Steps(groups.order, lambda steps: self._by_call(groups.parts, input_index, steps, emit))

    def _by_call(
        self,
        parts: Callable[[Callable[[], int]], Iterator[Groups | pa.RecordBatch]],
        input_index: int,
        steps: Steps,
        emit: Emit,
    ) -> Iterator[None]:
        process = self.function.process_right if input_index else self.function.process_left
        is_over = self.context.begin_slice()
        done = 0
        for part in parts(lambda: steps.call_rows_max):
            given = self.access.given(part)
            steps.calls += 1
            steps.keys += 1 if isinstance(part, pa.RecordBatch) else len(part.starts)
            done += given.num_rows
            with noting_batch(given):
                outputs = self.format.outputs(process(given, self.access))
            self.emit_all(outputs, emit)
            if is_over() and done < len(steps.order):
                # I1: the output of these calls has left before anybody looks at the state.
                steps.rows_done = done
                yield
                is_over = self.context.begin_slice()
                self.access.side = input_index

    def call_timer(self, key: Key, at_ms: int) -> object:
        return self.function.on_timer(key, at_ms, self.access)

    def close(self) -> None:
        self.function.close()


def _slices(batch: pa.RecordBatch, rows_max: Callable[[], int]) -> Iterator[pa.RecordBatch]:
    """The batch in slices of at most `rows_max()` rows; an empty one too, which shows its schema."""
    row = 0
    while True:
        yield (part := batch.slice(row, rows_max()))
        row += part.num_rows
        if row >= batch.num_rows:
            return


class CallableTwoInput(TwoInputFunction):
    """A plain function of (batch, side) as a `TwoInputFunction`; side is "left" or "right"."""

    def __init__(self, function: Callable[[pa.RecordBatch, str], object]) -> None:
        self.function = function

    def process_left(self, batch: pa.RecordBatch, context: TwoInputContext) -> object:
        return self.function(batch, "left")

    def process_right(self, batch: pa.RecordBatch, context: TwoInputContext) -> object:
        return self.function(batch, "right")
