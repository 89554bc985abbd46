"""PySpark's `StatefulProcessor`: the class, its handle and its states, as `transformWithState` has them.

A processor that was written for `transformWithState` or `transformWithStateInPandas` runs here as it is, whichever
`StatefulProcessor` it extends. `operators/spark/values.py` converts the values that it sees.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa

from penstock.columnar.schemas.schema_guard import SchemaLike, as_schema
from penstock.operators.contract import Key
from penstock.operators.formats import Records
from penstock.operators.keyed.functions import KeyedContext, KeyedFunction
from penstock.operators.keyed.handles import ListState, MapState, ValueState
from penstock.operators.keyed.timers import TimeMode
from penstock.operators.spark.values import Row as Values
from penstock.operators.spark.values import StateTuples


class Row(tuple[Any, ...]):
    """A row with names, which works as PySpark's does: `row.user`, `row["user"]`, `row[0]`, `row.asDict()`.

    Example:

        row = Row(user="ann", n=1)
        assert row.user == row["user"] == row[0] and row.asDict() == {"user": "ann", "n": 1}
        assert Row.of(["user", "n"], ("ann", 1)) == row
    """

    __fields__: list[str]

    def __new__(cls, **fields: Any) -> Row:
        return cls.of(list(fields), fields.values())

    @classmethod
    def of(cls, names: list[str], values: Iterable[Any]) -> Row:
        row = super().__new__(cls, values)
        row.__fields__ = names
        return row

    def asDict(self, recursive: bool = False) -> dict[str, Any]:
        """The fields by name; with `recursive`, Rows within the row become dictionaries too."""
        fields = dict(zip(self.__fields__, self, strict=True))
        return {name: _without_rows(value) for name, value in fields.items()} if recursive else fields

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


def _without_rows(value: Any) -> Any:
    if hasattr(value, "asDict"):
        return value.asDict(True)
    if isinstance(value, list):
        return [_without_rows(item) for item in value]
    return {key: _without_rows(item) for key, item in value.items()} if isinstance(value, dict) else value


class TimerValues:
    """The time of a call, in ms: -1 with `time_mode="none"`. The watermark is 0 before the first one.

    Example:

        values = TimerValues(1_000, 500)
        assert values.getCurrentProcessingTimeInMs() == 1_000 and values.getCurrentWatermarkInMs() == 500
    """

    def __init__(self, currentProcessingTimeInMs: int = -1, currentWatermarkInMs: int = -1) -> None:
        self._processing_time_ms = currentProcessingTimeInMs
        self._watermark_ms = currentWatermarkInMs

    def getCurrentProcessingTimeInMs(self) -> int:
        return self._processing_time_ms

    def getCurrentWatermarkInMs(self) -> int:
        return self._watermark_ms


_NO_TIMES = TimerValues()
"""Those of every call without times: nothing in them changes."""


class ExpiredTimerInfo:
    """Which timer was due.

    Example:

        assert ExpiredTimerInfo(1_000).getExpiryTimeInMs() == 1_000
    """

    def __init__(self, expiryTimeInMs: int = -1) -> None:
        self._expiry_ms = expiryTimeInMs

    def getExpiryTimeInMs(self) -> int:
        return self._expiry_ms


class ProcessorValueState:
    """One tuple for each key."""

    def __init__(self, state: ValueState, schema: pa.Schema) -> None:
        self._state = state
        self._tuples = StateTuples(schema)

    def exists(self) -> bool:
        return self._state.exists()

    def get(self) -> Values | None:
        row = self._state.get()
        return None if row is None else self._tuples.seen(row)

    def update(self, newValue: object) -> None:
        self._state.update(self._tuples.kept(newValue))

    def clear(self) -> None:
        self._state.clear()


class ProcessorListState:
    """A list of tuples for each key."""

    def __init__(self, state: ListState, schema: pa.Schema, is_deleted: Callable[[], bool]) -> None:
        self._state = state
        self._tuples = StateTuples(schema)
        self._is_deleted = is_deleted
        """As on Spark, a deleted list or map has no elements, and every other use of it is an error."""

    def exists(self) -> bool:
        return self._state.exists()

    def get(self) -> Iterator[Values]:
        return iter(()) if self._is_deleted() else map(self._tuples.seen, self._state.get())

    def put(self, newState: Iterable[object]) -> None:
        self._state.put([self._tuples.kept(value) for value in newState])

    def appendValue(self, newState: object) -> None:
        self._state.append_value(self._tuples.kept(newState))

    def appendList(self, newState: Iterable[object]) -> None:
        self._state.append_list([self._tuples.kept(value) for value in newState])

    def clear(self) -> None:
        self._state.clear()

    append_value = appendValue
    append_list = appendList


class ProcessorMapState:
    """A map from tuples to tuples for each key."""

    def __init__(
        self, state: MapState, key_schema: pa.Schema, value_schema: pa.Schema, is_deleted: Callable[[], bool]
    ) -> None:
        self._state = state
        self._keys = StateTuples(key_schema)
        self._values = StateTuples(value_schema)
        self._is_deleted = is_deleted

    def exists(self) -> bool:
        return self._state.exists()

    def getValue(self, key: object) -> Any:
        """The value as a Row, as PySpark returns it."""
        row = self._state.get_value(self._keys.kept(key))
        return None if row is None else self._values.row(row)

    def containsKey(self, key: object) -> bool:
        return self._state.contains_key(self._keys.kept(key))

    def updateValue(self, key: object, value: object) -> None:
        self._state.update_value(self._keys.kept(key), self._values.kept(value))

    def iterator(self) -> Iterator[tuple[Values, Values]]:
        entries = iter(()) if self._is_deleted() else self._state.iterator()
        return ((self._keys.seen(key), self._values.seen(value)) for key, value in entries)

    def keys(self) -> Iterator[Values]:
        return iter(()) if self._is_deleted() else map(self._keys.seen, self._state.keys())

    def values(self) -> Iterator[Values]:
        return iter(()) if self._is_deleted() else map(self._values.seen, self._state.values())

    def removeKey(self, key: object) -> None:
        self._state.remove_key(self._keys.kept(key))

    def clear(self) -> None:
        self._state.clear()

    get_value = getValue
    contains_key = containsKey
    update_value = updateValue
    remove_key = removeKey


def _ttl(duration_ms: int | None) -> timedelta | None:
    return None if duration_ms is None else timedelta(milliseconds=duration_ms)


class StatefulProcessorHandle:
    """The argument of `init`. Schemas are DDL strings, StructTypes or Arrow schemas; `time_mode=` is that of timers.

    Example:

        class Amounts(StatefulProcessor):
            def init(self, handle):
                self.handle = handle
                self.count = handle.getValueState("count", "n bigint")
                self.amounts = handle.getListState("amounts", "amount bigint")
                self.by_time = handle.getMapState("by time", "at bigint", "amount bigint")
                handle.deleteIfExists("state of an earlier version")

            def handleInputRows(self, key, rows, timerValues):
                for frame in rows:
                    self.amounts.appendList([(int(amount),) for amount in frame["amount"]])
                    self.count.update((len(list(self.amounts.get())),))
                    self.by_time.updateValue((int(frame["at"].max()),), (int(frame["amount"].max()),))
                self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 60_000)
                for timer in self.handle.listTimers():
                    self.handle.deleteTimer(timer)
                yield pa.table({"customer": [key[0]], "orders": list(self.count.get())}).to_pandas()

        amounts = orders.key_by("customer").process(Amounts(), schema="customer string, orders bigint")
        amounts.sink(output)
        run(pipeline)
        assert {"customer": "ann", "orders": 2} in output.rows()
    """

    def __init__(self, context: KeyedContext) -> None:
        self._context = context
        self._deleted: set[str] = set()

    def getValueState(
        self, stateName: str, schema: SchemaLike, ttlDurationMs: int | None = None
    ) -> ProcessorValueState:
        kind = as_schema(schema)
        return ProcessorValueState(self._context.value(stateName, kind, ttl=_ttl(ttlDurationMs)), kind)

    def getListState(self, stateName: str, schema: SchemaLike, ttlDurationMs: int | None = None) -> ProcessorListState:
        kind = as_schema(schema)
        state = self._context.list(stateName, kind, ttl=_ttl(ttlDurationMs))
        return ProcessorListState(state, kind, lambda: stateName in self._deleted)

    def getMapState(
        self, stateName: str, userKeySchema: SchemaLike, valueSchema: SchemaLike, ttlDurationMs: int | None = None
    ) -> ProcessorMapState:
        key, value = as_schema(userKeySchema), as_schema(valueSchema)
        state = self._context.map(stateName, key, value, ttl=_ttl(ttlDurationMs))
        return ProcessorMapState(state, key, value, lambda: stateName in self._deleted)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        self._context.set_timer(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self._context.delete_timer(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:
        return iter(self._context.timers())

    def deleteIfExists(self, stateName: str) -> None:
        self._context.delete_state(stateName)
        self._deleted.add(stateName)


class StatefulProcessor(ABC):
    """The interface of PySpark's `StatefulProcessor`, without PySpark.

        class Count(StatefulProcessor):
            def init(self, handle):
                self.count = handle.getValueState("count", "n bigint")

            def handleInputRows(self, key, rows, timerValues):
                (n,) = self.count.get() or (0,)
                n += sum(len(frame) for frame in rows)
                self.count.update((n,))
                yield pd.DataFrame({"user": [key[0]], "n": [n]})

        events.key_by("user").process(Count(), schema="user string, n bigint", format="pandas")

    `format="pandas"`: `rows` is an iterator of DataFrames, as in `transformWithStateInPandas`. `format="rows"`: an
    iterator of Rows, as in `transformWithState`.

    Example:

        class Total(StatefulProcessor):
            def init(self, handle):
                self.handle = handle
                self.total = handle.getValueState("total", "amount bigint")

            def handleInitialState(self, key, initialState, timerValues):
                self.total.update((int(initialState["amount"].sum()),))

            def handleInputRows(self, key, rows, timerValues):
                (total,) = self.total.get() or (0,)
                self.total.update((total + sum(int(frame["amount"].sum()) for frame in rows),))
                self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 60_000)
                return iter(())

            def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
                yield pa.table({"customer": [key[0]], "total": list(self.total.get())}).to_pandas()

            def close(self):
                pass

        before = pa.table({"customer": ["ann"], "amount": [100]})
        schema = "customer string, total bigint"
        orders.key_by("customer").process(Total(), schema=schema, initial_state=before).sink(output)
        run(pipeline)
        assert {"customer": "ann", "total": 140} in output.rows()
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

    def handleInitialState(self, key: Any, initialState: Any, timerValues: TimerValues) -> None:
        """Rows of `initial_state` for this key, a Row or a DataFrame: called before the first record of the stream."""

    def close(self) -> None:
        """Called once, also after a failure."""


