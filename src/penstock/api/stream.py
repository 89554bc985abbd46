"""Pipelines and streams: how a user describes what is to happen.

    pipeline = Pipeline("totals")
    (
        pipeline.source(FileSource("/data/orders/*.parquet"))
        .filter(lambda batch: pc.greater(batch["amount"], 0))
        .key_by("customer")
        .aggregate(total=("sum", "amount"), orders="count")
        .sink(ParquetSink("/data/totals"))
    )
    pipeline.start(spark, checkpoints="/data/checkpoints/totals")

Nothing runs while a pipeline is described: each call adds an operator to a graph, which `Pipeline.graph` checks as a
whole. Operators have names, by which their state is found again in a checkpoint. One without a name of yours gets one
that is derived from what it is and stands on (`graph/names.py`): it stays the same when others are put in front of it,
and changes with its key, its aggregates or its sources. A name of your own stays in any case.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast

import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.arguments import (
    require_choice,
    require_columns,
    require_count,
    require_instance,
    schema_or_none,
)
from penstock.api.builder import Builder, definition_of
from penstock.api.connected import ConnectedStreams
from penstock.columnar.schema_guard import SchemaLike
from penstock.connectors.sink import Sink
from penstock.errors import PipelineError
from penstock.graph.edges import End, side_ends
from penstock.graph.logical import OperatorFactory
from penstock.graph.names import Keeps, label_of
from penstock.ids import DEAD_LETTERS, LATE
from penstock.model.event_time import Unit
from penstock.model.units import Duration, duration_ms
from penstock.operators import stateless as operators
from penstock.operators.async_map import MapAsyncOperator, Where
from penstock.operators.event_time import EventTimeOperator
from penstock.operators.formats import As, check_form
from penstock.protocol.manifest import Partitioning
from penstock.protocol.manifest.compatibility import EVENT_TIME_COLUMN

if TYPE_CHECKING:
    from penstock.api.keyed_stream import KeyedStream

    # The only name of a layer above, for type checkers: a sink returns the pipeline that it completes.
    from penstock.pipeline import Pipeline


class Stream:
    """Records on their way. Every method returns a new stream; a stream can be used any number of times.

    `as_` is the form in which a function gets records, and returns them: `"arrow"` (a `RecordBatch`), `"pandas"`,
    `"polars"` (DataFrames), or `"rows"` (a dictionary for each). `schema` declares the output, as an Arrow schema or
    a DDL string; without it, the first output decides, and a later one of another schema is a `DataError`.

    The trap: a function gets as many records at once as the engine sees fit, so only what it returns for each
    record may matter, not how often it is called.
    """

    def __init__(self, pipeline: Builder, ends: tuple[End, ...]) -> None:
        self.pipeline = pipeline
        self._ends = ends

    def __repr__(self) -> str:
        behind = ", ".join(f"'{end.operator}'" for end in self._ends)
        key = f" by {', '.join(self._ends[0].key)}" if self._ends[0].key else ""
        return f"<{type(self).__name__} of pipeline '{self.pipeline.name}' behind {behind}{key}>"

    # --- functions ---

    def map(
        self,
        function: Callable[[Any], Any],
        *,
        as_: As = "arrow",
        schema: SchemaLike | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """A batch for each batch, or with `as_="rows"` a row for each row.

        Example:

            orders.map(lambda batch: batch.select(["amount"])).sink(output)
            run(pipeline)
            assert output.rows() == [{"amount": 10}, {"amount": 20}, {"amount": 30}]
        """
        declared = schema_or_none(schema)
        made = functools.partial(operators.MapOperator, function, as_, declared)
        return self._apply("map", function, as_, made, name, parallelism, schema=declared)

    def filter(
        self,
        function: Callable[[Any], Any] | pc.Expression,
        *,
        as_: As = "arrow",
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """The records that a function chooses: by a boolean for each, an Arrow expression, or the filtered batch.

        An expression can also stand for the function: `filter(pc.field("amount") > 0)`. Null means no.

        Example:

            orders.filter(pc.field("amount") > 15).select("amount").sink(output)
            run(pipeline)
            assert output.rows() == [{"amount": 20}, {"amount": 30}]
        """
        made = functools.partial(operators.FilterOperator, function, as_)
        return self._apply("filter", function, as_, made, name, parallelism)

    def flat_map(
        self,
        function: Callable[[Any], Any],
        *,
        as_: As = "arrow",
        schema: SchemaLike | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Any number of batches for each batch, or with `as_="rows"` of rows for each row: an iterable of them.

        Example:

            orders.flat_map(lambda batch: [batch.slice(0, 1), batch.slice(2)]).select("amount").sink(output)
            run(pipeline)
            assert output.rows() == [{"amount": 10}, {"amount": 30}]
        """
        declared = schema_or_none(schema)
        made = functools.partial(operators.FlatMapOperator, function, as_, declared)
        return self._apply("flat_map", function, as_, made, name, parallelism, schema=declared)

    def map_async(
        self,
        function: Callable[[Any], Any],
        *,
        concurrency: int = 4,
        ordered: bool = True,
        in_: Where = "threads",
        batch_rows: int = 1024,
        as_: As = "arrow",
        schema: SchemaLike | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """As `map`, for functions that are slow: up to `concurrency` calls at a time in threads or processes.

        A checkpoint does not wait for them: the batches in hand are part of it, and run again after a failure. So
        the function may run more than once for a record; what comes out of it counts once. At most `batch_rows`
        records go into one call. `ordered=False` emits results as they come.

        The trap: threads take turns in Python code. They help a function that waits, for a service or in a library
        that lets go of the interpreter; `in_="processes"` is for one that computes in Python.

        Example:

            orders.map_async(lambda batch: batch.select(["amount"]), concurrency=2).sink(output)
            run(pipeline)
            assert output.rows() == [{"amount": 10}, {"amount": 20}, {"amount": 30}]
        """
        require_count("map_async: concurrency", concurrency)
        require_count("map_async: batch_rows", batch_rows)
        require_choice("map_async: in_", in_, "threads", "processes")
        declared = schema_or_none(schema)
        made = functools.partial(MapAsyncOperator, function, as_, declared, concurrency, ordered, in_, batch_rows)
        flags: dict[str, Any] = {"chainable": False, "chainable_after": False, "schema": declared}
        flags |= {"keeps": Keeps.BATCHES, "label": label_of(function)}
        return self._apply("map_async", function, as_, made, name, parallelism, **flags)

    def select(self, *columns: str, name: str | None = None, parallelism: int | None = None) -> Stream:
        """Some of the columns, in this order.

        Example:

            orders.select("amount", "customer").sink(output)
            run(pipeline)
            assert output.rows()[0] == {"amount": 10, "customer": "ann"}
        """
        require_columns("select", columns)
        made = functools.partial(operators.SelectOperator, columns)
        return self._node("select", made, name, parallelism, reads=columns)

    def with_column(
        self,
        column: str,
        function: Callable[[pa.RecordBatch], Any],
        *,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """One more column, or one replaced: `with_column("total", lambda b: pc.multiply(b["n"], b["price"]))`.

        Example:

            orders.with_column("cents", lambda batch: pc.multiply(batch["amount"], 100)).sink(output)
            run(pipeline)
            assert output.rows()[0] == {"customer": "ann", "amount": 10, "at": 1_000, "cents": 1_000}
        """
        made = functools.partial(operators.WithColumnOperator, column, function)
        return self._apply("with_column", function, "arrow", made, name, parallelism)

    # --- event time ---

    def with_event_time(
        self,
        column: str,
        *,
        max_delay: Duration,
        idle_after: Duration | None = None,
        unit: Unit | None = None,
        max_ahead: Duration | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Say which column has the time of an event, and how late a record may come: `max_delay="10 s"`.

        The column is a timestamp of any unit, or an int64 of milliseconds; a null in it is a `DataError`. With `unit`,
        numbers of seconds ("s"), "ms", "us" or "ns" become timestamps in UTC. From here on event time is that of the
        records: each split of the source has a clock, the newest time that was read of it
        less `max_delay`, and the slowest split is the watermark. So files, or partitions of a log, may be hours apart.
        Watermarks of the source, if it has any, end here.

        A split that has nothing to read holds the others up, unless `idle_after` is given: one that had no record for
        this long is left out until it has one. Files always have an end, and are never idle.

        One time in the far future makes all that follows late; with `max_ahead="1 hour"` a time that is further ahead
        of the clock does not move event time on. Its row is kept. Both are warnings in the log.

        The trap: behind an exchange, splits cannot be told apart any more, only channels, and behind `map_async` or
        `process` not even those. Call it before: right behind the source, or behind `map` and `filter`.

        Example:

            timed = orders.with_event_time("at", max_delay="1 s")
            timed.key_by("customer").window("1 s").count().select("customer", "count").sink(output)
            run(pipeline)
            assert sorted(row["customer"] for row in output.rows()) == ["ann", "ann", "bob"]
        """
        require_columns("with_event_time", (column,))
        max_delay_ms = duration_ms("with_event_time: max_delay", max_delay, at_least_ms=0)
        idle_ms = None
        if idle_after is not None:
            idle_ms = duration_ms("with_event_time: idle_after", idle_after, at_least_ms=1)
        if unit is not None:
            require_choice("with_event_time: unit", unit, "s", "ms", "us", "ns")
        ahead_ms = None
        if max_ahead is not None:
            ahead_ms = duration_ms("with_event_time: max_ahead", max_ahead, at_least_ms=0)
        made = functools.partial(EventTimeOperator, column, max_delay_ms, idle_ms, unit, ahead_ms)
        # The watermark is state: times of another column may lie behind it, and their records would be late.
        definition = ((EVENT_TIME_COLUMN, column),)
        stream = self._node("with_event_time", made, name, parallelism, keeps=Keeps.BATCHES, definition=definition)
        return stream._timed(column)

    # --- ways on ---

    def key_by(self, *columns: str, nulls: Literal["group", "error"] = "group") -> KeyedStream:
        """Records with equal values in `columns` go to the same subtask, in their order.

        `nulls="group"`: null is a key like any other. `nulls="error"`: a null in a key is a `DataError`.

        Example:

            orders.key_by("customer").count().sink(output)
            run(pipeline)
            assert {row["customer"]: row["count"] for row in output.rows()} == {"ann": 2, "bob": 1}
        """
        from penstock.api.keyed_stream import KeyedStream

        require_columns("key_by", columns)
        require_choice("key_by: nulls", nulls, "group", "error")
        stream = self
        if nulls == "error":
            stream = self._node("key_by", functools.partial(operators.KeyCheckOperator, columns), None, None)
        ends = tuple(replace(end, partitioning=Partitioning.HASH, key=columns) for end in stream._ends)
        return KeyedStream(self.pipeline, ends)

    def union(self, *others: Stream) -> Stream:
        """The records of all these streams, which must have one schema. Nothing is known about their order.

        Example:

            more = pipeline.source(ListSource([{"customer": "eve", "amount": 5, "at": 9_000}]), name="more")
            orders.union(more).sink(output)
            run(pipeline)
            assert sum(row["amount"] for row in output.rows()) == 65
        """
        ends = list(self._ends)
        for other in others:
            self._require_own("union", other)
            ends += other._ends
        return Stream(self.pipeline, tuple(ends))

    def connect(self, other: Stream) -> ConnectedStreams:
        """Two streams for one function: both keyed, or `other.broadcast()`, which then goes to every subtask.

        Example:

            names = pipeline.source(ListSource([{"customer": "ann"}, {"customer": "bob"}]), name="names")
            both = orders.select("customer").key_by("customer").connect(names.key_by("customer"))
            both.process(lambda batch, side: batch).sink(output)
            run(pipeline)
            assert len(output.rows()) == 5
        """
        self._require_own("connect", other)
        return ConnectedStreams(self, other)

    def rebalance(self) -> Stream:
        """Batches to all subtasks of the next operator in turn.

        Example:

            orders.rebalance().map(lambda batch: batch).sink(output)
            run(pipeline, parallelism=2)
            assert len(output.rows()) == 3
        """
        return self._by(Partitioning.REBALANCE)

    def shuffle(self) -> Stream:
        """Batches to subtasks of the next operator at random.

        Example:

            orders.shuffle().map(lambda batch: batch).sink(output)
            run(pipeline, parallelism=2)
            assert len(output.rows()) == 3
        """
        return self._by(Partitioning.SHUFFLE)

    def broadcast(self) -> Stream:
        """Every record to every subtask of the next operator. Such an input is always aligned.

        Example:

            orders.broadcast().map(lambda batch: batch, parallelism=2).sink(output)
            run(pipeline, parallelism=2)
            assert len(output.rows()) == 2 * 3
        """
        return self._by(Partitioning.BROADCAST)

    def global_(self) -> Stream:
        """Everything to the first subtask of the next operator, which has no other unless it is told to.

        Example:

            orders.global_().map(lambda batch: batch).sink(output)
            run(pipeline, parallelism=2)
            assert len(output.rows()) == 3
        """
        return self._by(Partitioning.GLOBAL)

    def forward(self) -> Stream:
        """From each subtask to the one of the same number, at equal parallelism. Such an input is always aligned.

        Example:

            orders.forward().map(lambda batch: batch).sink(output)
            run(pipeline, parallelism=2)
            assert len(output.rows()) == 3
        """
        return self._by(Partitioning.FORWARD)

    def rescale(self) -> Stream:
        """From each subtask to a few of the next operator, without a connection from all to all.

        Example:

            orders.rescale().map(lambda batch: batch).sink(output)
            run(pipeline, parallelism=2)
            assert len(output.rows()) == 3
        """
        return self._by(Partitioning.RESCALE)

    def dead_letters(self) -> Stream:
        """The input that the operator of this stream could not read, as a stream: `on_error="dead_letter"`.

        Its columns are `operator`, `path`, `line` (or row, from 1), `offset` (in bytes), `raw` and `reason`.

        Example:

            Path("amounts.jsonl").write_text('{"amount": "many"}')
            source = FileSource("amounts.jsonl", format="jsonl", schema="amount int", on_error="dead_letter")
            pipeline = Pipeline("amounts")
            amounts = pipeline.source(source)
            amounts.sink(CallableSink(print))
            amounts.dead_letters().select("line", "raw").sink(output)
            run(pipeline)
            assert output.rows() == [{"line": 1, "raw": '{"amount": "many"}'}]
        """
        cure = 'say on_error="dead_letter" there'
        return Stream(self.pipeline, side_ends(self.pipeline._nodes, self._ends, DEAD_LETTERS, cure))

    def late(self) -> Stream:
        """The records that came after their windows had been emitted, as a stream: `window(…, late="stream")`.

        Example:

            times = ListSource([{"k": 1, "at": 1_000}, {"k": 1, "at": 60_000}, {"k": 1, "at": 2_000}], batch_rows=1)
            pipeline = Pipeline("late")
            timed = pipeline.source(times).with_event_time("at", max_delay="0 s")
            counts = timed.key_by("k").window("10 s", late="stream").count()
            counts.sink(CallableSink(print), name="counts")
            counts.late().sink(output, name="late")
            run(pipeline)
            assert output.rows() == [{"k": 1, "at": 2_000}]
        """
        cure = 'say late="stream" in the call of window'
        return Stream(self.pipeline, side_ends(self.pipeline._nodes, self._ends, LATE, cure))

    def sink(self, sink: Sink, *, name: str | None = None, parallelism: int | None = None) -> Pipeline:
        """Write to a sink. Returns the pipeline.

        Example:

            orders.sink(output, name="output")
            run(pipeline)
            assert len(output.rows()) == 3
        """
        require_instance("sink()", sink, Sink, "ParquetSink(…)")
        chosen = self.pipeline._add(
            "sink",
            name,
            self._parallelism if parallelism is None else parallelism,
            sink=sink,
            definition=definition_of(sink.identity()),
        )
        self.pipeline._connect(self._ends, chosen)
        return cast("Pipeline", self.pipeline)

    # --- building ---

    def _require_own(self, call: str, other: Any) -> None:
        if not isinstance(other, Stream) or other.pipeline is not self.pipeline:
            raise PipelineError(f"{call} takes streams of the same pipeline, not {other!r}")

    @property
    def _parallelism(self) -> int | None:
        """That of the next operator, where nothing else makes sense."""
        return 1 if all(end.partitioning is Partitioning.GLOBAL for end in self._ends) else None

    @property
    def _event_time(self) -> str | None:
        """The column of the event time, if all that meets here has it in one."""
        columns = {end.event_time for end in self._ends}
        return columns.pop() if len(columns) == 1 else None

    def _timed(self, column: str | None) -> Stream:
        return Stream(self.pipeline, tuple(replace(end, event_time=column) for end in self._ends))

    def _by(self, partitioning: Partitioning) -> Stream:
        return Stream(self.pipeline, tuple(replace(end, partitioning=partitioning, key=()) for end in self._ends))

    def _apply(
        self,
        kind: str,
        function: Any,
        as_: str,
        made: OperatorFactory,
        name: str | None,
        parallelism: int | None,
        **flags: Any,
    ) -> Stream:
        if not callable(function) and not (kind == "filter" and isinstance(function, pc.Expression)):
            raise PipelineError(f"{kind} takes a function, not {function!r}")
        stream = self._node(kind, made, name, parallelism, **flags)
        check_form(as_, stream._ends[0].operator)
        return stream

    def _node(
        self, kind: str, made: OperatorFactory, name: str | None, parallelism: int | None, **flags: Any
    ) -> Stream:
        chosen = self.pipeline._add(
            kind, name, self._parallelism if parallelism is None else parallelism, operator=made, **flags
        )
        self.pipeline._connect(self._ends, chosen)
        return self._stream_of(End(chosen, event_time=self._event_time))

    def _stream_of(self, end: End) -> Stream:
        return Stream(self.pipeline, (end,))
