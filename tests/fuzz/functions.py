"""What the user of a random pipeline has written: functions with and without state.

They may use Arrow as they like: they are user code. The models that judge them are in `models.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock import KeyedFunction, StatefulProcessor, TwoInputFunction
from tests.fuzz.kinds import key_of, one_zero, plain_rows
from tests.fuzz.world import touch


def _with(batch: pa.RecordBatch, column: str, array: pa.Array) -> pa.RecordBatch:
    return batch.set_column(batch.schema.get_field_index(column), batch.schema.field(column), array)


class BadRecord(ValueError):
    """A function cannot take a record; the message says which one."""


def is_bad(value: Any, bad: int | None) -> bool:
    """Whether a function that cannot take some records cannot take this one, by its `v`."""
    return bad is not None and value is not None and value % 7 == bad


def check(given: Any, bad: int | None) -> None:
    """Raise for the first bad record of a batch, a DataFrame or a row."""
    if bad is None:
        return
    if isinstance(given, dict):
        rows = [(given["lane"], given["seq"], given["v"])]
    else:
        columns = [_plain(given[name]) for name in ("lane", "seq", "v")]
        rows = list(zip(*columns, strict=True))
    for lane, seq, value in rows:
        if is_bad(value, bad):
            raise BadRecord(f"{lane} {seq}")


def _plain(column: Any) -> list[Any]:
    """The values of a column of Arrow or pandas, which has its own null."""
    if hasattr(column, "to_pylist"):
        values: list[Any] = column.to_pylist()
        return values
    return [None if is_null else value for value, is_null in zip(column, column.isna(), strict=True)]


class Add:
    """`v` plus a number, in any form."""

    def __init__(self, name: str, number: int, as_: str, bad: int | None = None) -> None:
        self.name, self.number, self.as_, self.bad = name, number, as_, bad

    def __call__(self, given: Any) -> Any:
        touch(self.name)
        check(given, self.bad)
        if self.as_ == "arrow":
            return _with(given, "v", pc.add(given["v"], self.number))
        if self.as_ == "rows":
            return {**given, "v": None if given["v"] is None else given["v"] + self.number}
        return given.assign(v=given["v"] + self.number)


class Keep:
    """Keeps records by the lowest bits of `v`; a null is not kept."""

    def __init__(self, name: str, bits: int, form: str, bad: int | None = None) -> None:
        self.name, self.bits, self.form, self.bad = name, bits, form, bad

    def __call__(self, given: Any) -> Any:
        touch(self.name)
        check(given, self.bad)
        if self.form == "rows":
            return given["v"] is not None and given["v"] & 3 != self.bits
        return self.expression if self.form == "expression" else self.mask(given["v"])

    @property
    def expression(self) -> pc.Expression:
        return pc.bit_wise_and(pc.field("v"), pc.scalar(3)) != pc.scalar(self.bits)

    def mask(self, values: pa.Array) -> pa.Array:
        return pc.not_equal(pc.bit_wise_and(values, 3), self.bits)


class Copy:
    """Some copies of each record, each in a lane of its own."""

    def __init__(self, name: str, copies: int, as_: str, bad: int | None = None) -> None:
        self.name, self.copies, self.as_, self.bad = name, copies, as_, bad

    def __call__(self, given: Any) -> Iterable[Any]:
        touch(self.name)
        check(given, self.bad)
        for number in range(self.copies):
            suffix = f"+{number}"
            if self.as_ == "rows":
                yield {**given, "lane": given["lane"] + suffix}
            else:
                yield _with(given, "lane", pc.binary_join_element_wise(given["lane"], pa.scalar(suffix), ""))


class Lane:
    """Puts records into other lanes, so that what comes by two ways is told apart."""

    def __init__(self, name: str, suffix: str) -> None:
        self.name, self.suffix = name, suffix

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        touch(self.name)
        return _with(batch, "lane", pc.binary_join_element_wise(batch["lane"], pa.scalar(self.suffix), ""))


class Doubled:
    """A column for `with_column`: `v` twice."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, batch: pa.RecordBatch) -> pa.Array:
        touch(self.name)
        return pc.multiply(batch["v"], 2)


