"""Processors that tell what they see, type by type, and the records they see it in: for Spark and for Penstock."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

TYPES = {
    "b": "boolean",
    "i8": "tinyint",
    "i16": "smallint",
    "i32": "int",
    "i64": "bigint",
    "f": "float",
    "d": "double",
    "dec": "decimal(10,2)",
    "big": "decimal(38,18)",
    "s": "string",
    "bin": "binary",
    "day": "date",
    "ts": "timestamp",
    "ntz": "timestamp_ntz",
    "ai": "array<int>",
    "ats": "array<timestamp>",
    "m": "map<string,int>",
    "mts": "map<string,timestamp>",
    "st": "struct<a:int,b:string>",
    "nest": "struct<x:array<struct<y:int,z:timestamp>>,w:map<string,struct<q:double>>>",
    "ast": "array<struct<a:int>>",
}
"""A column of each type that `transformWithState` takes."""
KEYS = {"id": "string", "at": "timestamp", "no": "int"}
_KEYED = {name: kind for name, kind in TYPES.items() if not kind.startswith(("map", "struct<x"))}
"""Types that may be keys of a map."""

_T = datetime.datetime(2024, 7, 1, 3, 0, 0, 123456, tzinfo=datetime.UTC)
_VALUES: dict[str, Any] = {
    "b": True,
    "i8": 1,
    "i16": 2,
    "i32": 3,
    "i64": 2**40,
    "f": 1.5,
    "d": 2.5,
    "dec": decimal.Decimal("1.25"),
    "big": decimal.Decimal("1.000000000000000001"),
    "s": "x",
    "bin": b"ab",
    "day": datetime.date(2024, 1, 1),
    "ts": _T,
    "ntz": _T.replace(tzinfo=None),
    "ai": [1, None, 2],
    "ats": [_T, None],
    "m": [("k", 1)],
    "mts": [("k", _T)],
    "st": {"a": 1, "b": "q"},
    "nest": {"x": [{"y": 1, "z": _T}], "w": [("k", {"q": 1.0})]},
    "ast": [{"a": 1}],
}
_NONE: dict[str, Any] = dict.fromkeys(TYPES)


def ddl(types: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in types.items())


def batches(schema: pa.Schema) -> list[pa.RecordBatch]:
    """Two batches: one without nulls, and one with a key that has some, one that has all, and one that has none."""

    def row(name: str, values: dict[str, Any]) -> dict[str, Any]:
        return {"id": name, "at": _T, "no": 7, **values}

    first = [row("full", _VALUES)]
    second = [row("full", _VALUES), row("mixed", _VALUES), row("mixed", _NONE), row("null", _NONE)]
    return [pa.RecordBatch.from_pylist(rows, schema=schema) for rows in (first, second)]


def seen(value: Any) -> str:
    """A value and its type, through and through."""
    if isinstance(value, tuple) and hasattr(value, "__fields__"):
        fields = zip(value.__fields__, value, strict=True)
        return f"Row({', '.join(f'{name}={seen(item)}' for name, item in fields)})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{seen(key)}: {seen(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}[{', '.join(map(seen, value))}]"
    if isinstance(value, np.ndarray):
        return f"ndarray {value.dtype}[{', '.join(map(seen, value))}]"
    return f"{type(value).__name__}:{value!r}"


USES_OF_DELETED: list[list[tuple[Any, ...]]] = [
    [("exists",), ("get",), ("update", (1,)), ("clear",)],
    [("exists",), ("get",), ("put", [(1,)]), ("appendValue", (1,)), ("appendList", [(1,)]), ("clear",)],
    [
        *[("exists",), ("getValue", (1,)), ("containsKey", (1,)), ("updateValue", (1,), (1,)), ("removeKey", (1,))],
        *[("iterator",), ("keys",), ("values",), ("clear",)],
    ],
]
"""Calls of a value, a list and a map that were deleted."""


def outcome(call: Callable[..., Any], *arguments: Any) -> str:
    try:
        returned = call(*arguments)
        return seen(list(returned) if isinstance(returned, Iterator) else returned)
    except Exception:
        return "raises"


class _States(StatefulProcessor):
    """Keeps values of every type in every kind of state, and tells what comes back.

    All types are fields of few states: on Spark each state is a column family of its own.
    """

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", ddl(TYPES))
        self.list = handle.getListState("list", ddl(TYPES))
        self.map = handle.getMapState("map", "k string", ddl(TYPES))
        self.keyed = handle.getMapState("keyed", ddl(_KEYED), "k string")
        handle.deleteIfExists("never there")
        self.gone = self._deleted(handle)

    def _deleted(self, handle: Any) -> list[Any]:
        gone = [handle.getValueState("gone value", "n int"), handle.getListState("gone list", "n int")]
        gone.append(handle.getMapState("gone map", "k int", "n int"))
        for name in ("gone value", "gone list", "gone map"):
            handle.deleteIfExists(name)
        return gone

    def kept(self, values: dict[str, Any]) -> Iterator[str]:
        row, nothing = tuple(values.values()), (None,) * len(TYPES)
        user_key = tuple(value for name, value in values.items() if name in _KEYED)
        yield f"before: {self.value.exists()} {seen(self.value.get())} {self.list.exists()} {self.map.exists()}"
        self.value.update(row)
        self.list.appendList([row, nothing])
        self.list.appendValue(row)
        self.map.updateValue(("q",), row)
        yield f"value: {self.value.exists()} {seen(self.value.get())}"
        yield f"list: {self.list.exists()} {seen(list(self.list.get()))}"
        yield f"map: {seen(self.map.getValue(('q',)))} {seen(self.map.getValue(('w',)))} {self.map.containsKey(('w',))}"
        yield f"map: {seen(list(self.map.iterator()))}"
        yield f"map: {seen(list(self.map.keys()))} {seen(list(self.map.values()))}"
        self.keyed.updateValue(user_key, ("q",))
        yield f"keyed: {seen(self.keyed.getValue(user_key))} {self.keyed.containsKey(user_key)}"
        yield f"keyed: {seen(list(self.keyed.keys()))}"
        self.keyed.removeKey(user_key)
        yield f"keyed: {self.keyed.exists()} {seen(list(self.keyed.keys()))}"
        self.value.update(Row(**{**values, "i32": None}))
        yield f"row: {seen(self.value.get())}"
        self.value.update(list(row))
        yield f"list: {seen(self.value.get())}"
        self.list.put([nothing])
        yield f"put: {seen(list(self.list.get()))}"
        self.map.updateValue("x", nothing)
        yield f"scalar key: {seen(self.map.getValue('x'))} {self.map.containsKey('x')} {self.map.containsKey('y')}"
        self.map.removeKey("x")
        self.map.removeKey("y")
        yield f"scalar key: {self.map.containsKey('x')}"
        for state, uses in zip(self.gone, USES_OF_DELETED, strict=True):
            yield f"deleted: {[outcome(getattr(state, name), *arguments) for name, *arguments in uses]}"

    def close(self) -> None:
        pass


def _times(timerValues: Any) -> str:
    return f"{timerValues.getCurrentProcessingTimeInMs()} {timerValues.getCurrentWatermarkInMs()}"


class PandasStates(_States):
    """For `transformWithStateInPandas`."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        for frame in rows:
            told = [f"key {seen(key)} at {_times(timerValues)}", f"{frame.index!r} {list(frame.columns)}"]
            for name in TYPES:
                told.append(f"column {name}: {frame[name].dtype} {[seen(value) for value in frame[name]]}")
            told += self.kept({name: self._for_state(name, frame[name].iloc[0]) for name in TYPES})
            out = frame[list(TYPES)].copy()
            out.insert(0, "told", ["\n".join(told)] * len(frame))
            yield out
        yield pd.DataFrame()

    def _for_state(self, name: str, value: Any) -> Any:
        # Spark loses a float in a state of integers without a word, does not take NaT, and ends at an array.
        if value is None or (np.isscalar(value) and pd.isna(value)) or value is pd.NaT:
            return None
        if name == "nest":
            return {"x": [dict(item) for item in value["x"]], "w": value["w"]}
        if isinstance(value, np.ndarray):
            return [None if item is pd.NaT else item for item in value]
        return int(value) if name.startswith("i") else value


