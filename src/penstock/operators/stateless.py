"""The stateless operators behind `map`, `filter` and `key_by`, and what they have in common with `flat_map`.

An operator is made once for every subtask, from a factory that travels to the workers in Spark's closure.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.expressions import evaluated
from penstock.columnar.gather import filter_rows, take_rows
from penstock.columnar.grouping import key_columns
from penstock.columnar.row_calls import RowCalls
from penstock.errors import DataError
from penstock.operators.contract import Emit, Row, UserFunction
from penstock.operators.failures import Failures, OnError, each_called, failures_of, narrowed
from penstock.operators.formats import As, Format, RowsFormat, format_of
from penstock.operators.named import NamedOperator
from penstock.operators.side_outputs import SideOutput
from penstock.operators.steps import Steps
from penstock.user_code import noting_batch

Made: TypeAlias = pa.RecordBatch | SideOutput
"""Something that leaves an operator: a batch of its main output, or one of a side output."""


class FunctionOperator(NamedOperator):
    """Calls a function with each batch, in the form that its user chose."""

    _failures: Failures | None = None

    def __init__(
        self,
        function: UserFunction | pc.Expression,
        as_: As,
        schema: pa.Schema | None = None,
        on_error: OnError = "raise",
    ) -> None:
        self.function = function
        self.as_ = as_
        self.schema = schema
        self.on_error: OnError = on_error

    def setup(self) -> None:
        self.format: Format = format_of(self.as_, self.output_guard(self.schema))
        self._failures = failures_of(self.context, self.on_error)
        self._by_row = None if isinstance(self.function, pc.Expression) or self.as_ != "rows" else self.row_function()

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> Steps | None:
        self.call(batch, emit)
        return None

    def call(self, batch: pa.RecordBatch, emit: Emit) -> None:
        """Call the function with these records, and emit its output."""
        if self._failures is not None:
            self._work_around(batch, emit)
            return
        for result in self._made_whole(batch) if self._by_row is None else self.made_by_row(batch):
            self.send(result, emit)

    def _made_whole(self, batch: pa.RecordBatch) -> list[Made]:
        with noting_batch(batch):
            return self.made(batch)

    def send(self, result: Made, emit: Emit) -> None:
        emit(result)

    def _work_around(self, batch: pa.RecordBatch, emit: Emit) -> None:
        """The same, without the rows for which it fails."""
        failed: dict[int, Exception] = {}
        for made in list(self._made_around(batch, failed)):
            for result in made:
                self.send(result, emit)
        assert self._failures is not None
        bad = sorted(failed)
        self._failures.report(take_rows(batch, np.array(bad, dtype=np.int64)), [failed[number] for number in bad])

    def _made_around(self, batch: pa.RecordBatch, failed: dict[int, Exception]) -> Iterator[list[Made]]:
        if self._by_row is None:
            yield from narrowed(
                batch.num_rows, lambda first, end: self.made(batch.slice(first, end - first)), failed.__setitem__
            )
            return
        numbers, results = each_called(self._by_row, self.format.of(batch), failed.__setitem__)
        taken = take_rows(batch, np.array(numbers, dtype=np.int64)) if failed else batch

        def made(first: int, end: int) -> list[Made]:
            return self.made_of(taken.slice(first, end - first), results[first:end])

        if results:
            # The results of a row may not become Arrow: the function is not called again to find them.
            yield from narrowed(len(results), made, lambda row, error: failed.__setitem__(numbers[row], error))

    def row_function(self) -> Callable[[Row], object]:
        """The function for one row, of a function of rows."""
        return self.function

    @abstractmethod
    def made(self, batch: pa.RecordBatch) -> list[Made]:
        """The output for a batch, of a function of batches."""

    @abstractmethod
    def made_by_row(self, batch: pa.RecordBatch) -> list[Made]:
        """The same, of a function of rows."""

    @abstractmethod
    def made_of(self, batch: pa.RecordBatch, results: list[object]) -> list[Made]:
        """The same, of a function of rows that has returned `results` for them."""

    def close(self) -> None:
        if self._failures is not None:
            self._failures.close()

    def _batch(self, outputs: Sequence[object]) -> list[Made]:
        result = self.format.batch(outputs)
        return [] if result is None else [result]


class MapOperator(FunctionOperator):
    """One output for each input: a batch for a batch, or a row for a row."""

    def made(self, batch: pa.RecordBatch) -> list[Made]:
        return self._batch([self.function(self.format.of(batch))])

    def made_by_row(self, batch: pa.RecordBatch) -> list[Made]:
        assert isinstance(self.format, RowsFormat)
        result = self.format.mapped(self.function, batch)
        return [] if result is None else [result]

    def made_of(self, batch: pa.RecordBatch, results: list[object]) -> list[Made]:
        return self._batch(results)


class FilterOperator(FunctionOperator):
    """Keeps the rows that the function, or an Arrow expression, chooses."""

    def row_function(self) -> Callable[[Row], object]:
        function = self.function
        return lambda row: bool(function(row))

    def made(self, batch: pa.RecordBatch) -> list[Made]:
        chosen = self.function if isinstance(self.function, pc.Expression) else self.function(self.format.of(batch))
        return self._filled(self._kept(batch, chosen))

    def made_by_row(self, batch: pa.RecordBatch) -> list[Made]:
        return self.made_of(batch, RowCalls(batch).truths(self.function))

    def made_of(self, batch: pa.RecordBatch, results: list[object]) -> list[Made]:
        return self._filled(filter_rows(batch, pa.array(np.array(results, dtype=np.bool_))))

    def _filled(self, kept: pa.RecordBatch | None) -> list[Made]:
        return [kept] if kept is not None and kept.num_rows else []

    def _error(self, text: str) -> DataError:
        return DataError(f"operator '{self.context.operator}': {text}")

    def _kept(self, batch: pa.RecordBatch, chosen: object) -> pa.RecordBatch | None:
        if isinstance(chosen, pc.Expression):
            (chosen,) = evaluated(batch, [chosen], self._error)
        if self.format.is_one(chosen):
            return self.format.batch([chosen])
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


class KeyCheckOperator(NamedOperator):
    """Lets records pass whose key has no null, and fails at the first one that has."""

    def __init__(self, key: Sequence[str]) -> None:
        self.key = tuple(key)

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> None:
        for name, column in zip(self.key, key_columns(batch, self.key, self.context.operator), strict=True):
            if column.null_count:
                raise DataError(
                    f"operator '{self.context.operator}': the key column '{name}' is null in {column.null_count} of "
                    f'{batch.num_rows} rows: filter them out, or use key_by(…, nulls="group")'
                )
        emit(batch)
