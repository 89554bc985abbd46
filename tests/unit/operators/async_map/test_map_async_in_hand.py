"""`map_async` and its batches in hand: few, in the state until their results are emitted, and no longer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from penstock import Pipeline, UserCodeError
from penstock.operators.async_map.operator import MapAsyncOperator, Pool, Runner, _Job
from penstock.protocol.coordinator.state import Mode, Policy
from penstock.testing import ABORT, CHECKPOINT, PAUSE, CollectSink, ListSource, run

HANG_S = 20
"""Nothing here takes so long unless it hangs."""


def rows(count: int) -> list[Any]:
    return [{"n": n} for n in range(count)]


def first_of(batch: pa.RecordBatch) -> int:
    return int(batch["n"][0].as_py())


class FirstIsStuck:
    """The first batch is stuck until it is run again, after a restart; all others return at once."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.calls: list[int] = []

    def __reduce__(self) -> Any:
        return FirstIsStuck, ()

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.calls.append(first_of(batch))
        if first_of(batch) == 0:
            if self.calls.count(0) > 1:
                self.is_open.set()
            self.is_open.wait(HANG_S)
        return batch


@pytest.mark.parametrize("ordered", [True, False])
def test_a_result_that_waits_behind_a_slower_one_survives_a_crash(ordered: bool) -> None:
    stuck, pipeline, sink = FirstIsStuck(), Pipeline("p"), CollectSink()
    stream = pipeline.source(ListSource(rows(200), batch_rows=10))
    stream.map_async(stuck, concurrency=2, batch_rows=10, ordered=ordered).sink(sink)
    policy = Policy(interval_ms=10, mode=Mode.UNALIGNED)
    # The crash comes while results of later batches wait behind the first one.
    result = run(pipeline, policy=policy, crash_after_checkpoints=5, workers=1)
    assert result.restarts == 1
    found = [row["n"] for row in sink.rows()]
    assert sorted(found) == list(range(200))
    assert found == sorted(found) or not ordered


