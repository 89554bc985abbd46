"""When a join passes its watermark on, and what it emits before."""

from __future__ import annotations

import pyarrow as pa

from penstock.model.joins import How, IntervalBounds
from penstock.operators.join.spec import JoinSpec
from tests.unit.operators.join.harness import Join


def join_of(how: How) -> Join:
    return Join(JoinSpec(IntervalBounds(-5, 10), how, (("k",), ("k",)), ("t", "t"), "drop", "_right", (None, None)))


def rows(side: int, *given: tuple[int | None, int]) -> pa.RecordBatch:
    keys, times = [key for key, _ in given], [at for _, at in given]
    columns = [pa.array(keys, pa.int64()), pa.array(times, pa.int64()), pa.array(range(len(given)), pa.int64())]
    return pa.RecordBatch.from_arrays(columns, names=["k", "t", "nm"[side]])


def test_a_watermark_waits_for_rows_that_wait_for_the_columns_of_the_other_side() -> None:
    join = join_of("left")
    (subtask,) = join.subtasks
    join.add(0, rows(0, (1, 100)))
    join.advance(111)
    assert subtask.output == []
    assert subtask.context.released == []
    join.add(1, rows(1))
    assert join.results() == {(0, None): 1}
    assert subtask.context.released == [101]


def test_rows_that_wait_and_marks_survive_a_restart() -> None:
    join = join_of("full")
    join.add(0, rows(0, (1, 100), (None, 100)))
    join.restart(2)
    join.add(1, rows(1, (1, 105)))
    join.restart(1)
    join.advance(1000)
    assert join.results() == {(0, 0): 1, (1, None): 1}
    assert join.rows_kept == 0


def test_a_row_is_joined_at_the_watermark_and_alone_one_moment_later() -> None:
    join = join_of("left")
    (subtask,) = join.subtasks
    join.add(1, rows(1))
    join.add(0, rows(0, (1, 100), (2, 100)))
    join.advance(110)
    assert subtask.output == []
    join.add(1, rows(1, (1, 110)))
    join.advance(111)
    assert join.results() == {(0, 0): 1, (1, None): 1}
    assert subtask.context.released == [100, 101]
