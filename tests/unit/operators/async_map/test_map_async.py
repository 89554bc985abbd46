"""`map_async`: slow functions beside the mailbox, checkpoints that do not wait for them, and nothing lost."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock import GeneratorSource, KeyedFunction, Pipeline, Stream, UserCodeError
from penstock.api.keyed_stream import KeyedStream
from penstock.model.event_time import MAX_WATERMARK
from penstock.operators.async_map.operator import MapAsyncOperator
from penstock.operators.contract import Emit, Operator
from penstock.protocol.coordinator.state import Mode, Policy
from penstock.protocol.manifest import Manifest, StateKind
from penstock.protocol.manifest.codec import decode_manifest_or_tombstone
from penstock.state.keyed import KeyedState
from penstock.storage import MemoryStore
from penstock.testing import ABORT, CHECKPOINT, CollectSink, ListSource, Result, run


class Gate:
    """Calls wait at a gate, which a test opens, or the first record when it comes again."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.calls: list[int] = []

    def __reduce__(self) -> Any:
        return Gate, ()

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.calls.append(batch["n"][0].as_py())
        if self.calls.count(0) > 1:
            self.event.set()
        self.event.wait(20)
        return doubled(batch)


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"n": pc.multiply(batch["n"], 2)})


def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(random.random() / 200)
    return batch


def rows(count: int, first: int = 0) -> list[Any]:
    return [{"n": n} for n in range(first, first + count)]


def run_of(build: Callable[[Stream], Stream], items: list[Any], **options: Any) -> tuple[list[int], Result]:
    pipeline, sink = Pipeline("p"), CollectSink()
    build(pipeline.source(ListSource(items, batch_rows=10))).sink(sink)
    result = run(pipeline, **options)
    return [row["n"] for row in sink.rows()], result


@pytest.mark.parametrize("count", [0, 1, 500])
def test_results_come_in_order(count: int) -> None:
    found, _ = run_of(lambda s: s.map_async(slow, concurrency=4, batch_rows=5), rows(count))
    assert found == list(range(count))


def test_results_may_come_in_any_order() -> None:
    found, _ = run_of(lambda s: s.map_async(slow, concurrency=4, batch_rows=5, ordered=False), rows(500))
    assert sorted(found) == list(range(500))
    assert found != sorted(found)


@pytest.mark.parametrize("as_", ["arrow", "pandas", "rows"])
def test_forms(as_: Any) -> None:
    functions: dict[str, Callable[[Any], Any]] = {
        "arrow": doubled,
        "pandas": lambda frame: frame.assign(n=frame["n"] * 2),
        "rows": lambda row: {"n": row["n"] * 2},
    }
    found, _ = run_of(lambda s: s.map_async(functions[as_], format=as_), rows(30))
    assert found == [2 * n for n in range(30)]


class Watch:
    """Notes how many calls run at a time."""

    def __init__(self) -> None:
        self.lock, self.now, self.most = threading.Lock(), 0, 0

    def __reduce__(self) -> Any:
        return Watch, ()

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.01)
        with self.lock:
            self.now -= 1
        return batch


def test_calls_run_beside_each_other_and_no_more_than_allowed() -> None:
    watch = Watch()
    found, _ = run_of(lambda s: s.map_async(watch, concurrency=3, batch_rows=5), rows(100))
    assert found == list(range(100))
    assert watch.most == 3


def test_in_processes() -> None:
    found, _ = run_of(lambda s: s.map_async(_square, executor="processes", concurrency=2, batch_rows=10), rows(40))
    assert found == [n * n for n in range(40)]


def _square(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"n": pc.multiply(batch["n"], batch["n"])})


