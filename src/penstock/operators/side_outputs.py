"""Side outputs of users' functions: named streams besides the main one, declared with their schemas.

A function with a context emits with `context.emit("name", records)`, a function of `flat_map` returns `SideOutput`
values among its outputs. The records of a call are held until the call has succeeded, and leave together with its main
output: so a failed call leaves none, and a checkpoint holds both or neither (I1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

import pyarrow as pa

from penstock.columnar.schemas.schema_guard import SchemaGuard
from penstock.errors import DataError
from penstock.operators.contract import OperatorContext
from penstock.operators.formats import As, Format, format_of

Schemas: TypeAlias = Mapping[str, pa.Schema]
"""Side outputs by name."""
NO_SIDE_OUTPUTS: Schemas = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SideOutput:
    """Records for a side output, among the outputs of a function of `flat_map`.

    Example:

        def split(row):
            if row["amount"] > 25:
                yield SideOutput("large", {"amount": row["amount"]})
            yield row

        every = orders.flat_map(split, format="rows", side_outputs={"large": "amount bigint"})
        every.side_output("large").sink(output)
        every.sink(CollectSink())
        run(pipeline)
        assert output.rows() == [{"amount": 30}]
    """

    name: str
    records: object
    """A batch or a table of Arrow, a DataFrame, a row as a dictionary, or a list of rows."""


class SideOutputs:
    """The side outputs of one operator in one subtask."""

    def __init__(self, context: OperatorContext, schemas: Schemas, as_: As) -> None:
        self._context = context
        self._schemas = schemas
        self._as = as_
        self._formats: dict[tuple[str, As], Format] = {}
        self._held: list[SideOutput] = []

    def hold(self, name: str, records: object) -> None:
        """Records of a call that is going on."""
        self._held.append(SideOutput(name, self.batch_of(name, records)))

    @property
    def held(self) -> int:
        """Number of batches that wait for `flush`."""
        return len(self._held)

    def discard(self, held: int) -> None:
        """A call has failed: forget all but the first ones that were held."""
        del self._held[held:]

    def flush(self) -> None:
        """Emit all that is held. Call it where the main output of the same calls is emitted."""
        held, self._held = self._held, []
        for each in held:
            self.emit(each)

    def emit(self, output: SideOutput) -> None:
        if output.records is not None:
            self._context.emit_to(output.name, output.records)

    def batch_of(self, name: str, records: object) -> pa.RecordBatch | None:
        """The records in the declared schema. Raises `DataError` for a name that was not declared."""
        if name not in self._schemas:
            known = ", ".join(map(repr, self._schemas)) or "none"
            raise DataError(
                f"operator '{self._context.operator}': side output {name!r} is not declared; the "
                f"declared ones are: {known}. Declare it with its schema: side_outputs={{{name!r}: "
                '"…"}'
            )
        format = self._format(name, records)
        return format.batch(format.outputs(records))

    def _format(self, name: str, records: object) -> Format:
        """Arrow and rows are taken from every function, DataFrames from a function of those."""
        as_: As = self._as
        if isinstance(records, pa.RecordBatch | pa.Table):
            as_ = "arrow"
        elif isinstance(records, dict | list | tuple):
            as_ = "rows"
        format = self._formats.get((name, as_))
        if format is None:
            guard = SchemaGuard(f"side output '{name}' of operator '{self._context.operator}'", self._schemas[name])
            format = self._formats[name, as_] = format_of(as_, guard)
        return format
