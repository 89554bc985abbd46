"""The stateless operators behind `map`, `filter`, `flat_map`, `select` and `key_by`, and the columnar keyed ones.

An operator is made once for every subtask, from a factory that travels to the workers in Spark's closure. What a
user's function raises is reported with the operator's name by the chain it runs in; calls that do not come from
there (timers, background work) use `reporting`.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.gather import filter_rows, joined, mask_of
from penstock.columnar.grouping import group, hashable, key_columns
from penstock.columnar.schema_guard import SchemaGuard, column_of
from penstock.errors import DataError, PenstockError, UserCodeError
from penstock.model.aggregates import Aggregate
from penstock.operators.contract import Emit, Operator, OperatorContext
from penstock.operators.formats import As, Form, RowsForm, form_of
from penstock.operators.steps import Steps
from penstock.user_code import called_with, user_code_error

_EMITTED_ROWS = 1 << 12
"""Rows of one batch at the end of an input."""
_CONVERTED_ROWS = 1 << 12
"""Rows that become Python objects in one call."""
_OUTDATED_ROWS = 1024
"""Outdated rows of `reduce` that are kept in any case: to throw out a few would not be worth a call."""
_MERGED_ROWS = 1 << 16
"""Batches of `reduce` that are larger than this are left as they are: to copy them would take longer than a slice."""


class NamedOperator(Operator):
    """Knows its context, holds each of its inputs to one schema."""

    context: OperatorContext

    def open(self, context: OperatorContext) -> None:
        self.context = context
        self._inputs: dict[int, SchemaGuard] = {}
        self.opened()

    def opened(self) -> None:
        """The context is there: make guards, ask for state."""

    def process(self, batch: pa.RecordBatch, source: int, emit: Emit) -> Steps | None:
        guard = self._inputs.get(source)
        if guard is None:
            number = f", input {source}" if source else ""
            guard = self._inputs[source] = SchemaGuard(f"operator '{self.context.operator}'{number}")
        return self.work(guard.check(batch), source, emit)

    @abstractmethod
    def work(self, batch: pa.RecordBatch, source: int, emit: Emit) -> Steps | None:
        """Work on records whose schema is that of the ones before."""

    def output_guard(self, schema: pa.Schema | None = None) -> SchemaGuard:
        return SchemaGuard(f"output of operator '{self.context.operator}'", schema)

    @contextlib.contextmanager
    def reporting(self, what: str) -> Iterator[None]:
        """Turn what user code raises into an error that names the operator."""
        try:
            yield
        except PenstockError:
            raise
        except Exception as error:
            raise self.failed(what, error) from error

    def failed(self, what: str, error: Exception) -> UserCodeError:
        context = self.context
        where = f"operator '{context.operator}', subtask {context.subtask} of {context.parallelism}"
        return user_code_error(f"{where}: {what}", error)


class FunctionOperator(NamedOperator):
    """Calls a function with each batch, in the form that its user chose."""

    def __init__(self, function: Callable[[Any], Any], as_: As, schema: pa.Schema | None = None) -> None:
        self.function = function
        self.as_ = as_
        self.schema = schema

    def opened(self) -> None:
        self.form: Form = form_of(self.as_, self.output_guard(self.schema))


class MapOperator(FunctionOperator):
    """One output for each input: a batch for a batch, or a row for a row."""

    def work(self, batch: pa.RecordBatch, source: int, emit: Emit) -> None:
        given = self.form.of(batch)
        outputs = called_with(self.function, given) if self.as_ == "rows" else [self.function(given)]
        result = self.form.batch(outputs)
        if result is not None:
            emit(result)


class FlatMapOperator(FunctionOperator):
    """Any number of outputs for each batch or row."""

    def work(self, batch: pa.RecordBatch, source: int, emit: Emit) -> None:
        form, given = self.form, self.form.of(batch)
        if self.as_ == "rows":
            made = called_with(lambda row: list(form.outputs(self.function(row))), given)
            result = form.batch([output for outputs in made for output in outputs])
            if result is not None:
                emit(result)
            return
        for output in form.outputs(self.function(given)):
            result = form.batch([output])
            if result is not None:
                emit(result)


class FilterOperator(FunctionOperator):
    """Keeps the rows that the function, or an Arrow expression, chooses."""

    def work(self, batch: pa.RecordBatch, source: int, emit: Emit) -> None:
        if isinstance(self.function, pc.Expression):
            chosen: Any = self.function
        elif self.as_ == "rows":
            chosen = np.array([bool(each) for each in called_with(self.function, batch.to_pylist())], dtype=np.bool_)
        else:
            chosen = self.function(self.form.of(batch))
        kept = self._kept(batch, chosen)
        if kept is not None and kept.num_rows:
            emit(kept)

    def _kept(self, batch: pa.RecordBatch, chosen: Any) -> pa.RecordBatch | None:
        if isinstance(chosen, pc.Expression):
            chosen = mask_of(batch, chosen)
        if self.form.is_one(chosen):
            return self.form.batch([chosen])
        if isinstance(chosen, pa.ChunkedArray):
            chosen = chosen.combine_chunks()
        elif hasattr(chosen, "to_arrow"):
            chosen = chosen.to_arrow()
        mask = chosen if isinstance(chosen, pa.Array) else pa.array(chosen, from_pandas=True)
        if not pa.types.is_boolean(mask.type) or len(mask) != batch.num_rows:
            raise DataError(
                f"operator '{self.context.operator}': filter needs a boolean for each of {batch.num_rows} rows, an "
                f"Arrow expression or the filtered batch, and the function returned {len(mask)} of type {mask.type}"
            )
        return filter_rows(batch, mask)


class SelectOperator(NamedOperator):
    """Columns by name, in this order."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = list(columns)

    def work(self, batch: pa.RecordBatch, source: int, emit: Emit) -> None:
        def error(text: str) -> DataError:
            return DataError(f"operator '{self.context.operator}': {text}")

        chosen = [column_of(batch, name, error) for name in self.columns]
        emit(pa.RecordBatch.from_arrays(chosen, names=self.columns))


