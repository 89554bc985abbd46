"""One operator on a bench: its context is moved by hand, and its state goes through checkpoints to other subtasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from penstock.ids import OperatorName
from penstock.metrics.metric import Metric
from penstock.metrics.registry import Registry, SubtaskMetrics
from penstock.model.event_time import MIN_WATERMARK
from penstock.operators.contract import Operator
from penstock.state import KeyedState

GROUPS = 16


class BenchContext:
    """What the operators of this folder ask of their context."""

    operator, time_zone, max_parallelism = OperatorName("op"), "UTC", GROUPS

    def __init__(self, key: tuple[str, ...], key_groups: range, subtask: int) -> None:
        self.key, self.key_groups, self.subtask = key, key_groups, subtask
        self.parallelism = 1
        self.keyed = KeyedState(key_groups, GROUPS)
        self.watermark = MIN_WATERMARK
        self.clock_ms = 0
        self.released: list[int] = []
        self.owed: list[Iterator[None]] = []
        self.timers: list[tuple[int, Callable[[], None]]] = []
        self.submitted: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self.metrics = SubtaskMetrics(Registry(), self.operator, subtask)

    def now_ms(self) -> int:
        return self.clock_ms

    def work_off(self, steps: Iterator[None]) -> None:
        self.owed.append(steps)

    def begin_slice(self) -> Callable[[], bool]:
        return lambda: True

    def release_watermark(self, watermark: int) -> None:
        self.released.append(watermark)

    def call_at(self, at_ms: int, call: Callable[[], None]) -> None:
        self.timers.append((at_ms, call))

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.submitted.append((work, done))


class Bench:
    """One subtask of an operator, and the rows that it has emitted."""

    def __init__(self, operator: Operator, key: tuple[str, ...], key_groups: range = range(GROUPS)) -> None:
        self.operator = operator
        self.context = BenchContext(key, key_groups, subtask=1)
        self.emitted: list[pa.RecordBatch] = []
        operator.open(self.context)  # type: ignore[arg-type]

    def begin(self) -> Bench:
        self._go_through(self.operator.on_restored(self.emitted.append))
        return self

    def process(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        if batch.num_rows:
            self.operator.process(batch, input_index, self.emitted.append)

    def advance(self, watermark: int) -> None:
        self.context.watermark = watermark
        if not self.operator.on_watermark(watermark, self.emitted.append):
            self.context.released.append(watermark)
        while self.context.owed:
            self._go_through(self.context.owed.pop(0))

    def end(self) -> None:
        self._go_through(self.operator.on_end(self.emitted.append))

    def background(self) -> None:
        """Do all that was submitted."""
        while self.context.submitted:
            work, done = self.context.submitted.pop(0)
            try:
                result = work()
            except Exception as error:
                result = error
            done(result)

    def rows(self) -> list[dict[str, Any]]:
        return [row for batch in self.emitted for row in batch.to_pylist()]

    def count(self, metric: Metric) -> int:
        return int(self.context.metrics.counter(metric).value)

    def state_rows(self) -> dict[str, int]:
        """Rows of each state in a checkpoint."""
        rows = dict.fromkeys(self.context.keyed.names, 0)
        for piece in self.context.keyed.snapshot().encode(1 << 20):
            rows[piece.name] += piece.rows
        return rows

    def restored(self, make: Callable[[], Operator], watermark: int | None = None) -> Bench:
        """The same subtask after a failure."""
        return restored([self], make, range(GROUPS), self.context.watermark if watermark is None else watermark)

    def _go_through(self, steps: Iterator[None] | None) -> None:
        for _ in steps or ():
            pass


def restored(benches: list[Bench], make: Callable[[], Operator], key_groups: range, watermark: int) -> Bench:
    """A subtask with the key groups of a checkpoint of several."""
    new = Bench(make(), benches[0].context.key, key_groups)
    for bench in benches:
        for piece in bench.context.keyed.snapshot().encode(64):
            new.context.keyed.restore(piece.name, [piece.batch])
    new.context.watermark = watermark
    return new.begin()
