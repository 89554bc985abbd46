"""A time to live bounds the state: what has expired leaves memory and checkpoints, some of it at a time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from penstock import GeneratorSource, KeyedFunction, Pipeline
from penstock.operators.keyed import ttl as expiring
from penstock.operators.keyed.ttl import ExpiringListState, ExpiringMapState, ExpiringValueState, with_expiry
from penstock.protocol.manifest import Manifest
from penstock.protocol.manifest.codec import decode_manifest_or_tombstone
from penstock.state import KeyedState
from penstock.storage import MemoryStore
from penstock.testing import CollectSink, run

GROUPS = 8
NUMBER = pa.schema([("n", pa.int64())])


class Clock:
    """The context of an operator, with a clock that a test moves."""

    def __init__(self) -> None:
        self.keyed = KeyedState(range(0, GROUPS), GROUPS, NUMBER)
        self.ms = 0
        self._calls: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def now_ms(self) -> int:
        return self.ms

    def call_at(self, at_ms: int, call: Callable[[], None]) -> None:
        assert at_ms > self.ms, "the mailbox would never get control again"
        heapq.heappush(self._calls, (at_ms, next(self._order), call))

    @property
    def waiting(self) -> int:
        return len(self._calls)

    def go_to(self, ms: int) -> int:
        """Make all calls until then; returns how many that were."""
        made = 0
        while self._calls and self._calls[0][0] <= ms:
            self.ms, _, call = heapq.heappop(self._calls)
            call()
            made += 1
        self.ms = ms
        return made

    def at(self, key: int) -> None:
        self.keyed.set_key(key % GROUPS, (key,))


def value(clock: Any, ttl_ms: int) -> Any:
    return ExpiringValueState(clock.keyed.value("s", with_expiry(NUMBER)), ttl_ms, clock)


def elements(clock: Any, ttl_ms: int) -> Any:
    return ExpiringListState(clock.keyed.list("s", with_expiry(NUMBER)), ttl_ms, clock)


def entries(clock: Any, ttl_ms: int) -> Any:
    return ExpiringMapState(clock.keyed.map("s", NUMBER, with_expiry(NUMBER)), ttl_ms, clock)


def write(state: Any, number: int) -> None:
    if isinstance(state, ExpiringValueState):
        state.update((number,))
    elif isinstance(state, ExpiringListState):
        state.append_value((number,))
    else:
        state.update_value((number,), (number,))


def rows_of(clock: Clock) -> int:
    return sum(piece.rows for piece in clock.keyed.snapshot().encode(1 << 20))


each_kind = pytest.mark.parametrize("make", [value, elements, entries])


@each_kind
def test_keys_that_never_come_again_leave_the_state(make: Callable[[Any, int], Any]) -> None:
    clock = Clock()
    state = make(clock, 1_000)
    for key in range(3_000):
        clock.at(key)
        write(state, key)
    clock.go_to(900)
    assert rows_of(clock) == 3_000
    clock.go_to(3_000)
    assert rows_of(clock) == 0
    assert list(clock.keyed._states["s"].keys_held()) == []  # type: ignore[attr-defined]


@each_kind
def test_what_is_written_again_stays(make: Callable[[Any, int], Any]) -> None:
    clock = Clock()
    state = make(clock, 1_000)
    for ms in range(0, 5_000, 500):
        clock.go_to(ms)
        for key in range(10):
            clock.at(key)
            write(state, key)
    clock.at(3)
    assert state.exists()
    assert len(list(clock.keyed._states["s"].keys_held())) == 10  # type: ignore[attr-defined]


@each_kind
def test_a_sweep_looks_at_a_bounded_number_of_entries_at_a_time(
    make: Callable[[Any, int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    state = make(clock, 1_000)
    for key in range(5_000):
        clock.at(key)
        write(state, key)
    seen: list[int] = []
    whole = type(state).expire

    def counted(self: Any, key_group: int, key: Any) -> Any:
        seen[-1] += 1
        return whole(self, key_group, key)

    monkeypatch.setattr(type(state), "expire", counted)
    step = expiring._Sweep._step

    def counted_step(self: Any) -> None:
        seen.append(0)
        step(self)

    monkeypatch.setattr(expiring._Sweep, "_step", counted_step)
    clock.go_to(3_000)
    assert rows_of(clock) == 0
    assert sum(seen) >= 5_000
    assert max(seen) <= expiring._SWEPT_AT_ONCE + 1


def test_a_map_of_one_key_is_swept_in_portions_too() -> None:
    clock = Clock()
    state = entries(clock, 1_000)
    clock.at(1)
    for number in range(2_000):
        write(state, number)
    calls = clock.go_to(3_000)
    assert rows_of(clock) == 0
    assert calls > 2_000 // expiring._SWEPT_AT_ONCE


def test_the_key_of_the_caller_stays_where_it_is() -> None:
    clock = Clock()
    state = value(clock, 1_000)
    for key in range(20):
        clock.at(key)
        write(state, key)
    clock.go_to(2_500)
    write(state, 99)
    assert list(clock.keyed._states["s"].keys_held()) == [(19 % GROUPS, (19,))]  # type: ignore[attr-defined]


def test_one_sweep_is_enough_for_a_state_that_is_asked_for_again_and_again() -> None:
    clock = Clock()
    for _ in range(10):
        value(clock, 1_000)
    assert clock.waiting == 1
    clock.go_to(100_000)
    assert clock.waiting == 1


def test_a_snapshot_of_before_keeps_what_has_expired_since() -> None:
    clock = Clock()
    state = value(clock, 1_000)
    for key in range(100):
        clock.at(key)
        write(state, key)
    snapshot = clock.keyed.snapshot()
    clock.go_to(5_000)
    assert rows_of(clock) == 0
    assert sum(piece.rows for piece in snapshot.encode(1 << 20)) == 100


class Once(KeyedFunction):
    def open(self, context: Any) -> None:
        self.seen = context.value("seen", "n bigint", ttl="1 ms")

    def process(self, key: Any, rows: Any, context: Any) -> None:
        self.seen.update((1,))


def test_keys_seen_once_are_not_in_later_checkpoints() -> None:
    keys, made = 30_000, [0]

    def make(start: int, count: int) -> pa.RecordBatch:
        made[0] = start
        return pa.record_batch({"k": [min(n, keys) for n in range(start, start + count)]})

    def built() -> Pipeline:
        pipeline = Pipeline("p")
        # Behind the keys that come once there is one that comes again and again.
        source = pipeline.source(GeneratorSource(make, rows=None), name="src")
        source.key_by("k").process(Once(), name="once").sink(CollectSink(), name="out")
        return pipeline

    store, most = MemoryStore(), 0

    def held() -> int:
        paths = sorted(path for path in store.list("checkpoints/") if path.endswith("manifest.json"))
        manifest = decode_manifest_or_tombstone(store.read(paths[-1])) if paths else None
        if not isinstance(manifest, Manifest):
            return 0
        return sum(state.rows for report in manifest.reports for state in report.states if state.name == "seen")

    def until() -> bool:
        nonlocal most
        most = max(most, held())
        # Long after the last of them: what has expired is gone, and only the last key comes.
        return made[0] > 2 * keys and most > 100 and held() <= 2

    run(built(), store=store, until=until)
    assert held() <= 2
