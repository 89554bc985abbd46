"""The fast path of `KeyedStream.process`: a function of whole batches, with the state of all their keys as columns.

A `KeyedFunction` is called once for each key, which costs some microseconds a key before it has done anything. Where
the work itself can be done by columns, a `BatchFunction` reads the values of all keys of a batch at once, works with
Arrow, and writes them back at once. The state is value state like any other, with the same checkpoints.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import pyarrow as pa

from penstock.columnar.grouping import key_columns
from penstock.columnar.plain import plain
from penstock.columnar.schemas.schema_guard import SchemaLike
from penstock.errors import DataError, PipelineError
from penstock.operators.contract import Emit, Key
from penstock.operators.formats import ArrowFormat
from penstock.operators.keyed.functions import KeyedContext
from penstock.operators.keyed.process import StatefulOperator
from penstock.operators.keyed.timers import TimeMode
from penstock.operators.side_outputs import NO_SIDE_OUTPUTS, Schemas
from penstock.user_code import noting_batch


class BatchFunction(ABC):
    """A function with state, called with records of many keys at a time.

    Example:

        class Totals(BatchFunction):
            def open(self, context):
                self.totals = context.value("totals", "total bigint")

            def process_batch(self, batch, context):
                added = pa.table(batch).group_by("customer").aggregate([("amount", "sum")])
                before = self.totals.get_batch(added["customer"])
                total = pc.add(pc.fill_null(before["total"], 0), added["amount_sum"].combine_chunks())
                self.totals.update_batch(added["customer"], {"total": total})
                return pa.table({"customer": added["customer"], "total": total})

            def on_timer(self, key, at, context):
                return None

            def close(self):
                pass

        orders.key_by("customer").process(Totals()).sink(output)
        run(pipeline)
        assert max(row["total"] for row in output.rows() if row["customer"] == "ann") == 40

    `get_batch(keys)`, `update_batch(keys, values)` and `clear_batch(keys)` are methods of value state, with or without
    a time to live. `keys` are the columns of the key, as a batch, or as an array if the key is one column.

    The trap: a key may come in many rows of a batch. Of several values that `update_batch` gets for one key the last
    one counts, so bring together the rows of a key first.
    """

    side_outputs: ClassVar[Mapping[str, SchemaLike]] = {}
    """As in `KeyedFunction`."""

    def open(self, context: KeyedContext) -> None:
        """Called once for each subtask. Ask for states here, all of them: it is here that they are restored."""

    @abstractmethod
    def process_batch(self, batch: pa.RecordBatch, context: KeyedContext) -> object:
        """Process records of many keys. Return None, a batch, a table, or an iterable of them."""

    def on_timer(self, key: Key, at: int, context: KeyedContext) -> object:
        """A timer is due that a `KeyedFunction` has set before this function took its place; states are at its key."""
        return None

    def close(self) -> None:
        """Called once, also after a failure."""


class BatchFunctionOperator(StatefulOperator):
    """Calls a `BatchFunction` with the records as they come."""

    def __init__(
        self,
        function: BatchFunction,
        key: tuple[str, ...],
        schema: pa.Schema | None,
        fire_at_end: bool,
        time_mode: TimeMode,
        *,
        side_schemas: Schemas = NO_SIDE_OUTPUTS,
    ) -> None:
        super().__init__([key], fire_at_end, time_mode, side_schemas)
        self.function: BatchFunction = copy.deepcopy(function)
        self.schema = schema
        self._declared: pa.Schema | None = None

    def setup(self) -> None:
        super().setup()
        self.format = ArrowFormat(self.output_guard(self.schema))
        self.open_function(self.function)

    def work(self, batch: pa.RecordBatch, input_index: int, emit: Emit) -> None:
        self._declare(batch)
        # Timers have left the states at some key.
        self.context.keyed.leave_key()
        self.access.key_group, self.access.key = -1, ()
        with noting_batch(batch):
            outputs = self.format.outputs(self.function.process_batch(batch, self.access))
        self.emit_all(outputs, emit)

    def _declare(self, batch: pa.RecordBatch) -> None:
        if batch.schema is self._declared:
            return
        columns = key_columns(batch.slice(0, 0), self.keys[0], self.context.operator)
        schema = pa.schema([(name, plain(column).type) for name, column in zip(self.keys[0], columns, strict=True)])
        try:
            self.context.keyed.declare_key(schema)
        except PipelineError as error:
            raise DataError(f"operator '{self.context.operator}': {error}. Cast one of them") from error
        self._declared = batch.schema

    def call_timer(self, key: Key, at_ms: int) -> object:
        return self.function.on_timer(key, at_ms, self.access)

    def close(self) -> None:
        self.function.close()
