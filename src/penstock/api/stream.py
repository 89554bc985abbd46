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
whole. Operators have names, by which their state is found again in a checkpoint: give those that have state a name of
your own, because an automatic one changes when another operator of its kind is put in front of it.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from penstock.api import operators
from penstock.api.aggregates import FUNCTIONS, Aggregate
from penstock.api.async_operator import MapAsyncOperator, Where
from penstock.api.forms import As, check_form
from penstock.api.functions import KeyedFunction, TwoInputFunction
from penstock.api.graph import MAX_PARALLELISM_DEFAULT, Graph, Link, Node, OperatorFactory, check
from penstock.api.keyed_operators import CallableTwoInput, ProcessOperator, TwoInputOperator
from penstock.api.pickling import check_travels
from penstock.api.schemas import SchemaLike, as_schema
from penstock.connectors.sink import Sink
from penstock.connectors.source import Source
from penstock.errors import PipelineError
from penstock.ids import OperatorName
from penstock.protocol.manifest import Partitioning

AtEnd: TypeAlias = Literal["fire", "drop"]

_start_hook: Callable[..., Any] | None = None


def register_start(hook: Callable[..., Any]) -> None:
    """Say what `Pipeline.start` calls: how to start is not known in this layer."""
    global _start_hook  # noqa: PLW0603
    _start_hook = hook


@dataclass(frozen=True, slots=True)
class _Wish:
    """A link as it was asked for; without a partitioning, the one that fits best is chosen at the end."""

    upstream: OperatorName
    downstream: OperatorName
    input: int
    partitioning: Partitioning | None
    key: tuple[str, ...]


class Pipeline:
    """A pipeline: begin with `source`. `max_parallelism` is the number of key groups, which never changes again."""

    def __init__(self, name: str, max_parallelism: int = MAX_PARALLELISM_DEFAULT) -> None:
        if not isinstance(name, str) or not name.strip():
            raise PipelineError(f"a pipeline needs a name, not {name!r}: its checkpoints are found by it")
        self.name = name
        self.max_parallelism = max_parallelism
        self._nodes: list[Node] = []
        self._wishes: list[_Wish] = []
        self._counts: Counter[str] = Counter()

    def source(self, source: Source, *, name: str | None = None, parallelism: int | None = None) -> Stream:
        """A stream of what a source reads."""
        if not isinstance(source, Source):
            raise PipelineError(f"source() takes a Source, such as FileSource(…), not {source!r}")
        chosen = self._add("source", name, parallelism, source=source)
        return Stream(self, (_End(chosen),))

    def graph(self) -> Graph:
        """The whole, checked: shape, names, parallelism, and whether every function can travel to the workers."""
        graph = Graph(self.name, tuple(self._nodes), tuple(self._links()), self.max_parallelism)
        check(graph)
        for node in graph.nodes:
            check_travels(node.name, node.source or node.operator or node.sink)
        return graph

    def start(self, spark: Any, checkpoints: Any, **settings: Any) -> Any:
        """Start on Spark, or resume from what `checkpoints` holds. See `penstock.spark.launch.start`."""
        if _start_hook is None:
            raise PipelineError("a pipeline is started with the whole of penstock: import penstock, not parts of it")
        return _start_hook(self.graph(), spark, checkpoints, **settings)

    # --- building ---

    def _add(self, kind: str, name: str | None, parallelism: int | None, **parts: Any) -> OperatorName:
        self._counts[kind] += 1
        chosen = OperatorName(f"{kind}_{self._counts[kind]}" if name is None else name)
        if not isinstance(chosen, str) or not chosen.strip():
            raise PipelineError(f"the name of a {kind} is {name!r}: it must be a text, state is found by it")
        if any(node.name == chosen for node in self._nodes):
            raise PipelineError(f"there is an operator '{chosen}' already: give each a name of its own with name=…")
        if parallelism is not None and (not isinstance(parallelism, int) or parallelism < 1):
            raise PipelineError(f"the parallelism of '{chosen}' is {parallelism!r}: it must be a number of at least 1")
        self._nodes.append(Node(chosen, parallelism=parallelism, **parts))
        return chosen

    def _connect(self, ends: Iterable[_End], downstream: OperatorName, number: int = 0) -> None:
        self._wishes += [_Wish(end.operator, downstream, number, end.partitioning, end.key) for end in ends]

    def _links(self) -> Iterable[Link]:
        nodes = {node.name: node for node in self._nodes}
        outputs = Counter(wish.upstream for wish in self._wishes)
        inputs = Counter(wish.downstream for wish in self._wishes)
        for wish in self._wishes:
            partitioning = wish.partitioning
            if partitioning is None:
                sender, receiver = nodes[wish.upstream], nodes[wish.downstream]
                is_alone = outputs[wish.upstream] == 1 and inputs[wish.downstream] == 1
                can_chain = is_alone and sender.chainable_after and receiver.chainable
                partitioning = _fitting(sender, receiver, can_chain)
            yield Link(wish.upstream, wish.downstream, partitioning, wish.input, wish.key)


