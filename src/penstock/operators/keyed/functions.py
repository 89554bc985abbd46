"""The classes that users extend to work with state: by key, and with two inputs.

Start with `KeyedFunction`. `operators/spark/processor.py` has PySpark's `StatefulProcessor`.

The trap in all of them: attributes of a function are not state. Values that must survive a failure belong into a
state that was asked for in `open` (or `init`); everything else starts again from the instance that was pickled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from penstock.columnar.schemas.schema_guard import SchemaLike
from penstock.metrics.group import MetricGroup
from penstock.model.units import Duration
from penstock.operators.contract import BatchState, Key
from penstock.operators.keyed.handles import ListState, MapState, ValueState
from penstock.state.rows.rows import RowsState


class KeyedContext(Protocol):
    """The context of a keyed function. States are declared in `open`, and always refer to the current key.

    Example:

        class Recent(KeyedFunction):
            def open(self, context):
                self.last = context.value("last", "amount bigint")
                self.all = context.list("all", "amount bigint", ttl="1 hour")
                self.seen = context.map("seen", "amount bigint", "at bigint")
                context.delete_state("state of an earlier version")
                self.calls = context.metrics.counter("calls")
                assert context.subtask < context.parallelism

            def process(self, key, rows, context):
                self.calls.add()
                assert context.key == key and context.watermark is None
                for row in rows.to_pylist():
                    self.last.update((row["amount"],))
                    self.all.append_value((row["amount"],))
                    self.seen.update_value((row["amount"],), (context.now_ms(),))
                context.set_timer(context.now_ms() + 60_000)
                context.set_timer(context.now_ms() + 90_000)
                context.delete_timer(max(context.timers()))

            def on_timer(self, key, at, context):
                amounts = [amount for (amount,) in self.all.get()]
                assert all(self.seen.contains_key((amount,)) for amount in amounts)
                return pa.record_batch({"last": [self.last.get()[0]], "all": [amounts]})

        orders.key_by("customer").process(Recent()).sink(output)
        run(pipeline)  # the timers are called at the end of the input
        assert {"last": 30, "all": [10, 30]} in output.rows()
    """

    @property
    def key(self) -> Key:
        """The current key: the values of the columns of `key_by`."""
        ...

    @property
    def subtask(self) -> int: ...

    @property
    def parallelism(self) -> int: ...

    @property
    def metrics(self) -> MetricGroup:
        """Counters, gauges and histograms of the function; ask for them in `open`. `job.metrics()` shows them."""
        ...

    @property
    def watermark(self) -> int | None:
        """The watermark in ms; None before the first one. The end of the input is no time and does not change it."""
        ...

    def now_ms(self) -> int:
        """Processing time, in milliseconds since 1970."""
        ...

    def value(self, name: str, schema: SchemaLike, *, ttl: Duration | None = None) -> ValueState:
        """One tuple for each key: `get`, `update`, `exists`, `clear`.

        With `ttl="1 day"`, here and below, an entry expires when it was written that long ago, in processing time. It
        leaves memory and checkpoints too, within about half of that time again.
        """
        ...

    def list(self, name: str, schema: SchemaLike, *, ttl: Duration | None = None) -> ListState:
        """A list of tuples for each key: `get`, `put`, `append_value`, `append_list`, `exists`, `clear`."""
        ...

    def map(
        self, name: str, key_schema: SchemaLike, value_schema: SchemaLike, *, ttl: Duration | None = None
    ) -> MapState:
        """A map for each key: `get_value`, `update_value`, `contains_key`, `remove_key`, `keys`, `iterator`, …"""
        ...

    def emit(self, output: str, records: object) -> None:
        """Emit records to a side output, which the class or the call declares with its schema: `side_outputs`.

        `records` are a batch or a table of Arrow, a row as a dictionary or a list of rows; or a DataFrame, if the
        function gets those. They leave together with the output of the call.

        Example:

            class Large(KeyedFunction):
                side_outputs = {"large": "amount bigint"}

                def process(self, key, rows, context):
                    for amount in rows["amount"].to_pylist():
                        if amount > 25:
                            context.emit("large", {"amount": amount})
                    return rows

            every = orders.key_by("customer").process(Large())
            every.side_output("large").sink(output)
            every.sink(CollectSink())
            run(pipeline)
            assert output.rows() == [{"amount": 30}]
        """
        ...

    def delete_state(self, name: str) -> None:
        """Forget a state of an earlier version of the function, here and in the checkpoint."""
        ...

    def set_timer(self, at: int | datetime) -> None:
        """Have `on_timer` called for the current key, once the clock of `time_mode=` has passed `at`.

        `at` is a time, not a delay: milliseconds since 1970, or a `datetime` with a time zone.

        In event time that is the watermark, in processing time the clock of the worker. A time that it has passed
        already is due at once, after the records in hand.
        """
        ...

    def delete_timer(self, at: int | datetime) -> None: ...

    def timers(self) -> Iterable[int]:
        """The timers of the current key, in order. In `on_timer`, the one that fires is among them."""
        ...


class KeyedFunction(ABC):
    """A function with state, called with the records of one key at a time.

        class Count(KeyedFunction):
            def open(self, context):
                self.count = context.value("count", "n bigint")

            def process(self, key, rows, context):
                (n,) = self.count.get() or (0,)
                self.count.update((n + rows.num_rows,))
                yield pa.record_batch({"user": [key[0]], "n": [n + rows.num_rows]})

        events.key_by("user").process(Count())

    `rows` are an Arrow batch, or what `format=` of `process` says: a DataFrame, or a list of dictionaries. Return None,
    one output in that form, or an iterable of them.

    The trap: the engine chooses the size of batches, so the number of calls for a key has no meaning.

    Example:

        class Once(KeyedFunction):
            # The first order of each customer; customers are forgotten a minute later.

            def open(self, context):
                self.seen = context.value("seen", "at bigint")

            def process(self, key, rows, context):
                if not self.seen.exists():
                    self.seen.update((context.now_ms(),))
                    context.set_timer(context.now_ms() + 60_000)
                    return rows.slice(0, 1)

            def on_timer(self, key, at, context):
                self.seen.clear()

            def close(self):
                pass

        orders.key_by("customer").process(Once()).sink(output)
        run(pipeline)
        assert sorted(row["amount"] for row in output.rows()) == [10, 20]
    """

    side_outputs: ClassVar[Mapping[str, SchemaLike]] = {}
    """Schemas of the side outputs that it emits to, by name, see `KeyedContext.emit`."""

    def open(self, context: KeyedContext) -> None:
        """Called once for each subtask. Ask for states here, all of them: it is here that they are restored."""

    @abstractmethod
    def process(self, key: Key, rows: Any, context: KeyedContext) -> object:
        """Process some records of one key."""

    def on_timer(self, key: Key, at: int, context: KeyedContext) -> object:
        """A timer is due that was set for `at`, in milliseconds since 1970.

        At the end of a bounded input those that are left are called early (see `process`). Setting `at` again in the
        call keeps the timer, and it is due again.
        """
        return None

    def close(self) -> None:
        """Called once, also after a failure."""


class TwoInputContext(KeyedContext, Protocol):
    """The context of a function with two inputs.

    Example:

        class Latest(TwoInputFunction):
            def open(self, context):
                self.orders = context.rows("orders", side="left")
                self.closed = context.broadcast_state("closed")

            def process_left(self, batch, context):
                for key, rows in context.each_key(batch):
                    self.orders.put([rows.slice(rows.num_rows - 1)])
                    yield from self.orders.get()

            def process_right(self, batch, context):
                self.closed.put([*self.closed.get(), batch])

        closed = pipeline.source(ListSource([{"customer": "eve"}]), name="closed")
        orders.key_by("customer").connect(closed.broadcast()).process(Latest()).sink(output)
        run(pipeline)
        assert sorted(row["amount"] for row in output.rows()) == [20, 30]
    """

    def each_key(self, batch: pa.RecordBatch) -> Iterator[tuple[Key, pa.RecordBatch]]:
        """Split the batch by key; in the loop's body, all states refer to that key."""
        ...

    def rows(self, name: str, side: str = "left") -> RowsState:
        """Whole rows of one side as keyed state, columnar: `get`, `append` and `put` batches. Ask in `open`."""
        ...

    def broadcast_state(self, name: str) -> BatchState:
        """Batches that are the same in every subtask. Change them for records of the broadcast side alone, and in
        a way that depends on nothing else: each subtask must come to the same. Ask in `open`."""
        ...