class ProcessorFunction(KeyedFunction):
    """A `StatefulProcessor`, ours or PySpark's, as a `KeyedFunction`."""

    def __init__(self, processor: Any, is_rows: bool, mode: TimeMode) -> None:
        self.processor = processor
        self.is_rows = is_rows
        self.mode = mode

    def open(self, context: KeyedContext) -> None:
        self.processor.init(StatefulProcessorHandle(context))

    def process(self, key: Key, rows: Records, context: KeyedContext) -> object:
        return self.processor.handleInputRows(key, iter(rows) if self.is_rows else iter([rows]), self._times(context))

    def on_timer(self, key: Key, at: int, context: KeyedContext) -> object:
        return self.processor.handleExpiredTimer(key, self._times(context), ExpiredTimerInfo(at))

    def initial_state(self, key: Key, rows: Records, context: KeyedContext) -> None:
        """Hand over the initial state of one key: row by row, or as one DataFrame."""
        for part in rows if self.is_rows else [rows]:
            self.processor.handleInitialState(key, part, self._times(context))

    def close(self) -> None:
        self.processor.close()

    def _times(self, context: KeyedContext) -> TimerValues:
        if self.mode == "none":
            return _NO_TIMES
        watermark = context.watermark
        # Before the first watermark, PySpark says 1970.
        return TimerValues(context.now_ms(), 0 if watermark is None else watermark)
