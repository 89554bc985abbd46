"""Timers of keyed functions on a clock that is moved by hand: each is called once, at its time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from penstock.operators.keyed.timers import timers_of
from penstock.state.keyed import KeyedState


class Clock:
    """The context of an operator."""

    def __init__(self) -> None:
        self.now = 0
        self.keyed = KeyedState(range(0, 128), 128, pa.schema([("k", pa.int64())]))
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def now_ms(self) -> int:
        return self.now

    def call_at(self, at_ms: int, call: Callable[[], None]) -> None:
        heapq.heappush(self._waiting, (max(at_ms, self.now), next(self._order), call))

    def begin_slice(self) -> Callable[[], bool]:
        return lambda: False

    def run_until(self, at_ms: int) -> None:
        while self._waiting and self._waiting[0][0] <= at_ms:
            self.now, _, call = heapq.heappop(self._waiting)
            call()
        self.now = at_ms


class Timed:
    """The timers of one subtask, and when they were called."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.called: list[tuple[int, int]] = []
        """Keys, and the time at which the timer of each was called."""
        self.passed_on: list[int] = []
        """How many had been called each time that their output was passed on."""
        self.on_due: Callable[[int, int], None] = lambda key, at_ms: None
        context: Any = self.clock
        self._timers = timers_of("processing", context, self._due, lambda: self.passed_on.append(len(self.called)))

    def _due(self, key_group: int, key: tuple[Any, ...], at_ms: int) -> None:
        self.called.append((key[0], self.clock.now))
        self.on_due(key[0], at_ms)

    def set(self, key: int, at_ms: int) -> None:
        self._timers.set(at_ms, self._at(key), (key,))

    def delete(self, key: int, at_ms: int) -> None:
        self._at(key)
        self._timers.delete(at_ms)

    def left(self, key: int) -> list[int]:
        """The timers of a key that a checkpoint would hold."""
        self._at(key)
        return self._timers.times()

    def _at(self, key: int) -> int:
        (group,) = self.clock.keyed.groups_of(pa.record_batch({"k": [key]}))
        self.clock.keyed.set_key(group, (key,))
        return int(group)


def test_a_timer_that_is_set_before_the_one_waited_for_is_called_at_its_own_time() -> None:
    timed = Timed()
    timed.set(0, 5_000)
    timed.set(1, 1_000)
    timed.clock.run_until(10_000)
    assert timed.called == [(1, 1_000), (0, 5_000)]


def test_a_timer_may_set_its_own_time_again() -> None:
    timed = Timed()

    def again(key: int, at_ms: int) -> None:
        if len(timed.called) < 3:
            timed.set(key, at_ms)

    timed.on_due = again
    timed.set(0, 1_000)
    timed.clock.run_until(2_000)
    assert timed.called == [(0, 1_000)] * 3
    assert timed.left(0) == []


def test_a_timer_that_was_deleted_is_not_called_and_one_that_was_called_is_gone() -> None:
    timed = Timed()
    timed.set(0, 1_000)
    timed.set(0, 2_000)
    timed.set(0, 3_000)
    timed.delete(0, 2_000)
    timed.clock.run_until(2_500)
    assert timed.called == [(0, 1_000)]
    assert timed.left(0) == [3_000]


def test_all_timers_of_one_moment_are_called_and_their_output_is_passed_on_however_many_they_are() -> None:
    timed = Timed()
    for key in range(1_000):
        timed.set(key, 1_000)
    timed.clock.run_until(1_000)
    assert sorted(timed.called) == [(key, 1_000) for key in range(1_000)]
    assert timed.passed_on[-1] == 1_000
    assert len(timed.passed_on) > 1, "the mailbox gets control in between"