class WithColumnOperator(NamedOperator):
    """Adds or replaces one column, which a function makes from each batch."""

    def __init__(self, column: str, function: Callable[[pa.RecordBatch], Any]) -> None:
        self.column = column
        self.function = function

    def opened(self) -> None:
        self.guard = self.output_guard()

    def work(self, batch: pa.RecordBatch, source: int, emit: Emit) -> None:
        made = self.function(batch)
        if isinstance(made, pa.ChunkedArray):
            made = made.combine_chunks()
        elif isinstance(made, pa.Scalar):
            made = pa.repeat(made, batch.num_rows)
        array = made if isinstance(made, pa.Array) else pa.array(made)
        if len(array) != batch.num_rows:
            raise DataError(
                f"operator '{self.context.operator}': column '{self.column}' needs {batch.num_rows} values, "
                f"and the function returned {len(array)}"
            )
        position = batch.schema.get_field_index(self.column)
        if position < 0:
            emit(self.guard.check(batch.append_column(self.column, array)))
        else:
            emit(self.guard.check(batch.set_column(position, self.column, array)))


class KeyCheckOperator(NamedOperator):
    """Lets records pass whose key has no null, and fails at the first one that has."""

    def __init__(self, key: Sequence[str]) -> None:
        self.key = tuple(key)

    def work(self, batch: pa.RecordBatch, source: int, emit: Emit) -> None:
        for name, column in zip(self.key, key_columns(batch, self.key, self.context.operator), strict=True):
            if column.null_count:
                raise DataError(
                    f"operator '{self.context.operator}': the key column '{name}' is null in {column.null_count} of "
                    f'{batch.num_rows} rows: filter them out, or say key_by(…, nulls="group")'
                )
        emit(batch)


class Pending:
    """The keys that have had records since they were emitted, for operators that emit at the end of their input.

    They are state: after a failure the same keys are pending, and after the end none is.
    """

    def __init__(self, context: OperatorContext) -> None:
        self._state: Any = context.keyed.aggregate("pending", context.key, [Aggregate("count", None, "")])
        self._key = list(context.key)

    def add(self, batch: pa.RecordBatch) -> None:
        self._state.fold(batch.select(self._key))

    def pop(self) -> Iterator[pa.RecordBatch]:
        """The keys, in batches; then none is pending."""
        taken = self._state.take_all()
        if taken is not None:
            keys = taken.select(self._key)
            for start in range(0, keys.num_rows, _EMITTED_ROWS):
                yield keys.slice(start, _EMITTED_ROWS)


class AggregateOperator(NamedOperator):
    """Folds each batch into columnar aggregates, and emits the current values of the keys in it, or all at the end."""

    def __init__(self, aggregates: Sequence[Aggregate], is_final: bool = False) -> None:
        self.aggregates = tuple(aggregates)
        self.is_final = is_final

    def opened(self) -> None:
        self._state: Any = self.context.keyed.aggregate("aggregates", self.context.key, self.aggregates)
        self._pending = Pending(self.context) if self.is_final else None

    def work(self, batch: pa.RecordBatch, source: int, emit: Emit) -> None:
        key_columns(batch, self.context.key, self.context.operator)
        try:
            if self._pending is None:
                emit(self._state.update(batch))
            else:
                self._state.fold(batch)
                self._pending.add(batch)
        except DataError as error:
            raise DataError(f"operator '{self.context.operator}': {error}") from error

    def on_end(self, emit: Emit) -> Iterator[None]:
        if self._pending is not None:
            for keys in self._pending.pop():
                emit(self._state.of_keys(keys))
                yield