class Summed:
    """For `reduce`: the newest row with the sum of all `v`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, row: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
        touch(self.name)
        return {**other, "v": (row["v"] or 0) + (other["v"] or 0)}


class _Running:
    """How many records of the current key there were, and the sum of their `v`, in one of three kinds of state."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def open(self, value: Any, list_: Any, map_: Any) -> None:
        if self.kind == "value":
            self.state = value("running", "n bigint, total bigint")
        elif self.kind == "list":
            self.state = list_("running", "v bigint")
        else:
            self.state = map_("running", "lane string", "n bigint, total bigint")

    def add(self, lane: str, v: int | None) -> tuple[int, int]:
        state: Any = self.state
        if self.kind == "value":
            n, total = state.get() or (0, 0)
            state.update((n + 1, total + (v or 0)))
            return n + 1, total + (v or 0)
        if self.kind == "list":
            state.append_value((v,))
            values = [value or 0 for (value,) in state.get()]
            return len(values), sum(values)
        n, total = state.get_value((lane,)) or (0, 0)
        state.update_value((lane,), (n + 1, total + (v or 0)))
        entries = list(state.values())
        return sum(n for n, _ in entries), sum(total for _, total in entries)


class Running(KeyedFunction):
    """For every record its place among those of its key, and the sum so far."""

    def __init__(self, name: str, kind: str, as_: str) -> None:
        self.name, self.as_, self.running = name, as_, _Running(kind)

    def open(self, context: Any) -> None:
        self.running.open(context.value, context.list, context.map)

    def process(self, key: tuple[Any, ...], rows: Any, context: Any) -> Any:
        touch(self.name)
        if self.as_ == "rows":
            return [self._row(row) for row in rows]
        if self.as_ == "pandas":
            lanes, values = rows["lane"].tolist(), _list(rows["v"])
            made = [self.running.add(lane, v) for lane, v in zip(lanes, values, strict=True)]
            return rows.assign(n=[n for n, _ in made], total=[total for _, total in made])
        lanes, values = rows["lane"].to_pylist(), rows["v"].to_pylist()
        made = [self.running.add(lane, v) for lane, v in zip(lanes, values, strict=True)]
        batch = rows.append_column("n", pa.array([n for n, _ in made], pa.int64()))
        return batch.append_column("total", pa.array([total for _, total in made], pa.int64()))

    def _row(self, row: dict[str, Any]) -> dict[str, Any]:
        n, total = self.running.add(row["lane"], row["v"])
        return {**row, "n": n, "total": total}


def _list(column: Any) -> list[Any]:
    return [None if value is None or str(value) in ("<NA>", "nan") else int(value) for value in column.tolist()]


class RunningProcessor(StatefulProcessor):
    """The same as PySpark has it."""

    def __init__(self, name: str, kind: str, as_: str) -> None:
        self.name, self.as_, self.running = name, as_, _Running(kind)

    def init(self, handle: Any) -> None:
        self.running.open(handle.getValueState, handle.getListState, handle.getMapState)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        touch(self.name)
        for given in rows:
            if self.as_ == "rows":
                n, total = self.running.add(given.lane, given.v)
                yield {**given.asDict(), "n": n, "total": total}
            else:
                lanes, values = given["lane"].tolist(), _list(given["v"])
                made = [self.running.add(lane, v) for lane, v in zip(lanes, values, strict=True)]
                yield given.assign(n=[n for n, _ in made], total=[total for _, total in made])


class Held(KeyedFunction):
    """Holds records back until a timer, which it sets in one of several ways."""

    def __init__(self, name: str, delay_ms: int, way: str, schema: pa.Schema, key: Sequence[str]) -> None:
        self.name, self.delay_ms, self.way, self.schema, self.key = name, delay_ms, way, schema, tuple(key)

    def open(self, context: Any) -> None:
        self.held = context.list("held", "lane string, seq bigint, v bigint")

    def process(self, key: tuple[Any, ...], rows: pa.RecordBatch, context: Any) -> Any:
        touch(self.name)
        self.held.append_list(list(zip(*(rows[name].to_pylist() for name in ("lane", "seq", "v")), strict=True)))
        # Keys differ in their delays, so that timers do not come in the order in which they were set.
        delay_ms = self.delay_ms * (1 + len(rows["lane"][0].as_py()) % 3)
        if self.way == "moved":
            for at_ms in context.timers():
                context.delete_timer(at_ms)
        context.set_timer(context.now_ms() + delay_ms)

    def on_timer(self, key: tuple[Any, ...], at_ms: int, context: Any) -> Any:
        touch(self.name, is_timer=True)
        rows = list(self.held.get())
        self.held.clear()
        if self.way == "periodic":
            context.set_timer(at_ms + 1)
        if not rows:
            return None
        columns = {name: [one_zero(value)] * len(rows) for name, value in zip(self.key, key, strict=True)}
        columns |= {
            name: list(values) for name, values in zip(("lane", "seq", "v"), zip(*rows, strict=True), strict=True)
        }
        return pa.RecordBatch.from_arrays(
            [pa.array(columns[field.name], field.type) for field in self.schema], schema=self.schema
        )


