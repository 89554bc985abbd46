"""The operator behind `flat_map`: no, one or several outputs for each batch or row.

A function may return a generator, and one row may become a million. So the mailbox has its turns while a generator goes
on, and the output so far leaves then: memory does not grow with it. A checkpoint waits for the generator of one row, or
of one call with a batch: see `penstock.operators.steps`. The records behind it are still those of their channel (I1).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import cast

import numpy as np
import pyarrow as pa

from penstock.columnar.row_calls import RowCalls, Turns
from penstock.operators.contract import Emit, Row, UserFunction
from penstock.operators.failures import OnError
from penstock.operators.formats import As, Collected, RowsFormat, concatenated
from penstock.operators.side_outputs import NO_SIDE_OUTPUTS, Schemas, SideOutput, SideOutputs
from penstock.operators.stateless import FunctionOperator, Made
from penstock.operators.steps import Steps

_AT_ONCE_MAX = 64
"""Outputs that are taken from a generator between two looks at the clock, where they come fast."""


class FlatMapOperator(FunctionOperator):
    """No, one or several outputs for each batch or row."""

    works_in_steps = True

    def __init__(
        self,
        function: UserFunction,
        as_: As,
        schema: pa.Schema | None = None,
        on_error: OnError = "raise",
        *,
        side_schemas: Schemas = NO_SIDE_OUTPUTS,
    ) -> None:
        super().__init__(function, as_, schema, on_error)
        self.side_schemas = side_schemas
        self._at_once = 1

    def setup(self) -> None:
        super().setup()
        self._side_outputs = SideOutputs(self.context, self.side_schemas, self.as_)

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> Steps:
        return Steps(np.arange(batch.num_rows), lambda steps: self._calls(batch, steps, emit))

    def _calls(self, batch: pa.RecordBatch, steps: Steps, emit: Emit) -> Iterator[None]:
        part_of = self._by_batch if self._by_row is None else self._row_by_row
        first = 0
        self._begin_slice()
        while True:
            part = batch.slice(first, steps.call_rows_max)
            if self._failures is not None:
                # A row for which the function raises in the end has emitted nothing.
                self.call(part, emit)
            else:
                for rows, steps.is_mid_call in part_of(part, emit):
                    steps.rows_done = first + rows
                    yield
                    self._begin_slice()
            first += part.num_rows
            steps.calls += 1
            if first >= batch.num_rows:
                return
            # A checkpoint may wait for the end of a call that was interrupted.
            if steps.is_mid_call or self._is_over():
                steps.rows_done, steps.is_mid_call = first, False
                yield
                self._begin_slice()

    def _begin_slice(self) -> None:
        self._is_over = self.context.begin_slice()

    def _by_batch(self, part: pa.RecordBatch, emit: Emit) -> Iterator[tuple[int, bool]]:
        """Call a function of batches. Where the mailbox should get control, the rows that are done, and False if those
        are all that were called."""
        returned = self.function(self.format.of(part))
        outputs = returned if isinstance(returned, Iterator) else iter(self._outputs(returned))
        for output in outputs:
            for made in self._made_of([output]):
                self.send(made, emit)
            if self._is_over():
                yield 0, True

    def _row_by_row(self, part: pa.RecordBatch, emit: Emit) -> Iterator[tuple[int, bool]]:
        """The same for a function of rows."""
        assert isinstance(self.format, RowsFormat)
        calls, collected = RowCalls(part), self.format.collected()
        turns = calls.outputs(self.function, self._outputs_of_row, collected.names, collected.columns, collected.odd)
        was_interrupted = False
        is_mid_row = self._next_turn(calls, turns, None)
        while is_mid_row is not None:
            if is_mid_row:
                if self._looks_over():
                    self._send_collected(collected, emit)
                    was_interrupted = True
                    yield calls.number, True
            elif was_interrupted or self._looks_over():
                was_interrupted = False
                if calls.number + 1 < calls.count:
                    # A checkpoint may wait for the end of this row.
                    self._send_collected(collected, emit)
                    yield calls.number + 1, False
            is_mid_row = self._next_turn(calls, turns, self._at_once)
        self._send_collected(collected, emit)

    def _next_turn(self, calls: RowCalls, turns: Turns, at_once: int | None) -> bool | None:
        """Begin the calls, with None, or go on with them; None if that was the last of them."""
        try:
            return turns.send(at_once)
        except StopIteration:
            return None
        except Exception as error:
            calls.add_note(error)
            raise

    def _looks_over(self) -> bool:
        """Look at the clock: whether the slice is over. How soon the next look is due follows from that."""
        is_over = self._is_over()
        self._at_once = max(1, self._at_once // 2) if is_over else min(2 * self._at_once, _AT_ONCE_MAX)
        return is_over

    def _send_collected(self, collected: Collected, emit: Emit) -> None:
        if collected.odd:
            for made in self._made_of(collected.rows()):
                self.send(made, emit)
        elif (batch := collected.batch()) is not None:
            self.send(batch, emit)
        collected.clear()

    def _outputs_of_row(self, returned: object) -> Iterable[object]:
        return returned if isinstance(returned, Iterator) else self._outputs(returned)

    def row_function(self) -> Callable[[Row], object]:
        function, outputs = self.function, self._outputs
        return lambda row: outputs(function(row))

    def _outputs(self, returned: object) -> list[object]:
        return [returned] if isinstance(returned, SideOutput) else self.format.outputs(returned)

    def made(self, batch: pa.RecordBatch) -> list[Made]:
        outputs = self._outputs(self.function(self.format.of(batch)))
        return [result for output in outputs for result in self._made_of([output])]

    def made_by_row(self, batch: pa.RecordBatch) -> list[Made]:
        return self.made_of(batch, RowCalls(batch).results(self.row_function()))

    def made_of(self, batch: pa.RecordBatch, results: list[object]) -> list[Made]:
        return self._made_of(list(itertools.chain.from_iterable(cast(list[list[object]], results))))

    def _made_of(self, outputs: list[object]) -> list[Made]:
        if SideOutput not in set(map(type, outputs)):
            return self._batch(outputs)
        by_side: dict[str, list[pa.RecordBatch]] = {}
        for output in outputs:
            if isinstance(output, SideOutput):
                batch = self._side_outputs.batch_of(output.name, output.records)
                by_side.setdefault(output.name, []).extend([] if batch is None else [batch])
        made: list[Made] = [SideOutput(name, concatenated(batches)) for name, batches in by_side.items()]
        return made + self._batch([output for output in outputs if not isinstance(output, SideOutput)])

    def send(self, result: Made, emit: Emit) -> None:
        if isinstance(result, SideOutput):
            self._side_outputs.emit(result)
        else:
            emit(result)
