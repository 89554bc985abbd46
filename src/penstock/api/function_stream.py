"""The methods of a stream that call a function of the user's without state: map, filter, flat_map, map_async."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from penstock.api.arguments import (
    UserFunction,
    letters_of,
    limited,
    limits_of,
    require_choice,
    require_count,
    schema_or_none,
    side_schemas_of,
)
from penstock.api.column_stream import ColumnStream
from penstock.columnar.schemas.schema_guard import SchemaLike
from penstock.errors import PipelineError
from penstock.graph.logical import Keeps
from penstock.graph.names import label_of
from penstock.model.units import Duration
from penstock.operators import stateless as operators
from penstock.operators.async_map.operator import MapAsyncOperator, Where
from penstock.operators.contract import BatchLimits
from penstock.operators.failures import OnError
from penstock.operators.flat_map import FlatMapOperator
from penstock.operators.formats import As

if TYPE_CHECKING:
    from penstock.api.stream import Stream


class FunctionStream(ColumnStream):
    """Functions of batches and rows."""

    def map(
        self,
        function: UserFunction,
        *,
        format: As = "arrow",
        schema: SchemaLike | None = None,
        on_error: OnError = "raise",
        batch_rows: int | None = None,
        batch_time: Duration | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Map each batch to a batch; with `format="rows"`, each row to a row.

        Example:

            >>> collect(orders.map(lambda row: {"name": row["user"].title()}, format="rows"))
            [{'name': 'Ada'}, {'name': 'Ben'}, {'name': 'Ada'}]

        `on_error` is for records for which the function raises, here and in the methods below. `"raise"` fails the
        pipeline. `"drop"` leaves the record out, counts it (`num_records_dropped`) and warns at most once a minute.
        `"stream"` sends it to `dead_letters()` of the result. A function of batches is called again with halves of
        a batch for which it raises, until the bad records are alone. Errors of connections, files and memory
        (`OSError`, `EOFError`, `MemoryError`) are not those of a record, and always fail the pipeline.

        `batch_rows` is the most rows that a call of a function of batches gets, here and below. With `batch_time`, such
        as "50 ms", records wait for others until there are `batch_rows`, and no longer than that: `docs/tuning.md`.

            >>> ratios = orders.map(lambda row: {"ratio": 6 / (row["amount"] + 1)}, format="rows", on_error="drop")
            >>> collect(ratios)
            [{'ratio': 1.5}, {'ratio': 1.0}]
        """
        require_choice("map: on_error", on_error, "raise", "drop", "stream")
        declared, letters = schema_or_none(schema), letters_of(on_error)
        limits = limits_of("map", format, batch_rows, batch_time)
        made = limited(functools.partial(operators.MapOperator, function, format, declared, on_error), limits)
        return self._apply(
            "map",
            function,
            format,
            made,
            name,
            parallelism,
            chainable=not limits.time_ms,
            schema=declared,
            side_outputs=letters,
        )

    def filter(
        self,
        condition: pc.Expression | UserFunction,
        *,
        format: As = "arrow",
        on_error: OnError = "raise",
        batch_rows: int | None = None,
        batch_time: Duration | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Keep the records for which an Arrow expression or a function is true. Null counts as false.

        A function returns a boolean for each record, an expression, or the filtered batch.

        Example:

            >>> collect(orders.filter(pc.field("amount") > 3))
            [{'user': 'ada', 'amount': 5, 'at': 61000}]
            >>> collect(orders.filter(lambda row: row["user"] == "ben", format="rows"))
            [{'user': 'ben', 'amount': -1, 'at': 2000}]
        """
        require_choice("filter: on_error", on_error, "raise", "drop", "stream")
        letters = letters_of(on_error)
        limits = limits_of("filter", format, batch_rows, batch_time)
        made = limited(functools.partial(operators.FilterOperator, condition, format, None, on_error), limits)
        if not isinstance(condition, pc.Expression):
            return self._apply(
                "filter",
                condition,
                format,
                made,
                name,
                parallelism,
                chainable=not limits.time_ms,
                side_outputs=letters,
            )
        if limits != BatchLimits():
            raise PipelineError(
                "filter: batch_rows and batch_time apply to functions, not to an Arrow expression: leave them out"
            )
        return self._node("filter", made, name, parallelism, side_outputs=letters)

    def flat_map(
        self,
        function: UserFunction,
        *,
        format: As = "arrow",
        schema: SchemaLike | None = None,
        on_error: OnError = "raise",
        batch_rows: int | None = None,
        batch_time: Duration | None = None,
        side_outputs: Mapping[str, SchemaLike] | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Map each batch to any number of batches; with `format="rows"`, each row to any number of rows.

        The output of a generator leaves as it comes. A checkpoint waits for the generator of one row, or one batch.

        Example:

            >>> letters = orders.flat_map(lambda row: [{"letter": letter} for letter in row["user"][:2]], format="rows")
            >>> collect(letters)[:3]
            [{'letter': 'a'}, {'letter': 'd'}, {'letter': 'b'}]

        With `side_outputs={"name": schema}`, the function may return `SideOutput("name", records)` among its outputs:
        `side_output("name")` of the result is the stream of those.
        """
        require_choice("flat_map: on_error", on_error, "raise", "drop", "stream")
        declared, schemas = schema_or_none(schema), side_schemas_of("flat_map", function, side_outputs)
        limits = limits_of("flat_map", format, batch_rows, batch_time)
        made = functools.partial(FlatMapOperator, function, format, declared, on_error, side_schemas=schemas)
        return self._apply(
            "flat_map",
            function,
            format,
            limited(made, limits),
            name,
            parallelism,
            chainable=not limits.time_ms,
            schema=declared,
            side_outputs=(*letters_of(on_error), *schemas),
        )

    def map_async(
        self,
        function: UserFunction,
        *,
        concurrency: int = 4,
        ordered: bool = True,
        executor: Where = "threads",
        batch_rows: int = 1024,
        format: As = "arrow",
        schema: SchemaLike | None = None,
        on_error: OnError = "raise",
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """As `map`, for slow functions: up to `concurrency` calls at a time, in threads or processes.

        A checkpoint does not wait for them: the batches in hand are part of it, and run again after a failure. So
        the function may run more than once for a record; what comes out of it counts once. At most `batch_rows`
        records go into one call. `ordered=False` emits results as they come.

        Example:

            >>> collect(orders.map_async(lambda row: {"length": len(row["user"])}, format="rows", concurrency=2))
            [{'length': 3}, {'length': 3}, {'length': 3}]

        The trap: threads take turns in Python code. They help a function that waits, for a service or in a library
        that lets go of the interpreter; `executor="processes"` is for one that computes in Python. With `on_error`, it
        gets the rows of a failed batch again, also as rows.
        """
        require_count("map_async: concurrency", concurrency)
        require_count("map_async: batch_rows", batch_rows)
        require_choice("map_async: executor", executor, "threads", "processes")
        require_choice("map_async: on_error", on_error, "raise", "drop", "stream")
        declared = schema_or_none(schema)
        made = functools.partial(
            MapAsyncOperator, function, format, declared, concurrency, ordered, executor, batch_rows, on_error
        )
        return self._apply(
            "map_async",
            function,
            format,
            made,
            name,
            parallelism,
            label_of(function),
            keeps=Keeps.BATCHES,
            chainable=False,
            chainable_after=False,
            schema=declared,
            side_outputs=letters_of(on_error),
        )

    # --- event time ---
