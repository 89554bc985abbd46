"""Timers of keyed functions: none is forgotten or called twice, and however many they are, they come in portions."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from penstock import KeyedFunction, Pipeline
from penstock.operators.keyed.timers import STATES, timers_of
from penstock.protocol.coordinator.state import Policy
from penstock.protocol.manifest import Manifest
from penstock.protocol.manifest.codec import decode_manifest_or_tombstone
from penstock.state.keyed import KeyedState
from penstock.storage import MemoryStore
from penstock.testing import CollectSink, ListSource, run

KEY = pa.schema([("k", pa.int64())])
HOUR_MS = 3_600_000


class Context:
    """The context of an operator on a clock that is moved by hand. A slice is over after so many looks at the time."""

    def __init__(self, looks: int = 10**9, state: KeyedState | None = None) -> None:
        self.now, self.looks, self.calls = 0, looks, 0
        self.waiting: list[tuple[int, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.keyed = state or KeyedState(range(0, 128), 128, KEY)

    def now_ms(self) -> int:
        return self.now

    def call_at(self, at_ms: int, call: Callable[[], None]) -> None:
        heapq.heappush(self.waiting, (max(at_ms, self.now), next(self.order), call))

    def begin_slice(self) -> Callable[[], bool]:
        looks = itertools.count(1)
        return lambda: next(looks) >= self.looks

    def run_until(self, at_ms: int) -> None:
        while self.waiting and self.waiting[0][0] <= at_ms:
            self.now, _, call = heapq.heappop(self.waiting)
            self.calls += 1
            call()
        self.now = at_ms


class Timed:
    """The timers of one subtask, and what they have called."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.called: list[tuple[int, int]] = []
        self.portions: list[int] = []
        """How many had been called each time that the output was passed on."""
        self.timers = timers_of(
            "processing",
            context,  # type: ignore[arg-type]
            lambda group, key, at_ms: self.called.append((key[0], at_ms)),
            lambda: self.portions.append(len(self.called)),
        )

    def set(self, key: int, at_ms: int) -> None:
        (group,) = self.context.keyed.groups_of(pa.record_batch({"k": [key]}))
        self.context.keyed.set_key(group, (key,))
        self.timers.set(at_ms, group, (key,))

    def left(self) -> int:
        """How many timers a checkpoint would hold."""
        pieces = self.context.keyed.snapshot().encode(1 << 20)
        return sum(piece.rows for piece in pieces)


def test_callbacks_do_not_pile_up() -> None:
    """One timer far away, and one that is near each second: the callback for the far one is used again."""
    timed = Timed(Context())
    for second in range(3 * 3600):
        timed.context.run_until(1000 * second)
        timed.set(1, 1000 * second + 500)
        if second % 600 == 0:
            timed.set(0, 1000 * second + HOUR_MS)
    assert len(timed.context.waiting) <= 8, "no more than there are timers"
    assert timed.context.calls <= len(timed.called)


def test_a_callback_that_comes_early_or_in_vain_is_followed_by_the_next_one() -> None:
    timed = Timed(Context())
    timed.set(0, 5_000)
    timed.set(0, 1_000)
    (group,) = timed.context.keyed.groups_of(pa.record_batch({"k": [0]}))
    timed.context.keyed.set_key(group, (0,))
    timed.timers.delete(1_000)
    timed.set(1, 3_000)
    timed.context.run_until(10_000)
    assert timed.called == [(1, 3_000), (0, 5_000)]
    assert timed.context.waiting == []


def test_timers_that_are_due_are_called_for_no_longer_than_a_slice_at_a_time() -> None:
    timed = Timed(Context(looks=10))
    for key in range(100):
        timed.set(key, 500)
    timed.context.run_until(1_000)
    assert len(timed.called) == 100
    assert timed.portions == list(range(10, 101, 10))


def test_at_most_some_hundred_are_called_at_once_however_fast_they_are() -> None:
    timed = Timed(Context())
    for key in range(1_000):
        timed.set(key, 500)
    timed.context.run_until(1_000)
    assert timed.portions == [256, 512, 768, 1_000]


def test_timers_are_taken_up_again_in_portions() -> None:
    first = Timed(Context())
    for key in range(100):
        first.set(key, 500)
    again = Timed(Context(looks=10, state=first.context.keyed))
    steps = again.timers.load_state()
    assert sum(1 for _ in steps) >= 9
    again.context.run_until(1_000)
    assert sorted(again.called) == sorted((key, 500) for key in range(100))


