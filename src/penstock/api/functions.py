"""What users extend to work with state: by key, by key as in PySpark, and with two inputs.

Start with `KeyedFunction`. `StatefulProcessor` has the methods of PySpark's class of that name: one that was written
for `transformWithState` or `transformWithStateInPandas` runs here as it is, whichever of the two it extends.

The trap in all of them: attributes of a function are not state. What is to be there after a failure belongs into a
state that was asked for in `open` (or `init`); everything else starts again from the instance that was pickled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import pyarrow as pa

from penstock.api.operator import BatchState
from penstock.api.schemas import SchemaLike


class KeyedContext(Protocol):
    """What a keyed function may ask for. States are asked for in `open`, and are always at the current key."""

    @property
    def key(self) -> tuple[Any, ...]:
        """The current key: the values of the columns of `key_by`."""
        ...

    @property
    def subtask(self) -> int: ...

    @property
    def parallelism(self) -> int: ...

    @property
    def watermark(self) -> int | None:
        """Event time in ms, as far as it is known."""
        ...

    def now_ms(self) -> int:
        """Processing time, in milliseconds since 1970."""
        ...

    def value(self, name: str, schema: SchemaLike, *, ttl_ms: int | None = None) -> Any:
        """One tuple for each key: `get`, `update`, `exists`, `clear`.

        With `ttl_ms`, here and below, what was written so long ago is gone, in processing time. It leaves memory and
        checkpoints too, within about half of that time again.
        """
        ...

    def list(self, name: str, schema: SchemaLike, *, ttl_ms: int | None = None) -> Any:
        """A list of tuples for each key: `get`, `put`, `append_value`, `append_list`, `exists`, `clear`."""
        ...

    def map(self, name: str, key_schema: SchemaLike, value_schema: SchemaLike, *, ttl_ms: int | None = None) -> Any:
        """A map for each key: `get_value`, `update_value`, `contains_key`, `remove_key`, `keys`, `iterator`, …"""
        ...

    def delete_state(self, name: str) -> None:
        """Forget a state of an earlier version of the function, here and in the checkpoint."""
        ...

    def set_timer(self, at_ms: int) -> None:
        """Have `on_timer` called for the current key at a processing time."""
        ...

    def delete_timer(self, at_ms: int) -> None: ...

    def timers(self) -> Iterable[int]:
        """The times that are set for the current key, in order."""
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

    `rows` are an Arrow batch, or what `as_=` of `process` says: a DataFrame, or a list of dictionaries. Return None,
    one output in that form, or an iterable of them.

    The trap: batches are cut as the engine sees fit, so the number of calls for a key means nothing.
    """

    def open(self, context: KeyedContext) -> None:
        """Called once for each subtask. Ask for states here, all of them: it is here that they are restored."""

    @abstractmethod
    def process(self, key: tuple[Any, ...], rows: Any, context: KeyedContext) -> Any:
        """Work on some records of one key."""

    def on_timer(self, key: tuple[Any, ...], at_ms: int, context: KeyedContext) -> Any:
        """A timer is due. At the end of a bounded input those that are left are called early (see `process`)."""
        return None

    def close(self) -> None:
        """Called once, also after a failure."""


class TwoInputContext(KeyedContext, Protocol):
    """What a function with two inputs may ask for besides."""

    def each_key(self, batch: pa.RecordBatch) -> Iterator[tuple[tuple[Any, ...], pa.RecordBatch]]:
        """The batch cut by key; while a key is in hand, all states are at it."""
        ...

    def rows(self, name: str, side: str = "left") -> Any:
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

    The trap: nothing is known about the order in which records of the two sides come, after a restore less so than
    before. What must meet the other side waits in state.
    """

    def open(self, context: TwoInputContext) -> None:
        """Called once for each subtask. Ask for states here, all of them: it is here that they are restored."""

    @abstractmethod
    def process_left(self, batch: pa.RecordBatch, context: TwoInputContext) -> Any:
        """Records of the stream that `connect` was called on. Return None, a batch or an iterable of batches."""

    @abstractmethod
    def process_right(self, batch: pa.RecordBatch, context: TwoInputContext) -> Any:
        """Records of the other stream."""

    def on_timer(self, key: tuple[Any, ...], at_ms: int, context: TwoInputContext) -> Any:
        """A timer is due that was set while `key` was in hand."""
        return None

    def close(self) -> None:
        """Called once, also after a failure."""


# --- as in PySpark ---


class Row(tuple[Any, ...]):
    """A row with names, which works as PySpark's does: `row.user`, `row["user"]`, `row[0]`, `row.asDict()`."""

    __fields__: list[str]

    def __new__(cls, **fields: Any) -> Row:
        return cls.of(list(fields), fields.values())

    @classmethod
    def of(cls, names: list[str], values: Iterable[Any]) -> Row:
        row = super().__new__(cls, values)
        row.__fields__ = names
        return row

    def asDict(self) -> dict[str, Any]:
        return dict(zip(self.__fields__, self, strict=True))

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, str):
            return self.asDict()[item]
        return super().__getitem__(item)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            try:
                return self[self.__fields__.index(name)]
            except ValueError:
                pass
        raise AttributeError(name)

    def __contains__(self, item: object) -> bool:
        return item in self.__fields__

    def __repr__(self) -> str:
        return f"Row({', '.join(f'{name}={value!r}' for name, value in self.asDict().items())})"

    def __reduce__(self) -> Any:
        return Row.of, (self.__fields__, tuple(self))


