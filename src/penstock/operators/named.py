"""The base of the engine's operators: it knows its context, and names itself in errors.

What a user's function raises is reported with the operator's name by the chain it runs in; calls that do not come
from there (timers, background work) use `failed`.
"""

from __future__ import annotations

from abc import abstractmethod

import pyarrow as pa

from penstock.columnar.schemas.schema_guard import SchemaGuard
from penstock.errors import UserCodeError
from penstock.operators.contract import Emit, Operator, OperatorContext
from penstock.operators.steps import Steps
from penstock.user_code import user_code_error


class NamedOperator(Operator):
    """Knows its context, holds each of its inputs to one schema."""

    context: OperatorContext

    def open(self, context: OperatorContext) -> None:
        self.context = context
        self._inputs: dict[int, SchemaGuard] = {}
        self.setup()

    def setup(self) -> None:
        """The context is there: make guards, ask for state."""

    def process(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> Steps | None:
        guard = self._inputs.get(input_index)
        if guard is None:
            number = f", input {input_index}" if input_index else ""
            guard = self._inputs[input_index] = SchemaGuard(f"operator '{self.context.operator}'{number}")
        checked, rows_max = guard.check(batch), self.limits.rows
        if rows_max is None or self.works_in_steps or checked.num_rows <= rows_max:
            return self.work(checked, input_index, emit)
        for first in range(0, checked.num_rows, rows_max):
            self.work(checked.slice(first, rows_max), input_index, emit)
        return None

    @abstractmethod
    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> Steps | None:
        """Work on records whose schema is that of the ones before."""

    def output_guard(self, schema: pa.Schema | None = None) -> SchemaGuard:
        return SchemaGuard(f"output of operator '{self.context.operator}'", schema)

    def failed(self, what: str, error: Exception) -> UserCodeError:
        context = self.context
        where = f"operator '{context.operator}', subtask {context.subtask} of {context.parallelism}"
        return user_code_error(f"{where}: {what}", error)