def test_a_batch_whose_result_was_emitted_is_not_in_the_state_any_more() -> None:
    pipeline, sink = Pipeline("p"), CollectSink()
    # While the source pauses the last batch leaves, so that the checkpoint finds nothing in hand.
    items = [*rows(10), PAUSE("200 ms"), CHECKPOINT, ABORT(), PAUSE("50 ms")]
    pipeline.source(ListSource(items, batch_rows=10)).map_async(lambda batch: batch).sink(sink)
    result = run(pipeline)
    assert result.restarts == 1
    assert [row["n"] for row in sink.rows()] == list(range(10))


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt])
def test_a_function_that_raises_more_than_an_exception_is_an_error_and_not_a_standstill(
    raised: type[BaseException],
) -> None:
    def leaving(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise raised("enough")

    pipeline = Pipeline("p")
    pipeline.source(ListSource(rows(3))).map_async(leaving, name="slow").sink(CollectSink())
    with pytest.raises(UserCodeError, match=f"the function of map_async raised {raised.__name__}: enough"):
        run(pipeline, restarts=0)


class Kept(Runner):
    """A runner that can be stuck, and notes that it was closed."""

    def __init__(self) -> None:
        self.is_running, self.is_closed = threading.Event(), threading.Event()

    def call(self, batch: pa.RecordBatch) -> Any:
        self.is_running.set()
        self.is_closed.wait()

    def close(self) -> None:
        self.is_closed.set()


def test_whoever_closes_ends_calls_that_are_stuck() -> None:
    runner = Kept()
    pool = Pool(1, lambda: runner, "p")
    job = _Job(pa.record_batch({"n": [1]}), 0, True)
    pool.submit(job)
    assert runner.is_running.wait(HANG_S)
    pool.close()
    # By the call itself, and not some time after it: a call that is stuck ends on its own in the end.
    assert runner.is_closed.is_set()
    assert job.done.wait(HANG_S)


class Leaving(Runner):
    def call(self, batch: pa.RecordBatch) -> Any:
        raise SystemExit("enough")


def test_a_call_is_done_whatever_it_raises() -> None:
    pool = Pool(1, Leaving, "leaving")
    job = _Job(pa.record_batch({"n": [1]}), 0, True)
    pool.submit(job)
    pool.close()
    # The thread ends behind the job, or with it.
    for thread in threading.enumerate():
        if thread.name == "leaving-1":
            thread.join(HANG_S)
    assert job.done.is_set()
    assert isinstance(job.error, SystemExit)


def test_a_runner_that_is_made_while_the_operator_closes_is_closed_too() -> None:
    runner, may_be_made = Kept(), threading.Event()

    def make() -> Runner:
        may_be_made.wait(HANG_S)
        return runner

    pool = Pool(1, make, "p")
    pool.submit(_Job(pa.record_batch({"n": [1]}), 0, True))
    pool.close()
    may_be_made.set()
    assert runner.is_closed.wait(HANG_S)


class Context:
    """The context of an operator, whose callbacks are called by hand."""

    operator, subtask, parallelism, key = "slow", 0, 1, ()

    def __init__(self) -> None:
        self.state: list[pa.RecordBatch] = []
        self.looks: list[Callable[[], None]] = []

    def list_state(self, name: str) -> Any:
        return self

    def put(self, batches: list[pa.RecordBatch]) -> None:
        self.state = list(batches)

    def get(self) -> list[pa.RecordBatch]:
        return self.state

    def now_ms(self) -> int:
        return 0

    def call_at(self, at_ms: int, call: Callable[[], None]) -> None:
        self.looks.append(call)


class Bench:
    """An operator with two threads, for batches of ten, whose calls return when they are let through."""

    def __init__(self) -> None:
        self.doors = {first: threading.Event() for first in range(0, 100, 10)}
        self.context, self.emitted = Context(), list[int]()
        self.operator = MapAsyncOperator(self._call, "arrow", None, 2, True, "threads", 10)
        context: Any = self.context
        self.operator.open(context)
        self.operator.on_restored(self._emit)

    def _call(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.doors[first_of(batch)].wait(HANG_S)
        return batch

    def _emit(self, batch: pa.RecordBatch) -> None:
        self.emitted.append(first_of(batch))

    def give(self, *numbers: int) -> None:
        self.operator.process(pa.record_batch({"n": pa.array(numbers, pa.int64())}), 0, self._emit)

    def let_through(self, first: int) -> None:
        """Let one call return, and come back when it has."""
        (job,) = [job for job in self.operator._line if isinstance(job, _Job) and first_of(job.batch) == first]
        self.doors[first].set()
        assert job.done.wait(HANG_S)

    @property
    def in_state(self) -> list[int]:
        return [first_of(batch) for batch in self.context.state]


def test_no_input_is_wanted_while_a_batch_waits_for_a_thread() -> None:
    bench = Bench()
    bench.give(*range(20))
    assert bench.operator.wants_input, "both threads have one"
    bench.give(*range(20, 30))
    assert not bench.operator.wants_input
    assert bench.in_state == [0, 10, 20]
    bench.operator.close()


def test_behind_a_call_that_is_stuck_no_more_results_pile_up_than_make_two_batches_for_each_thread() -> None:
    bench = Bench()
    bench.give(*range(20))
    for first in (10, 20):
        bench.let_through(first)
        assert bench.operator.wants_input
        bench.give(*range(first + 10, first + 20))
    assert (bench.emitted, bench.in_state) == ([], [0, 10, 20, 30])
    bench.let_through(30)
    bench.give()
    assert not bench.operator.wants_input, "all calls but one have returned, and their results wait behind it"
    bench.operator.close()


def test_a_result_that_nobody_has_emitted_is_work_in_hand() -> None:
    bench = Bench()
    bench.give(*range(20))
    bench.let_through(10)
    bench.give()
    assert (bench.emitted, bench.in_state, bench.operator.is_idle) == ([], [0, 10], False)
    bench.let_through(0)
    bench.give()
    assert not bench.operator.is_idle, "the calls have returned, and their results are still here"
    bench.context.looks.pop()()
    assert (bench.emitted, bench.in_state, bench.operator.is_idle) == ([0, 10], [], True)
    bench.operator.close()