class RowStates(_States):
    """For `transformWithState`."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            told = [
                f"key {seen(key)} at {_times(timerValues)}",
                seen(row),
                repr(row),
                f"{'b' in row} {row.b == row['b']}",
            ]
            values = {name: self._for_state(name, row[name]) for name in TYPES}
            told += self.kept(values)
            yield Row(told="\n".join(told), **values)

    def _for_state(self, name: str, value: Any) -> Any:
        # A map is a list of pairs in a row. Spark puts None into the state instead of such a list, without a word.
        if value is None:
            return None
        if name == "nest":
            return Row(x=[Row(**item) for item in value["x"]], w=dict(value["w"]))
        if name == "st":
            return Row(**value)
        return dict(value) if name in ("m", "mts") else value


T0 = 1_704_067_200_000


class EventTimers(StatefulProcessor):
    """Timers in event time: before, at and behind the watermark, from records and from timers."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.n = handle.getValueState("n", "n int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        times = [round(row.time.timestamp() * 1000) for row in rows]
        watermark = timerValues.getCurrentWatermarkInMs()
        for at_ms in times:
            self.handle.registerTimer(at_ms + 5)
            self.handle.registerTimer(at_ms + 5)
        if key[0] == "past" and watermark:
            for offset in (-1000, -1, 0, 1):
                self.handle.registerTimer(watermark + offset)
        if key[0] == "deleted":
            self.handle.deleteTimer(times[-1] + 5)
            self.handle.deleteTimer(1)
        now_ms = timerValues.getCurrentProcessingTimeInMs()
        own = all(at_ms + 5 in self.handle.listTimers() for at_ms in times)
        yield Row(told=f"{seen(key)} rows {times} now {now_ms > T0} watermark {watermark} set {own}")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        at_ms, watermark = expiredTimerInfo.getExpiryTimeInMs(), timerValues.getCurrentWatermarkInMs()
        now_ms = timerValues.getCurrentProcessingTimeInMs()
        timers = list(self.handle.listTimers())
        yield Row(
            told=f"{seen(key)} fired {at_ms} now {now_ms > T0} watermark {watermark} listed {at_ms in timers}, "
            f"and before it {min(timers) < at_ms}"
        )
        (n,) = self.n.get() or (0,)
        if n < 2 and key[0] in ("again", "same"):
            self.n.update((n + 1,))
            self.handle.registerTimer(at_ms - 100 if key[0] == "again" else at_ms)

    def close(self) -> None:
        pass


