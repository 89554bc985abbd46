"""Streams by key: functions with state, aggregates, joins. Windows are in `grouped_stream`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from penstock.api.arguments import (
    AtEnd,
    EmitWhen,
    Output,
    Row,
    aggregates_of,
    limited,
    limits_of,
    masks_of,
    outputs_besides,
    require_choice,
    require_columns,
    require_count,
    require_sequence,
    trigger_of,
)
from penstock.api.grouped_stream import GroupedStream
from penstock.api.join import joined_streams
from penstock.api.lookups import as_of_join
from penstock.api.over_stream import OverStream
from penstock.api.process_call import ProcessCall, time_mode_of
from penstock.api.stream import Stream
from penstock.columnar.schemas.schema_guard import SchemaLike
from penstock.errors import PipelineError
from penstock.graph.logical import Keeps, OperatorFactory
from penstock.graph.names import label_of
from penstock.model.aggregates import Aggregate, columns_of, kept_for, outputs_of
from penstock.model.changelog import OP, RETRACTABLE
from penstock.model.joins import How
from penstock.model.over import RangeFrame, RowsFrame
from penstock.model.units import Duration, duration_ms
from penstock.model.windows import Late
from penstock.operators.failures import OnError
from penstock.operators.formats import As, check_format
from penstock.operators.keyed.aggregate import AggregateOperator
from penstock.operators.keyed.reduce import ReduceOperator
from penstock.operators.keyed.retract import RetractingAggregateOperator
from penstock.operators.keyed.timers import TimeMode
from penstock.operators.keyed.top import TopOperator
from penstock.protocol.manifest.compatibility import AGGREGATES


class KeyedStream(GroupedStream):
    """A stream partitioned by key. Operators behind it have keyed state.

    Example:

        by_customer = orders.key_by("customer")
        assert by_customer.key == ("customer",)
    """

    def process(
        self,
        function: object,
        *,
        format: As | None = None,
        schema: SchemaLike | None = None,
        time_mode: TimeMode | None = None,
        initial_state: object = None,
        at_end: AtEnd = "fire",
        on_error: OnError = "raise",
        side_outputs: Mapping[str, SchemaLike] | None = None,
        batch_rows: int | None = None,
        batch_time: Duration | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """A `KeyedFunction`, or a `StatefulProcessor` (ours or PySpark's), called with one key at a time.

        A `BatchFunction` is called with all keys of a batch, and has their state as columns: the fast path.

        `format` is `"arrow"` for a `KeyedFunction` and `"pandas"` for a processor, unless it says otherwise.

        `time_mode` is the time of its timers: `"event"` (the watermark), `"processing"` (the clock of the worker) or
        `"none"` (to set a timer is an error). Without it, event time if the stream has it (`with_watermark`). At the
        end of a bounded input, timers that are still set are called early, or with `at_end="drop"` not at all.

        `initial_state` is for a processor: a table of Arrow, or a DataFrame of pandas or Spark, with the columns of
        the key. `handleInitialState` gets its rows before the first record, in a pipeline that starts without a
        checkpoint of this operator. The table is read here, and travels to every worker.

        `on_error` is that of `map`. Records of a key for which the function raises are halved until the bad ones are
        alone, and each failed call leaves state and timers as they were. Errors in `on_timer`, and outputs that cannot
        become Arrow, always fail the pipeline.

        `side_outputs={"alerts": "user string"}` declares streams that the function emits to with `context.emit`, read
        with `side_output("alerts")`. The class may declare them, too.

        `batch_rows` is the most rows of one call. With `batch_time`, records of all keys wait for others until there
        are `batch_rows`, and no longer than that.

        Example:

            >>> class Count(KeyedFunction):
            ...     def open(self, context):
            ...         self.count = context.value("count", "n bigint", ttl="1 day")
            ...     def process(self, key, rows, context):
            ...         (n,) = self.count.get() or (0,)
            ...         self.count.update((n + rows.num_rows,))
            ...         return pa.record_batch({"user": [key[0]], "n": [n + rows.num_rows]})
            >>> collect(orders.key_by("user").process(Count()), by="user")
            [{'user': 'ada', 'n': 2}, {'user': 'ben', 'n': 1}]
        """
        if self._is_one_group:
            raise PipelineError(
                "process needs the columns of a key: key_by() without columns is for aggregates and "
                "windows. Key by a column with the same value in all records"
            )
        mode = time_mode_of(time_mode, self._event_time is not None)
        call = ProcessCall(function, self.key, format, schema, at_end, mode, initial_state, on_error, side_outputs)
        limits = limits_of("process", call.format, batch_rows, batch_time)
        label = label_of(call.instance)
        stream = self._node(
            "process",
            limited(call.made, limits),
            name,
            parallelism,
            label,
            keeps=Keeps.KEYS,
            chainable=not limits.time_ms,
            schema=call.schema,
            side_outputs=call.side_outputs,
        )
        check_format(call.format, stream._ports[0].operator)
        return stream

    def reduce(
        self,
        function: Callable[[Row, Row], Row],
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

        Example:

            >>> larger = lambda so_far, row: max(so_far, row, key=lambda each: each["amount"])
            >>> collect(orders.key_by("user").reduce(larger, emit="final"), by="user")
            [{'user': 'ada', 'amount': 5, 'at': 61000}, {'user': 'ben', 'amount': -1, 'at': 2000}]
        """
        trigger = trigger_of("reduce", emit, "updates")
        self._require_appends("reduce", "use aggregate with sum, count or mean")
        require_sequence("reduce", sequence)
        made = functools.partial(ReduceOperator, function, sequence, trigger)
        return self._apply(
            "reduce",
            function,
            "rows",
            made,
            name,
            parallelism,
            label_of(function),
            keeps=Keeps.KEYS,
            needs_end=emit == "final",
            definition=() if sequence is None else (("sequence", sequence),),
        )

    def aggregate(
        self,
        *,
        sequence: str | None = None,
        emit: EmitWhen = "updates",
        name: str | None = None,
        parallelism: int | None = None,
        **outputs: Output,
    ) -> Stream:
        """Running aggregates by key, columnar: `aggregate(total=("sum", "amount"), orders="count")`.

        Functions are sum, count, min, max, mean (also called avg), first, last, std, var, count_distinct,
        approx_count_distinct, collect_list, `("quantile", "ms", 0.99)`, `("arg_max", "seller", "price")`, arg_min, and
        your own, by a `ColumnarAggregate`; `filtered(…, where=…)` makes one of some records
        only. The current values of each key are emitted for every batch that had records of it: a stream of updates,
        of which the last one for a key counts.
        Nulls are left out, as in SQL; a sum of integers that overflows is a `DataError`.

        `sequence="version"` adds an int64 column that says which update of a key is newer, also in files: the number of
        records that the row is made of. It grows with every update of a key, and after a failure a row comes with
        the same number again.

        `emit="changelog"` emits the row of a key that changes as it was, with `op` "delete", and as it is, with
        "insert". Behind a changelog, records with `op` "delete" are taken back: of sum, count and mean. A key without
        records has a count of 0 then, and is only deleted in a changelog.

        `emit="final"` emits a key once, at the end of a bounded input. A later run on the same checkpoints that reads
        more emits the keys that had records since then, with their new values. `emit="5 s"` emits the keys that have
        changed, every five seconds of the worker's clock. `emit="1000 rows"` emits a key when it has had a thousand
        records since the last time, at most once for a batch. Both emit the rest at the end.

        Example:

            >>> totals = orders.key_by("user").aggregate(total=("sum", "amount"), mean=("avg", "amount"), emit="final")
            >>> collect(totals, by="user")
            [{'user': 'ada', 'total': 8, 'mean': 4.0}, {'user': 'ben', 'total': -1, 'mean': -1.0}]
        """
        trigger = trigger_of("aggregate", emit, "updates", "changelog")
        require_sequence("aggregate", sequence)
        if sequence is not None:
            outputs = {**outputs_besides(sequence, outputs), sequence: "count"}
        aggregates = aggregates_of(self.key, outputs)
        masks = masks_of(outputs)
        made: OperatorFactory = functools.partial(AggregateOperator, aggregates, trigger, masks)
        takes_back = self._takes_back(aggregates)
        if takes_back or emit == "changelog":
            made = functools.partial(
                RetractingAggregateOperator,
                aggregates,
                takes_back=takes_back,
                emits_changelog=emit == "changelog",
                trigger=trigger,
                masks=masks,
            )
        stream = self._node(
            "aggregate",
            made,
            name,
            parallelism,
            outputs_of(aggregates),
            keeps=Keeps.KEYS,
            # Nobody knows which columns a condition reads: all of them come here.
            reads=None if masks else (*columns_of(aggregates), *((OP,) if takes_back else ())),
            needs_end=emit == "final",
            definition=((AGGREGATES, kept_for(aggregates)),),
        )
        return stream._as_changelog("retracting" if emit == "changelog" else None)

    def _takes_back(self, aggregates: Sequence[Aggregate]) -> bool:
        """Whether records are taken back. Refuses aggregates that cannot, and changes without the former row."""
        if self._changelog == "upserting":
            self._require_appends("aggregate", "an update does not say what the row was; aggregate before to_upsert()")
        for each in aggregates:
            if self._changelog is not None and each.function not in RETRACTABLE:
                raise PipelineError(
                    f"aggregate: {each.output} is {each.function} of a changelog: after a record is "
                    "retracted, the next value is only known from all other records. Use "
                    f"{', '.join(sorted(RETRACTABLE))}; or top(1, by=…) on the original records"
                )
        return self._changelog is not None

    def count(
        self,
        output: str = "count",
        *,
        sequence: str | None = None,
        emit: EmitWhen = "updates",
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """The number of records of each key so far: see `aggregate`.

        Example:

            >>> collect(orders.key_by("user").count(emit="final"), by="user")
            [{'user': 'ada', 'count': 2}, {'user': 'ben', 'count': 1}]
        """
        outputs: dict[str, Output] = {output: "count"}
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
        """The sum of a column for each key so far: see `aggregate`.

        Example:

            >>> collect(orders.key_by("user").sum("amount", "total", emit="final"), by="user")
            [{'user': 'ada', 'total': 8}, {'user': 'ben', 'total': -1}]
        """
        outputs: dict[str, Output] = {output or column: ("sum", column)}
        return self.aggregate(sequence=sequence, emit=emit, name=name, parallelism=parallelism, **outputs)

    def top(
        self,
        count: int,
        *,
        by: str,
        descending: bool = True,
        rank: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """The first `count` records of each key by a column, as a changelog: the largest, unless `descending=False`.

        A record that enters them is emitted with `op` "insert", one that leaves them with "delete". `rank="rank"` adds
        the place of each record, from 1; then a record whose place changes is deleted with the old one and inserted
        with the new one. Of equal values the record that came first is first; nulls come last.

        Example:

            >>> collect(orders.key_by("user").top(1, by="amount").select("user", "amount", "op"), by="user")[:1]
            [{'user': 'ada', 'amount': 5, 'op': 'insert'}]

        The first `count` records of each key are state. For a table of the current ones, say `rank=` and
        `to_upsert(key, "rank")` in front of the sink.
        """
        require_count("top: count", count)
        require_columns("top: by", (by,) if rank is None else (by, rank))
        self._require_appends("top", "it does not keep the records below the first ones; rank the records themselves")
        made = functools.partial(TopOperator, count, by, descending, rank)
        settings = (("top", f"{count} by {by} {'descending' if descending else 'ascending'}"),)
        stream = self._node("top", made, name, parallelism, settings[0][1], keeps=Keeps.KEYS, definition=settings)
        return stream._as_changelog("retracting")

    def over(
        self,
        *,
        rows: int | None = None,
        range: Duration | None = None,
        on: str | None = None,
        late: Late = "drop",
    ) -> OverStream:
        """A frame for each record, as SQL's OVER: `over(rows=10)`, or `over(range="10 min")` of event time.

        With `rows`, the frame is the record and those of its key before it, at most `rows` together. With `range`, it
        is all records of the key from `range` before the record up to its event time, both included. Records are
        emitted when the watermark has passed them, and are in the order of event time. Without event time, frames of
        rows are in the order of arrival, and records are emitted at once. `on` and `late` are those of `window`: a
        record is late if the watermark had passed it when it came.

        Example:

            >>> last_hour = orders.with_watermark("at", "10 s").key_by("user").over(range="1 hour")
            >>> [row["count"] for row in collect(last_hour.aggregate(count="count")) if row["user"] == "ada"]
            [1, 2]
        """
        if (rows is None) == (range is None):
            raise PipelineError('over takes either rows=, such as rows=10, or range=, such as range="10 min"')
        self._require_appends("over", "a frame does not know which of its records is taken back; put it in front")
        require_choice("over: late", late, "drop", "error", "stream")
        column = on or self._event_time
        if range is None:
            if column is None and late != "drop":
                raise PipelineError(
                    f"over: late is {late!r}: without event time no record is late; call with_watermark"
                )
            require_count("over: rows", rows)
            assert rows is not None
            return OverStream(self, RowsFrame(rows), column, late)
        if column is None:
            raise PipelineError(
                'over(range=…) needs event time: call with_watermark("…", "10 s") behind the source, or name its '
                'column with on="…" if the source makes its own watermarks'
            )
        frame = RangeFrame(duration_ms("over: range", range, exactly=True))
        return OverStream(self, frame, column, late)

    def join_as_of(
        self,
        other: KeyedStream,
        *,
        how: Literal["inner", "left"] = "inner",
        suffix: str = "_right",
        right_schema: SchemaLike | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Each record, and the version of `other` that is valid at its event time: see `docs/lookups.md`.

        Example:

            >>> timed = orders.with_watermark("at", "10 s")
            >>> levels = ListSource([{"user": "ada", "level": level, "at": at} for level, at in [(1, 0), (2, 60_000)]])
            >>> levels = timed.pipeline.source(levels, name="levels").with_watermark("at", "10 s")
            >>> joined = timed.key_by("user").join_as_of(levels.key_by("user"))
            >>> collect(joined.select("user", "at", "level"), by="at")
            [{'user': 'ada', 'at': 1000, 'level': 1}, {'user': 'ada', 'at': 61000, 'level': 2}]

        That is the version of the key with the largest time that is not after the record's; of equal times, the one
        that came last. A record comes out when the watermarks of both streams have passed its time. One without a
        version is left out, or with `how="left"` has nulls. A null key never matches. A record that is late is left out
        and counted in `Status.rows_late`; a late version counts from its arrival on. State holds one version for each
        key, and whatever the watermark has not passed. Columns of `other` that this stream has too get the `suffix`.

        `right_schema`, with `how="left"`: the columns of `other`. Without it, a subtask that has had no record of
        `other` yet cannot know them, and waits.
        """
        return as_of_join(self, other, how, suffix, right_schema, name, parallelism)

    def join(
        self,
        other: KeyedStream,
        *,
        between: tuple[Duration, Duration] | None = None,
        window: Duration | None = None,
        state_ttl: Duration | None = None,
        how: How = "inner",
        on: str | tuple[str, str] | None = None,
        late: Late = "drop",
        suffix: str = "_right",
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Rows of both streams with equal keys, side by side. The keys need not have the same names.

        `between=("-5 min", "10 min")`: the right row is from 5 minutes earlier to 10 minutes later in event time than
        the left one, both bounds included. `window="10 s"`: both are in the same window; the result has `window_start`
        and `window_end`. Without either it is a regular join: any two rows meet, and all are kept, or with `state_ttl`
        for that time: event time if both streams have it, else processing time.

        `how` is `"inner"`, `"left"`, `"right"` or `"full"`. A row without a partner comes once, with nulls for the
        other side, when the watermark has passed its last possible partner. A regular join cannot know that: an outer
        one has a column `op`, and a row without a partner is inserted at once, and deleted when one comes.

        A key column of one name is in the result once; other columns of the right side whose names the left side has
        get the `suffix`. A null key equals no other. `on` names the columns of the event time, if they are not those
        of `with_watermark`. A row behind the watermark is late: with `late="drop"` it is left out and counted in
        `Status.rows_late`, with `late="error"` it is a `DataError`, and with `late="stream"` a record of the streams
        `late("left")` and `late("right")` of the result, with all its columns.

        Example:

            >>> refunds = orders.filter(pc.field("amount") < 0)
            >>> later = orders.key_by("user").join(refunds.key_by("user"), state_ttl="1 day")
            >>> collect(later.select("user", "amount", "amount_right"))
            [{'user': 'ben', 'amount': -1, 'amount_right': -1}]
            >>> timed = orders.with_watermark("at", "1 s").key_by("user")
            >>> pairs = timed.join(timed, between=("1 s", "2 min"), how="left")
            >>> collect(pairs.select("user", "amount", "amount_right"), by="amount")
            [{'user': 'ben', 'amount': -1, 'amount_right': None}, {'user': 'ada', 'amount': 3, 'amount_right': 5}, \
{'user': 'ada', 'amount': 5, 'amount_right': None}]
        """
        return joined_streams(
            self,
            other,
            between=between,
            window=window,
            state_ttl=state_ttl,
            how=how,
            on=on,
            late=late,
            suffix=suffix,
            name=name,
            parallelism=parallelism,
        )