class TwoInputFunction(ABC):
    """A function of two streams, called with batches of either.

        class Enrich(TwoInputFunction):
            def open(self, context):
                self.rules = context.broadcast_state("rules")

            def process_right(self, batch, context):      # the broadcast side
                self.rules.put([batch])

            def process_left(self, batch, context):
                return apply(batch, self.rules.get())

        events.connect(rules.broadcast()).process(Enrich())

    Records that wait on a side with a key are sorted by it, so that a call has few keys with many records each. The
    records of one key keep their order.

    The trap: the order between records of the two sides is undefined, and may differ after a restore. A record that
    needs the other side must wait in state.

    Example:

        class KnownOnly(TwoInputFunction):
            # Orders of customers that are known; an order that comes first waits.

            def open(self, context):
                self.known = context.value("known", "is_known boolean")
                self.waiting = context.list("waiting", "amount bigint")

            def process_left(self, batch, context):
                for (customer,), rows in context.each_key(batch):
                    self.waiting.append_list([(amount,) for amount in rows["amount"].to_pylist()])
                    context.set_timer(context.now_ms() + 60_000)

            def process_right(self, batch, context):
                for (customer,), rows in context.each_key(batch):
                    self.known.update((True,))

            def on_timer(self, key, at, context):
                if self.known.exists():
                    return pa.record_batch({"amount": [amount for (amount,) in self.waiting.get()]})

            def close(self):
                pass

        known = pipeline.source(ListSource([{"customer": "ann"}]), name="known").key_by("customer")
        orders.key_by("customer").connect(known).process(KnownOnly()).sink(output)
        run(pipeline)
        assert output.rows() == [{"amount": 10}, {"amount": 30}]
    """

    side_outputs: ClassVar[Mapping[str, SchemaLike]] = {}
    """As in `KeyedFunction`."""

    def open(self, context: TwoInputContext) -> None:
        """Called once for each subtask. Ask for states here, all of them: it is here that they are restored."""

    @abstractmethod
    def process_left(self, batch: pa.RecordBatch, context: TwoInputContext) -> object:
        """Process records of the stream on which `connect` was called. Return None or batches."""

    @abstractmethod
    def process_right(self, batch: pa.RecordBatch, context: TwoInputContext) -> object:
        """Process records of the other stream."""

    def on_timer(self, key: Key, at: int, context: TwoInputContext) -> object:
        """A timer is due that was set while `key` was in hand."""
        return None

    def close(self) -> None:
        """Called once, also after a failure."""