def _fitting(sender: Node, receiver: Node, can_chain: bool) -> Partitioning:
    if sender.parallelism != receiver.parallelism:
        return Partitioning.REBALANCE
    # Where the two do not become one chain there is a channel, and on a forward channel no barrier can overtake.
    # At equal parallelism rescale is the same one-to-one connection, and one that barriers can overtake on.
    return Partitioning.FORWARD if can_chain else Partitioning.RESCALE


@dataclass(frozen=True, slots=True)
class _End:
    """An operator's output, and how its records are to travel on."""

    operator: OperatorName
    partitioning: Partitioning | None = None
    key: tuple[str, ...] = ()


class Stream:
    """Records on their way. Every method returns a new stream; a stream can be used any number of times.

    `as_` is the form in which a function gets records, and returns them: `"arrow"` (a `RecordBatch`), `"pandas"`,
    `"polars"` (DataFrames), or `"rows"` (a dictionary for each). `schema` declares the output, as an Arrow schema or
    a DDL string; without it, the first output decides, and a later one of another schema is a `DataError`.

    The trap: a function gets as many records at once as the engine sees fit, so only what it returns for each
    record may matter, not how often it is called.
    """

    def __init__(self, pipeline: Pipeline, ends: tuple[_End, ...]) -> None:
        self.pipeline = pipeline
        self._ends = ends

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
        made = functools.partial(operators.MapOperator, function, as_, _schema(schema))
        return self._apply("map", function, as_, made, name, parallelism)

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
        made = functools.partial(operators.FlatMapOperator, function, as_, _schema(schema))
        return self._apply("flat_map", function, as_, made, name, parallelism)

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
        for option, value in (("concurrency", concurrency), ("batch_rows", batch_rows)):
            if not isinstance(value, int) or value < 1:
                raise PipelineError(f"map_async: {option} is {value!r}: it must be a number of at least 1")
        if in_ not in ("threads", "processes"):
            raise PipelineError(f'map_async: in_ is {in_!r}: it must be "threads" or "processes"')
        made = functools.partial(
            MapAsyncOperator, function, as_, _schema(schema), concurrency, ordered, in_, batch_rows
        )
        return self._apply("map_async", function, as_, made, name, parallelism, chainable=False, chainable_after=False)

    def select(self, *columns: str, name: str | None = None, parallelism: int | None = None) -> Stream:
        """Some of the columns, in this order."""
        if not columns or not all(isinstance(column, str) for column in columns):
            raise PipelineError(f"select takes the names of columns, not {columns!r}")
        return self._node("select", functools.partial(operators.SelectOperator, columns), name, parallelism)

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

    # --- ways on ---

    def key_by(self, *columns: str, nulls: Literal["group", "error"] = "group") -> KeyedStream:
        """Records with equal values in `columns` go to the same subtask, in their order.

        `nulls="group"`: null is a key like any other. `nulls="error"`: a null in a key is a `DataError`.
        """
        if not columns or not all(isinstance(column, str) and column for column in columns):
            raise PipelineError(f"key_by takes the names of the key's columns, at least one, not {columns!r}")
        if len(set(columns)) < len(columns):
            raise PipelineError(f"key_by names a column twice: {', '.join(columns)}")
        if nulls not in ("group", "error"):
            raise PipelineError(f'key_by: nulls is {nulls!r}: it must be "group" or "error"')
        stream = self
        if nulls == "error":
            stream = self._node("key_by", functools.partial(operators.KeyCheckOperator, columns), None, None)
        ends = tuple(replace(end, partitioning=Partitioning.HASH, key=columns) for end in stream._ends)
        return KeyedStream(self.pipeline, ends)

    def union(self, *others: Stream) -> Stream:
        """The records of all these streams, which must have one schema. Nothing is known about their order."""
        ends = list(self._ends)
        for other in others:
            if not isinstance(other, Stream) or other.pipeline is not self.pipeline:
                raise PipelineError(f"union takes streams of the same pipeline, not {other!r}")
            ends += other._ends
        return Stream(self.pipeline, tuple(ends))

    def connect(self, other: Stream) -> ConnectedStreams:
        """Two streams for one function: both keyed, or `other.broadcast()`, which then goes to every subtask."""
        if not isinstance(other, Stream) or other.pipeline is not self.pipeline:
            raise PipelineError(f"connect takes a stream of the same pipeline, not {other!r}")
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
        """Everything to the first subtask of the next operator."""
        return self._by(Partitioning.GLOBAL)

    def forward(self) -> Stream:
        """From each subtask to the one of the same number, at equal parallelism. Such an input is always aligned."""
        return self._by(Partitioning.FORWARD)

    def rescale(self) -> Stream:
        """From each subtask to a few of the next operator, without a connection from all to all."""
        return self._by(Partitioning.RESCALE)

    def sink(self, sink: Sink, *, name: str | None = None, parallelism: int | None = None) -> Pipeline:
        """Write to a sink. Returns the pipeline."""
        if not isinstance(sink, Sink):
            raise PipelineError(f"sink() takes a Sink, such as ParquetSink(…), not {sink!r}")
        chosen = self.pipeline._add("sink", name, parallelism, sink=sink)
        self.pipeline._connect(self._ends, chosen)
        return self.pipeline

    # --- building ---

    def _by(self, partitioning: Partitioning) -> Stream:
        return Stream(self.pipeline, tuple(_End(end.operator, partitioning) for end in self._ends))

    def _apply(
        self,
        kind: str,
        function: Any,
        as_: str,
        made: OperatorFactory,
        name: str | None,
        parallelism: int | None,
        **flags: bool,
    ) -> Stream:
        if not callable(function) and not (kind == "filter" and isinstance(function, pc.Expression)):
            raise PipelineError(f"{kind} takes a function, not {function!r}")
        stream = self._node(kind, made, name, parallelism, **flags)
        check_form(as_, stream._ends[0].operator)
        return stream

    def _node(
        self, kind: str, made: OperatorFactory, name: str | None, parallelism: int | None, **flags: bool
    ) -> Stream:
        chosen = self.pipeline._add(kind, name, parallelism, operator=made, **flags)
        self.pipeline._connect(self._ends, chosen)
        return Stream(self.pipeline, (_End(chosen),))


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
        at_end: AtEnd = "fire",
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """A `KeyedFunction`, or a `StatefulProcessor` (ours or PySpark's), called with one key at a time.

        `as_` is `"arrow"` for a `KeyedFunction` and `"pandas"` for a processor, unless it says otherwise. At the end
        of a bounded input, timers that are still set are called early, or with `at_end="drop"` not at all.
        """
        instance = function() if isinstance(function, type) else function
        is_processor = hasattr(instance, "handleInputRows")
        if not is_processor and not isinstance(instance, KeyedFunction):
            raise PipelineError(f"process takes a KeyedFunction or a StatefulProcessor, not {function!r}")
        form: As = as_ or ("pandas" if is_processor else "arrow")
        if is_processor and form not in ("pandas", "rows"):
            raise PipelineError(f'process: a StatefulProcessor takes as_="pandas" or as_="rows", not {form!r}')
        _check_at_end(at_end)
        made = functools.partial(ProcessOperator, instance, self.key, form, _schema(schema), at_end == "fire")
        stream = self._node("process", made, name, parallelism)
        check_form(form, stream._ends[0].operator)
        return stream

    def reduce(
        self,
        function: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]],
        *,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """One row for each key, made by `function(row so far, next row)` from rows as dictionaries.

        The result has the schema of the input. The current row of each key is emitted for every batch that had
        records of it. This works row by row in Python: where `aggregate` does, it is much faster.
        """
        return self._apply(
            "reduce", function, "rows", functools.partial(operators.ReduceOperator, function), name, parallelism
        )

    def aggregate(
        self, *, name: str | None = None, parallelism: int | None = None, **outputs: str | tuple[str, str]
    ) -> Stream:
        """Running aggregates by key, columnar: `aggregate(total=("sum", "amount"), orders="count")`.

        Functions are sum, count, min, max, mean, first and last. The current values of each key are emitted for
        every batch that had records of it: a stream of updates, of which the last one for a key counts. Nulls are
        left out, as in SQL; a sum of integers that overflows is a `DataError`.
        """
        if not outputs:
            raise PipelineError('aggregate needs at least one output, such as total=("sum", "amount")')
        aggregates = [_aggregate(output, what) for output, what in outputs.items()]
        names = [*self.key, *outputs]
        if len(set(names)) < len(names):
            raise PipelineError(f"aggregate: an output has the name of a key column: {', '.join(names)}")
        made = functools.partial(operators.AggregateOperator, aggregates)
        return self._node("aggregate", made, name, parallelism)

    def count(self, output: str = "count", *, name: str | None = None, parallelism: int | None = None) -> Stream:
        """The number of records of each key so far: see `aggregate`."""
        return self.aggregate(name=name, parallelism=parallelism, **{output: "count"})

    def sum(
        self, column: str, output: str | None = None, *, name: str | None = None, parallelism: int | None = None
    ) -> Stream:
        """The sum of a column for each key so far: see `aggregate`."""
        return self.aggregate(name=name, parallelism=parallelism, **{output or column: ("sum", column)})


