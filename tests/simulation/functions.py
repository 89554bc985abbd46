"""What a user would write: a keyed function with timers, and calls of map_async. And operators around windows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.operators.contract import Emit, Operator
from penstock.operators.keyed.functions import KeyedContext, KeyedFunction, TwoInputContext, TwoInputFunction
from tests.simulation.records import Numbers, batch_of, numbers_of
from tests.simulation.world import World

WINDOW_KEYS = 5
_COUNT_BITS, _WINDOW_BITS = 12, 12


class Stamp(Operator):
    """Adds the key `k` and the event time `t`: the position in the split, out of order by less than `jitter`.

    Each split is later than the one before it by `gap`.
    """

    def __init__(self, splits: int, jitter: int = 0, gap: int = 0) -> None:
        self.splits = splits
        self.jitter = jitter
        self.gap = gap

    def process(self, batch: pa.RecordBatch, source: int, emit: Emit) -> None:
        numbers = numbers_of(batch)
        columns = [batch.column("v"), pa.array(window_keys(numbers)), pa.array(self.times(numbers))]
        emit(pa.RecordBatch.from_arrays(columns, names=["v", "k", "t"]))

    def times(self, numbers: Numbers) -> Numbers:
        times = numbers // self.splits + numbers % self.splits * self.gap
        return times ^ (self.jitter - 1) if self.jitter else times


def window_keys(numbers: Numbers) -> Numbers:
    return numbers // 3 % WINDOW_KEYS


class WindowNumbers(Operator):
    """The result of each window as one number: what it counted, in which window, for which key."""

    def __init__(self, every: int) -> None:
        self.every = every

    def process(self, batch: pa.RecordBatch, source: int, emit: Emit) -> None:
        keys, starts, counts = (batch.column(name).to_numpy() for name in ("k", "window_start", "n"))
        emit(batch_of(window_number(keys, starts // self.every, counts)))


def window_number(key: Any, window: Any, count: Any) -> Any:
    # A window may begin before time 0.
    return (key << _WINDOW_BITS | window + 64) << _COUNT_BITS | count


def sessions_of(numbers: Numbers, times: Numbers, gap: int, every: int) -> dict[int, int]:
    """The model: for the number of every session that must come out, the first time at which it is complete."""
    sessions: dict[int, list[list[int]]] = {}
    for at, key in sorted(zip(times.tolist(), window_keys(numbers).tolist(), strict=True)):
        mine = sessions.setdefault(key, [])
        if not mine or at - mine[-1][-1] > gap:
            mine.append([])
        mine[-1].append(at)
    return {
        window_number(key, session[0] // every, len(session)): session[-1] + gap + 1
        for key, mine in sessions.items()
        for session in mine
    }


def windows_of(numbers: Numbers, times: Numbers, size: int, every: int) -> dict[int, int]:
    """The model: for the number of every window that must come out, the end of that window."""
    counts: Counter[tuple[int, int]] = Counter()
    for key, at in zip(window_keys(numbers).tolist(), times.tolist(), strict=True):
        last = at // every
        counts.update((key, window) for window in range(last - size // every + 1, last + 1))
    return {window_number(key, window, count): window * every + size for (key, window), count in counts.items()}


_VERSION_BITS = 16


class AsOfNumbers(Operator):
    """A record and its version as one number."""

    def process(self, batch: pa.RecordBatch, source: int, emit: Emit) -> None:
        versions = batch.column("t_right").fill_null(-1).to_numpy()
        emit(batch_of(numbers_of(batch.select(["v"])) << _VERSION_BITS | versions + 1))


def as_of_numbers(numbers: Numbers, times: Numbers) -> Numbers:
    """The model: a version is its own time, and there is one for each time."""
    newest: dict[int, int] = {}
    valid: list[dict[int, int]] = []
    for version, key in enumerate(window_keys(np.arange(int(times.max()) + 1)).tolist()):
        newest = {**newest, key: version}
        valid.append(newest)
    found = [valid[at].get(key, -1) for key, at in zip(window_keys(numbers).tolist(), times.tolist(), strict=True)]
    return numbers << _VERSION_BITS | np.array(found) + 1


class Alarms(KeyedFunction):
    """Holds each record until a timer of its own is due, and emits it then: a timer that is dropped loses it.

    While anything is held a second timer goes along, which does nothing but set the next one.
    """

    def __init__(self, world: World, us: int) -> None:
        self.world = world
        self.us = us

    def open(self, context: KeyedContext) -> None:
        self.held = context.list("held", "at bigint, v bigint", ttl="3_600_000 ms")

    def process(self, key: tuple[Any, ...], rows: pa.RecordBatch, context: KeyedContext) -> None:
        self.world.spend(self.us * rows.num_rows)
        now_ms = context.now_ms()
        for number in numbers_of(rows).tolist():
            at_ms = now_ms + 1 + number % 13
            self.held.append_value((at_ms, number))
            context.set_timer(at_ms)
        context.set_timer(now_ms + 1)

    def on_timer(self, key: tuple[Any, ...], at_ms: int, context: KeyedContext) -> Iterable[pa.RecordBatch]:
        self.world.fail_here("timer")
        held = list(self.held.get())
        due = [number for at, number in held if at == at_ms]
        left = [row for row in held if row[0] != at_ms]
        if left:
            self.held.put(left)
            context.set_timer(at_ms + 1)
        else:
            self.held.clear()
        if due:
            yield batch_of(np.array(due))


class InOrder(KeyedFunction):
    """Costs by the call. The records of one key and one split must come in rising order (I2); then they are passed on.

    The last number of each split is state: a record that comes twice, or never, is out of order or missed.
    """

    def __init__(self, world: World, splits: int, us: int) -> None:
        self.world = world
        self.splits = splits
        self.us = us

    def open(self, context: KeyedContext) -> None:
        self.newest = context.map("newest", "split bigint", "v bigint")

    def process(self, key: tuple[Any, ...], rows: pa.RecordBatch, context: KeyedContext) -> pa.RecordBatch:
        self.world.spend(self.us)
        numbers = numbers_of(rows)
        if (rows["k"].to_numpy() != key[0]).any():
            self.world.violation(f"key {key} got records of other keys")
        for number in numbers.tolist():
            (before,) = self.newest.get_value((number % self.splits,)) or (-1,)
            if number <= before:
                self.world.violation(f"key {key}: {number} after {before}: out of order")
            self.newest.update_value((number % self.splits,), (number,))
        return rows


class BothInOrder(TwoInputFunction):
    """The same for two inputs: costs by the key, and the records of one key, split and side come in rising order."""

    def __init__(self, world: World, splits: int, us: int) -> None:
        self.world = world
        self.splits = splits
        self.us = us

    def open(self, context: TwoInputContext) -> None:
        self.newest = context.map("newest", "split bigint, is_right boolean", "v bigint")

    def process_left(self, batch: pa.RecordBatch, context: TwoInputContext) -> Iterable[pa.RecordBatch]:
        return self._checked(batch, False, context)

    def process_right(self, batch: pa.RecordBatch, context: TwoInputContext) -> Iterable[pa.RecordBatch]:
        return self._checked(batch, True, context)

    def _checked(self, batch: pa.RecordBatch, is_right: bool, context: TwoInputContext) -> Iterable[pa.RecordBatch]:
        for key, rows in context.each_key(batch):
            self.world.spend(self.us)
            if (rows["k"].to_numpy() != key[0]).any():
                self.world.violation(f"key {key} got records of other keys")
            for number in numbers_of(rows).tolist():
                at = number % self.splits, is_right
                (before,) = self.newest.get_value(at) or (-1,)
                if number <= before or number // self.splits % 2 != is_right:
                    self.world.violation(f"key {key}, right {is_right}: {number} after {before}: out of order")
                self.newest.update_value(at, (number,))
            yield rows


ECHO_MS_MAX = 13


def echo_times(numbers: Numbers, times: Numbers) -> Numbers:
    """When each record is said again."""
    return times + 1 + numbers % ECHO_MS_MAX


class Echoes(KeyedFunction):
    """Holds each record until event time has come to a timer of its own, and emits it then, with the timer's time.

    Who gets it must not have heard of a later time: its windows do not take late records.
    """

    def __init__(self, world: World, us: int) -> None:
        self.world = world
        self.us = us

    def open(self, context: KeyedContext) -> None:
        self.held = context.map("held", "at bigint, v bigint", "is_held boolean")

    def process(self, key: tuple[Any, ...], rows: pa.RecordBatch, context: KeyedContext) -> None:
        self.world.spend(self.us * rows.num_rows)
        numbers = numbers_of(rows)
        for number, at_ms in zip(numbers.tolist(), echo_times(numbers, rows["t"].to_numpy()).tolist(), strict=True):
            self.held.update_value((at_ms, number), (True,))
            context.set_timer(at_ms)

    def on_timer(self, key: tuple[Any, ...], at_ms: int, context: KeyedContext) -> pa.RecordBatch:
        self.world.fail_here("timer")
        due = [number for (at, number), _ in self.held.iterator() if at == at_ms]
        for number in due:
            self.held.remove_key((at_ms, number))
        return pa.record_batch(
            {"v": pa.array(due, pa.int64()), "k": pa.array([key[0]] * len(due)), "t": pa.array([at_ms] * len(due))}
        )


class Unfolded:
    """The function of flat_map: two numbers for each, and time passes in the middle of a generator."""

    def __init__(self, world: World, us: int) -> None:
        self.world = world
        self.us = us

    def row(self, row: dict[str, Any]) -> Iterator[dict[str, int]]:
        for made in self.batch(pa.RecordBatch.from_pylist([row])):
            yield from made.to_pylist()

    def batch(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for number in (0, 1):
            self.world.spend(self.us * batch.num_rows)
            yield batch_of(2 * numbers_of(batch) + number)


class Slowly:
    """The function of map_async: it looks at every record, and may fail."""

    def __init__(self, world: World) -> None:
        self.world = world

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        numbers_of(batch)
        self.world.fail_here("call")
        return batch
