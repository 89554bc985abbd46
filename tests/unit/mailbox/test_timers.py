"""Timers: in the order of their time, and what they set for now waits for the next time."""

from __future__ import annotations

from penstock.mailbox.timers import Timers
from tests.unit.mailbox.fake_ports import ManualClock


def test_they_are_called_when_due_in_the_order_of_their_time_and_then_of_their_making() -> None:
    clock, called = ManualClock(100), []
    timers = Timers(clock)
    for name, delay_ms in (("b", 20), ("a", 10), ("c", 20), ("late", 21)):
        timers.after(delay_ms, lambda name=name: called.append(name))
    assert timers.next_at_ms == 110
    timers.fire()
    assert called == []
    clock.advance(20)
    timers.fire()
    assert called == ["a", "b", "c"]
    assert timers.next_at_ms == 121


def test_without_timers_there_is_nothing_to_wait_for() -> None:
    timers = Timers(ManualClock())
    timers.fire()
    assert timers.next_at_ms is None


def test_what_a_callback_sets_for_now_waits_for_the_next_time() -> None:
    clock, called = ManualClock(), []
    timers = Timers(clock)

    def again() -> None:
        called.append(len(called))
        timers.after(0, again)

    timers.after(0, again)
    timers.fire()
    assert called == [0]
    timers.fire()
    assert called == [0, 1]