TIMED = [
    [("a", 0), ("b", 10), ("again", 20), ("same", 21), ("deleted", 21)],
    [("a", 1000), ("past", 2000)],
    [("past", 3000), ("late", 100), ("edge", 2000), ("edge", 2001)],
    [("past", 9000)],
]
"""Keys and times, batch by batch: the watermark of each is the newest time of the one before."""


class Initial(StatefulProcessor):
    """Begins with an initial state."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.n = handle.getValueState("n", "n int")
        self.told = handle.getListState("told", "x string")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        rows = [initialState] if hasattr(initialState, "asDict") else list(initialState.itertuples(index=False))
        for row in rows:
            (n,) = self.n.get() or (0,)
            self.n.update((n + row.v,))
            self.told.appendValue((f"{seen(key)} {row.id} {row.v}",))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        count = sum(1 if hasattr(row, "asDict") else len(row) for row in rows)
        (n,) = self.n.get() or (0,)
        self.n.update((n + count,))
        yield self.output(f"{seen(key)} has {count}, {n} before, and was told {sorted(self.told.get())}")

    def output(self, told: str) -> Any:
        return Row(told=told)

    def close(self) -> None:
        pass


class PandasInitial(Initial):
    def output(self, told: str) -> Any:
        return pd.DataFrame({"told": [told]})


INITIAL = pa.table({"id": ["a", "a", "zz"], "v": pa.array([1, 2, 5], pa.int32())})
COUNTED = [["a"], ["a", "zz", "q"]]
