"""The last steps before a failure: kept for little, bounded, and shown to whoever has to find the defect."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable

import pytest

from penstock.errors import PenstockError, ProtocolViolation, UserCodeError
from penstock.ids import CheckpointId, Generation, SubtaskId, WorkerId
from penstock.mailbox.failures import error_of, failed_frame
from penstock.mailbox.frames import CreditFrame, FailedFrame
from penstock.mailbox.journal import STEPS_MAX, Story
from penstock.protocol import alignment
from penstock.protocol.coordinator.events import Acknowledged
from penstock.protocol.manifest import Segment, StateKind, StateSegment, SubtaskReport
from penstock.storage.memory import MemoryStore
from tests.unit.driver.test_supervisor import Driver
from tests.unit.mailbox.fake_ports import (
    GENERATION,
    LEFT,
    MAP,
    MAP_1,
    WRITE,
    Bench,
    ManualClock,
    Seen,
    barrier,
    join,
    to_coordinator,
)

READY = alignment.SubtaskRestored()


class TestStory:
    def test_it_is_the_last_steps_with_their_time_counted_back_from_now(self) -> None:
        clock = ManualClock()
        story = Story(clock)
        for _ in range(STEPS_MAX + 5):
            story.note("map[1]", READY, ())
        clock.advance(35)
        story.note("map[1]", alignment.CheckpointTriggered(barrier(7)), (alignment.ForwardBarrier(barrier(7)),))
        lines = story.text().splitlines()
        assert len(lines) == STEPS_MAX
        assert lines[0] == "   -35 ms  map[1]: SubtaskRestored() -> nothing"
        assert lines[-1] == "     0 ms  map[1]: CheckpointTriggered(7+0ms) -> ForwardBarrier(7+0ms)"

    def test_its_text_is_bounded_however_many_channels_a_step_names(self) -> None:
        story = Story(ManualClock())
        many = frozenset(range(10_000))
        for _ in range(2 * STEPS_MAX):
            story.note("map[1]", READY, (alignment.UnblockChannels(many),))  # type: ignore[arg-type]
        assert len(story.text()) <= STEPS_MAX * 161

    def test_it_names_what_holds_state_and_lets_go_of_it(self) -> None:
        state = StateSegment(MAP, "seen", StateKind.LIST, Segment(5, 0, inline=b"state"), 1)
        event = Acknowledged(CheckpointId(7), Generation(1), SubtaskReport(MAP_1, states=(state,)), 0)
        story = Story(ManualClock())
        before = sys.getrefcount(event)
        story.note("coordinator", event, ())
        assert sys.getrefcount(event) == before
        assert story.text().endswith("coordinator: Acknowledged(7 map[1]) -> nothing")


def violated() -> Bench:
    """A worker whose sender gets more credit than there is."""
    bench = Bench(join(Seen())).started()
    bench.trigger(barrier(1))
    bench.worker.deliver(CreditFrame(GENERATION, bench.channel(MAP, WRITE), 10**9, 1))
    return bench


class TestWorker:
    def test_a_violation_carries_the_last_steps_and_a_traceback_shows_them(self) -> None:
        error = violated().worker.failure
        assert isinstance(error, ProtocolViolation)
        assert "map[1]: CheckpointTriggered(1+0ms) -> " in error.story
        shown = "".join(traceback.format_exception(error))
        assert "The last steps of the checkpoint protocol before this:\n" in shown and error.story in shown

    def test_the_driver_hears_of_them(self) -> None:
        (frame,) = to_coordinator(violated().transport, FailedFrame)
        error = error_of(frame)
        assert isinstance(error, ProtocolViolation)
        assert "map[1]: CheckpointTriggered(1+0ms) -> " in error.story
        assert error.story in "".join(traceback.format_exception(error))

    def test_an_event_that_cannot_happen_is_the_last_step_of_its_story(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def step(state: object, event: object) -> object:
            raise ProtocolViolation("planted")

        bench = Bench(join(Seen())).started()
        monkeypatch.setattr(alignment, "step", step)
        bench.barrier(LEFT, barrier(3))
        error = bench.worker.failure
        assert isinstance(error, ProtocolViolation)
        assert error.story.splitlines()[-1].endswith("map[1]: BarrierReached(1 3+0ms) -> violation")

    def test_an_error_of_user_code_carries_them_and_does_not_show_them(self) -> None:
        error = UserCodeError("operator 'map': process raised ValueError: no")
        told = error_of(
            failed_frame(Generation(1), WorkerId(0), error, SubtaskId(MAP, 0), story="  0 ms  map[0]: a -> b")
        )
        assert told.story == "  0 ms  map[0]: a -> b"
        assert "".join(traceback.format_exception(told)).count("map[0]") == 0


class TestDriver:
    @pytest.mark.parametrize(("kind", "is_shown"), [("ProtocolViolation", True), ("", True), ("UserCodeError", False)])
    def test_it_logs_those_of_a_defect(self, kind: str, is_shown: bool, caplog: pytest.LogCaptureFixture) -> None:
        driver = Driver(MemoryStore()).started().ready()
        frame = FailedFrame(driver.generation, WorkerId(0), "credit below zero", MAP_1, kind, story="step of map[1]")
        with caplog.at_level(logging.WARNING, "penstock"):
            driver.supervisor.deliver(frame)
        shown = [message for message in caplog.messages if "step of map[1]" in message]
        assert bool(shown) is is_shown
        assert isinstance(driver.supervisor.error, PenstockError)
        assert driver.supervisor.error.story == "step of map[1]"

    def test_a_violation_of_the_coordinator_carries_its_own_steps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from penstock.protocol.coordinator import machine

        driver = Driver(MemoryStore()).started().ready()
        coordinator = driver.supervisor.coordinator
        assert coordinator is not None
        step: Callable[..., object] = machine.step

        def broken(state: object, event: object) -> object:
            step(state, event)
            raise ProtocolViolation("planted")

        monkeypatch.setattr(machine, "step", broken)
        with pytest.raises(ProtocolViolation, match="planted") as raised:
            coordinator.cancel()
        lines = raised.value.story.splitlines()
        assert any("coordinator: AllReady() -> " in line for line in lines)
        assert lines[-1].endswith("-> violation")