class ConnectedStreams:
    """Two streams that are about to meet in one function."""

    def __init__(self, left: Stream, right: Stream) -> None:
        self.left = left
        self.right = right

    def process(
        self,
        function: Any,
        *,
        schema: SchemaLike | None = None,
        at_end: AtEnd = "fire",
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """A `TwoInputFunction`, or a function of (batch, side) without state, where side is "left" or "right"."""
        instance = function() if isinstance(function, type) else function
        if not isinstance(instance, TwoInputFunction):
            if not callable(instance):
                raise PipelineError(
                    f"process takes a TwoInputFunction or a function of (batch, side), not {function!r}"
                )
            instance = CallableTwoInput(instance)
        _check_at_end(at_end)
        keys = [stream._ends[0].key for stream in (self.left, self.right)]
        self._check_keys(keys)
        pipeline = self.left.pipeline
        made = functools.partial(TwoInputOperator, instance, keys, _schema(schema), at_end == "fire")
        chosen = pipeline._add("connect", name, parallelism, operator=made)
        pipeline._connect(self.left._ends, chosen, 0)
        pipeline._connect(self.right._ends, chosen, 1)
        return Stream(pipeline, (_End(chosen),))

    def _check_keys(self, keys: list[tuple[str, ...]]) -> None:
        left, right = keys
        if left and right and len(left) != len(right):
            raise PipelineError(
                f"connect: the left side is keyed by {', '.join(left)} and the right side by {', '.join(right)}: "
                f"both need a key of the same columns, though not of the same names"
            )
        for key, other in ((left, self.right), (right, self.left)):
            others = [end for end in other._ends if not end.key and end.partitioning is not Partitioning.BROADCAST]
            if key and others:
                raise PipelineError(
                    f"connect: one side is keyed by {', '.join(key)}, and '{others[0].operator}' on the other side is "
                    f"not: call key_by on both, or broadcast() on the other one"
                )


def _schema(schema: SchemaLike | None) -> pa.Schema | None:
    return None if schema is None else as_schema(schema)


def _check_at_end(at_end: str) -> None:
    if at_end not in ("fire", "drop"):
        raise PipelineError(f'process: at_end is {at_end!r}: it must be "fire" or "drop"')


def _aggregate(output: str, what: Any) -> Aggregate:
    function, column = what if isinstance(what, tuple) and len(what) == 2 else (what, None)
    if function not in FUNCTIONS:
        raise PipelineError(
            f"aggregate: {output} is {what!r}: it must be a function and a column, such as "
            f'{output}=("sum", "amount"); functions are {", ".join(FUNCTIONS)}'
        )
    if column is None and function != "count":
        raise PipelineError(f'aggregate: {function} needs a column: {output}=("{function}", "…")')
    return Aggregate(function, column, output)
