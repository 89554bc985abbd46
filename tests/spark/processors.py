"""Processors that tell what they see, type by type, and the records they see it in: for Spark and for Penstock."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterator
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


class _States(StatefulProcessor):
    """Keeps values of every type in every kind of state, and tells what comes back."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.values = {name: handle.getValueState(f"v_{name}", f"x {kind}") for name, kind in TYPES.items()}
        self.lists = {name: handle.getListState(f"l_{name}", f"x {kind}") for name, kind in TYPES.items()}
        self.maps = {name: handle.getMapState(f"m_{name}", "k string", f"x {kind}") for name, kind in TYPES.items()}
        self.keyed = {name: handle.getMapState(f"k_{name}", f"x {kind}", "k string") for name, kind in _KEYED.items()}
        self.two = handle.getValueState("two", "a string, b int")
        handle.deleteIfExists("never there")

    def kept(self, name: str, value: Any) -> Iterator[str]:
        value_state, list_state, map_state = self.values[name], self.lists[name], self.maps[name]
        yield f"before {name}: {value_state.exists()} {seen(value_state.get())} {map_state.exists()}"
        value_state.update((value,))
        list_state.appendValue((value,))
        list_state.appendList([(value,), (None,)])
        map_state.updateValue(("q",), (value,))
        yield f"value {name}: {value_state.exists()} {seen(value_state.get())}"
        yield f"list {name}: {seen(list(list_state.get()))}"
        yield f"map {name}: {seen(map_state.getValue(('q',)))} {seen(map_state.getValue(('w',)))}"
        yield f"map {name}: {map_state.containsKey(('q',))} {seen(list(map_state.iterator()))}"
        yield f"map {name}: {seen(list(map_state.keys()))} {seen(list(map_state.values()))}"
        if name in self.keyed:
            keyed = self.keyed[name]
            keyed.updateValue((value,), ("q",))
            yield f"keyed {name}: {seen(keyed.getValue((value,)))} {keyed.containsKey((value,))}"
            keyed.removeKey((value,))
            yield f"keyed {name}: {keyed.exists()} {seen(list(keyed.keys()))}"

    def others(self) -> Iterator[str]:
        self.two.update(Row(a="x", b=1))
        yield f"row: {seen(self.two.get())}"
        self.two.update(["y", None])
        yield f"list: {seen(self.two.get())}"
        self.two.clear()
        yield f"cleared: {seen(self.two.get())} {self.two.exists()}"
        entries = self.maps["i32"]
        entries.updateValue("x", (1,))
        yield f"scalar key: {seen(entries.getValue('x'))} {entries.containsKey('x')} {entries.containsKey('y')}"
        entries.removeKey("x")
        entries.removeKey("y")
        yield f"scalar key: {entries.containsKey('x')}"

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
                told += self.kept(name, self._for_state(name, frame[name].iloc[0]))
            told += self.others()
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
            told = [f"key {seen(key)} at {_times(timerValues)}", seen(row), repr(row), f"{'b' in row} {row.b == row['b']}"]
            for name in TYPES:
                told += self.kept(name, self._for_state(name, row[name]))
            told += self.others()
            yield Row(told="\n".join(told), **{name: self._for_state(name, row[name]) for name in TYPES})

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
        yield self._told(f"{seen(key)} rows {times} now {now_ms > T0} watermark {watermark}")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        at_ms, watermark = expiredTimerInfo.getExpiryTimeInMs(), timerValues.getCurrentWatermarkInMs()
        now_ms = timerValues.getCurrentProcessingTimeInMs()
        yield self._told(f"{seen(key)} fired {at_ms} now {now_ms > T0} watermark {watermark}")
        (n,) = self.n.get() or (0,)
        if n < 2 and key[0] in ("again", "same"):
            self.n.update((n + 1,))
            self.handle.registerTimer(at_ms - 100 if key[0] == "again" else at_ms)
            yield self._told(f"{seen(key)} set")

    def _told(self, text: str) -> Row:
        return Row(told=f"{text} timers {sorted(self.handle.listTimers())}")

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