PAIRS = pa.schema([("lane", pa.string()), ("seq", pa.int64()), ("lane2", pa.string()), ("seq2", pa.int64())])

_Named = tuple[str, int]


def _pairs(pairs: Iterable[tuple[_Named, _Named]]) -> pa.RecordBatch | None:
    rows = [(*one, *other) for one, other in pairs]
    columns = list(zip(*rows, strict=True)) if rows else [()] * 4
    arrays = [pa.array(column, field.type) for column, field in zip(columns, PAIRS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=PAIRS)


def _names(batch: pa.RecordBatch) -> list[_Named]:
    return list(zip(batch["lane"].to_pylist(), batch["seq"].to_pylist(), strict=True))


class JoinByLists(TwoInputFunction):
    """Every record of the left with every one of the right that has its key: each side waits in list state."""

    def __init__(self, name: str) -> None:
        self.name = name

    def open(self, context: Any) -> None:
        self.sides = [context.list(side, "lane string, seq bigint") for side in ("left", "right")]

    def process_left(self, batch: pa.RecordBatch, context: Any) -> Any:
        return self._met(batch, context, 0)

    def process_right(self, batch: pa.RecordBatch, context: Any) -> Any:
        return self._met(batch, context, 1)

    def _met(self, batch: pa.RecordBatch, context: Any, side: int) -> Iterator[Any]:
        touch(self.name)
        for _, rows in context.each_key(batch):
            named = _names(rows)
            others = list(self.sides[1 - side].get())
            self.sides[side].append_list(named)
            yield _pairs((other, one) if side else (one, other) for one in named for other in others)


class JoinByRows(TwoInputFunction):
    """The same, where whole rows wait."""

    def __init__(self, name: str, left: Sequence[str], right: Sequence[str]) -> None:
        self.name, self.keys = name, (tuple(left), tuple(right))

    def open(self, context: Any) -> None:
        self.sides = [context.rows("rows of the left", "left"), context.rows("rows of the right", "right")]

    def process_left(self, batch: pa.RecordBatch, context: Any) -> Any:
        return self._met(batch, 0)

    def process_right(self, batch: pa.RecordBatch, context: Any) -> Any:
        return self._met(batch, 1)

    def _met(self, batch: pa.RecordBatch, side: int) -> Any:
        touch(self.name)
        ours = [(key_of(row, self.keys[side]), (row["lane"], row["seq"])) for row in plain_rows(batch)]
        waiting = [row for held in self.sides[1 - side].get() for row in plain_rows(held)]
        theirs = [(key_of(row, self.keys[1 - side]), (row["lane"], row["seq"])) for row in waiting]
        self.sides[side].append(batch)
        return _pairs(
            (other, one) if side else (one, other)
            for key, one in ours
            for their_key, other in theirs
            if key == their_key
        )


class Rules(TwoInputFunction):
    """Every record of the keyed left with every one of the right, which is broadcast."""

    def __init__(self, name: str) -> None:
        self.name = name

    def open(self, context: Any) -> None:
        self.rules = context.broadcast_state("rules")
        self.waiting = context.rows("waiting")

    def process_left(self, batch: pa.RecordBatch, context: Any) -> Any:
        touch(self.name)
        self.waiting.append(batch)
        return _pairs((one, rule) for one in _names(batch) for rules in self.rules.get() for rule in _names(rules))

    def process_right(self, batch: pa.RecordBatch, context: Any) -> Any:
        touch(self.name)
        self.rules.put([*self.rules.get(), batch.select(["lane", "seq"])])
        return _pairs((one, rule) for rule in _names(batch) for held in self.waiting.get() for one in _names(held))


class Sides:
    """A function of two streams without state: each side gets lanes of its own."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, batch: pa.RecordBatch, side: str) -> pa.RecordBatch:
        touch(self.name)
        return _with(batch, "lane", pc.binary_join_element_wise(batch["lane"], pa.scalar(f"|{side}"), ""))