def test_at_the_end_a_portion_is_called_in_each_step_and_the_state_holds_the_rest() -> None:
    timed = Timed(Context(looks=10))
    for key in range(100):
        timed.set(key, HOUR_MS + key)
    for step, _ in enumerate(timed.timers.end(fire=True), 1):
        assert len(timed.called) == 10 * step
        assert timed.portions[-1] == len(timed.called), (
            "what they have emitted is passed on before a checkpoint may come"
        )
        assert timed.left() == 100 - len(timed.called)
    assert timed.called == [(key, HOUR_MS + key) for key in range(100)]


def test_at_the_end_timers_are_dropped_in_portions_too() -> None:
    timed = Timed(Context(looks=10))
    for key in range(100):
        timed.set(key, HOUR_MS + key)
    assert sum(1 for _ in timed.timers.end(fire=False)) == 10
    assert (timed.called, timed.left()) == ([], 0)


class Flush(KeyedFunction):
    """Gathers until its timer is called. The timer of 'often' is periodic, and comes before all others."""

    def open(self, context: Any) -> None:
        self.n = context.value("n", "n bigint")

    def process(self, key: Any, rows: pa.RecordBatch, context: Any) -> Any:
        (n,) = self.n.get() or (0,)
        self.n.update((n + rows.num_rows,))
        if not context.timers():
            context.set_timer(context.now_ms() + HOUR_MS // (3 if key[0] == "often" else 1))

    def on_timer(self, key: Any, at_ms: int, context: Any) -> Any:
        (n,) = self.n.get() or (0,)
        self.n.clear()
        if key[0] == "often":
            context.set_timer(at_ms + 10)
        return pa.record_batch({"k": [key[0]], "n": [n]})


def test_timers_that_are_set_at_the_end_take_no_other_timers_place() -> None:
    sink, pipeline = CollectSink(), Pipeline("p")
    rows = [{"k": "often"}] * 5 + [{"k": f"once {n}"} for n in range(7)]
    pipeline.source(ListSource(rows)).key_by("k").process(Flush()).sink(sink)
    run(pipeline)
    assert {row["k"]: row["n"] for row in sink.rows()} == {"often": 5, **{f"once {n}": 1 for n in range(7)}}
    assert len(sink.rows()) == 8, "the periodic timer is not called again: no time is left for it"


CALLS: list[int] = []


class Slow(KeyedFunction):
    """Its timers are called at the end only, take a while, and fail once."""

    def process(self, key: Any, rows: pa.RecordBatch, context: Any) -> Any:
        context.set_timer(context.now_ms() + HOUR_MS)

    def on_timer(self, key: Any, at_ms: int, context: Any) -> Any:
        CALLS.append(key[0])
        time.sleep(0.002)
        if len(CALLS) == 400:
            raise ValueError("once")
        return pa.record_batch({"k": [key[0]]})


def timers_in(store: MemoryStore) -> list[int]:
    """How many timers each checkpoint holds."""
    outcomes = [
        decode_manifest_or_tombstone(data) for path, data in store.blobs.items() if path.endswith("manifest.json")
    ]
    reports = [outcome.reports for outcome in outcomes if isinstance(outcome, Manifest)]
    return [
        sum(state.rows for report in made for state in report.states if state.name == STATES["processing"])
        for made in reports
    ]


def test_a_checkpoint_among_the_timers_of_the_end_holds_those_that_have_not_been_called() -> None:
    CALLS.clear()
    sink, pipeline, store = CollectSink(), Pipeline("p"), MemoryStore()
    pipeline.source(ListSource([{"k": n} for n in range(500)])).key_by("k").process(Slow()).sink(sink)
    result = run(pipeline, store=store, policy=Policy(interval_ms=10, backoff_ms=5, retained=10**6))
    assert result.restarts == 1
    assert any(0 < left < 500 for left in timers_in(store))
    assert sorted(row["k"] for row in sink.rows()) == list(range(500))
    assert len(CALLS) < 900, "those that a checkpoint did not hold any more are not called again"


class SetsAnother(KeyedFunction):
    def process(self, key: Any, rows: Any, context: Any) -> Any:
        context.set_timer(context.now_ms() + 3_600_000)

    def on_timer(self, key: Any, at_ms: int, context: Any) -> Any:
        context.set_timer(at_ms + 1)


def test_timers_that_are_set_after_the_end_are_said(caplog: pytest.LogCaptureFixture) -> None:
    pipeline = Pipeline("p")
    rows = [{"k": number} for number in range(5)]
    pipeline.source(ListSource(rows)).key_by("k").process(SetsAnother(), name="alarms").sink(CollectSink())
    run(pipeline)
    assert (
        "operator 'alarms', subtask 0: 5 timers that were set after the input had ended are not called" in caplog.text
    )
