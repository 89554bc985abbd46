"""Streams by key: state, aggregates, windows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from penstock.api.arguments import (
    AtEnd,
    EmitWhen,
    aggregates_of,
    outputs_besides,
    require_choice,
    require_sequence,
    windows_of,
)
from penstock.api.process_call import ProcessCall, time_mode_of
from penstock.api.stream import Stream
from penstock.api.windowed_stream import WindowedStream
from penstock.columnar.schema_guard import SchemaLike
from penstock.errors import PipelineError
from penstock.graph.names import Keeps, label_of
from penstock.model.aggregates import columns_of, kept_for, outputs_of
from penstock.model.units import Duration
from penstock.model.windows import Late
from penstock.operators.aggregate import AggregateOperator
from penstock.operators.formats import As, check_form
from penstock.operators.reduce import ReduceOperator
from penstock.operators.timers import TimeMode
from penstock.protocol.manifest.compatibility import AGGREGATES


class KeyedStream(Stream):
    """A stream that is partitioned by key: what follows has the state of its keys at hand.

    Example:

        by_customer = orders.key_by("customer")
        assert by_customer.key == ("customer",)
    """

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

        A `BatchFunction` is called with all keys of a batch, and has their state as columns: the fast path.

        `as_` is `"arrow"` for a `KeyedFunction` and `"pandas"` for a processor, unless it says otherwise.

        `time_mode` is the time of its timers: `"event"` (the watermark), `"processing"` (the clock of the worker) or
        `"none"` (to set a timer is an error). Without it, event time if the stream has it (`with_event_time`). At the
        end of a bounded input, timers that are still set are called early, or with `at_end="drop"` not at all.

        `initial_state` is for a processor: a table of Arrow, or a DataFrame of pandas or Spark, with the columns of
        the key. `handleInitialState` gets its rows before the first record, in a pipeline that starts without a
        checkpoint of this operator. The table is read here, and travels to every worker.

        Example:

            class Number(KeyedFunction):
                def open(self, context):
                    self.last = context.value("last", "n bigint")

                def process(self, key, rows, context):
                    (n,) = self.last.get() or (0,)
                    self.last.update((n + rows.num_rows,))
                    return pa.record_batch({"customer": [key[0]], "orders": [n + rows.num_rows]})

            orders.key_by("customer").process(Number()).sink(output)
            run(pipeline)
            assert {"customer": "ann", "orders": 2} in output.rows()
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

        Example:

            largest = orders.key_by("customer").reduce(lambda a, b: a if a["amount"] >= b["amount"] else b)
            largest.select("customer", "amount").sink(output)
            run(pipeline)
            assert {"customer": "ann", "amount": 30} in output.rows()
        """
        require_choice("reduce: emit", emit, "updates", "final")
        require_sequence("reduce", sequence)
        made = functools.partial(ReduceOperator, function, sequence, emit == "final")
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

        Example:

            orders.key_by("customer").aggregate(total=("sum", "amount"), orders="count").sink(output)
            run(pipeline)
            assert {"customer": "ann", "total": 40, "orders": 2} in output.rows()
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
        """The number of records of each key so far: see `aggregate`.

        Example:

            orders.key_by("customer").count("orders", emit="final").sink(output)
            run(pipeline)
            assert {"customer": "ann", "orders": 2} in output.rows()
        """
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
        """The sum of a column for each key so far: see `aggregate`.

        Example:

            orders.key_by("customer").sum("amount", "total").sink(output)
            run(pipeline)
            assert {"customer": "ann", "total": 40} in output.rows()
        """
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

        Example:

            timed = orders.with_event_time("at", max_delay="1 s")
            timed.key_by("customer").window("2 s", every="1 s").count("orders").sink(output)
            run(pipeline)
            assert {"customer": "ann", "window_start": 1_000, "window_end": 3_000, "orders": 2} in output.rows()
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