class TimerValues:
    """The time of a call, in ms; -1 where it is not known."""

    def __init__(self, processing_time_ms: int = -1, watermark_ms: int = -1) -> None:
        self._processing_time_ms = processing_time_ms
        self._watermark_ms = watermark_ms

    def getCurrentProcessingTimeInMs(self) -> int:
        return self._processing_time_ms

    def getCurrentWatermarkInMs(self) -> int:
        return self._watermark_ms


class ExpiredTimerInfo:
    """Which timer was due."""

    def __init__(self, expiry_ms: int = -1) -> None:
        self._expiry_ms = expiry_ms

    def getExpiryTimeInMs(self) -> int:
        return self._expiry_ms


class StatefulProcessorHandle:
    """What `init` gets. Schemas are DDL strings, StructTypes or Arrow schemas; timers are in processing time."""

    def __init__(self, context: KeyedContext) -> None:
        self._context = context

    def getValueState(self, stateName: str, schema: SchemaLike, ttlDurationMs: int | None = None) -> Any:
        return self._context.value(stateName, schema, ttl_ms=ttlDurationMs)

    def getListState(self, stateName: str, schema: SchemaLike, ttlDurationMs: int | None = None) -> Any:
        return self._context.list(stateName, schema, ttl_ms=ttlDurationMs)

    def getMapState(
        self, stateName: str, userKeySchema: SchemaLike, valueSchema: SchemaLike, ttlDurationMs: int | None = None
    ) -> Any:
        return self._context.map(stateName, userKeySchema, valueSchema, ttl_ms=ttlDurationMs)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        self._context.set_timer(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self._context.delete_timer(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:
        return iter(self._context.timers())

    def deleteIfExists(self, stateName: str) -> None:
        self._context.delete_state(stateName)


class StatefulProcessor(ABC):
    """PySpark's `StatefulProcessor`, for those who have no need of PySpark's own.

        class Count(StatefulProcessor):
            def init(self, handle):
                self.count = handle.getValueState("count", "n bigint")

            def handleInputRows(self, key, rows, timerValues):
                (n,) = self.count.get() or (0,)
                n += sum(len(frame) for frame in rows)
                self.count.update((n,))
                yield pd.DataFrame({"user": [key[0]], "n": [n]})

        events.key_by("user").process(Count(), schema="user string, n bigint", as_="pandas")

    `as_="pandas"`: `rows` is an iterator of DataFrames, as in `transformWithStateInPandas`. `as_="rows"`: an iterator
    of Rows, as in `transformWithState`. `handleInitialState` is never called.
    """

    @abstractmethod
    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called first. Ask for states here."""

    @abstractmethod
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Any]:
        """Work on some records of one key."""

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Any]:
        """A timer of this key is due."""
        return iter(())

    def close(self) -> None:
        """Called once, also after a failure."""


class ProcessorFunction(KeyedFunction):
    """A `StatefulProcessor`, ours or PySpark's, as a `KeyedFunction`."""

    def __init__(self, processor: Any, is_rows: bool) -> None:
        self.processor = processor
        self.is_rows = is_rows

    def open(self, context: KeyedContext) -> None:
        self.processor.init(StatefulProcessorHandle(context))

    def process(self, key: tuple[Any, ...], rows: Any, context: KeyedContext) -> Any:
        return self.processor.handleInputRows(key, iter(rows) if self.is_rows else iter([rows]), _times(context))

    def on_timer(self, key: tuple[Any, ...], at_ms: int, context: KeyedContext) -> Any:
        return self.processor.handleExpiredTimer(key, _times(context), ExpiredTimerInfo(at_ms))

    def close(self) -> None:
        self.processor.close()


def _times(context: KeyedContext) -> TimerValues:
    watermark = context.watermark
    return TimerValues(context.now_ms(), -1 if watermark is None else watermark)
