"""Pipelines and streams: how a user describes what is to happen.

    pipeline = Pipeline("totals")
    (
        pipeline.source(FileSource("/data/orders/*.parquet"))
        .filter(pc.field("amount") > 0)
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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, cast

from penstock.api.arguments import (
    require_choice,
    require_columns,
    require_instance,
)
from penstock.api.builder import definition_of
from penstock.api.connected import ConnectedStreams
from penstock.api.lookups import table_join
from penstock.api.outputs_stream import OutputsStream
from penstock.connectors.sink import Sink
from penstock.errors import PipelineError
from penstock.graph.logical import Keeps
from penstock.model.event_time import Unit
from penstock.model.units import Duration, duration_ms
from penstock.operators import stateless as operators
from penstock.operators.columns import ONE_GROUP, OneGroupOperator
from penstock.operators.event_time import EventTimeOperator
from penstock.operators.keyed.drop_duplicates import DropDuplicatesOperator
from penstock.protocol.manifest import Partitioning
from penstock.protocol.manifest.compatibility import EVENT_TIME_COLUMN

if TYPE_CHECKING:
    from penstock.api.keyed_stream import KeyedStream

    # The only name of a layer above, for type checkers: a sink returns the pipeline that it completes.
    from penstock.pipeline import Pipeline


class Stream(OutputsStream):
    """A stream of records. Every method returns a new stream; a stream may have any number of readers.

    `format` is that in which a function gets records, and returns them: `"arrow"` (a `RecordBatch`), `"pandas"`,
    `"polars"` (DataFrames), or `"rows"` (a dictionary for each). `schema` declares the output, as an Arrow schema or
    a DDL string; without it, the first output decides, and a later one of another schema is a `DataError`.

    The trap: a function gets as many records at once as the engine sees fit, so only what it returns for each
    record may matter, not how often it is called.

    The examples of the methods begin with this stream:

    Example:

        >>> import pyarrow as pa
        >>> import pyarrow.compute as pc
        >>> from penstock import *
        >>> from penstock.testing import CollectSink, ListSource, collect, run
        >>> rows = [("ada", 3, 1_000), ("ben", -1, 2_000), ("ada", 5, 61_000)]
        >>> source = ListSource([{"user": user, "amount": amount, "at": at} for user, amount, at in rows])
        >>> orders = Pipeline("orders").source(source)
    """

    # --- functions ---

    def with_watermark(
        self,
        column: str,
        delay: Duration,
        *,
        idle_after: Duration | None = None,
        unit: Unit | None = None,
        max_ahead: Duration | None = None,
        max_drift: Duration | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Name the event-time column, and bound how late a record may arrive.

        Example:

            >>> windows = orders.with_watermark("at", "10 s").key_by("user").window("1 min")
            >>> collect(windows.count(), by="window_start")[-1]
            {'user': 'ada', 'window_start': 60000, 'window_end': 120000, 'count': 1}

        The column is a timestamp of any unit, or an int64 of milliseconds; a null in it is a `DataError`. With `unit`,
        numbers of seconds ("s"), "ms", "us" or "ns" become timestamps in UTC. From here on event time is that of the
        records: each split of the source has a clock, the newest time that was read of it
        less `delay`, and the slowest split is the watermark. So files, or partitions of a log, may be hours apart.
        Watermarks of the source, if it has any, end here.

        A split that has nothing to read holds the others up, unless `idle_after` is given: one that had no record for
        this long is left out until it has one. Files always have an end, and are never idle.

        One time in the far future makes all that follows late; with `max_ahead="1 hour"` a time that is further ahead
        of the clock does not move event time on. Its row is kept. Both are warnings in the log.

        With `max_drift="5 min"`, a split that is further ahead of the slowest one is not read for a while
        (`splits_held` in the metrics), so that windows and joins behind it hold less. The slowest one may be on another
        worker, and of any source with a `max_drift` whose records can meet these. Say `idle_after` with it, unless
        every split has records or an end: the others wait for one that has nothing.

        The trap: behind an exchange, splits cannot be told apart any more, only channels, and behind `map_async` or
        `process` not even those. Call it before: right behind the source, or behind `map` and `filter`.

        Example:

            timed = orders.with_watermark("at", "1 s")
            timed.key_by("customer").window("1 s").count().select("customer", "count").sink(output)
            run(pipeline)
            assert sorted(row["customer"] for row in output.rows()) == ["ann", "ann", "bob"]
        """
        require_columns("with_watermark", (column,))
        delay_ms = duration_ms("with_watermark: delay", delay)
        idle_ms = ahead_ms = drift_ms = None
        if idle_after is not None:
            idle_ms = duration_ms("with_watermark: idle_after", idle_after, at_least_ms=1)
        if unit is not None:
            require_choice("with_watermark: unit", unit, "s", "ms", "us", "ns")
        if max_ahead is not None:
            ahead_ms = duration_ms("with_watermark: max_ahead", max_ahead)
        if max_drift is not None:
            drift_ms = duration_ms("with_watermark: max_drift", max_drift)
        made = functools.partial(EventTimeOperator, column, delay_ms, idle_ms, unit, ahead_ms, drift_ms)
        # The watermark is state: times of another column may lie behind it, and their records would be late.
        definition = ((EVENT_TIME_COLUMN, column),)
        # The kind has its first name: checkpoints hold it, and derived names are made of it.
        stream = self._node("with_event_time", made, name, parallelism, keeps=Keeps.BATCHES, definition=definition)
        return stream._timed(column)

    # --- ways on ---

    def key_by(self, *columns: str, nulls: Literal["group", "error"] = "group") -> KeyedStream:
        """Records with equal values in `columns` go to the same subtask, in their order.

        `nulls="group"`: null is a key like any other. `nulls="error"`: a null in a key is a `DataError`.

        Without columns, all records are one group, for aggregates and windows of everything; one subtask works on it.

        Example:

            >>> collect(orders.key_by("user").sum("amount", emit="final"), by="user")
            [{'user': 'ada', 'amount': 8}, {'user': 'ben', 'amount': -1}]
            >>> collect(orders.key_by().sum("amount", emit="final"))
            [{'amount': 7}]
        """
        from penstock.api.keyed_stream import KeyedStream

        if not columns:
            grouped = self._node("key_by", OneGroupOperator, None, None)
            return KeyedStream(
                self.pipeline,
                tuple(replace(port, partitioning=Partitioning.HASH, key=(ONE_GROUP,)) for port in grouped._ports),
            )
        require_columns("key_by", columns)
        require_choice("key_by: nulls", nulls, "group", "error")
        stream = self
        if nulls == "error":
            stream = self._node("key_by", functools.partial(operators.KeyCheckOperator, columns), None, None)
        ports = tuple(replace(port, partitioning=Partitioning.HASH, key=columns) for port in stream._ports)
        return KeyedStream(self.pipeline, ports)

    def drop_duplicates(
        self,
        *columns: str,
        within: Duration | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Keep the first record of each value of `columns`; drop and count the others.

        Example:

            >>> collect(orders.with_watermark("at", "10 s").drop_duplicates("user", within="1 hour").select("at"))
            [{'at': 1000}, {'at': 2000}]

        A record is a duplicate if it is less than `within` after one that was kept, in event time if the stream has it
        (`with_watermark`), else by the clock of the worker. So state is bounded: a key is forgotten when the
        watermark has passed its time and `within`. A record that comes later than that behind the watermark is left
        out too, and counted in `Status.rows_late`, since nobody knows whether it is a duplicate. Without `within` every
        key is remembered. Records are partitioned by `columns`; null is a value like any other.
        """
        require_columns("drop_duplicates", columns)
        self._require_appends("drop_duplicates", "put it in front of the operator that makes the changelog")
        within_ms = None if within is None else duration_ms("drop_duplicates: within", within, at_least_ms=1)
        on = self._event_time
        made = functools.partial(DropDuplicatesOperator, within_ms, on)
        settings = {"duplicates within": "any time" if within_ms is None else f"{within_ms} ms", "time": on or ""}
        return self.key_by(*columns)._node(
            "drop_duplicates", made, name, parallelism, keeps=Keeps.KEYS, definition=tuple(settings.items())
        )

    def join_table(
        self,
        table: object,
        *,
        on: str | Sequence[str] | Mapping[str, str],
        how: Literal["inner", "left"] = "inner",
        refresh_every: Duration | None = None,
        suffix: str = "_right",
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Join each record with the rows of a table that have its key: see `docs/lookups.md`.

        Example:

            >>> names = pa.table({"user": ["ada", "ben"], "name": ["Ada L.", "Ben K."]})
            >>> collect(orders.join_table(names, on="user").select("user", "name"))[:2]
            [{'user': 'ada', 'name': 'Ada L.'}, {'user': 'ben', 'name': 'Ben K.'}]

        `table` is a table of Arrow, or a DataFrame of pandas or Spark, read here and sent to every worker; or a
        function that returns one, which every subtask calls, and calls again every `refresh_every`. `on` names a column
        that both have, or several, or maps columns of the stream to columns of the table. A record with several matches
        comes out once for each; one without a match is left out, or with `how="left"` has nulls. A null never
        matches. Columns of the table that the stream has too get the `suffix`.
        """
        arguments = table_join(table, on, how, refresh_every, suffix)
        return self._node("join_table", arguments, name, parallelism)

    def union(self, *others: Stream) -> Stream:
        """Merge streams of one schema. The order between them is undefined.

        Example:

            >>> refunds = orders.filter(pc.field("amount") < 0)
            >>> len(collect(orders.union(refunds)))
            4
        """
        ports = list(self._ports)
        for other in others:
            self._require_own("union", other)
            if other._changelog != self._changelog:
                raise PipelineError(
                    "union: the streams are not all changelogs of the same kind: convert them first, "
                    'for instance with drop("op")'
                )
            ports += other._ports
        return Stream(self.pipeline, tuple(ports))

    def connect(self, other: Stream) -> ConnectedStreams:
        """Connect two streams to one function: both keyed, or `other.broadcast()`, which goes to every subtask.

        Example:

            >>> refunds = orders.filter(pc.field("amount") < 0)
            >>> sides = orders.connect(refunds).process(lambda batch, side: batch.select(["user"]))
            >>> len(collect(sides))
            4
        """
        self._require_own("connect", other)
        return ConnectedStreams(self, other)

    def rebalance(self) -> Stream:
        """Send batches to the subtasks of the next operator round-robin.

        Example:

            >>> len(collect(orders.rebalance().map(lambda batch: batch), parallelism=2))
            3
        """
        return self._by(Partitioning.REBALANCE)

    def shuffle(self) -> Stream:
        """Send batches to random subtasks of the next operator.

        Example:

            >>> len(collect(orders.shuffle().map(lambda batch: batch), parallelism=2))
            3
        """
        return self._by(Partitioning.SHUFFLE)

    def broadcast(self) -> Stream:
        """Send every record to every subtask of the next operator. Such an input is always aligned.

        Example:

            >>> len(collect(orders.broadcast().map(lambda batch: batch), parallelism=2))
            6
        """
        return self._by(Partitioning.BROADCAST)

    def to_one(self) -> Stream:
        """Send everything to the first subtask of the next operator, whose parallelism is 1 unless it is set.

        Example:

            >>> len(collect(orders.to_one().map(lambda batch: batch), parallelism=2))
            3
        """
        return self._by(Partitioning.GLOBAL)

    def forward(self) -> Stream:
        """Send records to the subtask of the same number; both operators need the same parallelism. Always aligned.

        Example:

            >>> len(collect(orders.forward().map(lambda batch: batch), parallelism=2))
            3
        """
        return self._by(Partitioning.FORWARD)

    def rescale(self) -> Stream:
        """Send batches from each subtask to a few of the next operator, without a connection between every pair.

        Example:

            >>> len(collect(orders.rescale().map(lambda batch: batch), parallelism=2))
            3
        """
        return self._by(Partitioning.RESCALE)

    def sink(self, sink: Sink, *, name: str | None = None, parallelism: int | None = None) -> Pipeline:
        """Write to a sink. Returns the pipeline.

        Example:

            >>> output = CollectSink()
            >>> result = run(orders.select("user").sink(output))
            >>> output.rows()
            [{'user': 'ada'}, {'user': 'ben'}, {'user': 'ada'}]
        """
        require_instance("sink()", sink, Sink, "ParquetSink(…)")
        if sink.is_upsert and self._changelog == "retracting":
            raise PipelineError(
                f"sink: {sink!r} replaces rows by their key, and its input is a changelog that deletes a row as it was "
                f"and inserts it as it is. Put to_upsert(…), with the columns of the key, in front of the sink"
            )
        chosen = self.pipeline._add(
            "sink",
            name,
            self._parallelism if parallelism is None else parallelism,
            sink=sink,
            definition=definition_of(sink.identity()),
        )
        self.pipeline._connect(self._ports, chosen)
        return cast("Pipeline", self.pipeline)