@pytest.mark.parametrize("where", ["threads", "processes"])
def test_what_the_function_raises_names_the_operator(where: Any) -> None:
    def broken(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError("no luck")

    message = "operator 'slow', subtask 0 of 1: the function of map_async raised ValueError: no luck"
    with pytest.raises(UserCodeError, match=message):
        run_of(lambda s: s.map_async(broken, name="slow", executor=where), rows(3), restarts=0)


def test_a_process_that_dies_is_a_failure_of_the_function() -> None:
    def dying(batch: pa.RecordBatch) -> pa.RecordBatch:
        __import__("os")._exit(3)

    with pytest.raises(UserCodeError, match="the process that ran the function died"):
        run_of(lambda s: s.map_async(dying, executor="processes"), rows(3), restarts=0)


@pytest.mark.parametrize("mode", [Mode.UNALIGNED, Mode.ALIGNED_WITH_TIMEOUT])
@pytest.mark.parametrize("ordered", [True, False])
def test_checkpoints_complete_while_the_function_is_stuck_and_the_kill_loses_nothing(mode: Mode, ordered: bool) -> None:
    gate, pipeline, sink = Gate(), Pipeline("p"), CollectSink()
    policy = Policy(interval_ms=10, mode=mode, alignment_timeout_ms=20)
    stream = pipeline.source(ListSource(rows(1000), batch_rows=10))
    stream.map_async(gate, concurrency=2, batch_rows=10, ordered=ordered).sink(sink)
    # Every one of these checkpoints, and the crash after them, comes while the first batch is stuck.
    result = run(pipeline, policy=policy, crash_after_checkpoints=5, workers=1)
    assert result.restarts == 1
    assert result.checkpoints >= 5
    found = [row["n"] for row in sink.rows()]
    assert sorted(found) == [2 * n for n in range(1000)]
    assert found == sorted(found) or not ordered
    assert gate.calls.count(0) == 2, "what was in hand runs again"


def test_no_more_is_taken_in_hand_than_can_be_worked_on() -> None:
    gate, in_hand = Gate(), list[int]()

    def open_gate() -> None:
        wait_until(lambda: len(gate.calls) >= 2)
        # Time for a third call, which there must not be. A slow machine can only hide one, not make one up.
        time.sleep(0.2)
        in_hand.append(len(gate.calls))
        gate.event.set()

    threading.Thread(target=open_gate).start()
    found, _ = run_of(lambda s: s.map_async(gate, concurrency=2, batch_rows=10), rows(300))
    assert sorted(found) == [2 * n for n in range(300)]
    assert in_hand == [2]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_through_a_crash(parallelism: int) -> None:
    items = [*rows(200), CHECKPOINT, *rows(100, 200), ABORT(), *rows(100, 300)]
    found, result = run_of(
        lambda s: s.map_async(slow, concurrency=2, batch_rows=7), items, parallelism=parallelism, workers=2
    )
    assert result.restarts == 1
    assert sorted(found) == list(range(400))


class Hand:
    """A state that is a list of batches."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []

    def get(self) -> list[pa.RecordBatch]:
        return self.batches

    def put(self, batches: list[pa.RecordBatch]) -> None:
        self.batches = list(batches)


class Bench:
    """A context for one operator, in which nothing happens by itself."""

    operator, subtask, parallelism = "async", 0, 1

    def __init__(self, key: tuple[str, ...] = ()) -> None:
        self.key = key
        self.keyed = KeyedState(range(0, 1), 128)
        self.hand = Hand()
        self.looks: list[Callable[[], None]] = []

    def list_state(self, name: str) -> Hand:
        return self.hand

    def now_ms(self) -> int:
        return 0

    def call_at(self, at_ms: int, call: Callable[[], None]) -> None:
        self.looks.append(call)


def opened(context: Any, call: Callable[[Any], Any], batch_rows: int, emitted: list[int]) -> MapAsyncOperator:
    operator = MapAsyncOperator(call, "arrow", None, 2, ordered=True, where="threads", batch_rows=batch_rows)
    operator.open(context)
    operator.on_restored(lambda batch: emitted.extend(batch["n"].to_pylist()))
    return operator


def is_done(operator: MapAsyncOperator, place: int) -> bool:
    job = operator._line[place]
    return not isinstance(job, int) and job.done.is_set()


def wait_until(condition: Callable[[], bool]) -> None:
    """Fails only if it would hang."""
    for _ in range(6_000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("nothing happens")


def test_a_result_that_waits_for_a_slower_one_is_still_in_the_state() -> None:
    first = threading.Event()

    def call(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch["n"][0].as_py() == 0:
            first.wait(60)
        return batch

    context, emitted = Bench(), list[int]()
    operator = opened(context, call, 1, emitted)
    operator.process(pa.record_batch({"n": [0, 1, 2]}), 0, lambda batch: None)
    wait_until(lambda: is_done(operator, 1))
    context.looks.pop()()
    wait_until(lambda: is_done(operator, 2))
    context.looks.pop()()
    assert emitted == []
    assert [batch["n"].to_pylist() for batch in context.hand.get()] == [[0], [1], [2]]
    first.set()
    wait_until(lambda: is_done(operator, 0))
    context.looks.pop()()
    assert emitted == [0, 1, 2]
    assert context.hand.get() == []
    operator.close()


class Order(KeyedFunction):
    """Emits each record that comes after a younger one of its key."""

    def open(self, context: Any) -> None:
        self.last = context.value("last", "n bigint")

    def process(self, key: Any, rows: pa.RecordBatch, context: Any) -> pa.RecordBatch | None:
        (last,) = self.last.get() or (-1,)
        late = []
        for n in rows["n"].to_pylist():
            if n < last:
                late.append(n)
            last = max(last, n)
        self.last.update((last,))
        return pa.record_batch({"n": pa.array(late, pa.int64())}) if late else None


class Killed(BaseException):
    pass


def in_hand(store: MemoryStore, kind: StateKind) -> int:
    """How many records the newest checkpoint has in hand."""
    paths = sorted(path for path in store.list("checkpoints/") if path.endswith("manifest.json"))
    manifest = decode_manifest_or_tombstone(store.read(paths[-1])) if paths else None
    if not isinstance(manifest, Manifest):
        return 0
    states = [state for report in manifest.reports for state in report.states]
    return sum(state.rows for state in states if state.operator == "async" and state.kind is kind)


class Unpickled:
    """A function that need not travel."""

    def __init__(self, function: Callable[[pa.RecordBatch], pa.RecordBatch] = doubled) -> None:
        self.function = function

    def __reduce__(self) -> Any:
        return Unpickled, ()

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return self.function(batch)


@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 3), (2, 5), (3, 2)])
def test_what_is_in_hand_of_a_key_goes_with_it_and_keeps_its_order(before: int, after: int) -> None:
    count, gate = 3_000, threading.Event()

    def make(start: int, rows: int) -> pa.RecordBatch:
        numbers = range(start, start + rows)
        return pa.record_batch({"n": numbers, "k": [n % 16 for n in numbers]})

    def call(batch: pa.RecordBatch) -> pa.RecordBatch:
        gate.wait(60)
        # What was in hand takes longer than what follows, which would be faster in another subtask.
        time.sleep(0.02 if batch["n"][0].as_py() < 500 else 0)
        return batch

    def pipeline(seen: CollectSink, late: CollectSink) -> Pipeline:
        made = Pipeline("p")
        source = made.source(GeneratorSource(make, rows=count), name="src", parallelism=1).key_by("k")
        mapped = source.map_async(Unpickled(call), concurrency=2, batch_rows=32, name="async")
        mapped.sink(seen, name="seen")
        mapped.key_by("k").process(Order(), name="order").sink(late, name="late")
        return made

    store, seen, late = MemoryStore(), CollectSink(), CollectSink()
    policy = Policy(interval_ms=10, backoff_ms=5, mode=Mode.UNALIGNED)

    def until() -> bool:
        if in_hand(store, StateKind.KEYED) + in_hand(store, StateKind.LIST) >= 100:
            raise Killed
        return False

    with pytest.raises(Killed):
        run(pipeline(seen, late), store=store, until=until, parallelism=before, policy=policy)
    gate.set()
    run(pipeline(seen, late), store=store, parallelism=after, policy=policy)
    assert sorted(row["n"] for row in seen.rows()) == list(range(count))
    assert late.rows() == []


def test_what_an_older_checkpoint_has_in_hand_without_keys_is_run_and_stays_without() -> None:
    first, emitted = threading.Event(), list[int]()

    def call(batch: pa.RecordBatch) -> pa.RecordBatch:
        first.wait(60)
        return batch

    context = Bench(key=("n",))
    context.hand.put([pa.record_batch({"n": list(range(10))})])
    operator = opened(context, call, 5, emitted)
    # Most of these keys belong to other subtasks: as keyed state they could not be written.
    assert [batch.num_rows for batch in context.hand.get()] == [5, 5]
    assert context.keyed.snapshot().encode(1 << 20) == []
    first.set()
    wait_until(lambda: is_done(operator, 0) and is_done(operator, 1))
    context.looks.pop()()
    assert emitted == list(range(10))
    operator.close()


class Watermarks(Operator):
    """Emits a record for each watermark, with the number of records in front of it."""

    def __init__(self) -> None:
        self.count = 0

    def process(self, batch: pa.RecordBatch, source: int, emit: Emit) -> None:
        self.count += batch.num_rows

    def on_watermark(self, watermark: int, emit: Emit) -> None:
        if watermark < MAX_WATERMARK:
            emit(pa.record_batch({"watermark": [watermark], "count": [self.count]}))


@pytest.mark.parametrize("ordered", [True, False])
def test_watermarks_stay_behind_the_records_in_front_of_them(ordered: bool) -> None:
    pipeline, sink = Pipeline("p"), CollectSink()
    source = ListSource(rows(100), batch_rows=10, watermark_column="n")
    stream = pipeline.source(source).map_async(slow, concurrency=4, batch_rows=5, ordered=ordered)
    stream._node("watermarks", Watermarks, None, None).sink(sink)
    run(pipeline)
    found = sink.rows()
    watermarks = [row["watermark"] for row in found]
    assert watermarks == sorted(watermarks)
    assert watermarks[-1] == 99
    assert all(row["count"] > row["watermark"] for row in found)
    if ordered:
        assert all(row["count"] == row["watermark"] + 1 for row in found)


def test_a_keyed_stream_can_be_mapped_too() -> None:
    def build(stream: Stream) -> Stream:
        keyed = stream.key_by("n")
        assert isinstance(keyed, KeyedStream)
        return keyed.map_async(doubled, parallelism=2)

    found, _ = run_of(build, rows(50), parallelism=2)
    assert sorted(found) == [2 * n for n in range(50)]
