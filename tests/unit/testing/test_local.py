"""`penstock.testing.run`: bounded and unbounded pipelines, resuming, planned crashes, errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock import GeneratorSource, IncompatibleCheckpoint, JobFailed, Pipeline, Prepared, SinkWriter, UserCodeError
from penstock.ids import Generation
from penstock.protocol.coordinator.state import Policy
from penstock.storage import MemoryStore
from penstock.testing import ABORT, CHECKPOINT, CollectSink, ListSource, Schedule, run


def make(start: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"n": np.arange(start, start + count)})


def sums(source: Any, sink: CollectSink) -> Pipeline:
    stream = Pipeline("sums").source(source, name="in").with_column("k", lambda b: pa.array(np.asarray(b["n"]) % 10))
    return stream.key_by("k").sum("n", name="sum").sink(sink, name="out")


def newest(sink: CollectSink) -> dict[int, int]:
    return {row["k"]: row["n"] for row in sink.rows()}


def test_a_bounded_pipeline_ends_by_itself() -> None:
    sink = CollectSink()
    result = run(sums(GeneratorSource(make, rows=1000), sink))
    assert newest(sink) == {k: sum(range(k, 1000, 10)) for k in range(10)}
    assert result.checkpoints >= 1
    assert result.restarts == 0


@pytest.mark.parametrize(("parallelism", "workers"), [(1, None), (2, 1), (3, 2), (5, 5)])
def test_planned_crashes_change_nothing(parallelism: int, workers: int | None) -> None:
    sink = CollectSink()
    source = GeneratorSource(make, rows=3000, splits=3, rows_per_second=50_000)
    result = run(sums(source, sink), parallelism=parallelism, workers=workers, crash_after_checkpoints=[1, 2, 3])
    assert newest(sink) == {k: sum(range(k, 3000, 10)) for k in range(10)}
    assert result.restarts == len(result.failures) == 3


def test_an_unbounded_pipeline_is_drained_and_resumed_at_another_parallelism(tmp_path: Path) -> None:
    sink = CollectSink()

    def described() -> Pipeline:
        source = GeneratorSource(make, splits=2, rows_per_second=100_000)
        return Pipeline("p").source(source).map(lambda batch: batch).sink(sink)

    run(described(), until=lambda: sink.table().num_rows > 50, store=tmp_path)
    first = sink.table().num_rows
    run(described(), until=lambda: sink.table().num_rows > 3 * first, store=str(tmp_path), parallelism=3)
    numbers = sorted(sink.table()["n"].to_pylist())
    splits = [[n for n in numbers if n < 1 << 16], [n - (1 << 16) for n in numbers if n >= 1 << 16]]
    assert splits == [list(range(len(split))) for split in splits]


def test_a_finished_pipeline_that_is_run_again_does_nothing() -> None:
    sink = CollectSink()
    source = GeneratorSource(make, rows=100)
    store = run(sums(source, sink)).store
    before = sink.rows()
    run(sums(source, sink), store=store)
    assert sink.rows() == before


def test_the_error_of_the_pipeline_is_raised_as_it_is() -> None:
    def broken(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError("always")

    pipeline = Pipeline("p")
    pipeline.source(GeneratorSource(make, rows=10)).map(broken, name="broken").sink(CollectSink())
    with pytest.raises(UserCodeError, match=r"operator 'broken'.*ValueError: always") as caught:
        run(pipeline, restarts=2)
    assert isinstance(caught.value.__cause__, ValueError)


class Full(CollectSink):
    """Hands over once, and never again."""

    def writer(self, subtask: int, generation: Generation) -> SinkWriter:
        writer = super().writer(subtask, generation)
        if generation > 1:
            writer.prepare = self.failing  # type: ignore[method-assign]
        return writer

    def failing(self) -> Prepared:
        def prepare() -> list[bytes]:
            raise OSError("no space left")

        return prepare


def test_an_earlier_failure_is_not_taken_for_the_last_one() -> None:
    source = GeneratorSource(make, rows=3000, rows_per_second=10_000)
    policy = Policy(interval_ms=10, backoff_ms=5, failures_tolerable=0)
    with pytest.raises(JobFailed, match="no space left"):
        run(sums(source, Full()), crash_after_checkpoints=1, restarts=0, policy=policy)


def test_restarts_are_counted_and_bounded() -> None:
    items: list[Any] = [{"n": 1}, CHECKPOINT, ABORT(), ABORT(), {"n": 2}]
    sink = CollectSink()
    with pytest.raises(UserCodeError, match="come to an ABORT"):
        run(Pipeline("p").source(ListSource(items)).sink(sink), restarts=1)
    sink = CollectSink()
    items = [{"n": 1}, CHECKPOINT, ABORT(), ABORT(), {"n": 2}]
    result = run(Pipeline("p").source(ListSource(items)).sink(sink), restarts=2)
    assert result.restarts == 2
    assert sink.rows() == [{"n": 1}, {"n": 2}]


def test_a_pipeline_that_does_not_end_is_told_so() -> None:
    with pytest.raises(TimeoutError, match=r"not come to its end within 0.1 s: .* needs until="):
        run(sums(GeneratorSource(make, rows_per_second=10), CollectSink()), timeout=0.1)


def test_checkpoints_of_another_pipeline_are_refused() -> None:
    store = run(sums(GeneratorSource(make, rows=100), CollectSink())).store
    other = Pipeline("other")
    other.source(ListSource([{"n": 1}])).sink(CollectSink())
    with pytest.raises(IncompatibleCheckpoint):
        run(other, store=store)


def watched(seed: int) -> list[tuple[int, int, list[dict[str, int]]]]:
    """What could be seen of a run at each of its turns."""
    sink, schedule = CollectSink(), Schedule(seed)
    seen: list[tuple[int, int, list[dict[str, int]]]] = []

    def look() -> bool:
        seen.append((schedule.now_us(), schedule.wall_ms(), sink.rows()))
        return False

    source = GeneratorSource(make, rows=500, splits=3)
    result = run(sums(source, sink), parallelism=3, workers=2, crash_after_checkpoints=1, until=look, schedule=schedule)
    assert result.restarts == 1
    assert newest(sink) == {k: sum(range(k, 500, 10)) for k in range(10)}
    return seen


def test_a_schedule_is_the_same_run_for_the_same_seed_and_another_for_another() -> None:
    assert watched(1) == watched(1)
    assert watched(1) != watched(2)


def test_time_goes_on_from_one_run_of_a_schedule_to_the_next() -> None:
    schedule, source = Schedule(1), GeneratorSource(make, rows=100)
    store = run(sums(source, CollectSink()), schedule=schedule).store
    before = schedule.wall_ms()
    run(sums(source, CollectSink()), schedule=schedule, store=store)
    assert schedule.wall_ms() > before


def test_a_driver_that_dies_is_followed_by_another_one() -> None:
    class Died(BaseException):
        pass

    def until() -> bool:
        if sink.rows():
            raise Died
        return False

    sink, store, schedule = CollectSink(), MemoryStore(), Schedule(3)
    source = GeneratorSource(make, rows=3000, splits=2)
    with pytest.raises(Died):
        run(sums(source, sink), store=store, until=until, schedule=schedule)
    run(sums(source, sink), store=store, schedule=schedule, parallelism=2)
    assert newest(sink) == {k: sum(range(k, 3000, 10)) for k in range(10)}
