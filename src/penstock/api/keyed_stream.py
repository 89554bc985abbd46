"""Streams by key: state, aggregates, windows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, Unpack

from penstock.api.arguments import (
    AtEnd,
    EmitWhen,
    Output,
    Row,
    aggregates_of,
    emission_of,
    outputs_besides,
    require_choice,
    require_count,
    require_sequence,
    sessions_of,
    windows_of,
)
from penstock.api.builder import NodeTraits
from penstock.api.process_call import ProcessCall, time_mode_of
from penstock.api.stream import Stream
from penstock.api.windowed_stream import CountWindowedStream, WindowedStream
from penstock.columnar.schema_guard import SchemaLike
from penstock.errors import PipelineError
from penstock.graph.logical import Keeps, OperatorFactory
from penstock.graph.names import label_of
from penstock.model.aggregates import columns_of, kept_for, outputs_of
from penstock.model.units import Duration
from penstock.model.windows import ON_CLOSE, CountWindows, Emission, Late, WindowKind
from penstock.operators.columns import ONE_GROUP
from penstock.operators.formats import As, check_format
from penstock.operators.keyed.aggregate import AggregateOperator
from penstock.operators.keyed.reduce import ReduceOperator
from penstock.operators.keyed.timers import TimeMode
from penstock.protocol.manifest.compatibility import AGGREGATES


class KeyedStream(Stream):
    """A stream that is partitioned by key: what follows has the state of its keys at hand.

    Example:

        by_customer = orders.key_by("customer")
        assert by_customer.key == ("customer",)
    """

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of the key."""
        return self._ports[0].key

    @property
    def _is_one_group(self) -> bool:
        return self.key == (ONE_GROUP,)

    def _node(
        self,
        kind: str,
        made: OperatorFactory,
        name: str | None,
        parallelism: int | None,
        label: str = "",
        **traits: Unpack[NodeTraits],
    ) -> Stream:
        if not self._is_one_group:
            return super()._node(kind, made, name, parallelism, label, **traits)
        if parallelism not in (None, 1):
            raise PipelineError(
                f"{kind}: key_by() without columns makes one group, which one subtask works on: leave parallelism out, "
                f"or name columns in key_by"
            )
        stream = super()._node(kind, made, name, 1, label, **traits)
        (port,) = stream._without_group()._ports
        return self._stream((replace(port, beside=stream._ports[0].operator),))

    def process(
        self,
        function: object,
        *,
        format: As | None = None,
        schema: SchemaLike | None = None,
        time_mode: TimeMode | None = None,
        initial_state: object = None,
        at_end: AtEnd = "fire",
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
                "process needs the columns of a key: key_by() without columns is for aggregates and windows. Key by a "
                "column that is the same in all records"
            )
        mode = time_mode_of(time_mode, self._event_time is not None)
        call = ProcessCall(function, self.key, format, schema, at_end, mode, initial_state)
        label = label_of(call.instance)
        stream = self._node("process", call.made, name, parallelism, label, keeps=Keeps.KEYS, schema=call.schema)
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
        require_choice("reduce: emit", emit, "updates", "final")
        require_sequence("reduce", sequence)
        made = functools.partial(ReduceOperator, function, sequence, emit == "final")
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
        your own, by a `ColumnarAggregate`. The current values of each key are emitted for every batch that had records
        of it: a stream of updates, of which the last one for a key counts.
        Nulls are left out, as in SQL; a sum of integers that overflows is a `DataError`.

        `sequence="version"` adds an int64 column that says which update of a key is newer, also in files: the number of
        records that the row is made of. It grows with every update of a key, and after a failure a row comes with
        the same number again.

        `emit="final"` emits a key once, at the end of a bounded input. A later run on the same checkpoints that reads
        more emits the keys that had records since then, with their new values.

        Example:

            >>> totals = orders.key_by("user").aggregate(total=("sum", "amount"), mean=("avg", "amount"), emit="final")
            >>> collect(totals, by="user")
            [{'user': 'ada', 'total': 8, 'mean': 4.0}, {'user': 'ben', 'total': -1, 'mean': -1.0}]
        """
        require_choice("aggregate: emit", emit, "updates", "final")
        require_sequence("aggregate", sequence)
        if sequence is not None:
            outputs = {**outputs_besides(sequence, outputs), sequence: "count"}
        aggregates = aggregates_of(self.key, outputs)
        made = functools.partial(AggregateOperator, aggregates, emit == "final")
        return self._node(
            "aggregate",
            made,
            name,
            parallelism,
            outputs_of(aggregates),
            keeps=Keeps.KEYS,
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

    def window(
        self,
        size: Duration,
        *,
        every: Duration | None = None,
        offset: Duration = 0,
        on: str | None = None,
        late: Late = "drop",
        allowed_lateness: Duration = 0,
        emit: Literal["on_close", "on_update"] | Duration = "on_close",
    ) -> WindowedStream:
        """Windows of event time: `window("1 min")`, or overlapping ones: `window("1 hour", every="1 min")`.

        They are aligned to 1970 in UTC, shifted by `offset`. `on` is the column of the event time, if it is not that of
        `with_watermark`. A record all of whose windows have been emitted is late: with `late="drop"` it is left out
        and counted, in `Status.rows_late`; with `late="error"` it is a `DataError`; with `late="stream"` it goes to the
        stream `late()` of the result, with all its columns.

        With `allowed_lateness="1 min"` the state of a window is kept for that much event time after it was emitted.
        A record that comes meanwhile is not late: the result of its window is emitted again, with the batch that
        changed it. `emit` says when results are emitted for the first time: `"on_close"`, complete; `"on_update"`,
        whenever a batch has changed them; or early at an interval, such as `"5 s"` of the worker's clock, if they have
        changed. For both, `aggregate(…, sequence="version")` says which row of a window is newer.

        Example:

            >>> keyed = orders.with_watermark("at", "10 s").key_by("user")
            >>> collect(keyed.window("1 min").sum("amount"), by="window_start")[-1]
            {'user': 'ada', 'window_start': 60000, 'window_end': 120000, 'amount': 5}
        """
        windows = windows_of(size, every, offset, allowed_lateness)
        return self._windowed("window", windows, on, late, emission_of(emit))

    def session(self, gap: Duration, *, on: str | None = None, late: Late = "drop") -> WindowedStream:
        """Sessions: the records of a key with no pause between them that is longer than `gap`.

        Records exactly `gap` apart are in one session. Its `window_start` is the time of its first record, its
        `window_end` that of its last one plus `gap`; it is emitted once, when the watermark has passed its end. A
        record that comes between two open sessions makes one of them. `on` and `late` are those of `window`: a record
        is late if a session of this record alone would have been emitted.

        `first` and `last` go by the order of arrival within a pane, which is as long as the gap.

        Example:

            >>> keyed = orders.with_watermark("at", "10 s").key_by("user")
            >>> collect(keyed.session("30 s").count(), by="window_start")[-1]
            {'user': 'ada', 'window_start': 61000, 'window_end': 91000, 'count': 1}
        """
        return self._windowed("session", sessions_of(gap), on, late)

    def count_window(self, rows: int) -> CountWindowedStream:
        """Windows of `rows` records of a key, in the order in which they come; event time is not asked for.

        A window is emitted with its last record. One that is not full stays in the state, also at the end of a bounded
        input: a later run on the same checkpoints goes on with it.

        Example:

            >>> collect(orders.key_by("user").count_window(2).aggregate(total=("sum", "amount")))
            [{'user': 'ada', 'total': 8}]
        """
        require_count("count_window: rows", rows)
        return CountWindowedStream(self, CountWindows(rows))

    def _windowed(
        self, call: str, windows: WindowKind, on: str | None, late: Late, emission: Emission = ON_CLOSE
    ) -> WindowedStream:
        require_choice(f"{call}: late", late, "drop", "error", "stream")
        column = on or self._event_time
        if column is None:
            raise PipelineError(
                f'{call} needs event time: call with_watermark("…", "10 s") behind the source, or name its '
                f'column with on="…" if the source makes its own watermarks'
            )
        return WindowedStream(self, windows, column, late, emission)
