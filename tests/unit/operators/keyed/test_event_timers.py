"""Timers in event time: each is called once the watermark has come to it, and no watermark overtakes their records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from penstock import (
    DataError,
    KeyedFunction,
    KeyedStream,
    Pipeline,
    PipelineError,
    RestoreError,
    Row,
    StatefulProcessor,
    Stream,
    TwoInputFunction,
    UserCodeError,
)
from penstock.model.event_time import MAX_WATERMARK, MIN_WATERMARK
from penstock.operators.keyed.timers import timers_of
from penstock.state.keyed import KeyedState
from penstock.storage import MemoryStore
from penstock.testing import ABORT, CHECKPOINT, CollectSink, ListSource, run


class Context:
    """The context of an operator, whose watermark is moved by hand."""

    operator = "p"

    def __init__(self, looks: int = 10**9, state: KeyedState | None = None) -> None:
        self.keyed = state or KeyedState(range(0, 128), 128, pa.schema([("k", pa.int64())]))
        self.watermark = MIN_WATERMARK
        self.released: list[int] = []
        self.owed: list[Iterator[None]] = []
        self.looks = looks

    def begin_slice(self) -> Callable[[], bool]:
        looks = iter(range(self.looks - 1))
        return lambda: next(looks, None) is None

    def work_off(self, steps: Iterator[None]) -> None:
        self.owed.append(steps)

    def release_watermark(self, watermark: int) -> None:
        self.released.append(watermark)

    def work(self) -> int:
        """All that is owed; how many steps it took."""
        steps = 0
        while self.owed:
            steps += sum(1 for _ in self.owed.pop(0))
        return steps


class Timed:
    """The timers of one subtask, and what they have called."""

    def __init__(self, context: Context, keeps_own: bool = True) -> None:
        self.context = context
        self.called: list[tuple[int, int]] = []
        self.on_due: Callable[[int, int], None] = lambda key, at_ms: None
        self.timers = timers_of("event", context, self._due, lambda: None, keeps_own)  # type: ignore[arg-type]

    def _due(self, group: int, key: tuple[Any, ...], at_ms: int) -> None:
        self.called.append((key[0], at_ms))
        self.on_due(key[0], at_ms)

    def set(self, key: int, at_ms: int) -> None:
        (group,) = self.context.keyed.groups_of(pa.record_batch({"k": [key]}))
        self.context.keyed.set_key(group, (key,))
        self.timers.set(at_ms, group, (key,))

    def comes(self, watermark: int) -> bool:
        """A watermark comes; whether it is held back."""
        if watermark < MAX_WATERMARK:
            self.context.watermark = watermark
        return self.timers.on_watermark(watermark)

    def left(self) -> int:
        return sum(piece.rows for piece in self.context.keyed.snapshot().encode(1 << 20))


def test_timers_up_to_the_watermark_are_called_in_their_order_and_then_it_is_let_go() -> None:
    timed = Timed(Context())
    for key, at_ms in ((0, 30), (1, 10), (2, 20), (3, 21)):
        timed.set(key, at_ms)
    assert timed.comes(20)
    assert (timed.called, timed.context.released, timed.timers.is_calling) == ([], [], True)
    timed.context.work()
    assert timed.called == [(1, 10), (2, 20)]
    assert timed.context.released == [20]
    assert not timed.timers.is_calling
    assert timed.left() == 2


def test_a_watermark_that_makes_no_timer_due_is_not_held_back() -> None:
    timed = Timed(Context())
    timed.set(0, 30)
    assert not timed.comes(29)
    assert timed.comes(30)


def test_timers_are_called_in_portions_and_a_later_watermark_waits_with_the_first() -> None:
    timed = Timed(Context(looks=10))
    for key in range(100):
        timed.set(key, key)
    timed.comes(49)
    steps = timed.context.owed[0]
    next(steps)
    assert len(timed.called) == 10
    assert timed.left() == 90, "a checkpoint holds those that have not been called (I1)"
    assert timed.comes(99), "the next watermark waits too"
    assert timed.context.work() > 5
    assert timed.called == [(key, key) for key in range(100)]
    assert timed.context.released == [99]


def test_a_timer_for_a_time_that_has_passed_is_called_at_once() -> None:
    timed = Timed(Context())
    timed.comes(50)
    timed.set(0, 50)
    timed.set(1, -5)
    timed.context.work()
    assert timed.called == [(1, -5), (0, 50)]
    assert timed.context.released == [], "no watermark was held back"


def test_before_the_first_watermark_no_timer_is_due() -> None:
    timed = Timed(Context())
    timed.set(0, MIN_WATERMARK)
    timed.context.work()
    assert timed.called == []


def test_a_timer_may_set_the_next_one_and_all_that_are_due_are_called_in_order() -> None:
    timed = Timed(Context())
    timed.on_due = lambda key, at_ms: timed.set(key, at_ms + 10)
    timed.set(0, 10)
    timed.set(1, 25)
    timed.comes(40)
    timed.context.work()
    assert timed.called == [(0, 10), (0, 20), (1, 25), (0, 30), (1, 35), (0, 40)]


def test_a_timer_that_sets_an_earlier_one_in_every_call_does_not_keep_the_watermark_for_ever() -> None:
    timed = Timed(Context())
    timed.on_due = timed.set
    timed.set(0, 10)
    timed.comes(40)
    timed.context.work()
    assert timed.called == [(0, 10)]
    assert timed.context.released == [40]
    timed.comes(41)
    timed.context.work()
    assert timed.called == [(0, 10)] * 2, "it is due with the next watermark"


def test_in_its_own_call_a_timer_is_listed_and_pyspark_deletes_it_after_the_call() -> None:
    listed: list[list[int]] = []
    timed = Timed(Context(), keeps_own=False)

    def on_due(key: int, at_ms: int) -> None:
        listed.append(timed.timers.times())
        timed.set(key, at_ms)

    timed.on_due = on_due
    timed.set(0, 10)
    timed.set(0, 90)
    timed.comes(40)
    timed.context.work()
    timed.comes(41)
    timed.context.work()
    assert listed == [[10, 90]]
    assert timed.left() == 1


def test_the_end_is_no_time_and_calls_what_is_left() -> None:
    timed = Timed(Context(looks=10))
    for key in range(30):
        timed.set(key, key)
    assert not timed.comes(MAX_WATERMARK)
    assert timed.called == []
    assert sum(1 for _ in timed.timers.end(fire=True)) > 2
    assert timed.called == [(key, key) for key in range(30)]
    assert timed.left() == 0


def test_restored_timers_that_the_watermark_has_passed_are_due_at_once() -> None:
    first = Timed(Context())
    first.set(0, 10)
    first.set(1, 60)
    again = Timed(Context(state=first.context.keyed))
    again.context.watermark = 50
    list(again.timers.load_state())
    again.context.work()
    assert again.called == [(0, 10)]


# --- in pipelines ---

HOUR_MS = 3_600_000


class Sessions(StatefulProcessor):
    """Clicks of a user until there was none for half an hour, as one would write it for Spark."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.clicks = handle.getValueState("clicks", "n int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            (n,) = self.clicks.get() or (0,)
            self.clicks.update((n + 1,))
            for at_ms in list(self.handle.listTimers()):
                self.handle.deleteTimer(at_ms)
            self.handle.registerTimer(row.at + HOUR_MS // 2)
        yield from ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        (n,) = self.clicks.get()
        self.clicks.clear()
        at_ms = expiredTimerInfo.getExpiryTimeInMs()
        assert timerValues.getCurrentWatermarkInMs() >= at_ms
        yield Row(user=key.user, n=n, at=at_ms)


def visits(users: int = 7, sessions: int = 12, clicks: int = 5) -> list[Any]:
    """Sessions of one click each minute, two hours apart, one batch a minute.

    In between somebody else clicks, so that event time goes on before the next session begins.
    """
    batches: list[Any] = []
    for begin_ms in range(0, 2 * HOUR_MS * sessions, 2 * HOUR_MS):
        for at_ms in range(begin_ms, begin_ms + clicks * 60_000, 60_000):
            batches.append(pa.record_batch({"user": [f"u{user}" for user in range(users)], "at": [at_ms] * users}))
        batches.append(pa.record_batch({"user": ["other"], "at": [begin_ms + HOUR_MS]}))
    return batches


class Echo(KeyedFunction):
    """Says each record once more, half an hour later."""

    def process(self, key: Any, rows: pa.RecordBatch, context: Any) -> None:
        for at_ms in rows["at"].to_pylist():
            context.set_timer(at_ms + HOUR_MS // 2)

    def on_timer(self, key: Any, at_ms: int, context: Any) -> Any:
        assert at_ms <= context.watermark < MAX_WATERMARK
        return pa.record_batch({"user": [key[0]], "at": [at_ms]})


def echoes(items: list[Any]) -> list[tuple[str, int]]:
    rows = [row for item in items if isinstance(item, pa.RecordBatch) for row in item.to_pylist()]
    return sorted((row["user"], row["at"] + HOUR_MS // 2) for row in rows)


def timed_by(pipeline: Pipeline, items: list[Any]) -> KeyedStream:
    return pipeline.source(ListSource(items)).with_watermark("at", 0).key_by("user")


def heard(sinks: list[CollectSink]) -> list[tuple[str, int]]:
    return sorted((row["user"], row["at"]) for sink in sinks for row in sink.rows())


def test_a_processor_of_pyspark_finds_the_sessions() -> None:
    pipeline, sink = Pipeline("p"), CollectSink()
    schema = "user string, n int, at bigint"
    timed_by(pipeline, visits()).process(Sessions(), schema=schema, format="rows").sink(sink)
    run(pipeline)
    rows = [row for row in sink.rows() if row["user"] != "other"]
    assert (len(rows), {row["n"] for row in rows}) == (7 * 12, {5})


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_crash_loses_and_repeats_no_timer(parallelism: int) -> None:
    items, pipeline, sink = visits(), Pipeline("p"), CollectSink()
    for place in (20, 41, 60):
        items.insert(place, CHECKPOINT)
    timed_by(pipeline, items).process(Echo()).sink(sink)
    assert run(pipeline, parallelism=parallelism, crash_after_checkpoints=(1, 3, 5)).restarts == 3
    assert heard([sink]) == echoes(items)


def test_records_of_timers_are_never_late_downstream() -> None:
    items, pipeline, sink = visits(users=100, sessions=2), Pipeline("p"), CollectSink()
    echoed = timed_by(pipeline, items).process(Echo()).key_by("user")
    echoed.window("1 min", late="error").count("n").sink(sink)
    run(pipeline, parallelism=2)
    assert sum(row["n"] for row in sink.rows()) == len(echoes(items))


def test_timers_of_a_rescaled_pipeline_are_called_once() -> None:
    items, store, sinks = visits(users=20), MemoryStore(), list[CollectSink]()
    for number, parallelism in enumerate((1, 3, 2)):
        pipeline, sink, is_last = Pipeline("p"), CollectSink(), number == 2
        sinks.append(sink)
        read = items if is_last else [*items[: 23 * (number + 1)], CHECKPOINT, ABORT(), items[0]]
        timed_by(pipeline, read).process(Echo(), name="echo").sink(sink)
        try:
            run(pipeline, parallelism=parallelism, store=store, restarts=0)
        except UserCodeError as error:
            assert "ABORT" in str(error), error
    assert heard(sinks) == echoes(items)


class Now(KeyedFunction):
    """Sets a timer of its own time, or of the clock."""

    def __init__(self, ahead_ms: int | None = None) -> None:
        self.ahead_ms = ahead_ms

    def process(self, key: Any, rows: pa.RecordBatch, context: Any) -> None:
        for at_ms in rows["at"].to_pylist():
            context.set_timer(at_ms if self.ahead_ms is None else context.now_ms() + self.ahead_ms)

    def on_timer(self, key: Any, at_ms: int, context: Any) -> Any:
        assert context.watermark != MAX_WATERMARK
        return pa.record_batch({"user": [key[0]], "at": [at_ms], "watermark": [context.watermark]})


def watermarks_of(build: Callable[[Stream], Stream], **options: Any) -> list[dict[str, Any]]:
    sink, pipeline = CollectSink(), Pipeline("p")
    build(pipeline.source(ListSource([{"user": "a", "at": at} for at in (10, 20, 30)], batch_rows=1))).sink(sink)
    run(pipeline, **options)
    return sink.rows()


def test_a_keyed_function_has_event_time_timers_where_the_stream_has_event_time() -> None:
    rows = watermarks_of(lambda s: s.with_watermark("at", "5 ms").key_by("user").process(Now()))
    assert [(row["at"], row["watermark"]) for row in rows] == [(10, 15), (20, 25), (30, 30)]


def test_without_event_time_timers_are_in_processing_time_and_it_can_be_said() -> None:
    rows = watermarks_of(lambda s: s.key_by("user").process(Now()))
    assert [row["at"] for row in rows] == [10, 20, 30]
    rows = watermarks_of(
        lambda s: s.with_watermark("at", "5 ms").key_by("user").process(Now(1), time_mode="processing")
    )
    assert all(row["at"] > 10**12 for row in rows)


def test_without_a_time_mode_no_timer_can_be_set() -> None:
    with pytest.raises(DataError, match='time_mode="none": set time_mode="event"'):
        watermarks_of(lambda s: s.key_by("user").process(Now(), time_mode="none"), restarts=0)


def test_a_time_mode_that_does_not_exist_is_refused() -> None:
    with pytest.raises(PipelineError, match="time_mode is 'eventtime'"):
        watermarks_of(lambda s: s.key_by("user").process(Now(), time_mode="eventtime"))  # type: ignore[arg-type]


def test_timers_of_the_other_time_are_not_taken_for_those_of_this_one() -> None:
    store = MemoryStore()
    rows: list[Any] = [{"user": "a", "at": 10}, CHECKPOINT, ABORT(), {"user": "a", "at": 11}]

    def described(items: list[Any], mode: Any) -> tuple[Pipeline, CollectSink]:
        pipeline, sink = Pipeline("p"), CollectSink()
        timed = pipeline.source(ListSource(items)).with_watermark("at", 0).key_by("user")
        timed.process(Now(10**7), time_mode=mode, name="now").sink(sink)
        return pipeline, sink

    with pytest.raises(Exception, match="ABORT"):
        run(described(rows, "processing")[0], store=store, restarts=0)
    with pytest.raises(RestoreError, match=r'has timers in processing time.* set time_mode="processing"'):
        run(described(rows[:1], None)[0], store=store, restarts=0)
    pipeline, sink = described(rows[:1], "processing")
    run(pipeline, store=store, restarts=0)
    assert len(sink.rows()) == 1


class Both(TwoInputFunction):
    def process_left(self, batch: pa.RecordBatch, context: Any) -> None:
        for _, rows in context.each_key(batch):
            context.set_timer(rows["at"][0].as_py() + 5)

    process_right = process_left

    def on_timer(self, key: Any, at_ms: int, context: Any) -> Any:
        return pa.record_batch({"user": [key[0]], "at": [at_ms], "watermark": [context.watermark]})


def test_a_function_of_two_inputs_has_event_time_timers_too() -> None:
    pipeline, sink = Pipeline("p"), CollectSink()
    sides = [
        pipeline.source(ListSource([{"user": "a", "at": at} for at in times], batch_rows=1), name=name)
        .with_watermark("at", 0)
        .key_by("user")
        for name, times in (("left", (0, 20, 40)), ("right", (10, 30)))
    ]
    sides[0].connect(sides[1]).process(Both()).sink(sink)
    run(pipeline)
    assert sorted(row["at"] for row in sink.rows()) == [5, 15, 25, 35, 45]
    assert all(row["watermark"] >= row["at"] for row in sink.rows())
