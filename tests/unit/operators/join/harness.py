"""A join in as many subtasks as one likes, driven by hand: rows, watermarks, checkpoints and rescaling."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.columnar.gather import take_rows
from penstock.columnar.hashing import key_groups
from penstock.metrics.instruments import Counter as Instrument
from penstock.model.event_time import MIN_WATERMARK
from penstock.operators.join.operator import JoinOperator
from penstock.operators.join.spec import JoinSpec
from penstock.protocol.key_groups import key_groups_of
from penstock.state.keyed import KeyedState

GROUPS = 8


class Context:
    """What the operator asks of its subtask. A slice is over after each step; background work waits for `settle`."""

    operator = "join"

    def __init__(self, subtask: int, parallelism: int) -> None:
        self.subtask, self.parallelism, self.max_parallelism = subtask, parallelism, GROUPS
        self.key_groups = key_groups_of(subtask, parallelism, GROUPS)
        self.keyed = KeyedState(self.key_groups, GROUPS)
        self.watermark = MIN_WATERMARK
        self.metrics = self
        self.late = Instrument()
        self.late_rows: list[tuple[str, pa.RecordBatch]] = []
        self.released: list[int] = []
        self.owed: list[Iterator[None]] = []
        self.background: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self.now = 0

    def counter(self, metric: object) -> Instrument:
        return self.late

    def observe(self, metric: object, read: Callable[[], object]) -> None:
        pass

    def now_ms(self) -> int:
        return self.now

    def call_at(self, at_ms: int, call: Callable[[], None]) -> None:
        pass

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.background.append((work, done))

    def work_off(self, steps: Iterator[None]) -> None:
        self.owed.append(steps)

    def emit_to(self, output: str, batch: pa.RecordBatch) -> None:
        self.late_rows.append((output, batch))

    def begin_slice(self) -> Callable[[], bool]:
        return lambda: True

    def release_watermark(self, watermark: int) -> None:
        assert not self.released or watermark > self.released[-1], "a watermark goes back"
        self.released.append(watermark)


class Subtask:
    """One subtask of the join, and all that it has emitted."""

    def __init__(self, spec: JoinSpec, subtask: int = 0, parallelism: int = 1) -> None:
        self.context = Context(subtask, parallelism)
        self.operator = JoinOperator(spec)
        self.operator.open(self.context)  # type: ignore[arg-type]
        self.output: list[pa.RecordBatch] = []
        self.times = [column for column in (spec.on[0], f"{spec.on[1]}_right") if spec.clock == "event"]

    def emit(self, batch: pa.RecordBatch) -> None:
        assert batch.num_rows
        self.output.append(batch)
        if self.context.released and self.operator.spec.bounds.closes:
            for column in set(self.times) & set(batch.schema.names):
                in_ms = batch.column(column).cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
                known = [at for at in in_ms.to_pylist() if at is not None]
                assert not known or min(known) >= self.context.released[-1], "a row is late for whoever reads it"

    def begin(self) -> None:
        self.operator.on_restored(self.emit)

    def add(self, side: int, batch: pa.RecordBatch) -> None:
        steps = self.operator.process(batch, side, self.emit)
        assert steps is not None
        steps.call_rows_max = 3
        while steps.step():
            pass
        self.settle()

    def advance(self, watermark_ms: int) -> None:
        if watermark_ms > self.context.watermark:
            self.context.watermark = watermark_ms
            assert self.operator.on_watermark(watermark_ms, self.emit) is not False
            self.settle()

    def settle(self) -> None:
        while self.context.owed or self.context.background:
            while self.context.owed:
                for _ in self.context.owed.pop(0):
                    # A merge may be done in the middle of anything.
                    self._background()
            self._background()

    def _background(self) -> None:
        while self.context.background:
            work, done = self.context.background.pop(0)
            done(work())

    def end(self) -> None:
        for _ in self.operator.on_end(self.emit):
            pass

    @property
    def rows_kept(self) -> int:
        return sum(side.row_count for side in self.operator._sides)


class Join:
    """All subtasks of a join."""

    def __init__(self, spec: JoinSpec, parallelism: int = 1) -> None:
        self.spec = spec
        self.output: list[pa.RecordBatch] = []
        self.late = 0
        self.watermark = MIN_WATERMARK
        self._start(parallelism)
        self._begin()

    def _start(self, parallelism: int) -> None:
        self.subtasks = [Subtask(self.spec, number, parallelism) for number in range(parallelism)]

    def _begin(self) -> None:
        for subtask in self.subtasks:
            subtask.begin()

    def add(self, side: int, batch: pa.RecordBatch) -> None:
        groups = key_groups(batch, self.spec.keys[side], GROUPS)
        for subtask in self.subtasks:
            owned = subtask.context.key_groups
            mine = np.flatnonzero((groups >= owned.start) & (groups < owned.stop))
            # Rows, or the schema alone.
            subtask.add(side, take_rows(batch, mine))

    def advance(self, watermark_ms: int) -> None:
        self.watermark = max(self.watermark, watermark_ms)
        for subtask in self.subtasks:
            subtask.advance(watermark_ms)

    def restart(self, parallelism: int) -> None:
        """A checkpoint, and a new start from it at another parallelism."""
        pieces = [piece for subtask in self.subtasks for piece in subtask.context.keyed.snapshot().encode(1 << 10)]
        self._collect()
        self._start(parallelism)
        for subtask in self.subtasks:
            for piece in pieces:
                subtask.context.keyed.restore(piece.name, [piece.batch])
        self._begin()

    def end(self) -> None:
        for subtask in self.subtasks:
            subtask.end()

    def _collect(self) -> None:
        for subtask in self.subtasks:
            self.output += subtask.output
            self.late += subtask.context.late.value
            subtask.output, subtask.context.late.value = [], 0

    def results(self) -> Counter[tuple[object, ...]]:
        """How often each pair of the numbers `n` and `m` of two rows has come, with its `op`."""
        self._collect()
        found: Counter[tuple[object, ...]] = Counter()
        for batch in self.output:
            # While nobody has seen the other side, its columns are not there.
            names = ["n", "m", *(["op"] if self.spec.is_changelog else [])]
            columns = [batch.column(name).to_pylist() if name in batch.schema.names else None for name in names]
            found.update(zip(*(column or [None] * batch.num_rows for column in columns), strict=True))
        return found

    @property
    def rows_kept(self) -> int:
        return sum(subtask.rows_kept for subtask in self.subtasks)