class ReduceOperator(NamedOperator):
    """Keeps one row for each key, which a function makes from the row so far and the next one.

    The rows lie in the state as batches, newest last, like a log: a batch of changed rows is added after each call.
    When more than half of the log is outdated, each call cleans a little of its beginning, in proportion to what it
    adds: rows that are still current move to the end. So no call takes longer because the state is large. The
    dictionary is only an index to the log, with the number of each row in it.
    """

    def __init__(
        self,
        function: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]],
        sequence: str | None = None,
        is_final: bool = False,
    ) -> None:
        self.function = function
        self.sequence = sequence
        self.is_final = is_final

    def opened(self) -> None:
        self._pending = Pending(self.context) if self.is_final else None
        self._state: Any = self.context.keyed.rows("reduced", self.context.key)
        self._rows: dict[tuple[Any, ...], tuple[int, dict[str, Any]]] = {}
        self._first = self._next = 0
        """The numbers of the first row in the log, and of the next one that is added."""
        self._form = RowsForm(self.output_guard())

    def on_restored(self, emit: Emit) -> Iterator[None]:
        is_over = self.context.begin_slice()
        for batch in self._state.get():
            self._form.guard.check(batch)
            for start in range(0, batch.num_rows, _CONVERTED_ROWS):
                for row in batch.slice(start, _CONVERTED_ROWS).to_pylist():
                    self._add(row)
                if is_over():
                    yield
                    is_over = self.context.begin_slice()

    def _add(self, row: dict[str, Any]) -> None:
        self._rows[self._key_of(row)] = self._next, row
        self._next += 1

    def _key_of(self, row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(hashable(row[name]) for name in self.context.key)

    def work(self, batch: pa.RecordBatch, source: int, emit: Emit) -> None:
        groups = group(batch, self.context.key, self.context.operator)
        rows = groups.batch.to_pylist()
        self._form.guard.check(self._result_of(batch.slice(0, 0)))
        touched: dict[tuple[Any, ...], dict[str, Any]] = {}
        for start, end in zip(groups.starts, groups.ends, strict=True):
            key = self._key_of(rows[start])
            _, before = self._rows.get(key, (0, None))
            touched[key] = self._reduced(touched.get(key, before), rows[start:end])
        changed = self._form.batch(list(touched.values()))
        assert changed is not None
        self._store(changed, touched)
        if self._pending is None:
            emit(changed)
        else:
            self._pending.add(batch)

    def on_end(self, emit: Emit) -> Iterator[None]:
        if self._pending is not None:
            for keys in self._pending.pop():
                rows = self._form.batch([self._rows[self._key_of(row)][1] for row in keys.to_pylist()])
                assert rows is not None
                emit(rows)
                yield

    def _result_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.sequence is None:
            return batch
        if self.sequence in batch.schema.names:
            raise DataError(
                f"operator '{self.context.operator}': the records have a column '{self.sequence}' already: give the "
                f"sequence another name"
            )
        return batch.append_column(self.sequence, pa.nulls(batch.num_rows, pa.int64()))

    def _reduced(self, row: dict[str, Any] | None, rows: list[dict[str, Any]]) -> dict[str, Any]:
        if self.sequence is None:
            return self._folded(row, rows)
        before = 0 if row is None else row[self.sequence]
        # The function does not know of the sequence: it may compare the columns of both rows.
        bare = None if row is None else {name: value for name, value in row.items() if name != self.sequence}
        return {**self._folded(bare, rows), self.sequence: before + len(rows)}

    def _folded(self, row: dict[str, Any] | None, rows: list[dict[str, Any]]) -> dict[str, Any]:
        key = {name: rows[0][name] for name in self.context.key}
        for other in rows:
            row = other if row is None else self.function(row, other)
            if not isinstance(row, dict):
                raise DataError(
                    f"operator '{self.context.operator}': reduce needs a function that returns a dict, not {row!r}"
                )
        assert row is not None
        # A function that changes the key would change another key's state.
        return {**row, **key}

    def _store(self, changed: pa.RecordBatch, rows: Mapping[tuple[Any, ...], dict[str, Any]]) -> None:
        for key, row in rows.items():
            self._rows[key] = self._next, row
            self._next += 1
        log = merged(list(self._state.get()), changed)
        if self._next - self._first > 2 * len(self._rows) + _OUTDATED_ROWS:
            log = self._cleaned(log, 2 * changed.num_rows)
        self._state.put(log)

    def _cleaned(self, log: list[pa.RecordBatch], rows_max: int) -> list[pa.RecordBatch]:
        """The log without its first rows, about `rows_max` of them; those that are current are at its end."""
        first = log[0].slice(0, rows_max)
        log[0] = log[0].slice(first.num_rows)
        current = []
        for number, row in enumerate(first.select(list(self.context.key)).to_pylist(), self._first):
            key = self._key_of(row)
            newest, whole = self._rows[key]
            if newest == number:
                self._rows[key] = self._next, whole
                self._next += 1
                current.append(whole)
        self._first += first.num_rows
        moved = self._form.batch(current)
        rest = log if log[0].num_rows else log[1:]
        return rest if moved is None else merged(rest, moved)


def merged(log: list[pa.RecordBatch], added: pa.RecordBatch) -> list[pa.RecordBatch]:
    """The log with a batch added; neighbours at its end are merged while they are of like size, and not yet large."""
    log = [*log, added]
    while len(log) > 1 and log[-2].num_rows <= 2 * log[-1].num_rows and log[-2].num_rows < _MERGED_ROWS:
        whole = joined(log[-2:])
        if len(whole) > 1:
            break
        log[-2:] = whole
    return log
