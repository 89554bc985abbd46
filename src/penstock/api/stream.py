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
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Unpack

import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.arguments import (
    AtEnd,
    EmitWhen,
    aggregates_of,
    outputs_besides,
    require_choice,
    require_columns,
    require_count,
    require_instance,
    require_name,
    require_sequence,
    schema_or_none,
    windows_of,
)
from penstock.api.connected import ConnectedStreams
from penstock.api.process_call import ProcessCall, time_mode_of
from penstock.api.windowed_stream import WindowedStream
from penstock.columnar.schema_guard import SchemaLike
from penstock.connectors.sink import Sink
from penstock.connectors.source import Source
from penstock.errors import PipelineError
from penstock.graph.edges import End, Wish, resolved, side_ends
from penstock.graph.logical import MAX_PARALLELISM_DEFAULT, Graph, Node, OperatorFactory, check, renamed
from penstock.graph.names import Keeps, Traits, calling_line, derived_names, label_of
from penstock.ids import DEAD_LETTERS, LATE, OperatorName
from penstock.model.aggregates import columns_of, kept_for, outputs_of
from penstock.model.event_time import Unit
from penstock.model.units import Duration, duration_ms
from penstock.model.windows import Late
from penstock.operators import stateless as operators
from penstock.operators.async_map import MapAsyncOperator, Where
from penstock.operators.event_time import EventTimeOperator
from penstock.operators.formats import As, check_form
from penstock.operators.pickling import check_travels
from penstock.operators.timers import TimeMode
from penstock.protocol.compatibility import AGGREGATES, EVENT_TIME_COLUMN
from penstock.protocol.manifest import Partitioning

if TYPE_CHECKING:
    # The only names of a layer above: a type checker must see what `start` takes and returns.
    from pyspark.sql import SparkSession

    from penstock.spark.job import Job
    from penstock.spark.settings import StartOptions

_start_hook: Callable[..., Job] | None = None


def register_start(hook: Callable[..., Job]) -> None:
    """Say what `Pipeline.start` calls: how to start is not known in this layer."""
    global _start_hook  # noqa: PLW0603
    _start_hook = hook


