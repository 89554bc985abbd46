"""Event time of a subtask with several channels: the slowest decides, idle ones hold nobody up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.ids import ChannelId, OperatorName
from penstock.mailbox.timers import Timers
from penstock.model.event_time import IDLE_WATERMARK, MAX_WATERMARK, MIN_WATERMARK
from penstock.worker.event_time.subtask_clock import SubtaskClock
from tests.unit.mailbox.fake_ports import ManualClock


class FakeChain:
    """Operators that hear of watermarks, and may hold them back."""

    source = None
    is_idle = True
    suspended = 0

    def __init__(self, clock: SubtaskClock, emits_later: bool = False) -> None:
        self.clock = clock
        self.emits_later = emits_later
        self.heard: list[int] = []
        self.released: list[int] = []

    def on_watermark(self, watermark: int) -> bool:
        self.heard.append(watermark)
        return False

    def restore_watermark(self, watermark: int) -> None:
        self.restored = watermark

    def release(self, context: object, watermark: int) -> None:
        self.released.append(watermark)
        self.clock.pass_on(watermark)

    def emits_later_before(self, context: object) -> bool:
        return self.emits_later


class Bench:
    """A subtask with channels 1 … n, and one output."""

    def __init__(self, channels: int = 2, *, follows: bool = False, emits_later: bool = False, **follow: Any) -> None:
        self.time = ManualClock()
        self.timers = Timers(self.time)
        self.sent: list[int] = []
        self.inputs = {
            ChannelId(number): SimpleNamespace(
                watermark=MIN_WATERMARK,
                channel=SimpleNamespace(id=ChannelId(number)),
                is_empty=True,
                in_hand=0,
                overtaken=0,
            )
            for number in range(1, channels + 1)
        }
        output = SimpleNamespace(send_watermark=self.sent.append)
        services: Any = SimpleNamespace(clock=self.time, timers=self.timers)
        self.clock = SubtaskClock(services, self.inputs, {ChannelId(9): output})  # type: ignore[arg-type, dict-item]
        self.context: Any = SimpleNamespace(operator="event time")
        if follows:
            self.clock.follow(self.context, follow.get("idle_after_ms"), None)
        self.chain = FakeChain(self.clock, emits_later)
        self.clock.begin(self.chain)  # type: ignore[arg-type]

    def hears(self, channel: int, watermark: int) -> None:
        self.clock.on_watermark(self.inputs[ChannelId(channel)], watermark)  # type: ignore[arg-type]

    def reads(self, channel: int, reached: int) -> None:
        self.clock.reading(ChannelId(channel))
        self.clock.saw(self.context, reached)
        self.clock.reading(None)
        self.clock.after_channel()

    def wait(self, ms: int) -> None:
        self.time.advance(ms)
        self.timers.fire()


def test_the_slowest_channel_decides_and_time_never_goes_back() -> None:
    bench = Bench()
    bench.hears(1, 10)
    bench.hears(2, 5)
    bench.hears(2, 20)
    bench.hears(1, 3)
    assert bench.chain.heard == bench.sent == [5, 10]
    assert bench.clock.passed_on == 10


def test_the_end_is_told_to_operators_and_is_no_time() -> None:
    bench = Bench()
    bench.hears(1, 10)
    bench.hears(2, MAX_WATERMARK)
    bench.hears(1, MAX_WATERMARK)
    assert bench.chain.heard == [10, MAX_WATERMARK]
    assert bench.sent == [10]
    assert bench.clock.passed_on == 10


def test_an_idle_channel_holds_nobody_up_until_it_wakes() -> None:
    bench = Bench()
    bench.hears(1, 10)
    bench.hears(2, IDLE_WATERMARK)
    assert bench.sent == [10]
    bench.hears(2, 4)
    bench.hears(1, 30)
    assert bench.sent == [10]
    bench.hears(2, 20)
    assert bench.sent == [10, 20]


def test_if_all_are_idle_the_furthest_has_the_word_and_downstream_is_told() -> None:
    bench = Bench()
    bench.hears(1, 10)
    bench.hears(2, 5)
    bench.hears(2, IDLE_WATERMARK)
    bench.hears(1, IDLE_WATERMARK)
    assert bench.sent == [5, 10, IDLE_WATERMARK]
    bench.hears(1, 12)
    assert bench.sent == [5, 10, IDLE_WATERMARK, 10, 12]
    assert bench.clock.passed_on == 12


def test_an_idle_channel_beside_one_that_has_ended_is_not_the_end() -> None:
    bench = Bench()
    bench.hears(1, MAX_WATERMARK)
    bench.hears(2, 7)
    bench.hears(2, IDLE_WATERMARK)
    assert bench.chain.heard == [7]
    assert bench.sent == [7, IDLE_WATERMARK]


def test_nobody_overtakes_records_that_are_worked_on_in_the_background() -> None:
    bench = Bench(1)
    bench.chain.is_idle = False
    bench.hears(1, IDLE_WATERMARK)
    bench.wait(100)
    assert bench.sent == []
    bench.chain.is_idle = True
    bench.wait(100)
    assert bench.sent == [IDLE_WATERMARK]


def test_a_restored_clock_is_passed_on() -> None:
    bench = Bench()
    bench.clock.restore(50)
    assert bench.chain.restored == 50, "the operators know it before they go on"
    bench.clock.tell_restored(50)
    bench.hears(1, 40)
    bench.hears(2, 40)
    assert bench.sent == [50]
    assert bench.chain.heard == []


# --- by the times of records ---


def test_each_channel_has_a_clock_and_the_slowest_decides() -> None:
    bench = Bench(follows=True)
    bench.reads(1, 100)
    assert bench.chain.released == []
    bench.reads(2, 10)
    bench.reads(2, 60)
    assert bench.chain.released == [10, 60]


def test_a_channel_that_has_ended_holds_nothing_back() -> None:
    bench = Bench(follows=True)
    bench.reads(1, 100)
    bench.hears(2, MAX_WATERMARK)
    assert bench.chain.released == [100]


def test_a_channel_whose_sender_is_idle_holds_nobody_up_until_it_has_records() -> None:
    bench = Bench(follows=True)
    bench.reads(1, 100)
    bench.hears(2, IDLE_WATERMARK)
    assert bench.chain.released == [100]
    bench.reads(2, 40)
    bench.reads(1, 200)
    bench.reads(2, 150)
    assert bench.chain.released == [100, 150]


def test_a_channel_without_records_for_long_holds_nobody_up() -> None:
    bench = Bench(follows=True, idle_after_ms=100)
    bench.wait(25)
    bench.wait(25)
    bench.reads(1, 100)
    bench.wait(25)
    assert bench.chain.released == []
    bench.wait(25)
    assert bench.chain.released == [100]
    bench.wait(25)
    bench.wait(25)
    assert bench.sent == [100, IDLE_WATERMARK]
    bench.reads(2, 300)
    assert bench.sent[-1] == 300


def test_a_channel_with_records_that_wait_is_not_idle() -> None:
    bench = Bench(follows=True, idle_after_ms=100)
    bench.inputs[ChannelId(2)].is_empty = False
    bench.reads(1, 100)
    for _ in range(20):
        bench.wait(25)
    assert bench.chain.released == []


def test_a_subtask_that_was_busy_for_long_takes_no_channel_for_idle() -> None:
    bench = Bench(follows=True, idle_after_ms=100)
    bench.reads(1, 100)
    bench.wait(10_000)
    assert bench.chain.released == []


@pytest.mark.parametrize("emits_later", [True, False])
def test_records_that_come_in_their_own_time_have_one_clock(emits_later: bool) -> None:
    bench = Bench(follows=True, emits_later=emits_later)
    assert bench.clock.tells_channels_apart is not emits_later
    bench.reads(1, 100)
    assert bench.chain.released == ([100] if emits_later else [])


@pytest.mark.parametrize("emits_later", [False, True])
def test_a_checkpoint_holds_the_times_that_were_seen_while_earlier_records_are_in_hand(emits_later: bool) -> None:
    bench = Bench(1, follows=True, emits_later=emits_later)
    bench.reads(1, 55)
    bench.inputs[ChannelId(1)].in_hand = 2
    bench.reads(1, 59)
    assert bench.clock.in_checkpoint(OperatorName("chain")) == (("chain", 55), ("event time", 59))
    bench.inputs[ChannelId(1)].in_hand = 0
    restored = Bench(1, follows=True, emits_later=emits_later)
    restored.clock.restore(55)
    restored.clock.tell_restored(55)
    restored.clock.restore_held(59)
    restored.reads(1, 52)
    assert restored.sent == [55], "a recovered record may be behind this one"
    restored.clock.on_recovered()
    assert restored.sent == [55, 59], "without another record"
    assert restored.clock.in_checkpoint(OperatorName("chain")) == (("chain", 59), ("event time", 59))


def test_a_restored_clock_waits_for_records_in_hand_even_if_all_recovered_ones_have_been_read() -> None:
    bench = Bench(1, follows=True)
    bench.clock.restore_held(59)
    bench.inputs[ChannelId(1)].in_hand = 1
    bench.clock.on_recovered()
    assert bench.sent == []
    bench.inputs[ChannelId(1)].in_hand = 0
    bench.reads(1, 52)
    assert bench.sent == [59]


def test_an_operator_that_follows_event_time_at_the_head_of_its_chain_has_the_clock_of_the_chain() -> None:
    bench = Bench(1, follows=True)
    bench.reads(1, 7)
    assert bench.clock.in_checkpoint(OperatorName("event time")) == (("event time", 7),)


def test_only_the_operator_that_follows_event_time_counts() -> None:
    bench = Bench(1, follows=True)
    bench.clock.reading(ChannelId(1))
    bench.clock.saw(object(), 500)  # type: ignore[arg-type]
    bench.clock.after_channel()
    assert bench.chain.released == []