def _definition(identity: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((str(name), str(value)) for name, value in identity.items())


class Pipeline:
    """A pipeline: begin with `source`. `max_parallelism` is the number of key groups, which never changes again."""

    def __init__(self, name: str, max_parallelism: int = MAX_PARALLELISM_DEFAULT) -> None:
        require_name("a pipeline", name)
        self.name = name
        self.max_parallelism = max_parallelism
        self._nodes: list[Node] = []
        self._traits: dict[OperatorName, Traits] = {}
        self._wishes: list[Wish] = []
        self._counts: Counter[str] = Counter()

    def __repr__(self) -> str:
        names = ", ".join(node.name for node in self._nodes)
        return f"<Pipeline '{self.name}': {names or 'empty'}>"

    def source(self, source: Source, *, name: str | None = None, parallelism: int | None = None) -> Stream:
        """A stream of what a source reads."""
        require_instance("source()", source, Source, "FileSource(…)")
        parts: dict[str, Any] = {"definition": _definition(source.identity()), "side_outputs": source.side_outputs}
        chosen = self._add("source", name, parallelism, source=source, **parts)
        return Stream(self, (End(chosen),))

    def graph(self) -> Graph:
        """The whole, checked: shape, names, parallelism, and whether every function can travel to the workers."""
        graph = Graph(self.name, tuple(self._nodes), tuple(resolved(self._nodes, self._wishes)), self.max_parallelism)
        check(graph)
        graph = renamed(graph, derived_names(graph, self._traits))
        for node in graph.nodes:
            check_travels(node.name, node.source or node.operator or node.sink)
        return graph

    def start(self, spark: SparkSession, checkpoints: str | os.PathLike[str], **options: Unpack[StartOptions]) -> Job:
        """Start on Spark, or resume from what the directory or URL `checkpoints` holds.

            job = pipeline.start(spark, "/data/checkpoints/totals", parallelism=4, checkpoint_interval=1.0)

        `parallelism` is for operators that name none (default: the slots of the session, at most `workers`), `workers`
        the number of Spark tasks (default: the largest parallelism), `restore` the checkpoint to start from: an id in
        `checkpoints`, or the path of a savepoint. `storage_options` are for URLs. The others are described at
        `penstock.spark.settings.Settings`, with their defaults.
        """
        if _start_hook is None:
            raise PipelineError("a pipeline is started with the whole of penstock: import penstock, not parts of it")
        return _start_hook(self.graph(), spark, checkpoints, **options)

    # --- building ---

    def _add(
        self,
        kind: str,
        name: str | None,
        parallelism: int | None,
        keeps: Keeps = Keeps.NOTHING,
        label: str = "",
        **parts: Any,
    ) -> OperatorName:
        """Add a node. One without a name has a number until `graph` derives its name from all that it stands on."""
        self._counts[kind] += 1
        number = self._counts[kind]
        chosen = OperatorName(f"{kind} #{number}" if name is None else name)
        require_name(f"a {kind}", chosen)
        if any(node.name == chosen for node in self._nodes):
            raise PipelineError(f"there is an operator '{chosen}' already: give each a name of its own with name=…")
        if parallelism is not None:
            require_count(f"the parallelism of '{chosen}'", parallelism)
        former = OperatorName(f"{kind}_{number}") if name is None else None
        self._nodes.append(Node(chosen, parallelism=parallelism, kind=kind, former_name=former, **parts))
        self._traits[chosen] = Traits(former, keeps, label, calling_line())
        return chosen

    def _connect(self, ends: Iterable[End], downstream: OperatorName, number: int = 0) -> None:
        self._wishes += [Wish(end, downstream, number) for end in ends]


class Stream:
    """Records on their way. Every method returns a new stream; a stream can be used any number of times.

    `as_` is the form in which a function gets records, and returns them: `"arrow"` (a `RecordBatch`), `"pandas"`,
    `"polars"` (DataFrames), or `"rows"` (a dictionary for each). `schema` declares the output, as an Arrow schema or
    a DDL string; without it, the first output decides, and a later one of another schema is a `DataError`.

    The trap: a function gets as many records at once as the engine sees fit, so only what it returns for each
    record may matter, not how often it is called.
    """

    def __init__(self, pipeline: Pipeline, ends: tuple[End, ...]) -> None:
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
        """A batch for each batch, or with `as_="rows"` a row for each row."""
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
        """Any number of batches for each batch, or with `as_="rows"` of rows for each row: an iterable of them."""
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
        """Some of the columns, in this order."""
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
        """One more column, or one replaced: `with_column("total", lambda b: pc.multiply(b["n"], b["price"]))`."""
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
        """
        require_columns("key_by", columns)
        require_choice("key_by: nulls", nulls, "group", "error")
        stream = self
        if nulls == "error":
            stream = self._node("key_by", functools.partial(operators.KeyCheckOperator, columns), None, None)
        ends = tuple(replace(end, partitioning=Partitioning.HASH, key=columns) for end in stream._ends)
        return KeyedStream(self.pipeline, ends)

    def union(self, *others: Stream) -> Stream:
        """The records of all these streams, which must have one schema. Nothing is known about their order."""
        ends = list(self._ends)
        for other in others:
            self._require_own("union", other)
            ends += other._ends
        return Stream(self.pipeline, tuple(ends))

    def connect(self, other: Stream) -> ConnectedStreams:
        """Two streams for one function: both keyed, or `other.broadcast()`, which then goes to every subtask."""
        self._require_own("connect", other)
        return ConnectedStreams(self, other)

    def rebalance(self) -> Stream:
        """Batches to all subtasks of the next operator in turn."""
        return self._by(Partitioning.REBALANCE)

    def shuffle(self) -> Stream:
        """Batches to subtasks of the next operator at random."""
        return self._by(Partitioning.SHUFFLE)

    def broadcast(self) -> Stream:
        """Every record to every subtask of the next operator. Such an input is always aligned."""
        return self._by(Partitioning.BROADCAST)

    def global_(self) -> Stream:
        """Everything to the first subtask of the next operator, which has no other unless it is told to."""
        return self._by(Partitioning.GLOBAL)

    def forward(self) -> Stream:
        """From each subtask to the one of the same number, at equal parallelism. Such an input is always aligned."""
        return self._by(Partitioning.FORWARD)

    def rescale(self) -> Stream:
        """From each subtask to a few of the next operator, without a connection from all to all."""
        return self._by(Partitioning.RESCALE)

    def dead_letters(self) -> Stream:
        """The input that the operator of this stream could not read, as a stream: `on_error="dead_letter"`.

        Its columns are `operator`, `path`, `line` (or row, from 1), `offset` (in bytes), `raw` and `reason`.
        """
        cure = 'say on_error="dead_letter" there'
        return Stream(self.pipeline, side_ends(self.pipeline._nodes, self._ends, DEAD_LETTERS, cure))

    def late(self) -> Stream:
        """The records that came after their windows had been emitted, as a stream: `window(…, late="stream")`."""
        cure = 'say late="stream" in the call of window'
        return Stream(self.pipeline, side_ends(self.pipeline._nodes, self._ends, LATE, cure))

    def sink(self, sink: Sink, *, name: str | None = None, parallelism: int | None = None) -> Pipeline:
        """Write to a sink. Returns the pipeline."""
        require_instance("sink()", sink, Sink, "ParquetSink(…)")
        chosen = self.pipeline._add(
            "sink",
            name,
            self._parallelism if parallelism is None else parallelism,
            sink=sink,
            definition=_definition(sink.identity()),
        )
        self.pipeline._connect(self._ends, chosen)
        return self.pipeline

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


class KeyedStream(Stream):
    """A stream that is partitioned by key: what follows has the state of its keys at hand."""

    @property
    def key(self) -> tuple[str, ...]:
        return self._ends[0].key

    def process(
        self,
        function: Any,
        *,
        as_: As | None = None,
        schema: SchemaLike | None = None,
        time_mode: TimeMode | None = None,
        initial_state: Any = None,
        at_end: AtEnd = "fire",
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """A `KeyedFunction`, or a `StatefulProcessor` (ours or PySpark's), called with one key at a time.

        `as_` is `"arrow"` for a `KeyedFunction` and `"pandas"` for a processor, unless it says otherwise.

        `time_mode` is the time of its timers: `"event"` (the watermark), `"processing"` (the clock of the worker) or
        `"none"` (to set a timer is an error). Without it, event time if the stream has it (`with_event_time`). At the
        end of a bounded input, timers that are still set are called early, or with `at_end="drop"` not at all.

        `initial_state` is for a processor: a table of Arrow, or a DataFrame of pandas or Spark, with the columns of
        the key. `handleInitialState` gets its rows before the first record, in a pipeline that starts without a
        checkpoint of this operator. The table is read here, and travels to every worker.
        """
        mode = time_mode_of(time_mode, self._event_time is not None)
        call = ProcessCall(function, self.key, as_, schema, at_end, mode, initial_state)
        label = label_of(call.instance)
        stream = self._node("process", call.made, name, parallelism, keeps=Keeps.KEYS, label=label, schema=call.schema)
        check_form(call.form, stream._ends[0].operator)
        return stream

    def reduce(
        self,
        function: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]],
        *,
        sequence: str | None = None,
        emit: EmitWhen = "updates",
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """One row for each key, made by `function(row so far, next row)` from rows as dictionaries.

        The result has the schema of the input. The current row of each key is emitted for every batch that had
        records of it; `sequence` and `emit` are those of `aggregate`. This works row by row in Python: where
        `aggregate` does, it is much faster.
        """
        require_choice("reduce: emit", emit, "updates", "final")
        require_sequence("reduce", sequence)
        made = functools.partial(operators.ReduceOperator, function, sequence, emit == "final")
        traits: dict[str, Any] = {"keeps": Keeps.KEYS, "label": label_of(function), "needs_end": emit == "final"}
        if sequence is not None:
            traits["definition"] = (("sequence", sequence),)
        return self._apply("reduce", function, "rows", made, name, parallelism, **traits)

    def aggregate(
        self,
        *,
        sequence: str | None = None,
        emit: EmitWhen = "updates",
        name: str | None = None,
        parallelism: int | None = None,
        **outputs: str | tuple[str, str],
    ) -> Stream:
        """Running aggregates by key, columnar: `aggregate(total=("sum", "amount"), orders="count")`.

        Functions are sum, count, min, max, mean, first and last. The current values of each key are emitted for
        every batch that had records of it: a stream of updates, of which the last one for a key counts. Nulls are
        left out, as in SQL; a sum of integers that overflows is a `DataError`.

        `sequence="version"` adds an int64 column that says which update of a key is newer, also in files: the number of
        records that the row is made of. It grows with every update of a key, and after a failure a row comes with
        the same number again.

        `emit="final"` emits a key once, at the end of a bounded input. A later run on the same checkpoints that reads
        more emits the keys that had records since then, with their new values.
        """
        require_choice("aggregate: emit", emit, "updates", "final")
        require_sequence("aggregate", sequence)
        if sequence is not None:
            outputs = {**outputs_besides(sequence, outputs), sequence: "count"}
        aggregates = aggregates_of(self.key, outputs)
        made = functools.partial(operators.AggregateOperator, aggregates, emit == "final")
        return self._node(
            "aggregate",
            made,
            name,
            parallelism,
            keeps=Keeps.KEYS,
            label=outputs_of(aggregates),
            reads=columns_of(aggregates),
            needs_end=emit == "final",
            definition=((AGGREGATES, kept_for(aggregates)),),
        )

    def count(
        self,
        output: str = "count",
        *,
        sequence: str | None = None,
        emit: EmitWhen = "updates",
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """The number of records of each key so far: see `aggregate`."""
        outputs: dict[str, Any] = {output: "count"}
        return self.aggregate(sequence=sequence, emit=emit, name=name, parallelism=parallelism, **outputs)

    def sum(
        self,
        column: str,
        output: str | None = None,
        *,
        sequence: str | None = None,
        emit: EmitWhen = "updates",
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """The sum of a column for each key so far: see `aggregate`."""
        outputs: dict[str, Any] = {output or column: ("sum", column)}
        return self.aggregate(sequence=sequence, emit=emit, name=name, parallelism=parallelism, **outputs)

    def window(
        self,
        size: Duration,
        *,
        every: Duration | None = None,
        offset: Duration = 0,
        on: str | None = None,
        late: Late = "drop",
    ) -> WindowedStream:
        """Windows of event time: `window("1 min")`, or overlapping ones: `window("1 hour", every="1 min")`.

        They are aligned to 1970 in UTC, shifted by `offset`. `on` is the column of the event time, if it is not that of
        `with_event_time`. A record all of whose windows have been emitted is late: with `late="drop"` it is left out
        and counted, in `Status.rows_late`; with `late="error"` it is a `DataError`; with `late="stream"` it goes to the
        stream `late()` of the result, with all its columns.
        """
        windows = windows_of(size, every, offset)
        require_choice("window: late", late, "drop", "error", "stream")
        column = on or self._event_time
        if column is None:
            raise PipelineError(
                'window needs event time: call with_event_time("…", max_delay="…") behind the source, or name its '
                'column with on="…" if the source has watermarks of its own'
            )
        return WindowedStream(self, windows, column, late)
